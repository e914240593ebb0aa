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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Final, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from velox import __version__
from velox.admin.call_metrics import call_families
from velox.build import BUILD, PYTHON
from velox.observe import series
from velox.observe.series import Family
from velox.outcomes import AttemptOutcome
from velox.policy.budgets.budget import NANO_PER_USD, period_text
from velox.policy.health.member import State
from velox.shm.budget_table import AlertCount, BudgetMemory, BudgetState
from velox.shm.problems import CredentialProblem
from velox.shm.quota_table import QuotaMemory
from velox.shm.record_ring import RecordRing
from velox.shm.segment import Segment
from velox.shm.series_table import SeriesTable
from velox.shm.status import GatewayStatus, RedisLink, RestartCause, WorkerState, WorkerStatus, serving
from velox.shm.upstream_table import (
    ATTEMPTS,
    COST_NANO,
    EJECTIONS,
    FIRST_BYTE_NS,
    KEYS_OUT,
    KEYS_RESTING,
    STATES,
    TOKEN_KINDS,
    TOKENS,
    TTFB,
    UNPRICED,
    RowTotals,
    UpstreamTable,
)

__all__ = ["CONTENT_TYPE", "render", "upstream_families"]

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

# Shown with the series of requests that were sent to an upstream.
_BY_CALL: Final = (series.DURATION, series.TTFT)
# Series of budgets; more would be no page that anybody scrapes.
_MOST_BUDGETS: Final = 2000
_NEAR_END: Final = 10  # less than this part is left
# Those that are few come first: thousands of keys must not hide the gateway's own budget.
_SCOPES: Final = ("gateway", "team", "tag", "user", "key", "model")

# Label values, and the number.
_Sample: TypeAlias = tuple[Sequence[str], float]
_BUDGET_LABELS: Final = ("scope", "name", "budget", "window", "unit")
_BudgetLabels: TypeAlias = tuple[str, str, str, str, str]

_WORKER_GAUGES: Final[Sequence[tuple[str, str, Callable[[WorkerStatus], float | None]]]] = (
    ("velox_worker_up", "1 while the worker takes requests.", lambda status: status.state is WorkerState.READY),
    (
        "velox_worker_upstream_ready",
        "1 while the worker has a warm upstream connection.",
        lambda status: status.upstream_ready,
    ),
    (
        "velox_worker_configuration",
        "Number of the configuration that the worker works with.",
        lambda status: status.configuration,
    ),
    (
        "velox_worker_heartbeat_age_seconds",
        "Time since the worker's last heartbeat.",
        lambda status: max(0, time.monotonic_ns() - status.heartbeat_ns) / 1e9 if status.heartbeat_ns else None,
    ),
    (
        "velox_worker_resident_bytes",
        "Resident memory, as the worker itself sees it.",
        lambda status: status.resident_bytes,
    ),
    (
        "velox_worker_short_of_memory",
        "1 while the worker refuses new requests because it is short of memory.",
        lambda status: status.refuses,
    ),
)


def render(
    segment: Segment,
    proc: Path = Path("/proc"),
    *,
    quotas: QuotaMemory | None = None,
    upstreams: UpstreamTable | None = None,
    calls: SeriesTable | None = None,
    budgets: BudgetMemory | None = None,
    scopes: Collection[str] = (),
    records: Sequence[RecordRing] | None = None,
    admin_not_after_s: Callable[[], int] | None = None,
) -> bytes:
    """Return the page. proc: the kernel's /proc. quotas: the table of limits. calls: the series by route,
    upstream and model. scopes: whose budgets are shown.

    records: where calls are recorded; None: nowhere. admin_not_after_s: when the certificate of the admin listener
    expires, Unix time; None: it has none.
    """
    is_away = budgets is not None and bool(budgets.away_ns)
    collector = _GatewayCollector(segment, proc, quotas, upstreams, calls, records, admin_not_after_s, is_away=is_away)
    page = generate_latest(collector)
    return page if budgets is None else page + generate_latest(_BudgetCollector(budgets, scopes))


class _BudgetCollector:
    """A prometheus_client Collector over budgets. scopes: of those that are shown."""

    def __init__(self, memory: BudgetMemory, scopes: Collection[str]) -> None:
        self._states: Final = _budgets(memory, scopes, time.time())
        self._scopes: Final = [each for each in _SCOPES if each in scopes]
        self._alerts: Final = {what: memory.n_alerts(what) for what in AlertCount}
        self._overflowed: Final = memory.n_overflowed
        self._is_unread: Final = memory.is_unread

    def collect(self) -> Iterator[Metric]:
        """Yield every family; those of single budgets only where one is shown."""
        text = "1 while what budgets have spent before can't be read from the ledger."
        yield _gauge("velox_budgets_unread", text, (), [((), self._is_unread)])
        text = "Budgets that found no row in the table: each worker counts these for itself."
        yield _counter("velox_budget_overflows", text, (), [((), self._overflowed)])
        text = "Thresholds of budgets that were reached, each once in a window."
        yield _counter("velox_budget_alerts", text, (), [((), self._alerts[AlertCount.REACHED])])
        results = [((what.name.lower(),), n) for what, n in self._alerts.items() if what is not AlertCount.REACHED]
        yield _counter("velox_alert_webhooks", "Alerts for the webhook, by their end.", ("result",), results)
        text = "Budgets of which less than a tenth is left in the window that is open."
        near = Counter(each.label.scope for each in self._states.values() if each.left * _NEAR_END < each.limit)
        yield _gauge("velox_budgets_near_end", text, ("scope",), (((each,), near[each]) for each in self._scopes))
        if self._states:
            yield self._gauge("limit", "How much may be spent in the window that is open.", lambda each: each.limit)
            yield self._gauge("spent", "How much of it is spent.", lambda each: each.spent)
            yield self._gauge("held", "How much of it requests hold that run.", lambda each: each.held)
            yield self._gauge("left", "How much of it is left.", lambda each: each.left)
            text = "Requests that were refused because too little of it was left."
            refused = ((values, each.n_refused) for values, each in self._states.items())
            yield _counter("velox_budget_refusals", text, _BUDGET_LABELS, refused)

    def _gauge(self, name: str, text: str, value: Callable[[BudgetState], int]) -> Metric:
        return _gauge(
            f"velox_budget_{name}",
            f"{text} By the unit: dollars or tokens.",
            _BUDGET_LABELS,
            (
                (values, value(each) / (1 if each.label.is_tokens else NANO_PER_USD))
                for values, each in self._states.items()
            ),
        )


def _budgets(memory: BudgetMemory, scopes: Collection[str], now_s: float) -> Mapping[_BudgetLabels, BudgetState]:
    """Return the budgets of these scopes by their labels.

    Keys may have one name: such keys have their ids before it. A rule whose filters have changed has another row than
    before, with the same labels: the one that was used last is its budget.
    """
    labels = ((row, memory.label(row)) for row in memory.used_rows())
    wanted = [(row, label.scope) for row, label in labels if label is not None and label.scope in scopes]
    if len(wanted) > _MOST_BUDGETS:
        # And the first of a kind: else a series would vanish when another begins.
        wanted.sort(key=lambda each: (_SCOPES.index(each[1]), memory.since_us(each[0])))
    rows = [row for row, _ in wanted[:_MOST_BUDGETS]]
    found: dict[_BudgetLabels, tuple[tuple[int, int], BudgetState]] = {}
    for row in rows:
        state = memory.state(row, now_s)
        if state is None:
            continue
        values = _budget_labels(state, state.label.who)
        used = memory.window_of(row)[1], memory.since_us(row)
        if values not in found or used > found[values][0]:
            found[values] = used, state
    states = [state for _, state in found.values()]
    names = Counter(_budget_labels(state, _name(state)) for state in states)
    named = ((_budget_labels(state, _name(state)), state) for state in states)
    return {values if names[values] == 1 else _budget_labels(state, state.label.who): state for values, state in named}


def _name(state: BudgetState) -> str:
    who = state.label.who
    return who.partition(" ")[2] or who if state.label.scope == "key" else who


def _budget_labels(state: BudgetState, name: str) -> _BudgetLabels:
    label = state.label
    unit = "tokens" if label.is_tokens else "usd"
    return label.scope, name, label.name, period_text(label.budget(state.limit)), unit


class _GatewayCollector:
    """A prometheus_client Collector over one segment."""

    def __init__(
        self,
        segment: Segment,
        proc: Path,
        quotas: QuotaMemory | None,
        upstreams: UpstreamTable | None,
        calls: SeriesTable | None,
        records: Sequence[RecordRing] | None,
        admin_not_after_s: Callable[[], int] | None,
        *,
        is_away: bool,
    ) -> None:
        self._segment = segment
        self._is_away: Final = is_away
        self._admin_not_after_s = admin_not_after_s
        self._proc = proc
        self._quotas = quotas
        self._upstreams = upstreams
        self._calls = calls
        self._records = records

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Called once a scrape."""
        slabs = [self._segment.metrics(block).tolist() for block in range(self._segment.blocks)]
        slabs.append(self._segment.other_metrics().tolist())
        cells = [sum(column) for column in zip(*slabs, strict=True)]
        for family in series.FAMILIES:
            if family not in _BY_CALL:
                yield _family(family, cells)
        yield from call_families({} if self._calls is None else self._calls.totals(), cells)
        yield from upstream_families([] if self._upstreams is None else self._upstreams.totals())
        yield _credentials([] if self._upstreams is None else self._upstreams.credentials.all())
        yield from _workers(self._segment)
        yield from _processes(self._pids(), self._proc)
        yield from _limit_rows(self._quotas)
        yield from _ledger(self._records, GatewayStatus(self._segment))
        yield from _gateway(GatewayStatus(self._segment), is_away=self._is_away)
        yield _gauge(
            "velox_admin_tls_certificate_not_after_seconds",
            "When the admin listener's certificate expires, in seconds since 1970.",
            [],
            [([], self._admin_not_after_s())] if self._admin_not_after_s is not None else [],
        )

    def _pids(self) -> dict[str, int]:
        """Return the processes of the gateway, by name; none without a pid."""
        pids = {"supervisor": GatewayStatus(self._segment).supervisor_pid, "admin": os.getpid()}
        if pids["admin"] == pids["supervisor"]:
            del pids["admin"]
        pids["leases"] = GatewayStatus(self._segment).lease_manager_pid
        pids["ledger"] = GatewayStatus(self._segment).ledger_pid
        for block in range(self._segment.blocks):
            status, worker = WorkerStatus(self._segment, block), block % self._segment.workers
            # Two at a time only while one is replaced: the one that serves has the plain name.
            is_first = serving(self._segment, worker).pid == status.pid
            pids[f"worker-{worker}" if is_first else f"worker-{worker}-second"] = status.pid
        return {name: pid for name, pid in pids.items() if pid}


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[_Sample]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        metric.add_metric(values, value)
    return metric


def _counter(name: str, text: str, labels: Sequence[str], samples: Iterable[_Sample]) -> Metric:
    metric = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        metric.add_metric(values, value)
    return metric


def _histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    bounds_ns: Sequence[int],
    samples: Iterable[tuple[Sequence[str], list[int]]],
) -> Metric:
    """samples: the cells of each series: its buckets, not cumulative, and its sum in nanoseconds."""
    metric = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(repr(bound / 1e9) for bound in bounds_ns), "+Inf"]
    for values, (*counts, sum_ns) in samples:
        metric.add_metric(values, list(zip(bounds, accumulate(counts), strict=True)), sum_ns / 1e9)
    return metric


def _family(family: Family, cells: list[int]) -> Metric:
    """Return what the workers have counted in a family, by its part of the slabs."""
    labels = [name for name, _ in family.labels]
    starts = range(family.first, family.end, family.stride)
    found = [
        (values, cells[first : first + family.stride]) for values, first in zip(family.series(), starts, strict=True)
    ]
    if family.sparse:
        found = [(values, own) for values, own in found if any(own)]
    if family.kind == "histogram":
        return _histogram(family.name, family.help, labels, family.bounds_ns, found)
    make = _counter if family.kind == "counter" else _gauge
    return make(family.name, family.help, labels, ((values, own[0]) for values, own in found))


# -- upstreams ------------------------------------------------------------------------------------


def upstream_families(members: Sequence[RowTotals]) -> Iterator[Metric]:
    """Yield every family of upstreams; without members they are empty."""
    by_name: dict[str, list[int]] = {}
    keys: dict[str, tuple[int, int]] = {}
    for member in members:
        cells = by_name.get(member.upstream)
        by_name[member.upstream] = member.cells if cells is None else list(map(add, cells, member.cells))
        # The members of an upstream share its keys: each counts the same ones.
        out, resting = keys.get(member.upstream, (0, 0))
        keys[member.upstream] = max(out, member.cells[KEYS_OUT]), max(resting, member.cells[KEYS_RESTING])
    yield _counter(
        "velox_upstream_requests",
        "Attempts, by upstream and outcome.",
        ["upstream", "outcome"],
        (
            ((name, outcome.name.lower()), cells[ATTEMPTS + outcome])
            for name, cells in by_name.items()
            for outcome in AttemptOutcome
            if cells[ATTEMPTS + outcome]
        ),
    )
    yield _counter(
        "velox_upstream_ejections",
        "Ejections of a member by a worker, because it fails.",
        ["upstream"],
        (((name,), cells[EJECTIONS]) for name, cells in by_name.items()),
    )
    yield _gauge(
        "velox_upstream_inflight_requests",
        "Attempts that have begun and not ended, by member.",
        ["upstream", "origin"],
        (((member.upstream, member.origin), member.inflight) for member in members),
    )
    yield _gauge(
        "velox_upstream_state",
        "Workers that have the member in a state.",
        ["upstream", "origin", "state"],
        (
            ((member.upstream, member.origin, state.name.lower()), member.cells[STATES + state])
            for member in members
            for state in State
        ),
    )
    yield _gauge(
        "velox_upstream_keys_unused",
        "Keys that are not used now, counted in each worker.",
        ["upstream", "state"],
        (
            ((name, state), n)
            for name, numbers in keys.items()
            for state, n in zip(("out", "resting"), numbers, strict=True)
        ),
    )
    yield from _spend(by_name)
    times = ((name, cells[TTFB : TTFB + len(FIRST_BYTE_NS) + 2]) for name, cells in by_name.items())
    yield _histogram(
        "velox_upstream_time_to_first_byte_seconds",
        "Time from the start of an attempt to the first byte of its reply.",
        ["upstream"],
        FIRST_BYTE_NS,
        (((name,), cells) for name, cells in times if any(cells[:-1])),
    )


def _spend(by_name: Mapping[str, list[int]]) -> Iterator[Metric]:
    """Yield what recorded calls took. by_name: the cells of each upstream."""
    yield _counter(
        "velox_upstream_tokens",
        "Tokens of recorded calls; cached, cache_written and reasoning are parts of the others.",
        ["upstream", "kind"],
        (
            ((name, kind), cells[at])
            for name, cells in by_name.items()
            for at, kind in enumerate(TOKEN_KINDS, TOKENS)
            if cells[at]
        ),
    )
    yield _counter(
        "velox_upstream_cost_usd",
        "What recorded calls cost, in dollars, as far as their prices are known.",
        ["upstream"],
        (((name,), cells[COST_NANO] / NANO_PER_USD) for name, cells in by_name.items() if cells[COST_NANO]),
    )
    yield _counter(
        "velox_upstream_unpriced_calls",
        "Recorded calls whose cost is not known.",
        ["upstream"],
        (((name,), cells[UNPRICED]) for name, cells in by_name.items() if cells[UNPRICED]),
    )


def _credentials(problems: Iterable[CredentialProblem]) -> Metric:
    return _gauge(
        "velox_upstream_credentials_failing",
        "Workers that can't renew the credentials of an upstream. What was fetched before may still hold.",
        ["upstream"],
        (((each.upstream,), each.n_workers) for each in problems),
    )


# -- processes ------------------------------------------------------------------------------------


def _workers(segment: Segment) -> Iterator[Metric]:
    """Yield what the supervisor and the workers say of themselves: the only families with a worker label."""
    statuses = [serving(segment, worker) for worker in range(segment.workers)]
    for name, text, read in _WORKER_GAUGES:
        found = ((str(worker), read(status)) for worker, status in enumerate(statuses))
        yield _gauge(name, text, ["worker"], (([label], value) for label, value in found if value is not None))
    restarts = []
    for worker in range(segment.workers):
        blocks = [WorkerStatus(segment, block) for block in segment.blocks_of(worker)]
        for cause in RestartCause:
            restarts.append(((str(worker), cause.name.lower()), sum(block.restarts(cause) for block in blocks)))
    yield _counter("velox_worker_restarts", "Workers replaced, by cause.", ["worker", "cause"], restarts)


def _processes(pids: dict[str, int], proc: Path) -> Iterator[Metric]:
    """Yield the usual process_* families for each process of the gateway that still lives."""
    found: list[tuple[str, float, int, int]] = []
    for name, pid in pids.items():
        folder = proc / str(pid)
        try:
            # proc(5): the name in parentheses may hold anything; what follows it starts with field 3.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            n_fds = sum(1 for _ in (folder / "fd").iterdir())
        except OSError:
            continue  # it died since its pid was read, or is another user's
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        found.append((name, cpu_s, int(fields[21]) * _PAGE_BYTES, n_fds))
    yield _counter(
        "process_cpu_seconds", "User and system CPU time.", ["process"], (([name], cpu_s) for name, cpu_s, *_ in found)
    )
    yield _gauge(
        "process_resident_memory_bytes", "Resident memory.", ["process"], (([name], n) for name, _, n, _ in found)
    )
    ids: list[_Sample] = [([name], pids[name]) for name, *_ in found]
    yield _gauge("velox_process_id", "Its id in the process list (pid).", ["process"], ids)
    yield _gauge("process_open_fds", "Open file descriptors.", ["process"], (([name], n) for name, *_, n in found))


# -- the gateway ----------------------------------------------------------------------------------


def _limit_rows(quotas: QuotaMemory | None) -> Iterator[Metric]:
    """Yield the use of the table of limits."""
    found = None if quotas is None else quotas.statistics()
    rows = [] if found is None else [(["used"], found.in_use), (["free"], found.rows - found.in_use)]
    yield _gauge("velox_limit_rows", "Rows of the table of limits, by state.", ["state"], rows)
    yield _counter(
        "velox_limit_rows_overflow",
        "Checks of limits that found no row: counted by one worker for itself.",
        [],
        [] if found is None else [([], found.overflowed)],
    )
    yield _counter(
        "velox_limit_rows_over_share",
        "Checks of limits of models that their key named beyond its share of rows: counted in one bucket together.",
        [],
        [] if found is None else [([], found.over_share)],
    )


def _ledger(rings: Sequence[RecordRing] | None, status: GatewayStatus) -> Iterator[Metric]:
    """Yield how records get on; without a ledger there is no number."""

    def samples(of_ring: Callable[[RecordRing], int]) -> list[_Sample]:
        return [] if rings is None else [([], sum(map(of_ring, rings)))]

    kept = "Records that are safe in the database, names of keys and models among them."
    yield _counter("velox_ledger_records", kept, [], samples(lambda ring: ring.tail))
    waiting = samples(lambda ring: max(0, ring.head - ring.tail))
    yield _gauge("velox_ledger_waiting_records", "Records that wait for the database.", [], waiting)
    dropped = samples(lambda ring: ring.dropped[0])
    yield _counter("velox_ledger_dropped_calls", "Calls of which only sums were kept.", [], dropped)
    lost = "Records that are lost: damaged in a worker's file, or lost by the database and not in that file any more."
    yield _counter("velox_ledger_lost_records", lost, [], samples(lambda ring: ring.n_lost))
    unprotected = samples(lambda ring: ring.n_unprotected)
    text = "Calls that would have been lost had their worker been killed: too many were open."
    yield _counter("velox_ledger_unprotected_calls", text, [], unprotected)
    text = "1 while records can be stored, 0 since the last try failed."
    yield _gauge("velox_ledger_writable", text, [], [] if rings is None else [([], not status.ledger_is_failing)])
    restarts: list[_Sample] = [] if rings is None else [([], status.ledger_restarts)]
    yield _counter("velox_ledger_restarts", "How often the ledger process was replaced.", [], restarts)


def _gateway(status: GatewayStatus, *, is_away: bool) -> Iterator[Metric]:
    """Yield those of the whole gateway. is_away: Redis does not answer for budgets."""

    def results(count: Callable[..., int], taken: str, refused: str) -> list[_Sample]:
        return [([taken], count(taken=True)), ([refused], count(taken=False))]

    uptime_ns = time.monotonic_ns() - status.started_ns if status.started_ns else 0
    yield GaugeMetricFamily("velox_uptime_seconds", "Time since the supervisor started.", uptime_ns / 1e9)
    yield GaugeMetricFamily("velox_draining", "1 once the gateway takes no new work.", status.draining)
    restarts: list[_Sample] = [([], status.admin_restarts)]
    yield _counter("velox_admin_restarts", "How often the admin process was replaced.", [], restarts)
    text, labels = "The version, how it was built, and the Python that runs it.", ["version", "build", "python"]
    yield _gauge("velox_build_info", text, labels, [([__version__, BUILD, PYTHON], 1)])
    text = "Keys that clients may present, managed ones among them; 0, without managed keys: none is required."
    yield GaugeMetricFamily("velox_keys", text, status.n_keys)
    yield GaugeMetricFamily("velox_key_file_bad", "1 while VELOX_API_KEYS_FILE can't be used.", status.key_file_is_bad)
    changes = results(status.key_file_changes, "taken", "refused")
    yield _counter("velox_key_file_changes", "Changes of VELOX_API_KEYS_FILE, by result.", ["result"], changes)
    yield GaugeMetricFamily(
        "velox_config_generation", "Number of the configuration that holds; 1 at the start.", status.configuration
    )
    yield GaugeMetricFamily(
        "velox_config_bad",
        "1 while the configuration that was last read can't be used, and the one before holds.",
        status.configuration_is_bad,
    )
    reloads = results(status.reloads, "ok", "bad")
    yield _counter(
        "velox_config_reloads", "Reloads of the configuration since the start, by result.", ["result"], reloads
    )
    # Without Redis, or without TLS, a 0 would look like an outage, or like a certificate that expired long ago.
    has_redis = status.redis is not RedisLink.NONE
    yield _gauge(
        "velox_redis_up",
        "1 while Redis answers (VELOX_REDIS_URL), for limits and for budgets.",
        [],
        [([], status.redis_is_up and not is_away)] if has_redis else [],
    )
    yield _gauge(
        "velox_replicas",
        "Gateways that share the limits, by Redis' last answer.",
        [],
        [([], status.replicas)] if has_redis else [],
    )
    yield _gauge(
        "velox_tls_certificate_not_after_seconds",
        "When the gateway's certificate expires, in seconds since 1970.",
        [],
        [([], status.tls_not_after_s)] if status.tls_not_after_s else [],
    )
    reloads = results(status.tls_reloads, "taken", "refused")
    yield _counter("velox_tls_certificate_reloads", "Changes of the TLS files, by result.", ["result"], reloads)
