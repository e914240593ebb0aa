"""Reads an upstream's HTTP/1.1 reply: bytes in, one reply head and the body's bytes out.

Knows: where the head ends, interim replies, the body's end. Does not know: what a head says (http1/response_head.py),
sockets, pools.
decode_first() takes the first read of a reply. Most replies are complete with it and need no decoder. A decoder is for
one exchange. The head is held until it is whole, so that its limits are exact and no field is joined byte by byte. A
body with a length is counted here; chunks are read by llhttp (strict, through httptools). It need not see a chunk that
comes alone (lone_chunk()): it stands before the next one as it stood before that one.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import httptools

from velox.heads import Headers, ReplyHead
from velox.protocol.http1.response_head import Framed, ReplyHeads, ResponseError, read_fields

__all__ = ["LONE_CHUNK_BYTES", "ResponseDecoder", "ResponseError", "decode_first", "lone_chunk"]

# Providers send under 4 KiB and 40 fields. HTTP/2's list limit is the same 64 KiB.
_HEAD_BYTES: Final = 64 * 1024
# RFC 9110 §15.2 allows any number; ten is more than anyone sends.
_INTERIM_COUNT: Final = 10
# Chunk extensions, trailers and size lines between two pieces of body.
_SILENT_BYTES: Final = 64 * 1024

_STARTS: Final = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_ONE: Final = ord("1")
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"  # all that llhttp need know of a head

# What is around a chunk's data, where its size has two digits; with three it is one more. The events of models are
# within that: 16 to 4095 bytes.
_FRAME_BYTES: Final = 6
_THREE_DIGITS: Final = 0x100 + _FRAME_BYTES + 1
LONE_CHUNK_BYTES: Final = 0xFFF + _FRAME_BYTES + 1


def lone_chunk(data: bytes) -> int:
    """Return where the data of a chunk begins if these bytes are it and nothing else; else 0.

    data: at most LONE_CHUNK_BYTES, from between two chunks on. Only a size as http1_write.chunk() writes it is known.
    """
    n_bytes = len(data)
    size = n_bytes - _FRAME_BYTES if n_bytes < _THREE_DIGITS else n_bytes - _FRAME_BYTES - 1
    line = b"%x\r\n" % size
    at = len(line)
    return at if at + size + 2 == n_bytes and data.startswith(line) and data.endswith(b"\r\n") else 0


def decode_first(
    data: bytes, heads: ReplyHeads, *, head_request: bool, upgrade: bool
) -> tuple[ReplyHead, bytes] | ResponseDecoder:
    """Take the first read of a reply: return head and body if it is the whole reply, else a decoder that has read it.

    In the first case the upstream keeps the connection open. Raises ResponseError.
    """
    found = heads.find(data)
    if found is None:
        body_at = data.find(b"\r\n\r\n") + 4
        if not 4 <= body_at <= _HEAD_BYTES or not data.startswith(_STARTS) or data[9] == _ONE:
            decoder = ResponseDecoder(heads, head_request=head_request, upgrade=upgrade)
            decoder.feed(data)
            return decoder
        found = heads.read(data[:body_at]), body_at
    framed, body_at = found
    head, length, keep_alive = framed
    if length == len(data) - body_at and keep_alive and not head_request:
        return head, data[body_at:]
    decoder = ResponseDecoder(heads, head_request=head_request, upgrade=upgrade)
    decoder.begin_body(framed, data[body_at:])
    return decoder


class _SurplusError(Exception):
    """Bytes came after the reply's end: raised inside a callback to stop the parser."""


class _ChunkCollector:
    """Takes llhttp's callbacks for one body; apart from the decoder, so that no reference cycle is made.

    Trailers are asked for by nobody.
    """

    __slots__ = ("complete", "ended", "on_body", "on_chunk_complete", "on_chunk_header")

    def __init__(self, parts: list[bytes]) -> None:
        # These three are called by llhttp without a Python frame.
        self.on_body = parts.append
        self.ended: Final[list[None]] = []  # empty from a chunk's size to its end
        self.on_chunk_header = self.ended.clear
        self.on_chunk_complete = partial(self.ended.append, None)
        self.complete = False

    def on_message_begin(self) -> None:
        if self.complete:
            raise _SurplusError

    def on_message_complete(self) -> None:
        self.complete = True


class ResponseDecoder:
    """One reply: feed() what arrives, look at head, take_body() and complete; eof() when the upstream closes.

    heads: of the worker. head: the final head, None until it is whole; interim replies (1xx) are skipped.
    between: the next byte begins a chunk, or the end of a body in chunks; where that can't be said at once, False.
    complete: the reply is whole. keep_alive: once complete, whether another exchange may follow.
    surplus: more came than the reply; the next one would begin with it.
    switched: the fields of a 101, where the request asked for one; rest: what came after it, which is HTTP no more.
    """

    __slots__ = (
        "_collector",
        "_early",
        "_head_request",
        "_heads",
        "_n_interim",
        "_n_left",
        "_parser",
        "_parts",
        "_silent",
        "_upgrade",
        "between",
        "complete",
        "head",
        "keep_alive",
        "rest",
        "surplus",
        "switched",
    )

    def __init__(self, heads: ReplyHeads, *, head_request: bool, upgrade: bool = False) -> None:
        self._heads: Final = heads
        self._head_request: Final = head_request
        self._upgrade: Final = upgrade
        self._early = b""  # the head so far
        self._n_interim = 0
        self._parts: Final[list[bytes]] = []
        self._n_left: int | None = 0  # of a body with a length
        self._parser: httptools.HttpResponseParser | None = None  # of a body in chunks
        self._collector: _ChunkCollector | None = None
        self._silent = 0
        self.between = False
        self.surplus = False
        self.switched: Headers | None = None
        self.rest = b""
        self.head: ReplyHead | None = None
        self.complete = False
        self.keep_alive = False

    def __repr__(self) -> str:
        state = "complete" if self.complete else "in body" if self.head else "in head"
        return f"<ResponseDecoder {state}, keep_alive={self.keep_alive}>"

    def feed(self, data: bytes | memoryview) -> None:
        """Read what the upstream sent. Raises ResponseError; the connection is of no more use then."""
        if self.head is None:
            self._read_head(self._early + data if self._early else bytes(data))
        elif self._parser is not None:
            self._parse(self._parser, data)
        elif data:
            self._count(bytes(data))

    def take_body(self) -> bytes:
        """Return the body's bytes since the last call, without chunk framing."""
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def eof(self) -> bool:
        """The upstream closed. Return True if the reply is whole, False if it was cut."""
        self.keep_alive = False
        if self._n_left is None and self._parser is None:
            self.complete = True
        return self.complete

    def _read_head(self, data: bytes) -> None:
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or end > _HEAD_BYTES:
                self._check_partial(data)
                self._early = data
                return
            if not data.startswith(_STARTS):
                raise ResponseError("reply does not begin with an HTTP/1 status line")
            if data[9] != _ONE:
                break
            if self._upgrade and data[9:13] == b"101 ":
                self._switch(data, end)
                return
            self._skip_interim(data[:end])
            data = data[end:]
        self._early = b""
        self.begin_body(self._heads.read(data[:end]), data[end:])

    def begin_body(self, framed: Framed, data: bytes) -> None:
        """Take the final head, and the bytes after it."""
        self.head, n_left, self.keep_alive = framed
        # A reply to HEAD ends with its head, whatever its fields say (RFC 9112 §6.3).
        self._n_left = 0 if self._head_request else n_left
        if self._n_left is not None:
            self.complete = not self._n_left
        elif self.head.until_close:
            self.keep_alive = False
        else:
            self._collector = _ChunkCollector(self._parts)
            self._parser = httptools.HttpResponseParser(self._collector)
            self._parser.feed_data(_CHUNKED)
        if data:
            self.feed(data)

    def _check_partial(self, data: bytes) -> None:
        """Refuse what more bytes can't mend, so that a bad upstream is found now and not by a time-out."""
        start = data[: len(_STARTS[0])]
        if not any(known.startswith(start) for known in _STARTS):
            raise ResponseError("reply does not begin with an HTTP/1 status line")
        if len(data) >= _HEAD_BYTES:
            raise ResponseError("reply head is over 64 KiB")
        if data.count(b"\n") != data.count(b"\r\n"):
            raise ResponseError("line of the reply head ends with a bare LF")

    def _skip_interim(self, head: bytes) -> None:
        self._n_interim += 1
        if self._n_interim > _INTERIM_COUNT:
            raise ResponseError("over 10 interim replies")
        if head[9:12] == b"101":
            raise ResponseError("upstream switched protocols unasked")
        read_fields(head, "interim reply")

    def _switch(self, data: bytes, end: int) -> None:
        _, fields = read_fields(data[:end], "101")
        if data[7] == ord("0"):
            raise ResponseError("101 on HTTP/1.0")  # RFC 9110 §15.2: it has no interim replies
        self.switched = fields
        self.rest = data[end:]

    def _count(self, data: bytes) -> None:
        """Take bytes of a body that has a length, or lasts until the connection is closed."""
        n_left = self._n_left
        if n_left is not None:
            if len(data) > n_left:
                # What came after a whole reply spoils the connection, not the reply.
                data = data[:n_left]
                self._spoil()
            self._n_left = n_left - len(data)
            self.complete = not self._n_left
        if data:
            self._parts.append(data)

    def _parse(self, parser: httptools.HttpResponseParser, data: bytes | memoryview) -> None:
        """Take chunks."""
        collector = self._collector
        assert collector is not None, "made with the parser"
        if self.complete:
            if data:
                self._spoil()
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            if not collector.complete:
                raise ResponseError("reply is malformed") from None
            self._spoil()
        self.complete = collector.complete
        # After a chunk's end llhttp tells of a size line when it is whole. One that has begun does not end with LF.
        self.between = bool(collector.ended) and not self.complete and data[-1:] == b"\n"
        if self._parts or self.complete:
            self._silent = 0
            return
        self._silent += len(data)
        if self._silent > _SILENT_BYTES:
            raise ResponseError("over 64 KiB of chunk framing without body")

    def _spoil(self) -> None:
        self.surplus = True
        self.keep_alive = False
