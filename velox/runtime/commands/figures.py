"""What follows from two readings of the metrics page: rates, shares, quantiles.

Knows: counters and histograms of Prometheus. Does not know: what is shown of them (top.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Reading", "grown_by", "parse_figures", "quantile", "quantile_between"]

_NOTHING: Final[Mapping[str, str]] = {}


class Sample(NamedTuple):
    """One line of the page."""

    labels: Mapping[str, str]
    value: float


class Reading(NamedTuple):
    """The page at a time. at_s: by a clock that never goes back. samples: by the name of the series."""

    at_s: float
    samples: Mapping[str, list[Sample]]

    def total(self, name: str, where: Mapping[str, str] = _NOTHING) -> float:
        """Return the sum of a series' samples whose labels are as `where` says."""
        return sum(each.value for each in self.samples.get(name, ()) if where.items() <= each.labels.items())

    def by(self, name: str, label: str, where: Mapping[str, str] = _NOTHING) -> dict[str, float]:
        """Return the sums by the values of a label, in the order of the page."""
        found: dict[str, float] = {}
        for each in self.samples.get(name, ()):
            if where.items() <= each.labels.items():
                value = each.labels.get(label, "")
                found[value] = found.get(value, 0.0) + each.value
        return found


def parse_figures(text: str, at_s: float) -> Reading:
    """Return a reading. Raises ValueError for a text that is no metrics page."""
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            samples.setdefault(each.name, []).append(Sample(each.labels, each.value))
    return Reading(at_s, samples)


def grown_by(
    now: Reading, before: Reading, name: str, label: str, where: Mapping[str, str] = _NOTHING
) -> dict[str, float]:
    """Return how much a counter has grown, by the values of a label. One that is lower than before began anew."""
    earlier = before.by(name, label, where)
    found = now.by(name, label, where)
    return {
        value: total - earlier.get(value, 0.0) if total >= earlier.get(value, 0.0) else total
        for value, total in found.items()
    }


def quantile_between(
    now: Reading, before: Reading, name: str, share: float, where: Mapping[str, str] = _NOTHING
) -> float | None:
    """Return a quantile of the times between two readings, in seconds; None if there were none."""
    found = grown_by(now, before, f"{name}_bucket", "le", where)
    return quantile(sorted((float(bound), n) for bound, n in found.items()), share)


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Return a quantile as Prometheus' histogram_quantile() does: by interpolation in the bucket.

    buckets: upper bounds, and how many are up to each, in order; the last is infinite. None: there are no events.
    """
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound, n in buckets:
        if n >= wanted:
            if math.isinf(bound) or n == below:
                return lower
            return lower + (bound - lower) * (wanted - below) / (n - below)
        lower, below = bound, n
    return lower
