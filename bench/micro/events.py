"""A look at each chunk of an event stream that passes: does it stand between two events, is it more than a comment?

Knows: the two usual ways to find out. Does not know: Velox's (protocol/sse.py).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed, calls
from bench.payloads import SSE_CHUNK, SSE_LAST
from velox.protocol.sse import COMMENT, EventWatch

__all__ = ["SUBJECT"]

_N_TOGETHER: Final = 8
_CUT: Final = len(SSE_CHUNK) // 2
_ERROR: Final = b'data: {"error": {"message": "no"}}\n\n'


class _Watch(Protocol):
    """A stream that is looked at."""

    n_errors: int

    @property
    def between(self) -> bool:
        """True when it stands between two events."""

    def feed(self, data: bytes) -> bool:
        """Note a chunk. True if some of it is more than a comment."""


class _Split:
    """Cuts the stream at its empty lines, as many examples do."""

    def __init__(self) -> None:
        self.n_errors = 0
        self._rest = b""

    @property
    def between(self) -> bool:
        return not self._rest

    def feed(self, data: bytes) -> bool:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        has_data = not self._rest.startswith(b":") and bool(self._rest)
        for event in events:
            if not event.startswith(b":"):
                has_data = True
                if event.startswith(b'data: {"error"'):
                    self.n_errors += 1
        return has_data


class _Lines:
    """Reads text line by line and gathers the fields of an event, as httpx-sse and the SDKs do."""

    def __init__(self) -> None:
        self.n_errors = 0
        self._decode: Final = codecs.getincrementaldecoder("utf-8")().decode
        self._rest = ""
        self._after_cr = False
        self._data: list[str] = []
        self._is_open = False

    @property
    def between(self) -> bool:
        return not self._rest and not self._is_open

    def feed(self, data: bytes) -> bool:
        text = self._decode(data)
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        self._after_cr = text.endswith("\r")
        text = (self._rest + text).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = text.split("\n")
        has_data = bool(self._rest) and not self._rest.startswith(":")
        for line in lines:
            if not line:
                if "\n".join(self._data).startswith('{"error"'):
                    self.n_errors += 1
                self._data, self._is_open = [], False
                continue
            self._is_open = True
            if line.startswith(":"):
                continue
            has_data = True
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
        return has_data


_STREAMS: Final[dict[str, Sequence[bytes]]] = {
    "events": (SSE_CHUNK, SSE_CHUNK, SSE_LAST),
    "several at once": (SSE_CHUNK * 3, SSE_LAST),
    "cut anywhere": tuple((SSE_CHUNK * 2)[at : at + 50] for at in range(0, 2 * len(SSE_CHUNK), 50)),
    "comments": (COMMENT, COMMENT, SSE_CHUNK, COMMENT),
    "an error": (SSE_CHUNK, _ERROR),
    "lines that end with CR LF": (SSE_CHUNK.replace(b"\n", b"\r\n"), COMMENT.replace(b"\n", b"\r\n")),
}


def _answers(make: Callable[[], _Watch]) -> Answers:
    found: dict[str, object] = {}
    for question, chunks in _STREAMS.items():
        watch = make()
        told = [(watch.feed(chunk), watch.between) for chunk in chunks]
        found[question] = (told, watch.n_errors)
    return found


def _begin(make: Callable[[], _Watch], chunks: Sequence[bytes]) -> Timed:
    watch = make()
    feed = watch.feed
    if len(chunks) == 1:
        return calls(partial(feed, chunks[0]))

    def all_of_them() -> None:
        for chunk in chunks:
            feed(chunk)

    return calls(all_of_them)


_CHUNKS: Final = {
    "an event": (SSE_CHUNK,),
    f"{_N_TOGETHER} events": (SSE_CHUNK * _N_TOGETHER,),
    "half an event": (SSE_CHUNK[:_CUT], SSE_CHUNK[_CUT:]),
}

SUBJECT: Final = Subject(
    "events",
    "a chunk",
    tuple(
        Case(
            name,
            (
                Candidate("Velox", partial(_begin, EventWatch, chunks), partial(_answers, EventWatch)),
                Candidate(
                    "split at empty lines",
                    partial(_begin, _Split, chunks),
                    partial(_answers, _Split),
                    unable=frozenset({"lines that end with CR LF"}),
                ),
                Candidate("line by line", partial(_begin, _Lines, chunks), partial(_answers, _Lines)),
            ),
            len(chunks),
        )
        for name, chunks in _CHUNKS.items()
    ),
)
