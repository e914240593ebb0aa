"""Large requests, one after the other on one connection, while something else is measured.

Knows: sockets, threads. Does not know: what is measured meanwhile.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Final

from bench.open_loop import request_bytes, whole_length

__all__ = ["LargeSender"]

_ANSWER_S: Final = 30.0


class LargeSender:
    """Sends large requests on one connection at a steady rate, from a thread, while it is entered."""

    def __init__(self, port: int, body: bytes, per_s: float) -> None:
        self._port: Final = port
        self._request: Final = request_bytes(body)
        self._interval_s: Final = 1 / per_s
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run)
        self.n_sent = 0
        self.failure = ""

    def __enter__(self) -> LargeSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._send()
        except OSError as error:
            self.failure = repr(error)

    def _send(self) -> None:
        due_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", self._port), _ANSWER_S) as sock:
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                sock.sendall(self._request)
                reply = self._answer(sock)
                if not reply.startswith(b"HTTP/1.1 200"):
                    self.failure = repr(reply[:200])
                    return
                self.n_sent += 1
                due_s = max(due_s + self._interval_s, time.monotonic())

    def _answer(self, sock: socket.socket) -> bytes:
        """Return a whole reply, or what came of it."""
        reply = b""
        while (length := whole_length(reply)) is None or len(reply) < length:
            piece = sock.recv(65536)
            if not piece:
                break
            reply += piece
        return reply
