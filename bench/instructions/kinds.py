"""What is counted.

Knows: names and sizes. Does not know: how anything is run; nor Velox, so that a caller may say first where that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from bench.all_on import STEPS, Step
from bench.observed import OBSERVED, Observed

__all__ = ["ALL_ON", "CALIBRATION", "KINDS", "OBSERVABILITY", "RECORDED", "TRANSLATED", "Kind", "Translated", "chosen"]


# A client's request for a model; a model's whole answer for a client; the next event of its stream. Each as most are
# (a call of a tool, a text), or with what only some have.
Translated: TypeAlias = Literal[
    "request", "request with a picture", "request with a search", "answer", "answer with citations", "event"
]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked. units: how many requests, or chunks of streams, the shorter one of two runs has.

    heads: `real` and `hostile` as bench/traffic.py has them; `equal`: each request is byte for byte the one before it,
    and so is each reply. A chunk's heads are equal, so that what a new head costs is not counted as its. chunks: of a
    streamed reply, which is the unit; 0: a chunk is the unit, if it is a stream. keeps: what is on besides: a ledger,
    budgets in it (of the gateway and of each key), managed keys instead of those of the settings. all_on: a step of
    bench/all_on.py, up to which all is on instead; "": none. observes: which of timing, access log and traces
    are on (bench/observed.py); "": those that are by default. translation: what is put from which API into which
    (translations.py), without a gateway; "": nothing.
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
    observes: Literal["", Observed] = ""
    translation: Literal["", Translated] = ""
    from_to: tuple[str, str] = ("", "")

    @property
    def counts_chunks(self) -> bool:
        return self.stream and not self.chunks


def _translated(what: Translated, *pairs: tuple[str, str]) -> tuple[Kind, ...]:
    return tuple(
        Kind(f"translated {what}, {source} to {target}", "", "", False, 80, translation=what, from_to=(source, target))
        for source, target in pairs
    )


CALIBRATION: Final = Kind("calibration", "", "", stream=False, units=40)
_CHAT_TO: Final = tuple(("Chat", target) for target in ("Messages", "Gemini", "Converse", "Responses"))
_MESSAGES_TO: Final = (("Messages", "Chat"), ("Messages", "Gemini"))
_BACK: Final = (("Messages", "Chat"), ("Gemini", "Chat"), ("Chat", "Messages"), ("Chat", "Responses"))
TRANSLATED: Final = (
    *_translated("request", *_CHAT_TO, *_MESSAGES_TO),
    *_translated("request with a picture", *_CHAT_TO, *_MESSAGES_TO),
    *_translated("request with a search", *_CHAT_TO[:2], _CHAT_TO[3], _MESSAGES_TO[1]),
    *_translated("answer", *_BACK, ("Gemini", "Messages")),
    *_translated("answer with citations", *_BACK[:2], ("Gemini", "Messages")),
    *_translated("event", *_BACK, ("Chat", "Gemini")),
)
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
    *TRANSLATED,
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

# What timing, the access log and traces cost, side by side. They, too, are counted only by their whole names.
OBSERVABILITY: Final = tuple(
    Kind(f"observability: {what}", "http1", "http1", stream=False, units=160, observes=what) for what in OBSERVED
)


def chosen(words: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of that name, or of KINDS with a word in theirs; all of KINDS without words.

    They come in one order, however they were asked for: the calibration is the last.
    """
    by_word = tuple(kind for kind in KINDS if kind is not CALIBRATION)
    every = (*by_word, *RECORDED, *ALL_ON, *OBSERVABILITY, CALIBRATION)
    names = {kind.name for kind in every}
    parts = [word for word in words if word not in names]
    return tuple(
        kind
        for kind in every
        if kind.name in words
        or (kind in (*by_word, CALIBRATION) and (not words or any(part in kind.name for part in parts)))
    )
