"""What the tests of processes, limits and settings share: a client whose bytes can be watched, and a look into /proc.

Knows: one connection to a gateway, which worker has it, what a process holds open. Does not know: what a test asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from tests.e2e.harness import REPOSITORY, START_S, RawReply, VeloxProcess, read_reply, until
from tests.e2e.recording import Call, RecordingUpstream, healthy
from tests.patience import PATIENCE_S

__all__ = [
    "CHAT",
    "CHAT_STREAM",
    "Client",
    "clients",
    "covers",
    "hold_chat",
    "open_fds",
    "reason",
    "request_bytes",
    "run_velox",
    "settled",
    "stopped",
    "wait_admitted",
    "wait_warm",
]

CHAT: Final = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
CHAT_STREAM: Final = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
).encode()

_Test = TypeVar("_Test", bound=Callable[..., object])


def covers(*variables: str) -> Callable[[_Test], _Test]:
    """Say that a test shows the effect of these settings; test_settings_effects.py wants one for each."""

    def mark(test: _Test) -> _Test:
        vars(test)["covers"] = variables
        return test

    return mark


def request_bytes(
    method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a request as it goes over the wire; a body is JSON unless the headers say otherwise."""
    given = {"host": "velox.test", **(headers or {})}
    if body is not None:
        given = {"content-type": "application/json", "content-length": str(len(body)), **given}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + (body or b"")


class Client:
    """One keep-alive connection to a gateway."""

    def __init__(self, velox: VeloxProcess, timeout_s: float = PATIENCE_S) -> None:
        self._velox: Final = velox
        self.sock: Final = velox.connect(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.sock.close()

    def send(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request; its reply is read later."""
        self.sock.sendall(request_bytes(method, target, body, headers))

    def send_chat(self, body: bytes = CHAT) -> None:
        """Send a chat completion."""
        self.send("POST", "/v1/chat/completions", body)

    def read(self) -> RawReply:
        """Read a whole reply. Raises ConnectionError when it is cut."""
        return read_reply(self.sock)

    def ask(self, method: str = "GET", target: str = "/v1/models", body: bytes | None = None) -> RawReply:
        """One exchange."""
        self.send(method, target, body)
        return self.read()

    def read_until(self, mark: bytes) -> bytes:
        """Read until `mark` has come; return all that was read."""
        found = b""
        while mark not in found:
            piece = self.sock.recv(65536)
            if not piece:
                raise ConnectionError(f"closed after {found!r}")
            found += piece
        return found

    def read_to_end(self) -> bytes:
        """Read until the gateway closes; a reset ends it too."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.sock.recv(65536):
                found += piece
        return found

    def worker(self) -> int:
        """Return the pid of the worker that has accepted the connection."""
        here, there = f":{self.sock.getsockname()[1]:04X}", f":{self._velox.port:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
        inode = next(row[9] for row in rows if row[1].endswith(there) and row[2].endswith(here))
        return next(pid for pid in self._velox.worker_pids() if f"socket:[{inode}]" in _links(pid))


@contextlib.contextmanager
def clients(velox: VeloxProcess, n: int) -> Iterator[list[Client]]:
    """Open `n` connections that are accepted: each has had an answer."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(Client(velox)) for _ in range(n)]
        for client in opened:
            assert client.ask("GET", "/metrics").status == 404, "the data listener has no such page"
        yield opened


async def hold_chat(call: Call) -> None:
    """Script: a chat completion waits for a step, then is answered; the rest is answered at once."""
    if "chat/completions" in call.target:
        await call.step()
    await healthy(call)


def wait_admitted(client: Client, upstream: RecordingUpstream, n: int, body: bytes = CHAT) -> Call:
    """Send a chat completion and wait until it is the upstream's `n`th call."""
    client.send_chat(body)
    return upstream.wait_call(n)


def reason(reply: RawReply) -> str:
    """Return why Velox answered by itself, as the header says and the body confirms; "" for an upstream's reply."""
    code = reply.header("x-velox-reason")
    if code is None:
        return ""
    assert reply.error()["code"] == code, reply.body
    return code


def open_fds(pid: int) -> int:
    """Return how many descriptors a process holds."""
    return len(_links(pid))


def wait_warm(velox: VeloxProcess) -> None:
    """Wait until every worker has reached its upstream."""

    def is_warm() -> bool:
        samples = velox.metrics().items()
        return all(value == 1 for name, value in samples if name.startswith("velox_worker_upstream_ready{"))

    until(is_warm, "all workers have a connection to the upstream")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the block; what reaches a worker meanwhile is there at once afterwards.

    A supervisor may have killed it by then, as one that is stuck.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "T" in _state(pid), "the process is stopped")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def settled(velox: VeloxProcess, *, http1_spares: int = 0) -> Iterator[None]:
    """Check that the block leaves nothing behind in workers that live on: descriptors, exchanges, queued requests.

    http1_spares: connections to an HTTP/1.1 upstream that a worker may have more afterwards, for its next requests.
    """
    wait_warm(velox)
    before = {pid: open_fds(pid) for pid in velox.worker_pids()}
    yield
    survivors = [pid for pid in before if pid in velox.worker_pids()]

    def is_back() -> bool:
        return all(open_fds(pid) <= before[pid] + http1_spares for pid in survivors)

    until(is_back, "descriptors are given back")
    velox.wait_metric("velox_inflight_requests", lambda value: value == 0)
    velox.wait_metric('velox_queue_depth{class="normal"}', lambda value: value == 0)
    assert velox.request("GET", "/v1/models").status == 200


def run_velox(env: Mapping[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run a `velox` command that ends by itself."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "velox", *args],
        cwd=REPOSITORY,
        env={**inherited, "VELOX_ADMIN_LISTEN": "127.0.0.1:0", **env},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _links(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
    return found
