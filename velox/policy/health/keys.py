"""The keys of one upstream: which one a request carries, and which rest or are out.

Knows: what each key has left, as replies say in x-ratelimit-*, until when it rests, whether it was refused. Does not
know: the keys themselves (they are numbered), a clock, chance, or other workers, which use the same keys.

A key is drawn by chance, in proportion to what is left of it. The best one for certain would be the same for all
workers, until one of them hears otherwise: chance keeps them apart without a word between them. What is left is the
least of its units, each as a part of what the best key has of it; it grows from reply to reply, as a token bucket of
the upstream does, and this worker's own requests are taken off at once.

After a 429 the key is in cooldown for exactly as long as the reply says. 401 and 403 are answers to the key, not faults
of the member: the first 401, or three 403 in a row (one may be about a model), eject the key, and a probe now and then
finds it back.

The fields, as OpenAI and those who follow it write them:

    x-ratelimit-limit-requests: 500          x-ratelimit-limit-tokens: 200000
    x-ratelimit-remaining-requests: 499      x-ratelimit-remaining-tokens: 199000
    x-ratelimit-reset-requests: 120ms        x-ratelimit-reset-tokens: 6m0s

A reset is the time until all of it is there again: a duration; a number of seconds; or, by others, a Unix time in
seconds or milliseconds. The same without a unit (x-ratelimit-remaining) is about requests.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from velox.heads import Headers
from velox.policy.health.breaker import Breaker, BreakerRules
from velox.policy.retries.retry import retry_after_s

__all__ = ["REFUSED", "Changes", "Keys", "cooldown_of", "quota_of"]

# A key that was revoked stays so; one whose account was paid comes back within minutes.
REFUSED: Final = BreakerRules(faults=3, hold_s=10.0, most_hold_s=300.0, calm_s=600.0, jitter=0.2)
_FIRST_COOLDOWN_S: Final = 1.0  # where a 429 does not say for how long; doubled while they go on. Arbitrary
_MAX_COOLDOWN_S: Final = 30.0
_LEAST_SHARE: Final = 1e-3  # of what the best has: what was told may be old
# A limit of a day is the longest there is; what asks for more is a mistake, and nobody would ever find out.
_LONGEST_REST_S: Final = 86_400.0
_PREFIX: Final = b"x-ratelimit-"
_DURATION: Final = re.compile(
    rb"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9})ms)?"
)
_NUMBER: Final = re.compile(rb"\d{1,15}(\.\d{1,9})?")
_UNIX_S: Final = 1e9  # a number above is a time of day, not a duration: 2001 on one side, 31 years on the other
_UNIX_MS: Final = 1e12


@dataclass(slots=True)
class Changes:
    """How many changes of health there were in one worker: whoever keeps what it found looks again after one."""

    n: int = 0


@dataclass(slots=True)
class UnitQuota:
    """What a reply says of one unit. None: nothing. reset_s: seconds until all is there again."""

    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """What a reply says of a key."""

    requests: UnitQuota
    tokens: UnitQuota


NO_QUOTA: Final = Quota(UnitQuota(), UnitQuota())


class _Unit:
    """What is left of one unit of one key."""

    __slots__ = ("_quota", "_since_s", "_used")

    def __init__(self) -> None:
        self._quota = UnitQuota()
        self._since_s = 0.0
        self._used = 0.0  # by this worker since

    def update(self, quota: UnitQuota, now_s: float) -> None:
        if quota.remaining is not None:
            self._quota = quota
            self._since_s = now_s
            self._used = 0.0

    def use(self, n: float) -> None:
        self._used += n

    def left(self, now_s: float) -> float | None:
        """Return what is left now; None if nothing is known of it."""
        quota = self._quota
        if quota.remaining is None:
            return None
        left = quota.remaining - self._used
        if quota.reset_s is not None:
            part = 1.0 if quota.reset_s <= 0.0 else (now_s - self._since_s) / quota.reset_s
            if quota.limit is None:
                return None if part >= 1.0 else max(0.0, left)
            left = min(quota.limit, left + max(0.0, quota.limit - quota.remaining) * part)
        return max(0.0, left)


class _Key:
    __slots__ = ("breaker", "cooldown_until_s", "excused", "n_refused", "requests", "tokens")

    def __init__(self) -> None:
        self.breaker: Final = Breaker(REFUSED)
        self.cooldown_until_s = 0.0
        self.n_refused = 0  # 429 in a row that do not say for how long
        self.excused = (math.inf, 0)  # when the attempt began whose good head ended them, and how many there were
        self.requests: Final = _Unit()
        self.tokens: Final = _Unit()

    def is_usable(self, now_s: float) -> bool:
        return now_s >= self.cooldown_until_s and self.breaker.allows(now_s)


class Keys:
    """The keys of one upstream in one worker, from 0. All times are monotonic seconds and never decrease."""

    __slots__ = ("_keys", "_on_out", "changes")

    def __init__(
        self, n: int, *, changes: Changes | None = None, on_out: Callable[[int, bool], None] | None = None
    ) -> None:
        """n: how many there are, 1 or more; an upstream without keys has no Keys. changes: where refusals are noted.

        on_out: told which key was put out (True), or is back (False).
        """
        self.changes: Final = changes or Changes()
        self._on_out: Final = on_out
        assert n > 0, "an upstream without keys has no Keys"
        self._keys: Final = [_Key() for _ in range(n)]

    def __repr__(self) -> str:
        return f"<Keys {len(self._keys)}, {sum(key.breaker.is_open for key in self._keys)} out>"

    def keep(self, before: Keys, numbers: Mapping[int, int]) -> None:
        """Go on with the state of keys that were there before. numbers: there, by those here.

        Both have one state: what attempts under way hear of such a key still counts.
        """
        for key, number in numbers.items():
            self._keys[key] = before._keys[number]

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

    def sticky(self, session: bytes, now_s: float, tried: Collection[int] = ()) -> int | None:
        """Return the same key for all requests of a session, as long as that may be used; None: none may, or is left.

        In all processes alike. While a key is away its sessions are spread over the others, and theirs stay.
        """
        usable = [n for n, key in enumerate(self._keys) if n not in tried and key.is_usable(now_s)]
        return max(usable, key=lambda n: hashlib.blake2b(b"%d" % n, key=_seed(session)).digest(), default=None)

    def is_usable_at(self, key: int, now_s: float) -> bool:
        """True while this one may be used."""
        return self._keys[key].is_usable(now_s)

    def is_usable(self, now_s: float) -> bool:
        """True while one of them may be used."""
        return any(key.is_usable(now_s) for key in self._keys)

    def is_sure(self, now_s: float) -> bool:
        """True while one of them may be used until it is refused, however long that is; a refusal is noted."""
        return any(now_s >= key.cooldown_until_s and not key.breaker.is_open for key in self._keys)

    def cooldown_left_s(self, now_s: float) -> float | None:
        """Return how long it is until the first cooldown of a key ends; None if no key is in one."""
        waits = [
            key.cooldown_until_s - now_s
            for key in self._keys
            if key.cooldown_until_s > now_s and not key.breaker.is_open
        ]
        return min(waits, default=None)

    def n_out(self) -> int:
        """Count those that were refused."""
        return sum(key.breaker.is_open for key in self._keys)

    def n_resting(self, now_s: float) -> int:
        """Count those that rest."""
        return sum(key.cooldown_until_s > now_s for key in self._keys)

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
        was_out = found.breaker.is_open
        if status == 429:
            found.breaker.gave_up(began_s)
            cooldown_s = cooldown_of(headers, unix_s)
            if began_s == found.excused[0]:
                found.n_refused = max(found.n_refused, found.excused[1])  # refused inside that reply after all
            if cooldown_s is None:
                cooldown_s = 0.0
                if began_s >= found.cooldown_until_s:  # those that were under way together are one refusal
                    cooldown_s = min(_MAX_COOLDOWN_S, _FIRST_COOLDOWN_S * 2.0**found.n_refused) * (0.8 + 0.4 * random)
                    found.n_refused += 1
            found.cooldown_until_s = max(found.cooldown_until_s, now_s + cooldown_s)
            self.changes.n += 1
        elif status in (401, 403):
            self.changes.n += 1
            found.breaker.failed(began_s, now_s, random=random)
            if status == 401:
                found.breaker.open(now_s, random=random)
        elif status >= 500:
            found.breaker.gave_up(began_s)
        else:
            if found.n_refused:
                found.excused, found.n_refused = (began_s, found.n_refused), 0
            found.breaker.succeeded(began_s)
        if found.breaker.is_open != was_out and self._on_out is not None:
            self._on_out(key, not was_out)
        if len(self._keys) > 1:
            quota = quota_of(headers, unix_s)
            found.requests.update(quota.requests, now_s)
            found.tokens.update(quota.tokens, now_s)

    def gave_up(self, key: int, began_s: float) -> None:
        """An attempt with `key` ended without a reply."""
        self._keys[key].breaker.gave_up(began_s)

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


def quota_of(headers: Headers, unix_s: float) -> Quota:
    """Read the quota from a reply. Of a field that comes twice the last counts. unix_s: the time of day."""
    found: Quota | None = None
    for name, value in headers:
        if not name.startswith(_PREFIX):
            continue
        what, _, unit = name[len(_PREFIX) :].partition(b"-")
        if found is None:
            found = Quota(UnitQuota(), UnitQuota())
        if unit in (b"requests", b""):
            _set(found.requests, what, value.strip(), unix_s)
        elif unit == b"tokens":
            _set(found.tokens, what, value.strip(), unix_s)
    return NO_QUOTA if found is None else found


def cooldown_of(headers: Headers, unix_s: float) -> float | None:
    """Return how long a refused key is to rest; None if the reply does not say.

    Retry-After counts first. Else the units that are used up say when they are back; the others do not matter. If none
    is used up (the request asked for more tokens than are left), then the first of them that is whole again.
    """
    asked_s = retry_after_s(headers, unix_s)
    if asked_s is None:
        quota = quota_of(headers, unix_s)
        units = [unit for unit in (quota.requests, quota.tokens) if unit.reset_s is not None]
        used_up = [unit.reset_s or 0.0 for unit in units if unit.remaining is not None and unit.remaining < 1.0]
        if used_up:
            asked_s = max(used_up)
        elif units:
            asked_s = min(unit.reset_s or 0.0 for unit in units)
    return None if asked_s is None else min(asked_s, _LONGEST_REST_S)


def _set(unit: UnitQuota, what: bytes, value: bytes, unix_s: float) -> None:
    if what == b"reset":
        unit.reset_s = _seconds(value, unix_s)
    elif _NUMBER.fullmatch(value):
        if what == b"remaining":
            unit.remaining = float(value)
        elif what == b"limit":
            unit.limit = float(value)


def _seconds(value: bytes, unix_s: float) -> float | None:
    """Read a reset in any of its forms; None if it is none."""
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _UNIX_MS:
            number /= 1000.0
        return max(0.0, number - unix_s) if number >= _UNIX_S else number
    found = _DURATION.fullmatch(value)
    if found is None or not value:
        return None
    days, hours, minutes, seconds, ms = (float(part or 0.0) for part in found.groups())
    return days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds + ms / 1000.0


def _seed(session: bytes) -> bytes:
    """Return a session's name in the length that a hash takes as its key."""
    return hashlib.blake2b(session, digest_size=16).digest()
