"""The buckets of Redis without Redis: what lease_redis.py does, in Python, at a time that the test sets.

Knows: the script's rules. tests/sockets/test_lease_redis.py verifies that it and the script say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.runtime.leases.lease_redis import BucketAnswer, BucketQuery

__all__ = ["Buckets"]


class Buckets:
    """One server. Times in nanoseconds."""

    def __init__(self) -> None:
        self.tats: dict[bytes, int] = {}

    def ask(self, asks: Sequence[BucketQuery], now_ns: int) -> list[BucketAnswer]:
        """Answer as the script does."""
        return [self._answer(ask, now_ns) for ask in asks]

    def _answer(self, ask: BucketQuery, now_ns: int) -> BucketAnswer:
        full_ns = ask.burst * ask.interval_ns
        stored = self.tats.get(ask.name)
        tat = stored or 0
        if stored is None or ask.recover:
            tat = max(tat, now_ns + ask.ahead_ns)
        tat = max(tat - ask.back * ask.interval_ns, now_ns - ask.since_ns) + ask.debt * ask.interval_ns
        tat = max(tat, now_ns)
        granted = 0
        for n, times in ask.pairs:
            for _ in range(times):
                if n <= ask.burst and tat + n * ask.interval_ns <= now_ns + full_ns + ask.max_wait_ns:
                    tat += n * ask.interval_ns
                    granted += n
        ready_ns = max(0, tat - full_ns - now_ns) if granted else 0
        spare = max(0, min(ask.want, (now_ns + full_ns - tat) // ask.interval_ns))
        tat += spare * ask.interval_ns
        if stored is not None or tat > now_ns:  # a bucket that is full and was never used is not kept
            self.tats[ask.name] = tat
        return BucketAnswer(granted + spare, tat - now_ns, ready_ns)
