"""One of two attempts of a request at a time: its reply is held back, and it is tried again only if it is the last.

Knows: whom it tells of its head, its first byte and its failure. Does not know: the other one (hedged.py).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from velox.errors import VeloxError
from velox.gateway.attempt import Attempt, AttemptReply
from velox.gateway.group import Pick
from velox.gateway.held import HeldReply
from velox.gateway.reply import Reply
from velox.gateway.retries import Again
from velox.net.upstream.interface import UpstreamFailure

if TYPE_CHECKING:  # an exchange makes its attempts, and each goes on with what its exchange has
    from velox.gateway.exchange import Exchange

__all__ = ["Race", "Racer"]


class Race(Protocol):
    """Whom an attempt tells of what comes."""

    def on_answer(self, racer: Racer) -> None:
        """What is held of its reply is good or bad."""

    def on_first(self, racer: Racer) -> None:
        """It has brought the first byte."""

    def leaves(self, racer: Racer, failure: VeloxError) -> bool:
        """It has failed. Return True if it was the last: then the usual follows."""


class Racer(Attempt):
    """One of the two.

    task: in which it runs, if it has one. is_out: it has failed or was given up. has_begun: it has taken its first
    step. has_first: it has brought the first byte.
    """

    __slots__ = ("_race", "has_begun", "has_first", "held", "is_out", "task")

    def __init__(self, race: Race, exchange: Exchange, reply: Reply, pick: Pick, now_s: float) -> None:
        super().__init__(exchange, pick, now_s)
        self._race: Final = race
        told = exchange.trail.headers
        self.held: Final = HeldReply(reply, exchange.client, self.hears, partial(race.on_answer, self), told)
        self.task: asyncio.Task[Again | None] | None = None
        self.is_out = False
        self.has_begun = False
        self.has_first = False

    @property
    def name(self) -> str:
        """Its upstream's."""
        return self.pick.member.name

    async def run(self, reply: AttemptReply) -> Again | None:
        """As any attempt."""
        self.has_begun = True  # a task that is cancelled before its first step never runs
        return await super().run(reply)

    def _after(self, failure: UpstreamFailure, now_s: float) -> Again | None:
        """The usual, if no other attempt is left."""
        return super()._after(failure, now_s) if self._race.leaves(self, failure) else None

    def _on_first(self) -> None:
        super()._on_first()
        self.has_first = True
        self._race.on_first(self)
