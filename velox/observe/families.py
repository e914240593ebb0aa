"""The kinds of metric families, and how many cells of a slab each takes.

Knows: names, labels, buckets, offsets. Does not know: which families there are (series.py), or how a cell is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

__all__ = ["Counter", "Gauge", "Histogram", "Label"]

# A label and all the values that it can have.
Label: TypeAlias = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters: a cell for each combination of label values, the last label changes fastest.

    sparse: most combinations never happen; a series is shown from its first event on.
    """

    name: str
    help: str
    first: int
    labels: tuple[Label, ...] = ()
    sparse: bool = False

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + prod(len(values) for _, values in self.labels)

    def series(self) -> list[tuple[str, ...]]:
        """Return the label values of each cell, in the order of the cells."""
        return list(product(*(values for _, values in self.labels)))


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge, or one for each value of a label; the gateway's value is the sum over its workers."""

    name: str
    help: str
    first: int
    label: Label | None = None

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + (len(self.label[1]) if self.label else 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A family of histograms of times.

    A series is its buckets (not cumulative, +Inf last), then its sum in nanoseconds.
    bounds_ns: upper bounds, inclusive as Prometheus has them. label: at most one.
    """

    name: str
    help: str
    first: int
    bounds_ns: tuple[int, ...]
    label: Label | None = None
    sparse: bool = False

    @property
    def stride(self) -> int:
        """Return the number of cells of one series."""
        return len(self.bounds_ns) + 2

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + self.stride * (len(self.label[1]) if self.label else 1)
