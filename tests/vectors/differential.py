"""The vectors through Velox to real servers, and through real proxies to Velox: one request stays one request.

Knows: who stands where, what each has seen, when two of them disagree. Does not know: configurations (proxies.py), or
how a vector is played (play.py).

To a server: what Velox refuses does not get there; of what it passes, the server sees method, target, fields and body
as the client meant them, once. From a proxy: Velox reads no request that the proxy has not sent, and whoever comes next
on a connection that is shared gets an answer of his own.
"""

from __future__ import annotations

import collections
import contextlib
import re
import select
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.raw_http import read_reply
from tests.vectors.play import COMMON, Gateway
from tests.vectors.proxies import SERVERS, PlainServer
from tests.vectors.recorder import Recorder
from tests.vectors.table import VECTORS
from tests.vectors.vector import Door, Pause, Seen, Vector, request

__all__ = ["BEHIND_PROXY", "TO_SERVER", "Report", "from_proxy", "to_server"]

# Those that a plain gateway is for. A body of 10 MB says nothing about where requests end.
# A proxy that is not told to leaves WebSockets out.
TO_SERVER: Final = tuple(
    vector
    for vector in VECTORS
    if vector.door is Door.USUAL and len(vector.wire) < 1_000_000 and b"/v1/realtime" not in vector.wire
)
# Bodies that are read come behind: what a proxy could read otherwise is in heads and chunks.
BEHIND_PROXY: Final = tuple(v for v in TO_SERVER if b"/v1/chat/completions" not in v.wire)
# How long a proxy may think before a client that gets no answer leaves; it may be waiting for more.
_PATIENCE_S: Final = 0.25
_TIMEOUT_S: Final = 10.0
_CODES: Final = range(200, 400)
# Names that servers may drop: neither a letter, a digit nor `-`.
_PLAIN_NAME: Final = re.compile(rb"[a-z0-9-]+")
_ORIGIN: Final = re.compile(r"\A[a-z]+:(?://[^/]*)?", re.IGNORECASE)
# What ASGI can't tell an application: a query that is empty from none.
_NOT_FOR: Final = {"uvicorn": ("B-18-EMPTY-QUERY",), "uvicorn-h11": ("B-18-EMPTY-QUERY",)}


@dataclass
class Report:
    """What came of it. n_requests: those that got to the end; bad: by vector, what was wrong."""

    name: str
    n_vectors: int = 0
    n_requests: int = 0
    bad: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _View:
    """A request as the last one who read it saw it."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes | None


class _Line(Gateway):
    """A gateway with a real server behind it, and the recorder behind that; uvicorn has none, and is its own log."""

    def __init__(self, velox: VeloxProcess, server: PlainServer, recorder: Recorder) -> None:
        super().__init__(velox, recorder)
        self._server: Final = server
        self._n_seen = 0
        self.n_requests = 0

    def forget(self) -> None:
        self.upstream.take()
        if not self._server.is_proxy:
            self._n_seen = len(self._server.requests())

    def wrong_upstream(self, wanted: Sequence[Seen]) -> Iterator[str]:
        got = self._views()
        self.n_requests += len(got)
        if len(got) != len(wanted):
            yield f"{len(got)} requests behind it, not {len(wanted)}: {[view.target[:60] for view in got]}"
        for view, seen in zip(got, wanted, strict=False):
            if (view.method, view.target, view.body) != (seen.method, seen.target, seen.body):
                yield f"seen as {view.method!r} {view.target[:60]!r} {(view.body or b'')[:60]!r}"
            lost = [pair for pair in seen.fields if pair not in view.fields and _PLAIN_NAME.fullmatch(pair[0])]
            if lost:
                yield f"fields lost: {lost}"
            yield from _wrong_framing(view)

    def _views(self) -> list[_View]:
        if self._server.is_proxy:
            return [_View(each.method, each.target, each.fields, each.body) for each in self.upstream.take()]
        return [
            _View(
                each.method.encode(),
                each.target.encode("latin-1"),
                tuple((name.encode(), value.encode("latin-1")) for name, value in each.fields),
                each.body,
            )
            for each in self._server.requests()[self._n_seen :]
            if (each.method, each.target) != ("HEAD", "/v1/models")  # a warm-up, whenever a connection is made
        ]

    def wrong_log(self) -> Iterator[str]:
        """Yield what the server's own log counts otherwise; it may write a little later."""
        if self._server.is_proxy:
            wanted = self.upstream.n_requests
            with contextlib.suppress(AssertionError):
                until(lambda: len(self._server.requests()) >= wanted, "the server has logged all")
            logged = self._server.requests()
            if len(logged) != wanted:
                yield f"it logged {len(logged)} requests, and passed {wanted} on"
            yield from (f"it answered {each}" for each in logged if each.status not in _CODES)


def _wrong_framing(view: _View) -> Iterator[str]:
    """Yield if the fields that frame a body do not say how long it is, once."""
    lengths = [value for name, value in view.fields if name == b"content-length"]
    codings = [value for name, value in view.fields if name == b"transfer-encoding"]
    right = lengths == [b"%d" % len(view.body or b"")] or (not lengths and (not view.body or codings == [b"chunked"]))
    if not right or len(lengths) + len(codings) > 1:
        yield f"framed by {lengths} {codings}, with {len(view.body or b'')} bytes"


@contextlib.contextmanager
def _gateway(origin: str) -> Iterator[VeloxProcess]:
    with VeloxProcess({**COMMON, "VELOX_UPSTREAM_ORIGIN": origin}) as velox:
        velox.wait_warm()
        yield velox


def to_server(name: str, vectors: Sequence[Vector] = TO_SERVER) -> Report:
    """Play vectors through Velox to a server."""
    report = Report(name)
    with Recorder() as recorder, SERVERS[name](recorder.url) as server, _gateway(server.url) as velox:
        line = _Line(velox, server, recorder)
        for vector in vectors:
            if vector.id in _NOT_FOR.get(name, ()):
                continue
            report.n_vectors += 1
            if problems := line.play(vector).problems:
                report.bad[vector.id] = problems
        if problems := list(line.wrong_log()):
            report.bad["its log"] = problems
        report.n_requests = line.n_requests
    return report


def from_proxy(name: str, vectors: Sequence[Vector] = BEHIND_PROXY) -> Report:
    """Send vectors to a proxy that passes them on to Velox."""
    report = Report(name)
    sent: collections.Counter[tuple[str, str]] = collections.Counter()
    with Recorder() as recorder, _gateway(recorder.url) as velox, SERVERS[name](velox.base_url) as proxy:
        for number, vector in enumerate(vectors):
            _send(proxy.port, vector)
            victim = f"/v1/victim-{number}"
            problems = list(_wrong_for_the_next(proxy.port, victim))
            for each in recorder.take():
                if each.broken:
                    problems.append(f"the upstream got {each.wire[:200]!r}")
                sent[each.method.decode(), _plain(each.target.decode("latin-1"))] += 1
            if problems:
                report.bad[vector.id] = problems
        report.n_vectors, report.n_requests = len(vectors), sent.total()
        if problems := list(_disagreement(proxy, velox, sent)):
            report.bad["both logs"] = problems
    return report


def _plain(target: str) -> str:
    """Return a target in one spelling: a proxy may encode, and drop an origin, where its log does not."""
    return unquote(_ORIGIN.sub("", target))


def _send(port: int, vector: Vector) -> None:
    """Send a vector as one who does not wait for long; what comes back is the proxy's business."""
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as sock, contextlib.suppress(OSError):
        for part in vector.sends:
            if isinstance(part, Pause):
                _drain(sock)
            else:
                sock.sendall(part)
        _drain(sock)


def _drain(sock: socket.socket) -> None:
    """Read until nothing comes for a moment."""
    wait_s = _PATIENCE_S
    while select.select([sock], [], [], wait_s)[0] and sock.recv(65_536):
        wait_s = 0.02  # the rest of the answer is on its way


def _wrong_for_the_next(port: int, target: str) -> Iterator[str]:
    """Ask as another client of the proxy; yield if the answer is somebody else's."""
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as sock:
        try:
            sock.sendall(request(f"GET {target} HTTP/1.1".encode()))
            reply = read_reply(sock)
        except (OSError, ValueError) as error:
            yield f"the next client: {type(error).__name__} {error}"
            return
    if (reply.status, reply.header("x-saw")) != (200, f"GET {target}"):
        yield f"the next client got {reply.status} for {reply.header('x-saw')}"


def _disagreement(proxy: PlainServer, velox: VeloxProcess, seen: collections.Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield which requests Velox has read that the proxy never sent, once both have written what they know."""

    def extra() -> collections.Counter[tuple[str, str]]:
        logged = ((each.method, _plain(each.target)) for each in proxy.requests() if each.forwarded)
        forwarded = collections.Counter(logged)
        return seen - forwarded

    def n_too_many() -> int:
        n_forwarded = sum(each.forwarded for each in proxy.requests())
        return len(velox.access_log()) - n_forwarded

    with contextlib.suppress(AssertionError):
        until(lambda: not extra() and n_too_many() <= 0, "the proxy has logged all")
    if extra():
        yield f"the upstream saw what the proxy has not sent: {dict(extra())}"
    if n_too_many() > 0:
        yield f"Velox read {n_too_many()} requests more than the proxy has sent"
