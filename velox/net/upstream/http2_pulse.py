"""Whether the upstream at the other end of an HTTP/2 connection still lives: when to ask it, when to give it up.

Knows: how many reads there were, when it was looked at them. Does not know: frames, or how to ask (upstream/http2.py).
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["PONG_WAIT_S", "Pulse", "Verdict"]

# How long an upstream may take to answer a PING, or to say anything else.
PONG_WAIT_S: Final = 5.0
# As for HTTP/1.1: a connection that ends so soon after it was idle was closed before the upstream saw the request.
_STALE_WINDOW_S: Final = 0.1


class Verdict(enum.Enum):
    """What to do about the connection."""

    FINE = 0
    ASK = 1
    DEAD = 2


class Pulse:
    """The signs of life of one connection. n_reads: to be counted up with each read, of whatever."""

    __slots__ = ("_asked_s", "_idle_until_s", "_n_reads_idle", "_n_reads_seen", "_read_s", "n_reads")

    def __init__(self) -> None:
        self.n_reads = 0
        self._n_reads_seen = -1
        self._read_s = 0.0  # the latest that anything can have been read
        self._asked_s = 0.0  # 0: no answer is awaited
        self._n_reads_idle = 0
        self._idle_until_s = 0.0

    def __repr__(self) -> str:
        return f"<Pulse n_reads={self.n_reads} asked={self._asked_s > 0}>"

    def check(self, now_s: float, silence_s: float) -> Verdict:
        """Look whether anything was read. As exact as it is called often; any byte is a sign of life.

        silence_s: after which the upstream is asked. It is DEAD when it says nothing for PONG_WAIT_S from then on.
        """
        if self.n_reads != self._n_reads_seen:
            self._n_reads_seen = self.n_reads
            self._read_s = now_s
            self._asked_s = 0.0
        elif self._asked_s:
            if now_s - self._asked_s >= PONG_WAIT_S:
                return Verdict.DEAD
        elif now_s - self._read_s >= silence_s:
            self._asked_s = now_s
            return Verdict.ASK
        return Verdict.FINE

    def leave_idle(self, now_s: float) -> None:
        """A request begins, and no other is in flight."""
        self._n_reads_idle = self.n_reads
        self._idle_until_s = now_s

    def was_stale(self, now_s: float) -> bool:
        """True when a connection that is lost now was closed by the upstream before it saw what is in flight (F-10)."""
        return self.n_reads == self._n_reads_idle and now_s - self._idle_until_s < _STALE_WINDOW_S
