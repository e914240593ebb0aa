"""Consistent hashing with bounded loads: the same key to the same member, unless that has too much already.

Knows: what a key's member is, and who comes next if it is full, out, or tried. Does not know: what the key is (a user,
a header, the start of a prompt).

Who is next is decided by the ring too, so the overflow of a key goes to the same second member each time, and that of
two keys of one member to different ones. A request without a key goes to the least loaded.

D. Karger et al., Consistent Hashing and Random Trees, 1997. Points follow from the member's name alone, so they are the
same in all workers and replicas, and a member that comes or goes moves only the keys that it gets or had. Why not
Maglev: its table moves keys between members that stay. Why not rendezvous: it costs a hash of each member per choice.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Final

from velox.policy.balance.candidates import (
    FACTOR,
    SPARE,
    Balancer,
    Candidates,
    Key,
    Tried,
    least_loaded,
    load_per_weight,
    usable,
)

__all__ = ["BoundedHash", "Ring"]

_POINTS: Final = 160  # for a weight of 1; 8 % standard deviation of a member's share, as ketama has
_MOST_POINTS: Final = 65_536  # of all members: 4 MB, 20 ms to make
_PER_DIGEST: Final = 16  # points of 32 bits from one BLAKE2b


class BoundedHash(Balancer):
    """The choice by key."""

    __slots__ = ("_factor", "_ring", "_spare")

    def __init__(self, ring: Ring, *, factor: float = FACTOR, spare: float = SPARE) -> None:
        """factor, spare: how far the loads may be apart (load_per_weight()); factor at least 1."""
        self._ring: Final = ring
        self._factor: Final = factor
        self._spare: Final = spare

    def __repr__(self) -> str:
        return f"<BoundedHash {self._ring} factor={self._factor} spare={self._spare}>"

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
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
        # One member always has capacity; only rounding of fractions can hide it.
        return least_loaded(candidates, weights, random)


class Ring:
    """The ring of one group. Never changes: another group has another."""

    __slots__ = ("_owners", "_points")

    def __init__(self, names: Sequence[str], weights: Sequence[float]) -> None:
        """names: unique, by member. weights: as configured, more than 0.

        The number of points is by weight alone while all fit. Beyond that all are halved, which moves keys: powers of
        two, so that it happens seldom.
        """
        per_weight = float(_POINTS)
        while per_weight * sum(weights) > _MOST_POINTS:
            per_weight /= 2.0
        placed = sorted(
            (point, name, member)
            for member, (name, weight) in enumerate(zip(names, weights, strict=True))
            for point in _points(name, max(1, round(per_weight * weight)))
        )
        self._points: Final = [point for point, _, _ in placed]
        self._owners: Final = [member for _, _, member in placed]

    def __repr__(self) -> str:
        return f"<Ring of {len(self._points)} points>"

    def owner(self, key: bytes | memoryview) -> int:
        """Return the member that `key` belongs to."""
        return self._owners[self._place(key)]

    def following(self, key: bytes | memoryview) -> Iterator[int]:
        """Yield the owner, then the next ones on the ring, all the way round; members come many times."""
        owners = self._owners
        place = self._place(key)
        for index in range(place, len(owners)):
            yield owners[index]
        for index in range(place):
            yield owners[index]

    def _place(self, key: bytes | memoryview) -> int:
        # CRC-32 is quick and the same everywhere, but keys that differ in a digit have values that differ in few bits:
        # MurmurHash3's finalizer spreads them. Who picks keys so that they collide meets the bound of the loads.
        value = zlib.crc32(key)
        value = (value ^ (value >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
        value = (value ^ (value >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
        place = bisect(self._points, value ^ (value >> 16))
        return place if place < len(self._points) else 0


def _points(name: str, n: int) -> Iterator[int]:
    """Yield the first `n` points of a member: with less weight it keeps the first of those it had."""
    for index in range(math.ceil(n / _PER_DIGEST)):
        digest = hashlib.blake2b(f"{index} {name}".encode(), digest_size=4 * _PER_DIGEST).digest()
        for at in range(min(_PER_DIGEST, n - index * _PER_DIGEST)):
            yield int.from_bytes(digest[4 * at : 4 * at + 4], "big")
