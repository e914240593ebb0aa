"""Weighted round robin: each in turn, by weight, and never many times in a row.

Knows: whose turn it is. Does not know: load, latency, or the turns of other workers.

Smooth weighted round robin, as in nginx (ngx_http_upstream_round_robin.c): with each choice every member earns its
weight, the richest is chosen and pays what all earned. With weights 5, 1, 1: a a b a c a a. Weights may be fractions
and change at any time; a member that may not be chosen neither earns nor pays.

While all weights are the same that is one after the other, and is done so: it costs the same for any number of members.
"""

from __future__ import annotations

from collections.abc import Collection

from velox.policy.balance.candidates import Balancer, Candidates, Key, Tried, usable

__all__ = ["RoundRobin"]


class RoundRobin(Balancer):
    """The turns of one worker."""

    __slots__ = ("_earned", "_next")

    def __init__(self) -> None:
        self._earned: list[float] = []  # by member
        self._next: int | None = None  # while weights are even

    def __repr__(self) -> str:
        return f"<RoundRobin earned={[round(earned, 2) for earned in self._earned]}>"

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
    ) -> int | None:
        """Choose the member whose turn it is."""
        if candidates.is_even and not tried:
            n = len(candidates.weights)
            member = int(random * n) if self._next is None else self._next % n
            self._next = member + 1
            return member
        weights = usable(candidates.weights, tried)
        if len(self._earned) != len(weights):
            self._begin(len(weights), weights, random)
        return self._turn(weights)

    def _begin(self, n: int, weights: Collection[float], random: float) -> None:
        """Begin somewhere in the round: workers that all begin with the first would send it all of a burst."""
        self._earned = [0.0] * n
        for _ in range(int(random * n)):
            self._turn(weights)

    def _turn(self, weights: Collection[float]) -> int | None:
        earned = self._earned
        richest: int | None = None
        most = total = 0.0
        for member, weight in enumerate(weights):
            if weight > 0.0:
                total += weight
                has = earned[member] = earned[member] + weight
                if richest is None or has > most:
                    richest = member
                    most = has
        if richest is not None:
            earned[richest] = most - total
        return richest
