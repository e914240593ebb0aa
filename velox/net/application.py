"""The seam between a client's connection and the gateway behind it.

Knows: what each asks of the other. Does not know: HTTP versions, sockets, or what happens to a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from velox.errors import VeloxError
from velox.types import RequestHead

__all__ = ["Application", "Client", "ClientExchange", "ClientTimeouts"]


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Seconds a client may take for each step (R-TIME-1)."""

    header_s: float
    body_s: float
    keepalive_s: float
    write_s: float


class Client(Protocol):
    """A client's connection, as the gateway sees it."""

    @property
    def is_write_paused(self) -> bool:
        """True while the client reads more slowly than it is written to."""

    @property
    def will_close(self) -> bool:
        """True when this reply is the connection's last."""

    def write(self, data: bytes) -> None:
        """Send bytes of the reply. Nothing happens when the client has left."""

    def finish(self, *, close: bool) -> None:
        """The reply has been written to its end."""

    def cut(self, last: bytes, *, reset: bool) -> None:
        """End a reply that is not whole, after `last`. reset: where only a reset tells."""

    def release_body(self) -> None:
        """The request's body is no longer held."""


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

    def check_head(self, head: RequestHead) -> str:
        """Return the caller's name. Raises VeloxError if the request is refused whatever its body is."""

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: str
    ) -> ClientExchange | None:
        """Take a whole request. None when it was answered already."""

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""
