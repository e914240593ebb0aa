"""What is done to a gateway while it is soaked: kills, reloads, upgrades, other keys, Redis frozen.

Knows: how each is done. Does not know: how often, or what may come of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.harness import VeloxProcess
from tests.e2e.redis_server import RedisServer
from tests.e2e.tools import run_velox
from tests.e2e.watching import socket_inodes, start_time, until

__all__ = ["KEY", "Serving", "Trouble", "written"]

KEY: Final = "sk-of-the-soak-0123456789"
_FROZEN_S: Final = 1.5
_UPGRADED_S: Final = 180.0
# What the log says of an upgrade's end: the first of them is a good one.
_OUTCOMES: Final = ("upgrade complete", "no upgrade:", "the next version did not get ready")


def written(path: Path, config: Mapping[str, Any], n: int) -> None:
    """Write the file of settings for the `n`th time: with another key, another budget, another route than before."""
    keys = [{"name": "soak", "key": KEY, "endpoints": ["all"]}]
    keys += [{"name": f"other-{n}", "key": f"sk-of-another-{n:08}-0123456789", "budgets": [f"{n % 7 + 1} usd/month"]}]
    budgets = [{"per": "key", "usd": 1_000_000 + n, "window": "month", "unpriced": "allow"}]
    routes = [{"name": f"extra-{n % 5}", "match": {"models": [f"extra-{n}"]}, "to": "plain"}, *config["routes"]]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({**config, "api_keys": keys, "budgets": budgets, "routes": routes}))
    new.rename(path)


class Serving:
    """The processes of the version that serves, of a gateway whose first process is another one after an upgrade."""

    def __init__(self, velox: VeloxProcess) -> None:
        self._velox: Final = velox

    def pid(self) -> int:
        """Return its supervisor, once its admin listener answers."""
        found: list[int] = []

        def look() -> bool:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                found.append(int(str(self._velox.admin("/gateway").json()["pid"])))
            return bool(found)

        until(look, "the admin listener says who serves")
        return found[0]

    def children(self) -> list[int]:
        """Return what lives of its children, but a version that it was itself a child of."""
        pid = self.pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sorted((int(each) for each in children if start_time(int(each))), key=start_time)

    def workers(self) -> list[int]:
        """Return its workers, the oldest first: they hold the listening sockets."""
        inodes = self._velox._listener_inodes()
        return [each for each in self.children() if inodes & socket_inodes(each)]


class Trouble:
    """Of one gateway. kills_s: when a worker was killed, monotonic. done: how often each was done."""

    def __init__(
        self, velox: VeloxProcess, path: Path, config: Mapping[str, Any], redis: RedisServer | None, seed: int
    ) -> None:
        self._velox: Final = velox
        self._serving: Final = Serving(velox)
        self._path: Final = path
        self._config: Final = config
        self._redis: Final = redis
        self._dice: Final = random.Random(seed)
        self._n = 0
        self._n_keys = 0
        self._upgrade: asyncio.Task[None] | None = None
        self.kills_s: Final[list[float]] = []
        self.done: Final[Counter[str]] = Counter()

    async def run(
        self,
        until_s: float,
        *,
        kill_each_s: float,
        reload_each_s: float,
        freeze_each_s: float,
        key_each_s: float,
        upgrade_each_s: float,
        upgrade_first_s: float,
    ) -> None:
        """Do all of it until then, each at times that vary by a half; what follows happens during an upgrade, too."""
        does = {self._kill: kill_each_s, self._reload: reload_each_s, self._freeze: freeze_each_s}
        does |= {self._change_keys: key_each_s, self._begin_upgrade: upgrade_each_s}
        due = {do: time.monotonic() + self._vary(each_s) for do, each_s in does.items()}
        due[self._begin_upgrade] = time.monotonic() + upgrade_first_s
        while (next_s := min(due.values())) < until_s:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            do = min(due, key=lambda each: due[each])
            await do()
            due[do] = time.monotonic() + self._vary(does[do])
        if self._upgrade is not None:
            await self._upgrade

    def _vary(self, each_s: float) -> float:
        return each_s * self._dice.uniform(0.5, 1.5)

    async def _kill(self) -> None:
        """Kill the youngest worker: the oldest one shows what a long life does."""
        pids = await asyncio.to_thread(self._serving.workers)
        if len(pids) < 2 or (self._upgrade is not None and not self._upgrade.done()):
            return  # a version that is just being replaced has its own workers still
        self.kills_s.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(max(pids, key=start_time), signal.SIGKILL)
        self.done["worker killed"] += 1

    async def _reload(self) -> None:
        self._n += 1
        await asyncio.to_thread(written, self._path, self._config, self._n)
        self._velox.signal(signal.SIGHUP)
        self.done["reload with other keys, budgets and routes"] += 1

    async def _freeze(self) -> None:
        if self._redis is None:
            return
        os.kill(self._redis.process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_FROZEN_S)
        finally:
            os.kill(self._redis.process.pid, signal.SIGCONT)
        self.done["Redis frozen"] += 1

    async def _begin_upgrade(self) -> None:
        if self._upgrade is None or self._upgrade.done():
            self._upgrade = asyncio.create_task(asyncio.to_thread(self._upgraded))

    def _upgraded(self) -> None:
        """Upgrade by a signal to the first process, and wait until the version before has ended, or there is none."""
        before = [self._count(each) for each in _OUTCOMES]
        self._velox.signal(signal.SIGUSR2)
        until(lambda: [self._count(each) for each in _OUTCOMES] != before, "an upgrade has an outcome", _UPGRADED_S)
        is_done = self._count(_OUTCOMES[0]) > before[0]
        self.done["upgrade" if is_done else "upgrade refused, as while a worker is replaced"] += 1

    def _count(self, text: str) -> int:
        return sum(text in line for line in self._velox.stderr.lines)

    async def _change_keys(self) -> None:
        """Make a managed key with a budget, change that, give it another secret, block it and delete it."""
        self._n_keys += 1
        name = f"soak-{self._n_keys}"
        for words in (
            ("create", "--id", name, "--budget", "5 usd/month"),
            ("update", name, "--budget", f"{self._n_keys + 5} usd/month"),
            ("rotate", name),
            ("block", name),
            ("delete", name),
        ):
            done = await asyncio.to_thread(run_velox, {}, "key", *words, "--config", str(self._path))
            if done.returncode:
                self.done[f"velox key {words[0]} failed: {done.stderr.strip()}"] += 1
                return
        self.done["key with a budget made, changed, rotated, blocked and deleted"] += 1
