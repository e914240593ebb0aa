"""A kept answer as it lies in memory: with the key that it is for, and a digest over all of it.

Knows: these bytes. Does not know: where they are, or how long they stay.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

__all__ = ["Entry", "entry_bytes", "read_entry"]

_MAGIC: Final = b"vxc1"
# magic, key, digest, bytes of the content type
_HEAD: Final = struct.Struct("<4s32s16sH")
_MOST_TYPE: Final = 0xFFFF


class Entry(NamedTuple):
    """content_type: as its client got it. body: of an event stream all its events."""

    content_type: bytes
    body: bytes


def entry_bytes(key: bytes, entry: Entry) -> bytes:
    """Return what is kept for a key of 32 bytes."""
    kind = entry.content_type[:_MOST_TYPE]
    return _HEAD.pack(_MAGIC, key, _digest(key, kind, entry.body), len(kind)) + kind + entry.body


def read_entry(key: bytes, data: bytes | bytearray) -> Entry | None:
    """Return what was kept for a key; None: the bytes are another key's, or not those that were kept."""
    if len(data) < _HEAD.size:
        return None
    magic, found_key, digest, n_type = _HEAD.unpack_from(data)
    if magic != _MAGIC or found_key != key or len(data) < _HEAD.size + n_type:
        return None
    kind, body = bytes(data[_HEAD.size : _HEAD.size + n_type]), bytes(data[_HEAD.size + n_type :])
    return Entry(kind, body) if _digest(key, kind, body) == digest else None


def _digest(key: bytes, kind: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(key, digest_size=16)
    digest.update(b"%d:" % len(kind))
    digest.update(kind)
    digest.update(body)
    return digest.digest()
