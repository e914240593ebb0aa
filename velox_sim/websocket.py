"""A WebSocket of the simulator: frames in, frames out (RFC 6455).

Knows: a client's frames, the ones that are sent back, one reply at a time. Does not know: what is said
(conversations.py), how it began (http1.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

import orjson

from velox.heads import Headers
from velox.protocol.websocket.frames import BINARY, CLOSE, PING, PONG, TEXT, FrameReader, frame
from velox.protocol.websocket.handshake import close_frame
from velox_sim.apis.conversations import Conversation, Event, events_of
from velox_sim.shapes import Reply, Streamed, TokenStream

__all__ = ["SocketSession"]

_MOST_WAITING: Final = 64  # events that came while a response is told
_NO_HEADERS: Final[Headers] = []
_BAD_FRAME: Final = 1002
_GOING_AWAY: Final = 1001


class Playing(Protocol):
    """A reply that is being played (backend.Player)."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """Send nothing more."""

    def resume(self) -> None:
        """Go on after the outlet was full."""


class SocketSession:
    """One WebSocket, after its handshake. play: makes a player of a reply, into this outlet."""

    def __init__(
        self,
        transport: asyncio.Transport,
        conversation: Conversation,
        play: Callable[[SocketSession, Reply], Playing],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport: Final = transport
        self._conversation: Final = conversation
        self._play: Final = play
        self._loop: Final = loop
        self._reader: Final = FrameReader()
        self._waiting: Final[deque[Event]] = deque()
        self._player: Playing | None = None
        self.is_full = False
        self._is_leaving = False

    def __repr__(self) -> str:
        return f"<SocketSession playing={self._player is not None} waiting={len(self._waiting)}>"

    @property
    def is_playing(self) -> bool:
        """True while a response is told."""
        return self._player is not None

    def begin(self, rest: bytes) -> None:
        """Say what is said first. rest: what came behind the handshake."""
        self._say(self._conversation.begin())
        if rest:
            self.feed(rest)

    def feed(self, data: bytes) -> None:
        """Take a client's bytes."""
        try:
            for opcode, payload in self._reader.feed(data):
                self._take(opcode, payload)
        except ValueError:
            self._close(_BAD_FRAME, "this is no frame, or no event in JSON")

    def resume(self) -> None:
        """Go on after the transport was full."""
        self.is_full = False
        if self._player is not None:
            self._player.resume()

    def stop(self) -> None:
        """Tell nothing more."""
        if self._player is not None:
            self._player.stop()
            self._player = None
        self._waiting.clear()

    def leave(self) -> None:
        """Say goodbye, when no response is being told any more."""
        self._is_leaving = True
        if self._player is None:
            self._close(_GOING_AWAY, "the simulator is shutting down")

    def send(self, reply: Reply, piece: bytes, *, last: bool) -> bool:
        """See Outlet: the pieces are frames."""
        self._transport.write(piece)
        if last:
            self._player = None
            self._loop.call_soon(self._go_on)
        return not self.is_full

    def _take(self, opcode: int, payload: bytes | bytearray) -> None:
        if opcode == PING:
            self._transport.write(frame(bytes(payload), PONG))
        elif opcode == CLOSE:
            self.stop()
            self._transport.write(frame(bytes(payload)[:2], CLOSE))
            self._transport.close()
        elif opcode in (TEXT, BINARY):
            event = orjson.loads(payload)
            if not isinstance(event, dict) or len(self._waiting) >= _MOST_WAITING:
                raise ValueError("it is no event")
            self._waiting.append(event)
            if self._player is None:
                self._go_on()

    def _go_on(self) -> None:
        """Answer what has come, up to the next response."""
        while self._waiting and self._player is None and not self._transport.is_closing():
            answer = self._conversation.hear(self._waiting.popleft())
            if answer is None:
                self._transport.abort()
            elif isinstance(answer, Streamed):
                self._player = self._play(self, self._framed(answer))
                self._player.start()
            elif isinstance(answer, (list, tuple)):
                self._say(answer)
        if self._is_leaving and self._player is None:
            self._close(_GOING_AWAY, "the simulator is shutting down")

    def _framed(self, reply: Streamed) -> Streamed:
        """Return a reply whose pieces are frames."""
        events = reply.events
        opening = self._frames(events_of(events.opening))
        rests = tuple(self._frames(events_of(events.lead + rest)) for rest in events.rests[: events.n_tokens])
        closing = self._frames(events_of(events.closing))
        return replace(reply, events=TokenStream(opening, b"", rests, events.n_tokens, closing), headers=_NO_HEADERS)

    def _frames(self, events: Iterable[Event]) -> bytes:
        told = (self._conversation.tell(event) for event in events)
        return b"".join(frame(orjson.dumps(event)) for event in told if event is not None)

    def _say(self, events: Iterable[Event]) -> None:
        self._transport.write(b"".join(frame(orjson.dumps(event)) for event in events))

    def _close(self, code: int, text: str) -> None:
        self.stop()
        if not self._transport.is_closing():
            self._transport.write(close_frame(code, text))
            self._transport.close()
