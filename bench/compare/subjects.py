"""Who is measured: nothing at all ("direct"), the peers, and Velox in several ways. And how each is started.

Knows: names, what each is started with. Does not know: what is measured.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from bench import peers
from bench.all_on import settings_up_to
from bench.machine import Cores
from bench.payloads import API_KEY
from bench.peers import Origin, PeerError
from bench.servers import Server, Servers
from bench.traffic import KEYS

__all__ = ["DIRECT", "NGINX", "VELOX", "Subject", "install", "started", "subjects"]

DIRECT: Final = "direct"
NGINX: Final = "nginx"
VELOX: Final = "Velox"
_HTTP2: Final = "Velox, HTTP/2 up"
_TLS: Final = "Velox, HTTP/2 over TLS up"
_COMPILED: Final = "Velox, compiled"
# Behind the name of a way in which Velox runs: everything of bench/all_on.py is on.
_ALL_ON: Final = ", all on"
_FEATURES: Final = (
    "client keys (101), rate limit that is never reached, metrics, request timing, upstream key; access log off"
)

_EVERYTHING: Final = (
    "client keys (101), rpm and tpm for each, ledger in SQLite, prices, a budget in dollars for each key and "
    "one for the gateway, metrics, upstream key; access log at its default"
)

_Upstream: TypeAlias = Literal["http1", "http2", "tls"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One that is measured. upstreams: in front of which kinds of upstream. workers: processes that serve.

    streams_by: what measures its streams instead; "": this does. tree: the folder of another Velox; None: this one.
    """

    name: str
    kind: Literal["direct", "proxy", "llm", "velox"]
    package: str
    features: str
    upstreams: frozenset[str]
    workers: int = 1
    streams_by: str = ""
    tree: Path | None = None

    def described(self) -> dict[str, str]:
        """Return what the document says of it."""
        return {"kind": self.kind, "package": self.package, "features": self.features}


def subjects(
    cores: Cores, only: Sequence[str] = (), against: Path | None = None, compiled: Path | None = None
) -> list[Subject]:
    """Return all that are measured. only: the names of peers that are; empty: all. against: another tree of Velox.

    compiled: a checkout whose modules of the usual request are compiled (`make compiled`).

    Raises ValueError.
    """
    unknown = set(only) - {each.name for each in peers.PEERS}
    if unknown:
        raise ValueError(f"no such peer: {', '.join(sorted(unknown))}")
    package = f"this commit, CPython {platform.python_version()}"
    n = len(cores.every)
    everywhere = frozenset(("http1", "http2", "tls"))
    found = [Subject(DIRECT, "direct", "", "no gateway: the client asks the upstream, without TLS", everywhere)]
    found += [
        Subject(each.name, each.kind, each.package, each.features, each.upstreams)
        for each in peers.PEERS
        if not only or each.name in only
    ]
    found += [
        Subject(VELOX, "velox", package, f"{_FEATURES}; 1 worker, HTTP/1.1 up", frozenset(("http1", "tls"))),
        Subject(_HTTP2, "velox", package, f"{_FEATURES}; 1 worker, HTTP/2 up", frozenset(("http1", "http2"))),
        Subject(
            _TLS,
            "velox",
            package,
            f"{_FEATURES}; 1 worker, HTTP/2 in TLS 1.3 up",
            frozenset(("http1", "tls")),
            streams_by="bench.tls_cost",
        ),
    ]
    found.append(_all_on(VELOX, package))
    if compiled is not None:
        found += _both_ways(_COMPILED, f"{package}, compiled", compiled)
        found.append(_all_on(_COMPILED, f"{package}, compiled", tree=compiled))
    if against is not None:
        found += _both_ways(f"Velox in {against.name}", str(against), against)
    if n > 1:
        shared = f"{n} workers, HTTP/1.1 up, on the cores that load and upstream use too"
        found.append(
            Subject(f"Velox, {n} workers", "velox", package, f"{_FEATURES}; {shared}", frozenset(("http1",)), n)
        )
        found.append(_all_on(f"Velox, {n} workers", package, n_workers=n))
    return found


def _all_on(name: str, package: str, n_workers: int = 1, tree: Path | None = None) -> Subject:
    workers = "1 worker" if n_workers == 1 else f"{n_workers} workers, on the cores that load and upstream use too"
    http1 = frozenset(("http1",))
    return Subject(f"{name}{_ALL_ON}", "velox", package, f"{_EVERYTHING}; {workers}", http1, n_workers, tree=tree)


def _both_ways(name: str, package: str, tree: Path) -> list[Subject]:
    one_way = frozenset(("http1",))
    names = (name, f"{name}{_HTTP2.removeprefix(VELOX)}")
    return [Subject(each, "velox", package, f"{_FEATURES}; 1 worker", one_way, tree=tree) for each in names]


def install(chosen: Sequence[Subject], say: Callable[[str], None], store: Path = peers.STORE) -> dict[str, str]:
    """Install the peers among the subjects; return which could not be, and why."""
    missing: dict[str, str] = {}
    for subject in chosen:
        if subject.kind in ("proxy", "llm"):
            try:
                peers.install(subject.name, store, say)
            except PeerError as error:
                missing[subject.name] = str(error)
                say(f"{subject.name} is missing: {error}")
    return missing


def started(
    subject: Subject, servers: Servers, cores: Cores, origin: Origin, upstream: _Upstream, *, streaming: bool
) -> tuple[Server, float]:
    """Start a gateway; return it, and how long it took until it was ready. Raises PeerError.

    origin: with the port for HTTP/2 in TLS as `tls` where Velox asks for HTTP/2.
    """
    begin_s = time.monotonic()
    try:
        if subject.kind == "velox":
            server = _velox(subject, servers, cores, origin, upstream)
        else:
            server = peers.start(subject.name, servers, origin, upstream=upstream, streaming=streaming)
    except (RuntimeError, OSError) as error:
        raise PeerError(f"did not start: {error}") from error
    return server, time.monotonic() - begin_s


def _velox(subject: Subject, servers: Servers, cores: Cores, origin: Origin, upstream: _Upstream) -> Server:
    own = cores.every[: subject.workers] if subject.workers > 1 else ()
    if subject.name == _HTTP2 or (subject.tree is not None and subject.name.endswith("HTTP/2 up")):
        return servers.velox(f"http://127.0.0.1:{origin.http2}", "on", tree=subject.tree)
    if subject.name == _TLS:
        return servers.velox(f"https://127.0.0.1:{origin.tls}", "on")
    if upstream == "tls":
        return servers.velox(f"https://127.0.0.1:{origin.tls}", "off", cores=own)
    more: dict[str, str] = {}
    if subject.name.endswith(_ALL_ON):
        ledger = servers.folder_of(subject.name.replace(", ", "-").replace(" ", "-"))
        more = settings_up_to("budgets", ",".join((API_KEY, *KEYS)), ledger)
    return servers.velox(f"http://127.0.0.1:{origin.http1}", "off", more=more, cores=own, tree=subject.tree)
