"""What a worker answers when the admin process asks what it is doing: its requests, its connections, its loop.

Knows: where the parts of a worker have it. Does not know: how it is asked (profiling/remote.py) or shown (admin/).
Nothing is kept for this: all of it is read when somebody asks, as far as the first thousand.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import orjson

from velox.errors import Reason, VeloxError
from velox.gateway.auth import Authenticator
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.net.client.connection import ClientConnection
from velox.net.client.ingress import Ingress
from velox.net.client.ingress_state import WatchedConnection
from velox.net.tcp_info import transferred
from velox.net.upstream.pool import OpenUpstream
from velox.policy.cache.rules import key_partition
from velox.profiling.loop_watch import LoopWatch
from velox.profiling.remote import Question
from velox.profiling.running import (
    CachedBy,
    CachedParts,
    LongTurns,
    OpenConnection,
    OpenConnections,
    RunningRequest,
    RunningRequests,
    short,
)
from velox.runtime.upstreams.upstream_manager import UpstreamManager
from velox.settings import Settings

__all__ = ["Inspection"]

# Of each kind: to make a row takes 5 to 10 us.
_MOST_ROWS: Final = 1000
_DRAIN: Final = "drain"


class Inspection:
    """Of one worker. watch: of its loop; None: nobody watches that. settings: those that hold. auth: its keys."""

    def __init__(
        self,
        gateway: Gateway,
        ingress: Ingress,
        upstreams: UpstreamManager,
        watch: LoopWatch | None,
        loop: asyncio.AbstractEventLoop,
        settings: Callable[[], Settings],
        auth: Authenticator,
    ) -> None:
        self._auth: Final = auth
        self._settings: Final = settings
        self._gateway: Final = gateway
        self._ingress: Final = ingress
        self._upstreams: Final = upstreams
        self._watch: Final = watch
        self._loop: Final = loop

    def __repr__(self) -> str:
        return f"<Inspection {self._gateway!r}>"

    def questions(self) -> Mapping[str, Question]:
        """Return what answers each question."""
        return {
            "tasks": lambda _: msgspec.json.encode(self.requests()),
            "connections": lambda _: msgspec.json.encode(self.connections()),
            "loop": lambda _: msgspec.json.encode(self.turns()),
            "end": self._end,
            "configuration": lambda _: orjson.dumps(_configuration(self._settings())),
            "cached": lambda which: msgspec.json.encode(self._cached(msgspec.json.decode(which, type=CachedBy))),
        }

    def requests(self) -> RunningRequests:
        """Return the requests that have not ended, the oldest first."""
        running, now_ns = self._gateway.running(), time.monotonic_ns()
        oldest = heapq.nsmallest(_MOST_ROWS, running, key=_began_ns)
        return RunningRequests(len(running), [_request(exchange, now_ns) for exchange in oldest])

    def connections(self) -> OpenConnections:
        """Return the open connections, those of clients first, each side the oldest first."""
        now_s = self._loop.time()
        clients, open_upstreams = self._ingress.connections, self._upstreams.open_connections()
        rows = [_client(each, now_s - since_s) for each, since_s in list(clients.items())[:_MOST_ROWS]]
        rows += [_upstream(name, each, now_s) for name, each in open_upstreams[:_MOST_ROWS]]
        return OpenConnections(len(clients) + len(open_upstreams), rows)

    def _end(self, ident: str) -> bytes:
        """End a request; an empty answer: there is none of this id."""
        error = VeloxError(Reason.ENDED_BY_ADMIN, "an administrator of the gateway ended this request")
        return b"ended" if self._gateway.end(ident.encode("ascii", "replace"), error) else b""

    def _cached(self, asked: CachedBy) -> CachedParts:
        """Say what the cache has answers by, of the names of a purge."""
        routes = self._settings().routes
        return CachedParts(
            has_cache=any(route.cache is not None for route in routes),
            has_route=any(route.name == asked.route for route in routes),
            partitions=[key_partition(caller.id) for caller in self._auth.called(asked.key)] if asked.key else [],
        )

    def turns(self) -> LongTurns:
        """Return the turns of the loop that lasted too long."""
        return LongTurns(0, 0.0, []) if self._watch is None else self._watch.turns()


def _configuration(settings: Settings) -> dict[str, list[str] | list[dict[str, str]]]:
    # Here, not above: few workers are ever asked for it.
    from velox.settings.show import budget_lines, effective, limit_lines, route_lines, upstream_lines

    rows = [{"name": name, "value": value, "origin": origin} for name, value, origin in effective(settings)]
    return {
        "settings": rows,
        "upstreams": upstream_lines(settings),
        "routes": route_lines(settings),
        "limits": limit_lines(settings),
        "budgets": budget_lines(settings),
    }


def _began_ns(exchange: Exchange) -> int:
    return exchange.started_ns


def _request(exchange: Exchange, now_ns: int) -> RunningRequest:
    plan, reply, caller = exchange.plan, exchange.reply, exchange.plan.caller
    route, upstream, model = "", "", exchange.fields.model
    if exchange.n_attempts:
        route, upstream, model = exchange.call_kind()
    has_begun = reply is not None and reply.started and exchange.phase != _DRAIN
    return RunningRequest(
        id=exchange.id.decode(),
        phase="stream" if has_begun else exchange.phase,
        age_s=round((now_ns - exchange.started_ns) / 1e9, 3),
        endpoint=plan.endpoint.name.lower(),
        route_name=short(route),
        upstream=short(upstream),
        model=short(model or ""),
        key=short(caller.name),
        key_id=caller.account or caller.id.hex(),
        attempts=exchange.n_attempts,
        tried=exchange.tried,
        stream=exchange.fields.stream,
        websocket=exchange.is_tunnel,
        bytes_in=(0 if exchange.body is None else len(exchange.body)) + (0 if reply is None else reply.bytes_in),
        bytes_out=0 if reply is None else reply.bytes_out,
        address=exchange.client.address,
    )


def _client(connection: WatchedConnection, age_s: float) -> OpenConnection:
    if not isinstance(connection, ClientConnection):  # what it will speak is not known yet
        return OpenConnection(
            side="client", peer="", protocol="", state="handshake", streams=0, age_s=round(age_s, 3), tls=True
        )
    n_in, n_out = transferred(connection.fileno())
    return OpenConnection(
        side="client",
        peer=_address(connection.peer),
        protocol=connection.protocol,
        state=connection.state,
        streams=connection.n_streams,
        age_s=round(age_s, 3),
        tls=connection.is_tls,
        bytes_in=n_in,
        bytes_out=n_out,
    )


def _upstream(name: str, found: OpenUpstream, now_s: float) -> OpenConnection:
    connection = found.connection
    n_in, n_out = transferred(connection.fileno())
    busy = "busy" if connection.n_streams else "idle"
    return OpenConnection(
        side="upstream",
        peer=connection.address,
        protocol=connection.protocol,
        state="retired" if connection.end is not None else busy,
        streams=connection.n_streams,
        age_s=0.0 if found.since_s is None else round(now_s - found.since_s, 3),
        upstream=name,
        begun=connection.n_begun,
        bytes_in=n_in,
        bytes_out=n_out,
    )


def _address(peer: object) -> str:
    """Return an address as people write it (RFC 3986 §3.2.2 for IPv6), "" for a unix socket's."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return ""
    host, port = peer[0], peer[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
