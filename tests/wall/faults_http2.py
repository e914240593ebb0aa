"""What the wall does wrong over HTTP/2 only: GOAWAY, refusals, windows, limits, floods, and heads nobody may send.

Knows: the frames of each fault. Does not know: HTTP/1.1's faults, or which requirement asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import h2.settings

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, healthy
from tests.e2e.recording_http2 import Http2Call, Http2Connection
from tests.e2e.upstreams import CHAT_JSON, chat_chunk
from tests.wall import frames
from tests.wall.provider import Early, Fault

__all__ = ["BAD_HEADS_HTTP2", "EARLY_HTTP2", "FAULTS_HTTP2", "FLOODS"]

_WORDS: Final = chat_chunk("one ") + chat_chunk("two ")
_N_FLOOD: Final = 5_000
_OK: Final = (b":status", b"200")
_TYPE: Final = (b"content-type", b"application/json")


def _link(call: Call) -> tuple[Http2Call, Http2Connection]:
    assert isinstance(call, Http2Call) and isinstance(call.link, Http2Connection), call
    return call, call.link


# -- GOAWAY and refusals ------------------------------------------------------------------------------


async def goaway_in_stream(call: Call, nth: int) -> None:
    """Begin a stream, say goodbye with its id as the last, wait for a step, end it properly.

    The words come after the GOAWAY: whoever has them knows that the gateway has read it.
    """
    this, _ = _link(call)
    await this.head(200, SSE)
    this.goaway(this.stream_id)
    await this.data(_WORDS)
    await this.step()
    await this.data(b"data: [DONE]\n\n")
    await this.end()


async def goaway_zero(call: Call, nth: int) -> None:
    """GOAWAY: nothing of this connection was worked on. Then answer elsewhere."""
    this, _ = _link(call)
    if nth == 1:
        this.goaway(0)
        await this.silence()
    else:
        await healthy(call)


async def goaway_below(call: Call, nth: int) -> None:
    """GOAWAY with a last id below this request's, then the connection's end."""
    this, link = _link(call)
    if nth == 1:
        this.goaway(this.stream_id - 2)
        link.transport.close()
    else:
        await healthy(call)


async def refuse(call: Call, nth: int) -> None:
    """REFUSED_STREAM, always."""
    _link(call)[0].refuse()


async def refuse_once(call: Call, nth: int) -> None:
    """REFUSED_STREAM once."""
    await (refuse(call, nth) if nth == 1 else healthy(call))


# -- limits -------------------------------------------------------------------------------------------


def limit_streams(n: int) -> Fault:
    """Lower MAX_CONCURRENT_STREAMS of this connection while this stream is open; end it at a step.

    The words come after it: whoever has them knows that the gateway has read it.
    """

    async def script(call: Call, nth: int) -> None:
        this, link = _link(call)
        await this.head(200, SSE)
        link.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: n})
        link.flush()
        await this.data(_WORDS)
        await this.step()
        await this.data(b"data: [DONE]\n\n")
        await this.end()

    return script


# -- bad replies --------------------------------------------------------------------------------------


BAD_HEADS_HTTP2: Final[Mapping[str, list[tuple[bytes, bytes]]]] = {
    "cr-in-header": [_OK, _TYPE, (b"x-bad", b"a\rb")],
    "lf-in-header": [_OK, _TYPE, (b"x-bad", b"a\nb")],
    "nul-in-header": [_OK, _TYPE, (b"x-bad", b"a\0b")],
    "upper-case": [_OK, _TYPE, (b"X-Bad", b"a")],
    "200-headers": [_OK, _TYPE, *((b"x-%d" % n, b"y") for n in range(200))],
    "no-status": [_TYPE],
    "two-statuses": [_OK, _OK, _TYPE],
    "bad-status": [(b":status", b"2OO"), _TYPE],
    "two-lengths": [_OK, _TYPE, (b"content-length", b"5"), (b"content-length", b"%d" % len(CHAT_JSON))],
    "connection": [_OK, _TYPE, (b"transfer-encoding", b"chunked")],
}


def bad_head(headers: list[tuple[bytes, bytes]]) -> Fault:
    """Send a head as it is, then a body. It has no end: a stream that is over on both sides needs no reset."""

    async def script(call: Call, nth: int) -> None:
        this, link = _link(call)
        block = frames.fields(link.h2.encoder, headers)
        write = link.transport.write
        write(frames.frame(frames.HEADERS, frames.END_HEADERS, this.stream_id, block))
        write(frames.frame(frames.DATA, 0, this.stream_id, CHAT_JSON))
        await this.silence()

    return script


async def header_bomb(call: Call, nth: int) -> None:
    """One field of 4,000 bytes, then a thousand references of one byte to it: 4 MB in 5 KB."""
    this, link = _link(call)
    field = (b"x-bomb", b"b" * 3900)
    block = frames.fields(link.h2.encoder, [_OK, _TYPE, field])
    block += frames.fields(link.h2.encoder, [field]) * 1000
    link.transport.write(frames.frame(frames.HEADERS, frames.END_HEADERS, this.stream_id, block))
    await this.silence()


async def long_head(call: Call, nth: int) -> None:
    """1 MB of head: HEADERS and 64 full CONTINUATIONs."""
    this, link = _link(call)
    write = link.transport.write
    start = frames.fields(link.h2.encoder, [_OK, _TYPE])
    # A literal without indexing, without Huffman (RFC 7541 §6.2.2): name, then a value of a million bytes.
    value = b"\x00\x05x-big\x7f" + _integer(1_000_000 - 127) + b"y" * 1_000_000
    block = start + value
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    write(frames.frame(frames.HEADERS, 0, this.stream_id, pieces[0]))
    for piece in pieces[1:-1]:
        write(frames.frame(frames.CONTINUATION, 0, this.stream_id, piece))
    write(frames.frame(frames.CONTINUATION, frames.END_HEADERS, this.stream_id, pieces[-1]))
    await this.silence()


def _integer(n: int) -> bytes:
    """Return the further bytes of an HPACK integer (RFC 7541 §5.1)."""
    out = bytearray()
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    return bytes([*out, n])


async def data_over_length(call: Call, nth: int) -> None:
    """More DATA than content-length says."""
    this, link = _link(call)
    await this.head(200, [*JSON, ("content-length", "10")])
    link.transport.write(frames.frame(frames.DATA, frames.END_STREAM, this.stream_id, CHAT_JSON))
    await this.silence()


async def data_under_length(call: Call, nth: int) -> None:
    """Less DATA than content-length says, with a proper end."""
    this, link = _link(call)
    await this.head(200, [*JSON, ("content-length", "1000")])
    link.transport.write(frames.frame(frames.DATA, frames.END_STREAM, this.stream_id, b"{}"))
    await this.silence()


async def data_after_end(call: Call, nth: int) -> None:
    """A whole reply, then more of it on the ended stream."""
    this, link = _link(call)
    await this.reply(200, JSON, CHAT_JSON)
    link.transport.write(frames.frame(frames.DATA, frames.END_STREAM, this.stream_id, b"more"))


async def data_of_nobody(call: Call, nth: int) -> None:
    """DATA on stream 0, inside a stream: the whole connection is broken."""
    this, link = _link(call)
    await this.head(200, SSE)
    await this.data(_WORDS)
    link.transport.write(frames.frame(frames.DATA, 0, 0, b"x"))
    await this.silence()


async def fin_in_stream(call: Call, nth: int) -> None:
    """The connection ends in good order inside a stream, without GOAWAY."""
    this, link = _link(call)
    await this.head(200, SSE)
    await this.data(_WORDS)
    await this.drain()
    this.note_end("cut")
    link.transport.close()


# -- floods -------------------------------------------------------------------------------------------

FLOODS: Final[Mapping[str, bytes]] = {
    "ping": frames.frame(frames.PING, 0, 0, bytes(8)),
    "settings": frames.frame(frames.SETTINGS, 0, 0),
    "window-update": frames.frame(frames.WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
}


def flood(one: bytes) -> Fault:
    """The same control frame 5,000 times, then nothing."""

    async def script(call: Call, nth: int) -> None:
        this, link = _link(call)
        link.transport.write(one * _N_FLOOD)
        await this.silence()

    return script


async def empty_data(call: Call, nth: int) -> None:
    """DATA frames with nothing in them, 5,000 times."""
    this, link = _link(call)
    await this.head(200, JSON)
    link.transport.write(frames.frame(frames.DATA, 0, this.stream_id) * _N_FLOOD)
    await this.silence()


FAULTS_HTTP2: Final[Mapping[str, Fault]] = {
    "goaway-in-stream": goaway_in_stream,
    "goaway-zero": goaway_zero,
    "goaway-below": goaway_below,
    "refuse": refuse,
    "refuse-once": refuse_once,
    "limit-1": limit_streams(1),
    "limit-0": limit_streams(0),
    **{f"http2-{name}": bad_head(headers) for name, headers in BAD_HEADS_HTTP2.items()},
    "http2-header-bomb": header_bomb,
    "http2-1mb-header": long_head,
    "data-over-length": data_over_length,
    "data-under-length": data_under_length,
    "data-after-end": data_after_end,
    "data-of-nobody": data_of_nobody,
    "fin-in-stream": fin_in_stream,
    **{f"flood-{name}": flood(one) for name, one in FLOODS.items()},
    "flood-empty-data": empty_data,
}


def give_no_window(call: Call) -> None:
    """Take what fits the stream's first window, and never give another byte of window."""
    _link(call)[0].takes_body = False


def stop_reading(call: Call) -> None:
    """Take nothing more from the connection, though there is window for more than the kernel's buffers hold."""
    _, link = _link(call)
    link.h2.increment_flow_control_window(1 << 30)
    link.h2.increment_flow_control_window(1 << 30, _link(call)[0].stream_id)
    link.flush()
    link.transport.pause_reading()


EARLY_HTTP2: Final[Mapping[str, Early]] = {"no-window": give_no_window, "no-read-http2": stop_reading}
