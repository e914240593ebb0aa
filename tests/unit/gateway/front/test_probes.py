"""Questions whether somebody is there: which are answered here, and which a route has."""

from __future__ import annotations

import pytest

from velox.gateway.front.probes import Probes, answer_to
from velox.heads import RequestHead
from velox.policy.routes.entries import Match, RouteEntry, Target


def route(*paths: str) -> RouteEntry:
    return RouteEntry("r", Match(paths=paths), (Target("a"),))


def ask(path: bytes, method: bytes = b"GET") -> RequestHead:
    return RequestHead.of(method, path)


@pytest.mark.parametrize(
    "path", [b"/", b"/api/hello", b"/health", b"/healthz", b"/livez", b"/readyz", b"/ping", b"/?a=b"]
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_probe_is_answered_here(path: bytes, method: bytes) -> None:
    """C33, C34: whoever asks; also beside routes for everything, or for an API."""
    for probes in (Probes(), Probes([route("/*")]), Probes([route("*")]), Probes([route("/v1/*", "/own")])):
        assert probes.answers(ask(path, method))
    status, headers, body = answer_to(ask(path), draining=False)
    assert (status, body) == (200, b'{"status":"ok","service":"velox"}\n')
    assert (b"content-type", b"application/json") in headers


@pytest.mark.parametrize("asked", [(b"POST", b"/"), (b"GET", b"/v1/models"), (b"GET", b"/health/x"), (b"GET", b"//")])
def test_other_requests_are_none(asked: tuple[bytes, bytes]) -> None:
    assert not Probes().answers(ask(asked[1], asked[0]))


def test_path_that_a_route_names_is_its_own() -> None:
    """Somebody wants the answer of an upstream: by the path itself, or by a pattern of it."""
    probes = Probes([route("/health"), route("/api/*")])
    assert not probes.answers(ask(b"/health")) and not probes.answers(ask(b"/api/hello"))
    assert probes.answers(ask(b"/healthz"))
    assert probes == Probes([route("/health", "/api/hello")]) != Probes()


def test_readiness_ends_with_the_drain() -> None:
    """A load balancer then sends nothing more; the process is alive all the same."""
    assert answer_to(ask(b"/readyz"), draining=True)[0] == 503
    assert answer_to(ask(b"/healthz"), draining=True)[0] == 200
