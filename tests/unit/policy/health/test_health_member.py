"""What puts a member out or to rest, and how it comes back."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.state import state_of
from velox.errors import Reason
from velox.policy.health.breaker import PROBE_EVERY_S, PROBE_PENDING_S, Breaker, BreakerRules
from velox.policy.health.member import (
    EJECTION,
    SILENT_S,
    ActiveRules,
    MemberHealth,
    MemberRules,
    ProbeSchedule,
    State,
    Verdict,
    of_failure,
    of_giving_up,
    of_status,
)


def new() -> MemberHealth:
    return MemberHealth(MemberRules(), 0.0, is_new=False)


def tell(member: MemberHealth, verdict: Verdict, now_s: float, n: int = 1, *, cooldown_s: float | None = None) -> None:
    """Attempts that end as they begin."""
    for _ in range(n):
        member.begin(now_s)
        answered = verdict in (Verdict.WELL, Verdict.CUT)
        if answered:
            member.answers(now_s, now_s)
        member.ended(verdict, now_s, now_s, answered=answered, cooldown_s=cooldown_s)


def until_probe(member: MemberHealth, now_s: float) -> float:
    """Return when the next probe is wanted."""
    while not member.wants_probe(now_s):
        now_s += 0.01
    return now_s


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.WELL),
        (400, Verdict.WELL),
        (401, Verdict.KEY),
        (403, Verdict.KEY),
        (404, Verdict.WELL),
        (408, Verdict.WELL),
        (429, Verdict.QUOTA),
        (499, Verdict.WELL),
        (500, Verdict.FAULT),
        (502, Verdict.FAULT),
        (503, Verdict.BUSY),
        (504, Verdict.FAULT),
    ],
)
def test_status_says_whose_fault_it_is(status: int, verdict: Verdict) -> None:
    """F-23 to F-26: a 4xx never speaks against the member."""
    assert of_status(status) is verdict


@pytest.mark.parametrize(
    ("reason", "unprocessed", "verdict"),
    [
        (Reason.UPSTREAM_CONNECT, False, Verdict.FAULT),
        (Reason.UPSTREAM_TTFB_TIMEOUT, False, Verdict.FAULT),
        (Reason.UPSTREAM_RESET, False, Verdict.FAULT),
        (Reason.UPSTREAM_RESET, True, Verdict.NOTHING),
        (Reason.UPSTREAM_TRUNCATED, False, Verdict.CUT),
        (Reason.UPSTREAM_IDLE_TIMEOUT, False, Verdict.CUT),
        (Reason.UPSTREAM_TOTAL_TIMEOUT, False, Verdict.NOTHING),
        (Reason.UPSTREAM_REDIRECT, False, Verdict.WELL),
        (Reason.BODY_TIMEOUT, False, Verdict.FAULT),
        (Reason.CONN_LIMIT, False, Verdict.NOTHING),
        (Reason.QUEUE_TIMEOUT, False, Verdict.NOTHING),
        (Reason.INTERNAL, False, Verdict.NOTHING),
    ],
)
def test_failure_says_what_it_says(reason: Reason, unprocessed: bool, verdict: Verdict) -> None:
    """A reply may be long, a stream refused in good health; a cut is a fault that began well; Velox's own are none."""
    assert of_failure(reason, unprocessed=unprocessed) is verdict


def test_only_long_silence_before_a_byte_speaks_against_a_member() -> None:
    """A client that leaves at once, or in the middle of a reply, says nothing."""
    assert of_giving_up(SILENT_S, answered=False) is Verdict.SILENT
    assert of_giving_up(SILENT_S - 0.1, answered=False) is Verdict.NOTHING
    assert of_giving_up(1000.0, answered=True) is Verdict.NOTHING


@pytest.mark.parametrize("verdict", [Verdict.FAULT, Verdict.CUT, Verdict.SILENT])
def test_faults_in_a_row_put_it_out(verdict: Verdict) -> None:
    """One fewer does not."""
    member = new()
    tell(member, verdict, 1.0, EJECTION.faults - 1)
    assert member.state(1.0) is State.IN
    tell(member, verdict, 1.0)
    assert member.state(1.0) is State.OUT


@pytest.mark.parametrize("verdict", [Verdict.WELL, Verdict.KEY, Verdict.QUOTA, Verdict.BUSY, Verdict.NOTHING])
def test_what_is_no_fault_never_puts_it_out(verdict: Verdict) -> None:
    """However often."""
    member = new()
    for second in range(100):
        tell(member, verdict, float(second))
        assert member.state(float(second)) is not State.OUT


def test_it_comes_back_after_two_good_probes_with_a_slow_start() -> None:
    """One a second, each counted once though it tells twice that it is well."""
    member = new()
    tell(member, Verdict.FAULT, 1.0, EJECTION.faults)
    assert not member.wants_probe(1.5)
    now_s = until_probe(member, 1.5)
    tell(member, Verdict.WELL, now_s)
    assert member.state(now_s) is State.OUT and not member.wants_probe(now_s + PROBE_EVERY_S - 0.01)
    now_s += PROBE_EVERY_S
    assert member.wants_probe(now_s)
    tell(member, Verdict.WELL, now_s)
    assert member.state(now_s) is State.IN
    assert member.warmth(now_s) == pytest.approx(0.1)
    assert member.warmth(now_s + 5.0) == pytest.approx(0.5)
    assert member.warmth(now_s + 10.0) == 1.0


def test_each_time_it_is_out_longer_and_calm_forgets() -> None:
    """1 s, 2, 4, 8, 12, 12, from the end of the probe that failed; after a while without, 1 s again."""
    member, now_s, holds = new(), 100.0, []
    tell(member, Verdict.FAULT, now_s, EJECTION.faults)
    for _ in range(6):
        probed_s = until_probe(member, now_s)
        holds.append(probed_s - now_s)
        now_s = probed_s
        tell(member, Verdict.FAULT, now_s)
    assert holds == pytest.approx([1.0, 2.0, 4.0, 8.0, 12.0, 12.0], abs=0.03)

    for _ in range(EJECTION.probes):
        now_s = until_probe(member, now_s)
        tell(member, Verdict.WELL, now_s)
    now_s += 5.0 * EJECTION.calm_s
    tell(member, Verdict.FAULT, now_s, EJECTION.faults)

    assert until_probe(member, now_s) - now_s == pytest.approx(1.0, abs=0.03)


def test_chance_keeps_workers_apart() -> None:
    """A fifth more or less."""
    rules = BreakerRules(faults=1, hold_s=10.0, most_hold_s=80.0, jitter=0.2)
    early, late = Breaker(rules), Breaker(rules)
    early.failed(0.0, 0.0, random=0.0)
    late.failed(0.0, 0.0, random=1.0)
    assert early.allows(8.0) and not early.allows(7.9)
    assert late.allows(12.0) and not late.allows(11.9)


def test_probe_that_is_cut_after_it_began_well_is_a_bad_one() -> None:
    """And the ones before it count no more."""
    rules = BreakerRules(faults=1, probes=2, hold_s=1.0, most_hold_s=1.0)
    breaker = Breaker(rules)
    breaker.failed(0.0, 0.0)
    breaker.begin(1.0)
    breaker.answers()
    breaker.failed(1.0, 1.5, cut=True)
    assert not breaker.allows(2.4) and breaker.allows(2.5)
    breaker.begin(3.0)
    breaker.succeeded(3.0)
    assert breaker.is_open
    breaker.begin(4.0)
    breaker.succeeded(4.0)
    assert not breaker.is_open


def test_probe_that_is_lost_makes_room_for_the_next() -> None:
    """Half-open must resolve, whatever becomes of the client."""
    member = new()
    tell(member, Verdict.FAULT, 1.0, EJECTION.faults)
    now_s = until_probe(member, 1.0)
    member.begin(now_s)
    assert not member.wants_probe(now_s + PROBE_PENDING_S - 0.01)
    assert member.wants_probe(now_s + PROBE_PENDING_S)


def test_busy_member_rests_after_three_in_a_row_for_as_long_as_told() -> None:
    """One among good answers sheds what is too much: that is no reason to send nothing."""
    member = new()
    for second in range(20):
        tell(member, Verdict.BUSY, float(second), 2, cooldown_s=7.0)
        tell(member, Verdict.WELL, float(second))
        assert member.state(float(second)) is State.IN
    tell(member, Verdict.BUSY, 20.0, 3, cooldown_s=7.0)
    assert member.state(26.99) is State.RESTING
    assert member.state(27.0) is State.IN


def test_busy_member_that_does_not_say_for_how_long_rests_longer_each_time() -> None:
    """1 s, 2 s, 4 s; those that were under way together are one refusal."""
    member, now_s, rests = new(), 100.0, []
    for _ in range(3):
        tell(member, Verdict.BUSY, now_s, 10)
        began_s = now_s
        while member.state(now_s) is State.RESTING:
            now_s += 0.01
        rests.append(now_s - began_s)
    assert rests == pytest.approx([1.0, 2.0, 4.0], abs=0.03)


def test_new_member_begins_slowly() -> None:
    """With a tenth of its weight; the ones that were there before have all of theirs."""
    assert MemberHealth(MemberRules(), 50.0).warmth(50.0) == pytest.approx(0.1)
    assert MemberHealth(MemberRules(), 50.0).warmth(60.0) == 1.0
    assert MemberHealth(MemberRules(), 50.0, is_new=False).warmth(50.0) == 1.0


def test_active_probes_turn_it_and_do_not_bring_back_what_requests_found_out() -> None:
    """A health page answers while completions fail."""
    active = ProbeSchedule(ActiveRules(), 0.0, 0.0)
    member = MemberHealth(MemberRules(), 0.0, active=active, is_new=False)
    member.probed(False, 1.0)
    assert member.state(1.0) is State.OUT and not member.wants_probe(100.0)
    member.probed(True, 2.0)
    member.probed(True, 3.0)
    assert member.state(3.0) is State.IN and member.warmth(3.0) < 0.2
    tell(member, Verdict.FAULT, 4.0, EJECTION.faults)
    for second in range(5, 50):
        member.probed(True, float(second))
    assert member.state(50.0) is State.OUT


def test_active_schedule_asks_on_time_and_waits_for_no_lost_answer() -> None:
    """First spread over the time between two, then a tenth more or less; never two at once."""
    schedule = ProbeSchedule(ActiveRules(every_s=10.0, timeout_s=2.0), 100.0, 0.5)
    assert not schedule.is_due(104.9) and schedule.is_due(105.0)
    schedule.begin(105.0, 1.0)
    assert not schedule.is_due(116.9)
    assert schedule.is_due(117.0), "the end of the first was never told"
    schedule.begin(117.0, 0.0)
    assert schedule.ended(True) is False
    assert not schedule.is_due(125.9) and schedule.is_due(126.0)


def test_active_schedule_believes_the_first_answer_and_then_a_row() -> None:
    """Three bad ones turn it, two good ones turn it back, and one in between begins anew."""
    schedule = ProbeSchedule(ActiveRules(), 0.0, 0.0)
    assert schedule.is_up
    assert schedule.ended(True) is False and schedule.is_up
    turns = [schedule.ended(good) for good in (False, False, True, False, False, False)]
    assert turns == [False] * 5 + [True] and not schedule.is_up
    assert [schedule.ended(good) for good in (True, False, True, True)] == [False, False, False, True]
    assert schedule.is_up


def test_answers_of_old_attempts_do_not_shorten_what_is_held() -> None:
    """One that fails a third of its requests is put out while others of its replies begin well."""
    member = new()
    for _ in range(3):
        member.begin(1.0)
    member.eject(2.0, hold_s=10.0)
    member.answers(1.0, 2.1)
    member.ended(Verdict.FAULT, 1.0, 2.2, answered=False)
    member.answers(1.0, 2.3)
    assert not member.wants_probe(11.9) and member.wants_probe(12.0)


def test_member_whose_replies_were_cut_comes_back_slowly_too() -> None:
    """By the end of a whole reply, not by its beginning."""
    member, now_s = new(), 1.0
    tell(member, Verdict.CUT, now_s, EJECTION.faults)
    for _ in range(EJECTION.probes):
        now_s = until_probe(member, now_s)
        tell(member, Verdict.WELL, now_s)
    assert member.state(now_s) is State.IN and member.warmth(now_s) < 0.2


@pytest.mark.parametrize("takes_s", [5.0, 12.0, 60.0])
def test_member_whose_replies_were_cut_comes_back_though_streams_outlast_the_probes(takes_s: float) -> None:
    """A server was restarted with five streams on it; there is always a request that could be the next probe."""
    member, under_way, now_s = new(), deque[float](), 1.0
    tell(member, Verdict.CUT, now_s, EJECTION.faults)
    while member.state(now_s) is State.OUT and now_s < 200.0:
        now_s += 0.5
        if member.wants_probe(now_s):
            member.begin(now_s)
            member.answers(now_s, now_s)
            under_way.append(now_s)
        if under_way and under_way[0] + takes_s <= now_s:
            member.ended(Verdict.WELL, under_way.popleft(), now_s, answered=True)
    assert now_s <= takes_s + 15.0


def test_probe_that_is_cut_counts_though_another_one_has_begun() -> None:
    """And so do none of those that began before that."""
    member, now_s, began = new(), 1.0, []
    tell(member, Verdict.CUT, now_s, EJECTION.faults)
    for _ in range(3):
        now_s = until_probe(member, now_s)
        member.begin(now_s)
        member.answers(now_s, now_s)
        began.append(now_s)
    member.ended(Verdict.WELL, began[0], now_s, answered=True)
    member.ended(Verdict.CUT, began[1], now_s + 1.0, answered=True)
    member.ended(Verdict.WELL, began[2], now_s + 9.0, answered=True)
    assert member.state(now_s + 9.0) is State.OUT
    now_s += 9.0
    for _ in range(EJECTION.probes):
        now_s = until_probe(member, now_s)
        tell(member, Verdict.WELL, now_s)
    assert member.state(now_s) is State.IN


def test_stream_that_begins_well_ends_a_row_of_refusals() -> None:
    """Its end may be minutes away."""
    member = new()
    tell(member, Verdict.BUSY, 1.0, 2)
    member.begin(1.0)
    member.answers(1.0, 2.0)
    member.begins_well(2.0)
    tell(member, Verdict.BUSY, 3.0, 2)
    assert member.state(3.0) is State.IN


def test_good_head_alone_ends_no_row_of_refusals() -> None:
    """A provider that is overloaded may answer 200 and say so in the body."""
    member = new()
    for n in range(3):
        member.begin(float(n))
        member.answers(float(n), n + 0.5)
        member.ended(Verdict.BUSY, float(n), n + 0.6, answered=True)
    assert member.state(3.0) is State.RESTING


def test_member_that_was_put_out_for_its_share_needs_five_good_probes_and_is_remembered() -> None:
    """Two in a row are often well where a third is not; and if it is as before, few requests tell."""
    member, now_s = new(), 0.0
    tell(member, Verdict.WELL, 0.0, 70)
    for _ in range(10):
        tell(member, Verdict.FAULT, 0.0, 3)
        tell(member, Verdict.WELL, 0.0)
    member.eject(0.0, hold_s=10.0)
    assert member.counts(0.0) == pytest.approx((8.0, 8.0 * 30 / 110))
    for _ in range(4):
        now_s = until_probe(member, now_s)
        tell(member, Verdict.WELL, now_s)
        assert member.state(now_s) is State.OUT
    now_s = until_probe(member, now_s)
    tell(member, Verdict.WELL, now_s)
    assert member.state(now_s) is State.IN


def test_any_status_is_heard() -> None:
    """A member that answers 429 to some is not silent, however long others wait; one that only times out is."""
    for verdict, quiet_s in ((Verdict.QUOTA, 1.0), (Verdict.FAULT, 10.0), (Verdict.NOTHING, 10.0)):
        member = new()
        for _ in range(6):
            member.begin(0.0)
        member.ended(verdict, 0.0, 9.0, answered=False)
        assert member.quiet_s(10.0) == quiet_s
        member.ended(Verdict.NOTHING, 0.0, 9.0, answered=False)
        assert member.quiet_s(10.0) == 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from([*Verdict, None]), st.floats(0.0, 15.0), st.floats(0.0, 15.0), st.floats(0.0, 1.0)),
        max_size=60,
    )
)
def test_member_that_is_out_is_always_asked_again(steps: list[tuple[Verdict | None, float, float, float]]) -> None:
    """However attempts end or are lost: within 30 s a probe is wanted, and good ones bring it back within 15 s more."""
    member, now_s = new(), 100.0
    for verdict, wait_s, took_s, random in steps:
        now_s += wait_s
        member.begin(now_s)
        began_s, now_s = now_s, now_s + took_s
        if verdict is not None:
            if verdict in (Verdict.WELL, Verdict.CUT):
                member.answers(began_s, now_s)
            answered = verdict in (Verdict.WELL, Verdict.CUT)
            member.ended(verdict, began_s, now_s, answered=answered, random=random)
    if member.state(now_s) is not State.OUT:
        return
    until_s = now_s + 30.0
    now_s = until_probe(member, now_s)
    assert now_s < until_s
    until_s = now_s + 15.0
    while member.state(now_s) is State.OUT:
        now_s = until_probe(member, now_s)
        tell(member, Verdict.WELL, now_s)
    assert now_s < until_s


_ENDS = st.tuples(
    st.sampled_from([Verdict.WELL] * 4 + list(Verdict)), st.floats(0.0, 3.0), st.floats(0.0, 0.5), st.booleans()
)


@given(ends=st.lists(_ENDS, max_size=60))
def test_succeeded_leaves_a_member_as_ended_does(ends: list[tuple[Verdict, float, float, bool]]) -> None:
    members = [new(), new()]
    now_s = 0.0
    for verdict, pause_s, took_s, answered in ends:
        now_s += pause_s
        began_s = now_s
        answered |= verdict is Verdict.CUT
        for member in members:
            member.begin(began_s)
            if answered:
                member.answers(began_s, began_s + took_s)
        now_s += took_s
        members[0].ended(verdict, began_s, now_s, answered=answered)
        if verdict is Verdict.WELL:
            members[1].succeeded(began_s, now_s, answered=answered)
        else:
            members[1].ended(verdict, began_s, now_s, answered=answered)

        first, second = (
            {**state_of(member), "_breaker": state_of(member._breaker), "changes": member.changes.n}
            for member in members
        )
        assert first == second
