"""Throughput against workers: Velox and nginx with one, two, four ... workers, one core each.

Knows: which cores who gets. Does not know: how throughput is measured.

Load and upstream get the cores that the workers leave. Where none is left they share the last one with a worker: then
the figure is what the machine does as a whole, and less than the workers could.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.compare.progress import Progress
from bench.load import LoadError
from bench.machine import Cores
from bench.measures import Target, saturate
from bench.rounds import rotated
from bench.servers import Servers
from bench.wrk_requests import write_requests

__all__ = ["Share", "measure", "plan_s", "shares"]

_CONNECTIONS: Final = 32  # a worker
_AROUND_S: Final = 0.75
_START_S: Final = 0.5


class Share(NamedTuple):
    """Who gets which cores. The last of `workers` is among `rest` too where none is left over."""

    workers: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        return bool(set(self.workers) & set(self.rest))


def shares(cores: Sequence[int]) -> list[Share]:
    """Return how the cores are shared with 1, 2, 4 ... workers and as many as there are cores."""
    n = len(cores)
    numbers = sorted({n} | {1 << power for power in range(n.bit_length()) if 1 << power <= n})
    return [Share(tuple(cores[:w]), tuple(cores[w:]) or (cores[-1],)) for w in numbers]


def plan_s(cores: Sequence[int], n_rounds: int, seconds: float) -> float:
    """Return how long it takes, about."""
    return 2 * len(shares(cores)) * ((n_rounds + 1) * (seconds + _AROUND_S) + _START_S)


def measure(
    folder: Path, cores: Cores, progress: Progress, *, n_rounds: int, seconds: float
) -> dict[str, list[tuple[int, float]]]:
    """Return subject -> (workers, requests a second). Raises LoadError, RuntimeError, OSError."""
    folder.mkdir()
    requests = write_requests(folder / "requests")
    found: dict[tuple[str, int], list[float]] = {}
    with Servers(folder, cores) as servers:
        targets: dict[tuple[str, int], tuple[Target, Share]] = {}
        for share in shares(cores.every):
            n = len(share.workers)
            origin = servers.nginx_upstream(cores=share.rest)
            velox = servers.velox(f"http://127.0.0.1:{origin.http1}", "off", cores=share.workers)
            nginx = servers.nginx_proxy(origin.http1, buffering="on", cores=share.workers)
            for name, server in (("Velox", velox), ("nginx", nginx)):
                targets[name, n] = Target(server.port, server, origin.http1), share
        for turn in range(-1, n_rounds):
            for index in rotated([str(i) for i in range(len(targets))], max(turn, 0)):
                (name, n), (target, share) = list(targets.items())[int(index)]
                progress.step(f"{n} workers, round {turn + 1} of {n_rounds}: {name}", seconds + _AROUND_S)
                figures = saturate(target, requests, connections=_CONNECTIONS * n, seconds=seconds, cores=share.rest)
                if turn >= 0:
                    found.setdefault((name, n), []).append(figures["per_s"])
    table: dict[str, list[tuple[int, float]]] = {}
    for (name, n), values in sorted(found.items()):
        table.setdefault(name, []).append((n, median(values)))
    return table


# What a failed measurement raises, for those who go on without it.
FAILURES: Final = (LoadError, RuntimeError, OSError)
