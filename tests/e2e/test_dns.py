"""Upstreams whose name fails, moves or hangs, by a name server of the test's own (F-3, F-4, F-5)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.names import NameServer
from tests.e2e.recording import SSE, Call, RecordingUpstream, healthy
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, reason, wait_warm
from tests.e2e.upstreams import CHAT_SSE

pytestmark = pytest.mark.more

NAME = "upstream.test"
FAILED = 'velox_dns_refresh_total{result="failed"}'
CHANGED = 'velox_dns_refresh_total{result="changed"}'
# For a busy machine; what is promised is far shorter.
LATE_S = 4.0


@contextlib.contextmanager
def gateway(names: NameServer, port: int, **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker that asks `names` for its upstream."""
    env = {"VELOX_UPSTREAM_ORIGIN": f"http://{NAME}:{port}", "VELOX_WORKERS": "1", "VELOX_DNS_REFRESH": "200ms"}
    env |= {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    with VeloxProcess(env, launcher=names.launcher()) as velox:
        yield velox


@pytest.fixture
def names() -> Iterator[NameServer]:
    """The name server."""
    with NameServer() as server:
        yield server


@pytest.mark.fault("F-3")
@pytest.mark.parametrize("fails", [False, True], ids=["unknown", "server failure"])
def test_name_that_fails_at_the_start_is_found_later(names: NameServer, fails: bool) -> None:
    """Velox starts, is not ready and says so; requests get 502 upstream_dns; once the name is known all is well."""
    if fails:
        names.fail(NAME)
    with RecordingUpstream() as upstream, gateway(names, upstream.port) as velox:
        assert velox.admin("/readyz").status == 503
        refused = velox.request("POST", "/v1/chat/completions", CHAT)
        assert (refused.status, reason(refused)) == (502, "upstream_dns")
        assert refused.header("x-should-retry") == "true"
        assert velox.metric(FAILED) > 0

        names.answer(NAME, "127.0.0.1")
        until(lambda: velox.admin("/readyz").status == 200, "it is ready", 20)
        assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200


@pytest.mark.fault("F-4")
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_name_that_moves_is_followed_and_streams_end_where_they_began(names: NameServer, http2: bool) -> None:
    """New connections go to the new address; the stream on the old one is whole; then the old one is left."""

    async def two_parts(call: Call) -> None:
        if b"stream" not in call.body:
            return await healthy(call)
        await call.head(200, SSE)
        await call.data(CHAT_SSE[:200])
        await call.step()
        await call.data(CHAT_SSE[200:])
        return await call.end()

    names.answer(NAME, "127.0.0.1")
    with (
        RecordingUpstream(http2=http2) as old,
        RecordingUpstream(http2=http2, host="127.0.0.2", port=old.port) as new,
        gateway(names, old.port, upstream_http2="on" if http2 else "off") as velox,
        Client(velox) as client,
        old.playing(two_parts),
        new.playing(healthy),
    ):
        wait_warm(velox)
        client.send_chat(CHAT_STREAM)
        old.wait_call()
        client.read_until(CHAT_SSE[150:200])

        names.answer(NAME, "127.0.0.2")
        moved_s = time.monotonic()
        new.wait(lambda: new.n_connections > 0, "a connection to the new address")
        assert time.monotonic() - moved_s < 0.2 + LATE_S
        until(lambda: velox.request("POST", "/v1/chat/completions", CHAT).status == 200 and len(new.calls) > 0, "used")

        old.step()
        rest = client.read_until(b"data: [DONE]")
        assert b"error" not in rest
        until(lambda: old.n_open == 0, "the old address is left")
        assert velox.metric('velox_upstream_connections_ended_total{cause="moved"}') >= 1
        assert velox.metric(CHANGED) == 2
        assert {velox.request("GET", "/v1/models").status for _ in range(10)} == {200}


@pytest.mark.fault("F-4")
@pytest.mark.parametrize("how", ["fail", "hang", "unknown"])
def test_name_that_is_lost_keeps_its_last_address(names: NameServer, how: str) -> None:
    """Neither a failure nor silence of the name server ends a connection; new ones go to the last good address."""
    names.answer(NAME, "127.0.0.1")
    with RecordingUpstream() as upstream, gateway(names, upstream.port) as velox:
        wait_warm(velox)
        if how == "unknown":
            names.forget(NAME)
        else:
            getattr(names, how)(NAME)
        names.wait_asked(NAME)
        if how != "hang":
            velox.wait_metric(FAILED, lambda n: n > 0)
        began_s = time.monotonic()
        assert velox.request("GET", "/v1/models").status == 200
        upstream.close_connections()
        until(lambda: upstream.n_open == 0 or upstream.n_connections > 1, "the connections are gone")
        assert velox.request("GET", "/v1/models").status == 200
        assert time.monotonic() - began_s < LATE_S
        assert velox.metric('velox_upstream_connections_ended_total{cause="moved"}') == 0


@pytest.mark.fault("F-5")
def test_name_that_hangs_holds_up_nobody_but_who_needs_it(names: NameServer) -> None:
    """502 upstream_dns after the connect time-out; meanwhile the worker answers others; the end is not delayed."""
    names.hang(NAME)
    with gateway(names, 9, upstream_connect_timeout="700ms") as velox:
        names.wait_asked(NAME)
        with Client(velox) as waiting, Client(velox) as other:
            began_s = time.monotonic()
            waiting.send_chat()
            for _ in range(5):
                assert other.ask("GET", "/metrics").status == 404
            assert time.monotonic() - began_s < 0.7, "a few round trips, long before the look-up's time is over"
            refused = waiting.read()
            assert (refused.status, reason(refused)) == (502, "upstream_dns")
            assert 0.6 < time.monotonic() - began_s < 3 * 0.7 + LATE_S
        began_s = time.monotonic()
        assert velox.stop() == 0
        assert time.monotonic() - began_s < LATE_S


@pytest.mark.fault("F-5")
def test_name_that_hangs_does_not_hold_up_another_upstream(names: NameServer) -> None:
    """The request waits for the connect time-out once at most, then goes to the next; later ones find their way."""
    names.hang(NAME)
    with RecordingUpstream() as upstream:
        origins = f"http://{NAME}:9,http://127.0.0.1:{upstream.port}"
        with gateway(names, 9, upstream_origin=origins, upstream_connect_timeout="700ms") as velox:
            began_s = time.monotonic()
            assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
            assert time.monotonic() - began_s < 0.7 + LATE_S
