"""What the tests of real servers share: what is behind them, the servers, and gateways in front of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.upstreams import Certificates, Upstream, make_certificates, start_sim
from tests.interop.process import Limits, Server
from tests.interop.restarts import ENGINES, gateway_env
from tests.interop.servers import SERVERS

# (server, engine of HTTP/2 or "http1")
PLACES: Final = [
    pytest.param((name, engine), id=f"{name}-{engine}")
    for name, server in SERVERS.items()
    for engine in ENGINES
    if server.is_proxy or engine != "http1"
]


@dataclass(frozen=True)
class Place:
    """A real server and a gateway of one worker in front of it. behind: what the server passes requests on to."""

    server: Server
    engine: str
    behind: RecordingUpstream
    velox: VeloxProcess

    @property
    def is_http2(self) -> bool:
        """True when the gateway speaks HTTP/2 with the server."""
        return self.engine != "http1"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def behind() -> Iterator[RecordingUpstream]:
    """What the servers pass requests on to: the scripted upstream, over HTTP/1.1."""
    with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def paced_sim() -> Iterator[Upstream]:
    """The simulator; a stream lasts 1.5 seconds."""
    with start_sim("--token-rate", "20", "--tokens", "30") as upstream:
        yield upstream


@pytest.fixture(scope="session")
def serve(behind: RecordingUpstream, certificates: Certificates) -> Iterator[Callable[[str, Limits], Server]]:
    """Start a server in front of the scripted upstream, or take the one that was started before."""
    servers: dict[tuple[str, Limits], Server] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str, limits: Limits) -> Server:
            if (name, limits) not in servers:
                server = SERVERS[name](behind.upstream, certificates, limits)
                servers[name, limits] = stack.enter_context(server)
            return servers[name, limits]

        yield start


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, serve: Callable[[str, Limits], Server], behind: RecordingUpstream
) -> Iterator[Place]:
    """Each server with each way to speak with it."""
    name, engine = request.param
    limits: Limits = getattr(request.module, "LIMITS", Limits())
    server = serve(name, limits)
    few = {"VELOX_WORKERS": "1", "VELOX_EGRESS_POOL_CONNECTIONS": "1"}
    env = gateway_env(server, engine, **few, **getattr(request.module, "SETTINGS", {}))
    with VeloxProcess(env) as velox:
        velox.wait_warm()
        yield Place(server, engine, behind, velox)
        velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
        velox.wait_metric("velox_upstream_streams", lambda n: n == 0)
