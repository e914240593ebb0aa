"""Real servers that restart under running streams: in good order nothing fails; killed, every client is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess, until
from tests.e2e.upstreams import Certificates, Upstream
from tests.interop.process import Limits, Server
from tests.interop.restarts import KILL, gateway_env, restart
from tests.interop.servers import SERVERS

N_STREAMS = 40
# `python -m tests.interop.restarts` runs all of them, with 500 streams.
GRACEFUL = [
    ("nginx", "reload", "ngh2"),
    ("nginx", "start, quit", "http1"),
    ("HAProxy", "reload", "h2"),
    ("HAProxy", "-sf", "http1"),
    ("Caddy", "reload", "ngh2"),
    ("Envoy", "hot restart", "h2"),
    ("Envoy", "drain, start", "ngh2"),
]
KILLED = [("nginx", "h2"), ("nghttpd", "ngh2"), ("HAProxy", "ngh2"), ("Caddy", "http1"), ("Envoy", "ngh2")]


@pytest.fixture
def server(request: pytest.FixtureRequest, paced_sim: Upstream, certificates: Certificates) -> Iterator[Server]:
    """A server of its own in front of the simulator."""
    with SERVERS[request.param](paced_sim, certificates, Limits()) as started:
        yield started


@pytest.mark.parametrize(("server", "way", "engine"), GRACEFUL, indirect=["server"])
def test_restart_in_good_order_fails_nothing(server: Server, way: str, engine: str) -> None:
    """Streams end whole, on the connection that they began on; new requests go to the successor (F-33)."""
    with VeloxProcess(gateway_env(server, engine, VELOX_WORKERS="1")) as velox:
        outcome = restart(server, way, engine, velox, N_STREAMS)

    assert outcome.is_good, outcome
    assert outcome.n_asked > 0
    # The restart was one: the server has sent the gateway's connections away.
    assert outcome.ended, outcome


@pytest.mark.parametrize(("server", "engine"), KILLED, indirect=["server"])
def test_killed_server_cuts_its_streams_and_each_client_is_told(server: Server, engine: str) -> None:
    """No answer looks whole that is not, and the server that comes back is used at once (F-13)."""
    with VeloxProcess(gateway_env(server, engine, VELOX_WORKERS="1")) as velox:
        outcome = restart(server, KILL, engine, velox, N_STREAMS)
        until(lambda: velox.request("HEAD", "/v1/models").status == 200, "the gateway uses it again")

    assert outcome.is_good, outcome
    assert sum(outcome.told.values()) == N_STREAMS


def test_command_prints_its_table() -> None:
    """`python -m tests.interop.restarts` ends with 0 when all is as promised."""
    command = ["-m", "tests.interop.restarts", "--streams", "8", "--server", "nghttpd", "--engine", "ngh2"]
    run = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "| nghttpd | SIGKILL, start | ngh2 | 8 | 8 | 8 cut |" in run.stdout
