"""How long a small request at one upstream takes while another upstream, or a client, is up to no good.

All share the cores of one machine, and some machines have two. So each request is followed by one through another
gateway that is not attacked, the control; and what a worker waited for a core meanwhile, as the kernel counts it, is
taken from both times. What stays is what the worker did, or waited for inside itself. Attackers and floods have a tenth
of the weight of all else: with less, a busy machine gives them nothing, and nothing is measured.

Knows: the gateway of one worker, its two upstreams, how a phase is measured. Does not know: any attack.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.canary.attackers import KEY
from tests.e2e.harness import VeloxProcess
from tests.e2e.routed import named, routed
from tests.e2e.watching import until

__all__ = ["Phase", "attacked", "attacker", "beside", "control", "flooding"]

_BODY: Final = json.dumps({"model": "canary", "messages": [{"role": "user", "content": "hi"}]}).encode()
_KEY: Final = "sk-of-the-canary-0123456789"
_FIELDS: Final = {"content-type": "application/json", "authorization": f"Bearer {_KEY}"}
_PAUSE_S: Final = 0.005
# An attack has begun: so much was read by the worker, or worked, where nothing is sent.
_BEGUN_BYTES: Final = 64 * 1024
_BEGUN_MS: Final = 20.0


@dataclass(frozen=True)
class Phase:
    """What requests through one gateway took, in order, in milliseconds.

    waited_ms: of it, how long the worker waited for a core. bad: statuses other than 200, and failures. n_received,
    grown_bytes: what the worker read meanwhile, and by how much its memory was larger at most than before.
    """

    took_ms: Sequence[float]
    waited_ms: Sequence[float]
    bad: Sequence[str]
    n_received: int = 0
    grown_bytes: int = 0

    def percentile(self, percent: float) -> float:
        """Return how many milliseconds so many of the requests took at most."""
        return _percentile(self.took_ms, percent)

    def own_percentile(self, percent: float) -> float:
        """Return the same, without what the worker waited for a core."""
        pairs = zip(self.took_ms, self.waited_ms, strict=True)
        return _percentile([max(0.0, took - waited) for took, waited in pairs], percent)


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class _Canary:
    """A client of one gateway, that asks on one connection."""

    def __init__(self, velox: VeloxProcess) -> None:
        (self._pid,) = velox.worker_pids()
        self._connection: Final = http.client.HTTPConnection("127.0.0.1", velox.port, timeout=30)
        self._took_ms: Final[list[float]] = []
        self._waited_ms: Final[list[float]] = []
        self._bad: Final[list[str]] = []
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # the highest memory is that from now on
        self._first_received: Final = _received(self._pid)
        self._first_bytes: Final = _memory(self._pid, "VmRSS")

    def ask(self) -> None:
        began_s, waited_ms = time.monotonic(), _waited_ms(self._pid)
        try:
            self._connection.request("POST", "/v1/chat/completions", _BODY, _FIELDS)
            reply = self._connection.getresponse()
            reply.read()
            if reply.status != 200:
                self._bad.append(str(reply.status))
        except (OSError, http.client.HTTPException) as exc:
            self._bad.append(type(exc).__name__)
            self._connection.close()
        self._took_ms.append((time.monotonic() - began_s) * 1000)
        self._waited_ms.append(_waited_ms(self._pid) - waited_ms)
        time.sleep(_PAUSE_S)

    def end(self) -> Phase:
        self._connection.close()
        return Phase(
            self._took_ms,
            self._waited_ms,
            self._bad,
            _received(self._pid) - self._first_received,
            _memory(self._pid, "VmHWM") - self._first_bytes,
        )


def beside(velox: VeloxProcess, control: VeloxProcess, seconds: float) -> tuple[Phase, Phase]:
    """Send a small request every few milliseconds, through one gateway and through the other in turns."""
    canaries = _Canary(velox), _Canary(control)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for canary in canaries:
            canary.ask()
    return canaries[0].end(), canaries[1].end()


def _waited_ms(pid: int) -> float:
    """Return how long a process's first thread has waited for a core, while it could have run (proc(5): schedstat)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e6


def _ran_ms(pid: int) -> float:
    """Return how long a process's first thread has run (proc(5): schedstat)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def _received(pid: int) -> int:
    """Return how many bytes a process has read, from sockets mostly."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@contextlib.contextmanager
def flooding(kind: str) -> Iterator[str]:
    """Start an upstream that floods; return its origin."""
    with _child("tests.canary.floods", kind, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextlib.contextmanager
def control() -> Iterator[VeloxProcess]:
    """Run a gateway of one worker with a simulator of its own, which nobody attacks."""
    with named("canary") as sims:
        config = {"upstreams": [sims["canary"]], "api_keys": [{"name": "canary", "key": _KEY}]}
        with routed(config, retries="0") as velox:
            yield velox


@contextlib.contextmanager
def attacked(
    origin: str, provider: str | None, *, launcher: tuple[str, ...] = (), **settings: str
) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker: `canary` is at a simulator, `attack` at this origin. provider: of that.

    launcher: see VeloxProcess.

    The attack's key is for its model alone, so that what it sends is looked through.
    """
    attack: dict[str, Any] = {"name": "attack", "origin": origin}
    if provider is not None:
        attack["provider"] = provider
    with named("canary") as sims:
        config = {
            "upstreams": [sims["canary"], attack],
            "routes": [
                {"name": "canary", "match": {"models": ["canary"]}, "to": ["canary"]},
                {"name": "attack", "to": ["attack"]},
            ],
            "api_keys": [
                {"name": "canary", "key": _KEY},
                {"name": "attack", "key": KEY, "models": ["attack"], "endpoints": ["all"]},
            ],
        }
        key = (
            {}
            if provider is None
            else {"ANTHROPIC_API_KEY": "sk-ant-x", "GEMINI_API_KEY": "x", "OPENAI_API_KEY": "sk-x"}
        )
        with routed(config, launcher=launcher, retries="0", **settings, **key) as velox:
            yield velox


@contextlib.contextmanager
def attacker(name: str, velox: VeloxProcess, seconds: float) -> Iterator[None]:
    """Have a client attack the gateway for so long, from when its attack has begun."""
    (pid,) = velox.worker_pids()
    before, ran_ms = _received(pid), _ran_ms(pid)
    with _child("tests.canary.attackers", name, str(velox.port), str(seconds), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        until(
            lambda: _received(pid) - before > _BEGUN_BYTES or _ran_ms(pid) - ran_ms > _BEGUN_MS,
            f"the attack has begun: {name}",
        )
        yield


@contextlib.contextmanager
def _child(module: str, *arguments: str, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
