"""The pictures of a run: latency, CPU per request, CPU per chunk, workers, memory.

Knows: which figures each shows. Does not know: how they are drawn (charts.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.plots.bars import CPU, burst, equal_cell, json_cell, paced
from bench.plots.charts import Curve, Dot, Panel, distributions, dots, lines
from bench.plots.document import Cell, Document
from bench.plots.figures import DIRECT, NGINX, number, of, ratio

__all__ = ["PICTURES", "Drawing"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture. name: of its file, after the page's. alt: for who sees none. draw: gives "" without figures."""

    name: str
    alt: str
    draw: Callable[[Document], str]


def _latency_of_most(document: Document) -> str:
    """Draw the rate that most subjects can stand, the highest of equals."""
    cell = _of_most(document)
    return _latency(document, cell) if cell else ""


def _latency_of_fastest(document: Document) -> str:
    """Draw the highest rate, unless that is the other picture already."""
    cell = max(_with_latencies(document), key=lambda each: each.rate, default=None)
    return _latency(document, cell) if cell and cell is not _of_most(document) else ""


def _of_most(document: Document) -> Cell | None:
    return max(_with_latencies(document), key=lambda each: (len(each.latencies), each.rate), default=None)


def _with_latencies(document: Document) -> list[Cell]:
    return [each for each in document.cells if each.latencies]


def _latency(document: Document, cell: Cell) -> str:
    curves = [
        Curve(name, _kind(document, name), [(ms, share) for share, ms in points])
        for name, points in cell.latencies.items()
    ]
    half = {
        curve.name: next((ms for ms, share in curve.points if share >= 0.5), curve.points[-1][0]) for curve in curves
    }
    return distributions(
        f"Latency at {cell.rate:,.0f} requests/s, direct and through each gateway",
        f"{cell.title}; all rounds together. Each request is sent when it is due, whatever became of the others.",
        "Share of requests by latency. Half of the requests took at most: " + _listed(half, "ms"),
        curves,
    )


def _cpu_per_request(document: Document) -> str:
    cell = json_cell(document) or equal_cell(document)
    return _cpu("CPU per request, by gateway", document, [(cell, "request")] if cell else [])


def _cpu_per_chunk(document: Document) -> str:
    cells = [each for each in (paced(document), burst(document)) if each]
    return _cpu("CPU per chunk of an event stream, by gateway", document, [(each, "chunk") for each in cells])


def _cpu(title: str, document: Document, cells: list[tuple[Cell, str]]) -> str:
    panels = []
    told = []
    for cell, what in cells:
        rows = _dots(document, cell)
        if rows:
            panels.append(Panel(f"{cell.title}: µs a {what} (log), median with least and greatest", rows, "of nginx"))
            told.append(f"{cell.title}: " + _listed({row.name: row.value.median for row in rows}, "µs"))
    return dots(title, " ".join(told), panels) if panels else ""


def _dots(document: Document, cell: Cell) -> list[Dot]:
    rows = []
    for name in cell.columns:
        value, user, system = (of(cell, name, key) for key in (CPU, "cpu_user_us", "cpu_system_us"))
        if value is None or name == DIRECT or value.greatest <= 0:
            continue
        known = user and system and user.median + system.median > 0
        share = user.median / (user.median + system.median) if known and user and system else math.nan
        times = ratio(cell, name, NGINX, CPU)
        rows.append(Dot(name, _kind(document, name), value, share, f"{number(times.median)}x" if times else ""))
    return sorted(rows, key=lambda row: row.value.median)


def _cores(document: Document) -> str:
    curves = [Curve(name, _kind(document, name), sorted(pairs)) for name, pairs in document.cores.items()]
    if not curves:
        return ""
    ends = {curve.name: curve.points[-1][1] for curve in curves}
    text = "Requests a second by number of workers. With most workers: " + _listed(ends, "requests a second")
    return lines("Throughput by workers", text, curves, ("workers", "requests a second"), is_log=False)


def _memory(document: Document) -> str:
    curves = [
        Curve(name, _kind(document, name), sorted(each.streams))
        for name, each in document.memory.items()
        if each.streams and all(mb > 0 for _, mb in each.streams)
    ]
    if not curves:
        return ""
    ends = {curve.name: curve.points[-1][1] for curve in curves}
    return lines(
        "Memory by streams",
        "Resident memory by number of streams. With the most streams: " + _listed(ends, "MB"),
        curves,
        ("streams at once", "MB resident, all processes of the gateway (log)"),
        is_log=True,
        make=lambda value: f"{number(value)} MB",
    )


def _kind(document: Document, name: str) -> str:
    each = document.subjects.get(name)
    return each.kind if each else "llm"


def _listed(values: dict[str, float], unit: str) -> str:
    ordered = sorted(values.items(), key=lambda each: each[1])
    return ", ".join(f"{name} {number(value)} {unit}" for name, value in ordered) + "."


PICTURES: Final = (
    Drawing("latency", "Latency at a low rate, direct and through each gateway, as distributions", _latency_of_most),
    Drawing("latency-fast", "The same at the highest rate, without those who can't follow", _latency_of_fastest),
    Drawing("cpu-per-request", "CPU per request by gateway, with spread and parts", _cpu_per_request),
    Drawing("cpu-per-chunk", "CPU per chunk of an event stream by gateway, with spread and parts", _cpu_per_chunk),
    Drawing("workers", "Requests a second by number of workers", _cores),
    Drawing("memory", "Resident memory by number of streams, of each gateway", _memory),
)
