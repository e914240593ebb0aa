"""Quotas that several gateways share: a row of the quota table holds permits that were taken from Redis in advance.

Knows: how a worker takes from a row's lease, what it asks the lease manager for, and what it does while Redis can't be
asked. Does not know: Redis, how a message reaches the lease manager, or who waits for an answer
(velox.runtime.leases.lease_client).

    GRANTED    permits that Redis gave for the row, ever; written by the lease manager only
    USED       permits that were taken, ever; written by all. GRANTED - USED is the balance; below 0 it is a debt
    HOLD       when Redis last answered for the row (monotonic ns), 1: not yet; 0: the manager does not hold the row
    READY      from when on all that was granted may be used: Redis gives some ahead of their time, as a bucket does
    NAME, RATE what the bucket is called in Redis and how it fills, for a lease manager that takes over from a dead one
    TAT        how the bucket in Redis stood at its last answer, on our clock; workers move it while Redis is down, and
               make it odd

A permit is one compare-and-swap of USED, and no system call. A worker that is killed has taken a permit or has not; the
lease manager adds to GRANTED only what Redis has charged, so whoever is killed, permits can be lost but never made.
GRANTED and USED are counted modulo 2**64.

A request for which the balance is too small gets a refusal, if Redis said a moment ago that there is nothing; else
NOT_YET, and the lease manager is asked. While Redis is down the balance may still be used: it is paid for. After that
the row's own bucket answers, for this gateway's share of the limit, or nobody does (VELOX_REDIS_FALLBACK); what it
gives is a debt, which is paid when Redis is back. In an overflow row, which is one worker's alone, no lease can be:
there it is always the share.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from atomicshm import AtomicU64

from velox.memo import Memo
from velox.policy.limits.lease import FRESH_NS, block, low_mark, own_share
from velox.policy.limits.quota import NEVER, NOT_YET, UNAVAILABLE, Quota
from velox.policy.limits.token_bucket import BucketRate, ask, outlook
from velox.shm.quota_table import LEAVING, QuotaMemory, Row, RowTable, Window
from velox.shm.quotas import QuotaTable, SharedSlots

__all__ = [
    "Demand",
    "Lease",
    "LeasedQuota",
    "LeasedTable",
    "Link",
    "LinkState",
    "balance_of",
    "pack_rate",
    "unpack_rate",
]

_DEMAND: Final = struct.Struct("=IIQ16sQQQ")
_WRAP: Final = 1 << 64
_HALF: Final = 1 << 63
# A burst is below 2**27 and an interval (a minute, at most) below 2**36: see settings/callers/limits.py.
_BURST_BITS: Final = 27
_LAST_NS: Final = 1 << 62
_KEPT_NAMES: Final = 1024


class Demand(NamedTuple):
    """What a worker sends to the lease manager. n: permits that a request needs; 0: look at the row (low, or in
    debt)."""

    row: int
    block: int  # of the worker
    tag: int
    name: bytes  # 16 bytes, the same in all gateways
    interval_ns: int
    burst: int
    n: int

    def packed(self) -> bytes:
        """Return the message."""
        return _DEMAND.pack(*self)

    @classmethod
    def unpacked(cls, messages: bytes) -> list[Demand]:
        """Return the demands of whole messages, one after the other."""
        return [cls(*fields) for fields in _DEMAND.iter_unpack(messages)]

    @staticmethod
    def size() -> int:
        """Return the length of a message."""
        return _DEMAND.size


class LinkState(Protocol):
    """What a worker knows of Redis."""

    @property
    def is_up(self) -> bool:
        """True while the lease manager can ask it."""

    @property
    def replicas(self) -> int:
        """How many gateways share the limits, or the budgets."""

    @property
    def stands_alone(self) -> bool:
        """True if this gateway gives its share while Redis is down; False if nothing may pass."""


class Link(LinkState, Protocol):
    """A worker's way to the lease manager."""

    def send(self, demand: Demand) -> None:
        """Tell the lease manager, soon."""


class Lease:
    """The cells of one row that belong to its lease."""

    __slots__ = ("granted", "hold", "name", "rate", "ready", "used")

    def __init__(self, memory: QuotaMemory, row: int) -> None:
        self.granted, self.used, self.hold, self.ready, high, low, self.rate = memory.lease(row)
        self.name: Final[tuple[AtomicU64, AtomicU64]] = (high, low)

    def __repr__(self) -> str:
        return f"<Lease balance={self.balance()} hold={self.hold.load()}>"

    def balance(self) -> int:
        """Return how many permits can be taken; below 0: a debt."""
        return balance_of(self.granted.load(), self.used.load())

    def take(self, n: int) -> int | None:
        """Take `n` permits, and return the balance before; None: there are not so many."""
        used = self.used
        seen = used.load()
        while True:
            balance = self.granted.load() - seen
            if not -_HALF <= balance < _HALF:
                balance = balance_of(balance, 0)
            if balance < n:
                return None
            found = used.cas(seen, (seen + n) % _WRAP)
            if found == seen:
                return balance
            seen = found


def balance_of(granted: int, used: int) -> int:
    """Return the difference of two counters that wrap around."""
    return (granted - used + _HALF) % _WRAP - _HALF


def pack_rate(interval_ns: int, burst: int) -> int:
    """Return a rate as one cell; never 0."""
    return interval_ns << _BURST_BITS | burst


def unpack_rate(cell: int) -> tuple[int, int]:
    """Return interval_ns and burst."""
    return cell >> _BURST_BITS, cell & ((1 << _BURST_BITS) - 1)


class LeasedTable:
    """One worker's view of all quotas and slots, of which the quotas are shared with other gateways.

    block: of this process. Slots are of this gateway alone.
    """

    __slots__ = ("_link", "_names", "_table")

    def __init__(self, memory: QuotaMemory, block: int, link: Link) -> None:
        self._table: Final = QuotaTable(memory, block)
        self._link: Final = link
        self._names: Final[Memo[int, bytes]] = Memo(_KEPT_NAMES)

    def __repr__(self) -> str:
        return f"<LeasedTable {self._table!r}>"

    def tag(self, *parts: bytes) -> int:
        """Return the name of a row, as QuotaTable does; what it is made of must be the same in all gateways."""
        tag = self._table.tag(*parts)
        digest = sha256()
        for part in parts:
            digest.update(len(part).to_bytes(4, "big") + part)
        self._names.put(tag, digest.digest()[:16])
        return tag

    def quota(self, tag: int, rate: BucketRate, *, open_ended: bool = False, others: int = 0) -> LeasedQuota:
        """Return the quota named `tag`, which tag() has just returned. The rest as for QuotaTable.quota()."""
        name = self._names.get(tag)
        assert name is not None, "tag() comes right before"
        rows = self._table.rows
        window = rows.window(tag, open_ended=open_ended, others=others)
        return LeasedQuota(rows, window, rate, name, self._link)

    def group(self, _requests: Sequence[Quota], _tokens: Sequence[Quota]) -> None:
        """Return None: of leases each has to be asked by itself."""

    def slots(self, tag: int, limit: int, *, open_ended: bool = False, others: int = 0) -> SharedSlots:
        """Return the slots named `tag`, of this gateway."""
        return self._table.slots(tag, limit, open_ended=open_ended, others=others)


class LeasedQuota:
    """A velox.policy.limits.quota.Quota over several gateways. Several may have one tag."""

    __slots__ = ("_lease", "_link", "_low", "_name", "_overflown", "_rate", "_row", "_rows", "_window")

    def __init__(self, rows: RowTable, window: Window, rate: BucketRate, name: bytes, link: Link) -> None:
        self._rows: Final = rows
        self._window: Final = window
        self._rate: Final = rate
        self._name: Final = name
        self._link: Final = link
        self._row: Row | None = None  # where it was found last
        self._lease: Lease | None = None  # of that row; None: it has none, or is an overflow row
        self._low = 0  # of the lease: then the lease manager gets a demand; as it was when the lease was last used up
        self._overflown = 0  # permits taken in an overflow row: they go back there

    def __repr__(self) -> str:
        return f"<LeasedQuota {self._row!r} {self._lease!r}>"

    @property
    def rate(self) -> BucketRate:
        """The rate of all gateways together."""
        return self._rate

    def ask(self, n: int, now_ns: int) -> int:
        """Return what take() would. No row is claimed for it."""
        row = self._find()
        lease = self._lease
        if row is None or lease is None:
            return self._answer(n, now_ns, 0, 0 if row is None else row.tat.load(), 0, is_leased=row is None)
        balance = lease.balance()
        if balance >= n:
            return max(0, lease.ready.load() - now_ns)
        return self._answer(n, now_ns, balance, row.tat.load(), lease.hold.load(), is_leased=True)

    def take(self, n: int, now_ns: int) -> int:
        """Take `n` permits, all or none; NOT_YET: none, and the lease manager must be asked (demand())."""
        if n > self._rate.burst:
            return NEVER
        rows = self._rows
        rows.enter()
        try:
            row, lease = self._claim()
            if lease is None:
                return self._take_alone(row, None, n, now_ns)
            before = lease.take(n)
            if before is None:
                return self._take_alone(row, lease, n, now_ns)
            wait_ns = lease.ready.load() - now_ns
        finally:
            rows.leave()
        if before - n < self._low <= before:
            self._link.send(self._message(row, 0))
        return wait_ns if wait_ns > 0 else 0

    def demand(self, n: int) -> Demand | None:
        """Return what to tell the lease manager so that `n` permits may come; None: there is no row for it."""
        self._rows.enter()
        try:
            row, lease = self._claim()
        finally:
            self._rows.leave()
        return None if lease is None else self._message(row, n)

    def used_wait(self, n: int) -> None:
        """Nothing to note: of permits that wait in a dead worker, nobody knows. They are lost."""

    def give_back(self, n: int, *, waiting: bool) -> None:
        """Give back `n` permits that were not used: to the lease, from which they go back to Redis if not needed.

        While Redis is down, what was taken from the share goes back there first.
        """
        overflown = min(n, self._overflown)
        self._overflown -= overflown
        n -= overflown
        self._rows.enter()
        try:
            row = self._find_inside()
            lease = self._lease
            alone = self._rows.overflown(self._window) if overflown else None
            if alone is not None:
                _pull(alone.tat, self._cost_ns(overflown))
            if row is None or lease is None or not n:
                return  # the bucket is full, or shared with others who would get them
            balance = balance_of(lease.granted.load(), lease.used.fetch_sub(n))
            # An even TAT is as Redis said: no debt was taken from the share.
            if balance < 0 and not self._link.is_up and row.tat.load() & 1:
                _pull(row.tat, self._cost_ns(min(n, -balance)))
            is_known = lease.hold.load()
        finally:
            self._rows.leave()
        if not is_known:
            self._link.send(self._message(row, 0))

    def charge(self, n: int) -> None:
        """Take `n` permits that were used already. What the lease does not hold is a debt: the lease manager pays
        it."""
        if not n:
            return
        self._rows.enter()
        try:
            row, lease = self._claim()
            if lease is None or not self._link.is_up:
                _push(row.tat, self._cost_ns(n))
            if lease is None:
                return
            if self._link.is_up:
                lease.used.fetch_add(n)
            else:
                self._use_alone(row, lease, n)
            is_debt = lease.balance() < 0
        finally:
            self._rows.leave()
        if is_debt:
            self._link.send(self._message(row, 0))

    def remaining(self, now_ns: int) -> int:
        """Return how many permits could be taken without a wait, as far as is known here."""
        return self.outlook(now_ns)[0]

    def full_in_ns(self, now_ns: int) -> int:
        """Return the time until the bucket is full again, as far as is known here."""
        return self.outlook(now_ns)[1]

    def outlook(self, now_ns: int) -> tuple[int, int]:
        """Return both."""
        row, lease, rate = self._find(), self._lease, self._rate
        if row is None:
            return rate.burst, 0
        if lease is None or not self._link.is_up:
            rate = own_share(rate, self._link.replicas, 0)
        left, full_ns = outlook(rate, row.tat.load(), now_ns)
        if lease is not None:
            balance = lease.balance() if rate is self._rate else max(0, lease.balance())
            left = min(self._rate.burst, max(0, left + balance))
            full_ns += max(0, -balance) * rate.interval_ns  # what was used on top of the lease
        return left, full_ns

    # -- what a balance that is too small means -------------------------------------------------------

    def _answer(self, n: int, now_ns: int, balance: int, tat: int, answered_ns: int, *, is_leased: bool) -> int:
        """Say what a request gets that the lease does not hold. answered_ns: when Redis last answered for it."""
        rate, link = self._rate, self._link
        if n > rate.burst:
            return NEVER
        if is_leased and link.is_up:
            self._low = low_mark(block(rate, link.replicas))
            if answered_ns > 1 and now_ns - answered_ns < FRESH_NS:
                answer = ask(rate, tat, now_ns, n - max(0, balance))
                if answer < 0:
                    return answer
            return NOT_YET
        if not link.stands_alone and (is_leased or not link.is_up):
            return UNAVAILABLE
        answer = ask(own_share(rate, link.replicas, n), tat, now_ns, n)
        # In an overflow row nothing waits: others would take what was waited for.
        return answer if is_leased or answer <= 0 else -answer

    def _take_alone(self, row: Row, lease: Lease | None, n: int, now_ns: int) -> int:
        """Take from the row's own bucket, if that is what _answer() says. Inside an operation."""
        is_leased = lease is not None
        balance, answered_ns = (0, 0) if lease is None else (lease.balance(), lease.hold.load())
        tat = row.tat
        while True:
            seen = tat.load()
            answer = self._answer(n, now_ns, balance, seen, answered_ns, is_leased=is_leased)
            if answer < 0:
                return answer
            if tat.cas(seen, min(max(seen, now_ns) + self._cost_ns(n), _LAST_NS) | 1) == seen:
                break
        # Killed here: the share is charged for nothing.
        if lease is None:
            self._overflown += n
        else:
            self._use_alone(row, lease, n)
            if not answered_ns:
                self._link.send(self._message(row, 0))  # the lease manager does not know of the row
        return answer

    def _use_alone(self, row: Row, lease: Lease, n: int) -> None:
        """Note `n` permits that the share was charged with: what the lease covers of them goes back to the share."""
        covered = min(n, balance_of(lease.granted.load(), lease.used.fetch_add(n)))
        if covered > 0:
            _pull(row.tat, self._cost_ns(covered))

    def _cost_ns(self, n: int) -> int:
        """Return by how much `n` permits move the bucket of this gateway on its own."""
        return n * self._rate.interval_ns * max(1, self._link.replicas)

    # -- the row ------------------------------------------------------------------------------------

    def _claim(self) -> tuple[Row, Lease | None]:
        """Return the row, a new one if there is none. Inside an operation."""
        row = self._row
        if row is None or row.tag.load() != self._window.tag:
            row = self._rows.claim(self._window)
            self._settle_in(row)
        return row, self._lease

    def _find(self) -> Row | None:
        row = self._row
        if row is not None and row.tag.load() & ~LEAVING == self._window.tag:
            return row
        self._rows.enter()
        try:
            row = self._find_inside()
            if row is None and not self._rows.has_room(self._window):
                self._lease = None
                return self._rows.overflown(self._window) or Row.alone()
            return row
        finally:
            self._rows.leave()

    def _find_inside(self) -> Row | None:
        row = self._row
        if row is None or row.tag.load() != self._window.tag:
            row = self._rows.find(self._window)
            self._settle_in(row)
        return row

    def _settle_in(self, row: Row | None) -> None:
        self._row = row
        self._lease = None if row is None or row.is_overflow else Lease(self._rows.memory, row.index)

    def _message(self, row: Row, n: int) -> Demand:
        rate = self._rate
        return Demand(row.index, self._rows.block, self._window.tag, self._name, rate.interval_ns, rate.burst, n)


def _pull(tat: AtomicU64, by_ns: int) -> None:
    """Move the state of a bucket back."""
    seen = tat.load()
    while (found := tat.cas(seen, max(seen - by_ns, 0) | 1)) != seen:
        seen = found


def _push(tat: AtomicU64, by_ns: int) -> None:
    """Move the state of a bucket, and never out of 64 bits."""
    seen = tat.load()
    while (found := tat.cas(seen, min(seen + by_ns, _LAST_NS) | 1)) != seen:
        seen = found
