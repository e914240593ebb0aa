"""Several workers and the supervisor on one quota table, in one process: a schedule says who goes on, step by step.

A step is an atomic operation on the table. Each actor has a thread, and one thread runs at a time: so every
interleaving can be had, and the same schedule always gives the same one. An actor may be killed at a step: nothing of
what it was doing runs after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from atomicshm import AtomicU64

from velox.shm.quota_table import QuotaMemory, TableSize

__all__ = ["Killed", "Stage", "Turn"]


class Killed(BaseException):
    """Stands for SIGKILL."""


@dataclass(frozen=True)
class Turn:
    """Something that an actor does. dies_at: the step at which it is killed; None: it lives."""

    act: Callable[[], None]
    dies_at: int | None = None


class _Cell:
    """A cell whose every use is a step."""

    def __init__(self, cell: AtomicU64, step: Callable[[], None]) -> None:
        self._cell = cell
        self._step = step

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._cell, name)

        def stepped(*args: int) -> Any:
            self._step()
            return operation(*args)

        return stepped


class _Memory(QuotaMemory):
    """The real memory, seen through cells that stop before each step."""

    def __init__(self, size: TableSize | int, blocks: int, step: Callable[[], None]) -> None:
        super().__init__(size, blocks)
        self.step = step

    def cas_tag(self, row: int, seen: int, tag: int) -> int:
        self.step()
        return super().cas_tag(row, seen, tag)

    def _cell(self, index: int) -> AtomicU64:
        return _Cell(super()._cell(index), self.step)  # type: ignore[return-value]


class _Actor:
    def __init__(self, turns: list[Turn], on_death: Callable[[], None]) -> None:
        self.go = threading.Semaphore(0)
        self.stopped = threading.Semaphore(0)
        self.budget = 0
        self.is_over = False
        self.failure: BaseException | None = None
        self._turns = turns
        self._on_death = on_death
        self._lives_for: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            for turn in self._turns:
                self._lives_for = turn.dies_at
                try:
                    turn.act()
                except Killed:
                    self._on_death()
        except BaseException as exc:
            self.failure = exc
        self.is_over = True
        self.stopped.release()

    def step(self) -> None:
        if self._lives_for is not None:
            if self._lives_for == 0:
                raise Killed
            self._lives_for -= 1
        if self.budget == 0:
            self.stopped.release()
            self.go.acquire()
        self.budget -= 1

    def resume(self, steps: int) -> None:
        if self.is_over:
            return
        self.budget = steps
        self.go.release()
        self.stopped.acquire()
        if self.failure is not None:
            raise self.failure


class Stage:
    """The table, and those that use it."""

    def __init__(self, size: TableSize | int, blocks: int) -> None:
        self._actors: list[_Actor] = []
        self.memory: QuotaMemory = _Memory(size, blocks, self._step)

    def play(
        self, turns: list[list[Turn]], schedule: Iterable[tuple[int, int]], on_death: Callable[[int], None]
    ) -> None:
        """Do the turns of each actor. schedule: who goes on, for how many steps; then each to its end."""
        self._actors = [
            _Actor(own, lambda actor=actor: on_death(actor))  # type: ignore[misc]
            for actor, own in enumerate(turns)
        ]
        try:
            for actor, steps in schedule:
                self._actors[actor].resume(steps)
        finally:
            for one in self._actors:
                one.failure = None
                one.resume(1 << 60)
        for one in self._actors:
            one.thread.join()

    def _step(self) -> None:
        me = threading.current_thread()
        for actor in self._actors:
            if actor.thread is me:
                actor.step()
