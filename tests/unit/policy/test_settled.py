"""A change is told once it has looked the same twice, and until it is taken."""

from __future__ import annotations

from velox.policy.settled import Settled


def test_what_stays_is_no_change_and_looked_at_twice_a_second() -> None:
    """The first look is due at once, each other one half a second later."""
    settled = Settled("a")

    assert settled.is_due(100.0)
    assert not settled.see("a", 100.0)
    assert [settled.is_due(100.0 + later_s) for later_s in (0.0, 0.25, 0.49, 0.5)] == [False, False, False, True]
    assert not settled.see("a", 100.5)


def test_change_is_told_at_the_second_look_which_comes_sooner() -> None:
    """A fifth of a second, not half of one."""
    settled = Settled("a")

    assert not settled.see("b", 100.0)
    assert (settled.is_due(100.15), settled.is_due(100.25)) == (False, True)
    assert settled.see("b", 100.25)


def test_change_that_goes_on_changing_is_not_told() -> None:
    """A file that is being written."""
    settled = Settled("")

    assert not any(settled.see("x" * n, 100.0 + n / 4) for n in range(1, 20))
    assert settled.see("x" * 19, 110.0)


def test_change_that_is_taken_back_is_forgotten() -> None:
    """Then it counts anew: once seen before that is not twice."""
    settled = Settled("a")

    found = [settled.see(mark, 100.0 + turn) for turn, mark in enumerate(["b", "a", "b", "b"])]

    assert found == [False, False, False, True]


def test_change_is_told_again_until_it_is_taken() -> None:
    """Who can't use it yet sees for how long it has looked so, from its first sight on."""
    settled = Settled("a")
    settled.see("b", 100.0)

    assert settled.see("b", 100.25) and settled.see("b", 101.0)
    assert settled.doubtful_s(101.0) == 1.0
    settled.take("b")
    assert not settled.see("b", 101.5)
    assert not settled.see("c", 102.0)
    assert settled.see("c", 102.25) and settled.doubtful_s(102.25) == 0.25


def test_unchanged_after_taking_is_quiet_and_the_old_content_is_a_change() -> None:
    """Back to what was before is a change like any other."""
    settled = Settled("a")
    settled.take("b")

    assert [settled.see("a", 100.0), settled.see("a", 100.25)] == [False, True]
