"""Consistent hashing with bounded loads: the same key to the same member, unless that has too much already.

Knows: what a key's member is, and who comes next if it is full, out, or tried. Does not know: what the key is (a user,
a header, the start of a prompt), or how the ring is made.

Who is next is decided by the ring too, so the overflow of a key goes to the same second member each time, and that of
two keys of one member to different ones. A request without a key goes to the least loaded.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from velox.policy.balance.bounds import FACTOR, SPARE, load_per_weight
from velox.policy.balance.candidates import Candidates, LearnsNothing, usable
from velox.policy.balance.least_inflight import least_loaded
from velox.policy.balance.ring import Ring

__all__ = ["BoundedHash"]


class BoundedHash(LearnsNothing):
    """The choice by key. Satisfies Balancer."""

    __slots__ = ("_factor", "_ring", "_spare")

    def __init__(self, ring: Ring, *, factor: float = FACTOR, spare: float = SPARE) -> None:
        """factor, spare: how far the loads may be apart (bounds.py); factor at least 1."""
        self._ring: Final = ring
        self._factor: Final = factor
        self._spare: Final = spare

    def __repr__(self) -> str:
        return f"<BoundedHash {self._ring} factor={self._factor} spare={self._spare}>"

    def pick(
        self,
        candidates: Candidates,
        now_s: float,
        random: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
    ) -> int | None:
        """Choose the first member from the key's place on that may be chosen and has room."""
        weights = usable(candidates.weights, tried)
        if not key:
            return least_loaded(candidates, weights, random)
        per_weight = load_per_weight(candidates, weights, self._factor, self._spare)
        if not per_weight:
            return None
        inflight = candidates.inflight
        extra = candidates.extra
        owner = self._ring.owner(key)
        if inflight[owner] + extra[owner] < math.ceil(per_weight * weights[owner]):
            return owner
        full = {owner}
        for member in self._ring.following(key):
            if member not in full:
                if inflight[member] + extra[member] < math.ceil(per_weight * weights[member]):
                    return member
                full.add(member)
                if len(full) == len(weights):
                    break
        # Somebody always has room; only rounding of fractions can hide it.
        return least_loaded(candidates, weights, random)
