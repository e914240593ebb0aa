"""One of two attempts of a request at a time: its reply is held back, and it is tried again only if it is the last.

Knows: who hears of its head, its first byte and its failure. Does not know: the other one (hedged.py).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from velox.errors import VeloxError
from velox.gateway.group import Attempt, AttemptHost, RetryDecision
from velox.gateway.held import HeldReply
from velox.gateway.reply import Reply
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure

__all__ = ["Race", "Racer"]


class Race(Protocol):
    """Who hears of what comes."""

    def on_answer(self, racer: Racer) -> None:
        """What is held of its reply is good or bad."""

    def on_first(self, racer: Racer) -> None:
        """It has brought the first byte."""

    def leaves(self, racer: Racer, failure: VeloxError) -> bool:
        """It has failed. Return True if it was the last: then the usual follows."""


class Racer:
    """One of the two; the observer of its attempt.

    task: in which it runs, if it has one. is_out: it has failed or was given up. has_begun: it has taken its first
    step. has_first: it has brought the first byte.
    """

    __slots__ = ("_host", "_race", "attempt", "has_begun", "has_first", "held", "is_out", "task")

    def __init__(self, race: Race, host: AttemptHost, reply: Reply, attempt: Attempt) -> None:
        self._race: Final = race
        self._host: Final = host
        self.attempt: Final = attempt
        attempt.observer = self
        self.held: Final = HeldReply(
            reply, host.client, self._on_head, partial(race.on_answer, self), host.attempt_fields
        )
        self.task: asyncio.Task[RetryDecision | None] | None = None
        self.is_out = False
        self.has_begun = False
        self.has_first = False

    @property
    def name(self) -> str:
        """Its upstream's."""
        return self.attempt.member.name

    async def run(self) -> RetryDecision | None:
        """As any attempt."""
        self.has_begun = True  # a task that is cancelled before its first step never runs
        return await self.attempt.run(self._host, self.held)

    def _on_head(self, head: ReplyHead) -> None:
        self.attempt.on_head(head, self._host.loop.time())

    # -- AttemptObserver ----------------------------------------------------------------------------

    def on_first(self) -> None:
        """It has brought the first bytes of a good reply."""
        self.has_first = True
        self._race.on_first(self)

    def may_retry(self, failure: UpstreamFailure) -> bool:
        """It has failed: tried again only if no other attempt is left."""
        return self._race.leaves(self, failure)
