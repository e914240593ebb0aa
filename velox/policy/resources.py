"""What a worker has of a machine: open files, memory, garbage. When is it too little or too much, and what follows?

    plan_descriptors()    how many connections the limit on open files leaves room for. At the limit uvloop
                          accepts what comes and closes it without a word, and a dial fails: neither a client nor an
                          operator is told why. So a worker takes fewer connections than it has descriptors for, and
                          answers those beyond.
    MemoryWatch.look()    when a worker has too much memory to go on as before. Over the soft limit new
                          requests are refused, so that what runs can end, and give memory back. Over the hard limit, or
                          when nothing runs any more and the memory does not come back by itself, only a new process
                          helps.
    GarbageWatch.is_due() when it collects what is in reference cycles, and freed by nothing else; asked four times a
                          second. No request leaves such a cycle, and a collection looks at all objects that there are:
                          0.3 ms in a worker at rest, 20 to 50 ms with 1,000 streams, or with many pieces of replies.
                          So it is not made for every so many objects, as Python would, but when the worker has too
                          much memory; while nothing runs, when memory has grown, and now and then; and beside requests
                          once a minute at most, when memory has grown.

Knows: limits, looks, how long the last collection took. Does not know: where a limit stands, how memory is measured,
the collector, or who is told.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["DescriptorPlan", "GarbageWatch", "MemoryState", "MemoryWatch", "plan_descriptors"]

# The loop, pipes, listeners, logs, a resolver's threads, and connections that are being refused.
_RESERVED_FILES: Final = 64

# Looks without anything running after which memory over the soft limit is taken for lost: 2 s.
_LOST_AFTER: Final = 8

_LOOKS_PER_S: Final = 4  # at the memory
# Over what there was least of since the last one. A worker with 1,000 streams has some 40 MiB more than one at rest.
_GROWN_BYTES: Final = 64 * 1024 * 1024
_COLLECT_APART_S: Final = 5.0
_SELDOM_COLLECT_APART_S: Final = 60.0
# So many times what the last one took: 2 % of the time at most, and 0.1 % of what is spent without need.
_COLLECT_APART_TIMES: Final = 50.0
_SELDOM_COLLECT_APART_TIMES: Final = 1000.0


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """What one worker may open: connections of clients, and connections to an upstream."""

    clients: int
    upstream: int


def plan_descriptors(limit: int, clients: int, upstream: int) -> DescriptorPlan:
    """Divide `limit` open files. clients, upstream: what the settings ask for; neither gets more than that.

    An upstream connection counts twice: for a while there may be one that leaves beside one that comes. Where there
    is not room for all, the upstream side gets no more than half of it: a client without an upstream is of no use, nor
    an upstream without clients.
    """
    room = max(2, limit - _RESERVED_FILES)
    upstream = max(1, min(upstream, room // 4))
    return DescriptorPlan(clients=max(1, min(clients, room - 2 * upstream)), upstream=upstream)


class MemoryState(enum.IntEnum):
    """What a worker should do about its memory."""

    FINE = 0
    SHORT = 1  # refuse new requests
    FULL = 2  # and be replaced


class MemoryWatch:
    """Judges one worker. soft_bytes, hard_bytes: None for no such limit."""

    __slots__ = ("_hard_bytes", "_n_idle", "_soft_bytes")

    def __init__(self, soft_bytes: int | None, hard_bytes: int | None) -> None:
        self._soft_bytes: Final = soft_bytes
        self._hard_bytes: Final = hard_bytes
        self._n_idle = 0  # looks in a row: over the soft limit, and nothing running

    def __repr__(self) -> str:
        return f"<MemoryWatch soft={self._soft_bytes} hard={self._hard_bytes}>"

    def is_over(self, resident_bytes: int) -> bool:
        """True when it is over one of the limits."""
        limits = (limit for limit in (self._soft_bytes, self._hard_bytes) if limit is not None)
        return resident_bytes >= min(limits, default=resident_bytes + 1)

    def look(self, resident_bytes: int, *, is_idle: bool) -> MemoryState:
        """Judge. is_idle: nothing runs that could give memory back. Called four times a second."""
        if self._hard_bytes is not None and resident_bytes >= self._hard_bytes:
            return MemoryState.FULL
        if self._soft_bytes is None or resident_bytes < self._soft_bytes:
            self._n_idle = 0
            return MemoryState.FINE
        self._n_idle = self._n_idle + 1 if is_idle else 0
        return MemoryState.FULL if self._n_idle >= _LOST_AFTER else MemoryState.SHORT


class GarbageWatch:
    """Of one worker."""

    __slots__ = ("_least_bytes", "_next", "_next_seldom")

    def __init__(self) -> None:
        self._least_bytes = 0  # since the last one; 0: not known yet
        self._next = 0  # look
        self._next_seldom = 0  # the next look that may be made without need

    def __repr__(self) -> str:
        return f"<GarbageWatch least={self._least_bytes} next={self._next}>"

    def is_due(self, resident_bytes: int, n_look: int, *, is_idle: bool, is_over: bool) -> bool:
        """Say whether to collect now. is_idle: nothing runs. is_over: else requests are refused."""
        self._least_bytes = min(self._least_bytes or resident_bytes, resident_bytes)
        if n_look < self._next:
            return False
        has_grown = resident_bytes >= self._least_bytes + _GROWN_BYTES
        # Beside requests it makes others wait, and what has grown is mostly theirs.
        return is_over or (is_idle and has_grown) or ((is_idle or has_grown) and n_look >= self._next_seldom)

    def collected(self, resident_bytes: int, n_look: int, took_s: float) -> None:
        """Note one. resident_bytes: afterwards."""
        self._least_bytes = resident_bytes
        apart_s = max(_COLLECT_APART_S, took_s * _COLLECT_APART_TIMES)
        seldom_s = max(_SELDOM_COLLECT_APART_S, took_s * _SELDOM_COLLECT_APART_TIMES)
        self._next = n_look + round(_LOOKS_PER_S * apart_s)
        self._next_seldom = n_look + round(_LOOKS_PER_S * seldom_s)
