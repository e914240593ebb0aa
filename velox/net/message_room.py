"""The room that the messages of one WebSocket take, where Velox holds them until they are whole.

    hold()       so much is held now: of the budget of request bodies, above what is counted with each connection
    came()       more came of a message: it may be silent no longer, and come no slower, than a request's body

Knows: what is taken, who waits for room, how long a message may still take. Does not know: frames, or who holds what.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.net.client.body_budget import BodyBudget
from velox.policy.pace import Pace, PaceRules

__all__ = ["FREE_BYTES", "MessageRoom", "RoomOwner"]

# What a connection holds without asking. Each is counted with as much that was sent ahead (runtime/capacity.py).
FREE_BYTES: Final = 64 * 1024


class RoomOwner(Protocol):
    """A connection that is not read from while it waits for room."""

    def room_came(self) -> None:
        """There is room for what is held: read on."""

    def room_refused(self) -> None:
        """None came in time."""


class MessageRoom:
    """Of one connection. budget: of all bodies of the worker.

    It knows who it is of only while room is waited for: who has it would else be in a reference cycle with it.
    """

    __slots__ = ("_budget", "_deadline_s", "_owner", "_pace", "_taken", "waits")

    def __init__(self, budget: BodyBudget, rules: PaceRules) -> None:
        self._budget: Final = budget
        self._owner: RoomOwner | None = None  # while it waits
        self._pace: Final = Pace(rules)
        self._deadline_s = 0.0  # of the message that has begun; 0: none has, or it is not read
        self._taken = 0
        self.waits = False  # for room; meanwhile nothing may be read

    def __repr__(self) -> str:
        return f"<MessageRoom taken={self._taken}{' waits' if self.waits else ''}>"

    def hold(self, n_bytes: int, owner: RoomOwner) -> None:
        """So much is held now. Where there is no room for it, it is waited for. owner: hears of the end of that."""
        more = self._missing(n_bytes)
        if more <= 0:
            self.shrink(n_bytes)
        elif not self.waits:
            if self._budget.take(self, more):
                self._taken += more
            else:
                self.waits, self._owner, self._deadline_s = True, owner, 0.0

    def has_room(self, n_bytes: int) -> bool:
        """Take room for so much in all, if there is some now."""
        more = self._missing(n_bytes)
        if more > 0:
            if not self._budget.take_now(more):
                return False
            self._taken += more
        return True

    def shrink(self, n_bytes: int) -> None:
        """No more than so much is held now, and nothing is waited for."""
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
        self._waited().room_came()

    def budget_refused(self) -> None:
        """See BudgetWaiter."""
        self._waited().room_refused()

    def _waited(self) -> RoomOwner:
        """Wait no longer; return who has."""
        owner, self._owner = self._owner, None
        assert owner is not None, "somebody waits"
        self.waits = False
        return owner

    def _missing(self, n_bytes: int) -> int:
        return max(0, n_bytes - FREE_BYTES) - self._taken
