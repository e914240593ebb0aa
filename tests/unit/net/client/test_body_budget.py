"""The bytes that all bodies of a worker may hold."""

from __future__ import annotations

from velox.net.client.body_budget import FIRST_BYTES, BodyBudget


class Waiter:
    def __init__(self) -> None:
        self.granted: list[int] = []
        self.refused = 0

    def budget_granted(self, n_bytes: int) -> None:
        self.granted.append(n_bytes)

    def budget_refused(self) -> None:
        self.refused += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_budget_at_its_limit_makes_the_next_wait() -> None:
    """Exactly the limit fits; one byte more waits until room is given back."""
    budget, first, second = BodyBudget(10, 5.0, Clock()), Waiter(), Waiter()

    assert budget.take(first, 10)
    assert not budget.take(second, 1)
    budget.give(10)

    assert second.granted == [1]
    assert budget.taken_bytes == 1


def test_small_body_does_not_overtake_a_waiting_large_one() -> None:
    """First come, first served: a large body is not starved by small ones."""
    budget, large, small = BodyBudget(10, 5.0, Clock()), Waiter(), Waiter()
    budget.take(Waiter(), 6)

    assert not budget.take(large, 10)
    assert not budget.take(small, 1)
    budget.give(6)

    assert large.granted == [10]
    assert small.granted == []


def test_waiter_is_refused_when_its_time_is_over() -> None:
    """A body waits for room as long as a request may wait in the queue, and takes nothing if none came."""
    clock = Clock()
    budget, waiter = BodyBudget(10, 5.0, clock), Waiter()
    budget.take(Waiter(), 10)
    budget.take(waiter, 1)

    clock.now += 4.9
    budget.expire()
    assert waiter.refused == 0
    clock.now += 0.1
    budget.expire()

    assert waiter.refused == 1
    assert budget.taken_bytes == 10


def test_client_that_left_the_line_gets_nothing() -> None:
    """forget() takes a waiter out; the one behind it moves up."""
    budget, gone, next_one = BodyBudget(10, 5.0, Clock()), Waiter(), Waiter()
    budget.take(Waiter(), 10)
    budget.take(gone, 5)
    budget.take(next_one, 5)

    budget.forget(gone)
    budget.give(5)

    assert gone.granted == []
    assert next_one.granted == [5]
    assert budget.taken_bytes == 10


def test_waiter_behind_one_that_left_or_was_refused_is_let_in() -> None:
    """What fits now is granted now: nothing else may ever be given back."""
    clock = Clock()
    budget, gone, refused, last = BodyBudget(10, 5.0, clock), Waiter(), Waiter(), Waiter()
    budget.take(Waiter(), 6)
    budget.take(gone, 8)
    budget.take(refused, 7)
    clock.now += 1.0
    budget.take(last, 2)

    budget.forget(gone)
    assert last.granted == []
    clock.now += 4.0
    budget.expire()

    assert refused.refused == 1
    assert last.granted == [2]
    assert budget.taken_bytes == 8


def test_body_that_has_begun_gives_way_to_those_that_wait() -> None:
    """One that is small yet takes what is free; a larger one takes no more while others wait. Neither waits itself."""
    budget, waiter = BodyBudget(4 * FIRST_BYTES, 5.0, Clock()), Waiter()

    assert budget.take(Waiter(), FIRST_BYTES)
    assert budget.take_more(2 * FIRST_BYTES - 1, FIRST_BYTES)
    assert budget.take_more(1, 3 * FIRST_BYTES - 1), "nobody waits"
    assert not budget.take_more(FIRST_BYTES + 1, 3 * FIRST_BYTES), "there is no room"
    assert budget.take_more(FIRST_BYTES - 1, 0)
    assert not budget.take(waiter, 2)
    assert not budget.take_more(1, 3 * FIRST_BYTES)
    assert budget.take_more(1, FIRST_BYTES - 1), "less than anybody takes with a head"
    assert budget.taken_bytes == 4 * FIRST_BYTES

    budget.give(3 * FIRST_BYTES)
    assert waiter.granted == [2]


def test_replies_may_hold_half_of_it() -> None:
    """What clients don't read must not keep the bodies of others out."""
    budget = BodyBudget(10, 5.0, Clock())

    assert [budget.take_for_reply(n) for n in (4, 2, 1, 1)] == [True, False, True, False]
    assert budget.take_now(5) and not budget.take_now(1)
    budget.give_of_reply(4)
    assert budget.take_now(2) and budget.take_for_reply(2) and not budget.take_for_reply(1)


def test_one_reply_has_room_however_long_it_is() -> None:
    """Else a small budget would refuse what is large to everybody."""
    budget = BodyBudget(10, 5.0, Clock())

    assert budget.take_for_reply(50) and not budget.take_for_reply(1) and not budget.take_now(1)
    budget.give_of_reply(50)
    assert budget.taken_bytes == 0
