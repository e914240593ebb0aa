"""A TLS socket that two threads may use at the same time.

Knows: an ssl.SSLSocket, and which of its calls a WebSocket client makes. Does not know: what goes over it.

websockets' client of threads reads in one and writes in another. CPython 3.11 lets both into one TLS object of OpenSSL,
which does not bear it: of 400 handshakes one to three hung. Here only one of them is in it at any time.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["TurnTaking"]

T = TypeVar("T")


class TurnTaking:
    """Stands for a TLS socket whose handshake is done. What it does not do itself is the socket's."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock: Final = sock
        self._turn: Final = threading.Lock()
        self._timeout_s: float | None = None
        sock.setblocking(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, timeout_s: float | None) -> None:
        """As a socket's: of each call."""
        self._timeout_s = timeout_s

    def recv(self, n_bytes: int) -> bytes:
        """As a socket's."""
        return self._in_turn(lambda: self._sock.recv(n_bytes))

    def sendall(self, data: bytes) -> None:
        """As a socket's."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._in_turn(lambda: self._sock.send(rest)) :]  # noqa: B023 - called at once

    def _in_turn(self, act: Callable[[], T]) -> T:
        """Do it as soon as it can be done at once; the wait between two tries is nobody's turn."""
        while True:
            with self._turn:
                try:
                    return act()
                except (ssl.SSLWantReadError, BlockingIOError):
                    reads, writes = [self._sock], list[socket.socket]()
                except ssl.SSLWantWriteError:
                    reads, writes = [], [self._sock]
            if self._sock.fileno() < 0:
                raise OSError("the socket was closed by the other thread")
            if not any(select.select(reads, writes, [], self._timeout_s)):
                raise TimeoutError
