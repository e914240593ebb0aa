"""An upstream that writes each SSE chunk on its own, as a model does: HTTP/1.1 on one port, HTTP/2 (h2c) on another.

    python -m bench.upstream HTTP1_PORT HTTP2_PORT --interval 0.01 --chunks 100

A POST is read to its end. If its body says `"stream":true` the answer is SSE: one chunk each `interval` seconds (0: one
in each turn of the loop), each by a write of its own, with the time of the monotonic clock in it. Otherwise it is the
JSON of bench/traffic.py, as the heads of all replies to POSTs are. GET /count says how many chunks were written and how
many requests were answered so far, this one included, as nginx counts; GET /pace?0.01&5 changes the interval, and how
many chunks there are, for the streams that begin from then on.

Knows: the two framings, through velox.protocol. Does not know: who asks.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import ssl
import time
from collections.abc import Sequence
from typing import Final, cast

import uvloop

from bench.payloads import SSE_LAST, SSE_STOP, sse_chunk
from bench.traffic import MODELS_REPLY, replies
from velox.heads import Header, RequestHead
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.request import HeadReader, Http1Limits, RequestDecoder
from velox.protocol.http2.engine import Engine, EngineSettings
from velox.protocol.http2.engines import engine_factory

_JSON: Final = (b"content-type", b"application/json")
# A gateway may write the body anew, with spaces, and its fields in another order: then `stream` comes last.
_STREAM: Final = re.compile(rb'"stream": ?true')
# All of a short chat; the rest of a large body is not looked at.
_LOOKED_AT_BYTES: Final = 2048


class Pace:
    """How answers are streamed, and how many chunks were so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float, n_chunks: int) -> None:
        self.loop: Final = loop
        self.interval_s = interval_s
        self.n_chunks = n_chunks
        self.n_written = 0
        self.n_answered = 0
        self.replies: Final = replies()
        self.streams: Final = replies(stream=True)


class Playing:
    """One SSE answer. `outlet` writes its chunks."""

    __slots__ = ("_due_s", "_interval_s", "_left", "_outlet", "_pace", "gone")

    def __init__(self, pace: Pace, outlet: Http1Client | Http2Stream) -> None:
        self._pace: Final = pace
        self._outlet: Final = outlet
        self._interval_s: Final = pace.interval_s
        self._left = pace.n_chunks
        self._due_s = pace.loop.time()
        self.gone = False
        self._step()

    def _step(self) -> None:
        if self.gone:
            return
        if not self._left:
            self._outlet.write_event(SSE_STOP + SSE_LAST, last=True)
            return
        self._left -= 1
        self._pace.n_written += 1
        self._outlet.write_event(sse_chunk(time.monotonic_ns()), last=False)
        if self._interval_s:
            self._due_s += self._interval_s
            self._pace.loop.call_at(self._due_s, self._step)
        else:
            self._pace.loop.call_soon(self._step)


class Http1Client(asyncio.Protocol):
    """One HTTP/1.1 connection."""

    def __init__(self, pace: Pace) -> None:
        self._pace: Final = pace
        self._heads: Final = HeadReader(Http1Limits())
        self._decoder: Final = RequestDecoder(Http1Limits(), self._heads)
        self._head: RequestHead | None = None
        self._start = b""
        self._playing: Playing | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.feed(data)
        if self._head is None:
            self._head = decoder.read_head()
            if self._head is None:
                return
            self._heads.accept(self._head)
        piece = decoder.read_body()
        if len(self._start) < _LOOKED_AT_BYTES:
            self._start += piece[:_LOOKED_AT_BYTES]
        if decoder.body_complete:
            head, self._head = self._head, None
            start, self._start = self._start, b""
            self._answer(head, start)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._playing is not None:
            self._playing.gone = True

    def write_event(self, event: bytes, *, last: bool) -> None:
        self._transport.write(http1_write.chunk(event) + (http1_write.LAST_CHUNK if last else b""))

    def _answer(self, head: RequestHead, start: bytes) -> None:
        self._pace.n_answered += head.method == b"POST" or head.path == b"/count"
        if _STREAM.search(start):
            self._transport.write(next(self._pace.streams).http1_head())
            self._playing = Playing(self._pace, self)
            return
        if head.target.startswith(b"/pace?"):
            interval, _, chunks = head.target.partition(b"?")[2].partition(b"&")
            self._pace.interval_s, self._pace.n_chunks = float(interval), int(chunks)
        if head.method == b"POST":
            made = next(self._pace.replies)
            self._transport.write(made.http1_head() + made.body)
            return
        body = self._asked(head.path)
        reply = http1_write.reply_head(200, [_JSON], content_length=len(body), chunked=False, close=False)
        self._transport.write(reply if head.method == b"HEAD" else reply + body)

    def _asked(self, path: bytes) -> bytes:
        """Return what a GET is answered with: the counts, the models, or nothing that anyone could take for wrong."""
        if path == b"/count":
            return b'{"chunks":%d,"requests":%d}' % (self._pace.n_written, self._pace.n_answered)
        return MODELS_REPLY if path == b"/v1/models" else b"{}"


class Http2Stream:
    """One stream of an HTTP/2 connection."""

    __slots__ = ("_client", "_id", "_method", "_start", "playing")

    def __init__(self, client: Http2Client, stream_id: int, method: bytes) -> None:
        self._client: Final = client
        self._id: Final = stream_id
        self._method: Final = method
        self._start = b""
        self.playing: Playing | None = None

    def receive(self, piece: bytes) -> None:
        if len(self._start) < _LOOKED_AT_BYTES:
            self._start += piece[:_LOOKED_AT_BYTES]

    def answer(self, pace: Pace) -> None:
        pace.n_answered += 1
        engine = self._client.engine
        if _STREAM.search(self._start):
            engine.send_response(self._id, next(pace.streams).http2_head(), False)
            self.playing = Playing(pace, self)
            return
        reply = next(pace.replies)
        is_head = self._method == b"HEAD"
        engine.send_response(self._id, reply.http2_head(), is_head)
        if not is_head:
            engine.send_data(self._id, reply.body, True)

    def write_event(self, event: bytes, *, last: bool) -> None:
        self._client.engine.send_data(self._id, event, last)
        self._client.flush()


class Http2Client(asyncio.Protocol):
    """One HTTP/2 connection; the handler of its engine."""

    def __init__(self, pace: Pace) -> None:
        self._pace: Final = pace
        self.engine: Final[Engine] = engine_factory("ngh2")(self, EngineSettings(max_streams_local=1024), False)
        self._streams: Final[dict[int, Http2Stream]] = {}
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.engine.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.engine.receive(data)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in self._streams.values():
            if stream.playing is not None:
                stream.playing.gone = True

    def flush(self) -> None:
        while self.engine.has_output and (output := self.engine.take_output()):
            self._transport.write(output)

    # What the engine calls.

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self._streams[stream_id] = Http2Stream(self, stream_id, dict(headers)[b":method"])
        if end_stream:
            self.on_stream_end(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.acknowledge(stream_id, len(data))
        self._streams[stream_id].receive(data)
        if end_stream:
            self.on_stream_end(stream_id)

    def on_stream_end(self, stream_id: int) -> None:
        # A finished answer is forgotten by the engine; ours is small, and is dropped when the request is whole.
        self._streams.pop(stream_id).answer(self._pace)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        self._streams.pop(stream_id, None)

    def on_goaway(self, last_stream_id: int, error_code: int) -> None: ...

    def on_settings(self) -> None: ...

    def on_window(self, stream_id: int) -> None: ...

    def on_pong(self) -> None: ...

    def on_fatal(self, message: str) -> None:
        self._transport.close()


async def serve(http1_port: int, http2_port: int, interval_s: float, n_chunks: int, tls: Sequence[str]) -> None:
    """Serve until the process is ended. tls: the two ports with TLS, certificate and key; empty: none."""
    loop = asyncio.get_running_loop()
    pace = Pace(loop, interval_s, n_chunks)
    if tls:
        http1, http2 = _context(tls[2:], "http/1.1"), _context(tls[2:], "h2")
        await loop.create_server(lambda: Http1Client(pace), "127.0.0.1", int(tls[0]), ssl=http1)
        await loop.create_server(lambda: Http2Client(pace), "127.0.0.1", int(tls[1]), ssl=http2)
    await loop.create_server(lambda: Http1Client(pace), "127.0.0.1", http1_port)
    await loop.create_server(lambda: Http2Client(pace), "127.0.0.1", http2_port)
    await asyncio.Event().wait()


def _context(files: Sequence[str], protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(*files)
    context.set_alpn_protocols([protocol])
    return context


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.upstream")
    parser.add_argument("http1_port", type=int)
    parser.add_argument("http2_port", type=int)
    parser.add_argument("--interval", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tls", nargs=4, default=(), metavar=("HTTP1_PORT", "HTTP2_PORT", "CERT", "KEY"))
    given = parser.parse_args()
    uvloop.run(serve(given.http1_port, given.http2_port, given.interval, given.chunks, given.tls))


if __name__ == "__main__":
    main()
