"""One soak: a gateway with all that it has, clients at a fixed rate, faults, kills, reloads, upgrades; what came of it.

    warm-up     first all lanes at rest, then the whole of it for two fifths of the time, or two minutes, or as told
    the soak    memory of each process is measured each second
    the end     all is quiet: descriptors, tasks and slots are those of the beginning, and each answer has its record

Knows: the order of this, what is counted. Does not know: what may come of it (report.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.harness import VeloxProcess
from tests.e2e.redis_server import RedisServer, redis_server
from tests.e2e.test_ledger import open_files
from tests.soak.clients import Clients
from tests.soak.ground import start_provider
from tests.soak.lanes import SECRETS, configuration
from tests.soak.launcher import tasks, telling, trim
from tests.soak.trouble import KEY, Serving, Trouble, written
from tests.soak.watch import Samples, held
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import UsageQuery

__all__ = ["Quiet", "Rules", "Soaked", "soak"]

_WORKERS: Final = 2
_ALL: Final = UsageQuery(0, 253_402_300_799)
_SETTLE_S: Final = 30.0
_CALM_RATE: Final = 20.0
_TRIM_S: Final = 0.1
_WARM_PART: Final = 0.4
_IDLE: Final = ("velox_inflight_requests", 'velox_queue_depth{class="normal"}', "velox_upstream_streams")
_UPSTREAM: Final = "velox_upstream_connections"
_ENV: Final = {
    **SECRETS,
    "VELOX_WORKERS": str(_WORKERS),
    "VELOX_MANAGED_KEYS": "on",
    "VELOX_UPGRADE_TIMEOUT": "120s",
    "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "2s",
    "VELOX_UPSTREAM_IDLE_TIMEOUT": "1s",
    "VELOX_RETRY_MAX_WAIT": "0.2s",
    # Limits that count all and refuse nobody.
    "VELOX_RATE_LIMIT_RPM": "10000000",
    "VELOX_RATE_LIMIT_TPM": "100000000",
}


@dataclass(frozen=True)
class Rules:
    """Of one soak. rate: requests a second. warm_s: meanwhile caches by model, head, key and route fill up.

    sweeps: how often a request of each kind is sent before that: else the rarest have their first one within hours, and
    what remembers them by name grows for so long.
    """

    seconds: float
    rate: float
    seed: int
    kill_each_s: float = 60.0
    reload_each_s: float = 20.0
    freeze_each_s: float = 45.0
    key_each_s: float = 30.0
    upgrade_each_s: float = 600.0
    upgrade_first_s: float = 600.0
    warm_s: float = 120.0
    sweeps: int = 0


@dataclass(frozen=True)
class Quiet:
    """What is held when nothing runs. n_fds: of all workers but their connections to upstreams. slots: gauges."""

    n_fds: int
    tasks: dict[str, int]
    slots: dict[str, float]


@dataclass
class Soaked:
    """What came of it.

    memory: by process. began_s: of the load. measured_s: from when on memory counts. n_rows, lost: of the records.
    """

    rules: Rules
    clients: Clients
    trouble: Trouble
    memory: dict[int, Samples] = field(default_factory=dict)
    began_s: float = 0.0
    measured_s: float = 0.0
    before: Quiet | None = None
    after: Quiet | None = None
    n_rows: int = 0
    lost: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def soak(rules: Rules, tell: Callable[[str], None]) -> Soaked:
    """Run one. tell: of its progress, a line at a time. Raises AssertionError when the gateway does not end well."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    with tempfile.TemporaryDirectory(prefix="velox-soak-") as folder, contextlib.ExitStack() as stack:
        redis = _redis(stack)
        tell("with Redis" if redis is not None else "without Redis: redis-server is not installed")
        origin = stack.enter_context(start_provider())
        config = configuration({}, origin, apart=True)
        path, prices, ledger = Path(folder, "velox.yaml"), Path(folder, "prices.yaml"), Path(folder, "ledger")
        prices.write_text("prices:\n  - {model: '*', input: 1, output: 10}\n")
        config |= {"ledger": str(ledger), "prices": str(prices)}
        written(path, config, 0)
        env = {**_ENV, "VELOX_CONFIG": str(path)}
        if redis is not None:
            env["VELOX_REDIS_URL"] = redis.url
        with VeloxProcess(env, launcher=telling(folder)) as velox:
            trouble = Trouble(velox, path, config, redis, rules.seed)
            done = Soaked(rules, Clients(velox.port, KEY, rules.seed, trouble.kills_s), trouble)
            asyncio.run(_Run(velox, folder, done, tell).whole())
            done.log = [line for line in velox.stderr.lines if "bug:" in line or "Traceback" in line]
        _count_rows(ledger, done)
    return done


def _redis(stack: contextlib.ExitStack) -> RedisServer | None:
    if shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin") is None:
        return None
    return stack.enter_context(redis_server())


def _count_rows(ledger: Path, done: Soaked) -> None:
    """Compare the records with what clients were answered. Lanes whose calls are not recorded have no row at all."""
    store = SqliteStore(ledger, days=30, is_reader=True)
    rows = {call.id for call in store.calls(_ALL)}
    store.close()
    answered = done.clients.answered
    recorded = {lane for request_id, lane in answered.items() if request_id in rows}
    done.n_rows = len(rows)
    done.lost = [f"{each} ({lane})" for each, lane in answered.items() if lane in recorded and each not in rows]


class _Run:
    """The phases."""

    def __init__(self, velox: VeloxProcess, folder: str, done: Soaked, tell: Callable[[str], None]) -> None:
        self._velox: Final = velox
        self._folder: Final = folder
        self._done: Final = done
        self._tell: Final = tell
        self._serving: Final = Serving(velox)
        self._names: dict[int, str] = {}

    async def whole(self) -> None:
        """Run them all."""
        done, rules = self._done, self._done.rules
        await done.clients.run(_CALM_RATE, time.monotonic() + min(10.0, rules.seconds / 5))
        for n in range(rules.sweeps):
            self._tell(f"each kind of request once, {n + 1} of {rules.sweeps}")
            await done.clients.sweep(rules.rate)
        await done.clients.finish()
        done.before = await asyncio.to_thread(self._quiet)
        began_s = done.began_s = time.monotonic()
        until_s = began_s + rules.seconds
        done.measured_s = began_s + min(rules.warm_s, rules.seconds * _WARM_PART)
        ways = done.trouble.run(
            until_s,
            kill_each_s=rules.kill_each_s,
            reload_each_s=rules.reload_each_s,
            freeze_each_s=rules.freeze_each_s,
            key_each_s=rules.key_each_s,
            upgrade_each_s=rules.upgrade_each_s,
            upgrade_first_s=rules.upgrade_first_s,
        )
        watching = asyncio.create_task(self._watch(began_s))
        try:
            await asyncio.gather(done.clients.run(rules.rate, until_s), ways)
        finally:
            watching.cancel()
        await done.clients.finish()
        done.after = await asyncio.to_thread(self._back, done.before.n_fds)

    async def _watch(self, began_s: float) -> None:
        """Measure each second, and tell each ten."""
        n = 0
        while True:
            now_s = time.monotonic()
            if n % 5 == 0:
                self._names = await asyncio.to_thread(self._processes)
            for pid in self._names:
                trim(pid)
            await asyncio.sleep(_TRIM_S)
            held(self._names, self._done.memory, now_s)
            if n % 10 == 0:
                self._tell(self._progress(now_s - began_s))
            n += 1
            await asyncio.sleep(max(0.0, now_s + 1 - time.monotonic()))

    def _progress(self, seconds: float) -> str:
        done = self._done
        ends = ", ".join(f"{n} {end}" for end, n in sorted(done.clients.ends.items()))
        sizes = [
            f"{name} {done.memory[pid].sizes[-1] >> 20}" for pid, name in self._names.items() if pid in done.memory
        ]
        return f"{seconds:5.0f} s: {ends}; {done.clients.n_running} running; MiB: {', '.join(sorted(sizes))}"

    def _processes(self) -> dict[int, str]:
        """Return what each process is, by its pid."""
        found = {self._serving.pid(): "supervisor"}
        workers = self._serving.workers()
        for pid in self._serving.children():
            is_ledger = any("ledger.db" in name for name in open_files(pid))
            found[pid] = "worker" if pid in workers else "ledger" if is_ledger else "other"
        return found

    def _back(self, n_fds: int) -> Quiet:
        """Wait until the descriptors are given back: what is given up closes in a moment. Return what is left."""
        until_s = time.monotonic() + _SETTLE_S
        while (found := self._quiet()).n_fds > n_fds and time.monotonic() < until_s:
            time.sleep(1.0)
        return found

    def _quiet(self) -> Quiet:
        """Wait until nothing runs; return what is held then."""
        velox = self._velox
        slots = {}
        for name in (*_IDLE, "velox_client_connections"):
            velox.wait_metric(name, lambda n: n == 0, _SETTLE_S)
            slots[name] = velox.metric(name)
        velox.wait_metric("velox_ledger_waiting_records", lambda n: n == 0, _SETTLE_S)
        workers = self._serving.workers()
        names: dict[str, int] = {}
        for pid in workers:
            for task, n in tasks(pid, self._folder).items():
                names[task] = max(names.get(task, 0), n)
        upstream = sum(n for name, n in velox.metrics().items() if name.partition("{")[0] == _UPSTREAM)
        n_fds = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in workers)
        return Quiet(n_fds - round(upstream), names, slots)
