"""The seam between a client's connection and the gateway behind it.

Knows: what each asks of the other. Does not know: HTTP versions, sockets, or what happens to a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from velox.errors import VeloxError
from velox.heads import Headers, RequestHead
from velox.types import Caller

__all__ = ["Application", "ChunkWriter", "Client", "ClientExchange", "ClientTimeouts", "PairsOnly", "Successor"]

# Sends a chunk of HTTP/1.1, with its framing.
ChunkWriter: TypeAlias = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Seconds a client may take for each step.

    min_rate_bytes: a second, of a body that comes and of a reply that waits to be taken; 0: only silence counts.
    """

    header_s: float
    body_s: float
    keepalive_s: float
    write_s: float
    min_rate_bytes: int = 0


class Successor(Protocol):
    """Who has a connection from a 101 on."""

    def take(self, transport: asyncio.Transport, early: bytes, on_lost: Callable[[BaseException | None], None]) -> None:
        """Take the connection, and what has come on it already. on_lost: called when it is lost."""


class Client(Protocol):
    """One request's way back, as the gateway sees it: a reply in parts, or an answer at one go. It does the framing.

    Nothing happens when the client has left.
    """

    @property
    def address(self) -> str:
        """The address from which it connects; "" where it has none: a unix socket, or a request of the gateway's."""

    @property
    def is_write_paused(self) -> bool:
        """True while the client reads more slowly than it is written to."""

    @property
    def may_run_ahead(self) -> bool:
        """True when a whole window of the reply may be under way to this client whatever it reads (flow-control.md)."""

    @property
    def chunk_writer(self) -> ChunkWriter | None:
        """What sends chunks that are framed already, until the client is paused or gone.

        None while it is, and where the reply that has begun leaves otherwise.
        """

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """Send the head of a reply together with its first bytes. Raises ValueError, and sends nothing, if it can't be.

        headers: neither content-length nor a hop-by-hop field. length: goes out as content-length; None: not known.
        has_body: False for an answer to HEAD, for 204 and for 304; then there is no data.
        """

    @property
    def takes_lines(self) -> bool:
        """True for HTTP/1.1: begin_lines() does as begin_reply() in fewer steps."""

    def begin_lines(
        self, status: int, lines: bytes, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """Do as begin_reply(), where takes_lines. lines: the headers as lines, checked, each with its CRLF."""

    def body(self, data: bytes, end: bool) -> None:
        """Send more of a reply's body; `data` may be empty at its end. Not for a reply without body."""

    def cut(self, last: bytes) -> None:
        """End a reply that is not whole, after `last` (more of its body), so that nobody takes it for complete."""

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """Send a whole reply of Velox's own, and finish. with_body: False for an answer to HEAD.

        close: nothing that this client sends on can be read as a request.
        """

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Answer 101, and give the connection away. HTTP/1.1 only. Raises ValueError as begin_reply() does."""

    def finish(self) -> None:
        """The reply has been written to its end."""

    def hold_more(self, n_bytes: int) -> bool:
        """So much more is held of the request's body than came of it. False: there is no room, and none is taken."""

    def release_body(self) -> None:
        """The request's body is no longer held."""


class PairsOnly:
    """The part of a Client that does not speak HTTP/1.1."""

    __slots__ = ()

    takes_lines: Final = False

    def begin_lines(
        self, status: int, lines: bytes, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """Not called: takes_lines is False."""
        raise AssertionError("lines are of HTTP/1.1")


class ClientExchange(Protocol):
    """An admitted request, as the connection sees it."""

    def client_gone(self, *, stalled: bool = False) -> None:
        """The client left, or stalled: it has read nothing for too long. Stop all work for it."""

    def client_paused(self) -> None:
        """The client's buffer is full: stop the upstream."""

    def client_resumed(self) -> None:
        """Undo client_paused()."""


class Application(Protocol):
    """The gateway, as a connection sees it."""

    def check_head(self, head: RequestHead) -> Caller:
        """Return the caller. Raises VeloxError if the request is refused whatever its body is."""

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        """Take a whole request. None when it was answered already."""

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""

    def crashed(self, exc: Exception) -> None:
        """Record an error that is a bug, of a request that the connection ends itself."""
