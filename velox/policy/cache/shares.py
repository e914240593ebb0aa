"""How much of the cache one partition may fill: so that no caller drives out what all others have.

Each partition may keep so many bytes in a window as long as its answers live. What it keeps over that is not kept. Of
two windows that touch it can fill twice as much, so a share of a fourth never takes more than half.

Knows: bytes and times. Does not know: what is kept. One process' share of the whole.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PartitionShares"]

_MOST_PARTITIONS: Final = 4096


class PartitionShares:
    """most_bytes: that one partition may keep in one window."""

    __slots__ = ("_most_bytes", "_windows")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes: Final = most_bytes
        self._windows: Final[dict[str, tuple[float, int]]] = {}  # when each ends, and the bytes in it

    def __repr__(self) -> str:
        return f"<PartitionShares {len(self._windows)} of {self._most_bytes} bytes each>"

    def take(self, partition: str, n_bytes: int, ttl_s: float, now_s: float) -> bool:
        """Take so much for an answer that lives so long; False: the partition has no more."""
        end_s, taken = self._windows.get(partition, (0.0, 0))
        if now_s >= end_s:
            end_s, taken = now_s + ttl_s, 0
        if taken + n_bytes > self._most_bytes:
            return False
        if partition not in self._windows and len(self._windows) >= _MOST_PARTITIONS and not self._has_room(now_s):
            return False
        self._windows[partition] = end_s, taken + n_bytes
        return True

    def _has_room(self, now_s: float) -> bool:
        """Forget windows that are over. Return True if there is room for another one."""
        for partition in [name for name, (end_s, _) in self._windows.items() if now_s >= end_s]:
            del self._windows[partition]
        return len(self._windows) < _MOST_PARTITIONS
