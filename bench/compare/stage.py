"""Rounds: in each, every gateway once in each of the cells that share an upstream, in turn.

Knows: order, which figures count, who drops out and why. Does not know: how a gateway starts, or what is written.

A round's figures of one cell are comparable: they were taken within seconds of each other. The rounds of a cell lie as
far apart as the run allows, in two passes of which each starts everything anew: a machine's speed changes within
minutes, and so does a program's from start to start, and a spread that has none of that promises too much. The first
round of a pass is dropped. Whoever fails requests in a cell has no figures in it, but the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.compare.cells import CELLS, WARM_UP_S, Cell, Stage, planned_s, refusal
from bench.compare.progress import Progress
from bench.compare.subjects import DIRECT, Subject, started
from bench.large_senders import LargeSender
from bench.load import LoadError
from bench.machine import Cores
from bench.measures import Target, at_rate, saturate, stream
from bench.open_loop import percentile
from bench.payloads import large_body
from bench.peers import Origin, PeerError
from bench.rounds import Figures, rotated
from bench.servers import Servers, get
from bench.wrk_requests import write_requests

__all__ = ["PASSES", "START_S", "Filled", "Runner", "turns"]

PASSES: Final = 2

# What starting one gateway takes, about; the slowest take much longer.
START_S: Final = 1.5
_STREAM_SETTLE_S: Final = 0.5
_CHUNKS: Final = 100
_N_QUANTILES: Final = 1000
_N_FOR_P999: Final = 1000
# Larger bodies are many messages with escapes, as they are in life; smaller ones one text that fills them up.
_LARGE_BYTES: Final = 16384
_BESIDE_BYTES: Final = 2_000_000
_BESIDE_PER_S: Final = 4.0
# What tells how much a gateway can do at most.
_MOST: Final = "json-750B"


@dataclass
class Filled:
    """What came of a cell."""

    cell: Cell
    rounds: Figures = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)  # ms, of all rounds
    refused: dict[str, str] = field(default_factory=dict)
    n_begun: int = 0  # rounds, without those that are dropped

    def refuse(self, name: str, why: str) -> None:
        """Note why a subject has no figures here."""
        self.rounds.pop(name, None)
        self.samples.pop(name, None)
        self.refused[name] = why

    def document(self) -> dict[str, object]:
        """Return its part of the document."""
        quantiles = {name: _quantiles(values) for name, values in self.samples.items() if values}
        return {
            "id": self.cell.id,
            "title": self.cell.title,
            "workload": self.cell.workload(),
            "rounds": self.rounds,
            "latencies_ms": quantiles,
            "refused": self.refused,
        }


class Runner:
    """Measures cells. filled: what came of them, by id. per_s: what each gateway can do at most, if it is known."""

    def __init__(
        self,
        folder: Path,
        cores: Cores,
        subjects: Sequence[Subject],
        progress: Progress,
        *,
        n_rounds: int,
        seconds: float,
    ) -> None:
        self._folder: Final = folder
        self._cores: Final = cores
        self._subjects: Final = subjects
        self._progress: Final = progress
        self._n_rounds: Final = n_rounds
        self._seconds: Final = seconds
        self.filled: Final[dict[str, Filled]] = {}
        self.per_s: Final[dict[str, float]] = {}

    def run(self, stage: Stage, cells: Sequence[Cell], number: int) -> None:
        """Start all gateways before the upstream of a stage, and measure those rounds of its cells that a pass has."""
        plan = [(cell, [-1, *own]) for cell in cells if (own := turns(cell, self._n_rounds, number))]
        if not plan:
            return
        folder = self._folder / f"{stage}-{number}"
        folder.mkdir()
        with Servers(folder, self._cores) as servers:
            origin = self._upstream(servers, stage)
            targets, failed = self._start(servers, stage, origin, cells[0])
            if any(cell.rate for cell in cells) and not any(cell.id == _MOST for cell in cells):
                self._probe(targets)
            for at in range(max(len(own) for _, own in plan)):
                for cell, own in plan:
                    if at < len(own):
                        if stage == "streams":
                            get(origin.http1, f"/pace?{cell.interval_s}&{cell.chunks or _CHUNKS}")
                        self._round(cell, own[at], targets, failed)

    def _upstream(self, servers: Servers, stage: Stage) -> Origin:
        authority = servers.certificate.authority
        if stage in ("streams", "large"):
            server, http2, _, tls = servers.tls_upstream(interval_s=0.0)
            return Origin(server.port, http2, tls, authority)
        ports = servers.nginx_upstream(is_failing=stage == "errors", equal=stage == "equal")
        return Origin(ports.http1, ports.http2, ports.tls, authority)

    def _start(
        self, servers: Servers, stage: Stage, origin: Origin, cell: Cell
    ) -> tuple[dict[str, Target], dict[str, str]]:
        """Start who takes part; return them, and who did not start, and why."""
        targets: dict[str, Target] = {}
        failed: dict[str, str] = {}
        for subject in self._subjects:
            if stage == "streams" and subject.streams_by:
                continue
            if subject.kind == "direct":
                targets[subject.name] = Target(origin.http1, None, origin.http1)
            elif cell.upstream in subject.upstreams:
                self._progress.step(f"{stage}: start {subject.name}", START_S)
                try:
                    server, _ = started(
                        subject, servers, self._cores, origin, cell.upstream, streaming=stage == "streams"
                    )
                except PeerError as error:
                    failed[subject.name] = str(error)
                else:
                    targets[subject.name] = Target(server.port, server, origin.http1)
        return targets, failed

    def _begin(self, cell: Cell, targets: Mapping[str, Target], failed: Mapping[str, str]) -> Filled:
        """Find out who takes part in a cell."""
        filled = Filled(cell)
        for subject in self._subjects:
            why = failed.get(subject.name) or refusal(cell, subject.upstreams, self.per_s, subject.name)
            if cell.load == "streams" and subject.streams_by:
                why = f"is measured by {subject.streams_by}"
            elif subject.kind == "velox" and cell.upstream not in subject.upstreams:
                why = "another way in which Velox runs is measured here"
            if why:
                filled.refuse(subject.name, why)
                if cell.upstream in subject.upstreams:  # what has other upstreams was never planned
                    self._skip(filled)
            elif subject.name in targets:
                filled.rounds[subject.name] = []
                filled.samples[subject.name] = []
        return filled

    def _round(self, cell: Cell, turn: int, targets: Mapping[str, Target], failed: dict[str, str]) -> None:
        """Measure every gateway once. turn: of all rounds of the cell; below 0: it is dropped."""
        filled = self.filled.get(cell.id)
        if filled is None:
            filled = self.filled[cell.id] = self._begin(cell, targets, failed)
        which = f"round {turn + 1} of {_n_rounds(cell, self._n_rounds)}" if turn >= 0 else "warm-up"
        seconds = self._seconds * cell.seconds if turn >= 0 else min(self._seconds * cell.seconds, WARM_UP_S)
        filled.n_begun += turn >= 0
        for name in rotated(list(filled.rounds), max(turn, 0)):
            self._progress.step(f"{cell.id}, {which}: {name}", planned_s(cell, self._seconds, warm_up=turn < 0))
            try:
                if name in failed:
                    raise LoadError(failed[name])
                figures, samples = self._measure(cell, targets[name], seconds)
            except LoadError as error:
                if turn < 0 and name not in failed:
                    continue  # so short a time may be too short; the first round will tell
                filled.refuse(name, f"failed in {which}: {error}")
            except (RuntimeError, OSError) as error:
                # It has ended: nothing can be asked of it any more.
                filled.refuse(name, f"ended in {which}: {error}")
                failed[name] = f"ended in {cell.id}"
            else:
                if turn >= 0:
                    filled.rounds[name].append(figures)
                    filled.samples[name] += samples
                if cell.id == _MOST:
                    self.per_s[name] = max(self.per_s.get(name, 0.0), figures["per_s"])
                continue
            self._skip(filled)

    def _skip(self, filled: Filled) -> None:
        """Note that one gateway's rounds that are left will not be measured."""
        cell = filled.cell
        self._progress.skip((_n_rounds(cell, self._n_rounds) - filled.n_begun) * planned_s(cell, self._seconds))

    def _measure(self, cell: Cell, target: Target, seconds: float) -> tuple[dict[str, float], list[float]]:
        core = self._cores.rest
        match cell.load:
            case "closed":
                figures = saturate(
                    target,
                    self._requests(cell),
                    connections=cell.connections,
                    seconds=seconds,
                    cores=(core,),
                    tolerant=cell.stage == "errors",
                )
                return figures, []
            case "streams":
                figures = stream(
                    target,
                    streams=cell.connections,
                    settle_s=_STREAM_SETTLE_S,
                    seconds=seconds,
                    core=core,
                    chunks=cell.chunks,
                )
                return figures, []
            case "open" | "mixed":
                assert cell.rate is not None, "cells at a rate have one"
                with ExitStack() as stack:
                    if cell.load == "mixed":
                        body = large_body("text", _BESIDE_BYTES)
                        sender = stack.enter_context(LargeSender(target.port, body, _BESIDE_PER_S))
                    figures, samples = at_rate(
                        target, rate=cell.rate, seconds=seconds, connections=cell.connections, core=core
                    )
                if cell.load == "mixed":
                    if sender.failure:
                        raise LoadError(f"a large request failed: {sender.failure}")
                    figures["large_per_s"] = sender.n_sent / seconds
                if len(samples) < _N_FOR_P999:
                    figures.pop("p999_ms")  # of fewer than a thousand it is the greatest, by another name
                return figures, samples

    def _probe(self, targets: Mapping[str, Target]) -> None:
        """Find out what each can do at most, where no cell has shown it."""
        for name, target in targets.items():
            if name not in self.per_s and name != DIRECT:
                self._progress.step(f"how much can {name} do?", 0.0)
                try:
                    figures = saturate(
                        target,
                        self._requests(next(each for each in CELLS if each.id == _MOST)),
                        connections=32,
                        seconds=WARM_UP_S,
                        cores=(self._cores.rest,),
                    )
                except (LoadError, RuntimeError, OSError):
                    continue  # the cells will say what is wrong with it
                self.per_s[name] = figures["per_s"]

    def _requests(self, cell: Cell) -> Path:
        """Return the file of what wrk sends in a cell."""
        path = self._folder / f"requests-{cell.heads}-{cell.body_bytes}"
        if not path.exists():
            large = large_body("text", cell.body_bytes) if cell.body_bytes >= _LARGE_BYTES else b""
            write_requests(path, heads=cell.heads, mean_bytes=cell.body_bytes, body=large)
        return path


def turns(cell: Cell, n_rounds: int, number: int) -> list[int]:
    """Return which of a cell's rounds a pass has: every second one. n_rounds: of the run. number: 0 or 1."""
    return list(range(number, _n_rounds(cell, n_rounds), PASSES))


def _n_rounds(cell: Cell, n_rounds: int) -> int:
    return max(1, round(n_rounds * cell.rounds))


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return at most a thousand quantiles, in equal steps up to the greatest value."""
    ordered = sorted(values)
    n = min(_N_QUANTILES, len(ordered))
    return [percentile(ordered, (index + 1) / n - 0.5 / len(ordered)) for index in range(n)]
