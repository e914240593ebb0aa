"""HTTP/1.1 and HTTP/2 of the storm's upstream: the verbs of an answer as bytes and frames.

Knows: framing, and how each version fails. Does not know: plans (upstream.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Final, cast

from hyperframe.frame import GoAwayFrame

from tests.storm.upstream import Book, Entry, Outlet
from velox.heads import Header
from velox.protocol.http2 import Engine, EngineSettings
from velox.protocol.http2_engines import engine_factory

__all__ = ["Http1Link", "Http2Link"]

_INTERNAL_ERROR: Final = 2  # RFC 9113 §7
_REFUSED_STREAM: Final = 7
_MAX_STREAMS: Final = 100


class Http1Link(asyncio.Protocol):
    """One HTTP/1.1 connection; requests have a Content-Length, and come one after the other."""

    def __init__(self, book: Book) -> None:
        self.book: Final = book
        self._buffer = bytearray()
        self._outlet: Http1Outlet | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.book.n_open += 1
        self.book.n_accepted += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        self.book.n_open -= 1
        if self._outlet is not None:
            self._outlet.note_left()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def finished(self) -> None:
        """The answer is out: the next request may come."""
        self._outlet = None
        self._advance()

    def _advance(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if self._outlet is not None or end < 0 or self.transport.is_closing():
            return
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        start, length = end + 4, int(fields.get(b"content-length", b"0"))
        if len(self._buffer) < start + length:
            return
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        self._outlet = Http1Outlet(self)
        self.book.play(self._outlet, first.split(b" ")[0].decode(), body)


class Http1Outlet(Outlet):
    """One answer over HTTP/1.1."""

    def __init__(self, link: Http1Link) -> None:
        super().__init__()
        self._link: Final = link
        self._chunked = False
        self._owed = 0
        self._is_last = False

    def head(self, status: int, fields: dict[str, str], length: int | None) -> None:
        self._chunked = length is None
        self._owed = length or 0
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = [f"{name}: {value}" for name, value in fields.items()]
        if self._is_last:
            lines.append("connection: close")
        self._link.transport.write("\r\n".join([f"HTTP/1.1 {status} So", *lines, framing, "", ""]).encode())

    def send(self, data: bytes) -> None:
        if data and not self.left.is_set():
            self._owed -= len(data)
            self._link.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self.left.is_set():
            return
        if self._chunked:
            self._link.transport.write(b"0\r\n\r\n")
        if self._is_last or (self._owed > 0 and not self._chunked):
            self.cut()
        else:
            self._link.finished()

    def cut(self) -> None:
        self._link.transport.close()

    def lose(self) -> None:
        sock = self._link.transport.get_extra_info("socket")
        if sock is not None:  # not closed yet
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._link.transport.abort()

    def refuse(self) -> None:
        self.cut()

    def goaway(self) -> None:
        self._is_last = True

    def goaway_last(self) -> None:
        self.lose()


class Http2Link(asyncio.Protocol):
    """One HTTP/2 connection; the handler of its engine."""

    def __init__(self, book: Book) -> None:
        self.book: Final = book
        self.engine: Final[Engine] = engine_factory("ngh2")(self, EngineSettings(max_streams_local=_MAX_STREAMS), False)
        self._requests: Final[dict[int, tuple[str, list[bytes]]]] = {}
        self.outlets: Final[dict[int, Http2Outlet]] = {}
        self.transport: asyncio.Transport
        self._is_writable = True
        self._entries: Final[list[Entry]] = []
        self._highest = 0
        self._last = 2**31 - 1  # above it no stream is begun: what GOAWAY said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.book.n_open += 1
        self.book.n_accepted += 1
        self.engine.start()
        self.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.book.n_open -= 1
        outlets = tuple(self.outlets.values())
        self.outlets.clear()
        for outlet in outlets:
            outlet.note_left()

    def data_received(self, data: bytes) -> None:
        self.engine.receive(data)
        self.flush()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.flush()

    def flush(self) -> None:
        """Write what may be written."""
        transport = self.transport
        while self._is_writable and self.engine.has_output and (output := self.engine.take_output()):
            if not transport.is_closing():
                transport.write(output)

    def finished(self, stream_id: int) -> None:
        """An answer is over; a connection that takes no new streams closes after its last one."""
        self.outlets.pop(stream_id, None)
        self.flush()

    def note_hit(self) -> None:
        """One stream's fault takes all that are here, and answers that are still on their way."""
        for entry in self._entries:
            entry.is_hit = True

    def say_goaway(self, last_stream_id: int = -1) -> None:
        """GOAWAY, written at once; without an id all streams that have come are finished."""
        self._last = min(self._last, self._highest if last_stream_id < 0 else last_stream_id)
        self.flush()
        if not self.transport.is_closing():
            self.transport.write(GoAwayFrame(0, last_stream_id=self._last, error_code=0).serialize())

    # What the engine calls.

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        if stream_id > self._last:
            return  # RFC 9113 §6.8: the gateway knows from GOAWAY, or will
        self._highest = max(self._highest, stream_id)
        self._requests[stream_id] = (dict(headers)[b":method"].decode(), [])
        if end_stream:
            self.on_stream_end(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.acknowledge(stream_id, len(data))
        if stream_id in self._requests:
            self._requests[stream_id][1].append(data)
            if end_stream:
                self.on_stream_end(stream_id)

    def on_stream_end(self, stream_id: int) -> None:
        method, pieces = self._requests.pop(stream_id)
        outlet = self.outlets[stream_id] = Http2Outlet(self, stream_id)
        self.book.play(outlet, method, b"".join(pieces))
        self._entries.append(outlet.entry)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        self._requests.pop(stream_id, None)
        outlet = self.outlets.pop(stream_id, None)
        if outlet is not None:
            outlet.note_left()

    def on_goaway(self, last_stream_id: int, error_code: int) -> None: ...

    def on_settings(self) -> None: ...

    def on_window(self, stream_id: int) -> None: ...

    def on_pong(self) -> None: ...

    def on_fatal(self, message: str) -> None:
        self.transport.close()


class Http2Outlet(Outlet):
    """One answer over HTTP/2."""

    def __init__(self, link: Http2Link, stream_id: int) -> None:
        super().__init__()
        self._link: Final = link
        self._id: Final = stream_id

    def head(self, status: int, fields: dict[str, str], length: int | None) -> None:
        headers = [(b":status", b"%d" % status), *((name.encode(), value.encode()) for name, value in fields.items())]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        self._link.engine.send_response(self._id, headers, False)

    def send(self, data: bytes) -> None:
        if data and not self.left.is_set():
            self._link.engine.send_data(self._id, data, False)
            self._link.flush()

    def end(self) -> None:
        if not self.left.is_set():
            self._link.engine.send_data(self._id, b"", True)
            self._link.finished(self._id)

    def cut(self) -> None:
        self._reset(_INTERNAL_ERROR)

    def lose(self) -> None:
        self._link.note_hit()
        self._link.transport.abort()

    def refuse(self) -> None:
        self._reset(_REFUSED_STREAM)

    def goaway(self) -> None:
        self._link.say_goaway()

    def goaway_last(self) -> None:
        self._link.note_hit()
        self._link.say_goaway(0)

    def _reset(self, error_code: int) -> None:
        self._link.engine.reset(self._id, error_code)
        self._link.finished(self._id)
