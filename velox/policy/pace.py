"""How slow a body may come: no long silence, and no trickle.

Knows: the two rules, over plain numbers. Does not know: the clock, sockets, or what an end means.

A silence is over with any byte: alone, that rule lets a client hold a connection and room for its body for ever with a
byte now and then (nginx' client_body_timeout is such a rule). So time is also bought by bytes, as in Apache's MinRate
and Kestrel's MinRequestBodyDataRate: a body begins with some seconds in hand, each second takes one, and each `rate`
bytes bring one back. Unlike there, no more can be had in hand than at the beginning: a client that has sent a
megabyte at once can't be silent for a quarter of an hour after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Pace", "PaceRules"]

_IN_HAND_S: Final = 10.0  # the rate counts after so many seconds


@dataclass(frozen=True, slots=True)
class PaceRules:
    """idle_s: longest silence. rate: bytes a second in the long run; 0: any."""

    idle_s: float
    rate: int

    @property
    def in_hand_s(self) -> float:
        """Return the seconds that a body may be behind the rate: no fewer than it may be silent."""
        return max(self.idle_s, _IN_HAND_S)


class Pace:
    """The pace of one body at a time: begin(), then came() with each piece."""

    __slots__ = ("_paid_until_s", "_rules")

    def __init__(self, rules: PaceRules) -> None:
        self._rules: Final = rules
        self._paid_until_s = 0.0

    def __repr__(self) -> str:
        return f"<Pace until={self._paid_until_s:.1f}>"

    def begin(self, now_s: float) -> float:
        """The body may come from now on; return its deadline."""
        self._paid_until_s = now_s + self._rules.in_hand_s
        return now_s + self._rules.idle_s

    def came(self, n_bytes: int, now_s: float) -> float:
        """Some of it came; return the new deadline."""
        rules = self._rules
        if not rules.rate:
            return now_s + rules.idle_s
        self._paid_until_s = min(self._paid_until_s + n_bytes / rules.rate, now_s + rules.in_hand_s)
        return min(self._paid_until_s, now_s + rules.idle_s)

    def is_trickle(self, now_s: float) -> bool:
        """True when it is the rate that the body does not keep, rather than that it is silent."""
        return bool(self._rules.rate) and now_s >= self._paid_until_s
