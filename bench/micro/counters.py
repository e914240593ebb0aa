"""Counting one request: a counter with labels, and a histogram of how long it took.

Knows: how each is told of a request. Does not know: how it is kept or shown.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, values

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed, calls
from velox.errors import Reason
from velox.observe import series
from velox.observe.genai import DURATION_NS
from velox.observe.metrics import WorkerMetrics
from velox.shm.segment import Segment
from velox.types import Endpoint

__all__ = ["SUBJECT"]

_BOUNDS_S: Final = tuple(bound / 1e9 for bound in DURATION_NS)
_SAMPLE_NS: Final = 153_000_000


class _Tally(Protocol):
    """What requests are counted in."""

    def count(self) -> None:
        """Count one chat that went well and took 153 ms."""

    def refused(self) -> None:
        """Count one that was refused at the limit."""

    def read(self) -> tuple[float, float, float, float]:
        """Return how many went well, were refused, and took at most as long as 153 ms' bucket; and the time of all."""


class _Velox:
    def __init__(self) -> None:
        self._cells: Final = Segment(1, series.CELLS).metrics(0)
        self._metrics: Final = WorkerMetrics(self._cells)

    def count(self) -> None:
        self._metrics.count_request(Endpoint.CHAT, 200, None)
        self._metrics.duration[Endpoint.CHAT].observe(_SAMPLE_NS)

    def refused(self) -> None:
        self._metrics.count_request(Endpoint.CHAT, 429, Reason.RATE_LIMITED)

    def read(self) -> tuple[float, float, float, float]:
        family, reasons = series.REQUESTS.series(), (Reason.RATE_LIMITED.code,)
        counts = dict(zip(family, self._cells[series.REQUESTS.first : series.REQUESTS.end].tolist(), strict=True))
        good = sum(n for labels, n in counts.items() if not set(reasons) & set(labels))
        first = series.DURATION.first + Endpoint.CHAT * series.DURATION.stride
        buckets = self._cells[first : first + series.DURATION.stride].tolist()
        within = sum(n for bound, n in zip(DURATION_NS, buckets, strict=False) if bound <= _bucket_ns())
        return good, sum(counts.values()) - good, within, buckets[-1] / 1e9


class _Prometheus:
    """prometheus_client, asked for its labels each time."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        names = ("route", "class", "reason")
        self._requests: Final = Counter("bench_requests", "Requests.", names, registry=self._registry)
        self._duration: Final = Histogram(
            "bench_duration", "Seconds.", ("route",), buckets=_BOUNDS_S, registry=self._registry
        )

    def count(self) -> None:
        self._requests.labels("chat", "2xx", "").inc()
        self._duration.labels("chat").observe(_SAMPLE_NS / 1e9)

    def refused(self) -> None:
        self._requests.labels("chat", "4xx", "rate_limited").inc()

    def read(self) -> tuple[float, float, float, float]:
        get: Callable[..., Any] = self._registry.get_sample_value
        duration = {"route": "chat"}
        return (
            get("bench_requests_total", {"route": "chat", "class": "2xx", "reason": ""}),
            get("bench_requests_total", {"route": "chat", "class": "4xx", "reason": "rate_limited"}),
            get("bench_duration_bucket", {**duration, "le": str(_bucket_ns() / 1e9)}),
            get("bench_duration_sum", duration),
        )


class _Kept(_Prometheus):
    """The same, with the two series of this route kept: for labels that are known beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self._good: Final = self._requests.labels("chat", "2xx", "")
        self._times: Final = self._duration.labels("chat")

    def count(self) -> None:
        self._good.inc()
        self._times.observe(_SAMPLE_NS / 1e9)


def _for_processes() -> _Tally:
    """Return prometheus_client as several processes use it: its values are in files that all can read."""
    folder = tempfile.mkdtemp(prefix="bench-micro-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    usual = values.ValueClass
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    try:
        return _Kept()
    finally:
        values.ValueClass = usual
        del os.environ["PROMETHEUS_MULTIPROC_DIR"]


def _bucket_ns() -> int:
    return min(bound for bound in DURATION_NS if bound >= _SAMPLE_NS)


def _answers(make: Callable[[], _Tally]) -> Answers:
    tally = make()
    for _ in range(3):
        tally.count()
    tally.refused()
    *counts, seconds = tally.read()
    return {"counts": [round(n) for n in counts], "seconds": round(seconds, 6)}


def _begin(make: Callable[[], _Tally]) -> Timed:
    return calls(make().count)


def _candidate(name: str, make: Callable[[], _Tally], *needs: str) -> Candidate:
    return Candidate(name, partial(_begin, make), partial(_answers, make), needs)


SUBJECT: Final = Subject(
    "counters",
    "a request",
    (
        Case(
            "counter and histogram",
            (
                _candidate("Velox", _Velox),
                _candidate("prometheus_client", _Prometheus, "prometheus-client"),
                _candidate("prometheus_client, series kept", _Kept, "prometheus-client"),
                _candidate("prometheus_client, for several processes", _for_processes, "prometheus-client"),
            ),
        ),
    ),
)
