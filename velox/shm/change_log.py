"""A log of changes that one process writes and others follow, each at its own pace, without a lock.

Knows: frames of bytes, and where each begins. Does not know: what they say. Only processes of one gateway, which share
their memory anyway, may use it.

Positions only grow; a frame is at its position modulo the size. Before a frame takes the place of older ones, `oldest`
is raised; after it is whole, `end` is. A reader copies a frame, then looks at `oldest`: if that has passed it, what it
copied may be of two frames, and it has lost changes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Container
from typing import Final, NamedTuple

from velox.shm.segment import shared_memory

__all__ = ["ChangeLog", "Frame", "LogReader", "LostChangesError"]

_OLDEST: Final = 0
_END: Final = 1
_FRAME: Final = struct.Struct("=IB")  # length of what it says, kind
_FIRST_AT: Final = mmap.PAGESIZE


class LostChangesError(Exception):
    """A reader was so slow that changes which it has not seen are gone."""


class Frame(NamedTuple):
    """A change. kind: of the writer's choice, 0 to 255. end: the position behind it."""

    kind: int
    said: bytes
    end: int


class ChangeLog:
    """Made by the supervisor before it forks; children inherit it. It is a memfd: in no file system.

    max_bytes: of the frames that are there at a time; untouched pages take no memory. end: the position behind the last
    frame, as this process wrote it; a child that was forked has read so far.
    """

    __slots__ = ("_bounds", "_memory", "_oldest", "_size", "end")

    def __init__(self, max_bytes: int) -> None:
        self._size: Final = -(-max_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory: Final = shared_memory("velox-changes", _FIRST_AT + self._size)
        # Of 8 bytes, aligned: each is read and written as a whole.
        self._bounds: Final = memoryview(self._memory)[: 2 * 8].cast("Q")
        self._oldest = 0
        self.end = 0

    def __repr__(self) -> str:
        return f"<ChangeLog {self.end - self._oldest} of {self._size} bytes>"

    @property
    def n_bytes(self) -> int:
        """How much is there."""
        return self.end - self._oldest

    def publish(self, kind: int, said: bytes) -> None:
        """Append a frame. Only one process may. Raises ValueError if it is longer than the log."""
        frame = _FRAME.pack(len(said), kind) + said
        if len(frame) > self._size:
            raise ValueError("a frame is longer than the log")
        end = self.end + len(frame)
        if end - self._oldest > self._size:
            self._oldest = end - self._size
            self._bounds[_OLDEST] = self._oldest
        at = self.end % self._size
        first = min(len(frame), self._size - at)
        self._memory[_FIRST_AT + at : _FIRST_AT + at + first] = frame[:first]
        self._memory[_FIRST_AT : _FIRST_AT + len(frame) - first] = frame[first:]
        self._bounds[_END] = self.end = end

    def forget(self, end: int) -> None:
        """Give the memory of the frames before a position back: everybody has read them, or has lost them."""
        begin, self._oldest = self._oldest, max(self._oldest, end)
        self._bounds[_OLDEST] = self._oldest
        # Whole pages. The first may have the end of what was forgotten before, or, where the log is full, a new frame.
        page, last = (at - at % mmap.PAGESIZE for at in (begin, self._oldest))
        page += mmap.PAGESIZE * (self.end - page > self._size)
        while page < last:
            at = page % self._size
            length = min(last - page, self._size - at)
            self._memory.madvise(mmap.MADV_REMOVE, _FIRST_AT + at, length)
            page += length

    # -- for LogReader --------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """Return the position of the oldest frame that may be there, and the one behind the last."""
        return self._bounds[_OLDEST], self._bounds[_END]

    def copy(self, position: int, length: int) -> bytes:
        """Return so many bytes from a position on."""
        at = position % self._size
        first = min(length, self._size - at)
        found = self._memory[_FIRST_AT + at : _FIRST_AT + at + first]
        return found + self._memory[_FIRST_AT : _FIRST_AT + length - first] if first < length else found


class LogReader:
    """Reads a log from a position on. position: behind the last frame that was read."""

    __slots__ = ("_log", "position")

    def __init__(self, log: ChangeLog, position: int) -> None:
        self._log: Final = log
        self.position = position

    def __repr__(self) -> str:
        return f"<LogReader {self.position} of {self._log!r}>"

    def copy(self) -> LogReader:
        """Return another one at the same position."""
        return LogReader(self._log, self.position)

    @property
    def is_behind(self) -> bool:
        """True while there is a frame to read. Cheap."""
        return self._log.bounds()[1] != self.position

    def read(self, kinds: Container[int] = range(256)) -> Frame | None:
        """Return the next frame; None: there is none. Of one of another kind than `kinds` nothing is copied.

        Raises LostChangesError.
        """
        if self._log.bounds()[1] == self.position:
            return None
        length, kind = _FRAME.unpack(self._log.copy(self.position, _FRAME.size))
        at = self.position + _FRAME.size
        is_wanted = kind in kinds and length <= self._log.bounds()[1] - at
        said = self._log.copy(at, length) if is_wanted else b""
        if self._log.bounds()[0] > self.position:
            raise LostChangesError
        self.position = at + length
        return Frame(kind, said, self.position)
