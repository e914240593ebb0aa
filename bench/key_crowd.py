"""100,000 keys with limits, one request each: is one of them refused, what do they cost, and when is one revoked?

    python -m bench.key_crowd [--keys 100000] [--workers 4] [--managed]

Question: with `rpm: 60, tpm: 1000` for each key, from a file, how many first requests get 429 (it must be none); how
much memory do the processes have; how long does it take to look a key and its limits up; and how long after a key was
taken out of the file, and another one put in, do all workers say so. --managed: the same of managed keys, of a team
with a budget; and how long do connections wait for an answer at most while keys are changed. Load: an upstream in this
process answers at once; clients send one chat without max_tokens for each key. Machine: this one; times on a shared
one are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench.replica_servers import upstream
from velox.accounts.model import Key
from velox.accounts.service import Accounts
from velox.accounts.snapshot import KeySnapshot
from velox.accounts.sqlite import SqliteAccounts
from velox.gateway.auth import Authenticator
from velox.heads import RequestHead
from velox.policy.limits.token_bucket import BucketRate
from velox.settings.callers.keys import merged, parse_key_file
from velox.shm.quota_table import QuotaMemory, TableSize
from velox.shm.quotas import QuotaTable
from velox.types import Rates

_BODY: Final = b'{"model":"1","messages":[{"role":"user","content":"hi"}]}'
_READY: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_CLIENTS: Final = 64
_LOOKS: Final = 20_000
# So many connections are open that each worker has some of them.
_PROBES: Final = 24
_PATIENCE_S: Final = 30.0
_IN_FORCE_S: Final = 2.0
_BETWEEN_S: Final = 1.0


def _name(n: int) -> str:
    return f"vk-of-crowd-{n:06d}"


def _line(n: int) -> str:
    digest = hashlib.sha256(_name(n).encode()).hexdigest()
    return f"- {{name: team-{n:06d}, key: sha256:{digest}, rpm: 60, tpm: 1000}}\n"


def _write(path: Path, numbers: Iterator[int] | range) -> None:
    new = path.with_suffix(".new")
    new.write_text("".join(map(_line, numbers)))
    new.replace(path)


def _request(n: int) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {_name(n)}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n".encode() + _BODY


class _Connection:
    """One kept connection; opened again when the gateway has closed it, as it does after a 401."""

    def __init__(self, port: int) -> None:
        self._port: Final = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, n: int) -> int:
        """Send key `n`'s request; return the status."""
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        writer.write(_request(n))
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head[9:12])

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


@contextlib.contextmanager
def _connections(port: int, n: int) -> Iterator[list[_Connection]]:
    made = [_Connection(port) for _ in range(n)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


class _File:
    """Keys in a file. A change: one less, one more."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        self.path: Final = folder / "keys.yaml"
        self.n_keys: Final = n_keys
        self.environ: Final = {"VELOX_API_KEYS_FILE": str(self.path)}
        _write(self.path, range(n_keys))

    def change(self) -> None:
        _write(self.path, range(1, self.n_keys + 1))


class _Managed:
    """Managed keys. Most are put into the store as they are kept: making each one by the service takes a commit."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        self._folder: Final = folder
        self.n_keys: Final = n_keys
        self.environ: Final = {"VELOX_LEDGER": str(folder), "VELOX_MANAGED_KEYS": "on"}
        store = SqliteAccounts(folder)
        Accounts(store).create_team({"id": "web", "budgets": [{"tokens": 10**12, "window": "month"}]}, "bench")
        store.close()
        now_s, rates = int(time.time()), Rates(rpm=60, burst=10, tpm=1000, tpm_burst=1000)
        with contextlib.closing(sqlite3.connect(folder / "accounts.db")) as db, db:
            for n in range(n_keys):
                key = Key(
                    id=f"k{n:06d}", name=f"team-{n:06d}", team="web", rates=rates, created_s=now_s, updated_s=now_s
                )
                row = (key.id, key.name, key.team, msgspec.json.encode(key))
                db.execute("INSERT INTO account VALUES ('key', ?, 1, ?, ?, '', ?)", row)
                digest = hashlib.sha256(_name(n).encode()).digest()
                db.execute("INSERT INTO digest VALUES (?, ?, NULL)", (digest, key.id))
        store = SqliteAccounts(folder)
        KeySnapshot(folder).turn(store)  # as the ledger's process of a gateway that ran before has left it
        store.close()

    def touch(self) -> None:
        """Change one key."""
        store = SqliteAccounts(self._folder)
        Accounts(store).update("key", f"k{5:06d}", {"rpm": random.randrange(60, 1000)}, "bench")
        store.close()

    def change(self) -> None:
        store = SqliteAccounts(self._folder)
        accounts = Accounts(store)
        accounts.block("key", f"k{0:06d}", "bench")
        accounts.create_key({"id": "new", "team": "web", "rpm": 60, "key": _name(self.n_keys)}, "bench")
        store.close()


@contextlib.contextmanager
def _gateway(keys: _File | _Managed, workers: int, origin: str) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VELOX_")}
    environ |= {
        "VELOX_LISTEN": "127.0.0.1:0",
        "VELOX_WORKERS": str(workers),
        **keys.environ,
        "VELOX_UPSTREAM_ORIGIN": origin,
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_ACCESS_LOG": "off",
        "VELOX_ADMIN_LISTEN": "off",
    }
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "velox", "serve"]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None, "it is a pipe"
        lines: list[str] = []
        while not (found := _READY.search(lines[-1] if lines else "")):
            lines.append(process.stderr.readline())
            if not lines[-1]:
                raise SystemExit("velox did not start:\n" + "".join(lines))
        yield process, int(found[1]), time.perf_counter() - began_s
    finally:
        process.terminate()
        process.wait()


def _memory(pid: int) -> str:
    """Return resident and proportional memory of a process's family, in MB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    rows = []
    for each in (str(pid), *children):
        fields = dict(re.findall(r"^(\w+): +(\d+) kB", Path(f"/proc/{each}/smaps_rollup").read_text(), re.MULTILINE))
        rows.append((int(fields["Rss"]) / 1024, int(fields["Pss"]) / 1024))
    shown = ", ".join(f"{rss:.0f}/{pss:.0f}" for rss, pss in rows)
    return f"{sum(pss for _, pss in rows):.0f} MB in all (resident/proportional of each process: {shown})"


async def _one_each(port: int, n_keys: int) -> tuple[Counter[int], float]:
    statuses: Counter[int] = Counter()
    numbers = iter(random.sample(range(n_keys), n_keys))

    async def client(connection: _Connection) -> None:
        for n in numbers:
            statuses[await connection.ask(n)] += 1

    began_s = time.perf_counter()
    with _connections(port, _CLIENTS) as made:
        await asyncio.gather(*map(client, made))
    return statuses, time.perf_counter() - began_s


async def _longest_wait(connection: _Connection, until: asyncio.Event) -> float:
    """Ask again and again; return the longest time to an answer."""
    longest_s = 0.0
    while not until.is_set():
        began_s = time.perf_counter()
        await connection.ask(1)
        longest_s = max(longest_s, time.perf_counter() - began_s)
        await asyncio.sleep(0.002)
    return longest_s


async def _change(port: int, keys: _File | _Managed) -> tuple[float, float]:
    """Take one key away and put one in; return when no connection took the one, and all took the other."""
    n_keys = keys.n_keys
    with _connections(port, _PROBES) as made:
        await asyncio.to_thread(keys.change)
        began_s = time.perf_counter()
        ends = [0.0, 0.0]
        while not all(ends) and time.perf_counter() - began_s < _PATIENCE_S:
            for at, (n, wanted) in enumerate(((0, 401), (n_keys, 200))):
                asked = await asyncio.gather(*(connection.ask(n) for connection in made))
                # 429: it is known, and has used its limit up by being asked for all the time.
                if not ends[at] and {wanted, *((429,) if at else ())} >= set(asked):
                    ends[at] = time.perf_counter() - began_s
            await asyncio.sleep(0.05)
    return ends[0], ends[1]


def _look_ups(content: bytes, n_keys: int) -> None:
    began_s = time.perf_counter()
    entries, problems = parse_key_file(content, "keys.yaml")
    keys, _ = merged(entries)
    assert not problems and len(keys) == n_keys, "the file is ours"
    print(f"file: {len(content) / 1e6:.1f} MB, read in {time.perf_counter() - began_s:.2f} s")
    for n in (10, n_keys):
        auth = Authenticator(keys[:n])
        heads = [_head(random.randrange(n)) for _ in range(_LOOKS)]
        began_s = time.perf_counter()
        for head in heads:
            auth.check(head)
        each_us = (time.perf_counter() - began_s) / _LOOKS * 1e6
        print(f"look-up of a key among {n:,}: {each_us:.2f} us")
    rate = BucketRate.from_rpm(60, 10, 0.0)
    for n in (10, 2 * n_keys):
        table = QuotaTable(QuotaMemory(TableSize.for_need(n, 0), 8), 0)
        now_ns = time.monotonic_ns()
        for i in range(n):
            table.quota(table.tag(b"%d" % i), rate).take(1, now_ns)
        chosen = [table.quota(table.tag(b"%d" % random.randrange(n)), rate) for _ in range(_LOOKS)]
        began_s = time.perf_counter()
        for quota in chosen:
            quota.take(1, now_ns)
        each_us = (time.perf_counter() - began_s) / _LOOKS * 1e6
        print(f"look-up of a bucket among {n:,}, and a permit of it: {each_us:.2f} us")


def _head(n: int) -> RequestHead:
    headers = [(b"host", b"x"), (b"authorization", b"Bearer " + _name(n).encode())]
    return RequestHead.of(b"POST", b"/v1/chat/completions", headers)


async def _stalls(port: int, keys: _Managed) -> None:
    """Change keys one by one; tell how long connections waited meanwhile, and how long without changes."""
    for n_changes in (0, 8):
        ended = asyncio.Event()
        with _connections(port, 8) as made:
            waits = [asyncio.create_task(_longest_wait(each, ended)) for each in made]
            for _ in range(n_changes):
                await asyncio.to_thread(keys.touch)
                await asyncio.sleep(_BETWEEN_S)
            await asyncio.sleep(0 if n_changes else 8 * _BETWEEN_S)
            ended.set()
            longest_s = max(await asyncio.gather(*waits))
        print(f"{n_changes} changes in {8 * _BETWEEN_S:.0f} s: longest wait for an answer {longest_s * 1e3:.1f} ms")


async def _run(keys: _File | _Managed, workers: int) -> tuple[int, float, float]:
    """Return how many were refused, and when a change of the file was active."""
    n_keys = keys.n_keys
    async with upstream(lambda _: None) as origin:
        with _gateway(keys, workers, origin) as (process, port, start_s):
            print(f"start: {start_s:.1f} s with {workers} workers; {_memory(process.pid)}")
            statuses, took_s = await _one_each(port, n_keys)
            refused = n_keys - statuses[200]
            print(f"{n_keys:,} keys, one request each: {refused} refused {dict(statuses)}, {took_s:.0f} s")
            print(f"memory then: {_memory(process.pid)}")
            if isinstance(keys, _Managed):
                await _stalls(port, keys)
            gone_s, come_s = await _change(port, keys)
            print(f"memory then: {_memory(process.pid)}")
            print(f"one key less, one more: gone in all workers after {gone_s:.2f} s, there after {come_s:.2f} s")
    return refused, gone_s, come_s


def main() -> int:
    """Run; exit code 1: a key was refused, or a change took longer than 2 s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--managed", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys: _File | _Managed
        if asked.managed:
            keys = _Managed(Path(folder), asked.keys)
        else:
            keys = _File(Path(folder), asked.keys)
            _look_ups(keys.path.read_bytes(), asked.keys)
        refused, gone_s, come_s = asyncio.run(_run(keys, asked.workers))
    return int(refused > 0 or not 0 < gone_s <= _IN_FORCE_S or not 0 < come_s <= _IN_FORCE_S)


if __name__ == "__main__":
    sys.exit(main())
