"""Settings of the upstream connections: how long they are used, and what readiness makes of an absent upstream."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from h2.settings import SettingCodes

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import Client, clients, covers, hold_chat, open_fds, wait_warm

pytestmark = pytest.mark.more

ENDED = 'velox_upstream_connections_ended_total{cause="%s"}'


@contextlib.contextmanager
def before(upstream: RecordingUpstream, **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker and one warm connection."""
    env = {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    env |= {"VELOX_WORKERS": "1", "VELOX_EGRESS_POOL_CONNECTIONS": "1"}
    with VeloxProcess({**upstream.env(), **env}) as velox:
        wait_warm(velox)
        yield velox


@covers("VELOX_EGRESS_MAX_AGE")
@pytest.mark.parametrize("http2", [False, True])
def test_egress_max_age_replaces_connections_and_a_running_reply_goes_on(http2: bool) -> None:
    """A new one first; the old one is closed when its last reply is whole."""
    with RecordingUpstream(http2=http2) as upstream, before(upstream, egress_max_age="1s") as velox:
        with upstream.playing(hold_chat), Client(velox) as client:
            client.send_chat()
            upstream.wait_call()
            velox.wait_metric(ENDED % "age", lambda n: n >= 2)
            assert upstream.n_open >= 2, "the one with the reply, and one that is new"
            upstream.step()
            assert client.read().status == 200
        assert velox.request("GET", "/v1/models").status == 200
        until(lambda: upstream.n_open <= 2, "old connections are closed")


@covers("VELOX_EGRESS_MAX_REQUESTS")
@pytest.mark.parametrize("http2", [False, True])
def test_egress_max_requests_replaces_a_connection_that_has_carried_so_many(http2: bool) -> None:
    """Nine to eleven, with the warm-up; no request fails when its turn comes."""
    with (
        RecordingUpstream(http2=http2) as upstream,
        before(upstream, egress_max_requests="10", egress_idle_timeout="1s") as velox,
    ):
        for _ in range(7):
            assert velox.request("GET", "/v1/models").status == 200
        assert (upstream.n_connections, velox.metric(ENDED % "requests")) == (1, 0)
        for _ in range(4):
            assert velox.request("GET", "/v1/models").status == 200
        velox.wait_metric(ENDED % "requests", lambda n: n == 1)
        assert {velox.request("GET", "/v1/models").status for _ in range(40)} == {200}
        until(lambda: upstream.n_open == 1, "the old connections are closed")
        assert upstream.n_connections >= 4


@covers("VELOX_EGRESS_IDLE_TIMEOUT")
@pytest.mark.parametrize("http2", [False, True])
def test_egress_idle_timeout_closes_what_a_burst_has_left(http2: bool) -> None:
    """Down to the warm connection, and the worker's descriptors to what they were, though requests go on coming."""
    with RecordingUpstream(http2=http2) as upstream:
        upstream.http2_settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 3}
        with before(upstream, egress_idle_timeout="500ms") as velox:
            (worker,) = velox.worker_pids()
            n_before = open_fds(worker)
            with upstream.playing(hold_chat), clients(velox, 12) as burst:
                for client in burst:
                    client.send_chat()
                upstream.wait_call(12)
                assert upstream.n_open >= 4
                upstream.step(12)
                assert {client.read().status for client in burst} == {200}

            def is_back() -> bool:
                assert velox.request("GET", "/v1/models").status == 200
                return upstream.n_open == 1 and open_fds(worker) <= n_before

            until(is_back, "one connection is left, and as many descriptors as before")
            velox.wait_metric(ENDED % "idle", lambda n: n >= 3)


@covers("VELOX_READY_REQUIRES_UPSTREAM")
@pytest.mark.parametrize(("setting", "status"), [("on", 503), ("off", 200)])
def test_ready_requires_upstream_decides_whether_traffic_may_come_without_one(setting: str, status: int) -> None:
    """F-9: it starts all the same, says what is wrong, and is ready as soon as the upstream answers a warm-up."""
    upstream = RecordingUpstream()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        upstream.port = probe.getsockname()[1]
    env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_READY_REQUIRES_UPSTREAM": setting}
    with VeloxProcess(env) as velox:
        velox.wait_metric("velox_upstream_warm_failures_total", lambda n: n >= 2)
        reply = velox.admin("/readyz")
        assert reply.status == status and b"worker 0 has no connection to its upstream" in reply.body
        with upstream:
            until(lambda: velox.admin("/readyz").body == b'{"ready":true,"reasons":[]}\n', "it is ready", 30)
            assert velox.admin("/readyz").status == 200
            assert velox.request("GET", "/v1/models").status == 200
