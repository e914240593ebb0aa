"""Where the storm takes place: its upstream and a gateway, as processes; what they hold, from outside.

Knows: how both start, what counts as left behind. Does not know: what is asked (faults.py, cancels.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, cast

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.upstreams import make_certificates
from tests.e2e.watching import until

__all__ = ["KINDS", "Call", "Ground", "Held", "Kind", "StormUpstream", "ground"]

Kind = Literal["http1", "ngh2", "h2", "http1-tls", "ngh2-tls", "h2-tls"]
KINDS: Final[tuple[Kind, ...]] = ("http1", "ngh2", "h2")
_SETTLE_S: Final = 20.0
# Python's and the kernel's own: memory that is free, but not given back.
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Call:
    """What the upstream knows of one mark; times are monotonic seconds, 0.0: not. is_hit: by another's fault."""

    n_attempts: int
    began_s: float
    left_s: float
    ended_s: float
    is_hit: bool


class StormUpstream:
    """The upstream's process."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Mapping[str, int]) -> None:
        self._process: Final = process
        self.ports: Final = ports

    def report(self, line: bytes = b"report\n") -> dict[str, object]:
        """Ask what it has seen; b"forget\\n" clears it first."""
        with socket.create_connection(("127.0.0.1", self.ports["control"]), timeout=30) as sock:
            sock.sendall(line)
            found = b""
            while piece := sock.recv(1 << 20):
                found += piece
        return cast("dict[str, object]", json.loads(found))

    def count(self, name: str) -> int:
        """Return one of the report's counts: open, accepted, playing, warmups."""
        return int(cast(int, self.report()[name]))

    def calls(self) -> dict[str, Call]:
        """Return what it knows of each mark."""
        calls = cast("dict[str, tuple[int, float, float, float, bool]]", self.report()["calls"])
        return {mark: Call(*fields) for mark, fields in calls.items()}

    def check(self) -> None:
        """Raise AssertionError if it has ended or failed."""
        assert self._process.poll() is None, "the storm's upstream has ended"


@dataclass(frozen=True, slots=True)
class Held:
    """What the gateway's workers hold. n_upstream: connections that the upstream has open."""

    n_fds: int
    n_upstream: int
    rss_bytes: int


class Ground:
    """One upstream and one gateway."""

    def __init__(self, kind: Kind, upstream: StormUpstream, velox: VeloxProcess) -> None:
        self.kind: Final = kind
        self.upstream: Final = upstream
        self.velox: Final = velox

    def held(self) -> Held:
        """Return what is held now."""
        pids = self.velox.worker_pids()
        n_fds = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        rss = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for pid in pids)
        return Held(n_fds, self.upstream.count("open"), rss)

    def wait_quiet(self) -> None:
        """Wait until nothing is in flight anywhere: then every request has been accounted for."""
        for sample in ("velox_inflight_requests", 'velox_queue_depth{class="normal"}', "velox_upstream_streams"):
            self.velox.wait_metric(sample, lambda value: value == 0, _SETTLE_S)
        until(lambda: self.upstream.count("playing") == 0, "the upstream was told of every end", _SETTLE_S)

    def wait_descriptors(self, before: Held, *, n_dials: int = 0) -> Held:
        """Wait until descriptors are back: those of before, and one for each upstream connection more.

        n_dials: connections that the gateway may still be trying to make, for those that come next.
        """

        def is_back() -> bool:
            now = self.held()
            return now.n_fds - before.n_fds <= max(0, now.n_upstream - before.n_upstream) + n_dials

        try:
            until(is_back, "", _SETTLE_S)
        except AssertionError:
            raise AssertionError(f"descriptors are not given back: {before} -> {self.held()}") from None
        return self.held()

    def check_log(self) -> None:
        """No line of the gateway's log may tell of a bug."""
        bugs = [line for line in self.velox.stderr.lines if "bug:" in line or "Traceback" in line]
        assert not bugs, "\n".join(bugs)


@contextlib.contextmanager
def ground(kind: Kind, env: Mapping[str, str], *, upstream_url: str = "") -> Iterator[Ground]:
    """Start both. env: settings of the gateway besides. upstream_url: where it goes instead of to the upstream."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files: list[str] = []
        settings = {"VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0", "VELOX_ACCESS_LOG": "all"}
        protocol, _, tls = kind.partition("-")
        if tls:
            made = make_certificates(Path(folder))
            files = ["--tls", made.cert_file, made.key_file]
            settings["VELOX_UPSTREAM_CA_FILE"] = made.ca_file
        upstream = stack.enter_context(_upstream(files))
        if protocol != "http1":
            settings["VELOX_HTTP2_ENGINE"] = protocol
        settings["VELOX_UPSTREAM_HTTP2"] = "off" if protocol == "http1" else "on"
        port = upstream.ports["http1" if protocol == "http1" else "http2"]
        settings["VELOX_UPSTREAM_ORIGIN"] = upstream_url or f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        velox = stack.enter_context(VeloxProcess({**settings, **env}))
        if not upstream_url:
            velox.wait_warm()
        yield Ground(kind, upstream, velox)
        upstream.check()


@contextlib.contextmanager
def _upstream(args: list[str]) -> Iterator[StormUpstream]:
    command = [sys.executable, "-m", "tests.storm.upstream", *args]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        line = cast("IO[bytes]", process.stdout).readline()
        yield StormUpstream(process, json.loads(line))
    finally:
        process.kill()
        process.wait()
        cast("IO[bytes]", process.stdout).close()
