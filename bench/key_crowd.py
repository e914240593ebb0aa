"""100,000 keys with limits, one request each: is one of them refused, what do they cost, and when is one revoked?

    python -m bench.key_crowd [--keys 100000] [--workers 4]

Question: with `rpm: 60, tpm: 1000` for each key, from a file, how many first requests get 429 (it must be none); how
much memory do the processes have; how long does it take to look a key and its limits up; and how long after a key was
taken out of the file, and another one put in, do all workers say so. Load: an upstream in this process answers at
once; clients send one chat without max_tokens for each key. Machine: this one; times on a shared one are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.replica_servers import upstream
from velox.gateway.auth import Authenticator
from velox.policy.token_bucket import BucketRate
from velox.settings.keys import merged, parse_key_file
from velox.shm.quota_table import QuotaMemory, TableSize
from velox.shm.quotas import QuotaTable
from velox.types import RequestHead

_BODY: Final = b'{"model":"1","messages":[{"role":"user","content":"hi"}]}'
_READY: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_CLIENTS: Final = 64
_LOOKS: Final = 20_000
# So many connections are open that each worker has some of them.
_PROBES: Final = 24
_PATIENCE_S: Final = 30.0
_IN_FORCE_S: Final = 2.0


def _name(n: int) -> str:
    return f"vk-crowd-{n:06d}"


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


@contextlib.contextmanager
def _gateway(file: Path, workers: int, origin: str) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VELOX_")}
    environ |= {
        "VELOX_LISTEN": "127.0.0.1:0",
        "VELOX_WORKERS": str(workers),
        "VELOX_API_KEYS_FILE": str(file),
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


async def _change(port: int, file: Path, n_keys: int) -> tuple[float, float]:
    """Take one key out of the file and put one in; return when no connection took the one, and all took the other."""
    with _connections(port, _PROBES) as made:
        _write(file, range(1, n_keys + 1))
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


async def _run(file: Path, n_keys: int, workers: int) -> tuple[int, float, float]:
    """Return how many were refused, and when a change of the file was in force."""
    async with upstream(lambda _: None) as origin:
        with _gateway(file, workers, origin) as (process, port, start_s):
            print(f"start: {start_s:.1f} s with {workers} workers; {_memory(process.pid)}")
            statuses, took_s = await _one_each(port, n_keys)
            refused = n_keys - statuses[200]
            print(f"{n_keys:,} keys, one request each: {refused} refused {dict(statuses)}, {took_s:.0f} s")
            print(f"memory then: {_memory(process.pid)}")
            gone_s, come_s = await _change(port, file, n_keys)
            print(f"one key less, one more: gone in all workers after {gone_s:.2f} s, there after {come_s:.2f} s")
    return refused, gone_s, come_s


def main() -> int:
    """Run; exit code 1: a key was refused, or a change took longer than 2 s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        _write(file, range(asked.keys))
        _look_ups(file.read_bytes(), asked.keys)
        refused, gone_s, come_s = asyncio.run(_run(file, asked.keys, asked.workers))
    return int(refused > 0 or not 0 < gone_s <= _IN_FORCE_S or not 0 < come_s <= _IN_FORCE_S)


if __name__ == "__main__":
    sys.exit(main())
