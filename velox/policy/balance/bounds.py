"""How much of all the load one member may have, where requests are sent to where they were before.

Knows: the bound. Does not know: who would get the request without it.

    load of member i, with this request  <=  ceil(max(factor * all, spare * n) * weight of i / all weights)

all: the load of all members that may be chosen, with this request. With a factor over 1 some member is always below its
bound. Source: V. Mirrokni, M. Thorup, M. Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016. `spare` is ours:
with few requests in flight the bound would be one or two, and a caller's second request would lose the cache of the
first, on a server that has room for dozens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.policy.balance.candidates import Candidates

__all__ = ["FACTOR", "SPARE", "load_per_weight"]

FACTOR: Final = 1.25  # as in the paper's examples and HAProxy's advice (hash-balance-factor 125 to 200)
SPARE: Final = 8.0  # requests that any member serves well side by side; arbitrary


def load_per_weight(candidates: Candidates, weights: Sequence[float], factor: float, spare: float) -> float:
    """Return the bound for a weight of 1, before rounding up; 0.0 if no member may be chosen.

    A member has room if its load without this request is less than its own bound: for whole numbers the same as above.
    """
    if min(weights, default=0.0) > 0.0:  # no loop in Python while all are well
        n = len(weights)
        total = sum(candidates.inflight) + sum(candidates.extra)
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
