"""A text that the supervisor changes while the workers run, where each of them sees it.

Knows: how to hand a whole text over without a lock. Does not know: what it says.

A text is written with its digest, then the number of texts so far is raised. A reader that sees a new number copies the
text and checks the digest; if the next one was just being written over it, it tries again a moment later.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from typing import Final

__all__ = ["Board"]

_NUMBER: Final = struct.Struct("=Q")
_TEXT: Final = struct.Struct("=Q32s")  # its length and its SHA-256
_TEXT_AT: Final = _NUMBER.size + _TEXT.size


class Board:
    """Made by the supervisor before it forks; children inherit it. It is a memfd: in no file system.

    most_bytes: the longest text; pages that nobody wrote to take no memory.
    """

    __slots__ = ("_memory", "_seen")

    def __init__(self, most_bytes: int) -> None:
        fd = os.memfd_create("velox-board", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _TEXT_AT + most_bytes)
            self._memory: Final = mmap.mmap(fd, _TEXT_AT + most_bytes)
        finally:
            os.close(fd)
        self._seen = 0

    def __repr__(self) -> str:
        return f"<Board text={self._number()} seen={self._seen}>"

    @property
    def has_news(self) -> bool:
        """True while there is a text that this process has not had: news() returns it, or will in a moment."""
        return self._number() != self._seen

    def publish(self, text: bytes) -> None:
        """Put a text in the place of the one before; it is no news to this process. For the supervisor."""
        self._memory[_TEXT_AT : _TEXT_AT + len(text)] = text
        _TEXT.pack_into(self._memory, _NUMBER.size, len(text), hashlib.sha256(text).digest())
        self._seen = self._number() + 1
        _NUMBER.pack_into(self._memory, 0, self._seen)

    def news(self) -> bytes | None:
        """Return the text if this process has not had it yet. For a worker's tick: mostly there is none."""
        number = self._number()
        if number == self._seen:
            return None
        length, digest = _TEXT.unpack_from(self._memory, _NUMBER.size)
        text = self._memory[_TEXT_AT : _TEXT_AT + length]
        if hashlib.sha256(text).digest() != digest:
            return None  # the next one is being written
        self._seen = number
        return text

    def _number(self) -> int:
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number
