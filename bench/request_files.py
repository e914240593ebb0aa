"""The files of velox/ that one request passes, in order: what docs/life-of-a-request.md lists.

    python -m bench.request_files          print them, for a JSON request and for a translated stream, as in the page
    python -m bench.request_files --page   write them into docs/life-of-a-request.md
    python -m bench.request_files --check  say in what the page differs

A file counts if one of its functions runs between the first byte of the request and the last of its reply, in a whole
worker that has answered the same request before: what is read once for many requests (the head of an SDK, a key) is
known by then. What is found out once in a while, such as the date of a second or the state of a bucket, is entered in
some rounds of requests and not in others, or by another request of the round: a file is listed if most rounds enter it.

Knows: which requests, and how files are noted. Does not know: how a worker is put together (instructions/rig.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from bench.instructions.kinds import Kind
from bench.instructions.rig import AT_ONCE, Rig
from bench.instructions.wires import Wire
from docs.tables import fill

__all__ = ["PAGE", "differs", "in_page", "json_request", "listed", "main", "translated_stream", "typical"]

_ROOT: Final = Path(__file__).parents[1]
PAGE: Final = _ROOT / "docs/life-of-a-request.md"
_VELOX: Final = str(_ROOT / "velox") + os.sep
_JSON: Final = Kind("a JSON request", "http1", "http1", stream=False, units=1, heads="equal")
_STREAM: Final = Kind("a translated stream", "http1", "http1", stream=True, units=1, heads="equal")
# Until the gateway knows which lines of the heads change.
_BEFORE: Final = 25
_ROUNDS: Final = 8
_UPSTREAMS: Final = [
    {"name": "claude", "provider": "anthropic", "origin": "http://127.0.0.1:9", "key": "env:BENCH_UPSTREAM_KEY"}
]
_EVENTS: Final = (
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 12, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " there."}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 4},
    },
    {"type": "message_stop"},
)


class _Messages(Wire):
    """An upstream that speaks Anthropic's Messages, and answers each request with the same stream, an event a turn."""

    def __init__(self, protocol: Any, loop: Any, _upstream: object) -> None:
        super().__init__(protocol, loop)

    def write(self, data: Any) -> None:
        if data.startswith(b"HEAD "):  # the pool's warm-up
            self._loop.call_soon(self.say, b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n")
            return
        events = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in _EVENTS]
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._step([head, *chunks, b"0\r\n\r\n"])

    def _step(self, pieces: list[bytes]) -> None:
        first, *others = pieces
        if others:
            self._loop.call_soon(self._step, others)
        self._loop.call_soon(self.say, first)


class _Files:
    """Notes in which order files of velox/ are entered."""

    def __init__(self) -> None:
        self.found: Final[list[str]] = []
        self._seen: Final[set[CodeType]] = set()

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Take one event of sys.setprofile."""
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        name = code.co_filename
        if name.startswith(_VELOX) and (found := name.removeprefix(_VELOX)) not in self.found:
            self.found.append(found)


def json_request() -> list[list[str]]:
    """Return the files of a JSON request to an upstream of the client's own API, as each round has entered them."""
    return _traced(Rig(_JSON))


def translated_stream() -> list[list[str]]:
    """Return the files of a Chat Completion as a stream, from a model that speaks Messages, as each round has them."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "velox.json")
        configuration.write_text(json.dumps({"upstreams": _UPSTREAMS}))
        environment = {"VELOX_CONFIG": str(configuration), "VELOX_UPSTREAM_ORIGIN": "", "OPENAI_API_KEY": ""}
        environment["BENCH_UPSTREAM_KEY"] = "sk-of-nobody"
        return _traced(Rig(_STREAM, environment=environment, origin=_Messages))


def _traced(rig: Rig) -> list[list[str]]:
    for _ in range(_BEFORE):
        rig.prepare(AT_ONCE)
        rig.run(AT_ONCE, 0)
    gc.disable()  # no finalizer of an earlier request runs meanwhile
    rounds = [_once(rig) for _ in range(_ROUNDS)]
    gc.enable()
    return rounds


def _once(rig: Rig) -> list[str]:
    rig.prepare(AT_ONCE)
    files = _Files()
    sys.setprofile(files.see)
    try:
        rig.run(AT_ONCE, 0)
    finally:
        sys.setprofile(None)
    return files.found


def typical(rounds: Sequence[list[str]]) -> list[str]:
    """Return the files that most rounds have entered, in the order in which they mostly are."""
    places: dict[str, list[int]] = {}
    for entered in rounds:
        for at, name in enumerate(entered):
            places.setdefault(name, []).append(at)
    found = [name for name, at in places.items() if len(at) > len(rounds) / 2]
    return sorted(found, key=lambda name: statistics.median(places[name]))


def differs(files: Sequence[str], rounds: Sequence[list[str]]) -> list[str]:
    """Return in what a list is not what the rounds have entered: empty where it is."""
    always = [name for name in rounds[0] if all(name in entered for entered in rounds)]
    wrong = [f"{name} is entered" for name in always if name not in files]
    wrong += [f"{name} is not entered" for name in files if all(name not in entered for entered in rounds)]
    for before, after in pairwise(files):
        seen = [entered for entered in rounds if before in entered and after in entered]
        if seen and all(entered.index(after) < entered.index(before) for entered in seen):
            wrong.append(f"{after} comes before {before}")
    return wrong


def listed(files: Sequence[str]) -> str:
    """Return them as a numbered list with links."""
    return "".join(f"{n}. [{name}](../velox/{name})\n" for n, name in enumerate(files, 1))


def in_page(name: str) -> list[str]:
    """Return the files of one list of the page."""
    text = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
    return [line.partition("[")[2].partition("]")[0] for line in text.splitlines()]


def main(arguments: list[str] | None = None) -> int:
    """Print the lists, write them into the page, or check it. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.request_files", description=__doc__)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true", help="end with 1 where the page has other files")
    options = parser.parse_args(arguments)
    rounds = {"json-request": json_request(), "translated-stream": translated_stream()}
    if options.check:
        wrong = [f"{name}: {each}" for name, seen in rounds.items() for each in differs(in_page(name), seen)]
        print(*wrong, sep="\n")
        return 1 if wrong else 0
    lists = {name: typical(seen) for name, seen in rounds.items()}
    if options.page:
        text = PAGE.read_text()
        for name, files in lists.items():
            text = fill(text, name, listed(files))
        PAGE.write_text(text)
    else:
        for name, files in lists.items():
            print(f"<!-- {name} -->\n{listed(files)}<!-- /{name} -->\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
