"""An upstream that keeps every byte it is sent, and which requests h11, a reader not our own, finds in them.

Knows: connections, bytes, requests. Does not know: gateways, proxies, or what should come. What is no request to h11 is
kept as one that is broken. Warm-ups (HEAD of /v1/models) are counted and not listed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import h11

__all__ = ["Recorded", "Recorder"]

_READ_BYTES: Final = 1 << 18
_HEAD_BYTES: Final = 1 << 20
_WAIT_S: Final = 30.0


@dataclass(frozen=True)
class Recorded:
    """One request. wire: its bytes as they came. connection: the how-manieth accepted. fields: names lower-case."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    wire: bytes
    connection: int
    broken: str = ""

    def __repr__(self) -> str:
        if self.broken:
            return f"<no request: {self.broken}: {self.wire[:80]!r}>"
        return f"<{self.method.decode()} {self.target.decode('latin-1')[:60]} body={len(self.body)}>"

    @property
    def is_warmup(self) -> bool:
        """True for what a gateway asks by itself."""
        return (self.method, self.target) == (b"HEAD", b"/v1/models")


class Recorder:
    """The server, one thread a connection. It answers 200 with what it was asked, in the field `x-saw`."""

    def __init__(self) -> None:
        self._listener: Final = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: Final[int] = self._listener.getsockname()[1]
        self._changed: Final = threading.Condition()
        self._requests: list[Recorded] = []
        self._n_warmups = 0
        self._n_requests = 0
        self._n_connections = 0
        self._open: set[socket.socket] = set()
        self._thread: Final = threading.Thread(target=self._accept, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_WAIT_S)
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> bytes:
        """What `Host` must be."""
        return b"127.0.0.1:%d" % self.port

    @property
    def n_requests(self) -> int:
        """All that came, warm-ups too."""
        return self._n_requests

    @property
    def n_connections(self) -> int:
        """Connections that came."""
        return self._n_connections

    def take(self) -> list[Recorded]:
        """Return what came since the last call, in order."""
        with self._changed:
            found, self._requests = self._requests, []
        return found

    def wait_warm(self) -> None:
        """Wait for a warm-up."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._n_warmups > 0, 20), "nobody warms up"

    # -- inside ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._n_connections += 1
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock, self._n_connections), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            _Line(self, sock, number).run()
        self._open.discard(sock)

    def add(self, request: Recorded) -> None:
        """Keep a request."""
        with self._changed:
            self._n_requests += 1
            if request.is_warmup:
                self._n_warmups += 1
            else:
                self._requests.append(request)
            self._changed.notify_all()


class _Line:
    """One connection: requests one after the other."""

    def __init__(self, recorder: Recorder, sock: socket.socket, number: int) -> None:
        self._recorder: Final = recorder
        self._sock: Final = sock
        self._number: Final = number
        self._reader: Final = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._wire = bytearray()
        self._request: h11.Request | None = None
        self._body = bytearray()

    def run(self) -> None:
        """Read and answer to the end of the connection."""
        try:
            while self._step():
                pass
        except h11.RemoteProtocolError as error:
            self._recorder.add(Recorded(b"", b"", (), b"", bytes(self._wire), self._number, str(error)))

    def _step(self) -> bool:
        event = self._reader.next_event()
        if event is h11.NEED_DATA:
            data = self._sock.recv(_READ_BYTES)
            self._wire += data
            self._reader.receive_data(data)
        elif isinstance(event, h11.Request):
            self._request = event
            if self._reader.they_are_waiting_for_100_continue:
                self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif isinstance(event, h11.Data):
            self._body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return self._answer()
        elif isinstance(event, h11.ConnectionClosed):
            return False
        return True

    def _answer(self) -> bool:
        request = self._request
        assert request is not None, "a message has a head"
        rest = self._reader.trailing_data[0]
        end = len(self._wire) - len(rest)
        fields = tuple((name, value) for name, value in request.headers)
        recorded = Recorded(
            request.method, request.target, fields, bytes(self._body), bytes(self._wire[:end]), self._number
        )
        del self._wire[:end]
        self._body.clear()
        self._recorder.add(recorded)
        saw = request.method + b" " + request.target[:200]
        out = self._reader.send(
            h11.Response(
                status_code=200,
                headers=[(b"content-type", b"application/json"), (b"content-length", b"2"), (b"x-saw", saw)],
            )
        )
        body = b"" if request.method == b"HEAD" else self._reader.send(h11.Data(data=b"{}"))
        self._sock.sendall(b"".join(filter(None, (out, body, self._reader.send(h11.EndOfMessage())))))
        if self._reader.our_state is not h11.DONE:
            return False
        self._reader.start_next_cycle()
        return True
