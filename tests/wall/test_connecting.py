"""The way to an upstream is closed: refused, swallowed, not there yet, or gone stale (F-1, F-2, F-9, F-10).

Names (F-3 to F-5) and TLS (F-6 to F-8) have files of their own in tests/e2e, with the marker `fault`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator

import pytest

from tests.e2e.tools import free_port
from tests.wall.client import PLAIN, STREAM
from tests.wall.gate import CONNECT_S, Wall, open_gate
from tests.wall.provider import ANSWERED
from tests.wall.ways import ALL_KINDS


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port where nobody listens: a connection is refused."""
    yield free_port()


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """Yield a port whose backlog is full: a SYN gets no answer."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield listener.getsockname()[1]


NOWHERE = [
    pytest.param(closed_port, marks=pytest.mark.fault("F-1"), id="f1-refused"),
    pytest.param(black_hole, marks=pytest.mark.fault("F-2"), id="f2-swallowed"),
]


def origin(wall: Wall, port: int) -> str:
    """Return the origin of the first wall, at another port."""
    return f"{wall.first.upstream.url.rpartition(':')[0]}:{port}"


@pytest.mark.parametrize("nowhere", NOWHERE)
def test_f1_f2_no_connection_is_a_502_that_may_be_tried_again(
    wall: Wall, nowhere: type[contextlib.AbstractContextManager[int]]
) -> None:
    """The client hears within the connect time-out that nobody was reached, and that another try is safe."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(nowhere())
        gate = stack.enter_context(open_gate(wall.setup, [], origins=[origin(wall, port)]))
        asks = [gate.ask(wall.ticket("alive"), stream=stream) for stream in (PLAIN, STREAM)]
        answers = [ask.answer() for ask in asks]

        for answer in answers:
            assert (answer.status, answer.reason) == (502, "upstream_connect")
            assert answer.header("x-should-retry") == "true"
            # Free tries included: three of them, and what a busy machine adds.
            assert answer.took_s < 3 * CONNECT_S + 2
        assert gate.metric('velox_upstream_attempts_total{outcome="connect_error"}') >= 2


@pytest.mark.parametrize("nowhere", NOWHERE)
def test_f1_f2_no_connection_goes_on_to_the_next_upstream(
    wall: Wall, nowhere: type[contextlib.AbstractContextManager[int]]
) -> None:
    """With another upstream the client notices nothing."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(nowhere())
        origins = [origin(wall, port), wall.second.upstream.url]
        gate = stack.enter_context(open_gate(wall.setup, [wall.second], origins=origins))
        model = wall.ticket("alive")
        asks = [gate.ask(model, stream=stream) for stream in (PLAIN, STREAM)]

        assert [(answer.status, answer.is_whole) for answer in (ask.answer() for ask in asks)] == [(200, True)] * 2
        assert wall.second.ends(model) == [ANSWERED] * 2
        gate.note_baseline()


@pytest.mark.fault("F-1")
def test_f1_upstream_that_comes_back_is_used_again(wall: Wall) -> None:
    """A refusal is not remembered longer than it lasts: the next request finds the upstream that has come up."""
    port = free_port()
    with open_gate(wall.setup, [], origins=[origin(wall, port)]) as gate:
        assert gate.ask(wall.ticket("alive")).answer().reason == "upstream_connect"
        with wall.provider(1, port=port):
            gate.check_alive()
            gate.note_baseline()


@pytest.mark.fault("F-9")
def test_f9_gateway_starts_without_its_upstream_and_is_ready_when_that_is(wall: Wall) -> None:
    """A start needs no upstream; readiness does, and comes by itself."""
    port = free_port()
    with open_gate(wall.setup, [], origins=[origin(wall, port)]) as gate:
        gate.velox.wait_metric("velox_upstream_warm_failures_total", lambda n: n > 0)
        assert gate.velox.admin("/readyz").status == 503
        with wall.provider(1, port=port):
            gate.velox.wait_warm()
            assert gate.velox.admin("/readyz").status == 200
            gate.note_baseline()


@pytest.mark.fault("F-9")
def test_f9_gateway_that_need_not_wait_is_ready_at_once(wall: Wall) -> None:
    """VELOX_READY_REQUIRES_UPSTREAM=off: an upstream that is down does not take the gateway out."""
    env = {"VELOX_READY_REQUIRES_UPSTREAM": "off"}
    with open_gate(wall.setup, [], env, [origin(wall, free_port())]) as gate:
        gate.velox.wait_metric("velox_upstream_warm_failures_total", lambda n: n > 0)
        assert gate.velox.admin("/readyz").status == 200


@pytest.mark.fault("F-10")
@pytest.mark.ways("http1", "http1-tls")
@pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
def test_f10_connection_that_closes_on_a_request_costs_a_retry(wall: Wall, stream: bool) -> None:
    """The upstream received the request on a connection that had idled, and closed it: it may have read the request."""
    model = wall.ticket("stale")
    with wall.alone.counted('velox_retries_total{cause="reset"}'):
        answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert wall.first.ends(model) == ["cut", ANSWERED]


@pytest.mark.fault("F-10")
@pytest.mark.ways(*ALL_KINDS)
def test_f10_upstream_that_closes_after_each_reply_is_never_noticed(wall: Wall) -> None:
    """Requests race with the close of their connection, a hundred times; none of them fails."""
    order = random.Random(10)

    for n in range(100):
        answer = wall.alone.ask(wall.ticket("close-soon"), stream=bool(n % 2)).answer()
        assert (answer.status, answer.is_whole) == (200, True), f"request {n}: {answer}"
        # Not to wait for anything: this is the race, 10 ms give or take.
        time.sleep(order.uniform(0.008, 0.012))
