"""An upstream that answers each request with an endless stream of small events, as fast as they are taken.

    python -m tests.canary.floods KIND      a server of its own process on a free port, which is printed

Knows: what floods look like in each API. Does not know: the gateway, or what becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Final

import uvloop

__all__ = ["FLOODS"]

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
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Flood:
    def __init__(self, kind: str) -> None:
        self._first, piece = FLOODS[kind]
        self._block: Final = piece * (_BLOCK_BYTES // len(piece))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"POST"):
                    writer.write(_ANSWER[:-2] if head.startswith(b"HEAD") else _ANSWER)
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
    uvloop.run(_main(sys.argv[1]))
