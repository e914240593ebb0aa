"""The bytes that all request bodies of a worker may hold together, and what is large of replies.

Knows: how much is taken, who waits for room and how long. Does not know: what a body is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["FIRST_BYTES", "FREE_REPLY_BYTES", "BodyBudget", "BudgetWaiter"]

# What is taken for an announced body before any of it has come. The rest is taken as it comes: who announces much and
# sends little holds little.
FIRST_BYTES: Final = 256 * 1024
# Of each reply: as much as flow control lets a client leave unread.
FREE_REPLY_BYTES: Final = 256 * 1024
# Of the whole: clients that read nothing must not keep the bodies of others out.
_REPLIES_PART: Final = 2


class BudgetWaiter(Protocol):
    """A connection with an announced body whose first bytes do not fit yet."""

    def budget_granted(self, n_bytes: int) -> None:
        """The bytes are taken for you: read on."""

    def budget_refused(self) -> None:
        """No room came in time."""


class BodyBudget:
    """First come, first served, before a body has begun to come. One that has begun never waits.

    It holds room while it is not whole, so that a few of them could wait for each other. So it gives way when no more
    of it fits, or when others wait for room: it is refused, and what it held is free.
    """

    def __init__(self, limit_bytes: int, max_wait_s: float, now_s: Callable[[], float]) -> None:
        self._limit: Final = limit_bytes
        self._max_wait_s: Final = max_wait_s
        self._now_s: Final = now_s
        self._taken = 0
        self._of_replies = 0
        self._waiting: deque[tuple[BudgetWaiter, int, float]] = deque()

    def __repr__(self) -> str:
        return f"<BodyBudget {self._taken}/{self._limit} waiting={len(self._waiting)}>"

    @property
    def taken_bytes(self) -> int:
        """Bytes held now."""
        return self._taken

    def take(self, waiter: BudgetWaiter, n_bytes: int) -> bool:
        """Take bytes now (True), or get in line (False): then the waiter is called back."""
        if not self._waiting and self._taken + n_bytes <= self._limit:
            self._taken += n_bytes
            return True
        self._waiting.append((waiter, n_bytes, self._now_s() + self._max_wait_s))
        return False

    def take_unless_waiting(self, n_bytes: int) -> bool:
        """Take bytes if there is room and nobody waits for some, without getting in line."""
        if self._waiting or self._taken + n_bytes > self._limit:
            return False
        self._taken += n_bytes
        return True

    def take_now(self, n_bytes: int) -> bool:
        """Take bytes if there is room, without getting in line."""
        if self._taken + n_bytes > self._limit:
            return False
        self._taken += n_bytes
        return True

    def take_for_reply(self, n_bytes: int, n_held: int = 0) -> bool:
        """Take bytes for what is held of a reply, if there is room. Replies may have half of all, one alone more.

        n_held: what is taken for it already.
        """
        if self._of_replies > n_held and (
            self._of_replies + n_bytes > self._limit // _REPLIES_PART or self._taken + n_bytes > self._limit
        ):
            return False
        self._taken += n_bytes
        self._of_replies += n_bytes
        return True

    def give_of_reply(self, n_bytes: int) -> None:
        """Give back what take_for_reply() took."""
        self._of_replies -= n_bytes
        self.give(n_bytes)

    def take_more(self, n_bytes: int, n_held: int) -> bool:
        """Take bytes for a body that has begun to come. False: it must give way. n_held: what is taken for it."""
        if n_held + n_bytes <= FIRST_BYTES:
            return self.take_now(n_bytes)
        return self.take_unless_waiting(n_bytes)

    def give(self, n_bytes: int) -> None:
        """Give bytes back, and call those whose bodies fit now."""
        self._taken -= n_bytes
        if self._waiting:
            self._grant()

    def forget(self, waiter: BudgetWaiter) -> None:
        """The waiter left the line; those behind it may fit."""
        self._waiting = deque(each for each in self._waiting if each[0] is not waiter)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._taken + self._waiting[0][1] <= self._limit:
            waiter, wanted, _ = self._waiting.popleft()
            self._taken += wanted
            waiter.budget_granted(wanted)

    def expire(self) -> None:
        """Refuse those who have waited long enough; called by the sweep."""
        now = self._now_s()
        while self._waiting and self._waiting[0][2] <= now:
            self._waiting.popleft()[0].budget_refused()
        self._grant()
