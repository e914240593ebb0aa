"""What the wall does wrong, by name: the faults that both HTTP versions have, and the table of all of them.

Knows: a script for each fault. Does not know: which requirement asks for it (the tests say), or raw bytes and frames
(faults_http1.py, faults_http2.py).
"""

from __future__ import annotations

import asyncio
import email.utils
import time
import zlib
from collections.abc import Mapping
from typing import Final, cast

from tests.e2e.recorded_call import Call, Fields
from tests.e2e.recording import JSON, SSE, healthy
from tests.e2e.recording_http2 import Http2Call
from tests.e2e.upstreams import chat_chunk
from tests.wall.faults_http1 import EARLY_HTTP1, FAULTS_HTTP1
from tests.wall.faults_http2 import EARLY_HTTP2, FAULTS_HTTP2
from tests.wall.provider import Early, Fault, Provider

__all__ = [
    "BIG_EVENT",
    "BOMB_BYTES",
    "CONTEXT_ERROR",
    "DONE",
    "EARLY",
    "ERROR_IN_STREAM",
    "FAULTS",
    "MALFORMED",
    "N_TICKS",
    "SLOW_S",
    "STATUS_BODY",
    "TICK",
    "UNENDED",
    "WORDS",
    "gzip_bomb",
]

DONE: Final = b"data: [DONE]\n\n"
WORDS: Final = chat_chunk("one ") + chat_chunk("two ")
HALF_EVENT: Final = WORDS[:-40]
STATUS_BODY: Final = b'{"error":{"message":"from the wall","type":"wall","param":null,"code":"wall"}}'
CONTEXT_ERROR: Final = (
    b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
)
ERROR_IN_STREAM: Final = WORDS + b'data: {"error":{"message":"no","type":"server_error","code":"server_error"}}\n\n'
MALFORMED: Final = WORDS + b'data: {"choices":[{"delta":{"content":"thr\n\n' + DONE
BIG_EVENT: Final = b'data: {"x":"' + b"y" * 1_000_000 + b'"}\n\n' + DONE
UNENDED: Final = WORDS
SLOW_S: Final = 0.5
# Longer than a connection that had gone stale would take to say so.
_THINK_S: Final = 0.15
_SOON_S: Final = 0.02
_LEAP_S: Final = 0.01
BOMB_BYTES: Final = 1 << 30
TICK: Final = chat_chunk("tick ")
N_TICKS: Final = 22
_TICK_S: Final = 0.1


# -- building blocks ---------------------------------------------------------------------------------


def status(code: int, fields: Fields = (), body: bytes = STATUS_BODY) -> Fault:
    """Answer with a status and an error of the provider's own."""

    async def script(call: Call, nth: int) -> None:
        await call.reply(code, [*JSON, *fields], body)

    return script


def once(fault: Fault) -> Fault:
    """Do it at the first attempt only."""

    async def script(call: Call, nth: int) -> None:
        await (fault(call, nth) if nth == 1 else healthy(call))

    return script


def late(seconds: float) -> Fault:
    """Answer after a while."""

    async def script(call: Call, nth: int) -> None:
        await asyncio.sleep(seconds)
        await healthy(call)

    return script


def events(data: bytes) -> Fault:
    """Send a stream and end it properly."""

    async def script(call: Call, nth: int) -> None:
        await call.head(200, SSE)
        await call.data(data)
        await call.end()

    return script


async def _begin(call: Call, data: bytes, fields: Fields = ()) -> None:
    """Send a head and the begin of a body, as the request wants it, and give it the time to arrive."""
    await call.head(200, [*(SSE if b'"stream": true' in call.body else JSON), *fields])
    if data:
        await call.data(data)
    await call.drain()
    await asyncio.sleep(_SOON_S)


# -- faults -------------------------------------------------------------------------------------------


async def drop(call: Call, nth: int) -> None:
    """Work on it, then reset without a byte."""
    await asyncio.sleep(_THINK_S)
    call.lose()


async def hang_up(call: Call, nth: int) -> None:
    """Work on it, then close in good order without a byte (HTTP/2: RST_STREAM)."""
    await asyncio.sleep(_THINK_S)
    call.cut()


async def silent(call: Call, nth: int) -> None:
    """Never answer."""
    await call.silence()


async def lose_after_head(call: Call, nth: int) -> None:
    """A head, then a reset."""
    await _begin(call, b"")
    call.lose()


async def lose_after_words(call: Call, nth: int) -> None:
    """Some events, then a reset of the connection."""
    await _begin(call, WORDS)
    call.lose()


async def cut_after_words(call: Call, nth: int) -> None:
    """Some events, then FIN (HTTP/2: RST_STREAM)."""
    await _begin(call, WORDS)
    call.cut()


async def cut_in_event(call: Call, nth: int) -> None:
    """Half an event, then FIN (HTTP/2: RST_STREAM)."""
    await _begin(call, HALF_EVENT)
    call.cut()


async def cut_short_of_length(call: Call, nth: int) -> None:
    """Less than the length that was announced."""
    await _begin(call, WORDS, [("content-length", str(len(WORDS) + 100))])
    call.cut()


def cut_in_character(n_bytes: int) -> Fault:
    """Cut inside a character of four bytes."""

    async def script(call: Call, nth: int) -> None:
        await _begin(call, chat_chunk("one ") + b'data: {"x":"' + "😀".encode()[:n_bytes])
        call.cut()

    return script


async def drip(call: Call, nth: int) -> None:
    """A healthy stream or body, each byte in a segment or a frame of its own."""
    body = WORDS + "data: \u2028 é 😀\r\n\r\n".encode() + DONE
    await call.head(200, SSE if b'"stream": true' in call.body else JSON)
    for n in range(len(body)):
        await call.data(body[n : n + 1])
        await call.drain()
        await asyncio.sleep(0)
    await call.end()


async def stall(call: Call, nth: int) -> None:
    """Some events, then nothing, with the connection open."""
    await _begin(call, WORDS)
    await call.silence()


async def comments(call: Call, nth: int) -> None:
    """A text that has begun (before it a model may think, and comments tell that it is there), then comments only."""
    await _begin(call, WORDS * (2048 // len(WORDS) + 1))
    while not call.left_s:
        await call.data(b": ka\n\n")
        await asyncio.sleep(0.1)


async def ticking(call: Call, nth: int) -> None:
    """A stream that lasts, with an event ten times a second."""
    await call.head(200, SSE)
    await call.data(WORDS)
    for _ in range(N_TICKS):
        await asyncio.sleep(_TICK_S)
        await call.data(TICK)
    await call.data(DONE)
    await call.end()


async def held_stream(call: Call, nth: int) -> None:
    """Two events, then waits for a step, then the rest."""
    await call.head(200, SSE)
    await call.data(WORDS)
    await call.step()
    await call.data(DONE)
    await call.end()


async def hold(call: Call, nth: int) -> None:
    """Wait for a step, then answer."""
    await call.step()
    await healthy(call)


async def retry_at(call: Call, nth: int) -> None:
    """429 with the date after which to come back, about 2 s from now; dates have whole seconds."""
    if nth == 1:
        date = email.utils.formatdate(time.time() + 2, usegmt=True)
        await call.reply(429, [*JSON, ("retry-after", date)], STATUS_BODY)
    else:
        await healthy(call)


async def flap(call: Call, nth: int) -> None:
    """500 while the wall is down."""
    await (status(500)(call, nth) if cast(Provider, call.upstream).is_down else healthy(call))


async def echo_key(call: Call, nth: int) -> None:
    """401 whose body holds the credential that was sent, as some providers do."""
    key = (call.header("authorization") or "").removeprefix("Bearer ")
    body = b'{"error":{"message":"incorrect API key provided: %b","code":"invalid_api_key"}}' % key.encode()
    await call.reply(401, JSON, body)


async def redirect(call: Call, nth: int) -> None:
    """Send the caller, and the key it carries, elsewhere."""
    await call.reply(307, [("location", f"{call.upstream.upstream.url}/v1/elsewhere")], b"")


def interim(n: int) -> Fault:
    """Interim replies before the reply."""

    async def script(call: Call, nth: int) -> None:
        for number in range(n):
            # A head of HTTP/2 in 10 lines would be a different fault: 103 with a link is what servers send.
            await call.interim(103 if number % 2 else 100, [("link", "</x>; rel=preload")] if number % 2 else [])
        await healthy(call)

    return script


async def bomb(call: Call, nth: int) -> None:
    """1 GiB of zeros, packed into 1 MB."""
    body = gzip_bomb()
    await call.head(200, [*JSON, ("content-encoding", "gzip"), ("content-length", str(len(body)))])
    await call.data(body)
    await call.end()


def gzip_bomb() -> bytes:
    """Return 1 GiB of zeros in gzip's format. One block is packed once; after a full flush it can be repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    length = BOMB_BYTES.to_bytes(4, "little")
    # No checksum: nobody may look.
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * (BOMB_BYTES >> 20) + b"\x03\0" + bytes(4) + length


async def pour(call: Call, nth: int) -> None:
    """More than any buffer holds, as fast as it goes."""
    await call.head(200, SSE if b'"stream": true' in call.body else JSON)
    while not call.left_s:
        await call.data(b"data: " + b"z" * 65_528 + b"\n\n")
        await call.drain()


async def close_soon(call: Call, nth: int) -> None:
    """Answer, and close the connection a moment later, when the next request may be under way."""
    await healthy(call)
    await asyncio.sleep(_LEAP_S)
    if isinstance(call, Http2Call):
        call.goaway(call.stream_id)
    call.link.transport.close()


FAULTS: Final[Mapping[str, Fault]] = {
    "drop": drop,
    "drop-once": once(drop),
    "hang-up": hang_up,
    "silent": silent,
    "silent-once": once(silent),
    "slow": late(SLOW_S),
    "too-slow": late(60),
    "lose-after-head": lose_after_head,
    "lose-after-words": lose_after_words,
    "cut-after-words": cut_after_words,
    "cut-in-event": cut_in_event,
    "cut-short-of-length": cut_short_of_length,
    **{f"cut-in-character-{n}": cut_in_character(n) for n in (1, 2, 3)},
    "drip": drip,
    "stall": stall,
    "comments": comments,
    "ticking": ticking,
    "held-stream": held_stream,
    "hold": hold,
    "error-in-stream": events(ERROR_IN_STREAM),
    "malformed": events(MALFORMED),
    "big-event": events(BIG_EVENT),
    "unended": events(UNENDED),
    "429-2s-once": once(status(429, [("retry-after", "2")])),
    "429-300ms-once": once(status(429, [("retry-after-ms", "300")])),
    "429-date-once": retry_at,
    "429-60s": status(429, [("retry-after", "60"), ("x-wall", "kept")]),
    "429": status(429),
    "500-once": once(status(500)),
    "503-once": once(status(503)),
    "500": status(500),
    "503": status(503, [("x-wall", "kept")]),
    "500-no-retry": status(500, [("x-should-retry", "false")]),
    "context-length": status(400, body=CONTEXT_ERROR),
    "content-filter": status(400, body=CONTEXT_ERROR.replace(b"context_length_exceeded", b"content_filter")),
    "403": status(403),
    "echo-key": echo_key,
    "flap": flap,
    "redirect": redirect,
    "interim-10": interim(10),
    "interim-100": interim(100),
    "bomb": bomb,
    "pour": pour,
    "close-soon": close_soon,
    **FAULTS_HTTP1,
    **FAULTS_HTTP2,
}
EARLY: Final[Mapping[str, Early]] = {**EARLY_HTTP1, **EARLY_HTTP2}
