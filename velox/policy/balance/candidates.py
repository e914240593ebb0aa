"""What a choice among members is made from, what every way to choose has in common, and the simplest: least in flight.

Knows: the facts a choice may use, what a balancer is asked, how to compare loads, how much of all the load one member
may have. Does not know: why a member has its weight (configuration, health, slow start, scraped load), where requests
in flight are counted, latency, a clock, or chance.

A group's members are numbered from 0, in the order of the configuration. Where none may be chosen the caller decides
(panic: use all); it then passes other weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

__all__ = [
    "FACTOR",
    "SPARE",
    "Balancer",
    "Candidates",
    "Key",
    "LeastInflight",
    "Tried",
    "least_loaded",
    "load_per_weight",
    "usable",
]

FACTOR: Final = 1.25  # as in the paper's examples and HAProxy's advice (hash-balance-factor 125 to 200)
SPARE: Final = 8.0  # requests that any member serves well side by side; arbitrary

# What requests are kept together by, and the members that a request must not go to (again).
Key: TypeAlias = bytes | memoryview
Tried: TypeAlias = Collection[int]


@dataclass(slots=True)
class Candidates:
    """The members of a group now, each sequence by member. The lists may be changed in place between two choices.

    weights: configured weight times all that lowers it (slow start, a cache that is full); 0 or less: not to be chosen.
    inflight: requests of all workers that have begun and not ended. extra: load on top of it that came another way
    (scraped.py), in requests; empty: none. is_even: all weights are the same, and more than 0; False where that is not
    known.
    """

    weights: Sequence[float]
    inflight: Sequence[int]
    extra: Sequence[float] = ()
    is_even: bool = False

    def __post_init__(self) -> None:
        if not self.extra:
            self.extra = (0.0,) * len(self.weights)


class Balancer:
    """A way to choose. One per group and worker; it is never awaited and never raises. Most learn nothing.

    learns: whether it hears of attempts; one that does not is only asked to choose.
    """

    learns: ClassVar[bool] = False

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
    ) -> int | None:
        """Choose a member; None where none may be.

        now_s: monotonic. random: in [0, 1). key: what requests are kept together by; empty: nothing. tried: members
        that this request must not go to (again).
        """
        raise NotImplementedError

    def began(self, member: int, now_s: float) -> None:
        """An attempt goes to `member`. Its end is reported by exactly one of answered(), failed() and gave_up()."""

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        """The first byte of a good reply came after `waited_s`. The end of the reply is not reported."""

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt ended without one after `waited_s`, by the member's fault."""

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt was ended from this side before one came, after `waited_s`: the client left, a hedge lost."""


def usable(weights: Sequence[float], tried: Collection[int]) -> Sequence[float]:
    """Return the weights with those of `tried` set to 0."""
    if not tried:
        return weights
    return [0.0 if member in tried else weight for member, weight in enumerate(weights)]


class LeastInflight(Balancer):
    """The choice by load alone: the fewest requests for its weight."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<LeastInflight>"

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
    ) -> int | None:
        """Choose the least loaded."""
        return least_loaded(candidates, usable(candidates.weights, tried), random)


def least_loaded(candidates: Candidates, weights: Sequence[float], random: float) -> int | None:
    """Return the member with the least load by weight, any of several alike; None: all weights are 0.

    What counts is the load that a member would have with one more: of two idle ones the heavier is chosen, and weights
    are kept at any load. All are looked at: with counts that all workers share nothing is stale, so the least is best.
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


def load_per_weight(candidates: Candidates, weights: Sequence[float], factor: float, spare: float) -> float:
    """Return the bound of a load for a weight of 1, before rounding up; 0.0 if no member may be chosen.

        load of member i, with this request  <=  ceil(max(factor * all, spare * n) * weight of i / all weights)

    all: the load of all members that may be chosen, with this request. With a factor over 1 some member is always below
    its bound. Source: V. Mirrokni, M. Thorup, M. Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016. `spare` is
    ours: with few requests in flight the bound would be one or two, and a caller's second request would lose the cache
    of the first, on a server that has room for dozens.

    A member has room if its load without this request is less than its own bound: for whole numbers the same as above.
    """
    total: float
    weight: float
    if min(weights, default=0.0) > 0.0:  # no loop in Python while all are well
        n = len(weights)
        total = float(sum(candidates.inflight)) + float(sum(candidates.extra))
        weight = sum(weights)
    else:
        n = 0
        total = weight = 0.0
        for own, inflight, extra in zip(weights, candidates.inflight, candidates.extra, strict=True):
            if own > 0.0:
                n += 1
                total += inflight + extra
                weight += own
    return max(factor * (total + 1.0), spare * n) / weight if n else 0.0
