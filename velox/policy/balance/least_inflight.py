"""Least in flight: the member with the fewest requests for its weight.

Knows: how to compare loads, and how to be fair among equals. Does not know: latency, or who counts.

What counts is the load that a member would have with one more: of two idle ones the heavier is chosen, and weights are
kept at any load. All are looked at: with counts that all workers share nothing is stale, so the least is the best.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from velox.policy.balance.candidates import Candidates, LearnsNothing, usable

__all__ = ["LeastInflight", "least_loaded"]


class LeastInflight(LearnsNothing):
    """The choice by load alone. Satisfies Balancer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<LeastInflight>"

    def pick(
        self,
        candidates: Candidates,
        now_s: float,
        random: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
    ) -> int | None:
        """Choose the least loaded."""
        return least_loaded(candidates, usable(candidates.weights, tried), random)


def least_loaded(candidates: Candidates, weights: Sequence[float], random: float) -> int | None:
    """Return the member with the least load by weight, any of several alike; None: all weights are 0.

    weights: instead of the candidates' own.
    """
    inf = math.inf
    loads: list[float]
    if weights and weights[0] > 0.0 and weights.count(weights[0]) == len(weights) and not any(candidates.extra):
        loads = [*candidates.inflight]  # the usual case, in a quarter of the time
    else:
        loads = [
            (inflight + extra + 1.0) / weight if weight > 0.0 else inf
            for inflight, extra, weight in zip(candidates.inflight, candidates.extra, weights, strict=True)
        ]
    least = min(loads, default=inf)
    n_alike = loads.count(least)
    if n_alike == 1:
        return loads.index(least) if least < inf else None
    if least == inf:
        return None
    member = -1
    for _ in range(int(random * n_alike) + 1):
        member = loads.index(least, member + 1)
    return member
