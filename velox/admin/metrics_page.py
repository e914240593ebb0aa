"""The metrics page: all workers' slabs, summed, in Prometheus' text format.

Knows: how to read the shared memory and /proc. Does not know: who counts, or how the page is served.
Reading takes no lock and wakes no worker. A page made while workers count may show a bucket and not yet its
sum; the next page does.

The labels `upstream` and `origin` have what the configuration names, 256 upstreams of 64 origins at most; no request
can add one. Only the current state is by origin: it shows which server is out, and how the load is spread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from velox import __version__
from velox.observe import series
from velox.observe.series import Counter, Gauge, Histogram
from velox.outcomes import AttemptOutcome
from velox.policy.health.member import State
from velox.shm.quota_table import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink, RestartCause, WorkerState, WorkerStatus, serving
from velox.shm.upstream_table import (
    ATTEMPTS,
    EJECTIONS,
    FIRST_BYTE_NS,
    KEYS_OUT,
    KEYS_RESTING,
    STATES,
    TTFB,
    RowTotals,
    UpstreamTable,
)

__all__ = ["CONTENT_TYPE", "render", "upstream_families"]

_BOUNDS: Final = (*(repr(bound / 1e9) for bound in FIRST_BYTE_NS), "+Inf")


def upstream_families(members: Sequence[RowTotals]) -> Iterator[Metric]:
    """Yield every family; without members they are empty."""
    by_name: dict[str, list[int]] = {}
    keys: dict[str, tuple[int, int]] = {}
    for member in members:
        cells = by_name.get(member.upstream)
        by_name[member.upstream] = member.cells if cells is None else list(map(add, cells, member.cells))
        # The members of an upstream share its keys: each tells of the same ones.
        out, resting = keys.get(member.upstream, (0, 0))
        keys[member.upstream] = max(out, member.cells[KEYS_OUT]), max(resting, member.cells[KEYS_RESTING])
    yield _attempts(by_name)
    yield _ejections(by_name)
    yield from _members(members)
    yield _keys(keys)
    yield _first_bytes(by_name)


def _attempts(by_name: dict[str, list[int]]) -> Metric:
    metric = CounterMetricFamily(
        "velox_upstream_requests", "Attempts, by upstream and outcome.", labels=["upstream", "outcome"]
    )
    for name, cells in by_name.items():
        for outcome in AttemptOutcome:
            if cells[ATTEMPTS + outcome]:
                metric.add_metric([name, outcome.name.lower()], cells[ATTEMPTS + outcome])
    return metric


def _ejections(by_name: dict[str, list[int]]) -> Metric:
    metric = CounterMetricFamily(
        "velox_upstream_ejections", "Times that a worker put a member out because it fails.", labels=["upstream"]
    )
    for name, cells in by_name.items():
        metric.add_metric([name], cells[EJECTIONS])
    return metric


def _members(members: Iterable[RowTotals]) -> Iterator[Metric]:
    labels = ["upstream", "origin"]
    inflight = GaugeMetricFamily(
        "velox_upstream_inflight_requests", "Attempts that have begun and not ended, by member.", labels=labels
    )
    states = GaugeMetricFamily(
        "velox_upstream_state", "Workers that have the member in a state.", labels=[*labels, "state"]
    )
    for upstream, origin, n_inflight, cells in members:
        inflight.add_metric([upstream, origin], n_inflight)
        for state in State:
            states.add_metric([upstream, origin, state.name.lower()], cells[STATES + state])
    yield from (inflight, states)


def _keys(keys: dict[str, tuple[int, int]]) -> Metric:
    metric = GaugeMetricFamily(
        "velox_upstream_keys_unused",
        "Keys that are not used now, counted in each worker.",
        labels=["upstream", "state"],
    )
    for name, (n_out, n_resting) in keys.items():
        metric.add_metric([name, "out"], n_out)
        metric.add_metric([name, "resting"], n_resting)
    return metric


def _first_bytes(by_name: dict[str, list[int]]) -> Metric:
    metric = HistogramMetricFamily(
        "velox_upstream_time_to_first_byte_seconds",
        "Time from the start of an attempt to the first byte of its reply.",
        labels=["upstream"],
    )
    for name, cells in by_name.items():
        *counts, sum_ns = cells[TTFB : TTFB + len(_BOUNDS) + 1]
        if any(counts):
            metric.add_metric([name], list(zip(_BOUNDS, accumulate(counts), strict=True)), sum_ns / 1e9)
    return metric


CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def render(
    segment: Segment,
    proc: Path = Path("/proc"),
    *,
    quotas: QuotaMemory | None = None,
    upstreams: UpstreamTable | None = None,
) -> bytes:
    """Return the page. proc: where the kernel tells of processes. quotas: the table of limits."""
    return generate_latest(_GatewayCollector(segment, proc, quotas, upstreams))


class _GatewayCollector:
    """A prometheus_client Collector over one segment."""

    def __init__(
        self, segment: Segment, proc: Path, quotas: QuotaMemory | None, upstreams: UpstreamTable | None
    ) -> None:
        self._segment = segment
        self._proc = proc
        self._quotas = quotas
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Called once a scrape."""
        slabs = [self._segment.metrics(block).tolist() for block in range(self._segment.blocks)]
        slabs.append(self._segment.keeper_metrics().tolist())
        cells = [sum(column) for column in zip(*slabs, strict=True)]
        for counter in series.COUNTERS:
            yield _counter(counter, cells)
        for gauge in series.GAUGES:
            yield _gauge(gauge, cells)
        for histogram in series.HISTOGRAMS:
            yield _histogram(histogram, cells)
        yield from upstream_families([] if self._upstreams is None else self._upstreams.totals())
        yield from _workers(self._segment)
        yield from _processes(self._pids(), self._proc)
        yield from _limit_rows(self._quotas)
        yield from _gateway(GatewayStatus(self._segment))

    def _pids(self) -> dict[str, int]:
        """Return the processes of the gateway, by name; none without a pid."""
        pids = {"supervisor": GatewayStatus(self._segment).supervisor_pid, "admin": os.getpid()}
        if pids["admin"] == pids["supervisor"]:
            del pids["admin"]
        pids["leases"] = GatewayStatus(self._segment).keeper_pid
        for block in range(self._segment.blocks):
            status, worker = WorkerStatus(self._segment, block), block % self._segment.workers
            # Two at a time only while one is replaced: the one that serves has the plain name.
            is_first = serving(self._segment, worker).pid == status.pid
            pids[f"worker-{worker}" if is_first else f"worker-{worker}-second"] = status.pid
        return {name: pid for name, pid in pids.items() if pid}


def _counter(family: Counter, cells: list[int]) -> Metric:
    metric = CounterMetricFamily(family.name, family.help, labels=[name for name, _ in family.labels])
    for value, labels in zip(cells[family.first : family.end], family.series(), strict=True):
        if value or not family.sparse:
            metric.add_metric(labels, value)
    return metric


def _gauge(family: Gauge, cells: list[int]) -> Metric:
    name, values = family.label or ("", ("",))
    metric = GaugeMetricFamily(family.name, family.help, labels=[name] if name else [])
    for value, cell in zip(values, cells[family.first : family.end], strict=True):
        metric.add_metric([value] if name else [], cell)
    return metric


def _histogram(family: Histogram, cells: list[int]) -> Metric:
    name, values = family.label or ("", ("",))
    metric = HistogramMetricFamily(family.name, family.help, labels=[name] if name else [])
    bounds = [*(repr(bound / 1e9) for bound in family.bounds_ns), "+Inf"]
    for index, value in enumerate(values):
        first = family.first + index * family.stride
        *counts, sum_ns = cells[first : first + family.stride]
        if family.sparse and not any(counts):
            continue
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(bounds, counts, strict=True):
            total += count
            buckets.append((bound, total))
        metric.add_metric([value] if name else [], buckets, sum_ns / 1e9)
    return metric


def _workers(segment: Segment) -> Iterator[Metric]:
    """Yield what the supervisor and the workers say of themselves: the only families with a worker label."""
    up = GaugeMetricFamily("velox_worker_up", "1 while the worker takes requests.", labels=["worker"])
    ready = GaugeMetricFamily(
        "velox_worker_upstream_ready", "1 while the worker has a warm upstream connection.", labels=["worker"]
    )
    configuration = GaugeMetricFamily(
        "velox_worker_configuration", "Number of the configuration that the worker works with.", labels=["worker"]
    )
    age = GaugeMetricFamily(
        "velox_worker_heartbeat_age_seconds", "Time since the worker's last sign of life.", labels=["worker"]
    )
    resident = GaugeMetricFamily(
        "velox_worker_resident_bytes", "Resident memory, as the worker itself sees it.", labels=["worker"]
    )
    refuses = GaugeMetricFamily(
        "velox_worker_short_of_memory", "1 while the worker refuses new requests for its memory.", labels=["worker"]
    )
    restarts = CounterMetricFamily("velox_worker_restarts", "Workers replaced, by cause.", labels=["worker", "cause"])
    now_ns = time.monotonic_ns()
    for worker in range(segment.workers):
        status, label = serving(segment, worker), str(worker)
        blocks = [WorkerStatus(segment, block) for block in segment.blocks_of(worker)]
        up.add_metric([label], status.state is WorkerState.READY)
        ready.add_metric([label], status.upstream_ready)
        if status.heartbeat_ns:
            age.add_metric([label], max(0, now_ns - status.heartbeat_ns) / 1e9)
        for cause in RestartCause:
            restarts.add_metric([label, cause.name.lower()], sum(block.restarts(cause) for block in blocks))
        resident.add_metric([label], status.resident_bytes)
        refuses.add_metric([label], status.refuses)
        configuration.add_metric([label], status.configuration)
    yield from (up, ready, configuration, age, resident, refuses, restarts)


def _limit_rows(quotas: QuotaMemory | None) -> Iterator[Metric]:
    """Yield what the table of limits has room for."""
    rows = GaugeMetricFamily("velox_limit_rows", "Rows of the table of limits, by state.", labels=["state"])
    overflow = CounterMetricFamily(
        "velox_limit_rows_overflow", "Questions to limits that found no row of their own, and shared one."
    )
    if quotas is not None:
        found = quotas.statistics()
        rows.add_metric(["used"], found.in_use)
        rows.add_metric(["free"], found.rows - found.in_use)
        overflow.add_metric([], found.overflowed)
    yield from (rows, overflow)


def _processes(pids: dict[str, int], proc: Path) -> Iterator[Metric]:
    """Yield the usual process_* families for each process of the gateway that still lives."""
    cpu = CounterMetricFamily("process_cpu_seconds", "User and system CPU time.", labels=["process"])
    memory = GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", labels=["process"])
    fds = GaugeMetricFamily("process_open_fds", "Open file descriptors.", labels=["process"])
    for name, pid in pids.items():
        folder = proc / str(pid)
        try:
            # proc(5): the name in parentheses may hold anything; what follows it starts with field 3.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            n_fds = sum(1 for _ in (folder / "fd").iterdir())
        except OSError:
            continue  # it died since its pid was read, or is another user's
        cpu.add_metric([name], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)
        memory.add_metric([name], int(fields[21]) * _PAGE_BYTES)
        fds.add_metric([name], n_fds)
    yield from (cpu, memory, fds)


def _gateway(status: GatewayStatus) -> Iterator[Metric]:
    uptime_ns = time.monotonic_ns() - status.started_ns if status.started_ns else 0
    yield GaugeMetricFamily("velox_uptime_seconds", "Time since the supervisor started.", uptime_ns / 1e9)
    yield GaugeMetricFamily("velox_draining", "1 once the gateway takes no new work.", status.draining)
    build = GaugeMetricFamily("velox_build_info", "The version, as a label.", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    yield GaugeMetricFamily("velox_keys", "Keys that clients may present; 0: none is asked for.", status.n_keys)
    yield GaugeMetricFamily("velox_key_file_bad", "1 while VELOX_API_KEYS_FILE can't be used.", status.key_file_is_bad)
    changes = CounterMetricFamily(
        "velox_key_file_changes", "Changes of VELOX_API_KEYS_FILE, by result.", labels=["result"]
    )
    for result, taken in (("taken", True), ("refused", False)):
        changes.add_metric([result], status.key_file_changes(taken=taken))
    yield changes
    yield from _configuration(status)
    redis = GaugeMetricFamily("velox_redis_up", "1 while Redis can be asked for permits (VELOX_REDIS_URL).")
    replicas = GaugeMetricFamily("velox_replicas", "Gateways that share the limits, as Redis last told.")
    if status.redis is not RedisLink.NONE:  # without Redis a 0 would look like one that is down
        redis.add_metric([], status.redis_is_up)
        replicas.add_metric([], status.replicas)
    yield from (redis, replicas)
    not_after = GaugeMetricFamily(
        "velox_tls_certificate_not_after_seconds",
        "When the certificate that clients are shown ends, in seconds since 1970.",
    )
    if status.tls_not_after_s:  # without TLS a 0 would look like one that ended long ago
        not_after.add_metric([], status.tls_not_after_s)
    reloads = CounterMetricFamily(
        "velox_tls_certificate_reloads", "Changes of the certificate's files, by result.", labels=["result"]
    )
    for result, taken in (("taken", True), ("refused", False)):
        reloads.add_metric([result], status.tls_reloads(taken=taken))
    yield from (not_after, reloads)


def _configuration(status: GatewayStatus) -> Iterator[Metric]:
    """Yield what holds of the configuration, and what came of reading it again."""
    yield GaugeMetricFamily(
        "velox_config_generation", "Number of the configuration that holds; 1 at the start.", status.configuration
    )
    yield GaugeMetricFamily(
        "velox_config_bad",
        "1 while the configuration that was last read can't be used, and the one before holds.",
        status.configuration_is_bad,
    )
    reloads = CounterMetricFamily(
        "velox_config_reloads", "Readings of the configuration since the start, by result.", labels=["result"]
    )
    for result, taken in (("ok", True), ("bad", False)):
        reloads.add_metric([result], status.reloads(taken=taken))
    yield reloads
