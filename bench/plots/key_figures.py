"""The few figures that stand in README.md, each out of the same run as the pages.

Knows: which figures, and of whom. Does not know: how they were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from bench.plots.bars import ALL_ON, COMPILED, CPU, VELOX, Bar, equal_cell, half_load, json_cell, paced
from bench.plots.document import Cell, Document
from bench.plots.figures import DIRECT, NGINX, difference, number, of, shown
from bench.rounds import spread

__all__ = ["kept", "key_figures"]


REAL: Final = "CPU per JSON request, with the headers of real clients and providers"
# The row of README.md that is no client's traffic, and says so.
ALL: Final = "the same with a ledger, budgets, and `rpm` and `tpm` of each of 100 keys (the others as above)"
EQUAL: Final = "CPU per JSON request, all headers equal (as load generators send, and no real client)"


def key_figures(document: Document) -> str:
    """Return the table: Velox, nginx, and the LLM gateways from the best to the worst.

    Equal heads stand there only while there is no figure of real ones.
    """
    real = json_cell(document)
    of_json = (REAL, real) if real is not None else (EQUAL, equal_cell(document))
    rows = [
        _row(document, *of_json, CPU, "µs"),
        _row(document, ALL, real, CPU, "µs", ours=ALL_ON),
        _row(document, "requests/s on one core", real, "per_s", ""),
        _row(document, "CPU per streamed chunk, at a model's pace", paced(document), CPU, "µs"),
    ]
    cell = half_load(document)
    if cell is not None:
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms")):
            what = f"added to {name} at {cell.rate:,.0f} requests/s (difference of percentiles)"
            rows.append(_row(document, what, cell, key, "ms", over_direct=True))
    rows += _of_processes(document)
    ours = " | ".join(_own(document))
    lines = [
        f"| median (least to greatest) | {ours} | nginx | LLM gateways |",
        f"|---|{'---|' * len(_own(document))}---|---|",
    ]
    return "\n".join(lines + [row for row in rows if row])


def _own(document: Document) -> list[str]:
    """Return the columns of Velox: plain, and compiled where that was measured."""
    return [VELOX, COMPILED] if COMPILED in document.subjects else [VELOX]


def kept(bars: Sequence[Bar]) -> str:
    """Return how many targets are met, in a sentence."""
    judged = [each for each in bars if each.is_kept is not None]
    n_kept = sum(1 for each in judged if each.is_kept)
    rest = len(bars) - len(judged)
    not_judged = f"; {rest} could not be judged" if rest else ""
    return f"Of {len(judged)} targets judged, {n_kept} are met and {len(judged) - n_kept} missed{not_judged}"


def _row(
    document: Document,
    what: str,
    cell: Cell | None,
    key: str,
    unit: str,
    *,
    over_direct: bool = False,
    ours: str = "",
) -> str:
    """Return a line of the table; empty if Velox has no such figure. ours: the rest of the names of ways it runs."""
    if cell is None:
        return ""
    own = [f"{name}{ours}" for name in _own(document)]
    found = {
        name: difference(cell, name, DIRECT, key) if over_direct else of(cell, name, key)
        for name in (*own, NGINX, *document.of_kind("llm"))
    }
    if found[own[0]] is None:
        return ""
    first = " | ".join(shown(found.pop(name), unit) for name in (*own, NGINX))
    others = {name: each.median for name, each in found.items() if each is not None}
    return f"| {what} | {first} | {_range(others, unit, key == 'per_s')} |"


def _of_processes(document: Document) -> list[str]:
    """Return the lines of memory and start."""
    rest = {name: each.rest_mb for name, each in document.memory.items() if not math.isnan(each.rest_mb)}
    start = {name: spread(each.start_s).median for name, each in document.memory.items() if each.start_s}
    rows = []
    for what, values, unit in (("memory at rest", rest, "MB"), ("start to ready", start, "s")):
        if VELOX in values:
            others = {name: values[name] for name in document.of_kind("llm") if name in values}
            names = (*_own(document), NGINX)
            first = " | ".join(f"{number(values[name])} {unit}" if name in values else "" for name in names)
            rows.append(f"| {what} | {first} | {_range(others, unit)} |")
    return rows


def _range(values: dict[str, float], unit: str, more_is_better: bool = False) -> str:
    """Return the best and the worst of others by name."""
    if not values:
        return ""
    best, *_ = order = sorted(values, key=lambda name: -values[name] if more_is_better else values[name])
    worst = order[-1]
    space = " " if unit else ""
    first = f"{number(values[best])}{space}{unit} ({best})"
    return first if best == worst else f"{first} to {number(values[worst])}{space}{unit} ({worst})"
