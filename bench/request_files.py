"""The files of velox/ that one request passes, in order: what docs/life-of-a-request.md lists.

    python -m bench.request_files          print them, for a JSON request and for a translated stream, as in the page
    python -m bench.request_files --page   write them into docs/life-of-a-request.md

A file counts if one of its functions runs between the first byte of the request and the last of its reply, in a whole
worker that has answered the same request before: what is read once for many requests (the head of an SDK, a key) is
known by then.

Knows: which requests, and how files are noted. Does not know: how a worker is put together (instructions/rig.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from bench.instructions.kinds import Kind
from bench.instructions.rig import AT_ONCE, Rig
from bench.instructions.wires import Wire
from docs.tables import fill

__all__ = ["PAGE", "json_request", "listed", "main", "translated_stream"]

_ROOT: Final = Path(__file__).parents[1]
PAGE: Final = _ROOT / "docs/life-of-a-request.md"
_VELOX: Final = str(_ROOT / "velox") + os.sep
_JSON: Final = Kind("a JSON request", "http1", "http1", stream=False, units=1, heads="equal")
_STREAM: Final = Kind("a translated stream", "http1", "http1", stream=True, units=1, heads="equal")
# Until the gateway knows which lines of the heads change.
_BEFORE: Final = 25
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


def json_request() -> list[str]:
    """Return the files of a JSON request to an upstream of the client's own API."""
    return _traced(Rig(_JSON))


def translated_stream() -> list[str]:
    """Return the files of a Chat Completion as a stream, from a model that speaks Messages."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "velox.json")
        configuration.write_text(json.dumps({"upstreams": _UPSTREAMS}))
        environment = {"VELOX_CONFIG": str(configuration), "VELOX_UPSTREAM_ORIGIN": "", "OPENAI_API_KEY": ""}
        environment["BENCH_UPSTREAM_KEY"] = "sk-of-nobody"
        return _traced(Rig(_STREAM, environment=environment, origin=_Messages))


def _traced(rig: Rig) -> list[str]:
    for _ in range(_BEFORE):
        rig.prepare(AT_ONCE)
        rig.run(AT_ONCE, 0)
    rig.prepare(AT_ONCE)
    gc.disable()  # no finalizer of an earlier request runs meanwhile
    files = _Files()
    sys.setprofile(files.see)
    try:
        rig.run(AT_ONCE, 0)
    finally:
        sys.setprofile(None)
        gc.enable()
    return files.found


def listed(files: list[str]) -> str:
    """Return them as a numbered list with links."""
    return "".join(f"{n}. [{name}](../velox/{name})\n" for n, name in enumerate(files, 1))


def main(arguments: list[str] | None = None) -> int:
    """Print the lists, or write them into the page. Return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.request_files", description=__doc__)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    lists = {"json-request": json_request(), "translated-stream": translated_stream()}
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
