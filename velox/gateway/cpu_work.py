"""Work that would block the event loop: done in steps, with other turns in between, or in a thread.

    in_steps()          takes a generator's steps, each a millisecond at most
    TranslationThread   runs what has no steps: a large request or reply that is put into another API

The thread does one piece of work after the other, so that a worker has one such at a time in the making. The
interpreter's lock is handed over each half millisecond meanwhile, in place of 5: each turn of the loop has to get it
back once.

Knows: steps and threads. Does not know: what the work is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["LARGE_BYTES", "TranslationThread", "in_steps", "is_large"]

_T = TypeVar("_T")
_SWITCH_S: Final = 0.0005
# Of text, which takes up to 10 ms for a megabyte; and with so many commas, most of which stand between values.
LARGE_BYTES: Final = 256 * 1024
_FEW_BYTES: Final = 16 * 1024
_MANY: Final = 2_000
# Half a character, as JSON escapes it: each that has no other half is replaced, and put back, by a call.
_HALVES: Final = (rb"\ud", rb"\uD")
_MANY_HALVES: Final = 1_000


def is_large(pieces: Sequence[bytes | bytearray]) -> bool:
    """Say whether a body may take over 5 ms to be read and written anew."""
    n = sum(map(len, pieces))
    if n > LARGE_BYTES or n <= _FEW_BYTES:
        return n > LARGE_BYTES
    if sum(piece.count(b",") for piece in pieces) > _MANY:
        return True
    return sum(piece.count(half) for piece in pieces for half in _HALVES) > _MANY_HALVES


async def in_steps(steps: Generator[None, None, _T]) -> _T:
    """Take all steps, with a turn of the loop after each; return their result. Raises what they raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)


class TranslationThread:
    """The thread of one worker for large translations; it starts with the first one."""

    __slots__ = ("_threads",)

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<TranslationThread {'idle' if self._threads is None else 'begun'}>"

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do it in the thread, after what was given before. Raises what it raises.

        Who is cancelled meanwhile does not wait: work that has begun is done, and its result is dropped.
        """
        if self._threads is None:
            sys.setswitchinterval(_SWITCH_S)
            self._threads = ThreadPoolExecutor(1, "translation")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
