"""The supervisor's side of reloads without a supervisor: real files and real readings, the clock is the test's.

Knows: how a supervisor turns. Does not know: what a test asks.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.processes.listeners import Listeners
from velox.runtime.processes.process import spawn
from velox.runtime.reload import ConfigSource, Reload
from velox.settings import Settings, load
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus

__all__ = ["ReloadingGateway"]


class ReloadingGateway:
    """One gateway's reloads. file: its configuration. lines: of its log. enrolled: each that was to have its places.
    used: the upstreams that had requests. hangs: a reading that begins does not end by itself.

    turn() is what the supervisor does four times a second; it waits for a reading that it starts.
    """

    def __init__(self, file: Path, text: str, environ: Mapping[str, str]) -> None:
        self.file = file
        file.write_text(text)
        self.environ = {"VELOX_CONFIG": str(file), **environ}
        self.lines: list[str] = []
        self.enrolled: list[Settings] = []
        self.used: frozenset[str] = frozenset()
        self.hangs = False
        self.enroll: Callable[[Settings], None] = self.enrolled.append
        logger = logging.Logger("test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        settings = self.load()
        self.segment = Segment(1, CELLS)
        self.status = GatewayStatus(self.segment)
        self.keys = KeyWatch(settings, self.status, WorkerMetrics(self.segment.other_metrics()), logger)
        source = ConfigSource(self.load, time.time_ns() + 10**9)
        self.reload = Reload(settings, source, self.status, self.keys, logger, enroll=self._enroll, used=self._used)
        self.now_s = 1000.0
        self.n_readings = 0

    def _used(self) -> frozenset[str]:
        return self.used

    def _enroll(self, settings: Settings) -> None:
        self.enroll(settings)

    def load(self) -> Settings:
        """Read the settings; while readings hang, for ever."""
        if self.hangs:
            signal.pause()
        return load(self.environ, cores=2, memory_bytes=2**32)

    def start_reading(self) -> int:
        """Start one; return its process's id."""
        self.n_readings += 1
        pid = spawn(partial(self.reload.run, Listeners((), 1)))
        self.reload.started(pid, self.now_s)
        return pid

    def end_reading(self, pid: int) -> None:
        """Wait for its end, and have it judged."""
        _, status = os.waitpid(pid, 0)
        assert self.reload.reaped(pid, f"status {status}", self.now_s, ended_well=not status)

    def turn(self) -> None:
        """Let a quarter of a second go by."""
        self.now_s += 0.25
        if self.reload.is_due(self.now_s):
            self.end_reading(self.start_reading())

    def settle(self) -> None:
        """Let 1.5 seconds go by."""
        for _ in range(6):
            self.turn()

    def ask(self) -> None:
        """Ask for a reload, and have it: at once, or when the file has looked the same for a moment."""
        self.reload.ask()
        self.wait_read()

    def force(self) -> None:
        """Ask as `velox reload --force` does, and have it."""
        self.status.reloads_forced = self.status.reloads_asked + 1
        self.status.reloads_asked += 1
        self.wait_read()

    def wait_read(self) -> None:
        """Turn until something was read."""
        n_before = self.n_readings
        while self.n_readings == n_before:
            self.turn()
