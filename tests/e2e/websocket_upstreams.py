"""Upstreams that speak WebSocket: a real server on the `websockets` library, and one that says whatever a test wants.

Knows: how they are started, what came to them, how a test opens a WebSocket through a gateway. Does not know: what a
test asks.

    with WebSocketUpstream() as upstream, VeloxProcess(upstream.env()) as velox:
        with connect(velox) as ws:
            ws.send("hello")                      # echoed
            session = upstream.wait_session()     # the server's side of it
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, cast

import websockets.sync.client
import websockets.sync.server
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.tls_turns import TurnTaking
from tests.e2e.upstreams import Certificates
from tests.patience import PATIENCE_S
from tests.secret_watch import WATCH

__all__ = ["HANDSHAKE", "RawUpstream", "Session", "WebSocketUpstream", "connect", "echo", "raw_handshake", "read_head"]

# RFC 6455 §1.2 and §1.3.
WS_KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
WS_ACCEPT: Final = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HANDSHAKE: Final = {
    "host": "velox.test",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": WS_KEY,
}


@dataclass
class Session:
    """One WebSocket, as the upstream has it. ended: set once its connection is closed."""

    ws: websockets.sync.server.ServerConnection
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def request(self) -> Request:
        """The request that asked for it."""
        assert self.ws.request is not None, "the handshake is over"
        return self.ws.request

    def wait_closed(self, timeout_s: float = PATIENCE_S) -> tuple[int | None, str | None]:
        """Wait for its end; return the code and the text of the Close frame that it got, 1006 without one."""
        assert self.ended.wait(timeout_s), "the upstream has not seen the end"
        return self.ws.close_code, self.ws.close_reason


def echo(ws: websockets.sync.server.ServerConnection) -> None:
    """Send back what comes, frame by frame where it comes in pieces."""
    while True:
        message = ws.recv()
        if message == "close 4321":
            ws.close(4321, "as you wish")
        elif message == "fragments":
            ws.send(iter(["a", "", "bc" * 1000, "d"]))
        elif message == "ping me":
            ws.send("pong came" if ws.ping(b"from the server").wait(PATIENCE_S) else "no pong came")
        else:
            ws.send(message)


class WebSocketUpstream:
    """A server of real WebSockets, a thread each, which knows the protocol `realtime`.

    handler: returns, or raises ConnectionClosed, at its end.
    """

    def __init__(
        self,
        handler: Callable[[websockets.sync.server.ServerConnection], None] = echo,
        *,
        certificates: Certificates | None = None,
        compression: str | None = "deflate",
        process_request: Callable[[websockets.sync.server.ServerConnection, Request], Response | None] | None = None,
        max_size: int | None = None,
    ) -> None:
        context = None if certificates is None else certificates.server_context("h2", "http/1.1")
        self._handler: Final = handler
        self._ca_file: Final = "" if certificates is None else certificates.ca_file
        self._sessions: Final[queue.Queue[Session]] = queue.Queue(1000)
        self.requests: Final[list[Request]] = []
        self._process_request: Final = process_request
        self._server: Final = websockets.sync.server.serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=context,
            compression=compression,
            select_subprotocol=lambda ws, offered: "realtime" if "realtime" in offered else None,  # type: ignore
            process_request=self._note,
            max_size=max_size,
            ping_interval=None,
            close_timeout=2,
        )
        self._thread: Final = threading.Thread(target=self._server.serve_forever, name="websockets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE_S)

    @property
    def url(self) -> str:
        """Its origin."""
        host, port = self._server.socket.getsockname()
        return f"{'https' if self._ca_file else 'http'}://{host}:{port}"

    def env(self) -> dict[str, str]:
        """Return the settings that point a gateway of one worker at it."""
        env = {"VELOX_UPSTREAM_ORIGIN": self.url, "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}
        if self._ca_file:
            env["VELOX_UPSTREAM_CA_FILE"] = self._ca_file
        return env

    def wait_session(self) -> Session:
        """Return the next WebSocket that was opened."""
        return self._sessions.get(timeout=PATIENCE_S)

    @property
    def n_open(self) -> int:
        """WebSockets that are open."""
        return len(self._server.connections)

    def _note(self, ws: websockets.sync.server.ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return None if self._process_request is None else self._process_request(ws, request)

    def _serve(self, ws: websockets.sync.server.ServerConnection) -> None:
        session = Session(ws)
        self._sessions.put(session)
        try:
            with contextlib.suppress(ConnectionClosed):
                self._handler(ws)
            ws.close()
        finally:
            session.ended.set()


def connect(
    velox: VeloxProcess,
    target: str = "/v1/realtime?model=m",
    *,
    headers: dict[str, str] | None = None,
    sock: socket.socket | None = None,
    subprotocols: list[str] | None = None,
    compression: str | None = None,
    origin: str | None = None,
    context: ssl.SSLContext | None = None,
    authorization: str | None = f"Bearer {KEY}",
) -> websockets.sync.client.ClientConnection:
    """Open a WebSocket through a gateway. context: over TLS."""
    if context is not None:
        sock = cast(socket.socket, TurnTaking(context.wrap_socket(velox.connect(), server_hostname="127.0.0.1")))
    given = {} if authorization is None else {"authorization": authorization}
    given |= headers or {}
    WATCH.request(target, given, None)
    return websockets.sync.client.connect(  # type: ignore[misc] # too many unions
        f"ws://127.0.0.1:{1 if sock is not None else velox.port}{target}",
        sock=sock,
        additional_headers=given,
        subprotocols=subprotocols,  # type: ignore[arg-type]
        compression=compression,
        origin=origin,  # type: ignore[arg-type]
        proxy=None,
        max_size=None,
        ping_interval=None,
        close_timeout=2,
    )


def raw_handshake(target: str = "/v1/realtime?model=m", **changes: str | None) -> bytes:
    """Return a handshake as bytes, with some fields changed, added, or (None) left out."""
    fields: dict[str, str | None] = {**HANDSHAKE, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode()


def read_head(sock: socket.socket) -> bytes:
    """Read up to the end of a head, and not beyond it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            raise ConnectionError(f"the connection ended inside a head: {head!r}")
        head += piece
    return head


class RawUpstream:
    """A server that reads one head of each connection and then does what the test says with its socket.

    Warm-ups (HEAD) are answered by itself, and their connections kept; each other head goes to `script`, on a thread.
    """

    def __init__(self, script: Callable[[socket.socket, bytes], None]) -> None:
        self._script: Final = script
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self._threads: Final[list[threading.Thread]] = []
        self._socks: Final[list[socket.socket]] = []
        self._closing = False
        self.heads: Final[list[bytes]] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for sock in self._socks:
            sock.close()

    def env(self) -> dict[str, str]:
        """Return the settings that point a gateway of one worker at it."""
        port = self._listener.getsockname()[1]
        return {
            "VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{port}",
            "VELOX_WORKERS": "1",
            "VELOX_ACCESS_LOG": "all",
        }

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="raw-upstream", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE_S)
            self._socks.append(sock)
            self._spawn(lambda sock=sock: self._serve(sock))  # type: ignore[misc]

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (head := read_head(sock)).startswith(b"HEAD "):
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            self.heads.append(head)
            self._script(sock, head)


@contextlib.contextmanager
def nothing_left(velox: VeloxProcess) -> Iterator[None]:
    """After the block no tunnel is open and no exchange runs."""
    yield
    velox.wait_metric("velox_tunnels", lambda n: n == 0)
    until(lambda: velox.metric("velox_inflight_requests") == 0, "no exchange runs")
