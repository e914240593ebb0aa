"""What is done to a gateway while it is soaked: workers killed, reloads, other keys and budgets, Redis frozen.

Knows: how each is done. Does not know: how often, or what may come of it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from tests.e2e.watching import start_time

__all__ = ["KEY", "Trouble", "written"]

KEY: Final = "sk-of-the-soak-0123456789"
_FROZEN_S: Final = 1.5


def written(path: Path, config: Mapping[str, Any], n: int) -> None:
    """Write the file of settings for the `n`th time: with another key, another budget, another route than before."""
    keys = [{"name": "soak", "key": KEY, "endpoints": ["all"]}]
    keys += [{"name": f"other-{n}", "key": f"sk-of-another-{n:08}-0123456789", "budgets": [f"{n % 7 + 1} usd/month"]}]
    budgets = [{"per": "key", "usd": 1_000_000 + n, "window": "month", "unpriced": "allow"}]
    routes = [{"name": f"extra-{n % 5}", "match": {"models": [f"extra-{n}"]}, "to": "plain"}, *config["routes"]]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({**config, "api_keys": keys, "budgets": budgets, "routes": routes}))
    new.rename(path)


class Trouble:
    """Of one gateway. kills_s: when a worker was killed, monotonic. done: how often each was done."""

    def __init__(
        self, velox: VeloxProcess, path: Path, config: Mapping[str, Any], redis: RedisServer | None, seed: int
    ) -> None:
        self._velox: Final = velox
        self._path: Final = path
        self._config: Final = config
        self._redis: Final = redis
        self._dice: Final = random.Random(seed)
        self._n = 0
        self.kills_s: Final[list[float]] = []
        self.done: Final[Counter[str]] = Counter()

    async def run(self, until_s: float, *, kill_each_s: float, reload_each_s: float, freeze_each_s: float) -> None:
        """Do all of it until then, each at times that vary by a half."""
        does = {self._kill: kill_each_s, self._reload: reload_each_s, self._freeze: freeze_each_s}
        due = {do: time.monotonic() + self._vary(each_s) for do, each_s in does.items()}
        while (next_s := min(due.values())) < until_s:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            do = min(due, key=lambda each: due[each])
            await do()
            due[do] = time.monotonic() + self._vary(does[do])

    def _vary(self, each_s: float) -> float:
        return each_s * self._dice.uniform(0.5, 1.5)

    async def _kill(self) -> None:
        """Kill the youngest worker: the oldest one shows what a long life does."""
        pids = await asyncio.to_thread(self._velox.worker_pids)
        if len(pids) < 2:
            return
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
