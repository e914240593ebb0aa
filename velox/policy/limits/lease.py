"""How much of a limit one gateway takes from Redis in advance, when it gives it back, and what it does on its own.

Knows: the amounts, and what a permit of a shared bucket means for one of several gateways. Does not know: Redis, where
permits are kept (velox.shm.leased), or a clock.

Theory. The bucket in Redis is charged before a permit is used, so what all gateways use together is never more than
what the bucket gave: burst + elapsed / interval. What a gateway holds and does not use is missing elsewhere, so it
holds little, `block()`, and not for long. A limit that is too small for a block has none: then each request asks.

On its own (Redis can't be asked) each of R gateways has a bucket of burst / R that fills R times slower. It takes as
long to fill as the shared one, so one number, how far the TAT is ahead of now, says how full either is: the bucket of
its own starts where the shared one stood. What it gives is a debt, which the shared one is charged with afterwards.
"""

from __future__ import annotations

from typing import Final

from velox.policy.limits.token_bucket import BucketRate

__all__ = [
    "BACK_AFTER_NS",
    "FRESH_NS",
    "block",
    "low_mark",
    "missing",
    "own_share",
    "pairs",
    "retry_ns",
    "surplus",
]

# A block is at most this part of the burst, and what the limit gives in so long, over all gateways together.
_BURST_PART: Final = 20
_BLOCK_NS: Final = 100_000_000
# What Redis said of a bucket is good for a refusal for so long: others may have given permits back since.
FRESH_NS: Final = 100_000_000
# A lease that nobody used for so long goes back.
BACK_AFTER_NS: Final = 1_000_000_000
# How long it takes until Redis is tried again: at first, and at most.
_RETRY_FIRST_NS: Final = 100_000_000
_RETRY_MAX_NS: Final = 1_000_000_000


def block(rate: BucketRate, replicas: int) -> int:
    """Return how many permits one of `replicas` gateways holds in advance; 0: none."""
    if not rate.interval_ns:
        return 0
    return min(rate.burst // _BURST_PART, _BLOCK_NS // rate.interval_ns) // max(1, replicas)


def low_mark(size: int) -> int:
    """Return below which number of permits more should come before all are used up; 0: nothing comes in advance."""
    return (size + 1) // 2


def missing(balance: int, size: int) -> int:
    """Return how many permits make a lease whole again, if there are that many to spare."""
    return max(0, size - max(0, balance))


def surplus(balance: int, before: int, size: int) -> int:
    """Return how many permits may go back: more than a block, now and a moment ago (answers that cost too little)."""
    return max(0, min(balance, before) - size)


def own_share(rate: BucketRate, replicas: int, n: int) -> BucketRate:
    """Return the bucket of one gateway on its own, for a request of `n` permits.

    A request that the whole limit would let through passes when its share is full, however small the share is; what it
    takes more than that is a debt.
    """
    if n > rate.burst:
        return rate
    replicas = max(1, replicas)
    return BucketRate(rate.interval_ns * replicas, max(rate.burst // replicas, n, 1), rate.max_wait_ns)


def pairs(needs: list[int], balance: int, most: int) -> list[tuple[int, int]]:
    """Return what to ask for: (permits, how often), in the order in which they came, at most `most` pairs.

    What is held already goes to those that came first.
    """
    asked: list[tuple[int, int]] = []
    for n in needs:
        held = min(max(balance, 0), n)
        balance -= held
        n -= held
        if not n:
            continue
        if asked and asked[-1][0] == n:
            asked[-1] = (n, asked[-1][1] + 1)
        elif len(asked) < most:
            asked.append((n, 1))
        else:
            break
    return asked


def retry_ns(before_ns: int) -> int:
    """Return how long to leave Redis alone after another failure; before_ns: as long as the last time, 0 at first."""
    return min(max(2 * before_ns, _RETRY_FIRST_NS), _RETRY_MAX_NS)
