"""What is measured: the workloads, and before which upstream each is.

Knows: sizes, rates, who can't take part and why. Does not know: how anything is measured or started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["CELLS", "WARM_UP_S", "Cell", "Kind", "Load", "Stage", "chosen", "planned_s", "refusal"]

Kind: TypeAlias = Literal["smoke", "bench", "full"]
# closed: as fast as it is answered. open: at a fixed rate. streams: closed, streamed answers. mixed: open, with large
# bodies beside it.
Load: TypeAlias = Literal["closed", "open", "streams", "mixed"]
# Before which upstream: its kind of connection, and whether it fails. `streams` is the one that streams; `large` is
# the same for plain requests: nginx answers before it has read a large body, whereupon Envoy closes the connection.
# `equal` gives one and the same reply; all others give replies as a provider does (bench/traffic.py).
Stage: TypeAlias = Literal["requests", "equal", "streams", "large", "http2", "tls", "errors"]
# What clients send: bench/traffic.py says what real and hostile is; equal is one and the same request again and again.
Heads: TypeAlias = Literal["real", "hostile", "equal"]

# A closed loop with so many connections says nothing of a gateway that takes longer than this for one answer to each.
_TURN_S: Final = 2.0
# At a fixed rate over so much of what a gateway can do at most, its own queue is measured.
_SHARE: Final = 0.7
# Of a short stream.
SHORT_CHUNKS: Final = 5
# The round that is dropped.
WARM_UP_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload. interval_s: between the chunks of a stream, 0: as fast as the upstream writes.

    chunks: of a stream, if a whole one is the unit of the figures; 0: a chunk is. rounds, seconds: of this one, as a
    share of the run's. smallest: the least kind of run that it is in.
    """

    id: str
    title: str
    stage: Stage
    load: Load
    smallest: Kind
    body_bytes: int = 750
    connections: int = 32
    rate: float | None = None
    interval_s: float = 0.0
    rounds: float = 1.0
    seconds: float = 1.0
    heads: Heads = "real"
    chunks: int = 0

    @property
    def upstream(self) -> Literal["http1", "http2", "tls"]:
        return self.stage if self.stage in ("http2", "tls") else "http1"

    def workload(self) -> dict[str, object]:
        """Return what the document says of it."""
        return {
            "heads": self.heads,
            "body_bytes": self.body_bytes,
            "chunks": self.chunks,
            "stream": self.load == "streams",
            "connections": self.connections,
            "upstream": self.upstream,
            "load": "open" if self.load in ("open", "mixed") else "closed",
            "rate": self.rate,
            "interval_s": self.interval_s,
            "upstream_errors": 0.01 if self.stage == "errors" else 0.0,
            "large_beside": self.load == "mixed",
        }


def _more(cell_id: str, title: str, stage: Stage = "requests", **rest: int) -> Cell:
    """Return a cell of the full run only, which has fewer rounds."""
    body_bytes, connections = rest.get("body_bytes", 750), rest.get("connections", 32)
    return Cell(cell_id, title, stage, "closed", "full", body_bytes, connections, rounds=0.6)


CELLS: Final[Sequence[Cell]] = (
    Cell("json-750B", "JSON, 750 B, 32 connections", "requests", "closed", "smoke"),
    Cell(
        "json-equal",
        "The same with equal heads: one request and one reply, again and again, as no real client sends them",
        "equal",
        "closed",
        "smoke",
        heads="equal",
    ),
    Cell(
        "json-invented",
        "JSON, 750 B, 32 connections, eight fields in each request that no other request has",
        "requests",
        "closed",
        "bench",
        rounds=0.6,
        heads="hostile",
    ),
    Cell("latency-50", "JSON, 50 requests/s", "requests", "open", "bench", rate=50.0, seconds=2.0),
    Cell("latency-4000", "JSON, 4,000 requests/s", "requests", "open", "smoke", rate=4000.0),
    _more("json-3.5KB", "JSON, 3.5 KB, 32 connections", body_bytes=3584),
    _more("json-1-connection", "JSON, 750 B, 1 connection", connections=1),
    _more("json-256-connections", "JSON, 750 B, 256 connections", connections=256),
    _more("json-2000-connections", "JSON, 750 B, 2,000 connections", connections=2000),
    Cell("sse-burst", "SSE, 100 chunks as fast as they come, 32 streams", "streams", "streams", "smoke"),
    Cell(
        "sse-paced",
        "SSE, 100 chunks, one each 10 ms, 150 streams",
        "streams",
        "streams",
        "bench",
        connections=150,
        interval_s=0.01,
    ),
    Cell(
        "sse-short",
        "SSE, whole streamed requests of 5 chunks, 32 streams",
        "streams",
        "streams",
        "bench",
        chunks=SHORT_CHUNKS,
    ),
    _more("json-64KB", "JSON, 64 KB, 32 connections", "large", body_bytes=65536),
    _more("json-2MB", "JSON, 2 MB, 32 connections", "large", body_bytes=2_000_000),
    Cell(
        "mixed",
        "JSON, 50 requests/s, while four bodies of 2 MB a second pass",
        "large",
        "mixed",
        "full",
        rate=50.0,
        seconds=2.0,
        rounds=0.6,
    ),
    _more("json-http2", "JSON, 750 B, 32 connections, HTTP/2 to the upstream", "http2"),
    _more("json-tls", "JSON, 750 B, 32 connections, TLS to the upstream", "tls"),
    _more("json-errors", "JSON, 750 B, 32 connections, the upstream fails 1 % of them", "errors"),
)
_ORDER: Final[Sequence[Kind]] = ("smoke", "bench", "full")


def chosen(kind: Kind, only: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of a kind of run. only: their ids; empty: all of it. Raises ValueError for an unknown one."""
    unknown = set(only) - {cell.id for cell in CELLS}
    if unknown:
        raise ValueError(f"no such cell: {', '.join(sorted(unknown))}; there are {', '.join(c.id for c in CELLS)}")
    if only:
        return [cell for cell in CELLS if cell.id in only]
    return [cell for cell in CELLS if _ORDER.index(cell.smallest) <= _ORDER.index(kind)]


def planned_s(cell: Cell, seconds: float, *, warm_up: bool = False) -> float:
    """Return how long one measurement of a cell takes, with what is around it."""
    around_s = {"closed": 0.75, "open": 0.3, "streams": 0.85, "mixed": 0.4}[cell.load]
    length_s = min(WARM_UP_S, seconds * cell.seconds) if warm_up else seconds * cell.seconds
    return length_s + around_s + (0.6 if cell.connections >= 500 else 0.0)


def refusal(cell: Cell, upstreams: frozenset[str], per_s: Mapping[str, float], subject: str) -> str:
    """Return why a subject is not in a cell; "": it is. per_s: what each can do at most, as far as it is known."""
    if cell.upstream not in upstreams:
        return {
            "http1": "is measured with another kind of connection to the upstream",
            "http2": "does not speak HTTP/2 without TLS to its upstream",
            "tls": "is not measured with TLS to its upstream",
        }[cell.upstream]
    most = per_s.get(subject)
    if most is None:
        return ""
    if cell.rate is not None and cell.rate > _SHARE * most:
        return f"does {most:.0f} requests/s at most: at {cell.rate:.0f}/s its own queue would be measured"
    if cell.load == "closed" and cell.connections / most > _TURN_S:
        return (
            f"does {most:.0f} requests/s at most: {cell.connections} connections would wait "
            f"{cell.connections / most:.0f} s for an answer each"
        )
    return ""
