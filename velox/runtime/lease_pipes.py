"""How workers and the keeper of leases reach each other: one pipe to it, and one back to each worker's block.

Knows: what a message is and that none is ever half. Does not know: what follows from one (lease_calls.py,
lease_keeper.py).

Made by the supervisor, they outlive every process that uses them: what was asked for is still there for a keeper that
takes over. Nobody ever blocks: a message that finds a full pipe is lost, and who waits for its answer waits no longer
than VELOX_REDIS_TIMEOUT.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from velox.shm.leased import Demand

__all__ = ["ALIVE", "EVERY_ROW", "LeasePipes"]

# Instead of a row: the keeper lives; and: whatever you wait for, look again.
ALIVE: Final = 0xFFFF_FFFF
EVERY_ROW: Final = 0xFFFF_FFFE

# pipe(7): a write of at most so many bytes is whole or not at all.
_ATOMIC: Final = select.PIPE_BUF
_MOST_DEMANDS: Final = _ATOMIC // Demand.size()
_MOST_ROWS: Final = _ATOMIC // 4
# 14,000 demands. It is as much as a user without privileges may ask for.
_DEMANDS_BYTES: Final = 2**20


class LeasePipes:
    """The pipes of one gateway. blocks: Segment.blocks."""

    def __init__(self, blocks: int) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self.demands_fd, self._demands_write = os.pipe2(flags)
        self._told: Final = [os.pipe2(flags) for _ in range(blocks)]
        try:
            fcntl.fcntl(self._demands_write, fcntl.F_SETPIPE_SZ, _DEMANDS_BYTES)
        except OSError:
            pass  # the user's limit on pipes is reached: 900 demands have to do

    def __repr__(self) -> str:
        return f"<LeasePipes blocks={len(self._told)}>"

    def told_fd(self, block: int) -> int:
        """Return what becomes readable when the keeper tells a worker something."""
        return self._told[block][0]

    # -- a worker's side --------------------------------------------------------------------------

    def demand(self, demands: Sequence[Demand]) -> None:
        """Tell the keeper."""
        for first in range(0, len(demands), _MOST_DEMANDS):
            part = demands[first : first + _MOST_DEMANDS]
            _write(self._demands_write, b"".join([demand.packed() for demand in part]))

    def told(self, block: int) -> list[int]:
        """Return the rows that the keeper told of, ALIVE and EVERY_ROW among them."""
        words = _read(self._told[block][0], _ATOMIC)
        return list(struct.unpack(f"={len(words) // 4}I", words))

    # -- the keeper's side ------------------------------------------------------------------------

    def demands(self) -> list[Demand]:
        """Return what workers asked for."""
        found: list[Demand] = []
        while messages := _read(self.demands_fd, _MOST_DEMANDS * Demand.size()):
            found += Demand.unpacked(messages)
        return found

    def tell(self, block: int, rows: Iterable[int]) -> None:
        """Tell a worker of rows."""
        words = list(rows)
        for first in range(0, len(words), _MOST_ROWS):
            part = words[first : first + _MOST_ROWS]
            _write(self._told[block][1], struct.pack(f"={len(part)}I", *part))

    def tell_all(self, word: int) -> None:
        """Tell every worker ALIVE or EVERY_ROW."""
        for block in range(len(self._told)):
            self.tell(block, (word,))

    def close(self) -> None:
        """Close all ends, as this process has them."""
        for fd in (self.demands_fd, self._demands_write, *(fd for pair in self._told for fd in pair)):
            os.close(fd)


def _write(fd: int, message: bytes) -> None:
    try:
        os.write(fd, message)
    except BlockingIOError:
        pass  # see above


def _read(fd: int, most: int) -> bytes:
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return b""
