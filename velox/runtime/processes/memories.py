"""The shared memories of a gateway that the next version may go on with: which there are, and which were handed over.

A memory has a name, the number of its layout and its shape. Where the version before had one of the same name, layout
and shape, both versions use the same memory from then on: what one counts, the other one sees. Of any other memory the
next version makes its own.

Knows: descriptors and shapes. Does not know: what is in a memory (velox.shm), or how descriptors travel (handover.py).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from velox.shm.segment import mapped, shared_descriptor

__all__ = ["HandedMemory", "Memories", "Place"]


class HandedMemory(NamedTuple):
    """A memory as it is handed over. key: of the hashes that its rows are found by."""

    name: str
    layout: int
    shape: tuple[int, ...]
    key: bytes
    descriptor: int


class Place(NamedTuple):
    """Where a memory comes from. make: maps it, or makes a new one. is_kept: it was handed over."""

    make: Callable[[str, int], mmap.mmap]
    key: bytes
    is_kept: bool


class Memories:
    """Of one gateway, in its supervisor. handed: by the version before."""

    def __init__(self, handed: Iterable[HandedMemory] = ()) -> None:
        self._handed: Final = {each.name: each for each in handed}
        self._own: Final[dict[str, HandedMemory]] = {}
        # Of those that the version before had, and whose contents could not be kept.
        self.lost: Final[list[str]] = []

    def __repr__(self) -> str:
        return f"<Memories {sorted(self._own)}, handed {sorted(self._handed)}>"

    @property
    def all(self) -> tuple[HandedMemory, ...]:
        """Return those that were placed, to hand them over."""
        return tuple(self._own.values())

    def before(self, name: str, layout: int) -> HandedMemory | None:
        """Return what was handed over under a name; None: nothing that this version can read."""
        found = self._handed.get(name)
        return None if found is None or found.layout != layout else found

    def map_before(self, name: str, n_bytes: int) -> mmap.mmap:
        """Map what was handed over under a name, to copy it."""
        return _mapped(self._handed[name].descriptor, name, n_bytes)

    def keep(self, name: str) -> None:
        """Note that what was handed over under a name was copied: it is not lost."""
        self.lost.remove(name)

    def place(self, name: str, layout: int, shape: tuple[int, ...], *, key: bytes = b"") -> Place:
        """Return where a memory comes from. key: that it must have; none: any."""
        found = self._handed.get(name)
        is_kept = found is not None and (found.layout, found.shape, found.key) == (layout, shape, key or found.key)
        if found is not None and not is_kept:
            self.lost.append(name)
        if found is not None and is_kept:
            self._own[name] = found
            return Place(lambda named, n_bytes: _mapped(found.descriptor, named, n_bytes), found.key, is_kept=True)
        key = key or os.urandom(16)  # clients choose what is hashed

        def make(named: str, n_bytes: int) -> mmap.mmap:
            fd = shared_descriptor(named, n_bytes)
            self._own[name] = HandedMemory(name, layout, shape, key, fd)
            return mapped(fd, named, n_bytes)

        return Place(make, key, is_kept=False)

    def settle(self) -> None:
        """Let go of what was handed over and is not used."""
        for name in self._handed.keys() - {each.name for each in self._own.values() if each in self._handed.values()}:
            with contextlib.suppress(OSError):
                os.close(self._handed[name].descriptor)

    def descriptor(self, name: str) -> int:
        """Return a memfd that has no contents, only locks: the one that was handed over, or a new one."""
        found = self._own.get(name) or self._handed.get(name)
        if found is None:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
            found = HandedMemory(name, 0, (), b"", fd)
        self._own[name] = found
        return found.descriptor


def _mapped(descriptor: int, name: str, n_bytes: int) -> mmap.mmap:
    """Map what was handed over. Of another size than its shape says it is none of ours: a bug, and not to be read."""
    size = os.fstat(descriptor).st_size
    assert size == n_bytes, f"{name} has {size} bytes, expected {n_bytes}"
    return mapped(descriptor, name, n_bytes)
