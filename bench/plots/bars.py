"""The bars: what was asked for, what was found, kept or missed and by how much.

Knows: each bar, and in which cell its figure stands. Does not know: how a page looks.

A figure that the run does not have is not judged, and it is said why: a bar that is never measured must not look kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeAlias

from bench.plots.document import Cell, Document
from bench.plots.figures import DIRECT, NGINX, difference, number, of, ratio, shown
from bench.rounds import Spread, spread

__all__ = [
    "COMPILED",
    "CPU",
    "VELOX",
    "VELOX_HTTP2",
    "VELOX_TLS",
    "Bar",
    "all_bars",
    "burst",
    "equal_cell",
    "half_load",
    "json_cell",
    "paced",
]

VELOX: Final = "Velox"
VELOX_HTTP2: Final = "Velox, HTTP/2 up"
VELOX_TLS: Final = "Velox, HTTP/2 over TLS up"
COMPILED: Final = "Velox, compiled"
COMPILED_HTTP2: Final = "Velox, compiled, HTTP/2 up"
ALL_ON: Final = ", all on"  # behind the name of a way in which Velox runs
CPU: Final = "cpu_us"
_ROUTER: Final = "vllm-router"
# One for each worker, one for load and upstream, one for all else: fewer, and two workers share theirs.
_CORES_FOR_TWO: Final = 4
_CONNECTIONS: Final = 32
_JSON_BYTES: Final = range(700, 801)

_Find: TypeAlias = Callable[[Document], Cell | None]
_Made: TypeAlias = Callable[[Cell, str, str, str], Spread | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. found: None if the run can't tell, which `why` explains. cell: where the figure stands, or empty.

    at_least: the figure must not be below `bar`; else not above it. note: what to bear in mind when reading it.
    """

    what: str
    bar: float
    unit: str
    found: Spread | None
    why: str = ""
    at_least: bool = False
    cell: str = ""
    subject: str = ""
    key: str = ""
    note: str = ""

    @property
    def is_kept(self) -> bool | None:
        """Tell whether the median keeps the bar; None if it is not judged."""
        if self.found is None or self.why:
            return None
        return self.found.median >= self.bar if self.at_least else self.found.median <= self.bar

    @property
    def limit(self) -> str:
        """Return the bar in words."""
        space = "" if self.unit == "x" else " "
        return f"at {'least' if self.at_least else 'most'} {self.bar:g}{space}{self.unit}"

    @property
    def verdict(self) -> str:
        """Return kept, missed and by how much, or why it is not judged."""
        kept = self.is_kept
        if kept is None or self.found is None:
            return f"not judged: {self.why or 'not measured in this run'}"
        if kept:
            return "kept"
        return f"**missed** by {abs(self.found.median / self.bar - 1) * 100:.0f} %"


def json_cell(document: Document) -> Cell | None:
    """Return the cell of small JSON requests with real heads at saturation, with 32 connections if there is one."""
    return _saturated(document, "real")


def equal_cell(document: Document) -> Cell | None:
    """Return the same cell with equal heads."""
    return _saturated(document, "equal")


def _saturated(document: Document, heads: str) -> Cell | None:
    cells = [each for each in document.cells if _is_small_json(each) and each.heads == heads]
    cells = [each for each in cells if not each.is_open and each.upstream == "http1"]
    return min(cells, key=lambda each: abs(each.connections - _CONNECTIONS), default=None)


def burst(document: Document) -> Cell | None:
    """Return the cell of streams as fast as the upstream writes."""
    return _stream(document, is_paced=False)


def paced(document: Document) -> Cell | None:
    """Return the cell of streams at a model's pace."""
    return _stream(document, is_paced=True)


def half_load(document: Document) -> Cell | None:
    """Return the open-loop cell whose rate is nearest to half of what Velox can serve."""
    cells = [each for each in document.cells if _is_small_json(each) and each.is_open and VELOX in each.columns]
    top = json_cell(document) or equal_cell(document)
    most = of(top, VELOX, "per_s") if top else None
    if most is None:
        return max(cells, key=lambda each: each.rate, default=None)
    half = most.median / 2
    return min(cells, key=lambda each: abs(each.rate - half), default=None)


def all_bars(document: Document) -> list[Bar]:
    """Return every bar, in the order of the page."""
    bars = [_ratio_bar(document, *each) for each in _RATIOS]
    if COMPILED in document.subjects:
        bars += [_ratio_bar(document, *each) for each in _of_compiled()]
    equal = ("CPU per JSON request with equal heads", equal_cell)
    for what, find in (("CPU per JSON request", json_cell), equal, *_STREAMS):
        bars.append(_below_every_gateway(document, f"{what}, of the cheapest LLM gateway's", find))
    bars += _added(document)
    return bars + _of_memory(document) + [_two_workers(document)]


def _is_small_json(cell: Cell) -> bool:
    return cell.is_plain and not cell.stream and cell.body_bytes in _JSON_BYTES


def _stream(document: Document, *, is_paced: bool) -> Cell | None:
    cells = [each for each in document.cells if each.stream and each.is_plain and not each.chunks]
    cells = [each for each in cells if (each.interval_s > 0) == is_paced]
    return next((each for each in cells if each.upstream == "http1"), None)


_STREAMS: Final[tuple[tuple[str, _Find], ...]] = (
    ("CPU per SSE chunk, burst", burst),
    ("CPU per SSE chunk, paced", paced),
)

# (what, cell, subject, reference, bar)
_RATIOS: Final[tuple[tuple[str, _Find, str, str, float], ...]] = (
    ("CPU per JSON request, HTTP/1.1 up, of nginx's", json_cell, VELOX, NGINX, 2.0),
    ("CPU per JSON request, HTTP/2 up, of nginx's", json_cell, VELOX_HTTP2, NGINX, 2.3),
    ("CPU per JSON request with equal heads, HTTP/1.1 up, of nginx's", equal_cell, VELOX, NGINX, 2.6),
    ("CPU per JSON request with equal heads, HTTP/2 up, of nginx's", equal_cell, VELOX_HTTP2, NGINX, 2.6),
    ("CPU per JSON request, HTTP/1.1 up, of vllm-router's", json_cell, VELOX, _ROUTER, 0.65),
    ("CPU per JSON request, HTTP/2 up, of vllm-router's", json_cell, VELOX_HTTP2, _ROUTER, 0.65),
    ("CPU per JSON request, HTTP/2 over TLS 1.3 up, of that without TLS", json_cell, VELOX_TLS, VELOX_HTTP2, 1.3),
    ("CPU per SSE chunk, burst, HTTP/1.1 up, of nginx's", burst, VELOX, NGINX, 1.1),
    ("CPU per SSE chunk, burst, HTTP/2 up, of nginx's", burst, VELOX_HTTP2, NGINX, 1.1),
    ("CPU per SSE chunk, paced, HTTP/1.1 up, of nginx's", paced, VELOX, NGINX, 1.3),
    ("CPU per SSE chunk, paced, HTTP/2 up, of nginx's", paced, VELOX_HTTP2, NGINX, 1.2),
)


def _of_compiled() -> list[tuple[str, _Find, str, str, float]]:
    """Return the bars of both ways up once more, for the compiled build."""
    other = {VELOX: COMPILED, VELOX_HTTP2: COMPILED_HTTP2}
    return [
        (f"compiled: {what}", find, other[subject], reference, bar)
        for what, find, subject, reference, bar in _RATIOS
        if subject in other
    ]


def _ratio_bar(document: Document, what: str, find: _Find, subject: str, reference: str, bar: float) -> Bar:
    cell = _home(document, find, subject)
    if cell is None:
        return Bar(what, bar, "x", None)
    found = ratio(cell, subject, reference, CPU)
    why = "" if found else _absence(document, cell, subject) or _absence(document, cell, reference)
    note = _writes(cell, subject, reference) if found and find is burst else ""
    return Bar(what, bar, "x", found, why, cell=cell.id, subject=subject, key=CPU, note=note)


def _home(document: Document, find: _Find, subject: str) -> Cell | None:
    """Return the cell; or, if the subject has one of its own for the same work over another upstream, that."""
    cell = find(document)
    if cell is None or subject in cell.columns:
        return cell
    others = [each for each in document.cells if subject in each.columns and _work(each) == _work(cell)]
    return others[0] if others else cell


def _work(cell: Cell) -> tuple[object, ...]:
    """Return what is alike in two cells that differ in their upstream only."""
    return (
        cell.stream,
        cell.is_open,
        cell.body_bytes,
        cell.connections,
        cell.interval_s,
        cell.is_plain,
        cell.heads,
        cell.chunks,
    )


def _writes(cell: Cell, subject: str, reference: str) -> str:
    """Say how many chunks each passes on in a write: who has more of them has less to do for each."""
    ours, theirs = (of(cell, each, "chunks_per_write") for each in (subject, reference))
    if ours is None or theirs is None:
        return ""
    return f" ({number(ours.median)} chunks a write, {reference} {number(theirs.median)})"


def _absence(document: Document, cell: Cell, subject: str) -> str:
    """Say why a subject has no figure in a cell; empty if it has."""
    if subject in cell.columns:
        return "" if of(cell, subject, CPU) else f"{subject} lacks a round"
    if subject in document.missing:
        return f"{subject} is missing"
    return f"{subject} is not in this cell"


def _below_every_gateway(document: Document, what: str, find: _Find) -> Bar:
    cell = find(document)
    if cell is None:
        return Bar(what, 1.0, "x", None)
    found = [ratio(cell, VELOX, each, CPU) for each in document.of_kind("llm")]
    # The cheapest is the one of which Velox takes the most.
    known = sorted((each for each in found if each is not None), key=lambda each: each.median)
    why = "" if known else "no LLM gateway is in this cell"
    # Which one it is can't be told by a column of the cell's table: no cell, so that it stands in the list only.
    return Bar(what, 1.0, "x", known[-1] if known else None, why)


def _added(document: Document) -> list[Bar]:
    """Return the bars of the latency over direct: differences of percentiles, and called so."""
    cell = half_load(document)
    bars = []
    for name, key, bar in (("p50", "p50_ms", 0.3), ("p99", "p99_ms", 1.5)):
        rate = f" at {cell.rate:,.0f} requests/s" if cell else ""
        what = f"added latency{rate}: {name}, difference of percentiles to direct"
        found = difference(cell, VELOX, DIRECT, key) if cell else None
        bars.append(Bar(what, bar, "ms", found, cell=cell.id if cell else "", subject=VELOX, key=key))
    return bars


def _of_memory(document: Document) -> list[Bar]:
    memory = document.memory.get(VELOX)
    return [
        Bar("memory of a gateway with one worker, at rest", 60, "MB", _single(memory.rest_mb if memory else math.nan)),
        Bar("memory of an idle connection", 20, "KB", _single(memory.idle_kb if memory else math.nan)),
        Bar("start to ready", 1, "s", spread(memory.start_s) if memory and memory.start_s else None),
    ]


def _single(value: float) -> Spread | None:
    return None if math.isnan(value) else spread([value])


def _two_workers(document: Document) -> Bar:
    what = "requests/s of two workers, of those of one"
    per_s: dict[float, list[float]] = {}
    for workers, value in document.cores.get(VELOX, ()):
        per_s.setdefault(workers, []).append(value)
    if not {1, 2} <= per_s.keys():
        return Bar(what, 1.8, "x", None, at_least=True)
    found = _single(median(per_s[2]) / median(per_s[1]))
    n_cores = document.machine.get("cores", 0)
    why = f"on {n_cores} cores load and upstream share the second worker's" if n_cores < _CORES_FOR_TWO else ""
    return Bar(what, 1.8, "x", found, why, at_least=True)


def shown_bars(bars: Sequence[Bar]) -> str:
    """Return the bars as a Markdown table."""
    lines = ["| what | bar | found: median (least to greatest) | |", "|---|---|---|---|"]
    lines += [
        f"| {each.what} | {each.limit} | {shown(each.found, each.unit)} | {each.verdict}{each.note} |" for each in bars
    ]
    return "\n".join(lines)
