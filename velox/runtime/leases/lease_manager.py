"""The lease manager: the one process of a gateway that speaks with Redis, and the rows that it looks after.

Knows: when Redis is asked, what is asked for each row, and which workers get the answer. Does not know: the connection
(lease_redis.py), or requests.

    demands    read from the pipe; all that arrive while Redis is being asked go into the next question
    answers    noted in the rows, then sent to the workers that wait
    ten times a second: unused permits go back to Redis, debts are paid
    once a second: a heartbeat, for which Redis returns the number of gateways
    failure    all workers are notified at once and continue without it; it is tried again after 0.1 s, doubling to 1 s.
               The first question then restores the state of all buckets that this gateway knows of

It has no loop: a question for limits blocks it, for at most half of VELOX_REDIS_TIMEOUT. Budgets have a thread and a
connection of their own (budget_loop.py). It may be killed at any instant: the supervisor starts the next one.

A row is looked after from the first demand for it until nothing of it is held and its bucket is full. HOLD says so,
and what is needed for that stands in the row, so the next lease manager finds every row as it is. What a dead lease
manager had asked and not yet noted is lost: Redis has charged it, nobody can use it.
"""

from __future__ import annotations

import hashlib
import logging
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.outcomes import LeaseResult
from velox.policy.limits.lease import BACK_AFTER_NS, block, missing, pairs, retry_ns, surplus
from velox.policy.limits.token_bucket import BucketRate
from velox.runtime.leases.budget_loop import ANSWER_S, BudgetLoop
from velox.runtime.leases.budget_manager import BudgetManager
from velox.runtime.leases.lease_client import ALIVE, EVERY_ROW, LeasePipes
from velox.runtime.leases.lease_redis import BucketAnswer, BucketQuery, LeaseRedis, RedisDownError
from velox.runtime.ledger.gateway_name import gateway_name
from velox.settings import Settings
from velox.shm.budget_table import BudgetMemory
from velox.shm.leased import Demand, Lease, pack_rate, unpack_rate
from velox.shm.leased_budget import BUDGET_ROWS
from velox.shm.quota_table import LEAVING, QuotaMemory, RowTable
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink
from velox.types import Secret

__all__ = ["HeldRow", "LeaseManager", "LeaseRows", "RedisTimes", "run_lease_manager"]

# Different amounts that are asked for at once; those that find no place are asked for again by who waits.
_MOST_PAIRS: Final = 32
_WORD: Final = 8


class RedisTimes(NamedTuple):
    """Since when Redis can be asked, and when it could last be asked before that; 0: never. Monotonic ns."""

    up_since_ns: int
    alone_since_ns: int


class HeldRow:
    """One row. tag: of who has it. blocks: of the workers that wait for an answer."""

    __slots__ = (
        "_asked_debt",
        "_asked_tat",
        "_before",
        "_since_ns",
        "_used",
        "answered_ns",
        "back",
        "blocks",
        "index",
        "is_low",
        "lease",
        "name",
        "needs",
        "rate",
        "tag",
        "tat",
    )

    def __init__(self, memory: QuotaMemory, index: int, tag: int, name: bytes, rate: BucketRate, now_ns: int) -> None:
        self.index: Final = index
        self.tag: Final = tag
        self.name: Final = name
        self.rate = rate
        self.lease: Final = Lease(memory, index)
        self.tat: Final = memory.tat(index)
        self.needs: list[int] = []
        self.blocks: set[int] = set()
        self.is_low = False  # a worker said that its lease gets short
        self.back = 0  # taken out of the lease, to go back to Redis
        self.answered_ns = 0  # when Redis last answered for it, to this lease manager
        self._used = self.lease.used.load()
        self._since_ns = now_ns  # not used since
        self._before = 0  # the balance, when it was last looked at
        self._asked_tat = 0
        self._asked_debt = 0

    def __repr__(self) -> str:
        return f"<HeldRow {self.index} {self.lease!r} needs={len(self.needs)}>"

    def ask(self, now_ns: int, link: RedisTimes, replicas: int) -> BucketQuery | None:
        """Return what to ask Redis; None: nothing, what was needed is here."""
        balance, size = self.lease.balance(), block(self.rate, replicas)
        asked = pairs(self.needs, balance, _MOST_PAIRS)
        want = missing(balance, size) if asked or self.is_low else 0
        self._asked_debt = max(0, -balance)
        self._asked_tat = self.tat.load()
        rate = self.rate
        # Redis may have lost its state since before this connection.
        recover = self.answered_ns < link.up_since_ns
        ahead_ns = self._asked_tat - now_ns
        if self._asked_tat & 1:
            # What workers took without Redis is a debt, which it hears of: here it counts for nothing.
            ahead_ns -= self._asked_debt * rate.interval_ns * replicas
        if not (asked or want or self.back or self._asked_debt or (recover and ahead_ns > 0)):
            return None
        return BucketQuery(
            *(self.name, rate.interval_ns, rate.burst, rate.max_wait_ns, ahead_ns, recover),
            back=self.back,
            debt=self._asked_debt,
            since_ns=now_ns - link.alone_since_ns if recover and link.alone_since_ns else 0,
            want=want,
            pairs=asked,
        )

    def take_answer(self, answer: BucketAnswer, now_ns: int) -> None:
        """Note what Redis has answered to ask()."""
        lease = self.lease
        if answer.ready_ns:
            # Before the permits: who takes one looks at it afterwards.
            lease.ready.store(max(lease.ready.load(), now_ns + answer.ready_ns))
        if answer.granted or self._asked_debt:
            lease.granted.fetch_add(answer.granted + self._asked_debt)
        # If workers moved it meanwhile, it stays theirs until Redis has heard of that.
        self.tat.cas(self._asked_tat, (now_ns + answer.ahead_ns) & ~1)
        lease.hold.store(max(now_ns, 1))
        self.answered_ns = now_ns
        self.back = 0
        self.done()

    def failed(self, *, is_lost: bool) -> None:
        """Note that ask() was not answered. is_lost: Redis may have what was to go back: it gets it no second time."""
        if is_lost:
            self.back = 0
        self.done()

    def done(self) -> None:
        """Forget what was needed. What is to go back stays, until it was sent."""
        self.needs.clear()
        self.is_low = False

    def look(self, now_ns: int, replicas: int, *, is_up: bool) -> bool:
        """Take out what is not needed; True if there is something to ask. is_up: Redis can have it."""
        lease = self.lease
        used, balance = lease.used.load(), lease.balance()
        if used != self._used:
            self._since_ns = now_ns
        is_idle = now_ns - self._since_ns >= BACK_AFTER_NS
        more = max(0, balance) if is_idle else surplus(balance, self._before, block(self.rate, replicas))
        if is_up and more and lease.take(more) is not None:
            self.back += more
        self._used, self._before = lease.used.load(), balance
        return bool(self.back) or balance < 0

    def empty(self) -> None:
        """Take out everything: the gateway leaves."""
        balance = self.lease.balance()
        if balance > 0 and self.lease.take(balance) is not None:
            self.back += balance

    def is_over(self, now_ns: int) -> bool:
        """True if nothing of it is held, and it is not known that its bucket is anything but full."""
        is_idle = now_ns - self._since_ns >= BACK_AFTER_NS
        return is_idle and not self.back and not self.needs and not self.lease.balance() and self.tat.load() <= now_ns


class LeaseRows:
    """All of them. max_wait_ns: how far ahead of its time a permit may be taken."""

    def __init__(self, memory: QuotaMemory, max_wait_ns: int) -> None:
        self._memory: Final = memory
        self._table: Final = RowTable(memory, memory.lease_manager_block)
        self._max_wait_ns: Final = max_wait_ns
        self._held: Final[dict[int, HeldRow]] = {}
        self._to_ask: dict[int, HeldRow] = {}

    def __repr__(self) -> str:
        return f"<LeaseRows held={len(self._held)} to ask={len(self._to_ask)}>"

    def __len__(self) -> int:
        return len(self._held)

    def take_over(self, now_ns: int) -> None:
        """Find the rows that a lease manager before this one looked after."""
        memory, tags = self._memory, self._memory.tags()
        for index in (index for first, end in memory.parts() for index in range(first, end)):
            tag = tags[index]
            if tag and memory.row(index)[3]:
                lease = Lease(memory, index)
                interval_ns, burst = unpack_rate(lease.rate.load())
                name = b"".join([cell.load().to_bytes(_WORD, "big") for cell in lease.name])
                rate = BucketRate(interval_ns, burst, self._max_wait_ns)
                self._held[index] = HeldRow(memory, index, tag & ~LEAVING, name, rate, now_ns)

    def demanded(self, demand: Demand, now_ns: int) -> bool:
        """Note what a worker needs; False: the row has changed hands, so the worker must look for its own again."""
        held = self._held.get(demand.row)
        if held is None:
            held = self._hold(demand, now_ns)
        if held is None or held.tag != demand.tag:
            return False
        if (demand.interval_ns, demand.burst) != (held.rate.interval_ns, held.rate.burst):
            held.rate = BucketRate(demand.interval_ns, demand.burst, self._max_wait_ns)
            held.lease.rate.store(pack_rate(demand.interval_ns, demand.burst))
        if demand.n:
            held.needs.append(demand.n)
            held.blocks.add(demand.block)
        else:
            held.is_low = held.lease.balance() >= 0  # a debt is no reason to hold more
        self._to_ask[demand.row] = held
        return True

    def look(self, now_ns: int, replicas: int, *, is_up: bool) -> None:
        """Look at all rows: debts, what is too much, what nobody uses. While Redis is down they keep what they hold."""
        for held in list(self._held.values()):
            if held.look(now_ns, replicas, is_up=is_up):
                self._to_ask[held.index] = held
            elif held.is_over(now_ns) and held.index not in self._to_ask:
                self._release(held)

    def ask_again(self) -> None:
        """Ask for every row: Redis may have lost what it knew."""
        self._to_ask = dict(self._held)

    def empty(self) -> None:
        """Take everything out of all rows."""
        for held in self._held.values():
            held.empty()
        self.ask_again()

    def next(self, most: int) -> list[HeldRow]:
        """Return rows to ask for, at most so many; they are not returned again until there is more to ask."""
        indexes = list(self._to_ask)[:most]
        return [self._to_ask.pop(index) for index in indexes]

    def drop(self) -> Sequence[HeldRow]:
        """Return the rows that would be asked for, if Redis were up; their needs are dropped."""
        dropped = self.next(len(self._to_ask))
        for held in dropped:
            held.done()
        return dropped

    def _hold(self, demand: Demand, now_ns: int) -> HeldRow | None:
        memory, tag = self._memory, demand.tag
        table = self._table
        table.enter()
        try:
            # A row that was about to be freed stays.
            if not 0 <= demand.row < memory.rows or memory.cas_tag(demand.row, tag | LEAVING, tag) & ~LEAVING != tag:
                return None
            lease = Lease(memory, demand.row)
            for cell, at in zip(lease.name, (0, _WORD), strict=True):
                cell.store(int.from_bytes(demand.name[at : at + _WORD], "big"))
            lease.rate.store(pack_rate(demand.interval_ns, demand.burst))
            lease.hold.store(1)  # last: from here on a lease manager that takes over can rely on the others
        finally:
            table.leave()
        rate = BucketRate(demand.interval_ns, demand.burst, self._max_wait_ns)
        held = self._held[demand.row] = HeldRow(memory, demand.row, tag, demand.name, rate, now_ns)
        return held

    def _release(self, held: HeldRow) -> None:
        held.lease.hold.store(0)
        # Given back at this moment, by a worker that saw HOLD and so sent no demand.
        if held.lease.balance():
            held.lease.hold.store(1)
        else:
            del self._held[held.index]


_TICK_NS: Final = 100_000_000
_HEARTBEAT_NS: Final = 1_000_000_000
# A gateway that was not heard of for so long is none.
_COUNTS_FOR_NS: Final = 5_000_000_000
# Rows in one question: the script takes some 10 us for each, and nobody else is served meanwhile.
_MOST_ROWS: Final = 64


def run_lease_manager(
    settings: Settings, segment: Segment, quotas: QuotaMemory, pipes: LeasePipes, budgets: BudgetMemory | None
) -> int:
    """Keep the leases until SIGTERM; return the exit code."""
    assert settings.redis_url is not None, "without it there is no lease manager"
    # The same for the next lease manager. It reveals nothing of the key.
    replica = hashlib.sha256(quotas.key).hexdigest()[:16]
    # Half: a demand may come when a question has just gone out, and must be answered by the next one.
    redis = LeaseRedis(settings.redis_url.reveal(), settings.redis_prefix, settings.redis_timeout_s / 2, replica)
    status, logger = GatewayStatus(segment), operations_logger(sys.stderr)
    loop = None
    if budgets is not None and settings.ledger is not None:
        loop = BudgetLoop(
            _budget_manager(settings, settings.redis_url, budgets, _name(settings.ledger, replica)),
            *(budgets, pipes, logger),
            replicas=lambda: settings.replicas or status.replicas or 1,
            fallback=settings.redis_fallback,
        )
    manager = LeaseManager(
        LeaseRows(quotas, round(settings.rate_limit_max_wait_s * 1e9)),
        *(redis, pipes, status, WorkerMetrics(segment.other_metrics())),
        logger=logger,
        fallback=settings.redis_fallback,
        replicas=settings.replicas,
        budgets=loop,
    )
    signal.signal(signal.SIGTERM, lambda _number, _frame: manager.leave())
    manager.run()
    return 0


def _budget_manager(settings: Settings, url: Secret, budgets: BudgetMemory, name: str) -> BudgetManager:
    timeout_s = max(ANSWER_S, settings.redis_timeout_s)
    return BudgetManager(budgets, LeaseRedis(url.reveal(), settings.redis_prefix, timeout_s, name), name)


class LeaseManager:
    """One gateway's. fallback: VELOX_REDIS_FALLBACK, for the log. replicas: 0: as many as Redis counts."""

    def __init__(
        self,
        rows: LeaseRows,
        redis: LeaseRedis,
        pipes: LeasePipes,
        status: GatewayStatus,
        metrics: WorkerMetrics,
        *,
        logger: logging.Logger,
        fallback: str,
        replicas: int,
        budgets: BudgetLoop | None = None,
    ) -> None:
        self._budgets: Final = budgets
        self._rows: Final = rows
        self._redis: Final = redis
        self._pipes: Final = pipes
        self._status: Final = status
        self._metrics: Final = metrics
        self._logger: Final = logger
        self._fallback: Final = fallback
        self._replicas: Final = replicas
        self._is_up = False
        self._n_failed = 0  # of the questions for budgets, as counted
        self._why = ""  # Redis is down, as logged last; "": it is up, or was not asked yet
        self._link = RedisTimes(0, 0)
        self._retry_ns = 0
        self._next_try_ns = 0
        self._next_tick_ns = 0
        self._next_heartbeat_ns = 0
        self._leaves = False

    def __repr__(self) -> str:
        return f"<LeaseManager {'up' if self._is_up else 'down'} {self._rows!r}>"

    def leave(self) -> None:
        """Give everything back and return from run(), as soon as the question that is out is answered."""
        self._leaves = True

    def run(self) -> None:
        """Keep the leases until leave() is called."""
        self._rows.take_over(time.monotonic_ns())
        if self._budgets is not None:
            self._budgets.start()
        poll = select.poll()
        poll.register(self._pipes.demands_fd, select.POLLIN)
        while not self._leaves:
            self._status.lease_manager_heartbeat_ns = time.monotonic_ns()
            self._turn(time.monotonic_ns())
            wait_ns = self._next_tick_ns - time.monotonic_ns()
            poll.poll(max(0, -(-wait_ns // 1_000_000)))
        self._return_everything()

    def _turn(self, now_ns: int) -> None:
        for demand in self._pipes.demands():
            if demand.row >= BUDGET_ROWS:
                if self._budgets is not None:
                    self._budgets.demanded(demand)
            elif not self._rows.demanded(demand, now_ns):
                self._pipes.answer(demand.block, (demand.row,))
        if now_ns >= self._next_tick_ns:
            self._next_tick_ns = now_ns + _TICK_NS
            self._rows.look(now_ns, self._n_replicas(), is_up=self._is_up)
            self._look_at_budgets()
        if self._is_up or now_ns >= self._next_try_ns:
            self._ask(now_ns)
        if not self._is_up:
            # Who asked nevertheless must not wait.
            for held in self._rows.drop():
                self._answer(held)

    def _look_at_budgets(self) -> None:
        if self._budgets is not None:
            self._budgets.check()
            n_failed, self._n_failed = self._n_failed, self._budgets.n_failed
            for _ in range(self._n_failed - n_failed):
                self._metrics.count_lease(LeaseResult.FAILED)

    def _ask(self, now_ns: int) -> None:
        """Ask for all rows that need it. To say that this gateway lives is a question, too."""
        if not self._is_up:
            self._link = RedisTimes(now_ns, self._status.redis_answered_ns)
            self._next_heartbeat_ns = now_ns
            self._rows.ask_again()
        while True:
            held = self._rows.next(_MOST_ROWS)
            is_due = now_ns >= self._next_heartbeat_ns
            if not held and not is_due:
                return
            if not self._ask_for(held, now_ns, is_due=is_due):
                return
            now_ns = time.monotonic_ns()

    def _ask_for(self, held: Sequence[HeldRow], now_ns: int, *, is_due: bool) -> bool:
        replicas = self._n_replicas()
        asks = [(one, one.ask(now_ns, self._link, replicas)) for one in held]
        asked = [(one, ask) for one, ask in asks if ask is not None]
        if asked or is_due:
            try:
                n, answers = self._redis.ask(
                    [ask for _, ask in asked], counts_for_ns=_COUNTS_FOR_NS if is_due else None
                )
            except RedisDownError as exc:
                for one in held:
                    one.failed(is_lost=exc.is_lost)
                self._failed(str(exc))
                return False
            answered_ns = time.monotonic_ns()
            self._metrics.lease_round_trip.observe(answered_ns - now_ns)
            for (one, ask), answer in zip(asked, answers, strict=True):
                if ask.back:
                    self._metrics.count_lease(LeaseResult.RETURNED)
                if ask.pairs or ask.want:
                    got_all = answer.granted >= sum(n * times for n, times in ask.pairs)
                    self._metrics.count_lease(LeaseResult.GRANTED if got_all else LeaseResult.REFUSED)
                one.take_answer(answer, answered_ns)
            self._answered(answered_ns, n)
        for one, question in asks:
            if question is None:
                one.done()
            self._answer(one)
        return True

    def _answered(self, now_ns: int, n_replicas: int) -> None:
        self._status.redis_answered_ns = now_ns
        if n_replicas >= 0:
            self._status.replicas = max(1, n_replicas)
            self._next_heartbeat_ns = now_ns + _HEARTBEAT_NS
            self._pipes.answer_all(ALIVE)
        if self._is_up:
            return
        self._is_up = True
        self._status.redis = RedisLink.UP
        self._pipes.answer_all(EVERY_ROW)
        self._retry_ns = 0
        if self._why:
            self._logger.warning("Redis is available for limits again: they hold over all gateways")
        self._why = ""

    def _failed(self, why: str) -> None:
        """Leave Redis alone for a while; workers go on without it from now on."""
        self._status.redis = RedisLink.DOWN
        self._is_up = False
        self._metrics.count_lease(LeaseResult.FAILED)
        self._pipes.answer_all(EVERY_ROW)
        self._retry_ns = retry_ns(self._retry_ns)
        self._next_try_ns = time.monotonic_ns() + self._retry_ns
        if not self._why:
            what = (
                "each gateway gives its share of the limits"
                if self._fallback == "local"
                else "limited requests get 503"
            )
            self._logger.error(
                "Redis is unavailable for limits: %(error)s; %(effect)s (VELOX_REDIS_FALLBACK=%(fallback)s)",
                {"error": why, "effect": what, "fallback": self._fallback},
            )
        self._why = why

    def _answer(self, held: HeldRow) -> None:
        for waiting in held.blocks:
            self._pipes.answer(waiting, (held.index,))
        held.blocks.clear()

    def _n_replicas(self) -> int:
        return self._replicas or self._status.replicas or 1

    def _return_everything(self) -> None:
        """Give everything back, if that is possible at once."""
        if self._budgets is not None:
            self._budgets.leave()
        if not self._is_up:
            return
        self._rows.empty()
        try:
            while held := self._rows.next(_MOST_ROWS):
                now_ns = time.monotonic_ns()
                asks = [ask for one in held if (ask := one.ask(now_ns, self._link, 1)) is not None]
                self._redis.ask([ask._replace(want=0, pairs=()) for ask in asks])
            self._redis.ask((), counts_for_ns=-_COUNTS_FOR_NS)
        except RedisDownError:
            pass  # what was held is lost
        self._redis.close()
        self._status.redis = RedisLink.NONE


def _name(folder: str, otherwise: str) -> str:
    """Return what the gateway is called. otherwise: where its folder can't be written."""
    try:
        return gateway_name(Path(folder))
    except OSError:
        return otherwise
