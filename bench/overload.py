"""A gateway under half to ten times what its upstream can serve: what is served, how fast, how fast the rest is told.

    python -m bench.overload                      # about 2 minutes; writes table and picture of docs/overload.md
    python -m bench.overload --seconds 0.3 --dry  # does it run? writes nothing

Everything is real: `velox sim` with a capacity, `velox serve` with its defaults but for VELOX_UPSTREAM_CONCURRENCY, 512
kept connections. Requests come at random times whether or not earlier ones were answered, for answers of random length;
a request's time counts from when it was due. The loads follow each other on one gateway, in three rounds; the first
third of each is dropped, figures are medians of the rounds with the least and the greatest. Throughput is the time that
the answers served take at full speed.

Knows: the loads, and what a client sees. Does not know: how a request is let in or refused.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.crowd import Answer, Request, offer, requests, service_s
from bench.open_loop import percentile
from bench.rounds import Spread, spread
from bench.simulated import MemoryWatch, gateway
from docs.tables import fill

__all__ = ["main"]

_DOCS: Final = Path(__file__).parent.parent / "docs"
_CAPACITY: Final = 24
_LENGTHS: Final = (6, 16)  # tokens, evenly: 100 to 200 ms
_PEAK: Final = _CAPACITY / service_s(sum(_LENGTHS) // 2)  # answers a second: 160
_LOADS: Final = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_ROUNDS: Final = 3
_DROPPED: Final = 1 / 3
_HELD: Final = 6.0  # the last load is held for so many times as long, for the memory


@dataclass(frozen=True, slots=True)
class Step:
    """What became of the requests of one load in one round. Times in seconds; served: of the capacity."""

    load: float
    served: float
    accepted: tuple[float, float]  # p50, p99
    refused: tuple[float, float] | None
    n_refused: int
    n: int


def _plan(loads: Sequence[tuple[float, float]]) -> list[Request]:
    """Return the requests of loads (of capacity, seconds) that follow each other."""
    due: list[Request] = []
    from_s = 0.0
    for index, (load, seconds) in enumerate(loads):
        due += requests("chat", _PEAK * load, seconds, _LENGTHS, from_s=from_s, seed=index + 1)
        from_s += seconds
    return due


def _step(answers: Sequence[Answer], load: float, from_s: float, seconds: float) -> Step:
    """Sum up one load: what was due in it, and what was served in it."""
    until_s = from_s + seconds
    from_s += seconds * _DROPPED
    asked = [each for each in answers if from_s <= each.due_s < until_s]
    accepted = sorted(each.took_s for each in asked if each.status == 200)
    refused = sorted(each.took_s for each in asked if each.status != 200)
    ended = [each for each in answers if each.status == 200 and from_s <= each.due_s + each.took_s < until_s]
    served = sum(each.service_s for each in ended) / (until_s - from_s) / _CAPACITY
    return Step(load, served, _both(accepted), _both(refused) if refused else None, len(refused), len(asked))


def _both(ordered: list[float]) -> tuple[float, float]:
    return (percentile(ordered, 0.5), percentile(ordered, 0.99)) if ordered else (math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Run:
    """One gateway's run: its steps, the answers, and its memory over time. held_s: when the last load began."""

    limit: str
    steps: list[Step]
    answers: list[Answer]
    memory: list[tuple[float, float]]
    held_s: float

    def of(self, load: float) -> list[Step]:
        return [step for step in self.steps if step.load == load]


def _run(limit: str, loads: Sequence[float], rounds: int, seconds: float, *, n_dropped: int = 0) -> Run:
    """Measure one gateway. n_dropped: rounds before those that count."""
    plan = [(load, seconds) for _ in range(n_dropped + rounds) for load in loads]
    held_s = len(plan) * seconds
    with (
        gateway(_CAPACITY, {"VELOX_UPSTREAM_CONCURRENCY": limit}) as velox,
        MemoryWatch(velox.pid) as memory,
    ):
        # The upstream's connections, and what a process needs once.
        offer(velox.port, _plan([(1.0, seconds)]), 64)
        answers = offer(velox.port, _plan([*plan, (loads[-1], _HELD * seconds)]))
    steps = [_step(answers, load, index * seconds, seconds) for index, (load, _) in enumerate(plan)]
    steps = steps[n_dropped * len(loads) :]
    return Run(limit, steps, answers, memory.seen, held_s)


def _row(run: Run, load: float) -> str:
    """Return a line of the table."""
    steps = run.of(load)
    n_refused = sum(step.n_refused for step in steps)
    told = [step.refused for step in steps if step.refused]
    after = [_ms([each[index] for each in told], 1) for index in (0, 1)] if told else ["", ""]
    return (
        f"| {run.limit} | {load:g}x | {_percent([step.served for step in steps])} "
        f"| {_ms([step.accepted[0] for step in steps])} | {_ms([step.accepted[1] for step in steps])} "
        f"| {n_refused / max(1, sum(step.n for step in steps)) * 100:.0f} % | {after[0]} | {after[1]} |"
    )


def _ms(seconds: Sequence[float], digits: int = 0) -> str:
    return _shown(spread([each * 1e3 for each in seconds]), "ms", digits)


def _percent(shares: Sequence[float]) -> str:
    return _shown(spread([each * 100 for each in shares]), "%", 0)


def _shown(each: Spread, unit: str, digits: int) -> str:
    return f"{each.median:.{digits}f} {unit} ({each.least:.{digits}f}-{each.greatest:.{digits}f})"


def _bars(run: Run) -> list[str]:
    """Return the table of what was asked for, and what was found."""
    most = max(_LOADS)
    calm, full, flood = (_medians(run, load) for load in (min(_LOADS), 1.0, most))
    peak = max(_medians(run, load)[0] for load in _LOADS)
    before = [mib for at_s, mib in run.memory if run.held_s * 0.9 <= at_s < run.held_s]
    after = [mib for at_s, mib in run.memory][-5:]
    grown = spread(after).median / spread(before).median - 1 if before and after else 0.0
    told = [each for each in run.answers if each.status != 200]
    rows = [
        (f"accepted at {most:g}x: p50 against {min(_LOADS):g}x", "2x", flood[1] / calm[1], "x", 2.0),
        ("... p99", "2x", flood[2] / calm[2], "x", 2.0),
        ("... p50 against 1x", "2x", flood[1] / full[1], "x", 2.0),
        ("... p99 against 1x", "2x", flood[2] / full[2], "x", 2.0),
        (f"refused at {most:g}x: p99", "10 ms", flood[4] * 1e3, "ms", 10.0),
        (f"served at {most:g}x, below the peak", "5 %", (1 - flood[0] / peak) * 100, "%", 5.0),
        (f"memory after {most:g}x for {_HELD:g} steps, above that before", "5 %", grown * 100, "%", 5.0),
    ]
    lines = ["| what | at most | found | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {bar} | {found:.2f} {unit} | {'kept' if found <= most_found else '**missed**'} |"
        for what, bar, found, unit, most_found in rows
    ]
    others = [each for each in told if each.status not in (429, 503)]
    silent = [each for each in told if not each.is_told_when]
    lines.append(
        f"| answers other than 200, 429 and 503, of {len(run.answers)} | 0 | {len(others)} | {_kept(others)} |"
    )
    lines.append(f"| refusals without Retry-After, of {len(told)} | 0 | {len(silent)} | {_kept(silent)} |")
    return lines


def _kept(wrong: Sequence[Answer]) -> str:
    return "**missed**" if wrong else "kept"


def _medians(run: Run, load: float) -> tuple[float, float, float, float, float]:
    """Return served, p50 and p99 of accepted, p50 and p99 of refused, each the median of the rounds."""
    steps = run.of(load)
    values = [(step.served, *step.accepted, *(step.refused or (math.nan, math.nan))) for step in steps]
    served, p50, p99, told50, told99 = (_median(column) for column in zip(*values, strict=True))
    return served, p50, p99, told50, told99


def _median(values: Sequence[float]) -> float:
    """Return the median of the rounds that have the figure."""
    known = [each for each in values if not math.isnan(each)]
    return spread(known).median if known else math.nan


def _draw(run: Run) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same picture for the same figures, with its text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "velox", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, (rates, times, memory) = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    medians = [_medians(run, load) for load in _LOADS]
    rates.plot(_LOADS, [min(load, 1.0) for load in _LOADS], color="black", linestyle="dotted", label="the upstream can")
    rates.plot(_LOADS, [each[0] for each in medians], marker="o", color="tab:blue", label="served")
    rates.set(xlabel="offered, of capacity", ylabel="served, of capacity", ylim=(0, 1.2))
    for index, label, colour in (
        (1, "accepted p50", "tab:blue"),
        (2, "accepted p99", "tab:cyan"),
        (3, "refused p50", "tab:orange"),
        (4, "refused p99", "tab:red"),
    ):
        points = [
            (load, each[index] * 1e3) for load, each in zip(_LOADS, medians, strict=True) if not math.isnan(each[index])
        ]
        times.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
    times.set(xlabel="offered, of capacity", ylabel="ms until the answer", yscale="log")
    memory.plot(*zip(*run.memory, strict=True), color="tab:green")
    memory.axvline(run.held_s, color="black", linestyle="dotted", label=f"{max(_LOADS):g}x from here on")
    most_mib = max((mib for _, mib in run.memory), default=1.0)
    memory.set(xlabel="seconds", ylabel="memory of all processes, MiB", ylim=(0, 1.3 * most_mib))
    for axes in (rates, times, memory):
        axes.legend(loc="lower right")
    figure.savefig(_DOCS / "overload.svg", metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    lines = [
        "| limit | offered | served | accepted p50 | p99 | refused | told after p50 | p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    run = _run(str(_CAPACITY), _LOADS, _ROUNDS, arguments.seconds)
    lines += [_row(run, load) for load in _LOADS]
    loads = (1.0, max(_LOADS))
    # It needs some rounds to find the limit: the first is dropped.
    found = _run("auto", loads, _ROUNDS, arguments.seconds, n_dropped=1)
    lines += [_row(found, load) for load in loads]
    lines += ["", *_bars(run)]
    table = "\n".join(lines)
    print(table)
    if not arguments.dry:
        _draw(run)
        page = _DOCS / "overload.md"
        page.write_text(fill(page.read_text(), "overload", f"{table}\n"))


if __name__ == "__main__":
    main()
