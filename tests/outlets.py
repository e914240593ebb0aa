"""HTTP/1.1 and HTTP/2 of upstreams that fail on purpose: the verbs of an answer as bytes and frames.

    create_server(lambda: Http1Link(player), ...)      Http2Link: by prior knowledge, or ALPN
    player.play(asked, outlet)                         answers a whole request with the verbs of its outlet

Knows: framing, and how each version fails. Does not know: what is answered, or which fault is played.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from hyperframe.frame import GoAwayFrame

from velox.heads import Header
from velox.protocol.http2.engine import Engine, EngineSettings
from velox.protocol.http2.engines import engine_factory

__all__ = ["Asked", "Entry", "Http1Link", "Http2Link", "Outlet", "Player"]

_INTERNAL_ERROR: Final = 2  # RFC 9113 §7
_REFUSED_STREAM: Final = 7
_MAX_STREAMS: Final = 100


@dataclass(slots=True)
class Entry:
    """What became of one answer. Times are monotonic seconds, 0.0: not yet.

    is_hit: another stream's fault took the connection away from it, in this attempt or in one before.
    """

    n_attempts: int = 0
    began_s: float = 0.0
    left_s: float = 0.0
    ended_s: float = 0.0
    is_hit: bool = False


class Asked(NamedTuple):
    """A request that has come whole. fields: by their names in lower case."""

    method: str
    target: str
    fields: Mapping[bytes, bytes]
    body: bytes


class Player(Protocol):
    """Who answers."""

    def opened(self, n: int) -> None:
        """Note that so many connections more are open; -1: one fewer."""

    def play(self, asked: Asked, outlet: Outlet) -> None:
        """Answer a request, now or later."""


class Outlet(abc.ABC):
    """Where one answer goes. left: set when the gateway gave the exchange up; verbs do nothing from then on."""

    # HTTP/1.1's
    def raw(self, data: bytes) -> None:
        """Send bytes that are in no frame."""
        raise AssertionError("over HTTP/2 there is no such thing")

    def tunnel(self, head: bytes, take: Callable[[Http1Outlet, bytes], None]) -> None:
        """Switch protocols. head: of the answer. take: is given what comes from now on."""
        raise AssertionError("over HTTP/2 there is no such thing")

    # Both versions'

    def __init__(self) -> None:
        self.left: Final = asyncio.Event()
        self.entry = Entry()

    def note_left(self) -> None:
        """The gateway closed the connection or reset the stream before the answer's end."""
        if not self.left.is_set() and not self.entry.ended_s:
            self.entry.left_s = time.monotonic()
        self.left.set()

    @abc.abstractmethod
    def head(self, status: int, fields: dict[str, str], length: int | None) -> None:
        """Send the head; `length` None: of a body whose end is told by the framing."""

    @abc.abstractmethod
    def send(self, data: bytes) -> None:
        """Send body bytes; none where HEAD was asked."""

    @abc.abstractmethod
    async def drained(self) -> None:
        """Wait until what was sent has mostly left; not once the gateway has given up."""

    @abc.abstractmethod
    def end(self) -> None:
        """End the answer properly, wherever it is."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End it by RST_STREAM; over HTTP/1.1 by a FIN."""

    @abc.abstractmethod
    def lose(self) -> None:
        """Lose the connection."""

    @abc.abstractmethod
    def refuse(self) -> None:
        """REFUSED_STREAM; over HTTP/1.1 a FIN before a byte."""

    @abc.abstractmethod
    def goaway(self) -> None:
        """Take no new streams on this connection, and finish this one. Before head()."""

    @abc.abstractmethod
    def goaway_last(self) -> None:
        """GOAWAY with a last id below this stream's."""


class Http1Link(asyncio.Protocol):
    """One HTTP/1.1 connection; requests have a Content-Length, and come one after the other."""

    def __init__(self, player: Player) -> None:
        self.player: Final = player
        self._buffer = bytearray()
        self._outlet: Http1Outlet | None = None
        self.tunnel: Callable[[bytes], None] | None = None  # takes what comes, from then on
        self.may_write: Final = asyncio.Event()
        self.may_write.set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.player.opened(1)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.player.opened(-1)
        self.may_write.set()
        if self._outlet is not None:
            self._outlet.note_left()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel(data)
            return
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
        method, target, _ = first.decode().split(" ")
        self._outlet = Http1Outlet(self, has_body=method != "HEAD")
        self.player.play(Asked(method, target, fields, body), self._outlet)


class Http1Outlet(Outlet):
    """One answer over HTTP/1.1."""

    def __init__(self, link: Http1Link, *, has_body: bool) -> None:
        super().__init__()
        self._link: Final = link
        self._has_body: Final = has_body
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

    def raw(self, data: bytes) -> None:
        self._link.transport.write(data)

    def tunnel(self, head: bytes, take: Callable[[Http1Outlet, bytes], None]) -> None:
        self.raw(head)
        self._link.tunnel = partial(take, self)

    async def drained(self) -> None:
        await self._link.may_write.wait()

    def end(self) -> None:
        if self.left.is_set():
            return
        if self._chunked and self._has_body:
            self._link.transport.write(b"0\r\n\r\n")
        if self._is_last or (self._owed > 0 and self._has_body and not self._chunked):
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

    def __init__(self, player: Player) -> None:
        self.player: Final = player
        self.engine: Final[Engine] = engine_factory("ngh2")(self, EngineSettings(max_streams_local=_MAX_STREAMS), False)
        self._requests: Final[dict[int, tuple[dict[bytes, bytes], list[bytes]]]] = {}
        self.outlets: Final[dict[int, Http2Outlet]] = {}
        self.transport: asyncio.Transport
        self.may_write: Final = asyncio.Event()
        self.may_write.set()
        self._entries: Final[list[Entry]] = []
        self._highest = 0
        self._last = 2**31 - 1  # above it no stream is begun: what GOAWAY said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.player.opened(1)
        self.engine.start()
        self.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.player.opened(-1)
        self.may_write.set()
        outlets = tuple(self.outlets.values())
        self.outlets.clear()
        for outlet in outlets:
            outlet.note_left()

    def data_received(self, data: bytes) -> None:
        self.engine.receive(data)
        self.flush()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()
        self.flush()

    def flush(self) -> None:
        """Write what may be written."""
        transport = self.transport
        while self.may_write.is_set() and self.engine.has_output and (output := self.engine.take_output()):
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
        self._requests[stream_id] = (dict(headers), [])
        if end_stream:
            self.on_stream_end(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.acknowledge(stream_id, len(data))
        if stream_id in self._requests:
            self._requests[stream_id][1].append(data)
            if end_stream:
                self.on_stream_end(stream_id)

    def on_stream_end(self, stream_id: int) -> None:
        fields, pieces = self._requests.pop(stream_id)
        outlet = self.outlets[stream_id] = Http2Outlet(self, stream_id)
        method, target = fields[b":method"].decode(), fields[b":path"].decode()
        self.player.play(Asked(method, target, fields, b"".join(pieces)), outlet)
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

    async def drained(self) -> None:
        await self._link.may_write.wait()

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
