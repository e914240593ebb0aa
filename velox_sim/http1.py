"""One client connection of the simulator that speaks HTTP/1.1.

Knows: transport, keep-alive, pipelining one request at a time. Does not know: parsing, routes, pace.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from velox.errors import Reason, VeloxError
from velox.heads import RequestHead, WebSocketOffer
from velox.net.resets import reset
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.request import Http1Limits, RequestDecoder
from velox.protocol.websocket.handshake import accept_value
from velox_sim.backend import Backend, Player
from velox_sim.shapes import RefusalError, Reply, Streamed
from velox_sim.websocket import SocketSession

__all__ = ["Http1Connection"]

# A client that pipelines further than this waits until its running answer has ended.
_MAX_AHEAD_BYTES: Final = 65_536
_PROTOCOL: Final = b"realtime"


class Http1Connection(asyncio.Protocol):
    """Answers the requests of one connection in order."""

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._decoder: Final = RequestDecoder(Http1Limits())
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._player: Player | None = None
        self._has_begun = False  # the running reply's head is out
        self._is_full = False
        self._is_advancing = False
        self._is_leaving = False
        self._session: SocketSession | None = None  # once it is a WebSocket
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<Http1Connection playing={self._player is not None} leaving={self._is_leaving}>"

    @property
    def n_running(self) -> int:
        """Return 1 while an answer is being played, else 0."""
        return int(self._player is not None or (self._session is not None and self._session.is_playing))

    @property
    def n_queued_bytes(self) -> int:
        """Return the bytes that wait in the transport."""
        return self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._backend.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.feed(data)
            return
        try:
            self._decoder.feed(data)
        except VeloxError as error:
            self._refuse(error)
            return
        if self._player is None:
            self._advance()
        elif self._decoder.buffered > _MAX_AHEAD_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend.exit(self)
        self._stop()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._session is not None:
            self._session.is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._session is not None:
            self._session.resume()
        if self._player is not None:
            self._player.resume()

    def leave(self) -> None:
        """Close as soon as no answer is running."""
        self._is_leaving = True
        if self._session is not None:
            self._session.leave()
        elif self._player is None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; a running answer is cut."""
        self._transport.abort()

    def send(self, reply: Reply, piece: bytes, *, last: bool) -> bool:
        """Write body bytes of the running reply (see Outlet): one write a call, the head in the first."""
        assert self._head is not None, "a player runs only while a request is open"
        head = self._head
        is_chunked = isinstance(reply, Streamed) and not head.http_1_0
        keeps_alive = head.keep_alive and not self._is_leaving
        parts: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            length = None if isinstance(reply, Streamed) else len(reply.body)
            parts.append(
                http1_write.reply_head(
                    reply.status,
                    reply.headers,
                    content_length=length,
                    chunked=is_chunked,
                    close=not keeps_alive or (length is None and not is_chunked),
                )
            )
        if head.method != b"HEAD":
            parts.append(http1_write.chunk(piece) if is_chunked else piece)
        if last and is_chunked:
            parts.append(http1_write.LAST_CHUNK)
        self._transport.write(b"".join(parts))
        if last:
            self._end(keeps_alive and (is_chunked or not isinstance(reply, Streamed)))
        return not self._is_full

    def _end(self, keeps_alive: bool) -> None:
        self._player = None
        self._head = None
        if not keeps_alive:
            self._transport.close()
            return
        self._transport.resume_reading()
        if not self._is_advancing:
            self._advance()

    def _advance(self) -> None:
        """Read and answer requests until bytes are missing or an answer takes time."""
        self._is_advancing = True
        try:
            while self._player is None and not self._transport.is_closing() and self._read_request():
                if self._head is not None and self._head.offer is not None:
                    self._switch(self._head, self._head.offer)
                    return
                self._answer()
        except VeloxError as error:
            self._refuse(error)
        finally:
            self._is_advancing = False

    def _read_request(self) -> bool:
        """Read on; True once a whole request is there."""
        if self._head is None:
            self._head = self._decoder.read_head()
            if self._head is None:
                return False
            self._body.clear()
            if self._head.expect_continue and not self._decoder.body_complete:
                self._transport.write(http1_write.CONTINUE_100)
        self._body.append(self._decoder.read_body())
        return self._decoder.body_complete

    def _answer(self) -> None:
        assert self._head is not None, "_read_request returned True"
        body = b"".join(self._body)
        self._body.clear()
        self._has_begun = False
        player = self._backend.answer(self, self._head.method, self._head.target, body)
        if player is None:
            reset(self._transport)
            return
        self._player = player
        player.start()

    def _switch(self, head: RequestHead, offer: WebSocketOffer) -> None:
        """Become a WebSocket. Raises VeloxError where there is none."""
        conversation = self._backend.app.conversation(head.target)
        if conversation is None:
            raise VeloxError(Reason.UNKNOWN_ROUTE, "no WebSocket begins at this path")
        fields = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", accept_value(offer.key)),
        ]
        if _PROTOCOL in offer.protocols:
            fields.append((b"sec-websocket-protocol", _PROTOCOL))
        self._transport.write(http1_write.reply_head(101, fields, content_length=None, chunked=False, close=False))
        loop = asyncio.get_running_loop()
        self._session = SocketSession(self._transport, conversation, self._backend.player, loop)
        self._session.begin(self._decoder.take_rest())

    def _stop(self) -> None:
        if self._session is not None:
            self._session.stop()
        if self._player is not None:
            self._player.stop()
            self._player = None

    def _refuse(self, error: VeloxError) -> None:
        """Answer what is no proper request, and close: where the next one would begin is not known."""
        self._stop()
        reply = self._backend.app.refuse(RefusalError(error.status, error.message, code=error.reason.code))
        head = http1_write.reply_head(
            reply.status, reply.headers, content_length=len(reply.body), chunked=False, close=True
        )
        self._transport.write(head + reply.body)
        self._transport.close()
