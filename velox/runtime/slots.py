"""The places that workers fill, and which process is in them.

Knows: that a slot has one worker that serves, and beside it, for a while, a successor that starts or a worker that
leaves. Does not know: how a process is started or told to leave (supervisor.py).
"""

from __future__ import annotations

from typing import Final

from velox.shm.segment import Segment
from velox.shm.status import WorkerStatus

__all__ = ["SPARES", "Seat", "Slot"]

# Blocks of shared memory that a slot needs beside its first: one process may leave while another one serves.
SPARES: Final = 1


class Seat:
    """One process of a slot, and its block of shared memory; the block outlives the processes that use it."""

    def __init__(self, segment: Segment, block: int) -> None:
        self.block: Final = block
        self.status: Final = WorkerStatus(segment, block)
        self.pid = 0  # 0: nobody
        self.started_s = 0.0
        self.leave_by_s = 0.0  # 0: it was not told to leave
        self.aborted = False
        self.status.vacate()

    def __repr__(self) -> str:
        return f"<Seat {self.block} pid={self.pid} {self.status.state.name}>"


class Slot:
    """A place for a worker."""

    def __init__(self, index: int, segment: Segment) -> None:
        self.index: Final = index
        self.serving, self.other = (Seat(segment, block) for block in segment.blocks_of(index))
        self.backoff_s = 0.0
        self.respawn_at_s = 0.0
        self.replace_at_s = 0.0  # not before: a worker that can't help its memory must not be replaced all the time

    def __repr__(self) -> str:
        return f"<Slot {self.index} serving={self.serving!r} other={self.other!r}>"

    @property
    def seats(self) -> tuple[Seat, Seat]:
        """Both seats, the one that serves first."""
        return self.serving, self.other

    @property
    def has_successor(self) -> bool:
        """True while a process starts that will serve in the place of this slot's worker."""
        return bool(self.other.pid) and not self.other.leave_by_s

    def change_over(self) -> None:
        """The other one serves from now on."""
        self.serving, self.other = self.other, self.serving
