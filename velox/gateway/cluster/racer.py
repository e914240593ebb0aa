"""One of two attempts of a request at a time: its reply is held back until it is known whose the client gets.

Knows: who hears of its head, its first byte and its failure. Does not know: the other one (hedged.py).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from velox.errors import VeloxError
from velox.gateway.cluster.group import Attempt, HedgingHost, Outcome
from velox.gateway.reply.held import HeldReply
from velox.gateway.reply.outcome import Broken, Unsayable
from velox.gateway.reply.reply import Reply

__all__ = ["Race", "Racer"]


class Race(Protocol):
    """Who hears of what comes."""

    def on_answer(self, racer: Racer) -> None:
        """What is held of its reply is good or bad."""

    def on_first(self, racer: Racer) -> None:
        """It has brought the first byte."""

    def left(self, racer: Racer, failure: VeloxError) -> None:
        """It has failed."""


class Racer:
    """One of the two.

    task: in which it runs, if it has one. is_out: it has failed or was given up. has_begun: it has taken its first
    step. has_first: it has brought the first byte.
    """

    __slots__ = ("_host", "_race", "attempt", "has_begun", "has_first", "held", "is_out", "task")

    def __init__(self, race: Race, host: HedgingHost, reply: Reply, attempt: Attempt) -> None:
        self._race: Final = race
        self._host: Final = host
        self.attempt: Final = attempt
        attempt.on_first_byte = self._on_first
        self.held: Final = HeldReply(
            reply, host.client, attempt.on_head, partial(race.on_answer, self), host.attempt_fields
        )
        self.task: asyncio.Task[Outcome] | None = None
        self.is_out = False
        self.has_begun = False
        self.has_first = False

    @property
    def name(self) -> str:
        """Its upstream's."""
        return self.attempt.member.name

    async def send(self) -> Outcome:
        """As any attempt."""
        self.has_begun = True  # a task that is cancelled before its first step never runs
        outcome = await self.attempt.send(self._host, self.held)
        if isinstance(outcome, Broken):
            self._race.left(self, outcome.failure)
        elif isinstance(outcome, Unsayable):
            self._race.left(self, outcome.error)
        return outcome

    def _on_first(self) -> None:
        """It has brought the first bytes of a good reply."""
        self.has_first = True
        self._race.on_first(self)
