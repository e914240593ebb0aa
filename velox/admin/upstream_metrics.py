"""The families of the metrics page that tell of upstreams: what was counted of their members, summed by name.

Knows: names, help and labels, and which cell of a row is which. Does not know: how rows are found or added up
(velox.shm.upstream_table).

The labels `upstream` and `origin` have what the configuration names, 256 upstreams of 64 origins at most; no request
can add one. Only what is now is by origin: it says which server is out, and how the load is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from velox.outcomes import AttemptOutcome
from velox.policy.health.member import State
from velox.shm.upstream_memory import (
    ATTEMPTS,
    EJECTIONS,
    FIRST_BYTE_NS,
    KEYS_OUT,
    KEYS_RESTING,
    STATES,
    TTFB,
)
from velox.shm.upstream_table import RowTotals

__all__ = ["upstream_families"]

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
