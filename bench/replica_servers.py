"""Gateways with one list of keys, one upstream, and Redis servers that can be paused and killed: for bench.replicas.

Knows: how each is started, and which processes of a gateway can be killed. Does not know: what is asked of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

from bench.servers import free_port

__all__ = ["Gateway", "RedisServer", "gateway", "redis_server", "upstream"]

_ROOT: Final = Path(__file__).parent.parent
_WORKERS: Final = 3
_READY: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_REPLY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class RedisServer:
    """One server, which keeps its port over restarts and nothing else."""

    def __init__(self) -> None:
        tool = shutil.which("redis-server", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
        if tool is None:
            raise FileNotFoundError("redis-server is not in PATH")
        port = free_port()
        self.url: Final = f"redis://127.0.0.1:{port}"
        self._command: Final = [tool, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.start()

    def start(self) -> None:
        """Start it, empty."""
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

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


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run one."""
    server = RedisServer()
    try:
        yield server
    finally:
        server.kill()


class Gateway:
    """One gateway, its port, and what it logged."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port: Final = port
        self.lines: Final[list[str]] = []
        self._process: Final = process
        self._reader: Final = threading.Thread(target=self._read, daemon=True, name="gateway-log")
        self._reader.start()

    def kill(self, *, manager: bool) -> None:
        """Kill the lease manager, or a worker chosen at random."""
        pid = self._process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        found = [child for child in children if _speaks_with_redis(child) == manager]
        with contextlib.suppress(ProcessLookupError):
            if found:
                os.kill(random.choice(found), signal.SIGKILL)

    def stop(self) -> None:
        """End it; its log is whole afterwards."""
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def count(self, text: str) -> int:
        """Return how many lines of its log say this."""
        return sum(text in line for line in self.lines)

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)


def _speaks_with_redis(pid: int) -> bool:
    """Return whether it is the lease manager: no other process of a gateway has loaded the library."""
    try:
        return "hiredis" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False  # it has just died


@contextlib.contextmanager
def gateway(folder: Path, origin: str, url: str | None, timeout: str) -> Iterator[Gateway]:
    """Run one with three workers and the settings file of `folder`. url, timeout: VELOX_REDIS_URL and _TIMEOUT."""
    env = {"PATH": os.environ["PATH"], "VELOX_LISTEN": "127.0.0.1:0", "VELOX_ADMIN_LISTEN": "off"}
    env |= {"VELOX_CONFIG": str(folder / "velox.yaml"), "VELOX_UPSTREAM_ORIGIN": origin, "VELOX_WORKERS": str(_WORKERS)}
    env |= {"VELOX_ACCESS_LOG": "off", "VELOX_RATE_LIMIT_RPM": "0", "VELOX_RATE_LIMIT_MAX_WAIT": "0s"}
    env |= {"VELOX_EGRESS_POOL_CONNECTIONS": "9"}
    if url is not None:
        env |= {"VELOX_REDIS_URL": url, "VELOX_REDIS_TIMEOUT": timeout}
    command = [sys.executable, "-m", "velox", "serve"]
    process = subprocess.Popen(command, cwd=_ROOT, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port, lines = 0, []
    for line in process.stderr:
        lines.append(line)
        if found := _READY.search(line):
            port = int(found[1])
            break
    if not port:
        process.wait()
        raise RuntimeError("the gateway did not start:\n" + "".join(lines))
    running = Gateway(process, port)
    try:
        yield running
    finally:
        running.stop()


class _Upstream(asyncio.Protocol):
    """Answers everything at once, and tells of each request by the model's name, which is the key's number."""

    def __init__(self, arrived: Callable[[int], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        # One request at a time comes on a connection, small enough for one segment on loopback.
        found = re.search(rb'"model":"(\d+)"', data)
        if found is not None:
            self._arrived(int(found[1]))
        if data.startswith((b"GET", b"POST", b"HEAD")):
            self._transport.write(_REPLY)


@contextlib.asynccontextmanager
async def upstream(arrived: Callable[[int], None]) -> AsyncIterator[str]:
    """Run the upstream; yield its origin. arrived: told the key's number of each request that comes."""
    server = await asyncio.get_running_loop().create_server(lambda: _Upstream(arrived), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
