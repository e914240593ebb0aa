"""A run as Markdown: who was compared, each cell, memory, workers; what is missing is named below each table.

Knows: which columns a cell has. Does not know: bars (bars.py), pictures.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from bench.plots.bars import CPU, VELOX, Bar
from bench.plots.document import Cell, Document, Memory
from bench.plots.figures import DIRECT, NGINX, difference, number, of, ratio, shown
from bench.rounds import spread

__all__ = ["cells", "cores", "machine", "memory", "subjects"]

# What the latency tables have, and the words of their columns.
_TIMES: Final = (
    ("p50_ms", "p50"),
    ("p90_ms", "p90"),
    ("p99_ms", "p99"),
    ("p999_ms", "p99.9"),
    ("ttfe_p50_ms", "first event, p50"),
    ("ttfe_p99_ms", "first event, p99"),
    ("gap_p50_ms", "gap between events, p50"),
    ("gap_p99_ms", "gap between events, p99"),
)
_WIDTH: Final = 150
_LONGEST_REASON: Final = 300
# Below a cell; the whole reason stands below the list of who is compared.
_SHORT_REASON: Final = 100


def machine(document: Document) -> str:
    """Return the lines that say what the run was measured on."""
    facts = document.machine
    modified = " with changes" if facts.get("modified") else ""
    build = ", optimised build" if "--enable-optimizations" in str(facts.get("python_build")) else ""
    load = ", ".join(f"{each:.1f}" for each in facts.get("load_average", ()))
    text = (
        f"{document.date}: {document.rounds} rounds of {document.seconds:g} s a measurement, on {facts.get('cores')} "
        f"cores of {facts.get('cpu')}, Linux {facts.get('kernel')}, CPython {facts.get('python')}{build}, "
        f"commit {facts.get('commit') or 'unknown'}{modified}. Load average when it began: {load or 'unknown'}."
    )
    return _wrapped(_plain(text))


def subjects(document: Document) -> str:
    """Return who was compared, and who is missing."""
    lines = ["| who | had as | what is on |", "|---|---|---|"]
    lines += [
        f"| {name} | {_plain(each.package)} | {_plain(each.features)} |" for name, each in document.subjects.items()
    ]
    return "\n".join(lines) + _named("Not installed or not started", document.missing)


def cells(document: Document, bars: Sequence[Bar]) -> str:
    """Return all cells, each with its tables and who is not in it."""
    return "\n\n".join(_cell(document, each, bars) for each in document.cells)


def memory(document: Document, bars: Sequence[Bar]) -> str:
    """Return memory and starts, and the bars of them."""
    if not document.memory:
        return "This run measured no memory."
    most = max((n for each in document.memory.values() for n, _ in each.streams), default=0)
    lines = [
        f"| who | at rest, MB | an idle connection, KB | under {most:,.0f} streams, MB | start to ready, s |",
        "|---|---|---|---|---|",
    ]
    lines += [_memory_row(name, each, most) for name, each in document.memory.items()]
    absent = {**document.memory_refused, **document.missing}
    return "\n".join(lines) + _named("Not measured", absent, _SHORT_REASON)


def cores(document: Document) -> str:
    """Return throughput by workers, of each subject that can be told how many it has."""
    if not document.cores:
        return "This run measured one worker only."
    workers = sorted({n for each in document.cores.values() for n, _ in each})
    head = [f"{n:g} worker{'s' * (n > 1)}, requests/s" for n in workers]
    if len(workers) > 1:
        head.append(f"{workers[-1]:g} over {workers[0]:g}")
    lines = [f"| who | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name, pairs in document.cores.items():
        of_n = {n: [value for m, value in pairs if m == n] for n in workers}
        row = [shown(spread(values)) if values else "" for values in of_n.values()]
        if len(workers) > 1:
            first, last = (of_n[n] for n in (workers[0], workers[-1]))
            row.append(f"{number(spread(last).median / spread(first).median)}x" if first and last else "")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(document: Document, cell: Cell, bars: Sequence[Bar]) -> str:
    names = _ordered(document, cell)
    parts = [f"### {_plain(cell.title)}"]
    if any(CPU in columns for columns in cell.columns.values()) or not cell.is_open:
        parts.append(_costs(cell, names, bars))
    if cell.is_open or cell.stream:
        times = _times(cell, names, bars)
        if times:
            parts.append(times)
    absent = {**cell.refused, **{name: why for name, why in document.missing.items() if name not in cell.columns}}
    return "\n\n".join(parts) + _named("Not in this cell", absent, _SHORT_REASON)


def _ordered(document: Document, cell: Cell) -> list[str]:
    """Return the cell's subjects in the order of the run; what that does not name comes last."""
    names = [name for name in document.subjects if name in cell.columns]
    return names + [name for name in cell.columns if name not in document.subjects]


def _costs(cell: Cell, names: Sequence[str], bars: Sequence[Bar]) -> str:
    """Return what a request or chunk costs, and how many of them there are a second."""
    what = f"reply of {cell.chunks} chunks" if cell.chunks else "chunk" if cell.stream else "request"
    per_s = "per_s" if not cell.is_open else ""
    columns: dict[str, list[str]] = {
        f"CPU a {what}, µs": [shown(of(cell, name, CPU)) for name in names],
        "user + system": [_parts(cell, name) for name in names],
        "of nginx's": [_times_of(cell, name, NGINX, CPU) for name in names],
        f"{what}s a second" if not cell.chunks else "replies a second": [
            shown(of(cell, name, per_s)) for name in names
        ],
        "of direct's": [_times_of(cell, name, DIRECT, per_s) for name in names],
        "chunks a write": [shown(of(cell, name, "chunks_per_write")) for name in names],
        "of a core": [_percent(cell, name, "busy") for name in names],
        "errors": [_percent(cell, name, "error_share") or _errors(cell, name) for name in names],
        "bar": [_verdicts(cell, name, bars, lambda key: key == CPU) for name in names],
    }
    return _table(names, columns, "median of the rounds (least to greatest)")


def _times(cell: Cell, names: Sequence[str], bars: Sequence[Bar]) -> str:
    """Return how long it takes, and how much longer than direct; empty if no time was measured."""
    taken = {words: [shown(of(cell, name, key)) for name in names] for key, words in _TIMES}
    if not any(value for values in taken.values() for value in values):
        return ""
    others = [name for name in names if name != DIRECT]
    added = {words: [shown(difference(cell, name, DIRECT, key)) for name in others] for key, words in _TIMES}
    keys = {key for key, _ in _TIMES}
    verdicts = [_verdicts(cell, name, bars, keys.__contains__) for name in others]
    tables = [_table(names, taken, "ms: median of the rounds (least to greatest)")]
    if any(value for values in added.values() for value in values):
        tables.append(_table(others, {**added, "bar": verdicts}, "over direct, ms: difference of percentiles"))
    return "\n\n".join(tables)


def _table(names: Sequence[str], columns: Mapping[str, Sequence[str]], what: str) -> str:
    """Return the columns and rows that say something, a row a subject."""
    kept = {head: values for head, values in columns.items() if any(values)}
    lines = [f"| {what} | {' | '.join(kept)} |", "|---" * (len(kept) + 1) + "|"]
    for index, name in enumerate(names):
        values = [column[index] for column in kept.values()]
        if any(values):
            strong = f"**{name}**" if name.startswith(VELOX) else name
            lines.append(f"| {strong} | {' | '.join(values)} |")
    return "\n".join(lines)


def _parts(cell: Cell, name: str) -> str:
    user, system = of(cell, name, "cpu_user_us"), of(cell, name, "cpu_system_us")
    return f"{number(user.median)} + {number(system.median)}" if user and system else ""


def _times_of(cell: Cell, name: str, reference: str, key: str) -> str:
    return shown(ratio(cell, name, reference, key), "x") if name != reference else ""


def _percent(cell: Cell, name: str, key: str) -> str:
    """Return a share as percent; nothing if it was not measured."""
    value = of(cell, name, key)
    return "" if value is None else f"{number(value.median * 100)} %"


def _errors(cell: Cell, name: str) -> str:
    """Return the errors of all rounds; nothing if there were none."""
    total = sum(value for value in cell.columns[name].get("errors", ()) if value)
    return number(total) if total else ""


def _verdicts(cell: Cell, name: str, bars: Sequence[Bar], wanted: Callable[[str], bool]) -> str:
    found = [each for each in bars if each.cell == cell.id and each.subject == name and wanted(each.key)]
    return "; ".join(f"{_reference(each)}{each.limit}: {each.verdict}" for each in found)


def _reference(bar: Bar) -> str:
    """Return whose figure, or which percentile, a bar is about: its words' end."""
    if bar.unit == "x":
        return f"{bar.what.rpartition(', ')[2]} "
    return f"{bar.key.removesuffix('_ms')} added "


def _memory_row(name: str, each: Memory, most: float) -> str:
    under = [mb for n, mb in each.streams if n == most]
    values = [
        _known(each.rest_mb),
        _known(each.idle_kb),
        number(under[-1]) if under else "",
        shown(spread(each.start_s)) if each.start_s else "",
    ]
    return f"| {name} | {' | '.join(values)} |"


def _known(value: float) -> str:
    return "" if math.isnan(value) else number(value)


def _named(what: str, reasons: Mapping[str, str], longest: int = _LONGEST_REASON) -> str:
    """Return a paragraph that names subjects with why; empty without any."""
    if not reasons:
        return ""
    items = [_wrapped(f"- {name}: {_plain(why, longest)}", "  ") for name, why in reasons.items()]
    return f"\n\n{what}:\n\n" + "\n".join(items)


def _plain(text: str, longest: int = _LONGEST_REASON) -> str:
    """Return text as one line that Markdown takes for text: reasons may be the last lines of any installer."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = f"{line[:longest]} ..."
    return re.sub(r"([|<*_`\[\]])", r"\\\1", line)


def _wrapped(text: str, indent: str = "") -> str:
    return "\n".join(_lines(text, indent))


def _lines(text: str, indent: str) -> Iterable[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
