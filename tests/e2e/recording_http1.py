"""The scripted upstream's HTTP/1.1, written by hand so that every byte of a reply can be chosen.

Knows: requests with a length, replies of every framing. Does not know: scripts (recording.py).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from tests.e2e.recorded_call import Call, Connection, Fields

if TYPE_CHECKING:  # each upstream has connections, each connection has its upstream
    from tests.e2e.recording import RecordingUpstream

__all__ = ["Http1Call", "Http1Connection"]


class Http1Connection(Connection):
    """One HTTP/1.1 connection: one call at a time; a request in chunks fails the test (Velox knows each length)."""

    def __init__(self, upstream: RecordingUpstream) -> None:
        super().__init__(upstream)
        self._buffer = bytearray()
        self._call: Http1Call | None = None
        self._missing = 0

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._call is not None:
            self._call.note_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.advance()

    def finished(self) -> None:
        """The call was answered to its end: the next one may come."""
        self._call = None
        self.advance()

    def advance(self) -> None:
        """Read as far as the bytes go."""
        if self._call is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            method, target, version = first.split(" ")
            assert version == "HTTP/1.1", first
            fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            self._call = Http1Call(self, method, target, fields)
            assert self._call.header("transfer-encoding") is None, "a request's length is always known"
            self._missing = int(self._call.header("content-length") or 0)
            self.upstream.began(self._call)
        if self._missing >= 0 and len(self._buffer) >= self._missing:
            self._call.body = bytes(self._buffer[: self._missing])
            del self._buffer[: self._missing]
            self._missing = -1
            self.upstream.play(self._call)


class Http1Call(Call):
    """A call over HTTP/1.1."""

    def __init__(self, link: Http1Connection, method: str, target: str, fields: Fields) -> None:
        super().__init__(link, method, target, fields)
        self._connection = link
        self._chunked = False

    async def head(self, status: int, fields: Fields = ()) -> None:
        names = {name for name, _ in fields}
        fields = list(fields)
        self._chunked = False
        if not names & {"content-length", "transfer-encoding", "connection"} and status != 204 and status >= 200:
            self._chunked = True
            fields.append(("transfer-encoding", "chunked"))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        self.raw(f"HTTP/1.1 {status} Some Reason\r\n{lines}\r\n".encode("latin-1"))

    async def interim(self, status: int, fields: Fields = ()) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        self.raw(f"HTTP/1.1 {status} Wait\r\n{lines}\r\n".encode("latin-1"))

    async def data(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def end(self) -> None:
        if self._chunked:
            self.raw(b"0\r\n\r\n")
        self.note_end("answered")
        self._connection.finished()

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._connection.transport.write(data)

    def cut(self) -> None:
        self.note_end("cut")
        self._connection.transport.close()

    def lose(self) -> None:
        self.note_end("lost")
        sock = self._connection.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.transport.abort()
