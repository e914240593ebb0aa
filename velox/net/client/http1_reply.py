"""How replies leave on HTTP/1.1: with a length, in chunks, or up to the connection's close.

Knows: the framing of the reply that is under way. Does not know: sockets, timers, requests (client/connection.py).

A base class and not a part of the connection: another call for each chunk would cost more than the framing itself.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.net.application import ChunkWriter, Successor
from velox.protocol import http1_write
from velox.types import Headers

__all__ = ["Http1Replies", "ReplyCarrier"]


class ReplyCarrier(Protocol):
    """What the framing asks of its connection."""

    @property
    def is_http_1_0(self) -> bool:
        """True when the request came as HTTP/1.0, which knows no chunks."""

    @property
    def will_close(self) -> bool:
        """True when this reply is the connection's last."""

    @property
    def direct_write(self) -> ChunkWriter | None:
        """What does as write() does in fewer steps, until the client is paused. None while it is, or has left."""

    def write(self, data: bytes) -> None:
        """Send bytes. Nothing happens when the client has left."""

    def finish(self, *, close: bool = False) -> None:
        """See Client. close: nothing can follow on this connection."""

    def cut_off(self, last: bytes, *, reset: bool) -> None:
        """Close after `last`, with the reply unfinished. reset: where only a reset tells."""

    def hand_over(self, successor: Successor) -> None:
        """Give the connection away, with what has come on it. Nothing happens when the client has left."""


class Http1Replies(ReplyCarrier):
    """The framing half of a Client (application.py); a connection derives from it and does the rest."""

    may_run_ahead: Final = True  # there is no more than one reply

    def __init__(self) -> None:
        self._chunked = False
        self.ends_at_close = False  # HTTP/1.0, no length: only the connection's close ends the reply

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client. One write: a head alone would be a packet of its own."""
        chunked = has_body and length is None
        if chunked and self.is_http_1_0:
            self.ends_at_close, chunked = True, False
        self._chunked = chunked
        close = self.ends_at_close or self.will_close
        out = http1_write.reply_head(status, headers, content_length=length, chunked=chunked, close=close)
        if data:
            out += http1_write.chunk(data) if chunked else data
        if end and chunked:
            out += http1_write.LAST_CHUNK
        self.write(out)

    @property
    def chunk_writer(self) -> ChunkWriter | None:
        """See Client."""
        return self.direct_write if self._chunked else None

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        if self._chunked:
            data = http1_write.chunk(data)
            if end:
                data += http1_write.LAST_CHUNK
        if data:
            self.write(data)

    def cut(self, last: bytes) -> None:
        """See Client: no last chunk, fewer bytes than announced, or a reset."""
        self.cut_off(http1_write.chunk(last) if self._chunked else last, reset=self.ends_at_close)

    def switch(self, headers: Headers, successor: Successor) -> None:
        """See Client. headers: with `upgrade` and `connection`, as RFC 9110 §7.8 has it."""
        self.write(http1_write.reply_head(101, headers, content_length=None, chunked=False, close=False))
        self.hand_over(successor)

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client."""
        close = close or self.will_close
        out = http1_write.reply_head(status, headers, content_length=len(body), chunked=False, close=close)
        self.write(out + body if with_body else out)
        self.finish(close=close)
