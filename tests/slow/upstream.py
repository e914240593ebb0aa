"""An upstream for attacks, in a process of its own: a small answer to everything, a megabyte below /large.

Knows: as much of HTTP/1.1 as Velox sends. Does not know: attacks, or that it is attacked itself for comparison.
    python -m tests.slow.upstream [LIMIT]       prints its origin, then serves until it is killed

LIMIT: connections beyond so many are told 503 and closed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import uvloop

_SMALL: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_LARGE: Final = bytes(1 << 20)
_PIECE_BYTES: Final = 32 * 1024
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_BACKLOG: Final = 4096  # hundreds come at once; the kernel caps it at somaxconn
_ANY: Final = 1 << 20


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_now: set[asyncio.StreamWriter], limit: int
) -> None:
    """Answer one request after the other until the other side closes."""
    open_now.add(writer)
    try:
        if len(open_now) > limit:
            writer.write(_FULL)
            return
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line[15:]))
            body = _LARGE if b" /large" in head[: head.index(b"\r\n")] else _SMALL
            fields = b"content-type: application/json\r\ncontent-length: %d" % len(body)
            writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % fields)
            # In pieces, so that those who want little do not wait behind those who want much.
            for begin in range(0, 0 if head.startswith(b"HEAD ") else len(body), _PIECE_BYTES):
                writer.write(body[begin : begin + _PIECE_BYTES])
                await writer.drain()
                if len(body) > _PIECE_BYTES:
                    await asyncio.sleep(0)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # it has left
    finally:
        open_now.discard(writer)
        writer.close()


async def main() -> None:
    """Listen, say where, and go on."""
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else _ANY
    open_now: set[asyncio.StreamWriter] = set()
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, open_now, limit), "127.0.0.1", 0, backlog=_BACKLOG
    )
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
