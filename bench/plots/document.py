"""A run of bench.compare as it is read: cells, memory, workers. And its small form, which docs/benchmarks/data/ keeps.

Knows: the JSON's form. Does not know: what is made of the figures.

The small form holds each figure of each round, to five digits, but of the latencies only what the pictures of their
distributions show: about a hundred points a subject. Making a small form smaller changes nothing, so that
whoever has the kept file gets the same pages as whoever measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = ["ROOT", "Cell", "Document", "Memory", "Points", "Subject", "read", "small", "written"]

ROOT: Final = Path(__file__).parents[2]
_FORMAT: Final = 1
_DIGITS: Final = 5
# Points of a distribution, and the greatest share that is drawn: as far as 1,000 quantiles can tell.
_N_POINTS: Final = 90
_LAST_SHARE: Final = 0.999

# (share, ms): so great a share of the requests took at most so long.
Points: TypeAlias = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Subject:
    """Who was measured. kind: direct, proxy, llm or velox."""

    kind: str
    package: str
    features: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload. columns: subject -> figure -> its value in each round, None where it has none.

    interval_s: between the chunks of a stream, 0: as fast as the upstream writes. is_plain: no upstream that fails on
    purpose, no large bodies beside it. heads: `real`, `hostile` or `equal`; all were equal in runs that do not say.
    chunks: of a streamed reply that is the unit of the figures; 0: a chunk is.
    """

    id: str
    title: str
    stream: bool
    is_open: bool
    body_bytes: int
    connections: int
    upstream: str
    rate: float
    interval_s: float
    is_plain: bool
    heads: str
    chunks: int
    columns: Mapping[str, Mapping[str, Sequence[float | None]]]
    latencies: Mapping[str, Points]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Memory:
    """One subject's memory and starts; nan and () where it was not measured. streams: (number, MB)."""

    rest_mb: float
    idle_kb: float
    streams: Sequence[tuple[float, float]]
    start_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Document:
    """One run. cores: subject -> (workers, requests a second)."""

    kind: str
    date: str
    seconds: float
    rounds: int
    machine: Mapping[str, Any]
    subjects: Mapping[str, Subject]
    missing: Mapping[str, str]
    cells: Sequence[Cell]
    memory: Mapping[str, Memory]
    memory_refused: Mapping[str, str]
    cores: Mapping[str, Sequence[tuple[float, float]]]

    def of_kind(self, kind: str) -> list[str]:
        """Return the names of the subjects of a kind, in the order of the run."""
        return [name for name, each in self.subjects.items() if each.kind == kind]


def read(raw: Mapping[str, Any]) -> Document:
    """Return the run of a JSON document, small or whole. Raises ValueError for another format."""
    if raw.get("format") != _FORMAT:
        raise ValueError(f"format {raw.get('format')!r} is none that this can read")
    return Document(
        kind=raw["kind"],
        date=raw["date"],
        seconds=raw["seconds"],
        rounds=raw["rounds"],
        machine=raw["machine"],
        subjects={
            name: Subject(each["kind"], each.get("package", ""), each.get("features", ""))
            for name, each in raw["subjects"].items()
        },
        missing=raw.get("missing", {}),
        cells=[_cell(each) for each in raw["cells"]],
        memory={name: _memory(each) for name, each in raw.get("memory", {}).items()},
        memory_refused=raw.get("memory_refused", {}),
        cores={name: _pairs(each) for name, each in raw.get("cores", {}).items() if each},
    )


def small(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the small form of a document. Reasons lose the path of this repository, which is another one elsewhere."""
    cells = [_small_cell(each) for each in raw["cells"]]
    reasons = {
        key: {name: _placeless(why) for name, why in raw.get(key, {}).items()} for key in ("missing", "memory_refused")
    }
    found = _rounded({**raw, **reasons, "cells": cells})
    assert isinstance(found, dict)
    return found


def written(raw: Mapping[str, Any]) -> str:
    """Return the JSON text of a small form: a line a cell, so that changes can be read."""
    rest = {key: value for key, value in raw.items() if key != "cells"}
    lines = [f"{json.dumps(key)}:{_compact(value)}" for key, value in rest.items()]
    cells = ",\n".join(_compact(each) for each in raw["cells"])
    lines.append(f'"cells":[\n{cells}\n]')
    return "{" + ",\n".join(lines) + "}\n"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _small_cell(raw: Mapping[str, Any]) -> dict[str, Any]:
    latencies = raw.get("latencies_ms", {}) if _is_plain(raw["workload"]) else {}
    return {
        **raw,
        "rounds": {name: _columns(rounds) for name, rounds in raw["rounds"].items()},
        "latencies_ms": {name: _thin(values) for name, values in latencies.items()},
        "refused": {name: _placeless(why) for name, why in raw.get("refused", {}).items()},
    }


def _cell(raw: Mapping[str, Any]) -> Cell:
    work = raw["workload"]
    return Cell(
        id=raw["id"],
        title=raw["title"] if "heads" in work else f"{raw['title']}, equal heads",
        stream=bool(work["stream"]),
        is_open=work["load"] == "open",
        body_bytes=int(work.get("body_bytes") or 0),
        connections=int(work.get("connections") or 0),
        upstream=work.get("upstream") or "http1",
        rate=float(work.get("rate") or 0.0),
        interval_s=float(work.get("interval_s") or 0.0),
        is_plain=_is_plain(work),
        heads=work.get("heads") or "equal",
        chunks=int(work.get("chunks") or 0),
        columns={name: _columns(rounds) for name, rounds in raw["rounds"].items() if rounds},
        latencies={name: points for name, values in raw.get("latencies_ms", {}).items() if (points := _thin(values))},
        refused=raw.get("refused", {}),
    )


def _memory(raw: Mapping[str, Any]) -> Memory:
    return Memory(
        rest_mb=_number(raw.get("rest_mb")),
        idle_kb=_number(raw.get("idle_kb_per_connection")),
        streams=_pairs(raw.get("streams") or []),
        start_s=raw.get("start_s") or [],
    )


def _is_plain(work: Mapping[str, Any]) -> bool:
    return not work.get("upstream_errors") and not work.get("large_beside")


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _pairs(raw: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    return [(each[0], each[1]) for each in raw]


def _columns(rounds: Any) -> dict[str, list[float | None]]:
    """Return figure -> its rounds; rounds may stand as one dict each, or be columns already."""
    if isinstance(rounds, dict):
        return rounds
    names = {name: None for each in rounds for name in each}
    return {name: [each.get(name) for each in rounds] for name in names}


def _thin(values: Sequence[Any]) -> Points:
    """Return (share, ms) points, denser towards the slowest; values may be such points already."""
    if not values:
        return []
    if isinstance(values[0], list | tuple):
        return _pairs(values)
    n = len(values)
    # Even steps of -log(1 - share): what the picture's axis is made of.
    most = -math.log10(1 - _LAST_SHARE)
    shares = (1 - 10 ** (-most * step / (_N_POINTS - 1)) for step in range(_N_POINTS))
    indices = sorted({min(n - 1, max(0, round(share * n) - 1)) for share in shares})
    # The greatest of all has no place on an axis of nines, and 0 none on a log axis.
    return [((index + 1) / n, values[index]) for index in indices if index < n - 1 and values[index] > 0]


def _placeless(reason: str) -> str:
    return reason.replace(f"{ROOT}/", "").replace(str(ROOT), ".")


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
