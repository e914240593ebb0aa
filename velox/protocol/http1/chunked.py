"""The chunked transfer coding of requests (RFC 9112 §7.1), read strictly.

Knows: chunk sizes, extensions, trailers, and the limits that keep their overhead small. Does not know: heads.
Whatever another server could read differently is refused: white space around a size, a bare LF, a bare ";".
Extensions and trailers are checked and thrown away.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from velox.errors import Reason, VeloxError
from velox.protocol.heads.fields import TOKEN, framing_error

__all__ = ["ALL_LINES", "ChunkedDecoder"]

ALL_LINES: Final = 1 << 60

# A size with its extensions; what real clients send takes 6 bytes.
_SIZE_LINE_BYTES: Final = 256
# Bytes that are not body. Chunks of 40 bytes and more stay below this for ever; a flood does not.
_OVERHEAD_BYTES: Final = 16 * 1024
_OVERHEAD_SHARE: Final = 8

_QUOTED: Final = rb'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;%b(?:=(?:%b|%b))?)*" % (TOKEN.pattern, TOKEN.pattern, _QUOTED))
_TRAILER_LINE: Final = re.compile(rb"%b:[\t -~]*" % TOKEN.pattern)


class _State(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    TRAILERS = enum.auto()
    DONE = enum.auto()


class ChunkedDecoder:
    """Decodes one chunked body out of a buffer that its owner holds.

    complete: the last chunk and the trailers have been read. is_behind: decode() has stopped at the most lines that it
    was to read.
    """

    __slots__ = ("_body_bytes", "_left", "_limit", "_overhead", "_state", "is_behind")

    def __init__(self, body_limit: int) -> None:
        self._limit = body_limit
        self._body_bytes = 0
        self._overhead = 0
        self._left = 0
        self._state = _State.SIZE
        self.is_behind = False

    @property
    def complete(self) -> bool:
        """True when nothing of this body is missing."""
        return self._state is _State.DONE

    def decode(self, buffer: bytes | bytearray, at: int, most_lines: int = ALL_LINES) -> tuple[bytes, int]:
        """Decode from buffer[at:]; return the body's bytes and where the next call begins.

        most_lines: sizes of chunks and trailers; each costs the same, however few bytes it brings.
        Raises VeloxError: BAD_FRAMING, or BODY_TOO_LARGE once a chunk is announced that exceeds the limit.
        """
        parts: list[bytes] = []
        end = len(buffer)
        self.is_behind = False
        while at < end or self._state is _State.DATA_END:
            if self._state is _State.DATA:
                take = min(self._left, end - at)
                parts.append(bytes(buffer[at : at + take]))
                at += take
                self._left -= take
                if self._left:
                    break
                self._state = _State.DATA_END
            elif self._state is _State.DATA_END:
                if not b"\r\n".startswith(bytes(buffer[at : at + 2])):
                    raise framing_error("chunk is longer than its size says")
                if end - at < 2:
                    break
                at += 2
                self._state = _State.SIZE
            elif self._state is _State.DONE:
                break
            elif not most_lines:
                self.is_behind = True
                break
            else:
                most_lines -= 1
                line = self._line(buffer, at)
                if line is None:
                    break
                at += len(line) + 2
                if self._state is _State.SIZE:
                    self._read_size(line)
                else:
                    self._read_trailer(line)
        return b"".join(parts), at

    def _line(self, buffer: bytes | bytearray, at: int) -> bytes | None:
        """Return the line at `at` without its CRLF, or None when it is not whole yet."""
        limit = _SIZE_LINE_BYTES if self._state is _State.SIZE else _OVERHEAD_BYTES
        newline = buffer.find(b"\n", at, at + limit + 2)
        if newline < 0:
            if len(buffer) - at >= limit + 2:
                raise framing_error(f"chunk-size or trailer line is over {limit} bytes")
            return None
        if newline == at or buffer[newline - 1] != 0x0D:
            raise framing_error("line of a chunked body ends with a bare LF")
        return bytes(buffer[at : newline - 1])

    def _read_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise framing_error("chunk size is not a plain hexadecimal number")
        size = int(match[1], 16)
        self._body_bytes += size
        if self._body_bytes > self._limit:
            raise VeloxError(
                Reason.BODY_TOO_LARGE,
                f"body is over the limit of {self._limit} bytes (VELOX_MAX_BODY)",
                close=True,
            )
        # The size line and the CRLF after the data.
        self._count_overhead(len(line) + 4)
        self._left = size
        self._state = _State.DATA if size else _State.TRAILERS

    def _read_trailer(self, line: bytes) -> None:
        if not line:
            self._state = _State.DONE
            return
        if not _TRAILER_LINE.fullmatch(line):
            raise framing_error("trailer of a chunked body is not a field line")
        self._count_overhead(len(line) + 2)

    def _count_overhead(self, n: int) -> None:
        self._overhead += n
        if self._overhead > _OVERHEAD_BYTES + self._body_bytes // _OVERHEAD_SHARE:
            raise framing_error("chunked body has more framing than body; send larger chunks")
