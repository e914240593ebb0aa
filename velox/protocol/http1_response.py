"""Reads an upstream's HTTP/1.1 reply: bytes in, one reply head and the body's bytes out.

Knows: the framing of replies (RFC 9112 §6.3), what an upstream may not send. Does not know: sockets, pools.
One decoder is for one exchange. llhttp (strict, through httptools) reads head and body; the head is held
until it is whole, so that its limits are exact and no field is joined byte by byte.
"""

from __future__ import annotations

from typing import Final

import httptools

from velox.protocol.http1_fields import HOP_BY_HOP, FieldCollector, connection_members, field_values
from velox.types import NO_BODY_STATUSES, Headers, ReplyHead

__all__ = ["ResponseDecoder", "ResponseError"]

# Providers send under 4 KiB and 40 fields. HTTP/2's list limit is the same 64 KiB.
_HEAD_BYTES: Final = 64 * 1024
_HEADER_COUNT: Final = 200
# RFC 9110 §15.2 allows any number; ten is more than anyone sends.
_INTERIM_COUNT: Final = 10
# Chunk extensions, trailers and size lines between two pieces of body.
_SILENT_BYTES: Final = 64 * 1024

_STARTS: Final = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_REMOVED: Final = HOP_BY_HOP | {b"content-length"}


class ResponseError(Exception):
    """The upstream broke the protocol. The message says how, and repeats nothing that it sent."""


class _SurplusError(Exception):
    """Bytes came after the reply's end: raised inside a callback to stop the parser."""


class _ReplyCollector(FieldCollector):
    """Takes llhttp's callbacks for one reply; apart from the decoder, so that no reference cycle is made."""

    __slots__ = ("complete", "n_head_fields", "on_body", "parts")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []
        self.on_body = self.parts.append  # called by llhttp without a Python frame
        self.n_head_fields = 0
        self.complete = False

    def on_message_begin(self) -> None:
        if self.complete:
            raise _SurplusError

    def on_headers_complete(self) -> None:
        self.n_head_fields = len(self.fields)  # what follows are trailers (R-H1-4)

    def on_message_complete(self) -> None:
        self.complete = True


class ResponseDecoder:
    """One reply: feed() what arrives, look at head, take_body() and complete; eof() when the upstream closes.

    head: the final head, None until it is whole; interim replies (1xx) are skipped.
    complete: the reply is whole. keep_alive: once complete, whether another exchange may follow.
    surplus: more came than the reply; the next one would begin with it.
    switched: the fields of a 101, where the request asked for one; rest: what came after it, which is HTTP no more.
    """

    __slots__ = (
        "_collector",
        "_early",
        "_head_request",
        "_n_interim",
        "_parser",
        "_silent",
        "_until_close",
        "_upgrade",
        "complete",
        "head",
        "keep_alive",
        "rest",
        "surplus",
        "switched",
    )

    def __init__(self, *, head_request: bool, upgrade: bool = False) -> None:
        self._head_request = head_request
        self._upgrade = upgrade
        self._collector = _ReplyCollector()
        self._parser = httptools.HttpResponseParser(self._collector)
        self._early = b""  # the head so far
        self._n_interim = 0
        self._silent = 0
        self._until_close = False
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
        if self.complete:
            if data:
                self.surplus = True
                self.keep_alive = False
        elif self.head is None:
            self._read_head(self._early + data if self._early else bytes(data))
        else:
            self._parse(data)
            self._check_progress(len(data))

    def take_body(self) -> bytes:
        """Return the body's bytes since the last call, without chunk framing."""
        parts = self._collector.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body

    def eof(self) -> bool:
        """The upstream closed. Return True if the reply is whole, False if it was cut."""
        self.keep_alive = False
        if self._until_close:
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
            if data[9] != ord("1"):
                break
            if self._upgrade and data[9:13] == b"101 ":
                self._switch(data, end)
                return
            self._skip_interim(data[:end])
            data = data[end:]
        self._early = b""
        # A reply to HEAD ends with its head, whatever its fields say (RFC 9112 §6.3).
        self._parse(data[:end] if self._head_request else data)
        self.head = self._make_head(http_1_0=data[7] == ord("0"))
        if self._head_request:
            self._until_close = False
            self.complete = True
            self.surplus = len(data) > end
        self.keep_alive = self.keep_alive and not self.surplus and not self._until_close

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
        try:
            httptools.HttpResponseParser(_ReplyCollector()).feed_data(head)
        except httptools.HttpParserError:
            raise ResponseError("interim reply is malformed") from None

    def _switch(self, data: bytes, end: int) -> None:
        collector = _ReplyCollector()
        try:
            httptools.HttpResponseParser(collector).feed_data(data[:end])
        except httptools.HttpParserUpgrade:
            pass  # llhttp stops here, as is wanted
        except httptools.HttpParserError:
            raise ResponseError("101 is malformed") from None
        if data[7] == ord("0"):
            raise ResponseError("101 on HTTP/1.0")  # RFC 9110 §15.2: it has no interim replies
        self.switched = collector.fields
        self.rest = data[end:]

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # What came after a whole reply spoils the connection, not the reply (R-POOL-1).
            if not self._collector.complete:
                raise ResponseError("reply is malformed") from None
            self.surplus = True
            self.keep_alive = False
        self.complete = self._collector.complete

    def _check_progress(self, n: int) -> None:
        if self._collector.parts or self.complete:
            self._silent = 0
            return
        self._silent += n
        if self._silent > _SILENT_BYTES:
            raise ResponseError("over 64 KiB of chunk framing without body")

    def _make_head(self, *, http_1_0: bool) -> ReplyHead:
        """Build the head, find how the body ends; llhttp has refused two lengths, and length with coding."""
        fields = self._collector.fields[: self._collector.n_head_fields]
        if len(fields) > _HEADER_COUNT:
            raise ResponseError("reply has over 200 header fields")
        status = self._parser.get_status_code()
        if not 200 <= status <= 599:
            raise ResponseError("reply has a status outside 200 to 599")
        values = field_values(fields)
        coding = values.get(b"transfer-encoding")
        if coding is not None and (http_1_0 or coding.lower() != b"chunked"):
            raise ResponseError("Transfer-Encoding other than chunked, or on HTTP/1.0")
        length = values.get(b"content-length")
        removed = _REMOVED
        self.keep_alive = not http_1_0
        if b"connection" in values and values[b"connection"] != b"keep-alive":
            members = connection_members(values[b"connection"])
            removed = _REMOVED | members
            self.keep_alive = self.keep_alive and b"close" not in members
        self._until_close = coding is None and length is None and status not in NO_BODY_STATUSES
        headers = [field for field in fields if field[0] not in removed]
        return ReplyHead(status, headers, None if length is None else int(length), self._until_close)
