"""Rounds: every subject once in each, in an order that rotates, the first round dropped. And what is made of them.

Knows: order and medians. Does not know: what is measured.

A machine's speed drifts (other work, frequency, caches), so two figures are comparable only when they were taken
within seconds of each other: ratios are taken within a round, and the median of those is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

__all__ = ["Figures", "Measure", "Spread", "ratios", "run_rounds", "spread"]

# subject -> one dict of figures per round.
Figures: TypeAlias = dict[str, list[dict[str, float]]]
# Measures for about so many seconds.
Measure: TypeAlias = Callable[[float], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest value."""

    median: float
    least: float
    greatest: float


def rotated(subjects: Sequence[str], turn: int) -> list[str]:
    """Return the subjects, beginning with another one each turn."""
    first = turn % len(subjects)
    return [*subjects[first:], *subjects[:first]]


def run_rounds(measures: Mapping[str, Measure], n_rounds: int, seconds: float) -> Figures:
    """Call each measure with `seconds` in each of n_rounds rounds, after one short round that is dropped."""
    figures: Figures = {name: [] for name in measures}
    for name in measures:
        measures[name](min(seconds, 1.0))
    for turn in range(n_rounds):
        for name in rotated(list(measures), turn):
            figures[name].append(measures[name](seconds))
    return figures


def spread(values: Sequence[float]) -> Spread:
    """Summarise values; there is at least one."""
    return Spread(median(values), min(values), max(values))


def ratios(figures: Figures, subject: str, reference: str, key: str) -> Spread:
    """Return subject ÷ reference, round by round."""
    pairs = zip(figures[subject], figures[reference], strict=True)
    return spread([ours[key] / theirs[key] for ours, theirs in pairs])
