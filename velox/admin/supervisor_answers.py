"""What the supervisor answers to a process that has asked it for something, such as a reload or an upgrade.

Each request has a number, and each answer says up to which number it answers. Who asks has woken the supervisor.

Knows: how an answer is waited for. Does not know: what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from velox.admin.message import RefusalError

__all__ = ["BEAT_S", "LOOK_S", "Numbered", "SupervisorAnswers"]

# How often the admin process looks whether the supervisor has said something: always, and while it waits for that.
BEAT_S: Final = 0.25
LOOK_S: Final = 0.05


class Numbered(Protocol):
    """An answer. upto: number of the last request that it answers."""

    @property
    def upto(self) -> int: ...


A = TypeVar("A", bound=Numbered)


class SupervisorAnswers(Generic[A]):
    """Of one page. read_new: returns an answer that was not read yet; None: there is none."""

    def __init__(self, read_new: Callable[[], A | None]) -> None:
        self._read_new: Final = read_new
        self._last: A | None = None

    def __repr__(self) -> str:
        return f"<SupervisorAnswers {self._last!r}>"

    async def wait(self, wanted: int, timeout_s: float, check: Callable[[], None] = lambda: None) -> A:
        """Return the first answer to the request of a number. check: raises what is told where none will come.

        Raises RefusalError(504).
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    check()
                    self._last = self._read_new() or self._last
                    if self._last is not None and self._last.upto >= wanted:
                        return self._last
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as exc:
            raise RefusalError(504, "the supervisor has not answered in time; its log says more") from exc
