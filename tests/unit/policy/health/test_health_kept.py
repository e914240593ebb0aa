"""What a group keeps of its last look is what it would find: whatever happened to its members and keys since."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.health.group import GroupHealth
from velox.policy.health.keys import Changes, Keys
from velox.policy.health.member import ActiveRules, MemberHealth, MemberRules, ProbeSchedule, Verdict

N = 4
# Longer than what is looked at again and again while somebody is quiet or warms up.
STEPS_S = (0.0, 0.06, 0.3, 1.0, 2.1, 12.0)
EVENTS = ("begin", "answers", "unreachable", "reachable", "probe-good", "probe-bad", "key-429", "key-401", "key-well")

event = st.tuples(st.sampled_from((*EVENTS, *Verdict)), st.integers(0, N - 1), st.sampled_from(STEPS_S))


class Bed:
    """Members with whatever may happen to them. Two of them have keys, one of each is probed."""

    def __init__(self) -> None:
        changes = Changes()
        self.now_s = 100.0
        self.keys = Keys(2, changes=changes)
        self.members = [
            MemberHealth(
                MemberRules(),
                self.now_s,
                keys=self.keys if n < 2 else None,
                active=ProbeSchedule(ActiveRules(), self.now_s, 0.5) if n % 2 else None,
                is_new=False,
                changes=changes,
            )
            for n in range(N)
        ]
        self.began_s: list[list[float]] = [[] for _ in range(N)]
        self.group = self.fresh()

    def fresh(self) -> GroupHealth:
        return GroupHealth(self.members, [1.0, 2.0, 2.0, 3.0])

    def happens(self, what: str | Verdict, n: int) -> None:
        member, began_s = self.members[n], self.began_s[n]
        if what == "begin":
            member.begin(self.now_s)
            began_s.append(self.now_s)
        elif what == "answers" and began_s:
            first_s = began_s.pop(0)
            member.answers(first_s, self.now_s)
            self.group.ended(n, Verdict.WELL, first_s, self.now_s, answered=True)
        elif what in ("reachable", "unreachable"):
            member.is_reachable = what == "reachable"
        elif what in ("probe-good", "probe-bad") and member.active is not None:
            member.active.begin(self.now_s, 0.5)
            member.probed(what == "probe-good", self.now_s)
        elif isinstance(what, str) and what.startswith("key-"):
            self.keys.begin(n % 2, self.now_s)
            status = {"key-429": 429, "key-401": 401}.get(what, 200)
            self.keys.answered(n % 2, status, [], self.now_s, self.now_s, 1e9)
        elif isinstance(what, Verdict) and began_s:
            self.group.ended(n, what, began_s.pop(0), self.now_s, answered=False)


@settings(deadline=None, max_examples=300)
@given(st.lists(event, max_size=60))
def test_what_is_kept_is_what_a_look_would_find(events: list[tuple[str | Verdict, int, float]]) -> None:
    """Weights, probes and panic are the same as those of a group that looks for the first time."""
    bed = Bed()
    for what, n, step_s in events:
        bed.happens(what, n)
        bed.now_s += step_s
        kept, found = bed.group, bed.fresh()
        assert list(kept.weights(bed.now_s)) == pytest.approx(list(found.weights(bed.now_s)), rel=0.02)
        assert kept.probe(bed.now_s) == found.probe(bed.now_s)
        assert (kept.n_in, kept.is_panicking) == (found.n_in, found.is_panicking)


def test_five_that_wait_after_a_long_silence_are_noticed_at_once() -> None:
    """Four say nothing; the fifth makes it a matter of now, not of the next look."""
    bed = Bed()
    for _ in range(4):
        bed.happens("begin", 2)
    bed.now_s += 60.0
    assert bed.group.weights(bed.now_s)[2] == 2.0

    bed.happens("begin", 2)

    assert bed.group.weights(bed.now_s)[2] == 0.0
    bed.happens("answers", 2)
    assert bed.group.weights(bed.now_s)[2] == 2.0


def test_silence_is_noticed_when_it_is_too_long_not_at_the_next_look() -> None:
    """It began before the last look, so it is over the limit sooner than that look's two seconds; and ends at once."""
    bed = Bed()
    bed.happens("begin", 2)
    bed.now_s += 0.01
    bed.happens("answers", 2)
    for _ in range(5):
        bed.happens("begin", 2)
    bed.now_s += 1.5
    assert bed.group.weights(bed.now_s)[2] == 2.0
    bed.now_s += 0.6
    assert bed.group.weights(bed.now_s)[2] == 0.0

    bed.happens("answers", 2)

    assert bed.group.weights(bed.now_s)[2] == 2.0


def test_nobody_is_looked_at_while_nothing_changes() -> None:
    """A choice among thousands costs what one among two does."""
    looks = 0

    class Counting(MemberHealth):
        __slots__ = ()

        def holds_until_s(self, now_s: float) -> float:
            nonlocal looks
            looks += 1
            return super().holds_until_s(now_s)

    changes = Changes()
    group = GroupHealth([Counting(MemberRules(), 0.0, is_new=False, changes=changes) for _ in range(8)], [1.0] * 8)
    for at in range(100):
        group.probe(50.0 + at * 0.01)
        group.weights(50.0 + at * 0.01)
        group.begin(at % 8, 50.0 + at * 0.01)
        group.answers(at % 8, 50.0 + at * 0.01, 50.0 + at * 0.01)

    assert looks == 8
    assert group.even is group.weights(51.0)
