"""How long a small request at one upstream takes while another upstream, or a client, is up to no good.

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
from typing import Any, Final

from tests.canary.attackers import KEY
from tests.e2e.harness import VeloxProcess
from tests.e2e.routed import named, routed

__all__ = ["LARGE_PAGES", "Phase", "attacked", "flooding", "measure"]

_BODY: Final = json.dumps({"model": "canary", "messages": [{"role": "user", "content": "hi"}]}).encode()
_KEY: Final = "sk-of-the-canary-0123456789"
_FIELDS: Final = {"content-type": "application/json", "authorization": f"Bearer {_KEY}"}
LARGE_PAGES: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as deploy/velox.service has it
_PAUSE_S: Final = 0.005
_NICE: Final = 19  # of attackers and floods: on two cores the gateway and the canary are to get their turn


@dataclass(frozen=True)
class Phase:
    """took_ms: of each request, in order. bad: statuses other than 200, and failures."""

    took_ms: Sequence[float]
    bad: Sequence[str]

    def percentile(self, percent: float) -> float:
        """Return how many milliseconds so many of the requests took at most."""
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def measure(velox: VeloxProcess, seconds: float) -> Phase:
    """Send a small request every few milliseconds on one connection."""
    took: list[float] = []
    bad: list[str] = []
    until_s = time.monotonic() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", velox.port, timeout=30)
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", _BODY, _FIELDS)
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                bad.append(str(reply.status))
        except (OSError, http.client.HTTPException) as exc:
            bad.append(type(exc).__name__)
            connection.close()
        took.append((time.monotonic() - began_s) * 1000)
        time.sleep(_PAUSE_S)
    connection.close()
    return Phase(took, bad)


@contextlib.contextmanager
def flooding(kind: str) -> Iterator[str]:
    """Start an upstream that floods; return its origin."""
    with _child("tests.canary.floods", kind, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextlib.contextmanager
def attacked(
    origin: str, provider: str | None, *, launcher: tuple[str, ...] = (), **settings: str
) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker: `canary` is at a simulator, `attack` at this origin. provider: of that.

    launcher: see VeloxProcess. Its large bodies are in large pages, as those of the image and the service.

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
        with routed(config, launcher=launcher, retries="0", **LARGE_PAGES, **settings, **key) as velox:
            yield velox


@contextlib.contextmanager
def attacker(name: str, velox: VeloxProcess, seconds: float) -> Iterator[None]:
    """Have a client attack the gateway for so long."""
    with _child("tests.canary.attackers", name, str(velox.port), str(seconds)):
        yield


@contextlib.contextmanager
def _child(module: str, *arguments: str, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    command = ["nice", "-n", str(_NICE), sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdout=stdout)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
