"""One measurement of one gateway: as many requests as it takes, streamed answers, or requests at a fixed rate.

Knows: when the clock and the CPU time are read. Does not know: who is compared with whom.

CPU time is that of a window in the middle of the load, with as much begun as ended: what was begun before it and what
ends after it are alike, however slow the gateway is. What was done in it is counted by the upstream.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import LoadError, outcome, start_open_loop, start_streams, start_wrk, stop
from bench.servers import Server, get

__all__ = ["Target", "at_rate", "n_answered", "saturate", "split", "stream", "wait_until_idle"]

_REQUESTS: Final = re.compile(rb"requests\s+\d+ \d+ (\d+)")
# wrk needs a moment until all its connections are busy.
_SETTLE_S: Final = 0.4
_MANY: Final = 500
_SETTLE_MANY_S: Final = 1.0
# The longest that wrk runs without being stopped; no measurement takes so long.
_WRK_S: Final = 120.0
_IDLE_S: Final = 5.0
_LOOK_S: Final = 0.05
_BUSY: Final = 0.15


@dataclass(frozen=True, slots=True)
class Target:
    """Who is measured. server: None: the upstream itself, without a gateway, whose CPU time is nobody's cost.

    upstream: the port on which the upstream says how much it has answered; 0: there is nothing to ask.
    """

    port: int
    server: Server | None
    upstream: int

    def cpu_s(self) -> float:
        return self.server.cpu_s() if self.server else 0.0

    def user_system(self) -> tuple[int, int]:
        return self.server.user_system() if self.server else (0, 0)

    def check(self) -> None:
        """Raise RuntimeError if the gateway has ended."""
        if self.server:
            self.server.check()


def n_answered(upstream: int) -> int:
    """Return how many requests an upstream has answered so far, this one included: an nginx, or bench.upstream."""
    status, page = get(upstream, "/status")
    found = _REQUESTS.search(page)
    if status == 200 and found is not None:
        return int(found[1])
    return int(json.loads(get(upstream, "/count")[1])["requests"])


def saturate(
    target: Target,
    requests: Path,
    *,
    connections: int,
    seconds: float,
    cores: Sequence[int],
    tolerant: bool = False,
) -> dict[str, float]:
    """Send the requests of a file on so many connections, as fast as they are answered. Raises LoadError.

    tolerant: failed requests are told, as `errors` and `error_share`, and do not end the measurement.
    """
    settle_s = _SETTLE_MANY_S if connections >= _MANY else _SETTLE_S
    load = start_wrk(target.port, requests, seconds=_WRK_S, connections=connections, core=cores[0], cores=cores)
    try:
        time.sleep(settle_s)
        from_s, cpu_s, ticks, n = time.monotonic(), target.cpu_s(), target.user_system(), n_answered(target.upstream)
        time.sleep(seconds)
        window_s, cpu_s = time.monotonic() - from_s, target.cpu_s() - cpu_s
        ticks, n = _less(target.user_system(), ticks), n_answered(target.upstream) - n - 1
    finally:
        stop(load)
    done = outcome(load, seconds=settle_s + seconds)
    target.check()
    wait_until_idle(target)
    if n <= 0 or not done["requests"]:
        raise LoadError(f"nothing was answered in {window_s:.1f} s")
    if done["errors"] and not tolerant:
        raise LoadError(f"{done['errors']:.0f} of {done['requests']:.0f} requests failed")
    found = {"per_s": n / window_s, "p50_ms": done["p50_ms"], "p99_ms": done["p99_ms"], "errors": done["errors"]}
    if tolerant:
        found["error_share"] = done["errors"] / done["requests"]
    if target.server:
        found |= split(cpu_s / n * 1e6, ticks) | {"busy": cpu_s / window_s}
    return found


def stream(
    target: Target, *, streams: int, settle_s: float, seconds: float, core: int, chunks: int = 0
) -> dict[str, float]:
    """Read so many streamed answers at once; what a chunk costs, and how late it comes. Raises LoadError.

    chunks: of each answer, if what counts is a whole one instead of a chunk.
    """
    pids = target.server.pids if target.server else []
    load = start_streams(target.port, streams=streams, settle_s=settle_s, seconds=seconds, pids=pids, core=core)
    done = outcome(load, seconds=settle_s + seconds)
    target.check()
    wait_until_idle(target)
    if done["errors"]:
        raise LoadError(f"{done['errors']:.0f} streamed answers failed or were cut")
    found = {key: value for key, value in done.items() if key.endswith("_ms")}
    each = chunks or 1
    found |= {"errors": 0.0, "per_s": done["chunks_per_s"] / each}
    if target.server:
        found |= split(done["cpu_s"] / done["chunks"] * each * 1e6, (round(done["user"]), round(done["system"])))
        found |= {"busy": done["cpu_s"] / done["seconds"]}
        if done["writes"]:
            found["chunks_per_write"] = done["chunks"] / done["writes"]
    return found


def at_rate(
    target: Target, *, rate: float, seconds: float, connections: int, core: int
) -> tuple[dict[str, float], list[float]]:
    """Send small requests at a fixed mean rate; return figures, and all latencies in ms. Raises LoadError."""
    load = start_open_loop(target.port, rate=rate, seconds=seconds, connections=connections, core=core, samples=True)
    done: dict[str, object] = dict(outcome(load, seconds=seconds))
    target.check()
    wait_until_idle(target)
    latencies = done.pop("latencies_ms")
    assert isinstance(latencies, list), "samples were asked for"
    if done["errors"]:
        raise LoadError(f"{done['errors']} of {rate * seconds:.0f} requests failed, or had no answer in time")
    return {name: float(value) for name, value in done.items() if isinstance(value, int | float)}, latencies


def split(cpu_us: float, ticks: tuple[int, int]) -> dict[str, float]:
    """Return CPU time as a whole, and its parts in user mode and in the kernel. ticks: in what proportion."""
    share = ticks[0] / sum(ticks) if sum(ticks) else 0.0
    return {"cpu_us": cpu_us, "cpu_user_us": cpu_us * share, "cpu_system_us": cpu_us * (1 - share)}


def wait_until_idle(target: Target, now: Callable[[], float] = time.monotonic) -> None:
    """Wait until the gateway has done what was left over: the next one is measured on the same core."""
    until_s = now() + _IDLE_S
    while target.server and now() < until_s:
        before_s = target.cpu_s()
        time.sleep(_LOOK_S)
        if target.cpu_s() - before_s < _BUSY * _LOOK_S:
            return


def _less(after: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]
