"""Real Redis servers for tests, and a proxy before them that can fail over.

Knows: how one is started, stopped, paused, and that none of it outlives a test. Does not know: what is asked of it.
A server keeps nothing on disk: one that was killed comes back empty.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
import redis

from tests.e2e.watching import until

__all__ = ["FlipProxy", "RedisServer", "free_port", "redis_server"]

_START_S: Final = 20.0


@dataclass
class RedisServer:
    """One server on a port of its own, which it keeps over restarts."""

    options: tuple[str, ...] = ()
    password: str = ""
    port: int = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.port = free_port()

    @property
    def url(self) -> str:
        """What VELOX_REDIS_URL is."""
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, empty; return when it answers."""
        tool = shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if tool is None and os.environ.get("CI") == "true":
            pytest.fail("redis-server is not installed (tests/install-tools.sh)")
        if tool is None:
            pytest.skip("redis-server is not installed (tests/install-tools.sh)")
        extra = ["--requirepass", self.password] if self.password else []
        extra += self.options
        self.process = subprocess.Popen(
            [tool, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *extra],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "redis-server answers", _START_S)

    def client(self) -> redis.Redis:
        """Return a client; the caller closes it."""
        return redis.Redis.from_url(self.url, protocol=2)

    def pause(self) -> None:
        """Let it hang: it accepts connections, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with contextlib.closing(self.client()) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


@contextlib.contextmanager
def redis_server(*options: str, password: str = "") -> Iterator[RedisServer]:
    """Run a server for one test."""
    server = RedisServer(options, password)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class FlipProxy:
    """A TCP proxy before servers: one name for whichever of them is in charge, as a failover leaves it.

    delay_s: what a server sends comes so much later.
    """

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self._to = port
        self._delay_s: Final = delay_s
        self._sockets: set[socket.socket] = set()
        self._lock: Final = threading.Lock()
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True, name="flip-proxy").start()

    @property
    def url(self) -> str:
        """What VELOX_REDIS_URL is."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def flip(self, port: int) -> None:
        """Lead to another server from now on; connections to the one before break."""
        with self._lock:
            self._to = port
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flip(0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for one, other, delay_s in ((client, server, 0.0), (server, client, self._delay_s)):
                threading.Thread(target=_pump, args=(one, other, delay_s), daemon=True, name="flip-pump").start()


def _pump(one: socket.socket, other: socket.socket, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            if delay_s:
                time.sleep(delay_s)
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
    one.close()
