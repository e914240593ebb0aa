"""The keeper of leases: the one process of a gateway that speaks with Redis.

Knows: when Redis is asked, when it is left alone, and who is told. Does not know: what is asked for a row
(lease_rows.py), the connection (lease_redis.py), or requests.

    demands    read from the pipe; all that came while Redis was being asked go into the next question
    answers    noted in the rows, then the workers that wait are told
    ten times a second: what nobody needs goes back, debts are paid
    once a second: a sign of life, for which Redis tells how many gateways there are
    failure    all workers are told at once and go on without it; it is tried again after 0.1 s, doubling to 1 s, and
               before anything else it hears how full the buckets are that this gateway knows of

It has no loop and one thread: a question blocks it, for at most half of VELOX_REDIS_TIMEOUT. It may be killed at any
instant: the supervisor starts the next one, which finds the rows as they are (lease_rows.py).
"""

from __future__ import annotations

import hashlib
import logging
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.outcomes import LeaseResult
from velox.policy.lease import retry_ns
from velox.runtime.lease_pipes import ALIVE, EVERY_ROW, LeasePipes
from velox.runtime.lease_redis import LeaseRedis, RedisDownError
from velox.runtime.lease_rows import HeldRow, LeaseRows, LinkTimes
from velox.settings import Settings
from velox.shm.quota_memory import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink

__all__ = ["LeaseKeeper", "run_keeper"]

_TICK_NS: Final = 100_000_000
_HEARTBEAT_NS: Final = 1_000_000_000
# A gateway that was not heard of for so long is none.
_COUNTS_FOR_NS: Final = 5_000_000_000
# Rows in one question: the script takes some 10 us for each, and nobody else is served meanwhile.
_MOST_ROWS: Final = 64


def run_keeper(settings: Settings, segment: Segment, quotas: QuotaMemory, pipes: LeasePipes) -> int:
    """Keep the leases until SIGTERM; return the exit code."""
    assert settings.redis_url is not None, "without it there is no keeper"
    # The same for a keeper that follows. Of the key nothing can be told from it.
    replica = hashlib.sha256(quotas.key).hexdigest()[:16]
    # Half: a demand may come when a question has just gone out, and must be answered by the next one.
    redis = LeaseRedis(settings.redis_url.reveal(), settings.redis_prefix, settings.redis_timeout_s / 2, replica)
    keeper = LeaseKeeper(
        LeaseRows(quotas, round(settings.rate_limit_max_wait_s * 1e9)),
        *(redis, pipes, GatewayStatus(segment), WorkerMetrics(segment.keeper_metrics())),
        logger=operations_logger(sys.stderr),
        fallback=settings.redis_fallback,
        replicas=settings.replicas,
    )
    signal.signal(signal.SIGTERM, lambda _number, _frame: keeper.leave())
    keeper.run()
    return 0


class LeaseKeeper:
    """One gateway's. fallback: VELOX_REDIS_FALLBACK, for the log. replicas: 0: as many as Redis tells of."""

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
    ) -> None:
        self._rows: Final = rows
        self._redis: Final = redis
        self._pipes: Final = pipes
        self._status: Final = status
        self._metrics: Final = metrics
        self._logger: Final = logger
        self._fallback: Final = fallback
        self._replicas: Final = replicas
        self._is_up = False
        self._why = ""  # Redis is down, as logged last; "": it is up, or was not asked yet
        self._link = LinkTimes(0, 0)
        self._retry_ns = 0
        self._next_try_ns = 0
        self._next_tick_ns = 0
        self._next_heartbeat_ns = 0
        self._leaves = False

    def __repr__(self) -> str:
        return f"<LeaseKeeper {'up' if self._is_up else 'down'} {self._rows!r}>"

    def leave(self) -> None:
        """Give everything back and return from run(), as soon as the question that is out is answered."""
        self._leaves = True

    def run(self) -> None:
        """Keep the leases until told to leave."""
        self._rows.take_over(time.monotonic_ns())
        poll = select.poll()
        poll.register(self._pipes.demands_fd, select.POLLIN)
        while not self._leaves:
            self._turn(time.monotonic_ns())
            wait_ns = self._next_tick_ns - time.monotonic_ns()
            poll.poll(max(0, -(-wait_ns // 1_000_000)))
        self._say_goodbye()

    def _turn(self, now_ns: int) -> None:
        for demand in self._pipes.demands():
            if not self._rows.demanded(demand, now_ns):
                self._pipes.tell(demand.block, (demand.row,))
        if now_ns >= self._next_tick_ns:
            self._next_tick_ns = now_ns + _TICK_NS
            self._rows.look(now_ns, self._n_replicas())
        if self._is_up or now_ns >= self._next_try_ns:
            self._ask(now_ns)
        if not self._is_up:
            # Who asked nevertheless must not wait.
            for held in self._rows.drop():
                self._tell(held)

    def _ask(self, now_ns: int) -> None:
        """Ask for all rows that need it. To say that this gateway lives is a question, too."""
        if not self._is_up:
            self._link = LinkTimes(now_ns, self._status.redis_told_ns)
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
                n, told = self._redis.ask([ask for _, ask in asked], counts_for_ns=_COUNTS_FOR_NS if is_due else None)
            except RedisDownError as exc:
                self._failed(held, str(exc))
                return False
            answered_ns = time.monotonic_ns()
            self._metrics.lease_round_trip.observe(answered_ns - now_ns)
            for (one, ask), answer in zip(asked, told, strict=True):
                if ask.back:
                    self._metrics.count_lease(LeaseResult.RETURNED)
                if ask.pairs or ask.want:
                    got_all = answer.granted >= sum(n * times for n, times in ask.pairs)
                    self._metrics.count_lease(LeaseResult.GRANTED if got_all else LeaseResult.REFUSED)
                one.told(answer, answered_ns)
            self._answered(answered_ns, n)
        for one, question in asks:
            if question is None:
                one.done()
            self._tell(one)
        return True

    def _answered(self, now_ns: int, n_replicas: int) -> None:
        self._retry_ns = 0
        self._status.redis_told_ns = now_ns
        if n_replicas >= 0:
            self._status.replicas = max(1, n_replicas)
            self._next_heartbeat_ns = now_ns + _HEARTBEAT_NS
            self._pipes.tell_all(ALIVE)
        if self._is_up:
            return
        self._is_up = True
        self._status.redis = RedisLink.UP
        if self._why:
            self._logger.warning("Redis can be asked again: limits hold over all gateways")
        self._why = ""
        self._pipes.tell_all(EVERY_ROW)

    def _failed(self, held: Sequence[HeldRow], why: str) -> None:
        """Leave Redis alone for a while; workers go on without it from now on."""
        self._status.redis = RedisLink.DOWN
        self._is_up = False
        self._metrics.count_lease(LeaseResult.FAILED)
        for one in held:
            one.done()
        self._pipes.tell_all(EVERY_ROW)
        self._retry_ns = retry_ns(self._retry_ns)
        self._next_try_ns = time.monotonic_ns() + self._retry_ns
        if not self._why:
            what = (
                "each gateway gives its share of the limits"
                if self._fallback == "local"
                else "limited requests get 503"
            )
            self._logger.error("Redis can't be asked: %s; %s (VELOX_REDIS_FALLBACK=%s)", why, what, self._fallback)
        self._why = why

    def _tell(self, held: HeldRow) -> None:
        for block in held.blocks:
            self._pipes.tell(block, (held.index,))
        held.blocks.clear()

    def _n_replicas(self) -> int:
        return self._replicas or self._status.replicas or 1

    def _say_goodbye(self) -> None:
        """Give everything back, if that is possible at once."""
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
