"""Clients that leave, in every phase, and clients that do not read (F-41 to F-45)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from tests.e2e.leaving import LEAVING, Leave, close, half_close, reset
from tests.e2e.recorded_call import Call
from tests.e2e.watching import until
from tests.wall.client import PLAIN, STREAM, Ask
from tests.wall.faults import DONE, WORDS
from tests.wall.gate import Gate, Wall, open_gate, start_gate
from tests.wall.provider import ANSWERED
from tests.wall.test_connecting import black_hole, origin

BOTH = pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
WAYS_OUT = pytest.mark.parametrize(
    "leave",
    [close, reset, pytest.param(half_close, marks=pytest.mark.fault("F-44"))],
    ids=["fin", "rst", "f44-half-close"],
)
# The promise is 0.1 s; a busy machine gets ten times that. What was measured is printed.
LIMIT_S = 1.0
# The requirement says 10,000, which takes half a minute a way: WALL_CANCELS=10000.
N_CANCELS = int(os.environ.get("WALL_CANCELS", "1000"))
_BATCH = 50
_N_SLOW = 20
_MB = 1 << 20


def leave_and_check(wall: Wall, ask: Ask, leave: Leave, call: Call) -> None:
    """Leave; the upstream must be told in time, by the right means."""
    began_s = ask.leave(leave)
    took_s = wall.first.wait_left(call) - began_s
    ask.sock.close()
    print(f"\n{wall.kind}: upstream told after {took_s * 1000:.1f} ms", end=" ")
    assert took_s < LIMIT_S
    assert call.ended == ("left 8" if wall.is_http2 else "left")


def wait_gone(gate: Gate, n_lines: int, phase: str) -> None:
    """Wait for the access log's line that says that a client left, and in which phase."""

    def is_there() -> bool:
        return any(
            (line["status"], line["reason"], line["phase"]) == (499, "client_closed", phase)
            for line in gate.velox.access_log()[n_lines:]
        )

    until(is_there, f"a line: 499, client_closed, {phase}; there are {gate.velox.access_log()[n_lines:]}")


# -- before the request is up --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def narrow(wall_of_session: Wall) -> Iterator[Gate]:
    """A gateway that lets one request through at a time."""
    with start_gate(wall_of_session.setup, [wall_of_session.first], {"VELOX_MAX_INFLIGHT": "1"}) as gate:
        yield gate


@pytest.mark.fault("F-41")
@BOTH
@WAYS_OUT
def test_f41_client_that_leaves_the_queue_is_never_sent_up(
    wall: Wall, narrow: Gate, leave: Leave, stream: bool
) -> None:
    """While it waits for its turn."""
    n_lines = len(narrow.velox.access_log())
    with narrow.ask(wall.ticket("hold")) as running:
        wall.first.wait_attempt(running.model)
        queued = narrow.ask(wall.ticket("alive"), stream=stream)
        narrow.velox.wait_metric('velox_queue_depth{class="normal"}', lambda n: n == 1)
        queued.leave(leave)
        wait_gone(narrow, n_lines, "queue")
        queued.sock.close()
        wall.first.step()
        assert running.answer().status == 200

    assert wall.first.attempts(queued.model) == []
    narrow.check_baseline()


@pytest.mark.fault("F-42")
@BOTH
def test_f42_client_that_leaves_while_dialing_is_let_go(wall: Wall, stream: bool) -> None:
    """While the connection to the upstream is being made."""
    env = {"VELOX_UPSTREAM_CONNECT_TIMEOUT": "20s"}
    with black_hole() as port, open_gate(wall.setup, [], env, [origin(wall, port)]) as gate:
        check_let_go(gate, wall, "connect", stream)


@pytest.mark.fault("F-42")
@pytest.mark.ways("ngh2", "h2", "http1-tls")
@BOTH
def test_f42_client_that_leaves_during_the_tls_handshake_is_let_go(wall: Wall, stream: bool) -> None:
    """While the upstream is silent in the handshake."""
    env = {"VELOX_UPSTREAM_TLS_TIMEOUT": "20s"}
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with open_gate(wall.setup, [], env, [origin(wall, port)]) as gate:
            check_let_go(gate, wall, "connect", stream)


def check_let_go(gate: Gate, wall: Wall, phase: str, stream: bool) -> None:
    """Check each way to leave while there is no connection to the upstream."""
    for leave in LEAVING:
        n_lines = len(gate.velox.access_log())
        ask = gate.ask(wall.ticket("alive"), stream=stream)
        gate.velox.wait_metric("velox_inflight_requests", lambda n: n == 1)
        began_s = ask.leave(leave)
        gate.velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
        assert time.monotonic() - began_s < LIMIT_S
        wait_gone(gate, n_lines, phase)
        ask.sock.close()


@pytest.mark.fault("F-42")
@BOTH
@WAYS_OUT
def test_f42_client_that_leaves_while_backing_off_gets_no_second_attempt(
    wall: Wall, leave: Leave, stream: bool
) -> None:
    """While the gateway waits for the time that the upstream gave."""
    model = wall.ticket("429-2s-once")
    ask = wall.alone.ask(model, stream=stream)
    wall.first.wait_attempt(model)
    assert wall.first.ends(model) == [ANSWERED]

    began_s = ask.leave(leave)
    wall.alone.velox.wait_metric("velox_inflight_requests", lambda n: n == 0)

    assert time.monotonic() - began_s < LIMIT_S
    assert len(wall.first.attempts(model)) == 1
    ask.sock.close()


# -- while the upstream works ----------------------------------------------------------------------------------


@pytest.mark.fault("F-42")
@BOTH
@WAYS_OUT
def test_f42_client_that_leaves_before_the_first_byte_cancels_the_upstream(
    wall: Wall, leave: Leave, stream: bool
) -> None:
    """While the model thinks."""
    n_lines = len(wall.alone.velox.access_log())
    ask = wall.alone.ask(wall.ticket("silent"), stream=stream)
    call = wall.first.wait_attempt(ask.model)

    leave_and_check(wall, ask, leave, call)

    wait_gone(wall.alone, n_lines, "ttfb")
    assert len(wall.first.attempts(ask.model)) == 1


@pytest.mark.fault("F-43")
@WAYS_OUT
def test_f43_client_that_leaves_a_stream_cancels_the_upstream_and_nobody_else(wall: Wall, leave: Leave) -> None:
    """In the middle; a stream beside it, on the same connection where HTTP/2 is spoken, comes to its end."""
    n_lines = len(wall.alone.velox.access_log())
    leaver, stayer = (wall.alone.ask(wall.ticket("held-stream"), stream=STREAM) for _ in range(2))
    for ask in (leaver, stayer):
        ask.read_until(WORDS[-20:])
    call = wall.first.wait_attempt(leaver.model)

    leave_and_check(wall, leaver, leave, call)
    wall.first.step()

    answer = stayer.answer()
    assert (answer.body, answer.is_whole) == (WORDS + DONE, True)
    wait_gone(wall.alone, n_lines, "stream")


@pytest.mark.fault("F-43")
@BOTH
@WAYS_OUT
def test_f43_client_that_leaves_with_full_buffers_cancels_the_upstream(wall: Wall, leave: Leave, stream: bool) -> None:
    """While the upstream pours and nothing more fits."""
    ask = wall.alone.ask(wall.ticket("pour"), stream=stream)
    ask.read_until(b"z" * 1000)
    call = wall.first.wait_attempt(ask.model)

    leave_and_check(wall, ask, leave, call)


@pytest.mark.fault("F-43")
def test_f43_many_cancels_leak_nothing(wall: Wall) -> None:
    """Clients leave by the hundred, before the first byte and in streams: all that they held is given back."""
    before = wall.alone.rss_bytes()
    n_connections = wall.first.n_connections
    for _ in range(N_CANCELS // _BATCH):
        wall.first.forget()
        models = [wall.ticket("silent" if n % 2 else "held-stream") for n in range(_BATCH)]
        asks = [wall.alone.ask(model, stream=bool(n % 4)) for n, model in enumerate(models)]
        wall.first.wait(lambda: len(wall.first.calls) == _BATCH, "all are there")
        calls = list(wall.first.calls)
        for n, ask in enumerate(asks):
            ask.leave(LEAVING[n % 2])
        wall.first.wait(lambda calls=calls: all(call.left_s for call in calls), "all have left")  # type: ignore[misc]

    wall.alone.check_baseline()
    assert wall.alone.rss_bytes() < before + 16 * _MB
    if wall.is_http2:
        assert wall.first.n_connections <= n_connections + 2, "cancels use up no connections"


# -- clients that do not read ------------------------------------------------------------------------------------


@pytest.mark.fault("F-45")
@BOTH
def test_f45_clients_that_stop_reading_are_bounded_then_cut(wall: Wall, stream: bool) -> None:
    """Each holds a bounded amount of memory, its upstream is held up and then told, others notice nothing."""
    before = wall.alone.rss_bytes()
    n_lines = len(wall.alone.velox.access_log())
    models = [wall.ticket("pour") for _ in range(_N_SLOW)]
    slow = [Ask(wall.alone.velox, model, stream=stream, receive_bytes=1024) for model in models]
    wall.alone.asks += slow
    calls = [wall.first.wait_attempt(model) for model in models]

    beside = wall.alone.ask(wall.ticket("drip"), stream=STREAM).answer()
    assert beside.is_whole and beside.status == 200
    wall.alone.check_alive()
    peak = wall.alone.rss_bytes()
    for call in calls:
        wall.first.wait_left(call)

    assert peak < before + _N_SLOW * 512 * 1024 + 8 * _MB
    until(
        lambda: sum(line["reason"] == "client_slow" for line in wall.alone.velox.access_log()[n_lines:]) == _N_SLOW,
        "every one of them is logged as slow",
    )
    for ask in slow:
        ask.sock.close()
