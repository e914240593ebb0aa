"""Limits the connections of clients to a worker, in all and from each address.

Knows: the limits, and how many of each address there are. Does not know: what a refusal looks like, or sockets.

A connection that is refused needs a descriptor too, while its client reads why: so only a few of them are waited for.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Final

from velox.errors import Reason, VeloxError

__all__ = ["ConnectionLimiter", "address_of"]

# Of the descriptors in reserve (policy/resources.py); the next ones are closed as soon as the refusal is
# written.
_MOST_LINGERING: Final = 16
_IPV6_PREFIX: Final = 64  # what one subscriber has


class ConnectionLimiter:
    """Of one worker. per_address: 0 for no such limit.

    make_room: asked at the limit of all: it ends a connection, and says whether one could be ended. None: a connection
    over the limit is refused.
    """

    def __init__(self, max_connections: int, per_address: int = 0, make_room: Callable[[], bool] | None = None) -> None:
        self._max_connections: Final = max_connections
        self._per_address: Final = per_address
        self._make_room: Final = make_room
        self._by_address: Final[Counter[str]] = Counter()
        self._n_taken = 0
        self._n_refused = 0

    def __repr__(self) -> str:
        return f"<ConnectionLimiter {self._n_taken}/{self._max_connections} refused={self._n_refused}>"

    @property
    def may_linger(self) -> bool:
        """True while a refused connection may stay until its client has read why."""
        return self._n_refused <= _MOST_LINGERING

    def enter(self, peer: object) -> tuple[str, VeloxError | None]:
        """Count a connection; return what leave() wants, and why it is refused. peer: as getpeername() has it."""
        # One that has been ended leaves in a later turn; until then it counts above the limit.
        if self._n_taken >= self._max_connections and (self._make_room is None or not self._make_room()):
            message = f"this worker has {self._max_connections} connections, its limit (VELOX_MAX_CONNECTIONS)"
            return self._refuse(message)
        address = _counted(peer) if self._per_address else ""
        if address and self._by_address[address] >= self._per_address:
            message = (
                f"this worker has {self._per_address} connections from one address, its limit"
                " (VELOX_MAX_CONNECTIONS_PER_ADDRESS)"
            )
            return self._refuse(message)
        self._n_taken += 1
        if address:
            self._by_address[address] += 1
        return address, None

    def _refuse(self, message: str) -> tuple[str, VeloxError]:
        self._n_refused += 1
        return "", VeloxError(Reason.CONN_LIMIT, message, retry_after_s=1.0, close=True)

    def leave(self, address: str, *, was_refused: bool) -> None:
        """The connection is closed."""
        if was_refused:
            self._n_refused -= 1
            return
        self._n_taken -= 1
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]  # or it would grow with every address that was ever seen


def address_of(peer: object) -> str:
    """Return a client's address, that of IPv4 also where it came by IPv6; "" for a unix socket's.

    peer: as getpeername() has it.
    """
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address if address.ipv4_mapped is None else address.ipv4_mapped)


def _counted(peer: object) -> str:
    """Return what connections are counted for: an address of IPv4, a network of IPv6; "" for a unix socket's."""
    address = address_of(peer)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False)) if ":" in address else address
