"""A worker collects garbage when it has too much memory, and seldom beside requests."""

from __future__ import annotations

from velox.policy.resources import GarbageWatch

MIB = 2**20


def looks(watch: GarbageWatch, sizes: list[int], *, is_idle: bool = False, is_over: bool = False) -> list[int]:
    """Look once for each size; return the looks at which it collected, 10 ms each."""
    found = []
    for n, n_bytes in enumerate(sizes):
        if watch.is_due(n_bytes, n, is_idle=is_idle, is_over=is_over):
            found.append(n)
            watch.collected(n_bytes, n, 0.01)
    return found


def test_busy_worker_whose_memory_does_not_grow_never_collects() -> None:
    """A collection looks at every object: a pause for nothing."""
    assert looks(GarbageWatch(), [40 * MIB, 90 * MIB, 60 * MIB] * 1000) == []


def test_growth_over_the_least_since_the_last_one_is_collected() -> None:
    """64 MiB, and the same once more after that, while nothing runs."""
    watch = GarbageWatch()
    watch.collected(100 * MIB, 0, 0.01)

    found = looks(watch, [MIB * (100 + n) for n in range(200)], is_idle=True)

    assert found == [64, 128, 192]


def test_growth_beside_requests_is_collected_once_a_minute() -> None:
    """What has grown is mostly theirs, and each collection makes them wait."""
    watch = GarbageWatch()
    watch.collected(100 * MIB, 0, 0.01)

    found = looks(watch, [MIB * (100 + n) for n in range(600)])

    assert found == [240, 480]


def test_memory_over_its_limit_is_collected_at_once_and_every_five_seconds() -> None:
    assert looks(GarbageWatch(), [100 * MIB] * 61, is_over=True) == [0, 20, 40, 60]


def test_worker_at_rest_collects_once_a_minute() -> None:
    assert looks(GarbageWatch(), [100 * MIB] * 481, is_idle=True) == [0, 240, 480]


def test_what_takes_long_is_done_less_often() -> None:
    """Two percent of the time at most, and a thousandth of it at rest."""
    watch = GarbageWatch()
    watch.collected(MIB, 0, 0.5)

    assert not watch.is_due(500 * MIB, 99, is_idle=True, is_over=True)
    assert watch.is_due(500 * MIB, 100, is_idle=False, is_over=True)
    assert not watch.is_due(MIB, 1999, is_idle=True, is_over=False)
    assert watch.is_due(MIB, 2000, is_idle=True, is_over=False)
