"""Random kills under load, of processes and of the database: what is recorded is what the clients were answered.

    python -m tests.storm.kills [--kills 100] [--seed N]              # of worker, ledger, supervisor, gateway
    python -m tests.storm.kills --postgres [--kills 100] [--seed N]   # and of the database, or one of its processes

Each client notes the id and the tokens of each answer that came whole. In the end each of these ids has one row with
these tokens and what they cost, but for the few whose process died between the last byte of an answer and its record:
their row is the estimate, and says so. No id has two rows of one attempt, and sums are the sums of rows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import openai

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.e2e.routed import MESSAGES
from tests.e2e.test_ledger import ledger_pid, recording
from tests.e2e.watching import socket_inodes, start_time
from tests.postgres_server import PostgresServer, postgres_server
from velox.ledger.postgres import PostgresStore
from velox.ledger.record import Call, Flag
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Store, Sums, UsageQuery

_CLIENTS: Final = 4
_WHO: Final = ("worker", "worker", "ledger", "supervisor", "gateway")
# After these a gateway starts anew.
_ENDS: Final = frozenset({"supervisor", "gateway"})
# Dollars for a million tokens, and so nano-dollars for a thousand.
_INPUT_PRICE: Final = 3
_OUTPUT_PRICE: Final = 15
_PRICES: Final = f"prices:\n  - {{model: m, input: {_INPUT_PRICE}, output: {_OUTPUT_PRICE}}}\n"
_ALL: Final = UsageQuery(0, 253_402_300_799)


@dataclass
class Killed:
    """What came of it. kills: by whom it was. answered: tokens of prompt and answer, by the id of the request."""

    kills: Counter[str] = field(default_factory=Counter)
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    n_failed: int = 0
    rows: list[Call] = field(default_factory=list)
    sums: Sums = Sums()  # noqa: RUF009 - it is frozen

    def problems(self) -> list[str]:
        """Return what was lost, doubled or counted wrongly."""
        by_id: dict[str, list[Call]] = {}
        for row in self.rows:
            by_id.setdefault(row.id, []).append(row)
        found = [f"{each}: no row" for each in self.answered if each not in by_id]
        for request_id, rows in by_id.items():
            if len({row.attempt for row in rows}) < len(rows):
                found.append(f"{request_id}: {len(rows)} rows of one attempt")
            told = self.answered.get(request_id)
            exact = [row for row in rows if not row.flags & Flag.ESTIMATED]
            if told is not None and exact and [row.tokens[:2] for row in exact] != [told]:
                found.append(f"{request_id}: {exact[0].tokens[:2]} recorded, {told} answered")
            if told is not None and exact and [row.cost_nano for row in exact] != [_cost_nano(told)]:
                found.append(f"{request_id}: {exact[0].cost_nano} nano-dollars recorded, {_cost_nano(told)} answered")
            if told is None and exact and not self.n_failed:
                found.append(f"{request_id}: a row, and no answer")
        n_unsure = sum(bool(row.flags & Flag.ESTIMATED) for row in self.rows)
        most = sum(self.kills.values()) * _CLIENTS
        if n_unsure > most:
            found.append(f"{n_unsure} estimates for {most} requests that can have been under way")
        if len(self.rows) > len(self.answered) + self.n_failed:
            found.append(f"{len(self.rows)} rows of {len(self.answered)} answers and {self.n_failed} failures")
        for name, total, of_rows in (
            ("rows", self.sums.n, len(self.rows)),
            ("input", self.sums.input, sum(row.tokens.input or 0 for row in self.rows)),
            ("output", self.sums.output, sum(row.tokens.output or 0 for row in self.rows)),
            ("nano-dollars", self.sums.cost_nano, sum(row.cost_nano or 0 for row in self.rows)),
        ):
            if total != of_rows:
                found.append(f"sums of {name}: {total}, and {of_rows} over rows")
        return found

    def table(self) -> str:
        """Return the figures."""
        n_estimated = sum(bool(row.flags & Flag.ESTIMATED) for row in self.rows)
        of_answered = sum(bool(row.flags & Flag.ESTIMATED) for row in self.rows if row.id in self.answered)
        kills = ", ".join(f"{n} {who}" for who, n in sorted(self.kills.items()))
        return (
            "| kills | answers | failed | rows | estimated | of these answered |\n|---|---|---|---|---|---|\n"
            f"| {kills} | {len(self.answered)} | {self.n_failed} | {len(self.rows)} | {n_estimated} | {of_answered} |"
        )


class _Clients:
    """They ask all the time, through whichever gateway runs."""

    def __init__(self, killed: Killed) -> None:
        self._killed = killed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, velox: VeloxProcess) -> None:
        self._stopped.clear()
        self._threads = [threading.Thread(target=self._ask, args=(velox,)) for _ in range(_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, velox: VeloxProcess) -> None:
        sdk = velox.openai(api_key=KEY, timeout_s=5.0)
        while not self._stopped.is_set():
            asked: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 5}
            try:
                raw = sdk.chat.completions.with_raw_response.create(**asked)
                told = raw.parse().usage
            except (openai.APIError, OSError):
                with self._lock:
                    self._killed.n_failed += 1
                self._stopped.wait(0.01)
                continue
            assert told is not None
            with self._lock:
                self._killed.answered[raw.headers["x-velox-request-id"]] = told.prompt_tokens, told.completion_tokens


def _kill_supervisor(velox: VeloxProcess) -> None:
    """Kill it alone; all others leave by themselves."""
    pids = velox.child_pids()
    velox.process.kill()
    until(lambda: not any(start_time(pid) for pid in pids), "all processes have left", 30.0)
    velox.kill()


def _cost_nano(told: tuple[int, int]) -> int:
    return 1000 * (told[0] * _INPUT_PRICE + told[1] * _OUTPUT_PRICE)


class _Files:
    """Records in SQLite. victims: who else there is to be killed."""

    victims: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.settings: dict[str, str] = {}

    def ledger_pid(self, velox: VeloxProcess) -> int:
        return ledger_pid(velox)

    def kill(self, who: str, chance: random.Random) -> None:
        raise AssertionError(f"there is no {who}")

    def reader(self) -> Store:
        return SqliteStore(self._folder, days=30, is_reader=True)


class _Database(_Files):
    """Records in PostgreSQL."""

    victims = ("database", "backend")

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        self._server = server
        self._url = server.database()
        self.settings = {"ledger_database": self._url}

    def ledger_pid(self, velox: VeloxProcess) -> int:
        """Return the process that is connected to the database."""
        until(lambda: bool(self._connected(velox)), "the ledger is connected to its database", 30.0)
        return next(iter(self._connected(velox)), velox.pid)

    def kill(self, who: str, chance: random.Random) -> None:
        if who == "database":
            self._server.kill()
            threading.Event().wait(chance.random())  # meanwhile the gateway serves on
            self._server.start()
            return
        # The server ends all others when one of its processes is killed, and recovers.
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            mine = "datname = current_database() AND pid <> pg_backend_pid()"
            for (pid,) in self._server.sql(self._url, f"SELECT pid FROM pg_stat_activity WHERE {mine} LIMIT 1"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def reader(self) -> Store:
        return PostgresStore(self._url, gateway="", days=30, is_reader=True)

    def _connected(self, velox: VeloxProcess) -> list[int]:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
        inodes = {row[9] for row in rows if row[2].endswith(f":{self._server.port:04X}") and row[3] == "01"}
        return [pid for pid in velox.child_pids() if inodes & socket_inodes(pid)]


def kill_at_random(n_kills: int, seed: int, folder: Path, server: PostgresServer | None = None) -> Killed:
    """Kill so often, a few answers after each other; then end in good order, and read what was recorded."""
    chance, killed = random.Random(seed), Killed()
    kept = _Files(folder) if server is None else _Database(folder, server)
    clients = _Clients(killed)
    prices = folder.parent / "prices.yaml"
    prices.write_text(_PRICES)
    settings = {"workers": "2", "prices": str(prices), **kept.settings}
    left = [chance.choice((*_WHO, *kept.victims)) for _ in range(n_kills)]
    while left:
        with recording(folder, sim="--ttft 3ms --token-rate 0", **settings) as velox:
            clients.start(velox)
            try:
                while left:
                    reached = len(killed.answered) + chance.randrange(5, 60)
                    until(lambda reached=reached: len(killed.answered) >= reached, "they are answered", 30.0)  # type: ignore[misc]
                    who = left.pop()
                    killed.kills[who] += 1
                    if who == "supervisor":
                        _kill_supervisor(velox)
                    elif who == "gateway":
                        velox.kill()
                    elif who in kept.victims:
                        kept.kill(who, chance)
                    else:
                        with contextlib.suppress(ProcessLookupError):
                            pid = chance.choice(velox.worker_pids()) if who == "worker" else kept.ledger_pid(velox)
                            os.kill(pid, signal.SIGKILL)
                    if who in _ENDS:
                        break
            finally:
                clients.stop()
    with recording(folder, **settings):
        pass  # what a killed gateway left is kept when the next one ends
    store = kept.reader()
    killed.rows = list(store.calls(_ALL))
    killed.sums = store.totals(_ALL)[0].sums
    store.close()
    return killed


def main() -> int:
    """Read the command line, kill, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--postgres", action="store_true", help="keep records in PostgreSQL, and kill that as well")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(postgres_server()) if given.postgres else None
        killed = kill_at_random(given.kills, given.seed, Path(folder, "ledger"), server)
    problems = killed.problems()
    print(f"seed {given.seed}\n\n{killed.table()}\n\n{len(problems)} problems")
    for problem in problems[:50]:
        print(f"- {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
