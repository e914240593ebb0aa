"""How many exchanges a connection of one upstream takes at a time.

Knows: what connections have told of it, which have not told yet, and what is counted of a pool. Does not know: who
wants one (pool.py).

An HTTP/2 upstream says it in its SETTINGS, which over TLS come a round trip after the connection has been made. Until
then a connection takes one exchange, and says nothing about how many others are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from velox.net.upstream.interface import UpstreamConnection

__all__ = ["Capacity", "PoolStatistics"]

# How long SETTINGS are waited for: several round trips to the other side of the world.
_SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool holds at one instant. streams: also those on connections that take no new ones."""

    connections: int
    dialing: int
    streams: int
    waiting: int


class Capacity:
    """each: exchanges that one connection takes at a time; 0: none has told yet.

    low: rooms of a connection below which more may be wanted; 0: HTTP/1.1, where one is all there is.
    unsettled: connections that may soon take more than they do now, and since when (on the loop's clock).
    """

    __slots__ = ("each", "is_http2", "low", "unsettled")

    def __init__(self) -> None:
        self.each = 0
        self.low = 0
        self.is_http2 = False
        self.unsettled: Final[dict[UpstreamConnection, float]] = {}

    def __repr__(self) -> str:
        return f"<Capacity each={self.each} unsettled={len(self.unsettled)}>"

    def meet(self, connection: UpstreamConnection, now_s: float) -> None:
        """A connection was made."""
        if connection.is_settled:
            self._learn(connection.n_rooms)
        else:
            self.is_http2 = True
            self.unsettled[connection] = now_s

    def hear(self, connection: UpstreamConnection) -> bool:
        """A connection has room; True if it tells by that how many exchanges it takes."""
        if not connection.is_settled or self.unsettled.pop(connection, None) is None:
            return False
        self._learn(connection.n_rooms + connection.n_streams)
        return True

    def forget(self, connection: UpstreamConnection) -> None:
        """It takes no more exchanges."""
        self.unsettled.pop(connection, None)

    def look(self, connections: Iterable[UpstreamConnection], now_s: float) -> None:
        """Now and then: limits change, and SETTINGS may never come."""
        for connection, since_s in [*self.unsettled.items()]:
            if connection.is_settled or now_s - since_s >= _SETTLE_S:
                del self.unsettled[connection]
        most = max((each.n_rooms + each.n_streams for each in connections if each not in self.unsettled), default=0)
        if most:
            self._learn(most)

    def _learn(self, n_rooms: int) -> None:
        self.is_http2 |= n_rooms != 1
        self.each = max(1, n_rooms)
        self.low = max(1, self.each // 10) if self.each > 1 else 0
