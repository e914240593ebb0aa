"""What the end-to-end tests share: certificates, running upstreams, and gateways in front of the scripted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import RecordingUpstream
from tests.e2e.upstreams import (
    Certificates,
    Upstream,
    make_certificates,
    start_nghttpd,
    start_nginx,
    start_sim,
)


@dataclass(frozen=True)
class Wall:
    """The scripted upstream and a gateway of one worker in front of it. kind: http1, or the HTTP/2 engine's name."""

    kind: str
    upstream: RecordingUpstream
    velox: VeloxProcess
    sdk: openai.OpenAI

    @property
    def is_http2(self) -> bool:
        """True when the gateway speaks HTTP/2 with the upstream."""
        return self.kind != "http1"

    def check_health(self) -> None:
        """A plain request must pass."""
        reply = self.sdk.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
        assert reply.choices[0].message.content == "Hello from afar."


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for 127.0.0.1."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def sim() -> Iterator[Upstream]:
    """The simulator: HTTP/1.1, and HTTP/2 to those who begin with its preface."""
    with start_sim() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def nginx_http1(sim: Upstream) -> Iterator[Upstream]:
    """Plain nginx before the simulator."""
    with start_nginx(sim.url, None) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def nginx_tls(sim: Upstream, certificates: Certificates) -> Iterator[Upstream]:
    """Nginx with TLS and HTTP/2 before the simulator."""
    with start_nginx(sim.url, certificates) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def nghttpd(certificates: Certificates) -> Iterator[Upstream]:
    """Nghttpd with canned chat completions."""
    with start_nghttpd(certificates) as upstream:
        yield upstream


@pytest.fixture(scope="session", params=["http1", "ngh2", "h2"])
def wall_of_session(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Wall]:
    """One scripted upstream and one gateway for each way to speak with it."""
    kind: str = request.param
    with RecordingUpstream(http2=kind != "http1", certificates=None if kind == "http1" else certificates) as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}
        env |= {"VELOX_RATE_LIMIT_RPM": "0", "VELOX_EGRESS_POOL_CONNECTIONS": "1"}
        if kind != "http1":
            env["VELOX_HTTP2_ENGINE"] = kind
        with VeloxProcess(env) as velox:
            velox.wait_warm()  # a request that comes before would open a second connection
            yield Wall(kind, upstream, velox, velox.openai())


@pytest.fixture
def wall(wall_of_session: Wall) -> Iterator[Wall]:
    """The wall for one test; afterwards a healthy request must pass, and nothing may still be in flight."""
    yield wall_of_session
    wall_of_session.check_health()
    wall_of_session.velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
