"""A value that one process publishes while others run, and that each of them reads.

Knows: how to hand a whole value over without a lock. Does not know: what it is. It is pickled: only processes of one
gateway, which share their memory anyway, may use it.

A value is written with its digest, then the number of values so far is raised. A reader that sees a new number copies
the value and checks the digest; if the next one was just being written over it, the reader tries again a moment later.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from typing import Final, Generic, TypeVar

from velox.shm.segment import shared_memory

__all__ = ["SharedSnapshot"]

T = TypeVar("T")

_NUMBER: Final = struct.Struct("=Q")
_VALUE: Final = struct.Struct("=Q32s")  # its length and its SHA-256
_VALUE_AT: Final = _NUMBER.size + _VALUE.size


class SharedSnapshot(Generic[T]):
    """Made by the supervisor before it forks; children inherit it. It is a memfd: in no file system.

    max_bytes: the longest pickled value; untouched pages take no memory.
    """

    __slots__ = ("_memory", "_seen")

    def __init__(self, max_bytes: int) -> None:
        self._memory: Final = shared_memory("velox-snapshot", _VALUE_AT + max_bytes)
        self._seen = 0

    def __repr__(self) -> str:
        return f"<SharedSnapshot number={self._number()} seen={self._seen}>"

    @property
    def is_new(self) -> bool:
        """True while there is a value that this process has not read: read_new() returns it, or will in a moment."""
        return self._number() != self._seen

    @property
    def is_used(self) -> bool:
        """True once there was a value."""
        return bool(self._number())

    def publish(self, value: T) -> None:
        """Replace the value; it is not new to this process. Only one process may publish."""
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._memory[_VALUE_AT : _VALUE_AT + len(pickled)] = pickled
        _VALUE.pack_into(self._memory, _NUMBER.size, len(pickled), hashlib.sha256(pickled).digest())
        self._seen = self._number() + 1
        _NUMBER.pack_into(self._memory, 0, self._seen)

    def read_new(self) -> T | None:
        """Return the value if this process has not read it yet. Cheap when there is none."""
        number = self._number()
        if number == self._seen:
            return None
        length, digest = _VALUE.unpack_from(self._memory, _NUMBER.size)
        pickled = self._memory[_VALUE_AT : _VALUE_AT + length]
        if hashlib.sha256(pickled).digest() != digest:
            return None  # the next one is being written
        self._seen = number
        value: T = pickle.loads(pickled)  # noqa: S301 - it was never outside of the gateway's own memory
        return value

    def _number(self) -> int:
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number
