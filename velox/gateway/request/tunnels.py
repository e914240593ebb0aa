"""The tunnels of a worker: how many there may be, what they share, what went through them.

Knows: their number and their bytes. Does not know: how one is opened (tunnel.py), or how bytes pass (net/tunnel.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.net.client.body_budget import BodyBudget
from velox.net.tunnel import READ_BYTES, Tunnel, TunnelLimits
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.interface import ReadBuffer

if TYPE_CHECKING:  # few gateways export content
    from velox.observe.traces.socket_capture import SocketCapture

__all__ = ["Tunnels"]

_USUAL: Final = TunnelLimits()
_NO_BOUND: Final = 1 << 62


class Tunnels:
    """Of one worker. max_tunnels: its share of VELOX_MAX_TUNNELS; an upgrade counts from the gate on.

    bodies: the room for messages that are held until they are whole, which request bodies take too; None: no bound.
    connections: the room for connections to upstreams, of which pools have the rest; None: no bound. capture: returns
    what reads the messages on a route, or None; None: none is read.
    """

    def __init__(
        self,
        max_tunnels: int = 1024,
        limits: TunnelLimits = _USUAL,
        bodies: BodyBudget | None = None,
        connections: ConnectionBudget | None = None,
        capture: Callable[[str], SocketCapture | None] | None = None,
    ) -> None:
        self.capture: Final = capture
        self.limits: Final = limits
        self.bodies: Final = BodyBudget(_NO_BOUND, 0.0, lambda: 0.0) if bodies is None else bodies
        self.buffer: Final = ReadBuffer(READ_BYTES)
        self._max: Final = max_tunnels
        self._holders: Final[set[object]] = set()
        self._connections: Final = ConnectionBudget(_NO_BOUND) if connections is None else connections
        self._connected: Final[set[object]] = set()  # those of the holders with room for a connection
        self._open: Final[set[Tunnel]] = set()
        # Bytes of those that have ended, and what was told of all: up, down.
        self._ended = (0, 0)
        self._told = (0, 0)

    def __repr__(self) -> str:
        return f"<Tunnels open={self.n_open} held={len(self._holders)}/{self._max}>"

    @property
    def n_open(self) -> int:
        """How many are open."""
        return len(self._open)

    def take(self, holder: object) -> None:
        """Take a place for a request that wants one. Raises VeloxError(CONN_LIMIT) when all are taken."""
        if len(self._holders) >= self._max:
            message = f"this worker has {self._max} tunnels, its limit (VELOX_MAX_TUNNELS)"
            raise VeloxError(Reason.CONN_LIMIT, message, retry_after_s=1.0)
        self._holders.add(holder)

    def connect(self, holder: object, now_s: float) -> None:
        """Take room for a connection to an upstream, until the place is given back; a retry has it already.

        Raises VeloxError(CONN_LIMIT) when there is none.
        """
        if holder in self._connected:
            return
        if not self._connections.take_lone(now_s):
            message = "this worker has as many connections to upstreams in use as it may open files for"
            raise VeloxError(Reason.CONN_LIMIT, message, retry_after_s=1.0)
        self._connected.add(holder)

    def give(self, holder: object) -> None:
        """Give the place back; nothing happens if it has none."""
        self._holders.discard(holder)
        if holder in self._connected:
            self._connected.discard(holder)
            self._connections.release_lone()

    def opened(self, tunnel: Tunnel) -> None:
        """Count a tunnel from now on."""
        self._open.add(tunnel)

    def ended(self, tunnel: Tunnel) -> None:
        """Count it no longer."""
        if tunnel in self._open:
            self._open.discard(tunnel)
            up, down = self._ended
            self._ended = (up + tunnel.client.n_bytes, down + tunnel.upstream.n_bytes)

    def moved(self) -> tuple[int, int]:
        """Return how many bytes have gone to upstreams and to clients since this was asked last."""
        up = self._ended[0] + sum(tunnel.client.n_bytes for tunnel in self._open)
        down = self._ended[1] + sum(tunnel.upstream.n_bytes for tunnel in self._open)
        told, self._told = self._told, (up, down)
        return up - told[0], down - told[1]
