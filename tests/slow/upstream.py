"""An upstream for attacks, in a process of its own: a small answer to everything, a megabyte below /large.

Knows: as much of HTTP/1.1 as Velox sends. Does not know: attacks.
    python -m tests.slow.upstream       prints its origin, then serves until it is killed
"""

from __future__ import annotations

import asyncio
from typing import Final

import uvloop

_SMALL: Final = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_LARGE: Final = bytes(1 << 20)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request after the other until the other side closes."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line[15:]))
            body = _LARGE if b" /large" in head[: head.index(b"\r\n")] else _SMALL
            fields = b"content-type: application/json\r\ncontent-length: %d" % len(body)
            bare = head.startswith(b"HEAD ")
            writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (fields, b"" if bare else body))
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # it has left
    finally:
        writer.close()


async def main() -> None:
    """Listen, say where, and go on."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
