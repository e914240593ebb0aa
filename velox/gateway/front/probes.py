"""Questions whether somebody is there: of load balancers, agents and people, at the port of the clients.

    Probes.answers()   whether a request is one of these, and not for an upstream
    answer_to()        what is sent back

Knows: the paths that such questions have. Does not know: upstreams; whether these can be reached, the admin listener
says (/readyz).

They come without a key, and once a second from each side. Passed on, they would be calls of a provider with its key. A
route that names such a path has it: then it is a request like any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from velox.heads import Headers, RequestHead
from velox.policy.patterns import matches
from velox.policy.routes.entries import RouteEntry
from velox.protocol.heads.date import http_date

__all__ = ["Probes", "answer_to"]

_ASKING: Final = frozenset({b"GET", b"HEAD"})
_ALIVE: Final = frozenset(
    {
        b"/",  # a browser; Claude Code, before its first request
        b"/api/hello",  # Claude Code
        *(b"/health", b"/healthz", b"/livez", b"/ping", b"/v1/health"),
        *(b"/health/liveliness", b"/health/liveness"),  # LiteLLM
    }
)
_READY: Final = frozenset({b"/readyz", b"/ready", b"/health/readiness"})
_ALL: Final = _ALIVE | _READY
_EVERYTHING: Final = frozenset({"*", "/*"})
_HERE: Final = b'{"status":"ok","service":"velox"}\n'
_LEAVING: Final = b'{"status":"draining","service":"velox"}\n'
_UNAVAILABLE: Final = 503


class Probes:
    """Those of one configuration. routes: what they name goes to their upstreams."""

    __slots__ = ("_paths",)

    def __init__(self, routes: Iterable[RouteEntry] = ()) -> None:
        named = {pattern for route in routes for pattern in route.match.paths} - _EVERYTHING
        self._paths: Final = frozenset(
            path for path in _ALL if not any(matches(pattern, path.decode("ascii")) for pattern in named)
        )

    def __repr__(self) -> str:
        return f"<Probes {len(self._paths)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Probes) and self._paths == other._paths

    def __hash__(self) -> int:
        return hash(self._paths)

    def answers(self, head: RequestHead) -> bool:
        """Say whether a request is answered here, to anybody."""
        return head.path in self._paths and head.method in _ASKING


def answer_to(head: RequestHead, *, draining: bool) -> tuple[int, Headers, bytes]:
    """Return status, headers and body. draining: no new request is for this process; so a readiness probe is told."""
    headers = [(b"content-type", b"application/json"), (b"date", http_date(int(time.time())))]
    if draining and head.path in _READY:
        return _UNAVAILABLE, headers, _LEAVING
    return 200, headers, _HERE
