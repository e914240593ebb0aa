"""Reads a client's HTTP/1.1 connection: bytes in, request heads and body bytes out, one request at a time.

Knows: where a head ends, limits counted while reading, where a body ends. Does not know: sockets, time-outs,
what a head means (http1_head), how chunks are spelled (chunked).
The body's framing is ours: llhttp has no limits, mixes trailers with fields, and would parse the next request
before this one was answered. After a refusal no byte of the connection is read again.
"""

from __future__ import annotations

from velox.heads import RequestHead
from velox.protocol.heads.fields import framing_error
from velox.protocol.http1.chunked import ALL_LINES, ChunkedDecoder
from velox.protocol.http1.request_head import (
    REQUEST_LINE_EXTRA,
    HeadReader,
    Http1Limits,
    check_request_line,
    too_long,
)

__all__ = ["HeadReader", "Http1Limits", "RequestDecoder"]


class RequestDecoder:
    """One client's connection: feed() bytes, then read_head(), then read_body() until body_complete.

    body_complete: no request is open, or the open one's body was read whole.
    Bytes are held by reference while one segment is enough, and joined only when a head needs more.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_chunked",
        "_heads",
        "_left",
        "_limits",
        "_line_at",
        "_scanned",
        "_skipped_crlf",
        "_spent",
        "body_complete",
    )

    def __init__(self, limits: Http1Limits, heads: HeadReader | None = None) -> None:
        """heads: shared by the connections of a worker; with the same limits."""
        self._limits = limits
        self._heads = heads or HeadReader(limits)
        self._buffer: bytes | bytearray = b""
        self._at = 0  # the first byte that was not read
        self._scanned = 0  # how far, from _at, an unfinished head was looked at
        self._line_at = 0  # where, from _at, its last line begins
        self._skipped_crlf = False
        self._left = 0  # body bytes still to come, by Content-Length
        self._chunked: ChunkedDecoder | None = None
        self._spent = False  # a refusal, or the last request of the connection: what follows is dropped
        self.body_complete = True

    def __repr__(self) -> str:
        state = "in body" if not self.body_complete else "spent" if self._spent else "idle"
        return f"<RequestDecoder {state}, {self.buffered} bytes buffered>"

    @property
    def buffered(self) -> int:
        """Bytes held and not yet read."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        """Hold bytes of the client until they are read; drop them when nothing can follow."""
        if self._spent and self.body_complete:
            return
        if self._at == len(self._buffer):
            self._buffer = data
        else:
            if isinstance(self._buffer, bytearray):
                del self._buffer[: self._at]
            else:
                self._buffer = bytearray(self._buffer[self._at :])
            self._buffer += data
        self._at = 0

    def read_head(self) -> RequestHead | None:
        """Return the next request's head; None: more bytes are needed, or the open request has body left.

        Raises VeloxError with close=True; the decoder is spent after it.
        """
        if self._spent or not self.body_complete:
            return None
        try:
            found = None if self._scanned else self._heads.find(self._buffer, self._at)
            head, end = found or self._find_head()
            if head is None:
                return None
        except Exception:
            self._drop()
            raise
        self._at = end
        self._scanned = self._line_at = 0
        self._skipped_crlf = False
        # What follows an opening handshake is the WebSocket's (RFC 6455 §4.1 asks a client to wait, some don't).
        self._spent = not head.keep_alive and head.offer is None
        is_chunked = head.shape.chunked
        self._chunked = ChunkedDecoder(self._limits.body_bytes) if is_chunked else None
        self._left = head.content_length or 0
        if is_chunked or self._left:
            self.body_complete = False
        elif self._spent:
            self._drop()
        return head

    def _find_head(self) -> tuple[RequestHead | None, int]:
        """Return the head that begins here, and where it ends; None: it is not whole."""
        buffer, at = self._buffer, self._at
        # RFC 9112 §2.2: one empty line before a request is ignored; more would escape the limits.
        if not self._skipped_crlf and buffer.startswith(b"\r\n", at):
            self._skipped_crlf = True
            self._at = at = at + 2
        end = buffer.find(b"\r\n\r\n", at + self._scanned - 3 if self._scanned > 3 else at) + 4
        if end < 4:
            self._check_partial()
            return None, 0
        return self._heads.read(bytes(buffer[at:end])), end

    def take_rest(self) -> bytes:
        """Return, and consume, what has come after the head of a connection that is no longer HTTP's."""
        rest = bytes(self._buffer[self._at :])
        self._drop()
        return rest

    def read_whole(self, data: bytes) -> tuple[RequestHead, bytes | None] | None:
        """Return head and body of the request that these bytes are, if its head is known.

        The usual case, in one step, instead of feed(), read_head() and read_body(), and without a trace: the bytes may
        still be fed. Raises as read_head() does.
        """
        if self._spent or self._skipped_crlf or not self.body_complete or self._at != len(self._buffer):
            return None
        try:
            found = self._heads.find(data)
        except Exception:
            self._drop()
            raise
        if found is None:
            return None
        head, end = found
        n_bytes = len(data) - end
        if n_bytes != (head.content_length or 0) or head.shape.chunked:
            return None
        return head, data[end:] if n_bytes else None

    def stop(self) -> None:
        """Read nothing more: the request that was read last is the connection's last."""
        self._drop()

    @property
    def is_behind(self) -> bool:
        """True when read_body() has left something of a body for which it was to read too many lines."""
        return self._chunked is not None and self._chunked.is_behind

    def read_body(self, most_lines: int = ALL_LINES) -> bytes:
        """Return, and consume, the body bytes that are there now; b"" if none are.

        most_lines: of a body in chunks, which may be of a byte each. Then is_behind says whether there is more.
        Raises VeloxError with close=True: BAD_FRAMING, or BODY_TOO_LARGE for a chunked body over the limit.
        """
        if self.body_complete:
            return b""
        if self._chunked is not None:
            body = self._read_chunks(self._chunked, most_lines)
        else:
            part, left = self._buffer, self._left
            if self._at or len(part) > left:
                part = part[self._at : self._at + left]
            n = len(part)
            self._at += n
            self._left = left - n
            if n == left:
                self._end_body()
            body = bytes(part)  # no copy of bytes: a whole segment of a large body passes as it came
        if self._at == len(self._buffer):
            # A segment that was read is not held while the reply is made.
            self._buffer = b""
            self._at = 0
        return body

    def _read_chunks(self, chunked: ChunkedDecoder, most_lines: int) -> bytes:
        try:
            body, self._at = chunked.decode(self._buffer, self._at, most_lines)
        except Exception:
            self._spent = True
            self._end_body()
            raise
        if chunked.complete:
            self._end_body()
        return body

    def _end_body(self) -> None:
        self.body_complete = True
        if self._spent:
            self._drop()

    def _check_partial(self) -> None:
        """Refuse what more bytes can't mend: a head over a limit, a bare LF, a request line that is none.

        Only bytes that came since the last call are looked at.
        """
        buffer, at, limits = self._buffer, self._at, self._limits
        while (newline := buffer.find(b"\n", at + self._scanned)) >= 0:
            if newline == at or buffer[newline - 1] != 0x0D:
                raise framing_error("line of the request head ends with a bare LF")
            if not self._line_at:
                check_request_line(bytes(buffer[at : newline - 1]), limits)
            self._check_line(newline - 1 - at - self._line_at)
            self._scanned = self._line_at = newline + 1 - at
        self._scanned = len(buffer) - at
        if not self._line_at and self._scanned:
            self._check_begin(at)
        # A CR that ends the line so far may be half of its CRLF.
        self._check_line(self._scanned - self._line_at - buffer.endswith(b"\r", at))
        if self._scanned >= limits.head_bytes:
            raise too_long(f"request head is over {limits.head_bytes} bytes")

    def _check_begin(self, at: int) -> None:
        """Look at a request line that is not whole."""
        begin = bytes(self._buffer[at : at + REQUEST_LINE_EXTRA])
        if begin[0] != 0x0D and not begin[:1].isalpha():
            raise framing_error("request does not begin with a method")
        if len(begin) == REQUEST_LINE_EXTRA and b" " not in begin:
            raise framing_error("request does not begin with a method")
        if self._scanned > self._limits.target_bytes + REQUEST_LINE_EXTRA:
            raise too_long(f"request target is over {self._limits.target_bytes} bytes", status=414)

    def _check_line(self, length: int) -> None:
        if length > self._limits.line_bytes:
            raise too_long(f"line of the request head is over {self._limits.line_bytes} bytes")

    def _drop(self) -> None:
        """Forget what is held; feed() holds nothing from here on."""
        self._spent = True
        self._buffer = b""
        self._at = 0
