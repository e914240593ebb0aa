"""A worker takes over a configuration: all of it, a little at a time, or nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from velox.observe.series import CELLS
from velox.runtime.configuration import ConfigFollower, ConfigSnapshot, assembled, pieces
from velox.settings import Settings, load
from velox.shm.segment import Segment
from velox.shm.status import WorkerStatus


class Turns:
    """A loop whose turns the test takes."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def run(self) -> int:
        """Take turns until nothing waits; return how many there were."""
        n = 0
        while self.waiting:
            self.waiting.pop()()
            n += 1
        return n


class UpstreamManager:
    """What works with the settings. slow: replacing takes some turns. broken: it can't."""

    def __init__(self, *, n_steps: int = 0, broken: bool = False) -> None:
        self.settings: Settings | None = None
        self._n_steps = n_steps
        self._broken = broken

    def replace(self, settings: Settings) -> Iterator[None]:
        """Take them."""
        for _ in range(self._n_steps):
            time.sleep(0.003)  # work, longer than one turn may have
            yield
        if self._broken:
            raise MemoryError("with a secret: sk-a")
        self.settings = settings


def settings_of(folder: Path, n_routes: int) -> Settings:
    """Return settings with so many routes."""
    file = folder / "velox.yaml"
    lines = [f"  - {{name: r{n}, match: {{models: [m-{n}]}}, to: u{n % 7}}}" for n in range(n_routes)]
    upstreams = [f"  - {{name: u{n}, origin: http://127.0.0.1:{9000 + n}, keys: [env:KEY]}}" for n in range(7)]
    file.write_text("\n".join(["upstreams:", *upstreams, "routes:", *lines]))
    return load({"VELOX_CONFIG": str(file), "KEY": "sk-a"}, cores=1)


class Worker:
    """One worker's follower. snapshot: the supervisor's; the copy that this one has is as after a fork."""

    def __init__(self, settings: Settings, manager: UpstreamManager) -> None:
        self.snapshot = ConfigSnapshot()
        self.turns = Turns()
        self.lines: list[str] = []
        logger = logging.Logger("test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        self.status = WorkerStatus(Segment(1, CELLS), 0)
        loop: Any = self.turns
        self.follower = ConfigFollower(self.snapshot, settings, manager.replace, self.status, logger, loop)

    def publish(self, settings: Settings) -> None:
        """Have news, as one that was forked before."""
        self.snapshot.publish(pieces(settings))
        self.snapshot._snapshot._seen -= 1

    def look(self) -> int:
        """Look, and go on to the end; return how many turns of the loop it took."""
        self.follower.look()
        return self.turns.run()


def test_settings_arrive_as_they_were_sent(tmp_path: Path) -> None:
    """Each field that can change; the secrets with them, and the places of entries."""
    before, now = settings_of(tmp_path, 3), settings_of(tmp_path, 130)
    found = assembled(pieces(now), before)
    assert (found.routes, found.upstreams) == (now.routes, now.upstreams)
    assert found.upstreams[0].keys[0].secret.reveal() == "sk-a"
    assert found.routes[129].where == now.routes[129].where


def test_worker_takes_over_what_is_new_once(tmp_path: Path) -> None:
    """And says which one it works with, when it does."""
    before, now = settings_of(tmp_path, 3), settings_of(tmp_path, 4)
    manager = UpstreamManager()
    worker = Worker(before, manager)
    worker.look()
    assert (manager.settings, worker.status.configuration) == (None, 1)
    worker.publish(now)
    worker.look()
    assert manager.settings is not None and len(manager.settings.routes) == 4
    assert worker.follower.settings is manager.settings
    assert worker.status.configuration == 2
    worker.look()
    assert worker.status.configuration == 2


def test_long_work_is_done_in_turns_and_holds_when_all_of_it_is_done(tmp_path: Path) -> None:
    """The loop serves others in between; a newer one that comes meanwhile follows."""
    before, now, last = (settings_of(tmp_path, n) for n in (3, 4, 5))
    manager = UpstreamManager(n_steps=5)
    worker = Worker(before, manager)
    worker.publish(now)
    worker.follower.look()
    worker.publish(last)
    worker.follower.look()
    assert (manager.settings, worker.status.configuration) == (None, 1)
    assert worker.turns.run() >= 5
    assert worker.status.configuration == 2
    worker.look()
    assert manager.settings is not None and len(manager.settings.routes) == 5
    assert worker.status.configuration == 3


def test_configuration_that_can_not_be_taken_over_leaves_the_one_before(tmp_path: Path) -> None:
    """Where it was is said, not with what; the next one is taken."""
    before, now = settings_of(tmp_path, 3), settings_of(tmp_path, 4)
    worker = Worker(before, UpstreamManager(broken=True))
    worker.publish(now)
    worker.look()
    assert worker.follower.settings is before
    assert worker.status.configuration == 1
    (line,) = worker.lines
    assert line.startswith("the new configuration could not be applied in this worker: bug: MemoryError at replace:")
    worker.publish(now)
    worker.look()
    assert len(worker.lines) == 2


@pytest.mark.slow
def test_loop_goes_on_while_many_routes_are_taken_over(tmp_path: Path) -> None:
    """With a real loop: others have their turns between the pieces of 2,000 routes."""
    before, now = settings_of(tmp_path, 3), settings_of(tmp_path, 2000)

    async def run() -> int:
        worker = Worker(before, UpstreamManager(n_steps=3))
        worker.follower._loop = asyncio.get_running_loop()  # type: ignore[misc]
        worker.publish(now)
        worker.follower.look()
        n = 0
        while worker.status.configuration == 1:
            await asyncio.sleep(0)
            n += 1
        return n

    assert asyncio.run(run()) >= 5
