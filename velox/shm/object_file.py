"""The table of objects in a file, so that a restart, an upgrade or a crash forgets neither owners nor places.

The file is mapped by all workers, in place of memory that nobody else has: what they write is there as soon as it is
written, and the kernel brings it to the disk. Its head has the key of the hashes that the rows are found by. A file of
another size (more workers, more rows) is read once, into a new one. One that can't be read is put aside.

Knows: the file. Does not know: rows (object_table.py), or that one gateway alone has the folder (ledger/folder.py).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from velox.shm.object_table import ObjectMemory, object_bytes

__all__ = ["object_memory_in"]

_HEAD: Final = struct.Struct("<16s16sQQQ")  # what it is, the key, rows, writers, blocks
_HEAD_BYTES: Final = 4096
_MAGIC: Final = b"velox objects 1\n"
_CHUNK: Final = 1 << 20


def object_memory_in(file: Path, rows: int, writers: int, blocks: int, key: bytes = b"") -> ObjectMemory:
    """Return the memory of a table that a file holds, made if it is not there. As for ObjectMemory. Raises OSError.

    key: that it must have; none: any.
    """
    shape = rows, writers, blocks
    found = _head_of(file)
    if found is not None and key and found[0] != key:
        found = None  # with another key its rows say nothing
    if found is not None and found[1] == shape:
        return _mapped(file, found[0], shape)
    key = (key or os.urandom(16)) if found is None else found[0]
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    _make(new, key, shape)
    if found is not None:
        memory = _mapped(new, key, shape)
        memory.take(_cells_of(file))
    elif file.exists():
        file.replace(file.with_name(f"{file.name}.unread"))
    new.replace(file)
    return _mapped(file, key, shape)


def _head_of(file: Path) -> tuple[bytes, tuple[int, int, int]] | None:
    """Return the key and the shape of a file; None: there is none, or it is not whole."""
    try:
        with file.open("rb") as opened:
            head, n_bytes = opened.read(_HEAD.size), os.fstat(opened.fileno()).st_size
    except FileNotFoundError:
        return None
    if len(head) < _HEAD.size:
        return None
    magic, key, *shape = _HEAD.unpack(head)
    rows, writers, blocks = shape
    if magic != _MAGIC or not all(shape) or n_bytes != _size(rows, writers, blocks):
        return None
    return key, (rows, writers, blocks)


def _size(rows: int, writers: int, blocks: int) -> int:
    return _HEAD_BYTES + object_bytes(rows, writers, blocks) + 8


def _make(file: Path, key: bytes, shape: tuple[int, int, int]) -> None:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _size(*shape))  # a page without room on the disk would end who writes it
        os.pwrite(fd, _HEAD.pack(_MAGIC, key, *shape), 0)
    finally:
        os.close(fd)


def _mapped(file: Path, key: bytes, shape: tuple[int, int, int]) -> ObjectMemory:
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(fd, _size(*shape))
    finally:
        os.close(fd)
    return ObjectMemory(*shape, memory=memoryview(memory)[_HEAD_BYTES:], key=key)


def _cells_of(file: Path) -> Iterator[bytes]:
    """Yield what there is of a file's rows, without its holes, in whole rows."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, end = _HEAD_BYTES, os.fstat(fd).st_size - 8
        while at < end:
            with contextlib.suppress(OSError):  # a file system may know no holes
                at = max(at, os.lseek(fd, at, os.SEEK_DATA) // 4096 * 4096)
            data = os.pread(fd, min(_CHUNK, end - at), at)
            if not data:
                return
            yield data
            at += len(data)
    finally:
        os.close(fd)
