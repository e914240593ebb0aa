"""What is made of the figures of bench.growth: how each series grows, the tables of its page, and its picture.

Knows: medians, the two laws a series may follow, and how they are written. Does not know: how a figure was measured.

A series is called constant where no median lies further from the middle of them than the rounds of a point lie apart
(or a tenth; but no more than 15 %). Else the law that leaves the smaller errors, each as a part of its figure, is
given: a + b·n or a + b·log2(n). Where the better one is still off by more than a quarter somewhere, it is not called
a law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal, TypeAlias

from bench import growth_model
from bench.growth_cells import BALANCES, SERIES
from bench.pictures import new, write

__all__ = ["Document", "Law", "draw", "law_of", "tables"]

# The file as JSON has it: docs/benchmarks/data/growth.json.
Document: TypeAlias = dict[str, Any]
_Rounds: TypeAlias = Sequence[Mapping[str, float]]

_ALIKE: Final = 0.1
_NOISE: Final = 0.15
_OFF: Final = 0.25


@dataclass(frozen=True, slots=True)
class Law:
    """How a figure grows with n. off: the most that it is off, as a part of the figure."""

    kind: Literal["constant", "linear", "log", "none"]
    a: float
    b: float = 0.0
    off: float = 0.0

    def at(self, n: float) -> float:
        """Return the figure at n."""
        return self.a + self.b * (math.log2(n) if self.kind == "log" else n)

    def words(self, unit: str, n_most: float) -> str:
        """Say it. unit: of n. n_most: up to which n it was looked at."""
        if self.kind == "constant":
            return f"constant: {self.a:.1f} µs"
        if self.kind == "none":
            return "no simple law"
        if self.kind == "log":
            return f"{self.a:.1f} µs {_signed(self.b)} µs each time that {unit} double"
        return f"{self.a:.1f} µs {_signed(self.b * _step(n_most))} µs for each {_step(n_most):,} {unit}"


def law_of(points: Mapping[float, Sequence[float]]) -> Law:
    """Return how figures grow. points: by n, the figure of each round."""
    medians = {n: median(values) for n, values in points.items()}
    middle = (min(medians.values()) + max(medians.values())) / 2.0
    noise = max((max(values) - min(values)) / 2.0 / median(values) for values in points.values())
    if all(abs(value - middle) <= max(_ALIKE, min(noise, _NOISE)) * middle for value in medians.values()):
        return Law("constant", median(medians.values()))
    laws = [_fitted("linear", medians)] + [_fitted("log", medians)] * (min(medians) > 0)
    best = min(laws, key=lambda law: law.off)
    return best if best.off <= _OFF else Law("none", best.a, best.b, best.off)


def _fitted(kind: Literal["linear", "log"], medians: Mapping[float, float]) -> Law:
    """Return the law with the least squares of relative errors."""
    points = [(math.log2(n) if kind == "log" else n, value) for n, value in medians.items()]
    weights = [1.0 / (value * value) for _, value in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    square = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    b = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / square
    law = Law(kind, mean_y - b * mean_x, b)
    return Law(kind, law.a, b, max(abs(law.at(n) / value - 1.0) for n, value in medians.items()))


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '-'} {abs(value):.2g}"


def _step(n_most: float) -> int:
    """Return so many of n that what they add can be read: 1, or a hundredth of the most."""
    return 1 if n_most <= 1_000 else int(10 ** math.floor(math.log10(n_most / 10.0)))


# -- the tables ---------------------------------------------------------------------------------------------------


def tables(document: Document) -> dict[str, str]:
    """Return the tables of the page, by the names of their markers."""
    return {
        "machine": _machine(document),
        "laws": _laws(document),
        "points": _points(document),
        "sizes": _sizes(document),
        "rest": _rest(document),
        **growth_model.tables(document),
    }


def _machine(document: Document) -> str:
    machine = document["machine"]
    return (
        f"{document['date']}, {machine['cpu']}, {machine['cores']} cores, CPython {machine['python']}, "
        f"{machine['nginx'].removeprefix('nginx version: ')}, "
        f"commit {machine['commit']}{' and changes' if machine['modified'] else ''}; "
        f"{document['rounds']} rounds of {document['seconds']:g} s."
    )


def _found(document: Document, name: str) -> dict[float, list[float]]:
    return {float(n): [each["cpu_us"] for each in rounds] for n, rounds in document["series"][name].items()}


def _laws(document: Document) -> str:
    lines = ["| what grows | from | to | CPU of a request | off by at most |", "|---|---|---|---|---|"]
    for name, series in SERIES.items():
        points = _found(document, name)
        law = law_of(points)
        off = "" if law.kind == "constant" else f"{law.off * 100:.0f} %"
        words = law.words(series.unit, max(points))
        lines.append(f"| {series.title} | {_count(min(points))} | {_count(max(points))} | {words} | {off} |")
    return "\n".join(lines)


def _points(document: Document) -> str:
    blocks = []
    for name, series in SERIES.items():
        points = document["series"][name]
        lines = [
            f"| {series.title} | {' | '.join(_count(float(n)) for n in points)} |",
            f"|---|{'---|' * len(points)}",
            f"| CPU, µs | {' | '.join(_spread(rounds, 'cpu_us') for rounds in points.values())} |",
            f"| requests/s | {' | '.join(_per_s(rounds) for rounds in points.values())} |",
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _sizes(document: Document) -> str:
    lines = ["| body, KB | CPU, µs | µs more than the smallest, for each KB more |", "|---|---|---|"]
    found = {n: median(values) for n, values in _found(document, "body").items()}
    least = min(found)
    for n, value in found.items():
        more = "" if n == least else f"{(value - found[least]) / (n - least):.2f}"
        lines.append(f"| {_count(n)} | {value:,.1f} | {more} |")
    return "\n".join(lines)


def _rest(document: Document) -> str:
    lines = [
        "| members | start, s | resident, MB | of a core at rest | longest hold, ms | nine of ten, ms | a scrape, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for n, each in document["rest"].items():
        lines.append(
            f"| {int(n):,} | {each['start_s']:.1f} | {each['memory_mb']:,.0f} | {each['cpu_part'] * 100:.1f} % "
            f"| ≤ {each['longest_hold_ms']:g} | ≤ {each['usual_hold_ms']:g} | {each['scrape_s']:.2f} |"
        )
    return "\n".join(lines)


def _per_s(rounds: _Rounds) -> str:
    return f"{median(each['per_s'] for each in rounds):,.0f}"


def _spread(rounds: _Rounds, key: str) -> str:
    values = [each[key] for each in rounds]
    return f"{median(values):,.1f} ({min(values):,.1f}-{max(values):,.1f})"


def _count(n: float) -> str:
    return f"{n:,.0f}" if n == int(n) else f"{n:g}"


# -- the picture --------------------------------------------------------------------------------------------------

_PANELS: Final = (
    ("connections",),
    ("body",),
    tuple(f"members-{balance}" for balance in BALANCES),
    ("keys", "limited-keys"),
    ("routes",),
    ("limits", "other-limits"),
)


def draw(document: Document) -> None:
    """Write docs/benchmarks/growth.svg: a panel for each thing that grows, both axes by powers."""
    figure, panels = new(3, rows=2, height=6.4)
    for axes, names in zip(panels, _PANELS, strict=True):
        for name in names:
            points = _found(document, name)
            at = list(points)
            middle = [median(values) for values in points.values()]
            low = [middle[i] - min(values) for i, values in enumerate(points.values())]
            high = [max(values) - middle[i] for i, values in enumerate(points.values())]
            label = name.removeprefix("members-") if len(names) > 1 else None
            axes.errorbar(at, middle, yerr=[low, high], marker="o", markersize=3, capsize=2, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(bottom=20)
        axes.set_xlabel(SERIES[names[0]].title.partition(",")[0])
        axes.set_ylabel("CPU of a request, µs")
        axes.grid(visible=True, which="major", alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=8)
    write(figure, "benchmarks/growth")
