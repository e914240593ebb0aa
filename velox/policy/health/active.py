"""When a member is asked for its health, and what it takes to believe the answers.

Knows: when the next probe is due, and how many alike turn the belief. Does not know: a clock, chance, what is asked, or
what a good answer is.

Until the first answer the member is taken for well, and the first answer decides alone. From then on `fall` bad ones in
a row turn it, and `rise` good ones turn it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ActiveRules", "ProbeSchedule"]

_JITTER: Final = 0.1  # of the time between two, either way: members must not be asked all at once for ever


@dataclass(frozen=True, slots=True)
class ActiveRules:
    """every_s: from one probe to the next. timeout_s: one that takes longer is a bad answer, and lost if untold."""

    every_s: float = 5.0
    timeout_s: float = 2.0
    rise: int = 2  # HAProxy's defaults for both
    fall: int = 3


class ProbeSchedule:
    """The probes of one member by one worker. All times are monotonic seconds."""

    __slots__ = ("_began_s", "_is_asking", "_is_known", "_n_against", "_next_s", "_rules", "is_up")

    def __init__(self, rules: ActiveRules, now_s: float, random: float) -> None:
        """random: in [0, 1); the first probes of several members are spread over the time between two."""
        self._rules: Final = rules
        self._next_s = now_s + rules.every_s * random
        self._began_s = 0.0
        self._is_asking = False
        self._is_known = False
        self._n_against = 0  # answers in a row that speak against the belief
        self.is_up = True

    def __repr__(self) -> str:
        return f"<ProbeSchedule {'up' if self.is_up else 'down'}, {self._n_against} against>"

    @property
    def timeout_s(self) -> float:
        """How long a probe may take."""
        return self._rules.timeout_s

    def next_s(self) -> float:
        """Return when the next probe is due. One whose end was never told is due again after its time-out."""
        return self._began_s + self._rules.timeout_s + self._rules.every_s if self._is_asking else self._next_s

    def is_due(self, now_s: float) -> bool:
        """Say whether a probe is to be sent now."""
        return now_s >= self.next_s()

    def begin(self, now_s: float, random: float) -> None:
        """A probe is sent. The time to the next one counts from here, however long this one takes."""
        self._is_asking = True
        self._began_s = now_s
        self._next_s = now_s + self._rules.every_s * (1.0 + _JITTER * (2.0 * random - 1.0))

    def ended(self, is_good: bool) -> bool:
        """The answer to the last probe, or its failure; True if the belief turns by it."""
        self._is_asking = False
        if is_good is self.is_up:
            self._n_against = 0
            self._is_known = True
            return False
        self._n_against += 1
        if self._is_known and self._n_against < (self._rules.rise if is_good else self._rules.fall):
            return False
        self._is_known = True
        self._n_against = 0
        self.is_up = is_good
        return True
