"""One run, from installing to the document.

Knows: the order of the parts, the document's form. Does not know: how anything is measured.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from bench.compare import memory, workers
from bench.compare.cells import CELLS, Cell, Kind, planned_s
from bench.compare.progress import Progress
from bench.compare.stage import PASSES, START_S, Runner, turns
from bench.compare.subjects import Subject, install, subjects
from bench.load import LoadError
from bench.machine import Cores, describe, pick_cores
from bench.peers import PeerError

__all__ = ["PARTS", "Plan", "run"]

# What is measured besides the cells.
PARTS: Final = ("memory", "cores")
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does. parts: of PARTS. peers: names; empty: all. against: another tree of Velox, measured beside.

    compiled: a compiled checkout, measured beside.
    """

    kind: Kind
    cells: Sequence[Cell]
    parts: Sequence[str]
    peers: Sequence[str]
    n_rounds: int
    seconds: float
    against: Path | None = None
    compiled: Path | None = None


def run(plan: Plan, say: Callable[[str], None], document: dict[str, object]) -> None:
    """Measure, and fill the document part by part: what is in it stays of use, whatever ends the run."""
    cores = pick_cores()
    _raise_open_files()
    chosen = subjects(cores, plan.peers, plan.against, plan.compiled)
    missing = {} if plan.kind == "smoke" else install(chosen, say)
    chosen = [each for each in chosen if each.name not in missing]
    machine = describe() | {"gateway_core": cores.gateway, "load_core": cores.rest}
    os.sched_setaffinity(0, {cores.rest})
    document |= {
        "format": _FORMAT,
        "kind": plan.kind,
        "machine": machine,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": plan.seconds,
        "rounds": plan.n_rounds,
        "passes": PASSES,
        "subjects": {each.name: each.described() for each in chosen},
        "missing": missing,
        "cells": [],
        "memory": {},
        "memory_refused": {},
        "cores": {},
    }
    progress = Progress(_plan_s(plan, chosen, cores.every), say)
    with tempfile.TemporaryDirectory(prefix="velox-bench-") as folder:
        runner = Runner(Path(folder), cores, chosen, progress, n_rounds=plan.n_rounds, seconds=plan.seconds)
        cells = sorted(plan.cells, key=_stage_order)
        for number in range(PASSES):
            for stage, own in groupby(cells, key=lambda cell: cell.stage):
                runner.run(stage, list(own), number)
                document["cells"] = [runner.filled[each.id].document() for each in cells if each.id in runner.filled]
        if "memory" in plan.parts:
            document["memory"], document["memory_refused"] = _memory(chosen, Path(folder), cores, progress)
        if "cores" in plan.parts:
            try:
                document["cores"] = workers.measure(
                    Path(folder) / "cores", cores, progress, n_rounds=plan.n_rounds, seconds=plan.seconds
                )
            except workers.FAILURES as error:
                say(f"throughput against workers was not measured: {error}")


def _memory(
    chosen: Sequence[Subject], folder: Path, cores: Cores, progress: Progress
) -> tuple[dict[str, object], dict[str, str]]:
    """Return what was measured of memory and starts, and for whom it was not, and why."""
    found: dict[str, object] = {}
    refused: dict[str, str] = {}
    for index, subject in enumerate(each for each in chosen if each.kind != "direct"):
        part: dict[str, object] = {}
        try:
            memory.measure(subject, folder / f"memory-{index}", cores, progress, part)
        except (PeerError, LoadError, RuntimeError, OSError) as error:
            refused[subject.name] = str(error)
        if "rest_mb" in part:
            found[subject.name] = part
    return found, refused


def _plan_s(plan: Plan, chosen: Sequence[Subject], cores: Sequence[int]) -> float:
    """Return how long the run takes, about."""
    total_s = 0.0
    for number in range(PASSES):
        stages = {}
        for cell in plan.cells:
            n = sum(cell.upstream in each.upstreams for each in chosen)
            if own := turns(cell, plan.n_rounds, number):
                stages[cell.stage] = cell.upstream
                total_s += n * (len(own) * planned_s(cell, plan.seconds) + planned_s(cell, plan.seconds, warm_up=True))
        for upstream in stages.values():
            total_s += START_S * sum(upstream in each.upstreams for each in chosen if each.kind != "direct")
    if "memory" in plan.parts:
        total_s += memory.plan_s(len(chosen) - 1)
    if "cores" in plan.parts:
        total_s += workers.plan_s(cores, plan.n_rounds, plan.seconds)
    return total_s


def _stage_order(cell: Cell) -> int:
    """Order cells so that those of a stage follow each other, in the order of the catalogue."""
    return next(index for index, each in enumerate(CELLS) if each.stage == cell.stage)


def _raise_open_files() -> None:
    """Let this process and all it starts have as many open files as the system allows: 2,000 connections take 4,000."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
