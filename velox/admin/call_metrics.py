"""The metrics of calls by route, upstream and model, of all workers, in Prometheus' families.

Knows: how the numbers of a series are shown. Does not know: who counts (velox.observe.call_series).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.metrics_core import Metric

from velox.observe import call_series, genai, series
from velox.policy.budgets.budget import NANO_PER_USD
from velox.shm.series_table import Labels

__all__ = ["call_families"]

_LABELS: Final = ("route", "stream", "route_name", "upstream", "model", "team", "key")
_NS: Final = 1e9
# A series: the values of its labels, "" for one that it has not, and its numbers.
_Series: TypeAlias = tuple[Sequence[str], Sequence[int]]


def call_families(totals: Mapping[Labels, list[int]], cells: Sequence[int]) -> Iterator[Metric]:
    """Yield every family. totals: the numbers of each series. cells: of the workers' slabs, added up.

    These have the requests that were sent to no upstream: their series have the label `route` only.
    """
    found = sorted(totals.items())
    yield _histogram(
        *(genai.DURATION, series.DURATION.help, genai.DURATION_NS, _NS),
        [*_unsent(series.DURATION, cells), *_part(found, call_series.DURATION, len(genai.DURATION_NS))],
    )
    yield _histogram(
        *(genai.TTFT, series.TTFT.help, genai.TTFT_NS, _NS),
        [*_unsent(series.TTFT, cells), *_part(found, call_series.FIRST_TOKEN, len(genai.TTFT_NS))],
    )
    yield _histogram(
        *(genai.TPOT, "Time of each token of a stream after its first bytes.", genai.TPOT_NS, _NS),
        _part(found, call_series.OUTPUT_TOKEN, len(genai.TPOT_NS)),
    )
    yield _histogram(
        *(genai.TOKENS, "Tokens of a request, where they are counted.", genai.TOKEN_BOUNDS, 1),
        [
            ((*_filled(labels), kind), numbers)
            for kind, first in (("input", call_series.INPUT_TOKENS), ("output", call_series.OUTPUT_TOKENS))
            for labels, numbers in _part(found, first, len(genai.TOKEN_BOUNDS))
        ],
        "gen_ai_token_type",
    )
    yield _counter(
        "velox_model_tokens",
        "Tokens by kind, where they are counted; cached, cache_written and reasoning are parts of the others.",
        (
            ((*_filled(labels), kind), numbers[at])
            for labels, numbers in found
            for at, kind in enumerate(call_series.KINDS, call_series.KIND_TOKENS)
        ),
        "kind",
    )
    yield _counter(
        "velox_model_cost_usd",
        "What recorded calls cost, in dollars, as far as their prices are known.",
        ((labels, numbers[call_series.COST_NANO] / NANO_PER_USD) for labels, numbers in found),
    )
    yield _counter(
        "velox_model_unpriced_requests",
        "Requests with recorded calls whose cost is not known.",
        ((labels, numbers[call_series.UNPRICED]) for labels, numbers in found),
    )


def _unsent(family: series.Family, cells: Sequence[int]) -> Iterator[_Series]:
    """Yield the series of requests that were sent to no upstream, by their kind of endpoint."""
    for n, labels in enumerate(family.series()):
        first = family.first + n * family.stride
        yield labels, cells[first : first + family.stride]


def _part(found: Iterable[_Series], first: int, n_bounds: int) -> Iterator[_Series]:
    """Yield a histogram of each series. first: where it begins among the numbers."""
    return ((labels, numbers[first : first + n_bounds + 2]) for labels, numbers in found)


def _filled(labels: Sequence[str]) -> Sequence[str]:
    return (*labels, *("",) * (len(_LABELS) - len(labels)))


def _named(labels: Sequence[str], more: str) -> dict[str, str]:
    """Return a series' labels without those that it has not. more: the name of one that follows."""
    return {name: value for name, value in zip((*_LABELS, more), labels, strict=False) if value}


def _histogram(
    name: str, text: str, bounds: Sequence[int], unit: float, found: Iterable[_Series], more: str = ""
) -> Metric:
    """Return a family of those series that have counted something. unit: what the numbers are divided by."""
    metric = Metric(name, text, "histogram")
    shown = [*(repr(bound / unit) for bound in bounds), "+Inf"]
    for values, (*counts, total) in found:
        if any(counts):
            labels = _named(values, more)
            for bound, n in zip(shown, accumulate(counts), strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, n)
            metric.add_sample(f"{name}_count", labels, sum(counts))
            metric.add_sample(f"{name}_sum", labels, total / unit)
    return metric


def _counter(name: str, text: str, found: Iterable[tuple[Sequence[str], float]], more: str = "") -> Metric:
    metric = Metric(name, text, "counter")
    for values, value in found:
        if value:
            metric.add_sample(f"{name}_total", _named(values, more), value)
    return metric
