"""What a choice costs, in µs for 2, 16 and 256 members, best of 9.

`python -m tests.unit.policy.balance.balance_bench` prints it.
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable, Sequence

from velox.policy.balance.bounded_hash import BoundedHash, Ring
from velox.policy.balance.candidates import Balancer, Candidates, LeastInflight
from velox.policy.balance.peak_ewma import PeakEwma, PeakLatency
from velox.policy.balance.prefix import CELLS, PrefixAffinity, PrefixTable
from velox.policy.balance.round_robin import RoundRobin

N = 4096
SIZES = (2, 16, 256)
rng = random.Random(1)
chances = [rng.random() for _ in range(N)]


def peak_ewma(n: int) -> Balancer:
    latencies = [PeakLatency() for _ in range(n)]
    for latency in latencies:
        latency.heard(rng.random(), 999.0)
    return PeakEwma(latencies)


def hashed(n: int) -> Balancer:
    return BoundedHash(Ring([f"m{member}" for member in range(n)], [1.0] * n))


def prefix(n: int) -> Balancer:
    return PrefixAffinity(PrefixTable(memoryview(bytearray(8 * CELLS)).cast("Q")), range(n))


def cost_us(make: Callable[[int], Balancer], n: int, keys: Sequence[bytes], weights: list[float]) -> float:
    candidates = Candidates(weights, [rng.randrange(4) for _ in range(n)])
    fresh = [make(n)]

    def begin() -> None:
        if keys[0]:
            fresh[0] = make(n)

    def choose_all() -> None:
        pick = fresh[0].pick
        for chance, key in zip(chances, keys, strict=True):
            pick(candidates, 1000.0, chance, key)

    return min(timeit.repeat(choose_all, begin, number=1, repeat=9)) / N * 1e6


def main() -> None:
    head = rng.randbytes(600)
    none = [b""] * N
    ways: list[tuple[str, Callable[[int], Balancer], list[bytes]]] = [
        ("round robin", lambda n: RoundRobin(), none),
        ("least in flight", lambda n: LeastInflight(), none),
        ("peak EWMA", peak_ewma, none),
        ("hash of a user", hashed, [f"user-{number}".encode() for number in range(N)]),
        ("prefix, 2 kB, known", prefix, [head + rng.randbytes(1400)] * N),
        ("prefix, 2 kB, all new", prefix, [head + rng.randbytes(1400) for _ in range(N)]),
        ("prefix, 8 kB, known", prefix, [head + rng.randbytes(7600)] * N),
    ]
    for name, make, keys in ways:
        equal = [cost_us(make, n, keys, [1.0] * n) for n in SIZES]
        unequal = [cost_us(make, n, keys, [1.0 + member % 2 for member in range(n)]) for n in SIZES]
        print(f"{name:22}", *(f"{cost:6.1f}" for cost in equal), "   weights differ", *(f"{c:6.1f}" for c in unequal))


if __name__ == "__main__":
    main()
