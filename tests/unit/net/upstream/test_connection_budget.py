"""The connections of a worker: never more than it may have open, and first for callers that wait."""

from __future__ import annotations

from velox.net.upstream.connection_budget import ConnectionBudget


class Pool:
    """A pool with connections that idle since the times given."""

    def __init__(self, budget: ConnectionBudget) -> None:
        self.budget = budget
        self.idle_since_s: list[float] = []
        self.wants_warm = False
        self.n_told = 0

    def idle_s(self, now_s: float) -> float | None:
        return now_s - min(self.idle_since_s) if self.idle_since_s else None

    def close_idle(self, now_s: float) -> None:
        self.idle_since_s.remove(min(self.idle_since_s))
        self.budget.release(self)
        if self.wants_warm:
            assert not self.budget.take(self), "the place is for another one"

    def on_budget(self) -> None:
        self.n_told += 1


def test_no_more_are_open_than_may_be() -> None:
    """Of all pools together."""
    budget = ConnectionBudget(3)
    one, other = Pool(budget), Pool(budget)

    assert [budget.take(each) for each in (one, other, one, other)] == [True, True, True, False]
    budget.release(one)
    assert [budget.take(other), budget.take(one)] == [True, False]


def test_callers_get_the_place_of_what_has_idled_longest() -> None:
    """Whose it was does not take it back for a warm connection of its own."""
    budget = ConnectionBudget(3)
    one, two, other = (Pool(budget) for _ in range(3))
    for pool, since_s in ((one, 5.0), (two, 3.0), (two, 4.0)):
        assert budget.take(pool)
        pool.idle_since_s.append(since_s)
        pool.wants_warm = True

    assert budget.take_for_callers(other, 10.0)
    assert (one.idle_since_s, two.idle_since_s) == ([5.0], [4.0])
    assert budget.take_for_callers(other, 10.0)
    assert (one.idle_since_s, two.idle_since_s) == ([5.0], [])
    assert not budget.take(two)


def test_callers_that_found_none_hear_of_the_next_in_order() -> None:
    """Also when a pool leaves with all that it had; one that has left itself hears of nothing."""
    budget = ConnectionBudget(2)
    busy, first, second, gone = (Pool(budget) for _ in range(4))
    assert budget.take(busy) and budget.take(busy)
    for pool in (gone, first, second, first):
        assert not budget.take_for_callers(pool, 1.0)
    budget.leave(gone)

    first.on_budget = lambda: setattr(first, "n_told", first.n_told + budget.take(first))  # type: ignore[method-assign]
    budget.release(busy)
    assert (gone.n_told, first.n_told, second.n_told) == (0, 1, 0)
    budget.leave(busy)
    assert second.n_told == 1
    assert repr(budget) == "<ConnectionBudget 1 of 2>"


def test_lone_connection_takes_the_place_of_an_idle_one_and_waits_for_none() -> None:
    """It is a WebSocket's, and counts as a pool's does."""
    budget = ConnectionBudget(2)
    pool, other = Pool(budget), Pool(budget)
    assert budget.take(pool) and budget.take(pool)
    pool.idle_since_s.append(3.0)

    assert budget.take_lone(10.0)
    assert not pool.idle_since_s
    assert not budget.take_lone(11.0), "none is idle any more"
    assert not budget.take_for_callers(other, 12.0)
    budget.release_lone()
    assert other.n_told == 1
    assert repr(budget) == "<ConnectionBudget 1 of 2>"


def test_share_of_a_pool_is_of_what_lone_connections_leave() -> None:
    """Else a pool with all of the rest would not yield to one that has nothing."""
    budget = ConnectionBudget(8)
    busy, other = Pool(budget), Pool(budget)
    assert all(budget.take_lone(1.0) for _ in range(4)) and all(budget.take(busy) for _ in range(4))
    assert not budget.take_for_callers(other, 2.0)
    assert budget.must_yield(busy)
