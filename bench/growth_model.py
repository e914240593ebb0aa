"""On paper: what one node, ten and a thousand can serve, out of the figures that bench.growth has measured.

Knows: the assumptions, and how they and the figures make a fleet. Does not know: how a figure was measured.

Every number is an assumption that has its name in ASSUMPTIONS, a measured figure, or follows from those. The ways in
which workers ask upstreams and Redis are those of the program (health_checks.py, limits-replicas.md), not copies of
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

from bench.pictures import DOCS
from velox.gateway.upstreams.health_checks import load_every_s
from velox.policy.health.member import ActiveRules
from velox.shm.upstream_table import MOST_ROWS

__all__ = ["ASSUMPTIONS", "Assumptions", "Fleet", "Measured", "fleet_of", "measured", "tables"]

_Document: TypeAlias = Mapping[str, Any]
_Row: TypeAlias = tuple[str, str, str]

_NODES: Final = (1, 10, 1000)
_US: Final = 1e-6
_ALL_MEMBERS: Final = MOST_ROWS // 2  # half of the rows are for those that leave at a reload
_SCRAPE: Final = re.compile(r"A server writes its metrics in some (\d+) ms")
_QUESTION: Final = re.compile(r"takes\s+about\s+(\d+)\s+µs\s+for\s+each\s+in\s+Redis")
_PER_SECOND: Final = re.compile(r"busy\s+limit\s+causes\s+about\s+(\d+)\s+queries\s+a\s+second")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is taken for granted. The page lists these with their values."""

    cores: int = 32
    busy: float = 0.6
    chunks: int = 300
    chunks_per_s: float = 50.0
    first_s: float = 0.5
    streams_per_server: int = 128
    idle_per_stream: float = 1.0
    streams_per_http2: int = 100
    busy_limits: int = 10
    bearable: float = 0.05


ASSUMPTIONS: Final = Assumptions()
_WORDS: Final = {
    "cores": "cores of a node, a worker on each, all as fast as the one that was measured",
    "busy": "part of a core that may be used: beyond, latency grows",
    "chunks": "chunks of an answer",
    "chunks_per_s": "chunks a second of one answer, each written for itself",
    "first_s": "seconds to the first chunk",
    "streams_per_server": "answers that a model server writes at once",
    "idle_per_stream": "idle connections of clients beside each that has an answer under way",
    "streams_per_http2": "answers on one connection, where the upstream speaks HTTP/2",
    "busy_limits": "limits that all nodes use all the time, shared in Redis",
    "bearable": "part of a model server's, or of Redis', time that questions of gateways may take",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the model takes from the figures; times are CPU time in µs."""

    request_us: float
    chunk_us: float
    rest_bytes: float
    connection_bytes: float
    stream_bytes: float
    member_bytes: float
    member_start_s: float
    rest_part: float  # of a core, for each member


def measured(document: _Document) -> Measured:
    """Take them out of a document."""
    series, memory, rest = document["series"], document["memory"], document["rest"]
    least, most = min(map(int, rest)), max(map(int, rest))
    first, last, n = rest[f"{least}"], rest[f"{most}"], most - least
    return Measured(
        request_us=_cpu_us(series["connections"][max(series["connections"], key=float)]),
        chunk_us=memory["chunk_us"],
        rest_bytes=memory["rest_bytes"],
        connection_bytes=max(0.0, memory["connection_bytes"]),
        stream_bytes=max(0.0, memory["stream_bytes"]),
        member_bytes=max(0.0, (last["memory_mb"] - first["memory_mb"]) * 1e6 / n),
        member_start_s=max(0.0, (last["start_s"] - first["start_s"]) / n),
        rest_part=max(0.0, (last["cpu_part"] - first["cpu_part"]) / n),
    )


def _cpu_us(rounds: list[Mapping[str, float]]) -> float:
    return median(each["cpu_us"] for each in rounds)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What some nodes serve; each knows all model servers, as long as these are no more than a file may name."""

    nodes: int
    answers_per_s: float
    plain_per_s: float
    streams: float
    chunks_per_s: float
    servers: float
    cells: float
    memory_bytes: float  # of a node
    connections_http1: float  # of a node, to upstreams
    connections_http2: float
    probes_per_s: float  # that a model server gets
    scrapes_part: float  # of a model server's time
    redis_part: float  # of Redis' time
    sweep_part: float  # of a worker's core
    start_s: float


def fleet_of(nodes: int, figures: Measured, given: Assumptions = ASSUMPTIONS) -> Fleet:
    """Work out a fleet. Where there are more model servers than a node can know, it is cut into cells of nodes."""
    answer_s = (figures.request_us + given.chunks * figures.chunk_us) * _US
    duration_s = given.first_s + given.chunks / given.chunks_per_s
    per_node = given.cores * given.busy / answer_s
    streams_of_node = per_node * duration_s
    servers_of_node = streams_of_node / given.streams_per_server
    cells = max(1.0, nodes * servers_of_node / _ALL_MEMBERS)
    asking, known = nodes / cells, nodes * servers_of_node / cells
    sweep_part = known * figures.rest_part
    memory = given.cores * (figures.rest_bytes + known * figures.member_bytes)
    memory += streams_of_node * (figures.stream_bytes + given.idle_per_stream * figures.connection_bytes)
    workers = asking * given.cores
    return Fleet(
        nodes=nodes,
        answers_per_s=nodes * per_node,
        plain_per_s=nodes * given.cores * given.busy / (figures.request_us * _US),
        streams=nodes * streams_of_node,
        chunks_per_s=nodes * per_node * given.chunks,
        servers=nodes * servers_of_node,
        cells=cells,
        memory_bytes=memory,
        connections_http1=max(streams_of_node, known),
        connections_http2=max(streams_of_node / given.streams_per_http2, known),
        probes_per_s=workers / ActiveRules().every_s,
        scrapes_part=workers / load_every_s(given.cores) * _scrape_s(),
        redis_part=nodes * given.busy_limits * _redis_s(),
        sweep_part=sweep_part,
        start_s=known * figures.member_start_s,
    )


def _scrape_s() -> float:
    """How long a model server is at work for one page of metrics."""
    text = (DOCS.parent / "velox/gateway/upstreams/health_checks.py").read_text()
    return float(_said(_SCRAPE, text)) * 1e-3


def _redis_s() -> float:
    """How long Redis is at work in a second for one busy limit of one gateway."""
    text = (DOCS / "limits-replicas.md").read_text()
    return float(_said(_QUESTION, text)) * _US * float(_said(_PER_SECOND, text))


def _said(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"no place says {pattern.pattern!r} any more")
    return found.group(1)


# -- the tables ---------------------------------------------------------------------------------------------------


def tables(document: _Document) -> dict[str, str]:
    """Return the tables of the model, by the names of their markers."""
    figures = measured(document)
    return {
        "assumptions": _assumptions(),
        "taken": _taken(figures),
        "model": _model(figures),
        "breaks": _breaks(figures),
    }


def _assumptions() -> str:
    lines = ["| assumption | value |", "|---|---|"]
    lines += [f"| {words} | {getattr(ASSUMPTIONS, name):g} |" for name, words in _WORDS.items()]
    return "\n".join(lines)


def _taken(figures: Measured) -> str:
    rows = {
        "a request without a stream, at the most connections measured": f"{figures.request_us:.1f} µs",
        "a chunk": f"{figures.chunk_us:.1f} µs",
        "a gateway of one worker at rest": f"{figures.rest_bytes / 1e6:.0f} MB",
        "an idle connection": f"{figures.connection_bytes / 1e3:.1f} KB",
        "an answer under way": f"{figures.stream_bytes / 1e3:.1f} KB",
        "a member of an upstream, in each worker": f"{figures.member_bytes / 1e3:.1f} KB",
        "... at the start": f"{figures.member_start_s * 1e3:.2f} ms",
        "... at rest, of a core": f"{figures.rest_part * 100:.4f} %",
        "a page of metrics, of a model server's time": f"{_scrape_s() * 1e3:g} ms",
        "a busy limit in Redis, of its time for each gateway": f"{_redis_s() * 100:g} %",
    }
    return "\n".join(["| measured | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())])


def _model(figures: Measured) -> str:
    fleets = [fleet_of(nodes, figures) for nodes in _NODES]
    rows = {
        "answers/s, streamed": [_round(each.answers_per_s) for each in fleets],
        "answers/s, each in one piece": [_round(each.plain_per_s) for each in fleets],
        "streams under way": [_round(each.streams) for each in fleets],
        "chunks/s": [_round(each.chunks_per_s) for each in fleets],
        "model servers behind": [_round(each.servers) for each in fleets],
        "cells, so that a file can name a cell's servers": [_round(-(-each.cells // 1)) for each in fleets],
        "memory of a node": [f"{each.memory_bytes / 1e9:.1f} GB" for each in fleets],
        "a node's connections to upstreams, HTTP/1.1": [_round(each.connections_http1) for each in fleets],
        "..., HTTP/2": [_round(each.connections_http2) for each in fleets],
        "probes/s that a model server gets": [_round(each.probes_per_s) for each in fleets],
        "of a model server's time for `load`": [_part(each.scrapes_part) for each in fleets],
        "of Redis' time": [_part(each.redis_part) for each in fleets],
        "of a worker's core for members at rest": [_part(each.sweep_part) for each in fleets],
        "a worker's start, for its members": [f"{each.start_s:.1f} s" for each in fleets],
    }
    lines = [f"| nodes | {' | '.join(f'{n:,}' for n in _NODES)} |", f"|---|{'---|' * len(_NODES)}"]
    return "\n".join([*lines, *(f"| {what} | {' | '.join(values)} |" for what, values in rows.items())])


def _breaks(figures: Measured) -> str:
    """Return what there is enough of for how many nodes, what ends first on top."""
    one, given = fleet_of(1, figures), ASSUMPTIONS
    ends: list[tuple[float, str, str]] = [
        (
            given.bearable / one.scrapes_part,
            f"`load` takes {_part(given.bearable)} of each model server's time",
            "cells: not every node asks every server; or `load: off`, as one gateway's own counts are exact",
        ),
        (
            given.bearable / one.redis_part,
            f"shared limits take {_part(given.bearable)} of Redis' time",
            "a Redis for each group of tenants; limits that few use cost less",
        ),
        (_ALL_MEMBERS / one.servers, "a file names all the model servers that it can", "cells"),
        (
            given.bearable / one.sweep_part if one.sweep_part else float("inf"),
            f"members at rest take {_part(given.bearable)} of a worker's core",
            "cells",
        ),
    ]
    lines = ["| nodes | what is used up | what then |", "|---|---|---|"]
    for nodes, what, then in sorted(ends):
        lines.append(f"| {'less than 1' if nodes < 1 else _round(nodes // 1)} | {what} | {then} |")
    return "\n".join(lines)


def _round(value: float) -> str:
    """Write a number as exactly as it is known: two digits."""
    if value < 10:
        return f"{value:.2g}"
    digits = len(f"{value:.0f}")
    return f"{round(value, 2 - digits):,.0f}"


def _part(value: float) -> str:
    return f"{value * 100:.2g} %" if value < 1 else f"{value:.1f} times"
