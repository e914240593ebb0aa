"""How much of an upstream's bytes one read takes: as much as is gone through in about half a millisecond.

A reply of many small events costs a hundred times as much a byte as one that passes unread. How many reads there are in
a turn of the loop is another matter (net/read_turns.py).

Knows: how long reads took. Does not know: what is done with them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TIMED_BYTES", "ReadPace"]

# Of each so many bytes at most one read is timed: together they take less than a step may take, whatever is in them. So
# of the chunks of a stream few are.
TIMED_BYTES: Final = 4096
_FIRST_BYTES: Final = 8 * 1024  # of a new connection: 3 ms for the costliest events, before modules are compiled
_LEAST_BYTES: Final = 1024
_LEAST_TIMED_BYTES: Final = 64
_QUICK_S: Final = 0.0002
# A step of the loop that takes longer is felt by others (docs/benchmarks). What remains is for a slower machine.
_WANTED_S: Final = 0.0005
_MOST_S: Final = 0.001


class ReadPace:
    """Of one connection. n_bytes: of the next read, at most. most: of any.

    quick_bytes: what is gone through in next to no time, by the last read that was timed.
    timed_bytes: after so many that were not timed, the next read is. These take next to no time either: a connection
    whose reads were made short, because they take long, would else never be timed again.
    """

    __slots__ = ("_most", "n_bytes", "quick_bytes", "timed_bytes")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self.n_bytes = min(most, _FIRST_BYTES)
        self.quick_bytes = self.timed_bytes = TIMED_BYTES

    def __repr__(self) -> str:
        return f"<ReadPace {self.n_bytes} of {self._most}>"

    def took(self, n_bytes: int, seconds: float) -> None:
        """Note how long it took to go through a read."""
        if seconds > _MOST_S:
            self.n_bytes = max(_LEAST_BYTES, min(self._most, int(n_bytes * _WANTED_S / seconds)))
        elif n_bytes >= self.n_bytes and seconds < _WANTED_S:
            self.n_bytes = min(self._most, 2 * self.n_bytes)
        if seconds * self._most <= n_bytes * _QUICK_S:
            self.quick_bytes = self._most
        else:
            self.quick_bytes = max(_LEAST_TIMED_BYTES, int(n_bytes * _QUICK_S / seconds))
        self.timed_bytes = min(TIMED_BYTES, self.quick_bytes)
