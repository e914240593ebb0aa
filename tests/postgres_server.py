"""Real PostgreSQL servers for tests.

Knows: how one is started, stopped, paused, and that none of it outlives a test. Does not know: what is asked of it.
PostgreSQL refuses to run as root, so root's tests run it as another user. What a server has not yet written to the disk
survives its own end (fsync is off: only the host's end would lose it).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

__all__ = ["PostgresServer", "postgres_server"]

_START_S: Final = 60.0
_USER: Final = "tests"
_PASSWORD: Final = "pw-of-the-ledger"


class PostgresServer:
    """One cluster in a folder of its own, on a port that it keeps over restarts. bin: where its commands are."""

    def __init__(self, folder: Path) -> None:
        self.bin: Final = _tools()
        self._data: Final = folder / "data"
        self._log: Final = folder / "log"
        self._numbers: Final = itertools.count(1)
        self._owner: Final = _owner()
        if self._owner is not None:
            os.chown(folder, self._owner.pw_uid, self._owner.pw_gid)
        self.port: Final = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        secret = folder / "password"
        secret.write_text(_PASSWORD)
        secret.chmod(0o644)
        args = ("-D", self._data, "-U", _USER, "-A", "scram-sha-256", f"--pwfile={secret}")
        self._run("initdb", *args, "-E", "UTF8", "--locale=C", "--no-sync").check_returncode()

    def url(self, database: str) -> str:
        """Return what VELOX_LEDGER_DATABASE is."""
        return f"postgresql://{_USER}:{_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def environ(self) -> dict[str, str]:
        """Return what PostgreSQL's own commands need to connect as its administrator."""
        found = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": _USER, "PGPASSWORD": _PASSWORD}
        return {**found, "PGDATABASE": "postgres", "PATH": os.environ["PATH"]}

    def database(self) -> str:
        """Make a new database; return its URL."""
        name = f"test_{next(self._numbers)}"
        self.sql("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, database: str, statement: str, *values: object) -> list[Any]:
        """Run a statement in a database, given by its name or URL; return its rows."""
        url = database if "://" in database else self.url(database)

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(url, timeout=_START_S)
            try:
                rows = list(await connection.fetch(statement, *values))
                await connection.close()
            except BaseException:
                connection.terminate()  # a server that stops says no goodbye
                raise
            return rows

        return asyncio.run(ask())

    def start(self) -> None:
        """Start it; return when it answers."""
        options = ("-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self._data, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                **self._identity(),
            )
        give_up_s = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < give_up_s, self._log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """End it as an administrator would who does not wait for clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, all of its processes: it recovers at its next start."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """Let it hang: it accepts connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(_START_S)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        pids = [self._process.pid]
        children = Path(f"/proc/{pids[0]}/task/{pids[0]}/children")
        with contextlib.suppress(OSError):
            pids += map(int, children.read_text().split())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _answers(self) -> bool:
        try:
            self.sql("postgres", "SELECT 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    def _run(self, tool: str, *args: object) -> subprocess.CompletedProcess[bytes]:
        command = [self.bin / tool, *map(str, args)]
        return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=_START_S, check=False, **self._identity())

    def _identity(self) -> dict[str, Any]:
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": [], "cwd": "/"}


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server; skip where there is none."""
    folder = Path(tempfile.mkdtemp(prefix="velox-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tools() -> Path:
    """Return the folder of the newest PostgreSQL of this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    tool = shutil.which("initdb") or (str(found[-1]) if found else None)
    if tool is not None:
        return Path(tool).resolve().parent
    why = "PostgreSQL is not installed (tests/install-tools.sh)"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def _owner() -> pwd.struct_passwd | None:
    """Return as whom it runs; None: as the tests do."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _free_port() -> int:
    """Return a port that nobody listens on.

    Not of those that connections come from: whoever asks for a server that is stopped, again and again, would one day
    have its port and be connected to itself.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
