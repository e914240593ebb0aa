"""One request at the scripted upstream, and the verbs with which a script answers it.

Knows: what was asked, and when the gateway left. Does not know: the HTTP versions, which send what a verb says
(recording_http1.py, recording_http2.py), or which script is played (recording.py).
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:  # an upstream has calls, a call has its upstream
    from tests.e2e.recording import RecordingUpstream

__all__ = ["Call", "ClientLeftError", "Connection", "Fields"]

Fields = Sequence[tuple[str, str]]


class ClientLeftError(Exception):
    """The gateway gave the exchange up while the script waited."""


class Call(abc.ABC):
    """One request as it came, and the means to answer it. Verbs of the script run on the upstream's loop."""

    def __init__(self, link: Connection, method: str, target: str, fields: Fields) -> None:
        self.link: Final = link
        self.upstream: Final = link.upstream
        self.connection: Final = link.number  # the how-manieth accepted, from 1
        self.method: Final = method
        self.target: Final = target
        self.headers: Final = list(fields)
        self.body = b""
        self.came_s: Final = time.monotonic()
        self.ended = ""  # answered, cut, lost, "reset CODE" by the script; left, "left CODE" by the gateway; "": open
        self.ended_s = 0.0
        self.left_s = 0.0  # monotonic; 0: the gateway has not left
        self.reset_code: int | None = None  # of the gateway's RST_STREAM
        self.left: Final = asyncio.Event()

    def __repr__(self) -> str:
        state = self.ended or ("open" if self.link.writable.is_set() else "blocked by the socket")
        return f"<Call {self.method} {self.target} body={len(self.body)} connection={self.connection} {state}>"

    def header(self, name: str) -> str | None:
        """Return the only value of a header (lower-case name), or None. Two values fail the test."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    async def reply(self, status: int, fields: Fields = (), body: bytes = b"") -> None:
        """Send a whole reply with its length."""
        await self.head(status, [*fields, ("content-length", str(len(body)))])
        if body and self.method != "HEAD":
            await self.data(body)
        await self.end()

    async def drain(self) -> None:
        """Wait until the socket takes more. Raises ClientLeftError."""
        await self._unless_left(self._wait_writable())

    async def _wait_writable(self) -> None:
        await self.link.writable.wait()

    async def step(self) -> None:
        """Wait for the test's step(). Raises ClientLeftError."""
        await self._unless_left(self.upstream.take_step(self))

    async def silence(self) -> None:
        """Wait until the gateway leaves."""
        await self.left.wait()

    async def _unless_left(self, work: Awaitable[None]) -> None:
        wanted, left = asyncio.ensure_future(work), asyncio.ensure_future(self.left.wait())
        try:
            await asyncio.wait((wanted, left), return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                raise ClientLeftError
        finally:
            wanted.cancel()
            left.cancel()

    def note_end(self, how: str) -> None:
        """Note how it ended; the first end counts."""
        if not self.ended:
            self.ended, self.ended_s = how, time.monotonic()
            self.upstream.notify()

    def note_left(self, reset_code: int | None = None) -> None:
        """The gateway closed the connection or reset the stream."""
        self.note_end("left" if reset_code is None else f"left {reset_code}")
        if not self.left_s:
            self.left_s = time.monotonic()
            self.reset_code = reset_code
            self.left.set()
            self.upstream.notify()

    @abc.abstractmethod
    async def head(self, status: int, fields: Fields = ()) -> None:
        """Send the head. Without a content-length HTTP/1.1 sends the body in chunks."""

    @abc.abstractmethod
    async def interim(self, status: int, fields: Fields = ()) -> None:
        """Send a 1xx reply before the head."""

    @abc.abstractmethod
    async def data(self, data: bytes) -> None:
        """Send body bytes, as one chunk or as one frame if the window allows."""

    @abc.abstractmethod
    async def end(self) -> None:
        """End the reply properly."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End it as if the server had failed: HTTP/1.1 closes, HTTP/2 sends RST_STREAM(INTERNAL_ERROR)."""

    @abc.abstractmethod
    def lose(self) -> None:
        """Lose the connection: HTTP/1.1 sends a TCP reset, HTTP/2 just closes."""


class Connection(asyncio.Protocol):
    """What both HTTP versions' connections have: a number, a transport, and when it takes more."""

    def __init__(self, upstream: RecordingUpstream) -> None:
        self.upstream: Final = upstream
        self.number = 0
        self.transport: asyncio.Transport
        self.writable: Final = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = self.upstream.opened(self.transport)
        self.writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.upstream.closed(self.transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
