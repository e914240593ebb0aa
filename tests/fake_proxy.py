"""A strict forward proxy: tunnels (CONNECT) and requests with absolute targets, as RFC 9110 §9.3.6 and RFC 9112 §3.2
have them. What a proxy must not get is a 400, and a fault of the test.

    with FakeProxy({"models.example:80": ("127.0.0.1", port)}) as proxy:
        ...                              # a gateway whose proxy is proxy.url
    proxy.asked                          # each: method, target, fields

Knows: what may be asked of a proxy, and how proxies fail. Does not know: what goes through a tunnel.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from tests.patience import PATIENCE_S

__all__ = ["Asked", "FakeProxy", "Fault"]

# How it fails: takes connections and says nothing; closes them; answers a CONNECT with this.
Fault = Literal["", "silent", "closes"] | bytes

_AUTHORITY: Final = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+):[1-9][0-9]{0,4}")
_ABSOLUTE: Final = re.compile(r"http://([^/]+)(/\S*)")
_OWN: Final = frozenset({"proxy-authorization", "proxy-connection"})


class Asked(NamedTuple):
    """One request to the proxy. fields: by their names in lower case."""

    method: str
    target: str
    fields: Mapping[str, str]


class FakeProxy:
    """The proxy. places: of each HOST:PORT that it reaches. login: USER:PASSWORD that it wants. context: of TLS."""

    def __init__(
        self, places: Mapping[str, tuple[str, int]], *, login: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self._places: Final = places
        self._login: Final = login
        self._context: Final = context
        self.fault: Fault = ""
        self.asked: Final[list[Asked]] = []
        self.faults: Final[list[str]] = []  # of who asked
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self._open: Final[set[socket.socket]] = set()
        self._threads: Final[list[threading.Thread]] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Its URL, without a login."""
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join(PATIENCE_S)
        assert not self.faults or exc is not None, self.faults

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _start(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as ends:
            self._opened(sock, ends)
            if self._context is not None:
                sock.settimeout(PATIENCE_S)
                sock = self._context.wrap_socket(sock, server_side=True)
                sock.settimeout(None)
                self._opened(sock, ends)
            self._talk(sock, ends)

    def _opened(self, sock: socket.socket, ends: contextlib.ExitStack) -> None:
        """Close a socket with the block, and end it where the test ends before."""
        self._open.add(sock)
        ends.callback(self._open.discard, sock)
        ends.callback(_end, sock)

    def _talk(self, sock: socket.socket, ends: contextlib.ExitStack) -> None:
        reader = ends.enter_context(sock.makefile("rb"))
        upstream: socket.socket | None = None
        while True:
            method, target, fields = _head(reader.readline)
            self.asked.append(Asked(method, target, fields))
            if self.fault == "silent":
                while sock.recv(65536):
                    pass
                return
            if self.fault == "closes":
                return
            if isinstance(self.fault, bytes) and self.fault:
                sock.sendall(self.fault)
                return
            body = reader.read(int(fields.get("content-length", "0")))
            if self._login and fields.get("proxy-authorization") != _basic(self._login):
                sock.sendall(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=x\r\n"
                    b"content-length: 0\r\n\r\n"
                )
                continue
            if method == "CONNECT":
                self._tunnel(sock, target, fields, ends)
                return
            upstream = self._forward(sock, Asked(method, target, fields), body, upstream, ends)
            if upstream is None:
                return

    def _tunnel(self, sock: socket.socket, target: str, fields: Mapping[str, str], ends: contextlib.ExitStack) -> None:
        wrong = (
            "" if _AUTHORITY.fullmatch(target) else f"CONNECT {target}",
            "" if fields.get("host") == target else f"host {fields.get('host')} of {target}",
            "a body" if {"content-length", "transfer-encoding"} & fields.keys() else "",
            "a secret for the upstream" if {"authorization", "x-api-key"} & fields.keys() else "",
        )
        if self._refused(sock, *wrong):
            return
        place = self._places.get(target)
        if place is None:
            sock.sendall(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            return
        other = socket.create_connection(place)
        self._opened(other, ends)
        # Fields of a 200 to a CONNECT mean nothing (RFC 9110 §9.3.6), and some proxies send them.
        sock.sendall(b"HTTP/1.1 200 Connection established\r\nvia: fake\r\ncontent-length: 0\r\n\r\n")
        back = threading.Thread(target=_pump, args=(other, sock), daemon=True)
        back.start()
        _pump(sock, other)
        back.join(PATIENCE_S)

    def _forward(
        self,
        sock: socket.socket,
        asked: Asked,
        body: bytes,
        upstream: socket.socket | None,
        ends: contextlib.ExitStack,
    ) -> socket.socket | None:
        """Send a request on, and its answer back by a thread of its own; return the connection to the server."""
        method, target, fields = asked
        found = _ABSOLUTE.fullmatch(target)
        authority = found[1] if found else ""
        wrong = ("" if found else f"{method} {target}", "" if fields.get("host") == authority else "another host")
        if self._refused(sock, *wrong):
            return None
        assert found is not None, "else it is refused"
        place = self._places.get(authority if ":" in authority else f"{authority}:80")
        if place is None:
            sock.sendall(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            return None
        if upstream is None:
            upstream = socket.create_connection(place)
            self._opened(upstream, ends)
            self._start(_pump, upstream, sock)
        lines = [f"{method} {found[2]} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields if name not in _OWN)]
        upstream.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        return upstream

    def _refused(self, sock: socket.socket, *wrong: str) -> bool:
        found = [each for each in wrong if each]
        if found:
            self.faults.extend(found)
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        return bool(found)


def _head(readline: Callable[[], bytes]) -> tuple[str, str, dict[str, str]]:
    """Read the head of a request. Raises EOFError at the end of the connection."""
    line = readline().decode("latin-1")
    if not line:
        raise EOFError
    method, target, version = line.split()
    assert version == "HTTP/1.1", line
    fields = {}
    while (line := readline().decode("latin-1").rstrip("\r\n")) != "":
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return method, target, fields


def _end(sock: socket.socket) -> None:
    """Close, and wake the thread that reads from it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end, which is then the other's."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
