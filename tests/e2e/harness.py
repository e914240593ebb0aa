"""A real gateway in processes of its own, as an operator starts it: `python -m velox serve` (but see fork_server.py).

Knows: how to start it, what it says, how to stop it so that nothing is left. Does not know: upstreams (upstreams.py) or
what a test asks. Every wait is bounded and wakes by an event (a log line, a socket, a process's end).

    with VeloxProcess({"VELOX_UPSTREAM_ORIGIN": upstream.url, "VELOX_WORKERS": "3"}) as velox:
        velox.openai().chat.completions.create(...)      # the real SDK, closed with the gateway
        velox.request("GET", "/v1/models")               # one exchange as bytes, on a connection of its own
        velox.connect()                                  # a raw socket to the data listener
        velox.metrics()['velox_worker_up{worker="0"}']   # the metrics page as a dict
        velox.worker_pids()                              # to kill one
        velox.wait_log(lambda text: "died" in text)      # an operations log line, past or to come
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
import openai

from tests.e2e.fork_server import Forked, fork_server
from tests.e2e.raw_http import RawReply, is_closed, read_reply
from tests.e2e.watching import LineLog, socket_inodes, start_time, until
from tests.patience import PATIENCE_S
from tests.secret_watch import WATCH
from tests.untrusting import NO_TRUST

__all__ = [
    "KEY",
    "REPOSITORY",
    "START_S",
    "LineLog",
    "RawReply",
    "VeloxProcess",
    "is_closed",
    "read_reply",
    "until",
]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# What a client sends as its key where the test does not care.
KEY: Final = "sk-client"
# Longer than a start takes on a slow shared machine (0.3 s here), short enough to fail in a useful time.
START_S: Final = 20.0
STOP_S: Final = 40.0
# What a child may inherit: nothing that sets an SDK, a proxy or Velox.
_INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
# Variables that begin so act at the start of a process only.
_AT_START: Final = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
_READY: Final = re.compile(r" ready in \d+ ms: listening on (\S+), admin on (\S+), ")


@dataclass
class VeloxProcess:
    """One gateway. Use as a context manager, or start() and close().

    env: settings; nothing of the test's own environment that could change a gateway comes through. Both ports are
    chosen by the kernel unless env says otherwise; `admin_url` is "" when the admin listener is off.
    args: the command line; ("serve", "--sim") brings an upstream along.
    launcher: what the command line begins with; it must end in an exec.
    by_exec: True where the test is about the start itself, or about what a process has loaded.
    expect_bugs: True where the test provokes what is logged as a bug; else such a line fails the test at close().

    base_url: "http://127.0.0.1:PORT" of the data listener, without /v1. pid: the supervisor's.
    stderr, stdout: LineLog of the operations log and the access log.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ("serve",)
    expect_bugs: bool = False
    launcher: tuple[str, ...] = ()
    by_exec: bool = "TESTS_BY_EXEC" in os.environ
    base_url: str = field(init=False, default="")
    admin_url: str = field(init=False, default="")
    process: subprocess.Popen[bytes] | Forked = field(init=False)
    stderr: LineLog = field(init=False)
    stdout: LineLog = field(init=False)
    _sim_pid: int = field(init=False, default=0)
    _open: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close(failed=kind is not None)

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the gateway; return when it says that it is ready. Raises AssertionError with its log if it is not."""
        env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        env |= {"VELOX_LISTEN": "127.0.0.1:0", "VELOX_ADMIN_LISTEN": "127.0.0.1:0", **self.env}
        WATCH.settings(env)
        written = [WATCH.open(stream) for stream in ("stdout", "stderr")]  # first: what follows leaves a process behind
        is_forked = not (self.by_exec or self.launcher or any(name.startswith(_AT_START) for name in self.env))
        self.process = fork_server().start(self.args, env) if is_forked else self._exec(env)
        assert self.process.stdout is not None and self.process.stderr is not None, "both are pipes"
        self.stdout = LineLog(self.process.stdout, "velox-stdout", written[0])
        self.stderr = LineLog(self.process.stderr, "velox-stderr", written[1])
        try:
            line = self.stderr.wait(lambda line: _READY.search(line) is not None, START_S)
        except BaseException:
            self.kill()
            raise
        found = _READY.search(line)
        assert found is not None, line
        self.base_url, self.admin_url = found.group(1), found.group(2)
        self.admin_url = "" if self.admin_url == "off" else self.admin_url
        if "--sim" in self.args:
            self._sim_pid = self.child_pids()[0]  # it is started first
        return self

    def _exec(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.launcher, sys.executable, "-m", "velox", *self.args],
            cwd=REPOSITORY,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own: what is left of it can be ended as one
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait for the gateway's end; return its exit code. Raises AssertionError when it does not end."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {timeout_s:g} s:\n" + "\n".join(self.stderr.lines)) from None

    def stop(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM, then wait; return the exit code. Harmless when it has ended already."""
        self.close_clients()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """End the whole process group now, and reap the supervisor."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)
        self.stdout.close()
        self.stderr.close()

    def close(self, *, failed: bool = False) -> None:
        """Stop, end what is left, and check the log. failed: the test has failed already."""
        try:
            code = self.stop()
        finally:
            self.kill()
        if failed:
            print("\n".join(self.stderr.lines))
            return
        assert code in (0, -signal.SIGKILL), f"exit code {code}:\n" + "\n".join(self.stderr.lines)
        bugs = [line for line in self.stderr.lines if "bug:" in line or "Traceback" in line]
        assert self.expect_bugs or not bugs, "\n".join([*bugs, "the whole log:", *self.stderr.lines])

    # -- what it says -------------------------------------------------------------------------------

    def wait_log(self, wanted: Callable[[str], bool], timeout_s: float = PATIENCE_S) -> str:
        """Return the first operations log message, old or new, that is wanted."""
        return self.stderr.wait(wanted, timeout_s)

    def access_log(self) -> list[dict[str, object]]:
        """Return the access log so far; lines come within 0.1 s of an exchange's end."""
        return [json.loads(line) for line in self.stdout.lines]

    def wait_access(
        self, wanted: Callable[[dict[str, object]], bool], timeout_s: float = PATIENCE_S
    ) -> dict[str, object]:
        """Return the first access log line, old or new, that is wanted."""
        found: dict[str, object] = json.loads(self.stdout.wait(lambda line: wanted(json.loads(line)), timeout_s))
        return found

    def admin(self, path: str, headers: Mapping[str, str] | None = None) -> RawReply:
        """GET a path of the admin listener."""
        return _get(self.admin_url, path, headers or {})

    def metrics(self) -> dict[str, float]:
        """Return the metrics page: 'name{label="value"}' -> value, as they stand on it."""
        samples = {}
        for line in self.admin("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def metric(self, sample: str) -> float:
        """Return one sample, 0.0 while it has not been counted."""
        return self.metrics().get(sample, 0.0)

    def wait_metric(self, sample: str, wanted: Callable[[float], bool], timeout_s: float = PATIENCE_S) -> float:
        """Wait until a sample is as wanted; return it."""
        until(lambda: wanted(self.metric(sample)), sample, timeout_s)
        return self.metric(sample)

    def wait_warm(self) -> None:
        """Wait until every worker has a warm connection to the upstream."""

        def is_warm() -> bool:
            found = self.metrics()
            return all(value for sample, value in found.items() if sample.startswith("velox_worker_upstream_ready"))

        until(is_warm, "every worker is warm")

    # -- processes ----------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self.process.pid

    def child_pids(self) -> list[int]:
        """Return the living children of the supervisor: simulator, admin, workers; oldest first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sorted((int(pid) for pid in children if start_time(int(pid))), key=start_time)

    def worker_pids(self) -> list[int]:
        """Return the living workers, oldest first: the children that hold a listening socket of the data listener."""
        inodes = self._listener_inodes()
        return [pid for pid in self.child_pids() if pid != self._sim_pid and inodes & socket_inodes(pid)]

    def _listener_inodes(self) -> set[str]:
        if self.base_url.startswith("unix:"):
            rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()]
            return {row[6] for row in rows if row[-1] == self.base_url.removeprefix("unix:")}
        port = f":{self.port:04X}"
        rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()]
        return {row[9] for row in rows if row[1].endswith(port) and row[3] == "0A"}

    # -- clients ------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port of the data listener."""
        return int(self.base_url.rpartition(":")[2])

    def connect(self, timeout_s: float = PATIENCE_S) -> socket.socket:
        """Return a connected socket; the caller closes it."""
        if self.base_url.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout_s)
            sock.connect(self.base_url.removeprefix("unix:"))
            return sock
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def request(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> RawReply:
        """One exchange on a connection of its own. A body gets a Content-Length and, unless given, a JSON type."""
        given = {"host": "velox.test", **(headers or {})}
        WATCH.request(target, given, body)
        if body is not None:
            given.setdefault("content-type", "application/json")
            given.setdefault("content-length", str(len(body)))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
        with self.connect(30.0) as sock:
            sock.sendall(head.encode("latin-1") + b"\r\n" + (body or b""))
            return read_reply(sock, head_request=method == "HEAD")

    def openai(self, *, max_retries: int = 0, timeout_s: float = 20.0, api_key: str = KEY) -> openai.OpenAI:
        """Return the real SDK pointed at this gateway; closed when the gateway is stopped."""
        # trust_env False: no proxy of the machine stands between.
        hooks = {"response": [_keep_error]}
        transport = openai.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=timeout_s, event_hooks=hooks)
        WATCH.secret(api_key, "the key of an SDK")
        client = openai.OpenAI(
            base_url=f"{self.base_url}/v1", api_key=api_key, max_retries=max_retries, http_client=transport
        )
        self._open.callback(client.close)
        return client

    def close_clients(self) -> None:
        """Close the SDK clients made by openai()."""
        self._open.close()

    @contextlib.contextmanager
    def still_healthy(self, path: str = "/v1/models") -> Iterator[None]:
        """After the block a plain request must pass (alive-after)."""
        yield
        assert self.request("GET", path).status == 200


def _keep_error(reply: httpx.Response) -> None:
    """Keep an error of Velox's own for the watch. An upstream's is none of its business."""
    if "x-velox-reason" in reply.headers:
        WATCH.note("error", str(reply.headers).encode(), reply.read())


def _get(url: str, path: str, headers: Mapping[str, str]) -> RawReply:
    address = url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=70)
    try:
        connection.request("GET", path, headers=dict(headers))
        reply = connection.getresponse()
        fields = [(name.lower(), value) for name, value in reply.getheaders()]
        body = reply.read()
        WATCH.note(f"admin {path.partition('?')[0]}", body)
        return RawReply(reply.status, fields, body)
    finally:
        connection.close()
