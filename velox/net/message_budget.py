"""The memory that messages of one WebSocket take of the body budget, where they are held until they are complete.

    hold()       take for the bytes that are held now, above what is counted with each connection; else wait
    came()       more came of a message: it may be silent no longer, and come no slower, than a request's body

Knows: what is taken, who waits, how long a message may still take. Does not know: frames, or who holds what.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.net.client.body_budget import BodyBudget
from velox.policy.pace import Pace, PaceRules

__all__ = ["FREE_BYTES", "MessageBudget", "PausedConnection"]

# What a connection holds without asking. Each is counted with as much that was sent ahead (runtime/capacity.py).
FREE_BYTES: Final = 64 * 1024


class PausedConnection(Protocol):
    """A connection that is not read while it waits for the budget."""

    def resume_reading(self) -> None:
        """The budget has granted what is held: read on."""

    def message_refused(self) -> None:
        """The budget granted nothing in time: refuse the message."""


class MessageBudget:
    """What one connection has taken. budget: of all bodies of the worker.

    It refers to the connection only while that waits: else both would be in a reference cycle.
    """

    __slots__ = ("_budget", "_deadline_s", "_owner", "_pace", "_taken", "waits")

    def __init__(self, budget: BodyBudget, rules: PaceRules) -> None:
        self._budget: Final = budget
        self._owner: PausedConnection | None = None  # while it waits
        self._pace: Final = Pace(rules)
        self._deadline_s = 0.0  # of the message that has begun; 0: none has, or it is not read
        self._taken = 0
        self.waits = False  # for the budget; meanwhile nothing may be read

    def __repr__(self) -> str:
        return f"<MessageBudget taken={self._taken}{' waits' if self.waits else ''}>"

    def hold(self, n_bytes: int, owner: PausedConnection) -> None:
        """Take for n_bytes held in all; wait where the budget has none left. owner: called at the end of the wait."""
        more = self._missing(n_bytes)
        if more <= 0:
            self.shrink(n_bytes)
        elif not self.waits:
            if self._budget.take(self, more):
                self._taken += more
            else:
                self.waits, self._owner, self._deadline_s = True, owner, 0.0

    def take_now(self, n_bytes: int) -> bool:
        """Take for n_bytes held in all, if the budget has it now; return whether it had."""
        more = self._missing(n_bytes)
        if more > 0:
            if not self._budget.take_now(more):
                return False
            self._taken += more
        return True

    def shrink(self, n_bytes: int) -> None:
        """Give back what is above n_bytes, and wait no longer."""
        if self.waits:
            self._waited()
            self._budget.forget(self)
        more = self._missing(n_bytes)
        if more < 0:
            self._taken += more
            self._budget.give(-more)

    def came(self, n_bytes: int, now_s: float, *, is_open: bool) -> None:
        """So much came. is_open: a message has begun that is not whole."""
        if not is_open or self.waits:
            self._deadline_s = 0.0
        elif self._deadline_s:
            self._deadline_s = self._pace.came(n_bytes, now_s)
        else:
            self._deadline_s = self._pace.begin(now_s)

    def stand_still(self) -> None:
        """The connection is not read: its client can't be late."""
        self._deadline_s = 0.0

    def is_late(self, now_s: float) -> bool:
        """Say whether a message is silent for too long, or comes too slowly."""
        return 0.0 < self._deadline_s <= now_s

    # -- BudgetWaiter -------------------------------------------------------------------------------

    def budget_granted(self, n_bytes: int) -> None:
        """See BudgetWaiter."""
        self._taken += n_bytes
        self._waited().resume_reading()

    def budget_refused(self) -> None:
        """See BudgetWaiter."""
        self._waited().message_refused()

    def _waited(self) -> PausedConnection:
        """End the wait; return the connection that waited."""
        owner, self._owner = self._owner, None
        assert owner is not None, "somebody waits"
        self.waits = False
        return owner

    def _missing(self, n_bytes: int) -> int:
        return max(0, n_bytes - FREE_BYTES) - self._taken
