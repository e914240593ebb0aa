"""Many keys with different limits over several gateways and one Redis, while workers and lease managers are killed.

    python -m bench.replicas                              # 5 minutes; writes the tables of docs/limits-replicas.md
    python -m bench.replicas --seconds 4 --keys 8 --dry  # does it run? writes nothing

The first table has three runs: one gateway without Redis, whose workers are killed at random; two with Redis; the same
with workers killed at random, and each lease manager once. Each key is pushed above its limit all the time
(bench/many_keys.py).

The second table is of one limit over two gateways under load, while Redis is paused, goes on, is killed, and comes back
empty.

It fails (1) if one key got more or less than docs/limits-replicas.md says, or asked for too little to tell.

Knows: what is run in which order, and the tables. Does not know: how a limit is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.many_keys import GROUPS, Connections, Key, Loss, push
from bench.open_loop import percentile
from bench.replica_servers import Gateway, RedisServer, gateway, redis_server, upstream
from docs.tables import fill

__all__ = ["main"]

_PAGE: Final = Path(__file__).parent.parent / "docs/limits-replicas.md"
# A worker of six, or of three: each lives for 12 s, so the supervisor does not take it for a crash loop.
_LIFE_S: Final = 12.0
_WORKERS: Final = 3
# A lease manager that is killed is back sooner, on a busy machine too: requests wait for it.
_PATIENT: Final = "1s"
_LEASE_MANAGER_DIED: Final = "the lease manager died (SIGKILL)"
_WORKER_DIED: Final = "died (SIGKILL); the next one starts in"
_ALONE: Final = "Redis can't be asked"
_TOGETHER: Final = "Redis can be asked again"
_RUNS: Final = (
    "| gateways | killed | rpm | burst | keys | asked | least of a key | median | most | bound |\n" + "|---" * 10
)
_PHASES: Final = "| Redis is | admitted | rate x time | since the start | median, ms | p99, ms | longest, ms |\n"
_LIMIT: Final = (6000, 200)


@dataclass
class Run:
    """What one run showed. workers, managers: of leases that were killed; alone: how often a gateway went on without
    Redis."""

    name: str
    keys: list[Key]
    shared: bool
    workers: int = 0
    managers: int = 0
    alone: int = 0
    wrong: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Note what is not as it must be."""
        loss = Loss(self.shared, self.managers)
        for key in self.keys:
            if key.asked_too_little:
                self.wrong.append(f"{self.name}: asked too little: {key}")
            elif not key.least(loss) <= key.seen <= key.most:
                self.wrong.append(f"{self.name}: outside of {key.least(loss)} to {key.most:.2f}: {key}")

    def rows(self) -> list[str]:
        """Return its rows of the table: one a group, and one of all."""
        groups = sorted({(key.rpm, key.burst) for key in self.keys})
        rows = [
            self._row(rpm, burst, [k for k in self.keys if (k.rpm, k.burst) == (rpm, burst)]) for rpm, burst in groups
        ]
        return [*rows, self._row("all", "", self.keys)]

    def _row(self, rpm: object, burst: object, keys: Sequence[Key]) -> str:
        loss = Loss(self.shared, self.managers)
        parts = sorted(key.part for key in keys)
        worst = min(keys, key=lambda key: key.part)
        asked = sum(key.asked for key in keys) / sum(key.most for key in keys)
        bound = min(key.least(loss) / key.whole for key in keys)
        killed = f"{self.workers} + {self.managers}"
        cells = (self.name, killed, rpm, burst, len(keys), f"{asked:.1f}")
        figures = (f"{parts[0]:.3f} ({worst.seen} of {worst.whole})", f"{statistics.median(parts):.3f}")
        most = max(key.seen / key.most for key in keys)
        return f"| {' | '.join(map(str, (*cells, *figures, f'{most:.3f}', f'{bound:.3f}')))} |\n"


def _keys(n: int) -> list[Key]:
    """Return keys in the proportions of GROUPS, at least one of each."""
    of_all = sum(count for _, _, count in GROUPS)
    limits = [(rpm, burst) for rpm, burst, count in GROUPS for _ in range(max(1, round(count * n / of_all)))]
    return [Key(number, rpm, burst) for number, (rpm, burst) in enumerate(limits)]


def _write_settings(folder: Path, keys: Sequence[Key]) -> None:
    entries = [
        f"  - {{name: k{key.number}, key: vk-bench-key-{key.number}, rpm: {key.rpm}, burst: {key.burst}}}\n"
        for key in keys
    ]
    (folder / "velox.yaml").write_text("api_keys:\n" + "".join(entries))


async def _kill(gateways: Sequence[Gateway], run: Run, seconds: float) -> None:
    """Kill workers at random moments, and each lease manager once; the last shortly before the end.

    What a lease manager's death left to others is settled by then.
    """
    began_s, every_s = time.monotonic(), min(_LIFE_S, seconds) / len(gateways) / _WORKERS
    managers = {began_s + seconds * (0.3 + 0.3 * i): each for i, each in enumerate(gateways) if run.shared}
    while True:
        await asyncio.sleep(random.uniform(0.5, 1.5) * every_s)
        now_s = time.monotonic()
        if now_s >= began_s + 0.9 * seconds:
            return
        due_s = min(managers, default=now_s)
        if due_s < now_s:
            managers.pop(due_s).kill(manager=True)
        else:
            random.choice(gateways).kill(manager=False)


async def _run(run: Run, folder: Path, n: int, url: str | None, seconds: float, *, kills: bool) -> Run:
    keys = run.keys
    _write_settings(folder, keys)
    async with upstream(lambda number: keys[number].arrived()) as origin:
        with contextlib.ExitStack() as stack:
            gateways = [stack.enter_context(gateway(folder, origin, url, _PATIENT)) for _ in range(n)]
            async with asyncio.TaskGroup() as running:
                if kills:
                    running.create_task(_kill(gateways, run, seconds))
                running.create_task(push(keys, [each.port for each in gateways], seconds))
    run.managers = sum(each.count(_LEASE_MANAGER_DIED) for each in gateways)
    run.workers = sum(each.count(_WORKER_DIED) for each in gateways) - run.managers
    run.alone = sum(each.count(_ALONE) for each in gateways)
    run.judge()
    _tell(run)
    return run


def _tell(run: Run) -> None:
    """Say how it went: for who looks into a figure."""
    print("".join(run.rows()), file=sys.stderr)
    loss = Loss(run.shared, run.managers)
    times_s = sorted(time_s for key in run.keys for time_s in key.times_s)
    for what, key in (
        ("least", min(run.keys, key=lambda key: key.part)),
        ("nearest to its bound", min(run.keys, key=lambda key: key.seen - key.least(loss))),
        ("pushed least", min(run.keys, key=lambda key: key.push)),
        ("most above at a moment", max(run.keys, key=lambda key: key.over)),
    ):
        print(f"{what}: {key}", file=sys.stderr)
    total = f"{sum(key.asked for key in run.keys)} asked, {sum(key.failed for key in run.keys)} without an answer"
    total += f", {sum(key.others for key in run.keys)} others, alone {run.alone} times"
    print(f"{total}; median {1e3 * percentile(times_s, 0.5):.1f} ms", file=sys.stderr)
    print("\n".join(run.wrong), file=sys.stderr)


async def _outage(folder: Path, redis: RedisServer, seconds: float) -> tuple[list[str], list[str]]:
    """Push through two gateways with one limit; return a row a phase, and what was wrong."""
    key = Key(0, *_LIMIT)
    _write_settings(folder, [key])
    rows: list[str] = []
    phases: tuple[tuple[str, Callable[[], None]], ...] = (
        ("up, from a full bucket", _nothing),
        ("up", _nothing),
        ("paused (SIGSTOP)", redis.pause),
        ("goes on", redis.resume),
        ("killed", redis.kill),
        ("back, and empty", redis.start),
        ("up", _nothing),
    )
    async with upstream(lambda _: key.arrived()) as origin:
        with contextlib.ExitStack() as stack:
            gateways = [stack.enter_context(gateway(folder, origin, redis.url, "50ms")) for _ in range(2)]
            ports = [each.port for each in gateways]
            began_s = key.first_sent_s = time.monotonic()
            for name, begin in phases:
                begin()
                seen, from_s = key.seen, time.monotonic()
                key.times_s.clear()
                await asyncio.gather(*(_ask_on(key, port, from_s + seconds) for port in ports for _ in range(3)))
                now_s = time.monotonic()
                given = (now_s - from_s) / key.interval_s + (0 if rows else key.burst)
                most = key.burst + (now_s - began_s) / key.interval_s
                times_ms = [1e3 * time_s for time_s in sorted(key.times_s)]
                figures = "".join(f" {percentile(times_ms, part):.1f} |" for part in (0.5, 0.99, 1.0))
                rows.append(f"| {name} | {key.seen - seen} | {given:.0f} | {key.seen / most:.3f} |{figures}\n")
                print(rows[-1], end="", file=sys.stderr)
    # All that was given meanwhile is paid for, except where a gateway takes Redis for away at the very end.
    if any(each.count(_ALONE) > each.count(_TOGETHER) for each in gateways):
        most += key.burst
    wrong = [f"outage: {key.seen} of {most:.1f} were let through"] if key.seen > most else []
    return rows, wrong + ([f"outage: {key.failed} requests got no answer"] if key.failed else [])


def _nothing() -> None:
    """Leave Redis as it is."""


async def _ask_on(key: Key, port: int, until_s: float) -> None:
    """Ask again and again on one connection."""
    client = Connections("vk-bench-key-0", "0", [port])
    with contextlib.closing(client):
        while (began_s := time.monotonic()) < until_s:
            status, _ = await client.ask(await client.connect())
            key.failed += not status
            key.times_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.002)


def main() -> int:
    """Run it, write the tables into the page, and return 1 if a bound did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the three runs")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, redis_server() as one, redis_server() as other:
        folder, seconds, n = Path(name), options.seconds, options.keys
        runs = [
            asyncio.run(_run(Run("1, no Redis", _keys(n), False), folder, 1, None, seconds, kills=True)),
            asyncio.run(_run(Run("2", _keys(n), True), folder, 2, one.url, seconds, kills=False)),
            asyncio.run(_run(Run("2", _keys(n), True), folder, 2, other.url, seconds, kills=True)),
        ]
        rows, wrong = asyncio.run(_outage(folder, one, min(4.0, seconds / 4)))
    limits = _RUNS + "|\n" + "".join(row for run in runs for row in run.rows())
    for mark, table in (("replicas", limits), ("outage", _PHASES + "|---" * 7 + "|\n" + "".join(rows))):
        print(table)
        if not options.dry:
            _PAGE.write_text(fill(_PAGE.read_text(), mark, table))
    wrong += [line for run in runs for line in run.wrong]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
