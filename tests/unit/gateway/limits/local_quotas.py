"""Quotas and slots in plain Python, for tests of who takes what of them and when: the table of one process.

They answer as those in shared memory do; test_limiter.py plays the same story to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.policy.limits.quota import Quota
from velox.policy.limits.token_bucket import BucketRate, ask, full_in_ns, outlook, remaining
from velox.shm.quotas import QuotaGroup

__all__ = ["LocalQuota", "LocalSlots", "LocalTable"]


class LocalQuota:
    """A velox.policy.limits.quota.Quota. waiting: permits that were taken ahead of their time, and not used."""

    def __init__(self, rate: BucketRate) -> None:
        self.rate: Final = rate
        self.tat = 0
        self.waiting = 0
        self.races = 0  # so many times take() finds that somebody was faster, though ask() had said yes
        self.is_broken = False  # take() has a bug

    def ask(self, n: int, now_ns: int) -> int:
        return ask(self.rate, self.tat, now_ns, n)

    def take(self, n: int, now_ns: int) -> int:
        if self.is_broken:
            raise ZeroDivisionError
        if self.races:
            self.races -= 1
            return -self.rate.interval_ns
        answer = self.ask(n, now_ns)
        if answer >= 0:
            self.tat = max(self.tat, now_ns) + n * self.rate.interval_ns
            self.waiting += n if answer else 0
        return answer

    def used_wait(self, n: int) -> None:
        self.waiting -= n
        assert self.waiting >= 0

    def give_back(self, n: int, *, waiting: bool) -> None:
        self.waiting -= n if waiting else 0
        assert self.waiting >= 0
        self.tat = max(0, self.tat - n * self.rate.interval_ns)

    def charge(self, n: int) -> None:
        self.tat += n * self.rate.interval_ns

    def remaining(self, now_ns: int) -> int:
        return remaining(self.rate, self.tat, now_ns)

    def full_in_ns(self, now_ns: int) -> int:
        return full_in_ns(self.rate, self.tat, now_ns)

    def outlook(self, now_ns: int) -> tuple[int, int]:
        return outlook(self.rate, self.tat, now_ns)


class LocalSlots:
    """A velox.policy.limits.quota.Slots."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.n = 0
        self.races = 0

    def take(self) -> bool:
        if self.races:
            self.races -= 1
            return False
        if self.n >= self.limit:
            return False
        self.n += 1
        return True

    def release(self) -> None:
        self.n -= 1
        assert self.n >= 0

    def in_use(self) -> int:
        return self.n


class LocalTable:
    """A limiter.QuotaTable. quotas, slots_of: what was made, by the parts of its tag, joined with "/"."""

    def __init__(self) -> None:
        self.quotas: Final[dict[str, LocalQuota]] = {}
        self.slots_of: Final[dict[str, LocalSlots]] = {}
        self._names: Final[list[str]] = []

    def tag(self, *parts: bytes) -> int:
        name = "/".join(part.decode() for part in parts)
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def quota(self, tag: int, rate: BucketRate, *, open_ended: bool = False, others: int = 0) -> LocalQuota:
        name = self._names[tag]
        known = self.quotas.get(name)
        if known is None or known.rate != rate:
            made = self.quotas[name] = LocalQuota(rate)
            made.tat = 0 if known is None else known.tat  # a row knows no rate
        return self.quotas[name]

    def group(self, requests: Sequence[Quota], tokens: Sequence[Quota]) -> QuotaGroup | None:
        return None

    def slots(self, tag: int, limit: int, *, open_ended: bool = False, others: int = 0) -> LocalSlots:
        return self.slots_of.setdefault(self._names[tag], LocalSlots(limit))
