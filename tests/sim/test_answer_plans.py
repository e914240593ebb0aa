"""The plan of the simulator's answers: who is late and by how much, who stops, and that a seed repeats it."""

from __future__ import annotations

from dataclasses import replace

from velox_sim.engine import AnswerPlanner
from velox_sim.options import SimOptions
from velox_sim.shapes import UNDISTURBED, AnswerPlan

SEEDED = SimOptions(seed=1)


def planner(options: SimOptions, n: int = 1000) -> list[AnswerPlan]:
    """Return the planner of the first n answers, each with 30 tokens of the prompt to compute, 100 in all."""
    made = AnswerPlanner(options)
    return [made.next(30, 100) for _ in range(n)]


def test_course_without_options_is_smooth() -> None:
    """Nothing is late, nothing stops, and nothing is made for it."""
    assert all(plan is UNDISTURBED for plan in planner(SEEDED, 10))


def test_prompt_makes_an_answer_late_by_what_is_to_compute() -> None:
    """30 tokens at 60 a second: half a second."""
    assert planner(replace(SEEDED, prefill_rate=60), 2) == [AnswerPlan(0.5, None, 100)] * 2


def test_memory_is_counted_where_there_is_a_cache() -> None:
    """Else nobody asks how much of it is used."""
    assert planner(replace(SEEDED, prefix_cache=16), 1) == [AnswerPlan(0.0, None, 100)]


def test_share_is_slow_and_another_share_stalls() -> None:
    """Each by its own chance: of those that stall as many are slow as of the others."""
    made = planner(replace(SEEDED, slow_rate=0.3, slow_by_s=2.0, stall_rate=0.2, stall_after=5, prefill_rate=60))

    assert {plan.late_s for plan in made} == {0.5, 2.5}
    assert {plan.stops_after for plan in made} == {None, 5}
    n_slow = sum(plan.late_s == 2.5 for plan in made)
    n_stalled = sum(plan.stops_after == 5 for plan in made)
    n_both = sum(plan.late_s == 2.5 and plan.stops_after == 5 for plan in made)
    assert 250 < n_slow < 350
    assert 150 < n_stalled < 250
    assert 30 < n_both < 90


def test_seed_repeats_the_choice() -> None:
    """The same seed, the same planner; another one, others; and all of them where the share is 1."""
    options = replace(SEEDED, slow_rate=0.5)

    assert planner(options) == planner(options) != planner(replace(options, seed=2))
    assert {plan.late_s for plan in planner(replace(options, slow_rate=1.0))} == {1.0}
