"""Clients that do nothing wrong: a steady small load, and how long each answer took.

Knows: its connections and its clock. Does not know: who else is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import CHAT, Client

__all__ = ["Answers", "Healthy"]

_CLIENTS: Final = 4
_PAUSE_S: Final = 0.02


@dataclass(frozen=True)
class Answers:
    """Those of one phase. bad: anything but 200, a cut connection too."""

    took_ms: Sequence[float]
    bad: Sequence[str]

    def percentile(self, percent: float) -> float:
        """Return how many milliseconds so many of the answers took at most."""
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


class Healthy:
    """Four clients, 50 requests a second each; a context manager. One that is cut connects again, and it is noted."""

    def __init__(self, velox: VeloxProcess) -> None:
        self._velox: Final = velox
        self._over: Final = threading.Event()
        self._lock: Final = threading.Lock()
        self._took_ms: list[float] = []
        self._bad: list[str] = []
        self._threads: Final = [threading.Thread(target=self._run, daemon=True) for _ in range(_CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def take(self) -> Answers:
        """Return the answers since the last call."""
        with self._lock:
            took, self._took_ms = self._took_ms, []
            bad, self._bad = self._bad, []
        return Answers(took, bad)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with Client(self._velox) as client:
                    while not self._over.wait(_PAUSE_S):
                        began_s = time.monotonic()
                        status = client.ask("POST", "/v1/chat/completions", CHAT).status
                        self._note((time.monotonic() - began_s) * 1000, "" if status == 200 else str(status))
            except OSError as exc:
                self._note(0.0, type(exc).__name__)

    def _note(self, took_ms: float, bad: str) -> None:
        with self._lock:
            if bad:
                self._bad.append(bad)
            else:
                self._took_ms.append(took_ms)
