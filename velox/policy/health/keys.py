"""The keys of one upstream: which one a request carries, and which rest or are out.

Knows: what each key has left, as the upstream told, until when it rests, whether it was refused. Does not know: the
keys themselves (they are numbered), a clock, chance, or other workers, which use the same keys.

A key is drawn by chance, in proportion to what is left of it. The best one for certain would be the same for all
workers, until one of them is told better: chance keeps them apart and needs no word between them. What is left is the
least of its units, each as a part of what the best key has of it; it grows from reply to reply, as a token bucket of
the upstream does, and this worker's own requests are taken off at once.

A 429 rests the key for exactly as long as it says. 401 and 403 are answers to the key, not faults of the member: the
first 401, or three 403 in a row (one may be about a model), put the key out, and a probe now and then finds it back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from velox.policy.breaker import Breaker, BreakerRules
from velox.policy.health.changes import Changes
from velox.policy.health.told import Told, UnitTold, quota_told, rest_told_s
from velox.types import Headers

__all__ = ["REFUSED", "Keys"]

# A key that was revoked stays so; one whose account was paid comes back within minutes.
REFUSED: Final = BreakerRules(faults=3, hold_s=10.0, most_hold_s=300.0, calm_s=600.0, jitter=0.2)
_FIRST_REST_S: Final = 1.0  # where a 429 does not say for how long; doubled while they go on. Arbitrary
_MOST_REST_S: Final = 30.0
_LEAST_SHARE: Final = 1e-3  # of what the best has: what was told may be old


class _Unit:
    """What is left of one unit of one key."""

    __slots__ = ("_since_s", "_told", "_used")

    def __init__(self) -> None:
        self._told = UnitTold()
        self._since_s = 0.0
        self._used = 0.0  # by this worker since

    def tell(self, told: UnitTold, now_s: float) -> None:
        if told.remaining is not None:
            self._told = told
            self._since_s = now_s
            self._used = 0.0

    def use(self, n: float) -> None:
        self._used += n

    def left(self, now_s: float) -> float | None:
        """Return what is left now; None if nothing is known of it."""
        told = self._told
        if told.remaining is None:
            return None
        left = told.remaining - self._used
        if told.reset_s is not None:
            part = 1.0 if told.reset_s <= 0.0 else (now_s - self._since_s) / told.reset_s
            if told.limit is None:
                return None if part >= 1.0 else max(0.0, left)
            left = min(told.limit, left + max(0.0, told.limit - told.remaining) * part)
        return max(0.0, left)


class _Key:
    __slots__ = ("breaker", "n_refused", "requests", "rests_s", "tokens")

    def __init__(self) -> None:
        self.breaker: Final = Breaker(REFUSED)
        self.rests_s = 0.0  # until then
        self.n_refused = 0  # 429 in a row that do not say for how long
        self.requests: Final = _Unit()
        self.tokens: Final = _Unit()

    def is_usable(self, now_s: float) -> bool:
        return now_s >= self.rests_s and self.breaker.allows(now_s)


class Keys:
    """The keys of one upstream in one worker, from 0. All times are monotonic seconds and never decrease."""

    __slots__ = ("_keys", "changes")

    def __init__(self, n: int, *, changes: Changes | None = None) -> None:
        """n: how many there are, 1 or more; an upstream without keys has no Keys. changes: where refusals are noted."""
        self.changes: Final = changes or Changes()
        assert n > 0, "an upstream without keys has no Keys"
        self._keys: Final = tuple(_Key() for _ in range(n))

    def __repr__(self) -> str:
        return f"<Keys {len(self._keys)}, {sum(key.breaker.is_open for key in self._keys)} out>"

    def pick(self, now_s: float, random: float, tried: Collection[int] = ()) -> int | None:
        """Return the key for a request; None: all rest, are out, or were tried. random: in [0, 1)."""
        usable = [n for n, key in enumerate(self._keys) if n not in tried and key.is_usable(now_s)]
        if len(usable) < 2:
            return usable[0] if usable else None
        shares = self._shares(usable, now_s)
        at = random * sum(shares)
        for n, share in zip(usable, shares, strict=True):
            at -= share
            if at < 0.0:
                return n
        return usable[-1]

    def is_usable(self, now_s: float) -> bool:
        """True while one of them may be used."""
        return any(key.is_usable(now_s) for key in self._keys)

    def is_sure(self, now_s: float) -> bool:
        """True while one of them may be used until it is refused, however long that is; a refusal is noted."""
        return any(now_s >= key.rests_s and not key.breaker.is_open for key in self._keys)

    def rests_s(self, now_s: float) -> float | None:
        """Return how long it is until the first that rests is back; None if none rests."""
        waits = [key.rests_s - now_s for key in self._keys if key.rests_s > now_s and not key.breaker.is_open]
        return min(waits, default=None)

    def n_out(self) -> int:
        """Count those that were refused."""
        return sum(key.breaker.is_open for key in self._keys)

    def n_resting(self, now_s: float) -> int:
        """Count those that rest."""
        return sum(key.rests_s > now_s for key in self._keys)

    def begin(self, key: int, now_s: float, tokens: float = 0.0) -> None:
        """An attempt carries `key`. tokens: it will use about so many."""
        found = self._keys[key]
        found.breaker.begin(now_s)
        found.requests.use(1.0)
        found.tokens.use(tokens)

    def answered(
        self,
        key: int,
        status: int,
        headers: Headers,
        began_s: float,
        now_s: float,
        unix_s: float,
        *,
        random: float = 0.5,
    ) -> None:
        """A reply to an attempt with `key`.

        began_s: as given to begin(). unix_s: the time of day. random: in [0, 1).
        """
        found = self._keys[key]
        if status == 429:
            found.breaker.gave_up(began_s)
            told_s = rest_told_s(headers, unix_s)
            if told_s is None:
                told_s = 0.0
                if began_s >= found.rests_s:  # those that were under way together are one refusal
                    told_s = min(_MOST_REST_S, _FIRST_REST_S * 2.0**found.n_refused) * (0.8 + 0.4 * random)
                    found.n_refused += 1
            found.rests_s = max(found.rests_s, now_s + told_s)
            self.changes.n += 1
        elif status in (401, 403):
            self.changes.n += 1
            found.breaker.failed(began_s, now_s, random=random)
            if status == 401:
                found.breaker.open(now_s, random=random)
        elif status >= 500:
            found.breaker.gave_up(began_s)
        else:
            found.n_refused = 0
            found.breaker.succeeded(began_s)
        if len(self._keys) > 1:
            self._tell(found, quota_told(headers, unix_s), now_s)

    def gave_up(self, key: int, began_s: float) -> None:
        """An attempt with `key` ended without a reply."""
        self._keys[key].breaker.gave_up(began_s)

    def _tell(self, key: _Key, told: Told, now_s: float) -> None:
        key.requests.tell(told.requests, now_s)
        key.tokens.tell(told.tokens, now_s)

    def _shares(self, usable: Collection[int], now_s: float) -> list[float]:
        """Return what each has left, as a part of what the best has. Of what nothing is known all have the most."""
        shares = [1.0] * len(usable)
        for lefts in (
            [self._keys[n].requests.left(now_s) for n in usable],
            [self._keys[n].tokens.left(now_s) for n in usable],
        ):
            most = max((left for left in lefts if left is not None), default=0.0)
            if most <= 0.0:
                continue
            for at, left in enumerate(lefts):
                if left is not None:
                    shares[at] = min(shares[at], max(_LEAST_SHARE, left / most))
        return shares
