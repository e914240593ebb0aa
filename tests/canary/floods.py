"""An upstream that answers each request with an endless stream of small events, or with one answer that is too much.

    python -m tests.canary.floods KIND      a server of its own process on a free port, which is printed

Knows: what floods look like in each API. Does not know: the gateway, or what becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Final

import uvloop

from tests.canary.attackers import NICE

__all__ = ["ANSWERS", "FLOODS"]

_BLOCK_BYTES: Final = 256 * 1024


def _event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: %b\n\n" % json.dumps(data).encode()


_START: Final = _event({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}}, "message_start")
_EMPTY: Final = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}}]}
_TEXT: Final = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "word "}}]}

# What begins a stream, and what is repeated.
FLOODS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "pings": (_START, _event({"type": "ping"}, "ping")),
    "starts": (b"", _START),
    "comments": (b"", b": comment\n\n"),
    "empty deltas": (b"", _event(_EMPTY)),
    "texts": (b"", _event(_TEXT)),
    "empty candidates": (b"", _event({"candidates": [{"content": {"parts": [{"text": ""}]}}]})),
}


def _gemini(parts: bytes) -> bytes:
    return b'{"candidates":[{"content":{"role":"model","parts":[%b]},"finishReason":"STOP"}]}' % parts


def _claude(blocks: bytes) -> bytes:
    return (
        b'{"id":"m","type":"message","role":"assistant","model":"m","content":[%b],"stop_reason":"end_turn",'
        b'"usage":{"input_tokens":1,"output_tokens":1}}' % blocks
    )


_PART: Final = b'{"text":"a"}'
_BLOCK: Final = b'{"type":"text","text":"a"}'
_MIB: Final = 1 << 20
# Whole answers: how each is made, and whether it is an event of a stream. With its provider.
ANSWERS: Final[Mapping[str, tuple[Callable[[], bytes], bool, str]]] = {
    "an answer of letters": (
        lambda: _claude(b'{"type":"text","text":"%b"}' % (b"a" * (50 * _MIB))),
        False,
        "anthropic",
    ),
    "an answer of blanks": (lambda: _gemini(b'{"text":"%b"}' % (b" " * (30 * _MIB))), False, "gemini"),
    "an answer of many blocks": (lambda: _claude(b",".join([_BLOCK] * 60_000)), False, "anthropic"),
    "an answer of too many blocks": (lambda: _claude(b",".join([_BLOCK] * 1_000_000)), False, "anthropic"),
    "an answer of halves": (lambda: _gemini(b'{"text":"%b"}' % (rb"\ud83d" * (2 * _MIB))), False, "gemini"),
    "an event of letters": (lambda: _gemini(b'{"text":"%b"}' % (b"a" * (30 * _MIB))), True, "gemini"),
    "an event of many parts": (lambda: _gemini(b",".join([_PART] * 60_000)), True, "gemini"),
}
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Flood:
    def __init__(self, kind: str) -> None:
        self._whole = b""
        if kind in ANSWERS:
            make, is_event, _ = ANSWERS[kind]
            body = b"data: %b\n\n" % make() if is_event else make()
            form = b"text/event-stream" if is_event else b"application/json"
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (form, len(body))
            self._whole = head + body
            return
        self._first, piece = FLOODS[kind]
        self._block: Final = piece * (_BLOCK_BYTES // len(piece))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"POST"):
                    writer.write(_ANSWER[:-2] if head.startswith(b"HEAD") else _ANSWER)
                    continue
                if self._whole:
                    length = int(re.search(rb"content-length: *([0-9]+)", head, re.IGNORECASE)[1])  # type: ignore[index]
                    await reader.readexactly(length)
                    writer.write(self._whole)
                    await writer.drain()
                    continue
                writer.write(_HEAD + self._first)
                while True:
                    writer.write(self._block)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _main(kind: str) -> None:
    server = await asyncio.start_server(_Flood(kind).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    os.nice(NICE)
    uvloop.run(_main(sys.argv[1]))
