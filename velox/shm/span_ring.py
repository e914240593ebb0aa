"""Messages on their way from a worker to the exporter of traces: a ring of bytes in shared memory for each block.

Knows: how messages lie there, with one writer at a time and one reader. Does not know: what a message means
(observe/traces/record.py).

    cells    of 8 bytes, each with one writer: bytes ever written, bytes ever given back
    ring     messages one behind the other, each with its length before it (4 bytes)

Both positions only grow; a byte lies at its position modulo the size. A message is there once the first cell passes
it, which is written after its bytes: a writer that is killed leaves none that is torn. A reader that is killed has had
what it gave back; the next one begins behind that. Without room a message is dropped, and its writer goes on at once.
"""

from __future__ import annotations

import mmap
from typing import Final

from atomicshm import fence

from velox.shm.segment import shared_memory

__all__ = ["SpanRing", "span_rings"]

_LENGTH_BYTES: Final = 4
_CELLS_BYTES: Final = 128  # each on a cache line of its own
_WRITTEN: Final = 0
_FREED: Final = 8


class SpanRing:
    """The ring of one block. memory: of all of them. at: where it begins. size: bytes for messages."""

    __slots__ = ("_bytes", "_cells", "_size")

    def __init__(self, memory: mmap.mmap, at: int, size: int) -> None:
        view = memoryview(memory)
        self._cells: Final = view[at : at + _CELLS_BYTES].cast("Q")
        self._bytes: Final = view[at + _CELLS_BYTES : at + _CELLS_BYTES + size]
        self._size: Final = size

    def __repr__(self) -> str:
        return f"<SpanRing {self.n_waiting} of {self._size} bytes>"

    @property
    def n_waiting(self) -> int:
        """Bytes that were not given back yet."""
        return self._cells[_WRITTEN] - self._cells[_FREED]

    def put(self, message: bytes) -> bool:
        """Write a message; False: there is no room for it."""
        written, n_bytes = self._cells[_WRITTEN], len(message) + _LENGTH_BYTES
        if written - self._cells[_FREED] + n_bytes > self._size:
            return False
        self._write(written, len(message).to_bytes(_LENGTH_BYTES, "little"))
        self._write(written + _LENGTH_BYTES, message)
        fence()
        self._cells[_WRITTEN] = written + n_bytes
        return True

    @property
    def freed(self) -> int:
        """Where the first message begins that was not given back."""
        return self._cells[_FREED]

    def read(self, position: int, most: int) -> list[tuple[bytes, int]]:
        """Return messages from a position on, at most so many, each with the position behind it."""
        written = self._cells[_WRITTEN]
        fence()
        found: list[tuple[bytes, int]] = []
        while position < written and len(found) < most:
            n_bytes = int.from_bytes(self._read(position, _LENGTH_BYTES), "little")
            end = position + _LENGTH_BYTES + n_bytes
            found.append((self._read(position + _LENGTH_BYTES, n_bytes), end))
            position = end
        return found

    def free(self, position: int) -> None:
        """Give the room of all messages before a position back."""
        fence()
        self._cells[_FREED] = position

    def _write(self, position: int, data: bytes) -> None:
        at = position % self._size
        n_first = min(len(data), self._size - at)
        self._bytes[at : at + n_first] = data[:n_first]
        self._bytes[: len(data) - n_first] = data[n_first:]

    def _read(self, position: int, n_bytes: int) -> bytes:
        at = position % self._size
        n_first = min(n_bytes, self._size - at)
        return bytes(self._bytes[at : at + n_first]) + bytes(self._bytes[: n_bytes - n_first])


def span_rings(n_blocks: int, size: int) -> tuple[SpanRing, ...]:
    """Return a ring for each block, in memory that processes inherit. Raises SharedMemoryError."""
    each = _CELLS_BYTES + size
    memory = shared_memory("velox-spans", n_blocks * each)
    return tuple(SpanRing(memory, n * each, size) for n in range(n_blocks))
