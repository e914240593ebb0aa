"""Clients that come at once over TLS and HTTP/2: what does not fit into a turn of the loop waits for a later one."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from typing import Final, cast

import pytest
import trustme

from tests.sockets.net.tls_ingress import certificate_of
from tests.unit.net.client.test_client_http1 import App, Wire
from tests.unit.net.upstream_wire import Loop
from tests.unit.protocol.http2.http2_peers import Name, make
from velox.net.application import ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.ingress import Ingress
from velox.net.client.ingress_state import CLOSE_S
from velox.net.client.tls import TlsConnection, TlsIngress
from velox.net.client.tls_context import server_context
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.outcomes import TlsFailure
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import EngineSettings
from velox.protocol.http2.engines import engine_factory

MOST_A_TURN: Final = 32  # questions for time, of which each takes as long
N_AT_ONCE: Final = 2 * MOST_A_TURN + 5
LARGE: Final = 1 << 26


class Stand:
    """A worker's ingress, and a clock that is later each time it is read."""

    def __init__(self, *, answers: bool = True) -> None:
        self.loop: Final = Loop()
        self.app: Final = App(self.loop, at_once=answers)
        self.tick_s = 0.0
        self._clock_s = 5.0
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.budget: Final = BodyBudget(LARGE, 5.0, self.loop.time)
        self.http2: Final = engine_factory("ngh2")
        self.ingress: Final = Ingress(
            self.app,
            Http1Limits(body_bytes=LARGE),
            ClientTimeouts(10.0, 15.0, 75.0, 30.0),
            self.budget,
            loop,
            max_connections=N_AT_ONCE,
            http2=self.http2,
            turns=TurnBudget(self.loop, self._clock),
        )

    def _clock(self) -> float:
        self._clock_s += self.tick_s
        return self._clock_s

    def begin(self) -> None:
        """From now on time goes on."""
        self.loop.now_s += 1.0
        self.tick_s = TURN_S / MOST_A_TURN

    def turns(self, count: Callable[[], int]) -> list[int]:
        """Turn the loop until nothing moves any more; return how much the count has grown in each turn."""
        counts = [0, count()]
        while self.loop.soon:
            self.loop.turn()
            counts.append(count())
        return [after - before for before, after in itertools.pairwise(counts)]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class TlsPeer:
    """One client, and the connection that it has."""

    def __init__(self, tls: TlsIngress, context: ssl.SSLContext) -> None:
        self.incoming: Final = ssl.MemoryBIO()
        self.outgoing: Final = ssl.MemoryBIO()
        self.tls: Final = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.connection: Final[TlsConnection] = tls.connection()
        self.wire: Final = Wire()
        self.wire.protocol = self.connection
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))
        self.left = b""  # to be read

    def shake_hands(self) -> None:
        self.incoming.write(self.wire.take())
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.left += self.outgoing.read()

    def write(self, data: bytes) -> None:
        self.tls.write(data)
        self.left += self.outgoing.read()

    def deliver(self) -> None:
        """Have it read as the loop does: what there is, while it reads."""
        while self.left and self.wire.is_reading():
            buffer = self.connection.get_buffer(-1)
            part, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))


def test_handshakes_and_large_reads_of_tls_clients_take_several_turns(authority: trustme.CA) -> None:
    """A handshake takes up to a millisecond, 64 KiB of records a tenth: a thousand at once took a second."""
    stand = Stand(answers=False)
    leaf, failures = authority.issue_cert("localhost"), list[TlsFailure]()
    resumed: list[bool] = []
    context = server_context(certificate_of(leaf), ("http/1.1",))
    tls = TlsIngress(stand.ingress, context, on_handshake=resumed.append, on_failure=failures.append)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    peers = [TlsPeer(tls, trusting) for _ in range(N_AT_ONCE)]

    stand.begin()
    for step in (lambda: sum(bool(peer.wire.sent) for peer in peers), lambda: len(resumed)):
        for peer in peers:
            peer.shake_hands()
            peer.deliver()
        assert step() <= MOST_A_TURN + 2
        assert all(peer.wire.is_reading() is bool(peer.wire.sent) for peer in peers) or resumed
        grown = stand.turns(step)
        assert sum(grown) == N_AT_ONCE and max(grown) <= MOST_A_TURN + 2
    assert not failures

    stand.loop.now_s += 1.0
    body = bytes(range(256)) * 1024
    for peer in peers:
        peer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        peer.write(body)
    behind = [sum(len(peer.left) for peer in peers)]
    while any(peer.left for peer in peers):
        for peer in peers:
            peer.deliver()
        stand.loop.turn()
        behind.append(sum(len(peer.left) for peer in peers))
        assert len(behind) < 10 * N_AT_ONCE, "it does not end"
    read = [before - after for before, after in itertools.pairwise(behind)]
    assert read[0] <= (N_AT_ONCE + 2 * MOST_A_TURN) * 65_536, "each is read once, and few twice"
    assert max(read[1:]) <= 2 * (MOST_A_TURN + 2) * 65_536
    stand.turns(lambda: 0)
    assert [got for _, got in stand.app.asked] == [body] * N_AT_ONCE
    assert stand.budget.taken_bytes == 0 and not failures


@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_small_reads_of_many_http2_clients_take_several_turns(engine: Name) -> None:
    """One request each; then all leave. Only reads above 1 KiB were counted."""
    stand = Stand(answers=False)
    make_engine = engine_factory(engine)
    peers = []
    for _ in range(N_AT_ONCE):
        connection, wire = ClientHttp2Connection(stand.ingress, make_engine), Wire()
        wire.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, wire))
        client, _ = make("ngh2", EngineSettings(stream_window=1 << 16), client=True)
        peers.append((connection, wire, client))
    stand.turns(lambda: 0)

    stand.begin()
    head = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/v1/models")]
    for connection, _, client in peers:
        client.send_request(head, True)
        connection.data_received(client.take_output())
    grown = stand.turns(lambda: len(stand.app.asked))
    assert sum(grown) == N_AT_ONCE and max(grown) <= MOST_A_TURN + 2
    assert all(wire.is_reading() for _, wire, _ in peers)

    stand.loop.now_s += 1.0
    stays = [connection.eof_received() for connection, _, _ in peers]
    assert stays.count(False) <= MOST_A_TURN + 2
    grown = stand.turns(lambda: sum(wire.is_closed for _, wire, _ in peers))
    assert max(grown) <= MOST_A_TURN + 2
    assert all(wire.is_closed for (_, wire, _), stay in zip(peers, stays, strict=True) if stay)


def test_what_the_loop_does_to_close_http2_connections_counts() -> None:
    """As of HTTP/1.1: it closes their sockets in the turn after."""
    stand = Stand()
    peers = []
    for _ in range(N_AT_ONCE):
        connection, wire = ClientHttp2Connection(stand.ingress, stand.http2), Wire()
        wire.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, wire))
        peers.append((connection, wire))
    stand.turns(lambda: 0)
    stand.loop.now_s += 1.0
    stays = [connection.eof_received() for connection, _ in peers]

    most = round(TURN_S / CLOSE_S) + 2
    assert stays.count(False) <= most < N_AT_ONCE
    assert max(stand.turns(lambda: sum(wire.is_closed for _, wire in peers))) <= most
    assert all(wire.is_closed for (_, wire), stay in zip(peers, stays, strict=True) if stay)
