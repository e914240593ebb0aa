"""When a worker has too much memory to go on as before (R-MEM-4).

Knows: the two limits and what follows from them. Does not know: how memory is measured, or who is told.

Over the soft limit new requests are refused, so that what runs can end, and give memory back. Over the hard limit, or
when nothing runs any more and the memory does not come back by itself, only a new process helps.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["MemoryState", "MemoryWatch"]

# Looks without anything running after which memory over the soft limit is taken for lost: 2 s.
_LOST_AFTER: Final = 8


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
