"""Which worker has which call that others may join: in shared memory, one part for each process, which alone writes it.

    announce()     where the process is asked for its calls
    put(), drop()  a call that it has, by a digest of its request
    find()         those that say that they have one

Each part is a table of digests, four to a bucket. Without room a call is not found by others, which then make one of
their own. Nothing is locked: a reader may see half of what is just being written, or what a killed process has left. So
what is found is a hint, and the worker that is asked knows.

Knows: where these bytes lie. Does not know: what a digest stands for, or how one is asked.
"""

from __future__ import annotations

import mmap
from typing import Final, NamedTuple

from velox.shm.segment import shared_memory

__all__ = ["DIGEST_BYTES", "TOKEN_BYTES", "JoinIndex", "JoinMemory", "JoinPlace"]

DIGEST_BYTES: Final = 16
TOKEN_BYTES: Final = 16
_NAME_BYTES: Final = 48
_HEAD_BYTES: Final = TOKEN_BYTES + _NAME_BYTES
_WAYS: Final = 4
_BUCKETS: Final = 1024
_BUCKET_BYTES: Final = _WAYS * DIGEST_BYTES
_PART_BYTES: Final = _HEAD_BYTES + _BUCKETS * _BUCKET_BYTES
_FREE: Final = bytes(DIGEST_BYTES)


class JoinPlace(NamedTuple):
    """Where a process is asked. name: of its socket, in the abstract namespace. token: what it wants to see."""

    name: bytes
    token: bytes


class JoinMemory:
    """The memory of all processes. Raises SharedMemoryError."""

    __slots__ = ("memory", "n_blocks")

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks: Final = n_blocks
        self.memory: Final[mmap.mmap] = shared_memory("velox-joins", n_blocks * _PART_BYTES)

    def __repr__(self) -> str:
        return f"<JoinMemory of {self.n_blocks} processes>"


class JoinIndex:
    """One process' view. block: its own part."""

    __slots__ = ("_at", "_n_blocks", "_view")

    def __init__(self, memory: JoinMemory, block: int) -> None:
        self._view: Final = memoryview(memory.memory)
        self._n_blocks: Final = memory.n_blocks
        self._at: Final = block * _PART_BYTES

    def __repr__(self) -> str:
        return f"<JoinIndex {self._at // _PART_BYTES} of {self._n_blocks}>"

    def announce(self, place: JoinPlace) -> None:
        """Say where this process is asked. What one before has left in its part is forgotten."""
        at = self._at
        self._view[at : at + _PART_BYTES] = bytes(_PART_BYTES)
        name = len(place.name).to_bytes(1, "little") + place.name
        self._view[at : at + TOKEN_BYTES] = place.token
        self._view[at + TOKEN_BYTES : at + TOKEN_BYTES + len(name)] = name

    def put(self, digest: bytes) -> None:
        """Say that this process has such a call, if there is room for it."""
        self._replace(_FREE, digest[:DIGEST_BYTES], digest)

    def drop(self, digest: bytes) -> None:
        """Undo one put()."""
        self._replace(digest[:DIGEST_BYTES], _FREE, digest)

    def find(self, digest: bytes) -> list[JoinPlace]:
        """Return where other processes say that they have such a call."""
        view, wanted, offset = self._view, digest[:DIGEST_BYTES], _offset(digest)
        found = []
        for part in range(0, self._n_blocks * _PART_BYTES, _PART_BYTES):
            if part == self._at:
                continue
            bucket = bytes(view[part + offset : part + offset + _BUCKET_BYTES])
            if any(bucket[at : at + DIGEST_BYTES] == wanted for at in range(0, _BUCKET_BYTES, DIGEST_BYTES)):
                found.append(self._place(part))
        return found

    def _replace(self, old: bytes, new: bytes, digest: bytes) -> None:
        first = self._at + _offset(digest)
        for at in range(first, first + _BUCKET_BYTES, DIGEST_BYTES):
            if self._view[at : at + DIGEST_BYTES] == old:
                self._view[at : at + DIGEST_BYTES] = new
                return

    def _place(self, part: int) -> JoinPlace:
        head = bytes(self._view[part : part + _HEAD_BYTES])
        n_bytes = head[TOKEN_BYTES]
        return JoinPlace(head[TOKEN_BYTES + 1 : TOKEN_BYTES + 1 + n_bytes], head[:TOKEN_BYTES])


def _offset(digest: bytes) -> int:
    """Return where in a part the bucket of a digest is: by bytes that are not compared."""
    return _HEAD_BYTES + int.from_bytes(digest[-4:], "little") % _BUCKETS * _BUCKET_BYTES
