"""What is counted.

Knows: names and sizes. Does not know: how anything is run; nor Velox, so that a caller may say first where that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench.all_on import STEPS, Step

__all__ = ["ALL_ON", "CALIBRATION", "KINDS", "RECORDED", "Kind", "chosen"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked. units: how many requests, or chunks of streams, the shorter one of two runs has.

    heads: `real` and `hostile` as bench/traffic.py has them; `equal`: each request is byte for byte the one before it,
    and so is each reply. A chunk's heads are equal, so that what a new head costs is not counted as its. chunks: of a
    streamed reply, which is the unit; 0: a chunk is the unit, if it is a stream. keeps: what is on besides: a ledger,
    budgets in it (of the gateway and of each key), managed keys instead of those of the settings. all_on: a step of
    bench/all_on.py, up to which all is on instead; "": none.
    """

    name: str
    client: Literal["http1", "http2", ""]  # "": no gateway at all
    upstream: Literal["http1", "http2", ""]
    stream: bool
    units: int
    heads: Literal["real", "hostile", "equal"] = "real"
    chunks: int = 0
    keeps: Literal["", "ledger", "budgets", "managed keys"] = ""
    all_on: Literal["", Step] = ""

    @property
    def counts_chunks(self) -> bool:
        return self.stream and not self.chunks


CALIBRATION: Final = Kind("calibration", "", "", stream=False, units=40)
KINDS: Final = (
    Kind("JSON request, HTTP/1.1 up", "http1", "http1", stream=False, units=160),
    Kind("JSON request, HTTP/2 up", "http1", "http2", stream=False, units=160),
    Kind("JSON request, HTTP/2 in, HTTP/2 up", "http2", "http2", stream=False, units=160),
    Kind("SSE reply of 5 chunks, HTTP/1.1 up", "http1", "http1", stream=True, units=160, chunks=5),
    Kind("SSE reply of 5 chunks, HTTP/2 up", "http1", "http2", stream=True, units=160, chunks=5),
    Kind("SSE reply of 5 chunks, HTTP/2 in, HTTP/2 up", "http2", "http2", stream=True, units=160, chunks=5),
    Kind("SSE chunk, HTTP/1.1 up", "http1", "http1", True, 800, "equal"),
    Kind("SSE chunk, HTTP/2 up", "http1", "http2", True, 800, "equal"),
    Kind("JSON request with invented fields, HTTP/1.1 up", "http1", "http1", False, 160, "hostile"),
    Kind("JSON request with equal heads, HTTP/1.1 up", "http1", "http1", False, 240, "equal"),
    Kind("JSON request with equal heads, HTTP/2 up", "http1", "http2", False, 240, "equal"),
    Kind("JSON request with equal heads, HTTP/2 in, HTTP/2 up", "http2", "http2", False, 240, "equal"),
    CALIBRATION,
)
# What records cost, side by side (bench/ledger.py). They are counted only by their whole names.
RECORDED: Final = (
    Kind("nothing recorded", "http1", "http1", stream=False, units=160),
    Kind("ledger", "http1", "http1", stream=False, units=160, keeps="ledger"),
    Kind("ledger, budgets", "http1", "http1", stream=False, units=160, keeps="budgets"),
    Kind("ledger, budgets, managed keys", "http1", "http1", stream=False, units=160, keeps="managed keys"),
)
# What each step of a real deployment costs, side by side. They, too, are counted only by their whole names.
ALL_ON: Final = tuple(Kind(f"all on: {step}", "http1", "http1", stream=False, units=160, all_on=step) for step in STEPS)


def chosen(words: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of that name, or of KINDS with one of the words in their name; all of KINDS without words.

    They come in one order, however they were asked for: the calibration is the last.
    """
    every = (*(kind for kind in KINDS if kind is not CALIBRATION), *RECORDED, *ALL_ON, CALIBRATION)
    names = {kind.name for kind in every}
    parts = [word for word in words if word not in names]
    return tuple(
        kind
        for kind in every
        if kind.name in words or (kind in KINDS and (not words or any(part in kind.name for part in parts)))
    )
