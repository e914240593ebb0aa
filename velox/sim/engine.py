"""The simulated model server behind the answers: how many it decodes at full speed, and what becomes of more.

Knows: which answers run, which wait in line, how fast time passes for those that run. Does not know: replies, tokens,
HTTP.

    no capacity        all run at full speed
    capacity N         N run, more wait in line before their first token: a server with so many slots (llama.cpp, TGI)
    ... and shares     all run; beyond N each is slowed down in proportion: a server that batches without end (vLLM)

Either way N is the knee: below, the throughput grows with the answers under way; above, only their delay does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["Engine"]

# The pace may change meanwhile, so a timer that shares the speed with others looks again after this at the latest.
_LOOK_S: Final = 0.05


class Engine:
    """What the answers of one simulator have in common. capacity: 0: any number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int = 0, *, shares: bool = False) -> None:
        self._loop: Final = loop
        self._slots: Final = capacity if capacity and not shares else 1 << 30
        self._full_speed: Final = capacity if shares else 0
        self._line: Final[OrderedDict[Hashable, Callable[[], None]]] = OrderedDict()
        self._own_s = 0.0  # its own time, which passes slower for the answers while there are too many
        self._read_s = loop.time()  # when that was read last
        self._is_moving = False
        self.n_running = 0
        self.n_held = 0  # tokens in memory, of prompts and answers; kept by those who run

    def __repr__(self) -> str:
        return f"<Engine {self.n_running} running, {len(self._line)} in line>"

    @property
    def n_waiting(self) -> int:
        """How many wait in line."""
        return len(self._line)

    def enter(self, answer: Hashable, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as there is a slot for `answer`: before this returns, if there is one."""
        if self.n_running >= self._slots:
            self._line[answer] = begin
        else:
            self.time()
            self.n_running += 1
            begin()

    def leave(self, answer: Hashable) -> None:
        """Forget an answer that entered: it has ended, or nobody wants it any more."""
        if self._line.pop(answer, None) is not None:
            return
        self.time()
        self.n_running -= 1
        if self._is_moving:
            return  # the next one took no time: it is gone before the call that let it in has returned
        self._is_moving = True
        try:
            while self._line and self.n_running < self._slots:
                _, begin = self._line.popitem(last=False)
                self.n_running += 1
                begin()
        finally:
            self._is_moving = False

    def time(self) -> float:
        """Return the time as it passes for the answers, in seconds."""
        now_s = self._loop.time()
        if not self._full_speed:
            return now_s
        self._own_s += (now_s - self._read_s) / self._slowness
        self._read_s = now_s
        return self._own_s

    def call_at(self, time_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at that time, as it passes for the answers; maybe earlier, where it does not pass evenly."""
        if not self._full_speed:
            return self._loop.call_at(time_s, callback)
        return self._loop.call_later(min(_LOOK_S, (time_s - self.time()) * self._slowness), callback)

    @property
    def _slowness(self) -> float:
        return max(1.0, self.n_running / self._full_speed)
