"""What is made of a cell's rounds: medians, ratios and differences taken within a round. And how numbers are written.

Knows: pairs of subjects. Does not know: which of them have a bar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.plots.document import Cell
from bench.rounds import Spread, spread

__all__ = ["DIRECT", "NGINX", "difference", "number", "of", "ratio", "shown"]

DIRECT = "direct"
NGINX = "nginx"


def of(cell: Cell, subject: str, key: str) -> Spread | None:
    """Return a figure of a subject; None if a round lacks it."""
    values = _rounds(cell, subject, key)
    return spread(values) if values else None


def ratio(cell: Cell, subject: str, reference: str, key: str) -> Spread | None:
    """Return subject ÷ reference, round by round; None if either lacks a round."""
    return _paired(cell, subject, reference, key, lambda ours, theirs: ours / theirs if theirs else None)


def difference(cell: Cell, subject: str, reference: str, key: str) -> Spread | None:
    """Return subject - reference, round by round; None if either lacks a round."""
    return _paired(cell, subject, reference, key, lambda ours, theirs: ours - theirs)


def number(value: float) -> str:
    """Write three digits that say something: 0.123, 12.3, 123, 25,120."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size < 0.0005 else f"{value:.3f}"


def shown(each: Spread | None, unit: str = "") -> str:
    """Write a median with the least and the greatest value; nothing for None, no spread of a single value."""
    if each is None:
        return ""
    value = f"{number(each.median)}{' ' if unit and unit != 'x' else ''}{unit}"
    return value if each.least == each.greatest else f"{value} ({number(each.least)} to {number(each.greatest)})"


def _rounds(cell: Cell, subject: str, key: str) -> list[float]:
    column = cell.columns.get(subject, {}).get(key, [])
    values = [value for value in column if value is not None]
    return values if len(values) == len(column) else []


def _paired(
    cell: Cell, subject: str, reference: str, key: str, made: Callable[[float, float], float | None]
) -> Spread | None:
    ours, theirs = _rounds(cell, subject, key), _rounds(cell, reference, key)
    # With a round less in one of them nobody knows which of the other's it belongs to.
    if not ours or len(ours) != len(theirs):
        return None
    values: Sequence[float | None] = [made(*pair) for pair in zip(ours, theirs, strict=True)]
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else None
