"""What several gateways keep together, whatever holds it: Redis, or the PostgreSQL of the ledger.

    Outage          after a failure nobody waits for the next one, and the log says once that it began and that it ended
    StoreDownError  what a store raises when it can't be asked

Knows: when a store is asked again. Does not know: which store it is (redis_pool.py, postgres_pool.py), or what it holds
(shared/objects.py, shared/answers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

__all__ = ["AGAIN_S", "Outage", "StoreDownError"]

_T = TypeVar("_T")
AGAIN_S: Final = 1.0  # after a failure


class StoreDownError(Exception):
    """A store can't be asked. The message says why in a word, without an address or a password."""


class Outage:
    """Of one use of a store. store: its name. what: is asked of it. follows: what is so while it is away.

    timeout_s: for each question.
    """

    def __init__(
        self,
        store: str,
        what: str,
        follows: str,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        log: logging.Logger,
    ) -> None:
        self._store: Final = store
        self._what: Final = what
        self._follows: Final = follows
        self._timeout_s: Final = timeout_s
        self._loop: Final = loop
        self._log: Final = log
        self._until_s = 0.0
        self._is_down = False

    def __repr__(self) -> str:
        return f"<Outage {self._store} {'down' if self._is_down else 'up'}>"

    async def asking(self, question: Awaitable[_T]) -> _T:
        """Return the answer to a question. Raises StoreDownError."""
        if self._loop.time() < self._until_s:
            if asyncio.iscoroutine(question):
                question.close()
            raise StoreDownError("it failed a moment ago")
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await question
        except TimeoutError:
            self.failed("it does not answer in time")
            raise StoreDownError("it does not answer in time") from None
        except StoreDownError as exc:
            self.failed(str(exc))
            raise
        if self._is_down:
            self._is_down = False
            self._log.info("%(store)s is available for %(use)s again", {"store": self._store, "use": self._what})
        return found

    def failed(self, why: str) -> None:
        """Note that it can't be asked."""
        self._until_s = self._loop.time() + AGAIN_S
        if not self._is_down:
            self._is_down = True
            self._log.warning(
                "%(store)s is unavailable for %(use)s (%(error)s): %(effect)s",
                {"store": self._store, "use": self._what, "error": why, "effect": self._follows},
            )
