"""AWS event stream frames: what Bedrock streams instead of server-sent events.

    u32 total | u32 headers | u32 crc of these 8 bytes | headers | payload | u32 crc of all before

A header is: u8 length of its name, name, u8 type of its value, value. `:message-type` says event, exception or error.

Knows: lengths, checksums, types of headers. Does not know: what a payload means.
Source: "Event stream encoding", AWS SDK reference (also botocore/eventstream.py).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError
from velox.protocol.json.value_count import MOST_VALUES, has_over

__all__ = ["EventFrame", "Frames"]

# As botocore takes: a frame of text has some 200 bytes, one with a picture megabytes.
_MOST_BYTES: Final = 24 * 1024 * 1024
_PRELUDE: Final = struct.Struct(">III")
_U32: Final = struct.Struct(">I")
_LEAST_BYTES: Final = 16  # prelude and last checksum
# Bytes of a value, by its type: true, false, byte, short, integer, long, (bytes, string), timestamp, UUID.
_VALUE_BYTES: Final = (0, 0, 1, 2, 4, 8, 0, 0, 8, 16)
_SIZED: Final = (6, 7)
# All frames of one type have the same headers: some eight kinds in a stream.
_MOST_REMEMBERED: Final = 32


class _Names(NamedTuple):
    kind: bytes
    name: bytes
    message: bytes


class EventFrame(msgspec.Struct, frozen=True):
    """One frame.

    kind: b"event", b"exception" (of the model or the service), b"error" (of the transport). name: of the event's, the
    exception's or the error's type. message: what an error says, which has no payload.
    """

    kind: bytes
    name: bytes
    message: bytes
    payload: bytes


class Frames:
    """Of one stream. most_bytes: of one frame."""

    __slots__ = ("_held", "_most_bytes", "_remembered", "_total")

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes: Final = most_bytes
        self._held: Final = bytearray()  # of the next frame
        self._total = _PRELUDE.size  # bytes that are needed to go on
        self._remembered: Final[dict[bytes, _Names]] = {}

    def __repr__(self) -> str:
        return f"<Frames {len(self._held)} of {self._total} bytes>"

    def feed(self, data: bytes) -> list[EventFrame]:
        """Take what came, cut anywhere; return the frames that are whole.

        Raises BrokenReplyError: a checksum or a length is wrong, or a frame is over the bound.
        """
        held = self._held
        if held:
            held += data
            if len(held) < self._total:
                return []
            data = bytes(held)
            held.clear()
        found: list[EventFrame] = []
        at, n_bytes = 0, len(data)
        while n_bytes - at >= _PRELUDE.size:
            total, n_headers, checksum = _PRELUDE.unpack_from(data, at)
            if zlib.crc32(data[at : at + 8]) != checksum:
                raise BrokenReplyError("a frame of the upstream's event stream has a wrong checksum of its lengths")
            if total > self._most_bytes:
                raise BrokenReplyError(
                    f"a frame of the upstream's event stream has {total} bytes; the limit is {self._most_bytes}"
                )
            if total < _LEAST_BYTES + n_headers:
                raise BrokenReplyError("a frame of the upstream's event stream has wrong lengths")
            if n_bytes - at < total:
                self._total = total
                break
            found.append(self._frame(data[at : at + total], n_headers))
            at += total
        else:
            self._total = _PRELUDE.size
        held += data[at:]
        return found

    @property
    def n_held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._held)

    @property
    def is_between(self) -> bool:
        """True where no frame has begun that is not whole."""
        return not self._held

    def _frame(self, data: bytes, n_headers: int) -> EventFrame:
        if zlib.crc32(data[:-4]) != _U32.unpack_from(data, len(data) - 4)[0]:
            raise BrokenReplyError("a frame of the upstream's event stream has a wrong checksum")
        if has_over(data, MOST_VALUES):
            raise BrokenReplyError(f"a frame of the upstream's event stream has over {MOST_VALUES:,} values")
        payload_at = _PRELUDE.size + n_headers
        headers = data[_PRELUDE.size : payload_at]
        names = self._remembered.get(headers)
        if names is None:
            names = _names(_headers(headers))
            if len(self._remembered) < _MOST_REMEMBERED:
                self._remembered[headers] = names
        return EventFrame(names.kind, names.name, names.message, data[payload_at:-4])


def _names(headers: dict[bytes, bytes]) -> _Names:
    kind = headers.get(b":message-type", b"event")
    if kind == b"error":
        return _Names(kind, headers.get(b":error-code", b""), headers.get(b":error-message", b""))
    return _Names(kind, headers.get(b":exception-type" if kind == b"exception" else b":event-type", b""), b"")


def _headers(data: bytes) -> dict[bytes, bytes]:
    """Return the headers; values as they stand there. The last of a name counts. Raises BrokenReplyError."""
    found: dict[bytes, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        name_end = at + 1 + data[at]
        if name_end >= end or data[name_end] >= len(_VALUE_BYTES):
            raise BrokenReplyError("a frame of the upstream's event stream has a broken header")
        value_at = name_end + 1
        value_end = value_at + _VALUE_BYTES[data[name_end]]
        if data[name_end] in _SIZED:
            value_at += 2
            value_end = value_at + int.from_bytes(data[value_at - 2 : value_at], "big")
        if value_end > end:
            raise BrokenReplyError("a frame of the upstream's event stream has a broken header")
        found[data[at + 1 : name_end]] = data[value_at:value_end]
        at = value_end
    return found
