"""Metrics: what a worker counts is what the page shows, and no request can add a series."""

from __future__ import annotations

import gc
import os
import resource
import sys
from itertools import product
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from velox.admin.metrics_page import CONTENT_TYPE, render
from velox.errors import Blame, Reason
from velox.observe import series
from velox.observe.metrics import WorkerMetrics
from velox.outcomes import (
    SHED_REASONS,
    AttemptOutcome,
    CacheResult,
    ConnectionEnd,
    Decision,
    DnsResult,
    Drained,
    Hedged,
    JoinResult,
    KeyHolder,
    LeaseResult,
    Mirrored,
    Phase,
    Retry,
    RetryDenied,
    SpanEnd,
    StreamEnd,
    TlsFailure,
    Unit,
)
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.token_bucket import BucketRate
from velox.shm.budget_table import BudgetMemory, BudgetState, BudgetTable
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RestartCause, WorkerState, WorkerStatus
from velox.types import ApiKind, Endpoint, Priority, Scope

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def new_segment(workers: int = 1) -> Segment:
    return Segment(workers, series.CELLS)


def scrape(segment: Segment, proc: Path = Path("/proc")) -> Samples:
    """Read the page as Prometheus does."""
    samples: Samples = {}
    for family in text_string_to_metric_families(render(segment, proc).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset((key.rstrip("_"), text) for key, text in labels.items())]


def count_everything(metrics: WorkerMetrics) -> None:
    """Count each event that can be counted, once."""
    for route in Endpoint:
        for status in (200, 302, 404, 502):
            for reason in (None, *Reason):
                metrics.count_request(route, status, reason)
        metrics.duration[route].observe(1)
        metrics.ttft[route].observe(1)
    for outcome in AttemptOutcome:
        metrics.count_attempt(outcome)
    for end in StreamEnd:
        metrics.count_stream_end(end)
    for reason in SHED_REASONS:
        metrics.count_shed(reason)
    for scope, unit, decision in product(Scope, Unit, Decision):
        metrics.limit_counter(scope, unit, decision)()
    metrics.count_tokens(1, 0, 0)  # all of it came back
    metrics.count_tokens(0, 1, 1)
    for priority in Priority:
        metrics.queue_wait[priority].observe(1)
    for phase in Phase:
        metrics.overhead[phase].observe(1)
    metrics.loop_lag.observe(1)
    metrics.count_warm_failure()
    metrics.count_log_dropped(1)
    for end_of_span in SpanEnd:
        metrics.count_spans(end_of_span, 1)
    for retry in Retry:
        metrics.count_retry(retry)
    for denied in RetryDenied:
        metrics.count_retry_denied(denied)
    for cause in ConnectionEnd:
        metrics.count_connection_end(cause)
    for result in DnsResult:
        metrics.count_dns_refresh(result)
    metrics.count_stream_error()
    metrics.count_auth_failure()
    metrics.count_tunnel_bytes(1, 1)
    metrics.lease_round_trip.observe(1)
    for lease in LeaseResult:
        metrics.count_lease(lease)
    for holder in KeyHolder:
        metrics.count_key_corrections(holder, 1)
    for hedge in Hedged:
        metrics.count_hedge(hedge)
    for drained in Drained:
        metrics.count_drain(drained)
    for mirrored in Mirrored:
        metrics.count_mirror(mirrored)
    metrics.count_canary()
    for said in CacheResult:
        metrics.count_cache(said)
    for join in JoinResult:
        metrics.count_join(join)
    metrics.count_kept(1, 1)
    metrics.count_purge(1)
    for client in ApiKind:
        for upstream in ApiKind:
            metrics.count_translation(client, upstream, 1)
    for resumed in (False, True):
        metrics.count_tls_handshake(resumed)
    for failure in TlsFailure:
        metrics.count_tls_failure(failure)


@pytest.mark.slow
def test_every_event_has_a_cell_of_its_own() -> None:
    """No two series share a cell: every counter and bucket count of the page is 1 after one event each."""
    segment = new_segment()
    count_everything(WorkerMetrics(segment.metrics(0)))
    samples = scrape(segment)

    n_requests = len(Endpoint) * 4 * (len(Reason) + 1)
    counters = [(name, v) for (name, _), v in samples.items() if name.endswith(("_total", "_count"))]
    # Written by the supervisor.
    elsewhere = (
        "velox_admin_",
        "velox_worker_",
        "process_",
        "velox_key_file_",
        "velox_tls_certificate_",
        "velox_config_",
    )
    ours = [v for name, v in counters if not name.startswith(elsewhere)]
    assert set(ours) == {1}
    assert sum(name == "velox_requests_total" for name, _ in samples) == n_requests


@pytest.mark.slow
def test_series_are_bounded_whatever_is_counted() -> None:
    """The number of series has a limit that no traffic moves."""
    segment = new_segment()
    metrics = WorkerMetrics(segment.metrics(0))
    count_everything(metrics)
    series_before = set(scrape(segment))

    for status in range(100, 700):
        metrics.count_request(Endpoint.OTHER, status, Reason.UPSTREAM_STATUS)
    count_everything(metrics)

    assert set(scrape(segment)) == series_before


@pytest.mark.parametrize(
    ("status", "label"),
    [
        (200, "2xx"),
        (299, "2xx"),
        (302, "3xx"),
        (404, "4xx"),
        (499, "4xx"),
        (503, "5xx"),
        (600, "5xx"),
        (101, "2xx"),
        (100, "5xx"),
    ],
)
def test_request_is_counted_under_its_route_class_and_reason(status: int, label: str) -> None:
    """One request is one count, with the labels of what the client got; no known class is a 5xx."""
    segment = new_segment()

    WorkerMetrics(segment.metrics(0)).count_request(Endpoint.VECTOR_STORES, status, Reason.UPSTREAM_STATUS)

    shown = {key: v for key, v in scrape(segment).items() if key[0] == "velox_requests_total"}
    labels = {"route": "vector_stores", "class": label, "reason": "upstream_status"}
    assert shown == {("velox_requests_total", frozenset(labels.items())): 1}


def test_request_without_reason_is_ok() -> None:
    """All is well has a label too, so that a ratio needs one metric only."""
    segment = new_segment()

    WorkerMetrics(segment.metrics(0)).count_request(Endpoint.CHAT, 200, None)

    assert value(scrape(segment), "velox_requests_total", route="chat", class_="2xx", reason="ok") == 1


@pytest.mark.parametrize(
    ("ns", "bucket"), [(0, 0), (10**7 - 1, 0), (10**7, 0), (10**7 + 1, 1), (10**12, 17), (10**13, 19)]
)
def test_histogram_bound_is_inclusive(ns: int, bucket: int) -> None:
    """A time equal to a bound lies below it, as Prometheus defines `le`; above all bounds is +Inf."""
    segment = new_segment()

    WorkerMetrics(segment.metrics(0)).duration[Endpoint.CHAT].observe(ns)

    name = "gen_ai_server_request_duration_seconds"
    bounds = [*(repr(bound / 1e9) for bound in series.DURATION.bounds_ns), "+Inf"]
    samples = scrape(segment)
    counts = [value(samples, f"{name}_bucket", route="chat", le=bound) for bound in bounds]
    assert counts == [0] * bucket + [1] * (len(bounds) - bucket)
    assert value(samples, f"{name}_count", route="chat") == 1
    assert value(samples, f"{name}_sum", route="chat") == ns / 1e9


def test_histogram_buckets_are_those_of_the_conventions() -> None:
    """Dashboards made for OpenTelemetry's GenAI metrics fit."""
    assert [bound / 1e9 for bound in series.DURATION.bounds_ns[:4]] == [0.01, 0.02, 0.04, 0.08]
    assert 81_920_000_000 in series.DURATION.bounds_ns and series.DURATION.bounds_ns[-1] == 1_800_000_000_000
    assert [bound / 1e9 for bound in series.TTFT.bounds_ns[:4]] == [0.001, 0.005, 0.01, 0.02]
    assert series.OVERHEAD.bounds_ns[0] == 50_000
    assert all(list(h.bounds_ns) == sorted(set(h.bounds_ns)) for h in series.FAMILIES)


def test_page_sums_counters_gauges_and_histograms_over_workers() -> None:
    """One view of all workers, whichever of them a client landed on."""
    segment = new_segment(workers=3)
    for worker in range(3):
        metrics = WorkerMetrics(segment.metrics(worker))
        metrics.count_attempt(AttemptOutcome.OK)
        for priority in Priority:
            metrics.set_queue_depth(priority, worker * (1 + priority))
        metrics.set_inflight(10)
        metrics.set_connections(20, 5)
        metrics.set_pool(ready=1, streams=4)
        metrics.set_upstreams_out(1)
        metrics.loop_lag.observe(worker * 10**9)
        metrics.limit_counter(Scope.KEY, Unit.TOKENS, Decision.GRANTED)()
        metrics.count_tokens(100, 64, 6)

    samples = scrape(segment)

    assert value(samples, "velox_upstream_attempts_total", outcome="ok") == 3
    assert [value(samples, "velox_queue_depth", class_=name) for name in ("high", "normal", "low")] == [3, 6, 9]
    assert value(samples, "velox_inflight_requests") == 30
    assert value(samples, "velox_client_connections") == 60
    assert value(samples, "velox_client_http2_connections") == 15
    assert value(samples, "velox_upstream_connections") == 3
    assert value(samples, "velox_upstream_streams") == 12
    assert value(samples, "velox_upstreams_out") == 3
    labels = {"scope": "key", "unit": "tokens", "decision": "granted"}
    assert value(samples, "velox_limit_decisions_total", **labels) == 3
    found = [value(samples, "velox_tokens_total", kind=name) for name in ("estimated", "input", "output", "refunded")]
    assert found == [300, 192, 18, 90]
    assert value(samples, "velox_event_loop_lag_seconds_count") == 3
    assert value(samples, "velox_event_loop_lag_seconds_sum") == 3


def test_respawned_worker_counts_on_and_starts_with_zero_gauges() -> None:
    """Counters never go back when a worker is replaced; what the dead one had open is gone."""
    segment = new_segment()
    dead = WorkerMetrics(segment.metrics(0))
    dead.count_attempt(AttemptOutcome.RESET)
    dead.set_inflight(7)
    dead.set_pool(2, 7)
    dead.set_queue_depth(Priority.LOW, 7)

    WorkerMetrics(segment.metrics(0)).count_attempt(AttemptOutcome.RESET)

    samples = scrape(segment)
    assert value(samples, "velox_upstream_attempts_total", outcome="reset") == 2
    assert value(samples, "velox_inflight_requests") == 0
    assert value(samples, "velox_upstream_streams") == 0
    assert value(samples, "velox_queue_depth", class_="low") == 0


def test_shed_reasons_are_gateway_refusals() -> None:
    """To shed is to refuse because the gateway can't serve now: each such reason is its own and safe to retry."""
    assert {Reason.LIMITS_UNAVAILABLE, Reason.LEDGER_FULL} <= set(SHED_REASONS)
    assert all(r.fact.blame is Blame.GATEWAY and r.fact.should_retry for r in SHED_REASONS)
    with pytest.raises(KeyError):
        WorkerMetrics(new_segment().metrics(0)).count_shed(Reason.INTERNAL)


def test_page_adds_up_both_processes_of_a_slot_that_is_changing_over() -> None:
    """What the one that leaves has counted stays; the slot has one line, with what serves in it."""
    segment = Segment(1, series.CELLS, spares=1)
    old, new = WorkerStatus(segment, 0), WorkerStatus(segment, 1)
    old.state, old.resident_bytes, old.refuses = WorkerState.DRAINING, 300, True
    new.state, new.resident_bytes = WorkerState.READY, 40
    old.count_restart(RestartCause.MEMORY)
    WorkerMetrics(segment.metrics(0)).count_shed(Reason.CONN_LIMIT)
    WorkerMetrics(segment.metrics(1)).count_shed(Reason.CONN_LIMIT)

    samples = scrape(segment)

    assert value(samples, "velox_shed_total", reason="conn_limit") == 2
    assert value(samples, "velox_worker_up", worker="0") == 1
    assert value(samples, "velox_worker_resident_bytes", worker="0") == 40
    assert value(samples, "velox_worker_short_of_memory", worker="0") == 0
    assert value(samples, "velox_worker_restarts_total", worker="0", cause="memory") == 1
    assert [key for key in samples if dict(key[1]).get("worker") == "1"] == []


def test_page_shows_how_full_the_table_of_limits_is() -> None:
    """Rows that are used and free, and how often there was none."""
    memory = QuotaMemory(64, 1)
    QuotaTable(memory, 0).quota(7, BucketRate.from_rpm(60, 1, 0.0)).take(1, 10**12)
    memory.count_overflow(0)

    page = render(new_segment(), quotas=memory).decode()

    assert 'velox_limit_rows{state="used"} 1.0' in page and 'velox_limit_rows{state="free"} 63.0' in page
    assert "velox_limit_rows_overflow_total 1.0" in page


class CountedBudgets(BudgetMemory):
    """Counts how often a budget is added up."""

    n_states = 0

    def state(self, row: int, now_s: float) -> BudgetState | None:
        """Add it up, and count that."""
        self.n_states += 1
        return super().state(row, now_s)


def spend(memory: BudgetMemory, rule: BudgetRule, who: str, tokens: int, now_s: float = 1000.0) -> None:
    budget = BudgetTable(memory, 0).budget(rule, who.partition(" ")[0], who, now_s)
    hold = budget.hold(0, now_s)
    assert hold is not None
    budget.spend(hold, tokens)


def spent(memory: BudgetMemory, *scopes: str) -> dict[str, float]:
    """Return what the page shows as spent, by name."""
    page = render(new_segment(), budgets=memory, scopes=scopes).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    samples = families["velox_budget_spent"].samples
    assert len({frozenset(sample.labels.items()) for sample in samples}) == len(samples)
    return {sample.labels["name"]: sample.value for sample in samples}


TOTAL = parse_budget({"tokens": 100, "window": "total"})


def test_budgets_of_keys_with_one_name_are_told_apart() -> None:
    """Prometheus takes one of two samples with the same labels, and drops the other."""
    memory, rule = BudgetMemory(1000, 1), BudgetRule("budgets[0]", "key", TOTAL)
    for who, tokens in (("61 shop", 5), ("62 shop", 7), ("63 lab", 9)):
        spend(memory, rule, who, tokens)

    assert spent(memory, "key") == {"61 shop": 5, "62 shop": 7, "lab": 9}


def test_counters_of_alerts_start_at_zero() -> None:
    """Else increase() misses the first one. Without records there are none."""
    names = ["velox_budget_overflows_total 0.0", "velox_budget_alerts_total 0.0"]
    names += [f'velox_alert_webhooks_total{{result="{result}"}} 0.0' for result in ("sent", "failed", "dropped")]
    lines = render(new_segment(), budgets=BudgetMemory(1000, 1)).decode().splitlines()
    assert [name for name in names if name not in lines] == []
    assert b"velox_budget" not in render(new_segment()) and b"velox_alert" not in render(new_segment())


def test_budgets_that_begin_at_zero_by_mistake_are_shown() -> None:
    memory = BudgetMemory(1000, 1)
    assert b"\nvelox_budgets_unread 0.0\n" in render(new_segment(), budgets=memory)
    memory.is_unread = True
    assert b"\nvelox_budgets_unread 1.0\n" in render(new_segment(), budgets=memory)


def test_refusals_are_counted_by_budget() -> None:
    """Also 0, so that the first one is an increase."""
    memory, rule = BudgetMemory(1000, 1), BudgetRule("budgets[0]", "team", TOTAL)
    for who, n in (("web", 2), ("lab", 0)):
        budget = BudgetTable(memory, 0).budget(rule, who, who, 1000.0)
        for _ in range(n):
            budget.count_refusal(1000.0)

    page = render(new_segment(), budgets=memory, scopes=("team",)).decode()
    found = {family.name: family for family in text_string_to_metric_families(page)}["velox_budget_refusals"]
    assert {sample.labels["name"]: sample.value for sample in found.samples} == {"web": 2, "lab": 0}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_budget_of_a_rule_whose_filters_have_changed_is_the_last_one(order: tuple[int, int]) -> None:
    """The row of before a reload stays, with the same labels."""
    memory = BudgetMemory(1000, 1)
    for now_s, n in zip((1000.0, 2000.0), order, strict=True):
        spend(memory, BudgetRule("budgets[0]", "team", TOTAL, models=(f"model-{n}",)), "web", 5 + n, now_s)

    assert spent(memory, "team") == {"web": 5 + order[1]}


def test_only_budgets_that_are_shown_are_added_up() -> None:
    """A gateway may have a budget for each of its keys: they must not hold up a page that shows those of teams."""
    memory = CountedBudgets(1000, 1)
    for n in range(100):
        spend(memory, BudgetRule("budgets[0]", "key", TOTAL), f"{n} key", 1)
    spend(memory, BudgetRule("budgets[1]", "team", TOTAL), "web", 3)

    assert spent(memory, "gateway", "team") == {"web": 3}
    assert memory.n_states == 1


def test_many_budgets_of_keys_hide_none_of_the_gateway_and_teams() -> None:
    """Of more than the page shows, the keys that came last are left out."""
    memory = BudgetMemory(9000, 1)
    for n in range(2200):
        spend(memory, BudgetRule("budgets[0]", "key", TOTAL), f"{n} key-{n}", 1, 1000.0 + n)
    for n in range(20):
        spend(memory, BudgetRule("budgets[1]", "team", TOTAL), f"team-{n}", 3, 9000.0)
    spend(memory, BudgetRule("budgets[2]", "gateway", TOTAL), "", 5, 9000.0)

    found = spent(memory, "gateway", "key", "team")

    assert len(found) == 2000
    assert found[""] == 5 and all(found[f"team-{n}"] == 3 for n in range(20))
    assert f"key-{2000 - 22}" in found and f"key-{2000 - 21}" not in found


def test_page_shows_workers_and_restarts_by_cause() -> None:
    """Who is up, who is ready, and how often a worker was replaced, by slot."""
    segment = new_segment(workers=2)
    WorkerStatus(segment, 0).state = WorkerState.READY
    WorkerStatus(segment, 0).upstream_ready = True
    WorkerStatus(segment, 0).heartbeat_ns = 1
    WorkerStatus(segment, 1).count_restart(RestartCause.SIGNAL)
    GatewayStatus(segment).draining = True

    samples = scrape(segment)

    assert [value(samples, "velox_worker_up", worker=w) for w in "01"] == [1, 0]
    assert [value(samples, "velox_worker_upstream_ready", worker=w) for w in "01"] == [1, 0]
    assert value(samples, "velox_worker_heartbeat_age_seconds", worker="0") > 0
    assert value(samples, "velox_worker_restarts_total", worker="1", cause="signal") == 1
    assert value(samples, "velox_worker_restarts_total", worker="0", cause="signal") == 0
    assert value(samples, "velox_draining") == 1


def test_page_reads_processes_and_skips_those_that_are_gone(tmp_path: Path) -> None:
    """CPU, memory and descriptors of each process, whatever its name; a dead one is left out."""
    segment = new_segment(workers=2)
    WorkerStatus(segment, 0).pid = 41
    WorkerStatus(segment, 1).pid = 42
    fields = ["R", *["0"] * 10, "150", "50", *["0"] * 8, "25", "0"]
    (tmp_path / "41" / "fd").mkdir(parents=True)
    for fd in "012":
        (tmp_path / "41" / "fd" / fd).touch()
    (tmp_path / "41" / "stat").write_text(f"41 (a) b (c) {' '.join(fields)}")

    samples = scrape(segment, tmp_path)

    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert value(samples, "process_cpu_seconds_total", process="worker-0") == 200 / ticks
    assert value(samples, "process_resident_memory_bytes", process="worker-0") == 25 * page
    assert value(samples, "process_open_fds", process="worker-0") == 3
    assert not any(("process", "worker-1") in labels for _, labels in samples)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_page_reads_the_real_proc() -> None:
    """The field numbers of /proc/PID/stat are the kernel's, not only the test's."""
    segment = new_segment()
    GatewayStatus(segment).supervisor_pid = os.getpid()

    samples = scrape(segment)

    times = os.times()
    cpu = value(samples, "process_cpu_seconds_total", process="supervisor")
    assert cpu == pytest.approx(times.user + times.system, abs=0.1)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 5_000_000 < value(samples, "process_resident_memory_bytes", process="supervisor") <= most
    assert not any(("process", "admin") in labels for _, labels in samples)


def test_content_type_is_the_text_format() -> None:
    """Prometheus picks its parser by this."""
    assert CONTENT_TYPE == b"text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(("status", "reason"), [(200, None), (429, Reason.UPSTREAM_STATUS), (502, Reason.INTERNAL)])
@pytest.mark.parametrize("ns", [0, 1, 50_000, 50_001, 1_234_567_890, 10**12])
def test_one_call_records_what_single_ones_would(ns: int, status: int, reason: Reason | None) -> None:
    """A request's steps and its end are recorded by one call each; the page shows the same as after one for each."""
    at_once, singly = new_segment(2), new_segment(2)
    metrics = WorkerMetrics(at_once.metrics(1))
    for endpoint, priority in ((Endpoint.CHAT, Priority.HIGH), (Endpoint.MODELS, Priority.LOW)):
        metrics.record_admission(priority, ns, 2 * ns, 3 * ns)
        metrics.record_reply(None, endpoint, status, reason, 7 * ns, 5 * ns, ns)
        metrics.attempt_answered()

    metrics = WorkerMetrics(singly.metrics(1))
    for endpoint, priority in ((Endpoint.CHAT, Priority.HIGH), (Endpoint.MODELS, Priority.LOW)):
        metrics.queue_wait[priority].observe(ns)
        for phase, took_ns in ((Phase.PARSE, 2 * ns), (Phase.LIMIT, 3 * ns), (Phase.RELAY, ns)):
            metrics.overhead[phase].observe(took_ns)
        metrics.count_request(endpoint, status, reason)
        metrics.duration[endpoint].observe(7 * ns)
        metrics.ttft[endpoint].observe(5 * ns)
        metrics.count_attempt(AttemptOutcome.OK)

    assert at_once.metrics(1).tolist() == singly.metrics(1).tolist()
    assert not any(at_once.metrics(0)), "another worker's"


def test_metrics_in_a_cycle_are_collected() -> None:
    """The collector takes a slab's memoryview apart while something counts in its memory: CPython 3.11 dies of that."""
    for _ in range(100):
        cycle: list[object] = [WorkerMetrics(new_segment().metrics(0))]
        cycle.append(cycle)
    del cycle

    assert gc.collect()


def test_page_has_the_end_of_the_certificate_of_the_admin_listener() -> None:
    """As it is at the scrape; absent without TLS: a 0 would look like one that expired long ago."""
    name = "velox_admin_tls_certificate_not_after_seconds"

    assert f"\n{name} 1.234e+09\n" in render(new_segment(), admin_not_after_s=lambda: 1234000000).decode()
    assert f"\n{name} " not in render(new_segment()).decode()


def test_budgets_near_their_end_are_counted_by_scope() -> None:
    """Less than a tenth is left, what requests hold taken off; scopes that are not shown are not counted."""
    memory, rule = BudgetMemory(1000, 1), BudgetRule("budgets[0]", "team", TOTAL)
    for who, tokens in (("web", 90), ("lab", 91), ("ops", 100)):
        spend(memory, rule, who, tokens)
    page = render(new_segment(), budgets=memory, scopes=("team", "key")).decode()
    assert 'velox_budgets_near_end{scope="team"} 2.0' in page
    assert 'velox_budgets_near_end{scope="key"} 0.0' in page
    assert 'velox_budgets_near_end{scope="gateway"}' not in page


def test_ledger_that_can_not_be_written_is_told() -> None:
    """Its process says so; without records there is no such figure."""
    segment = new_segment()
    assert b"\nvelox_ledger_writable " not in render(segment)
    assert b"\nvelox_ledger_writable 1.0" in render(segment, records=[])
    GatewayStatus(segment).ledger_is_failing = True
    assert b"\nvelox_ledger_writable 0.0" in render(segment, records=[])
