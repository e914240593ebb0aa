"""What is counted.

Knows: names and sizes. Does not know: how anything is run; nor Velox, so that a caller may say first where that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CALIBRATION", "KINDS", "Kind", "chosen"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked. units: how many requests, or chunks of streams, the shorter one of two runs has."""

    name: str
    client: Literal["http1", "http2", ""]  # "": no gateway at all
    upstream: Literal["http1", "http2", ""]
    stream: bool
    units: int


CALIBRATION: Final = Kind("calibration", "", "", stream=False, units=40)
KINDS: Final = (
    Kind("JSON request, HTTP/1.1 up", "http1", "http1", stream=False, units=240),
    Kind("JSON request, HTTP/2 up", "http1", "http2", stream=False, units=240),
    Kind("JSON request, HTTP/2 in, HTTP/2 up", "http2", "http2", stream=False, units=240),
    Kind("SSE chunk, HTTP/1.1 up", "http1", "http1", stream=True, units=800),
    Kind("SSE chunk, HTTP/2 up", "http1", "http2", stream=True, units=800),
    CALIBRATION,
)


def chosen(words: list[str]) -> tuple[Kind, ...]:
    """Return the kinds that have one of the words in their name; all of them without words."""
    return tuple(kind for kind in KINDS if not words or any(word in kind.name for word in words))
