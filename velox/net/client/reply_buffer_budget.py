"""Limits what the replies of one client's HTTP/2 connection may hold together, taken by the client or not.

Knows: how much waits, how much of it one stream may have, when no stream may add to it. Does not know: streams, or
which of them are paused (client/http2.py).

    up to 1.25 MiB   each stream may have 64 KiB waiting, as a client of HTTP/1.1 may: 20 that the client does not read
    above            one that waits for its window may have 16 KiB: the rest is for those that are read
    above 2 MiB      it is full: all upstreams of the connection are held, and new streams refused, until 1/16 is free:
                     one read of the upstream's, so that one that is read goes on beside those that just don't fill it

Whatever is held, each stream's HTTP/2 upstream may send what its window has room for already. So no more than sixteen
replies at once have a whole window (VELOX_UPSTREAM_STREAM_WINDOW); those beside them have 16 KiB.

One event of a translation may be 32 MiB, and comes whole: what is above 2 MiB takes room of that for bodies, which all
clients of the worker share.

A hundred streams with less than 16 KiB each never fill it. Those that fill it have VELOX_CLIENT_WRITE_TIMEOUT to go on.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_AHEAD", "ReplyBufferBudget", "held_bytes"]

# Above it a stream's upstream is held, below a quarter it goes on. As uvloop's write buffer.
_SHARE: Final = 64 * 1024
_SMALL_SHARE: Final = 16 * 1024
_CROWDED: Final = 1280 * 1024
_FULL: Final = 2048 * 1024
_ROOMY: Final = _FULL - 128 * 1024
# What an engine keeps of a stream until its last byte has gone (protocol/http2/ngh2_engine.py).
_SLICE: Final = 64 * 1024
# So many whole windows are as much as the budget, where they are 128 KiB.
MAX_AHEAD: Final = 16


def held_bytes(n_queued: int, n_given: int) -> int:
    """Return what a stream holds at most. n_given: since it had nothing queued.

    Of a block that goes out in parts more is kept than what is left of it: SendQueue keeps twice that, and the engine
    its last slice whole.
    """
    return min(n_given, 2 * n_queued + _SLICE) if n_queued else 0


class ReplyBufferBudget:
    """The account of one connection."""

    __slots__ = ("_n_ahead", "is_full", "n_bytes")

    def __init__(self) -> None:
        self.n_bytes = 0
        self._n_ahead = 0
        self.is_full = False  # nothing may be added but what is under way already

    def __repr__(self) -> str:
        return f"<ReplyBufferBudget {self.n_bytes}{' full' if self.is_full else ''}>"

    def add(self, n_bytes: int) -> bool:
        """More waits, or less. True when that has made it full."""
        self.n_bytes += n_bytes
        if self.is_full or self.n_bytes <= _FULL:
            return False
        self.is_full = True
        return True

    @property
    def n_over(self) -> int:
        """How much more waits than a connection may hold."""
        return max(0, self.n_bytes - _FULL)

    def reopens(self) -> bool:
        """Return True, once, when it was full and there is room again."""
        if self.is_full and self.n_bytes <= _ROOMY:
            self.is_full = False
            return True
        return False

    def take_ahead(self) -> bool:
        """Let one more reply run ahead. False: none may."""
        if self._n_ahead >= MAX_AHEAD:
            return False
        self._n_ahead += 1
        return True

    def give_ahead(self) -> None:
        """A reply that might run ahead is over."""
        self._n_ahead -= 1

    def share(self, *, is_stalled: bool) -> int:
        """Return how much one stream may have waiting. is_stalled: for its window, and for nothing else."""
        return _SMALL_SHARE if is_stalled and self.n_bytes > _CROWDED else _SHARE
