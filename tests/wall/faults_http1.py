"""What the wall does wrong over HTTP/1.1 only: heads, lengths and ends that nobody may send.

Knows: the bytes of each fault. Does not know: HTTP/2's faults, or which requirement asks for one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, healthy
from tests.e2e.recording_http1 import Http1Call
from tests.e2e.upstreams import CHAT_JSON, chat_chunk
from tests.wall.provider import Early, Fault

__all__ = ["BAD_HEADS_HTTP1", "EARLY_HTTP1", "FAULTS_HTTP1", "SMUGGLED"]

_SOON_S: Final = 0.02
_TYPE: Final = b"content-type: application/json\r\n"
_END: Final = b"content-length: %d\r\n\r\n%b" % (len(CHAT_JSON), CHAT_JSON)
# A reply that would poison the connection's next request if it were taken for its answer.
SMUGGLED: Final = b'{"smuggled":true}'
_EXTRA: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED)


def raw(data: bytes) -> Fault:
    """Send bytes as they are."""

    async def script(call: Call, nth: int) -> None:
        assert isinstance(call, Http1Call), call
        call.raw(data)
        await call.silence()

    return script


async def stale(call: Call, nth: int) -> None:
    """Read the request and close, as if it had met a keep-alive that ran out; then answer."""
    if nth == 1:
        call.cut()
    else:
        await healthy(call)


def until_closed(data: bytes, *, lost: bool) -> Fault:
    """Send a stream that only the connection's end tells the end of. lost: it ends by a reset, which is no end."""

    async def script(call: Call, nth: int) -> None:
        await call.head(200, [*SSE, ("connection", "close")])
        await call.data(data)
        await call.drain()
        await asyncio.sleep(_SOON_S)
        if lost:
            call.lose()
        else:
            call.cut()

    return script


def extra(data: bytes, *, late: bool) -> Fault:
    """Answer, and send more. late: when the connection is idle again."""

    async def script(call: Call, nth: int) -> None:
        assert isinstance(call, Http1Call), call
        reply = b"HTTP/1.1 200 OK\r\n" + _TYPE + _END
        if not late:
            call.raw(reply + data)
            await call.silence()
            return
        await call.reply(200, JSON, CHAT_JSON)
        await asyncio.sleep(_SOON_S)
        call.raw(data)

    return script


BAD_HEADS_HTTP1: Final[Mapping[str, bytes]] = {
    "cr-in-header": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"x-bad: a\rb\r\n" + _END,
    "lf-in-header": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"x-bad: a\nx y: b\r\n" + _END,
    "nul-in-header": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"x-bad: a\0b\r\n" + _END,
    "200-headers": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"".join(b"x-%d: y\r\n" % n for n in range(200)) + _END,
    "1mb-header": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"x-bad: " + b"y" * 1_000_000 + b"\r\n" + _END,
    "bad-status-line": b"HTTP/1.1 OK 200\r\n" + _TYPE + _END,
    "no-http": b"220 smtp.example ESMTP\r\n",
    "http-2.0": b"HTTP/2.0 200 OK\r\n" + _TYPE + _END,
    "length-and-chunks": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"transfer-encoding: chunked\r\n" + _END,
    "two-lengths": b"HTTP/1.1 200 OK\r\n" + _TYPE + b"content-length: 5\r\n" + _END,
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
}

FAULTS_HTTP1: Final[Mapping[str, Fault]] = {
    "stale": stale,
    "until-lost": until_closed(chat_chunk("one "), lost=True),
    "until-closed-in-event": until_closed(chat_chunk("one ") + chat_chunk("two ")[:-30], lost=False),
    "extra-bytes": extra(b"garbage", late=False),
    "extra-reply": extra(_EXTRA, late=False),
    "extra-reply-later": extra(_EXTRA, late=True),
    **{f"http1-{name}": raw(data) for name, data in BAD_HEADS_HTTP1.items()},
}


def stop_reading(call: Call) -> None:
    """Take nothing more of the request: the kernel's buffers fill up, then the gateway's."""
    sock: socket.socket = call.link.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    call.link.transport.pause_reading()


EARLY_HTTP1: Final[Mapping[str, Early]] = {"no-read": stop_reading}
