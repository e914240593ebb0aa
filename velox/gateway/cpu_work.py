"""Work that would block the event loop: done in steps, with other turns in between, or in a thread.

    in_steps()          takes a generator's steps, each a millisecond at most, where one such work is done at a time
    in_turns()          the same, of many at a time: all share a millisecond of each turn (net/turn_budget.py)
    in_turn()           does what is one step, in their line
    TranslationThread   runs what has no steps, or long ones: a large request or reply that is put into another API, a
                        body in br

The thread does one piece of work after the other, so that a worker has one such at a time in the making. The
interpreter's lock is handed over each tenth of a millisecond meanwhile, in place of 5 ms. In a turn the loop waits for
the lock once for each connection that is ready, so a turn takes about twice as long, and fewer are served in one.

Knows: steps and threads. Does not know: what the work is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

from velox.net.turn_budget import TurnBudget

__all__ = ["LARGE_BYTES", "TranslationThread", "in_steps", "in_turn", "in_turns", "is_large"]

_T = TypeVar("_T")
_SWITCH_S: Final = 0.0001
# Of the time that clients have in a turn. Each of their connections that has something is another wait for the lock.
_SHARE_BESIDE: Final = 0.25
# What a request does at least in the turn in which the work that it has waited for is done.
_WAKE_S: Final = 0.00005
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


async def in_turns(steps: Generator[None, None, _T], turns: TurnBudget) -> _T:
    """Take all steps while there is time for them; return their result. Raises what they raise.

    Who is cancelled meanwhile has no more of them taken.
    """
    while turns.has_time():
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
    waiting = _WaitingSteps(steps, turns, asyncio.get_running_loop().create_future())
    turns.wait(waiting)
    await waiting.over
    return cast(_T, waiting.result())


async def in_turn(work: Callable[[], _T], turns: TurnBudget) -> _T:
    """Do what is one step, at once if there is time. Raises what it raises."""
    if turns.has_time():
        return work()
    return await in_turns(_only(work), turns)


def _only(work: Callable[[], _T]) -> Generator[None, None, _T]:
    yield from ()
    return work()


class _WaitingSteps:
    """Steps that wait for a turn. over: resolves when they are taken; then result() is to be called."""

    __slots__ = ("_error", "_result", "_steps", "_turns", "over")

    def __init__(self, steps: Generator[None, None, object], turns: TurnBudget, over: asyncio.Future[None]) -> None:
        self._steps: Final = steps
        self._turns: Final = turns
        self.over: Final = over
        self._result: object = None
        self._error: Exception | None = None

    def turn_came(self) -> None:
        """See TurnWaiter."""
        if self.over.done():
            return  # who waited was cancelled
        try:
            next(self._steps)
            while self._turns.has_time():
                next(self._steps)
        except StopIteration as end:
            self._result = end.value
        except Exception as exc:
            self._error = exc
        else:
            self._turns.wait(self)
            return
        self._turns.spend(_WAKE_S)
        self.over.set_result(None)

    def result(self) -> object:
        """Return what came of them. Raises what they raised; that is kept here no longer, as it leads here."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error


class TranslationThread:
    """The thread of one worker for large translations; it starts with the first one.

    client_turns: what clients send has a part of its time while the thread has work; None: all of it.
    """

    __slots__ = ("_client_turns", "_n_given", "_share_s", "_threads")

    def __init__(self, client_turns: TurnBudget | None = None) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._client_turns: Final = client_turns
        self._share_s: Final = 0.0 if client_turns is None else client_turns.share_s
        self._n_given = 0  # works that somebody waits for

    def __repr__(self) -> str:
        return f"<TranslationThread {'idle' if self._threads is None else 'begun'}>"

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do it in the thread, after what was given before. Raises what it raises.

        Who is cancelled meanwhile does not wait: work that has begun is done, and its result is dropped.
        """
        if self._threads is None:
            sys.setswitchinterval(_SWITCH_S)
            self._threads = ThreadPoolExecutor(1, "translation")
        self._given(1)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._given(-1)

    def _given(self, n: int) -> None:
        self._n_given += n
        if self._client_turns is not None:
            self._client_turns.share_s = self._share_s * (_SHARE_BESIDE if self._n_given else 1.0)
