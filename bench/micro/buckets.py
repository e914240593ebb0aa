"""The bucket that all workers share: alone, and 64 requests through the gate.

Knows: how each limiter is asked. Does not know: the arithmetic (policy/limits/token_bucket.py). Two processes:
contested.py.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Final, TypeAlias

import uvloop

from bench.micro.candidates import Answers, Candidate, Case, Timed, calls
from velox.errors import VeloxError
from velox.gateway.limits.limiter import Limiter
from velox.observe import series
from velox.observe.metrics import WorkerMetrics
from velox.policy.limits.estimate import NO_TOKENS
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.limits.token_bucket import BucketRate, ask
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable, SharedQuota
from velox.types import Caller, Rates, Scope

__all__ = ["BATCH", "CASES", "LockedBucket", "shared_quota"]

# Makes the limiter of one worker after the other, all of one limit; each says whether a request passes.
_Worker: TypeAlias = Callable[[], bool]
_Limit: TypeAlias = Callable[[], _Worker]

BATCH: Final = 64
_N_ASKED: Final = 8
_BURST: Final = 5
_SCARCE: Final = BucketRate.from_rpm(1, _BURST, 0.0)
# Never reached: a refusal costs something else.
_PLENTY: Final = BucketRate.from_rpm(60_000_000, 10_000_000, 0.0)
_CALLER: Final = Caller("bench", id=b"benchkey")


def shared_quota(memory: QuotaMemory, block: int, rate: BucketRate) -> SharedQuota:
    """Return one process's view of the bucket."""
    table = QuotaTable(memory, block)
    return table.quota(table.tag(b"bench"), rate)


class LockedBucket:
    """The same arithmetic on a number in shared memory, under a lock of multiprocessing."""

    def __init__(self, rate: BucketRate) -> None:
        self._rate: Final = rate
        self._value: Final = multiprocessing.Value("Q", 0)

    def take(self, n: int, now_ns: int) -> int:
        """Take `n` permits; the answer is the one of policy.limits.token_bucket.ask()."""
        value = self._value
        with value.get_lock():
            return self._move(n, now_ns)

    def take_each(self, n: int, now_ns: int) -> int:
        """Take a permit for each of `n` requests; return how many got one. The lock is taken once."""
        with self._value.get_lock():
            return sum(self._move(1, now_ns) >= 0 for _ in range(n))

    @property
    def tat(self) -> int:
        """The state of the bucket."""
        return int(self._value.value)

    def _move(self, n: int, now_ns: int) -> int:
        raw, rate = self._value.get_obj(), self._rate
        wait_ns = ask(rate, raw.value, now_ns, n)
        if wait_ns >= 0:
            raw.value = max(raw.value, now_ns) + n * rate.interval_ns
        return wait_ns


# -- what they answer -----------------------------------------------------------------------------------------------


def _answers(make: Callable[[], _Limit]) -> Answers:
    limit = make()
    first, second = limit(), limit()
    return {
        "passed at once": sum(first() for _ in range(_N_ASKED)),
        "passed by another worker afterwards": sum(second() for _ in range(_N_ASKED)),
    }


def _velox_limit() -> _Limit:
    memory, blocks = QuotaMemory(64, 2), iter(range(2))

    def worker() -> _Worker:
        quota = shared_quota(memory, next(blocks), _SCARCE)
        return lambda: quota.take(1, time.monotonic_ns()) == 0

    return worker


def _gate_limit() -> _Limit:
    memory, blocks = QuotaMemory(64, 2), iter(range(2))

    def worker() -> _Worker:
        limiter = _limiter(memory, next(blocks), Rates(rpm=1, burst=_BURST), 0.0)

        def passes() -> bool:
            try:
                limiter.admit(limiter.limits(_CALLER, None), NO_TOKENS, time.monotonic_ns())
            except VeloxError:
                return False
            return True

        return passes

    return worker


def _locked_limit() -> _Limit:
    bucket = LockedBucket(_SCARCE)
    return lambda: lambda: bucket.take(1, time.monotonic_ns()) == 0


def _locked_limit_once() -> _Limit:
    bucket = LockedBucket(_SCARCE)
    return lambda: lambda: bucket.take_each(1, time.monotonic_ns()) == 1


def _aio_limit() -> _Limit:
    from aiolimiter import AsyncLimiter

    async def passes(limiter: AsyncLimiter) -> bool:
        if not limiter.has_capacity():
            return False
        await limiter.acquire()
        return True

    def worker() -> _Worker:
        loop = asyncio.new_event_loop()
        limiter = AsyncLimiter(_BURST, _BURST * 60.0)
        weakref.finalize(limiter, loop.close)
        return lambda: loop.run_until_complete(passes(limiter))

    return worker


def _limits_limit() -> _Limit:
    from limits import RateLimitItemPerHour
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    def worker() -> _Worker:
        limiter, item = FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerHour(_BURST)
        return lambda: limiter.hit(item, "bench")

    return worker


# -- their time -----------------------------------------------------------------------------------------------------


def _limiter(memory: QuotaMemory, block: int, rates: Rates, max_wait_s: float) -> Limiter:
    metrics = WorkerMetrics(memoryview(bytearray(8 * series.CELLS)).cast("Q"))
    rules = [LimitRule("limits[0]", Scope.GATEWAY, rates)]
    return Limiter(rules, QuotaTable(memory, block), max_wait_s, metrics.limit_counter)


def _velox_alone() -> Timed:
    quota = shared_quota(QuotaMemory(16384, 2), 0, _PLENTY)
    return calls(lambda: quota.take(1, time.monotonic_ns()))


def _velox_batch() -> Timed:
    quota = shared_quota(QuotaMemory(16384, 2), 0, _PLENTY)

    def batch() -> None:
        now_ns = time.monotonic_ns()
        for _ in repeat(None, BATCH):
            quota.take(1, now_ns)

    return calls(batch)


def _velox_gate() -> Timed:
    limiter = _limiter(QuotaMemory(16384, 2), 0, Rates(rpm=60_000_000, burst=10_000_000), 1.0)

    def batch() -> None:
        now_ns = time.monotonic_ns()
        for _ in repeat(None, BATCH):
            limiter.admit(limiter.limits(_CALLER, None), NO_TOKENS, now_ns)

    return calls(batch)


def _locked_alone() -> Timed:
    bucket = LockedBucket(_PLENTY)
    return calls(lambda: bucket.take(1, time.monotonic_ns()))


def _locked_batch() -> Timed:
    bucket = LockedBucket(_PLENTY)

    def batch() -> None:
        now_ns = time.monotonic_ns()
        for _ in repeat(None, BATCH):
            bucket.take(1, now_ns)

    return calls(batch)


def _locked_once() -> Timed:
    bucket = LockedBucket(_PLENTY)
    return calls(lambda: bucket.take_each(BATCH, time.monotonic_ns()))


def _aio(n_inner: int) -> Timed:
    from aiolimiter import AsyncLimiter

    async def run(n: int) -> float:
        limiter, laps = AsyncLimiter(1e9, 1.0), repeat(None, n * n_inner)
        began_s = time.thread_time()
        for _ in laps:
            if limiter.has_capacity():
                await limiter.acquire()
        return time.thread_time() - began_s

    def timed(n: int) -> float:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(n))

    return timed


def _limits(n_inner: int) -> Timed:
    from limits import RateLimitItemPerHour
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter, item = FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerHour(10**12)

    def batch() -> None:
        for _ in repeat(None, n_inner):
            limiter.hit(item, "bench")

    return calls(partial(limiter.hit, item, "bench") if n_inner == 1 else batch)


_ALONE: Final = frozenset({"passed by another worker afterwards"})  # each worker would have a limit of its own

CASES: Final = (
    Case(
        "one request",
        (
            Candidate("Velox", _velox_alone, partial(_answers, _velox_limit)),
            Candidate("multiprocessing.Value and its lock", _locked_alone, partial(_answers, _locked_limit)),
            Candidate("aiolimiter", partial(_aio, 1), partial(_answers, _aio_limit), ("aiolimiter",), _ALONE),
            Candidate("limits, in memory", partial(_limits, 1), partial(_answers, _limits_limit), ("limits",), _ALONE),
        ),
    ),
    Case(
        "each of 64",
        (
            Candidate("Velox: the bucket", _velox_batch, partial(_answers, _velox_limit)),
            Candidate("Velox: the gate (finds the limits, takes, counts)", _velox_gate, partial(_answers, _gate_limit)),
            Candidate("multiprocessing.Value and its lock", _locked_batch, partial(_answers, _locked_limit)),
            Candidate("the same, locked once for all", _locked_once, partial(_answers, _locked_limit_once)),
            Candidate("aiolimiter", partial(_aio, BATCH), partial(_answers, _aio_limit), ("aiolimiter",), _ALONE),
            Candidate(
                "limits, in memory", partial(_limits, BATCH), partial(_answers, _limits_limit), ("limits",), _ALONE
            ),
        ),
        BATCH,
    ),
)
