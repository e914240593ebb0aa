"""What every connection of a client does, whatever is spoken over it: it is counted, limited, timed and watched, and
waits for its turn of the loop.

Knows: the socket's transport, and the ingress's registers. Does not know: HTTP.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Final, cast

from velox.errors import VeloxError
from velox.net.client.backlog import Backlog
from velox.net.client.connection_limiter import address_of
from velox.net.client.ingress_state import ABORT_S, CLOSE_S, IngressState

__all__ = ["ClientConnection"]


class ClientConnection(asyncio.Protocol, abc.ABC):
    """The base of a protocol.

    deadline_s: loop time, the first of all that the connection has; 0: none. is_guarded: the Host of its requests must
    be one of this gateway's. address: from which it comes, also once it is lost; "" for a unix socket's.
    """

    def __init__(self, ingress: IngressState) -> None:
        self.deadline_s = 0.0
        self.address = ""
        self.ingress: Final = ingress
        self.is_guarded = False
        self._transport: asyncio.Transport | None = None
        self._backlog: Final = Backlog(ingress.least_taken_bytes)
        self._address = ""  # as the limiter gave it
        self._is_refused = False  # there are too many connections
        self._was_served = False  # a request of it is over
        self._is_in_line = False  # for a turn of the loop
        self._has_left = False  # which is to be seen to in that turn

    @property
    @abc.abstractmethod
    def protocol(self) -> str:
        """What is spoken, for people: `HTTP/1.1`, `HTTP/2`."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """What it does, for people."""

    @property
    @abc.abstractmethod
    def n_streams(self) -> int:
        """Requests that are not answered yet."""

    @property
    @abc.abstractmethod
    def is_busy(self) -> bool:
        """Whether a request of it is under way, which the end of the connection gives up."""

    @property
    def is_tls(self) -> bool:
        """True where it is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @abc.abstractmethod
    def on_deadline(self) -> None:
        """See WatchedConnection."""

    @abc.abstractmethod
    def close_if_idle(self) -> None:
        """See WatchedConnection."""

    @abc.abstractmethod
    def turn_came(self) -> None:
        """See TurnWaiter."""

    def _await_turn(self, *, is_known: bool = False) -> None:
        """Go on in a later turn of the loop: enough was done in this one. is_known: see TurnBudget."""
        if not self._is_in_line:
            self._is_in_line = True
            self.ingress.turns.wait(self, is_known=is_known)

    def eof_received(self) -> bool:
        # A client that closes its sending side is taken to have left: it is not waited for until it has
        # read what is on its way; HTTP/2's streams have an end of their own for a request that is whole. A thousand
        # that leave at once have a turn each, like those that come.
        if self.ingress.turns.has_room():
            self._abort_if_busy()
            return False
        self._has_left = True
        self._await_turn()
        return True

    def _abort_if_busy(self) -> bool:
        """Begin the end of a connection whose client has left: abort it, and return True, where it is busy."""
        is_busy = self.is_busy
        self.ingress.turns.spend(ABORT_S if is_busy else CLOSE_S)
        if is_busy:
            self.abort()
        return is_busy

    def abort(self) -> None:
        """Reset the connection: no reply must look complete."""
        if self._transport is not None:
            self._transport.abort()

    def peer_closed(self) -> None:
        """The client has closed, which was seen though nothing is read from it."""
        self.abort()

    @property
    def peer(self) -> object:
        """The client's address, as getpeername() has it: a tuple for TCP. None once the connection is lost."""
        return None if self._transport is None else self._transport.get_extra_info("peername")

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when there is none any more."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def _register(self, transport: asyncio.BaseTransport) -> VeloxError | None:
        """Register the connection; return why it is refused."""
        self._transport = cast(asyncio.Transport, transport)
        ingress = self.ingress
        ingress.connections[self] = ingress.loop.time()
        if ingress.guarded:
            own = transport.get_extra_info("sockname")
            self.is_guarded = isinstance(own, tuple) and own[0] in ingress.guarded  # else it is a unix socket's
        peer = transport.get_extra_info("peername")
        self.address = address_of(peer)
        self._address, refusal = ingress.limiter.enter(peer)
        self._is_refused = refusal is not None
        return refusal

    def _unregister(self) -> None:
        """Undo _register(): the connection is lost."""
        self._transport = None
        self.ingress.connections.pop(self, None)
        self.ingress.paused.discard(self)
        self.ingress.limiter.leave(self._address, was_refused=self._is_refused)
