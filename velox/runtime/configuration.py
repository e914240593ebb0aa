"""The live settings, on their way from the supervisor to the workers: pickled in pieces, in shared memory.

Knows: the number of the configuration, and that a worker takes it over in steps, because 10,000 routes are too many for
one turn of the loop. Does not know: what is in it, or what a worker changes.

The pieces hold the keys of upstreams: they pass through memory only, and never come from outside.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from velox.observe.oplog import crash_text
from velox.protocol.slices import finished
from velox.settings import Settings
from velox.settings.live import LIVE
from velox.shm.snapshot import SharedSnapshot
from velox.shm.status import WorkerStatus

__all__ = [
    "MAX_BYTES",
    "ConfigFollower",
    "ConfigPieces",
    "ConfigSnapshot",
    "assembled",
    "assembling",
    "packed",
    "pieces",
    "unpacked",
]

# Lists that may be long, and how many of their entries are one piece: about half a millisecond's work.
_PER_PIECE: Final = {"upstreams": 4, "routes": 50}


@dataclass(frozen=True, slots=True)
class ConfigPieces:
    """head: all fields but the long ones, as one. lists: of those each field and each piece, in order."""

    head: bytes
    lists: tuple[tuple[str, bytes], ...]

    @property
    def n_bytes(self) -> int:
        """How much they are."""
        return len(self.head) + sum(len(piece) for _, piece in self.lists)


def pieces(settings: Settings) -> ConfigPieces:
    """Take the live settings apart."""
    head = {name: getattr(settings, name) for name in LIVE if name not in _PER_PIECE}
    lists = []
    for name, n in _PER_PIECE.items():
        entries = getattr(settings, name)
        lists += [(name, packed(entries[first : first + n])) for first in range(0, len(entries), n)]
    return ConfigPieces(packed(head), tuple(lists))


def assembling(parts: ConfigPieces, running: Settings) -> Generator[None, None, Settings]:
    """Put them together, with the other settings as they run; yield after each piece."""
    head: dict[str, object] = unpacked(parts.head)
    lists: dict[str, list[object]] = {name: [] for name in _PER_PIECE}
    for name, piece in parts.lists:
        lists[name] += unpacked(piece)
        yield
    # The type checker can't know that each name has a value of its field's type; pieces() took them from there.
    return replace(running, **head, **{name: tuple(entries) for name, entries in lists.items()})


def assembled(parts: ConfigPieces, running: Settings) -> Settings:
    """Put them together at once: for a process without a loop."""
    return finished(assembling(parts, running))


def packed(value: object) -> bytes:
    """Return a value as the processes of one gateway hand it to each other."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpacked(text: bytes) -> Any:
    """Return the value that a process of this gateway has packed."""
    return pickle.loads(text)  # noqa: S301 - it was never outside of the gateway's own memory


# Above what the longest file with the most aliases comes to; untouched pages take no memory.
MAX_BYTES: Final = 128 * 2**20
# A request takes several turns of the loop: a third of its time is for this, the rest for them.
_STEP_S: Final = 0.001
_PAUSE_S: Final = 0.002
_FREED: Final = 200


class ConfigSnapshot:
    """The live settings. Made by the supervisor before it forks. number: that this process began with, or published."""

    def __init__(self) -> None:
        self._snapshot: Final[SharedSnapshot[tuple[int, ConfigPieces]]] = SharedSnapshot(MAX_BYTES + 2**20)
        self.number = 1

    def __repr__(self) -> str:
        return f"<ConfigSnapshot {self.number}>"

    def publish(self, parts: ConfigPieces) -> None:
        """Publish a new configuration to all workers. For the supervisor."""
        self.number += 1
        self._snapshot.publish((self.number, parts))

    def read_new(self) -> tuple[int, ConfigPieces] | None:
        """Return the number and the pieces of a configuration that this process has not read yet. For a worker."""
        return self._snapshot.read_new()


class ConfigFollower:
    """Takes over new configurations, in one worker. Where that takes long, the loop serves others in between.

    settings: those that the worker was started with, then those that hold. replace: has the worker work with others,
    when all its steps have been taken.
    """

    def __init__(
        self,
        snapshot: ConfigSnapshot,
        settings: Settings,
        replace: Callable[[Settings], Iterable[None]],
        status: WorkerStatus,
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self._snapshot: Final = snapshot
        self._replace: Final = replace
        self._status: Final = status
        self._logger: Final = logger
        self._loop: Final = loop
        self._steps: Generator[None, None, None] | None = None
        status.configuration = snapshot.number

    def __repr__(self) -> str:
        return f"<ConfigFollower {self._status.configuration} {'changing' if self._steps else 'settled'}>"

    def look(self) -> None:
        """Take over what is new. For the worker's tick: mostly there is nothing."""
        if self._steps is not None:
            return
        new = self._snapshot.read_new()
        if new is not None:
            self._steps = self._taking(*new)
            self._step()

    def _taking(self, number: int, parts: ConfigPieces) -> Generator[None, None, None]:
        settings = yield from assembling(parts, self.settings)
        yield from self._replace(settings)
        gone = list(self.settings.routes)
        self.settings = settings
        self._status.configuration = number
        while gone:  # to give back the memory of ten thousand takes as long as to read them
            del gone[-_FREED:]
            yield

    def _step(self) -> None:
        """Go on for a moment; the rest after a pause."""
        steps = self._steps
        assert steps is not None, "there is something to go on with"
        until_s = time.perf_counter() + _STEP_S
        try:
            for _ in steps:
                if time.perf_counter() >= until_s:
                    self._loop.call_later(_PAUSE_S, self._step)
                    return
        except Exception as exc:  # a bug, or no memory: the worker goes on with what it has
            self._logger.error(
                "the new configuration could not be applied in this worker: %(error)s", {"error": crash_text(exc)}
            )
        self._steps = None
