"""Owners and places of objects that several gateways know together: one worker's side, over whatever store.

What can't be told is told again each second, as long as there is room for what waits. What can't be asked in time is
not: the gateway that made an object knows it all the same, another one does not.

Knows: what waits to be told, and in which order. Does not know: the store, what the numbers stand for, or what follows
from an object that nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from velox.runtime.shared.store import AGAIN_S, Outage, StoreDownError

__all__ = ["KEPT_S", "LEAST_S", "ObjectSharing", "ObjectStore"]

KEPT_S: Final = 30 * 86_400  # for which a store keeps a row
LEAST_S: Final = 0.25
_MOST_WAITING: Final = 10_000
Rows = Mapping[int, tuple[int, int]]


class ObjectStore(Protocol):
    """Where rows are kept: by the number of an id, the numbers of its owner and its place. Raises StoreDownError."""

    @property
    def name(self) -> str:
        """Return what the log calls it."""

    async def read(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return those that are known."""

    async def write(self, rows: Rows) -> None:
        """Keep rows for KEPT_S."""

    async def close(self) -> None:
        """Let go of all connections."""


class ObjectSharing:
    """Of one worker; see SharedObjects. timeout_s: for each question."""

    def __init__(
        self, store: ObjectStore, timeout_s: float, loop: asyncio.AbstractEventLoop, logger: logging.Logger
    ) -> None:
        self._store: Final = store
        self._timeout_s: Final = timeout_s
        self._loop: Final = loop
        follows = "those of other gateways are not known"
        self._outage: Final = Outage(store.name, "objects", follows, timeout_s, loop, logger)
        self._waiting: Final[dict[int, tuple[int, int]]] = {}  # rows to be told
        self._telling: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ObjectSharing {self._outage!r} waiting={len(self._waiting)}>"

    def put(self, tag: int, owner: int, place: int) -> None:
        """Tell other gateways of an object. Not waited for."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting[tag] = owner, place
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def get(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return owner and place of those that are known; of none while the store can't be asked."""
        try:
            return await self._outage.asking(self._store.read(tags))
        except StoreDownError:
            return {}

    async def close(self) -> None:
        """Let what is under way come to its end, and leave."""
        telling = self._telling
        if telling is not None:
            await asyncio.wait((telling,), timeout=self._timeout_s)
            telling.cancel()
        await self._store.close()

    async def _tell(self) -> None:
        try:
            while self._waiting:
                rows = dict(self._waiting)
                self._waiting.clear()
                try:
                    await self._outage.asking(self._store.write(rows))
                except StoreDownError:
                    for tag, row in rows.items():
                        if len(self._waiting) < _MOST_WAITING:
                            self._waiting.setdefault(tag, row)
                    await asyncio.sleep(AGAIN_S)
        except asyncio.CancelledError:
            pass  # it leaves
        finally:
            self._telling = None
