"""The ways to choose, each before the same fleet of model servers in virtual time: what callers wait for a first token.

Four workers that share the counts of requests in flight and the table of prompts, and nothing else. Figures of
docs/decisions/0022-balancing.md are from here: `python -m tests.unit.policy.balance.test_balance_simulation` prints
them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.unit.policy.balance.balance_fleet import Request, Server, Story, conversations, play, poisson
from velox.policy.balance.bounded_hash import BoundedHash, Ring
from velox.policy.balance.candidates import Balancer, LeastInflight
from velox.policy.balance.peak_ewma import PeakEwma, PeakLatency
from velox.policy.balance.prefix import CELLS, PrefixAffinity, PrefixTable
from velox.policy.balance.round_robin import RoundRobin

WORKERS = 4
MEAN_TOKENS = 100
N_CACHED = 8  # servers of the fleet with caches


def skewed() -> list[Server]:
    """Return two servers, one of a third of their size, and one of a fifteenth."""
    return [
        Server(32),
        Server(32),
        Server(16, first_s=0.15, tokens_s=25.0),
        Server(8, first_s=0.4, tokens_s=12.0),
    ]


def capacities(servers: list[Server]) -> list[float]:
    """Return the answers a second of each."""
    return [server.slots / (server.first_s + MEAN_TOKENS / server.tokens_s) for server in servers]


def on_skewed(
    make: Callable[[], Balancer], load: float, *, fleets: int = 1, weighted: bool = False, seed: int = 2
) -> Story:
    """Play some skewed fleets at a part of their capacity. weighted: somebody has measured them."""
    servers = [server for _ in range(fleets) for server in skewed()]
    by_server = capacities(servers)
    requests = poisson(random.Random(seed), load * sum(by_server), 200.0, MEAN_TOKENS)
    return play(servers, make, requests, workers=WORKERS, weights=by_server if weighted else None)


def peak_ewma(n: int = 4, pairs: int = 2) -> Balancer:
    return PeakEwma([PeakLatency() for _ in range(n)], pairs=pairs)


LEARNING: dict[str, Callable[[], Balancer]] = {"least in flight": LeastInflight, "peak EWMA": peak_ewma}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("load", [0.09, 0.3, 0.6])
def test_load_is_put_where_there_is_room_for_it(name: str, load: float, seed: int) -> None:
    """On a skewed fleet the slowest of a hundred waits a fraction of what it does in turn, and the usual one less."""
    in_turn = on_skewed(RoundRobin, load, seed=seed)

    story = on_skewed(LEARNING[name], load, seed=seed)

    assert story.at(0.5) < in_turn.at(0.5) / 2
    assert story.at(0.99) < in_turn.at(0.99) / 4


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_latency_tells_what_load_alone_does_not(load: float) -> None:
    """A slow server with few requests is still slow: the line before it is not filled as far as that of the others."""
    assert on_skewed(peak_ewma, load).at(0.99) < on_skewed(LeastInflight, load).at(0.99) / 5


@pytest.mark.slow
def test_two_draws_are_too_few_among_unequals() -> None:
    """Of twelve, half are slow: a quarter of all pairs are two of those, which is more than they can serve."""
    two = on_skewed(lambda: peak_ewma(12, 1), 0.8, fleets=3)
    four = on_skewed(lambda: peak_ewma(12), 0.8, fleets=3)

    assert four.at(0.99) < 1.0 < 10.0 < two.at(0.99)


def test_server_that_stalls_gets_few_requests() -> None:
    """One of four begins answers only after 30 s; in 60 s fewer than one in a hundred goes there, none being heard."""
    servers = [Server(64), Server(64), Server(64), Server(64, first_s=30.0)]

    story = play(servers, peak_ewma, poisson(random.Random(1), 20.0, 60.0), workers=WORKERS)

    assert story.taken[3] < sum(story.taken) / 100


def cached() -> list[Server]:
    """Return servers that read 8 kB of a prompt in a second, and keep 500 kB of prompts."""
    return [Server(32, first_s=0.03, read_bytes_s=8_000.0, cache_chunks=2_000) for _ in range(N_CACHED)]


def table() -> PrefixTable:
    return PrefixTable(memoryview(bytearray(8 * CELLS)).cast("Q"))


def hashed() -> Balancer:
    return BoundedHash(Ring([f"m{member}" for member in range(N_CACHED)], [1.0] * N_CACHED))


def shared_table() -> Callable[[], Balancer]:
    one = table()
    return lambda: PrefixAffinity(one, range(N_CACHED))


def on_cached(make: Callable[[], Balancer], requests: list[Request], key_bytes: int | None = None) -> Story:
    return play(cached(), make, requests, workers=WORKERS, key_bytes=key_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_conversations_find_their_cache(rate: float) -> None:
    """Turns go where the earlier ones were: half as much is read, and the first token comes in half the time."""
    requests = conversations(random.Random(5), rate, 60.0)
    in_turn = on_cached(RoundRobin, requests)

    story = on_cached(shared_table(), requests)

    assert in_turn.hit_rate < 0.5
    assert story.hit_rate > 0.7
    assert story.at(0.5) < in_turn.at(0.5) / 1.8
    assert story.at(0.99) < in_turn.at(0.99) / 1.2


@pytest.mark.slow
def test_workers_that_share_the_table_find_more() -> None:
    """A conversation comes to another worker with each turn; what one knows all must know."""
    requests = conversations(random.Random(5), 4.0, 60.0)

    alone = on_cached(lambda: PrefixAffinity(table(), range(N_CACHED)), requests)

    assert on_cached(shared_table(), requests).hit_rate > alone.hit_rate + 0.1


def test_one_prompt_of_all_does_not_fill_one_member() -> None:
    """All conversations have the same system prompt: each member learns it, none has half as much again as the mean."""
    rng = random.Random(6)
    head = rng.randbytes(6_000)
    requests = [
        Request(request.at_s, request.tokens, head + rng.randbytes(1_000)) for request in poisson(rng, 40.0, 30.0)
    ]

    story = on_cached(shared_table(), requests)

    assert max(story.taken) < 1.5 * sum(story.taken) / N_CACHED
    assert story.hit_rate > 0.75


def main() -> None:
    """Print the figures."""
    for fleets in (1, 3):
        n = 4 * fleets
        ways: list[tuple[str, Callable[[], Balancer], bool]] = [
            ("round robin", RoundRobin, False),
            ("round robin, weights right", RoundRobin, True),
            ("least in flight", LeastInflight, False),
            ("least in flight, weights right", LeastInflight, True),
            ("peak EWMA of two", lambda n=n: peak_ewma(n, 1), False),  # type: ignore[misc]
            ("peak EWMA", lambda n=n: peak_ewma(n), False),  # type: ignore[misc]
        ]
        for load in (0.09, 0.3, 0.6, 0.8, 0.9):
            for name, make, weighted in ways:
                story = on_skewed(make, load, fleets=fleets, weighted=weighted)
                print(f"{n:3} {load:4} {name:31} p50 {story.at(0.5):.2f} s  p99 {story.at(0.99):.1f} s")
    for rate in (2.0, 12.0, 24.0):
        requests = conversations(random.Random(5), rate, 120.0)
        affine: list[tuple[str, Callable[[], Balancer], int | None]] = [
            ("round robin", RoundRobin, None),
            ("least in flight", LeastInflight, None),
            ("hash of 1 kB", hashed, 1024),
            ("hash of 3 kB", hashed, 3072),
            ("prefix, a table each", lambda: PrefixAffinity(table(), range(N_CACHED)), None),
            ("prefix", shared_table(), None),
        ]
        for name, make, key_bytes in affine:
            story = on_cached(make, requests, key_bytes)
            busiest = max(story.taken) * N_CACHED / sum(story.taken)
            print(
                f"{rate:4} {name:20} hits {story.hit_rate:.0%}  p50 {story.at(0.5):.2f} s  p99 {story.at(0.99):.2f} s"
                f"  busiest {busiest:.2f}"
            )


if __name__ == "__main__":
    main()
