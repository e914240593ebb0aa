"""Do two runs say the same? For each figure: does each run's median lie in the other's range?

Knows: two documents. Does not know: how they came to be.

Two samples of five rounds from one and the same distribution have both medians outside the other's range about once in
twenty figures, whatever is measured: only more than that is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.rounds import Spread, spread

__all__ = ["ALLOWED", "Difference", "compare", "report"]

# The share of figures that may differ.
ALLOWED: Final = 0.1
_KEYS: Final = (
    "cpu_us",
    "per_s",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "p999_ms",
    "ttfe_p50_ms",
    "gap_p99_ms",
    "way_p50_ms",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of which neither median lies in the other run's range."""

    cell: str
    subject: str
    key: str
    ours: Spread
    theirs: Spread

    def __str__(self) -> str:
        ours, theirs = (f"{s.median:.4g} ({s.least:.4g}-{s.greatest:.4g})" for s in (self.ours, self.theirs))
        return f"{self.cell}, {self.subject}, {self.key}: {ours} and {theirs}"


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[int, list[Difference]]:
    """Return how many figures both runs have, and those that differ."""
    n = 0
    found = []
    for cell, subject, key, a, b in _pairs(ours, theirs):
        n += 1
        one, other = spread(a), spread(b)
        if not (other.least <= one.median <= other.greatest or one.least <= other.median <= one.greatest):
            found.append(Difference(cell, subject, key, one, other))
    return n, found


def _pairs(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, Sequence[float], Sequence[float]]]:
    cells = {cell["id"]: cell for cell in theirs["cells"]}
    for cell in ours["cells"]:
        other = cells.get(cell["id"], {"rounds": {}})["rounds"]
        for subject in cell["rounds"].keys() & other.keys():
            for key in _KEYS:
                a, b = ([each[key] for each in rounds[subject] if key in each] for rounds in (cell["rounds"], other))
                if a and b:
                    yield cell["id"], subject, key, a, b


def report(n: int, differences: Sequence[Difference], allowed: float = ALLOWED) -> tuple[str, bool]:
    """Return what there is to say, and whether the runs agree. n: figures that both have; none: they do not."""
    lines = [str(each) for each in sorted(differences, key=lambda d: (d.cell, d.subject, d.key))]
    agrees = n > 0 and len(differences) <= allowed * n
    share = f"{len(differences)} of {n} figures differ; {allowed:.0%} may"
    return "\n".join([*lines, share, "the runs agree" if agrees else "the runs do not agree"]), agrees
