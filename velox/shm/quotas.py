"""The quotas and slots that all workers share: one row of the quota table each.

Knows: how a row's cells move while other workers move them, and in which order. Does not know: the arithmetic
(policy.limits.token_bucket), how a row is found (quota_table.py), or what a permit is for.

A worker may be killed between any two steps, so each operation has an order in which a permit can be lost but the limit
can't. When permits are taken, the TAT moves first and the note of those that wait follows; when they are given back,
the other way round. What is lost that way delays one bucket by the permits of one request, once. A slot is noted
before it is looked whether there was one, and what a dead worker had noted is taken away (quota_table.py): slots are
never lost.

Never above burst + elapsed / interval, counted from the first use, whatever is given back or charged later: the TAT is
always at least the first use plus one interval for each permit that is out (policy.limits.token_bucket says what that
means for shorter windows). A quota that found no row, because all are taken, is counted by each worker for itself: then
it may give as much as there are workers, and nobody is refused for want of a row (quota_table.py, OVERFLOW).

RATES. A TAT is a time, so after a reload it stays what the old rate has made of it: what was used of 6 a minute would
be a minute's worth of 600, and more than its bucket holds. So it is brought down to what an empty bucket of the new
rate has, when a worker first takes by that rate, and when it would refuse. Debts are as far ahead, and must stay: the
row's RATE says whether it is the same rate as before. Workers take over a reload one after the other, and meanwhile
some still count by the old rate: for _MIXED_S after a change no TAT stays beyond an empty bucket of the new one. A
quota whose mark in RATE was replaced is of the old rate, and brings nothing down. Killed anywhere, a worker leaves a
TAT that is too far ahead for the next one to bring down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from atomicshm import AtomicU64, fence

from velox.policy.limits.quota import Quota
from velox.policy.limits.token_bucket import NEVER, BucketRate, ask, full_in_ns, outlook, remaining
from velox.shm.quota_table import LEAVING, QuotaMemory, Row, RowTable, Window

__all__ = ["QuotaGroup", "QuotaTable", "SharedQuota", "SharedSlots"]

# No debt goes further than this, so that no sum of them wraps around.
_LAST_NS: Final = 1 << 62
# Two workers that try for the last slot at the same moment see each other, and both stand back; so each tries again.
_TRIES: Final = 3
# RATE: a mark of the rate, then the second in which it changed; 0: not while it mattered.
_SINCE_BITS: Final = 28
_SINCE: Final = (1 << _SINCE_BITS) - 1
_MARK: Final = (1 << 36) - 1
_SPREAD: Final = 0x9E3779B1  # odd, so that few rates have one mark
# All workers have taken over a reload long before.
_MIXED_S: Final = 60
_NS_PER_S: Final = 1_000_000_000


class QuotaTable:
    """One worker's view of all quotas and slots. block: of this process, as in Segment; one QuotaTable a process."""

    __slots__ = ("_key", "_rows")

    def __init__(self, memory: QuotaMemory, block: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._rows: Final = RowTable(memory, block, now_ns)
        self._key: Final = memory.key

    def __repr__(self) -> str:
        return f"<QuotaTable {self._rows!r}>"

    @property
    def rows(self) -> RowTable:
        """The rows themselves: for what keeps more in a row than a bucket."""
        return self._rows

    def tag(self, *parts: bytes) -> int:
        """Return the name of a row: a keyed digest of `parts`, the same in all workers of this gateway."""
        digest = blake2b(key=self._key, digest_size=8)
        for part in parts:
            digest.update(len(part).to_bytes(4, "big"))
            digest.update(part)
        return int.from_bytes(digest.digest(), "big") & ~LEAVING or 1

    def quota(self, tag: int, rate: BucketRate, *, open_ended: bool = False, others: int = 0) -> SharedQuota:
        """Return the quota named `tag`. open_ended: a client's words (a model's name) went into the tag.

        others: the tag that one caller's models beyond its share have together; 0: there are no other callers.
        """
        return SharedQuota(self._rows, self._rows.window(tag, open_ended=open_ended, others=others), rate)

    def group(self, requests: Sequence[Quota], tokens: Sequence[Quota]) -> QuotaGroup | None:
        """Return quotas as a group, of which each request takes one permit, and each of its tokens one of `tokens`.

        None: some of them are kept elsewhere, or have no limit.
        """
        found = [quota for quota in (*requests, *tokens) if isinstance(quota, SharedQuota) and quota.rate.interval_ns]
        is_whole = len(found) == len(requests) + len(tokens)
        return QuotaGroup(self._rows, tuple(found), len(requests)) if found and is_whole else None

    def slots(self, tag: int, limit: int, *, open_ended: bool = False, others: int = 0) -> SharedSlots:
        """Return the slots named `tag`; a tag of their own, which no quota has. The rest as for quota()."""
        return SharedSlots(self._rows, self._rows.window(tag, open_ended=open_ended, others=others), limit)


class SharedQuota:
    """A velox.policy.limits.quota.Quota. Several may have one tag."""

    __slots__ = ("_burst_ns", "_empty_ns", "_has_marked", "_last_ns", "_row", "_rows", "_tag", "_window", "rate")

    def __init__(self, rows: RowTable, window: Window, rate: BucketRate) -> None:
        self._rows: Final = rows
        self._window: Final = window
        self._tag: Final = window.tag
        self.rate: Final = rate  # that it was asked for with
        # How far ahead the TAT may come without a wait, and by taking alone.
        self._burst_ns: Final = rate.burst * rate.interval_ns
        self._empty_ns: Final = self._burst_ns + rate.max_wait_ns
        self._row: Row | None = None  # where it was found last; an overflow row's tag is 0
        self._has_marked = False  # that row is known to be moved by this rate
        self._last_ns = 0  # the time of the last call

    def __repr__(self) -> str:
        return f"<SharedQuota {self._row!r}>"

    def ask(self, n: int, now_ns: int) -> int:
        """Return what take() would. No row is claimed for it."""
        rate = self.rate
        if not rate.interval_ns:
            return 0
        tat, may_wait = self._look()
        answer = ask(rate, tat, now_ns, n)
        if tat - now_ns > self._empty_ns and answer != NEVER:
            answer = ask(rate, self._bring_down(tat, now_ns), now_ns, n)
        return answer if may_wait or answer <= 0 else -answer

    def take(self, n: int, now_ns: int) -> int:
        """Take `n` permits, all or none. In an overflow row nothing waits: what had to is refused."""
        rate = self.rate
        if not rate.interval_ns:
            return 0
        if n > rate.burst:
            return NEVER
        self._last_ns = now_ns
        rows = self._rows
        rows.enter()
        try:
            row = self._row
            if row is None or row.tag.load() != self._tag:
                row = self._row = rows.claim(self._window)
                self._has_marked = False
                self._settle(row, now_ns)
            cost_ns, tat = n * rate.interval_ns, row.tat
            seen = tat.load()
            while True:
                wait_ns = 0
                if seen > now_ns:  # else the bucket is full
                    wait_ns = ask(rate, seen, now_ns, n)
                    if wait_ns < 0:
                        if seen - now_ns > self._empty_ns and (left := self._settle(row, now_ns)) < seen:
                            seen = left
                            continue
                        return wait_ns
                    if wait_ns and row.is_overflow:
                        return -wait_ns
                found = tat.cas(seen, (seen if seen > now_ns else now_ns) + cost_ns)
                if found == seen:
                    break
                seen = found
            # Killed here: permits that would have waited are lost.
            if wait_ns:
                row.waiting[0] += cost_ns
            return wait_ns
        finally:
            rows.leave()

    def used_wait(self, n: int) -> None:
        """Note that `n` permits that had to wait are about to be used."""
        # No operation: a row with permits that wait is not freed.
        assert self._row is not None, "permits wait in the row that they were taken from"
        self._row.waiting[0] -= n * self.rate.interval_ns

    def give_back(self, n: int, *, waiting: bool) -> None:
        """Give back `n` permits that were not used."""
        n_ns = n * self.rate.interval_ns
        rows = self._rows
        rows.enter()
        try:
            row = self._row
            if row is None or row.tag.load() != self._tag:
                row = self._row = rows.find(self._window)
            if row is None:
                assert not waiting, "a row with permits that wait is not freed, and in an overflow row none waits"
                row = rows.overflown(self._window)
                if row is None:
                    return  # it is full
            if waiting:
                row.waiting[0] -= n_ns
            # Killed here: permits are lost.
            _move(row.tat, -n_ns, 0)
        finally:
            rows.leave()

    def charge(self, n: int) -> None:
        """Take `n` permits that were used already, as if they had been taken with the last ones."""
        n_ns = n * self.rate.interval_ns
        if not n_ns:
            return
        rows = self._rows
        rows.enter()
        try:
            row, least_ns = self._row, 0
            if row is None or row.tag.load() != self._tag:
                row = self._row = rows.claim(self._window)
                least_ns = self._last_ns  # a new row knows nothing of when they were taken
                self._has_marked = False
                if row.tat.load() <= least_ns:  # else now may be long after
                    self._settle(row, least_ns)
            _move(row.tat, n_ns, least_ns)
        finally:
            rows.leave()

    def _bring_down(self, tat: int, now_ns: int) -> int:
        """Return the state of the bucket, which was `tat`, after _settle()."""
        rows = self._rows
        rows.enter()
        try:
            row = self._row
            if row is None or row.tag.load() != self._tag:
                return tat
            return self._settle(row, now_ns)
        finally:
            rows.leave()

    def _settle(self, row: Row, now_ns: int) -> int:
        """Return the state of the bucket, brought down if another rate has moved it. Inside an operation."""
        tat = row.tat
        seen = tat.load()
        if row.is_overflow:
            return seen
        cell = self._rows.memory.rate(row.index)
        mark, now_s = (self.rate.interval_ns + self.rate.burst * _SPREAD) & _MARK, now_ns // _NS_PER_S & _SINCE
        known = cell.load()
        since_s = known & _SINCE
        if known >> _SINCE_BITS != mark:
            if self._has_marked:
                return seen  # a newer rate counts: what it has used is not given back
            # A row that is new to its tag has the rate of another one: its bucket is full.
            since_s = now_s if seen > now_ns else 0
            cell.store(mark << _SINCE_BITS | since_s)
        self._has_marked = True
        if not since_s or now_s - since_s > _MIXED_S:
            return seen
        most = now_ns + self._empty_ns
        while seen > most and (found := tat.cas(seen, most)) != seen:
            seen = found
        return min(seen, most)

    def remaining(self, now_ns: int) -> int:
        """Return how many permits could be taken without a wait."""
        return remaining(self.rate, self._look()[0], now_ns)

    def full_in_ns(self, now_ns: int) -> int:
        """Return the time until the bucket is full again."""
        return full_in_ns(self.rate, self._look()[0], now_ns)

    def outlook(self, now_ns: int) -> tuple[int, int]:
        """Return both, as they are at one moment. Each reply to a limited caller asks."""
        rate, row = self.rate, self._row
        if row is None:
            return outlook(rate, self._look()[0], now_ns)
        tat = row.tat.load()
        if row.tag.load() & ~LEAVING != self._tag:  # after the TAT, as in _look()
            tat = self._look()[0]
        if tat <= now_ns:
            return rate.burst, 0  # the bucket is full
        return outlook(rate, tat, now_ns)

    def _look(self) -> tuple[int, bool]:
        """Return the state of the bucket that take() would use, and whether permits of it may be waited for."""
        rows = self._rows
        row = self._row
        if row is not None:
            tat = row.tat.load()
            # The tag after the TAT: a row is not freed with a TAT that matters.
            if row.tag.load() & ~LEAVING == self._tag:
                return tat, True
        rows.enter()
        try:
            row = self._row = rows.find(self._window)
            if row is not None:
                return row.tat.load(), True
            alone = rows.overflown(self._window)
            return 0 if alone is None else alone.tat.load(), rows.has_room(self._window)
        finally:
            rows.leave()


class QuotaGroup:
    """The quotas that count a request, as far as all of them are shared rows: what most requests do is one pass.

    The first `n_requests` of them give one permit a request, the others one for each of its tokens.
    """

    __slots__ = ("_n_requests", "_quotas", "_rows")

    def __init__(self, rows: RowTable, quotas: tuple[SharedQuota, ...], n_requests: int) -> None:
        self._rows: Final = rows
        self._quotas: Final = quotas
        self._n_requests: Final = n_requests

    def __repr__(self) -> str:
        return f"<QuotaGroup {self._quotas!r}>"

    def take(self, n_tokens: int, now_ns: int) -> bool:
        """Take of all of them what needs no wait. False: one refuses, or has to be looked for: nothing is taken.

        As SharedQuota.take() of each, once all were looked at.
        """
        rows, quotas, n_requests = self._rows, self._quotas, self._n_requests
        n_taken = 0
        rows.enter()
        try:
            for at, quota in enumerate(quotas):
                row = quota._row
                if row is None or row.tag.load() != quota._tag:
                    return False
                # The first one is looked at below: nothing is taken before.
                if at:
                    cost_ns = quota.rate.interval_ns if at < n_requests else n_tokens * quota.rate.interval_ns
                    tat = row.tat.load()
                    if (tat - now_ns if tat > now_ns else 0) + cost_ns > quota._burst_ns:
                        return False
            for quota in quotas:
                row = quota._row
                assert row is not None, "looked at above"
                cost_ns = quota.rate.interval_ns if n_taken < n_requests else n_tokens * quota.rate.interval_ns
                seen = row.tat.load()
                while True:
                    begin_ns = seen if seen > now_ns else now_ns
                    if begin_ns - now_ns + cost_ns > quota._burst_ns:
                        self._untake(n_taken, n_tokens)  # another process was faster
                        return False
                    found = row.tat.cas(seen, begin_ns + cost_ns)
                    if found == seen:
                        break
                    seen = found
                quota._last_ns = now_ns
                n_taken += 1
            return True
        finally:
            rows.leave()

    def _untake(self, n: int, n_tokens: int) -> None:
        """Give back what the first `n` gave. In the operation that took it."""
        for at, quota in enumerate(self._quotas[:n]):
            row = quota._row
            assert row is not None, "it was taken from"
            _move(row.tat, -(1 if at < self._n_requests else n_tokens) * quota.rate.interval_ns, 0)

    def give_back_tokens(self, n: int) -> None:
        """Give back `n` permits of each quota of tokens: they were not used, and had not to wait."""
        rows, quotas = self._rows, self._quotas
        at, end = self._n_requests, len(quotas)
        rows.enter()
        try:
            while at < end:
                quota = quotas[at]
                row = quota._row
                if row is None or row.tag.load() != quota._tag:
                    break
                tat, n_ns = row.tat, n * quota.rate.interval_ns
                seen = tat.load()
                while (found := tat.cas(seen, seen - n_ns if seen > n_ns else 0)) != seen:
                    seen = found
                at += 1
        finally:
            rows.leave()
        for quota in quotas[at:]:
            quota.give_back(n, waiting=False)


class SharedSlots:
    """A velox.policy.limits.quota.Slots. Several may have one tag; what one has taken, it releases."""

    __slots__ = ("_limit", "_n_own", "_overflown", "_row", "_rows", "_window")

    def __init__(self, rows: RowTable, window: Window, limit: int) -> None:
        self._rows: Final = rows
        self._window: Final = window
        self._limit: Final = limit
        self._row: Row | None = None
        self._n_own = 0  # taken here, in `_row`: that row is not freed meanwhile
        self._overflown: Final[list[Row]] = []  # those in which one was taken here without a row of its own

    def __repr__(self) -> str:
        return f"<SharedSlots {self._n_own}+{len(self._overflown)} of {self._limit}>"

    @property
    def limit(self) -> int:
        """How many."""
        return self._limit

    def take(self) -> bool:
        """Take one; False when all are taken."""
        for _ in range(_TRIES):
            taken = self._try()
            if taken is not None:
                return taken
        return False

    def release(self) -> None:
        """Give one back."""
        # No operation: a row with slots in use is not freed, and after this store it is not looked at.
        if self._overflown:
            self._overflown.pop().own_slots.fetch_sub(1)
            return
        assert self._row is not None, "a slot is released where it was taken"
        assert self._n_own > 0, "a slot is released once"
        self._n_own -= 1
        self._row.own_slots.fetch_sub(1)

    def in_use(self) -> int:
        """Return how many are taken, by all workers."""
        row = self._row
        if row is None or not self._n_own:  # else it is not freed
            self._rows.enter()
            try:
                if row is None or row.tag.load() != self._window.tag:
                    row = self._row = self._rows.find(self._window)
            finally:
                self._rows.leave()
        return self._count(row)

    def _try(self) -> bool | None:
        """Note a slot, and only then count: of all that do so at once, at most as many pass as there are slots.

        None: somebody else was about to take one, too.
        """
        rows = self._rows
        rows.enter()
        try:
            row = self._row
            if row is None or row.tag.load() != self._window.tag:
                row = rows.claim(self._window)
                self._row = None if row.is_overflow else row
            if self._count(row) >= self._limit:
                return False
            row.own_slots.fetch_add(1)
            # Killed here: the supervisor takes away what was noted.
            if self._count(row) > self._limit:
                row.own_slots.fetch_sub(1)
                return None
            if row.is_overflow:
                self._overflown.append(row)
            else:
                self._n_own += 1
            return True
        finally:
            rows.leave()

    def _count(self, row: Row | None) -> int:
        """Add up: those in the tag's own row, and those that this worker has taken without one."""
        alone = self._rows.overflown(self._window)
        in_use = 0 if alone is None else alone.slots[0]
        if row is not None and not row.is_overflow:
            fence()
            in_use += sum(row.slots)
        return in_use


def _move(tat: AtomicU64, by_ns: int, least_ns: int) -> None:
    """Move the state of a bucket from at least `least_ns`, and never out of 64 bits."""
    seen = tat.load()
    while True:
        moved = max(seen, least_ns) + by_ns
        found = tat.cas(seen, min(max(moved, 0), _LAST_NS))
        if found == seen:
            return
        seen = found
