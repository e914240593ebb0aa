"""Members side by side: who is worse than its peers, who is suspected, when all are used."""

from __future__ import annotations

import pytest

from velox.policy.health.group import GroupHealth, GroupRules, at_least
from velox.policy.health.keys import Keys
from velox.policy.health.member import EJECTION, MemberHealth, MemberRules, Verdict


def new(n: int = 4, weight: float = 2.0) -> GroupHealth:
    return GroupHealth([MemberHealth(MemberRules(), 0.0, is_new=False) for _ in range(n)], [weight] * n)


def tell(group: GroupHealth, member: int, verdict: Verdict, now_s: float, n: int = 1) -> None:
    for _ in range(n):
        group.begin(member, now_s)
        if verdict is Verdict.WELL:
            group.answers(member, now_s, now_s)
        group.ended(member, verdict, now_s, now_s, answered=verdict is Verdict.WELL)


def mixed(group: GroupHealth, member: int, now_s: float, *, n: int, every: int) -> None:
    """One of `every` is a fault."""
    for at in range(n):
        tell(group, member, Verdict.WELL if at % every else Verdict.FAULT, now_s)


def test_weights_are_as_configured_while_all_are_well() -> None:
    """And the same list each time."""
    group = new()
    assert list(group.weights(1.0)) == [2.0] * 4
    assert group.weights(1.0) is group.weights(2.0)


def test_member_that_is_out_has_no_weight_and_gets_the_probe() -> None:
    """A request that may be tried again goes there first; one that has been there does not."""
    group = new()
    tell(group, 2, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [2.0, 2.0, 0.0, 2.0]
    assert group.probe(1.0) is None
    assert group.probe(3.0) == 2
    assert group.probe(3.0, {2}) is None
    group.begin(2, 3.0)
    assert group.probe(3.0) is None, "one at a time"


def test_member_that_fails_more_than_its_peers_is_put_out() -> None:
    """A third of its requests, never five in a row."""
    group = new()
    for member in (0, 1, 3):
        tell(group, member, Verdict.WELL, 1.0, 30)
    mixed(group, 2, 1.0, n=30, every=3)
    assert list(group.weights(1.0)) == [2.0, 2.0, 0.0, 2.0]
    assert group.probe(10.9) is None and group.probe(11.0) == 2


@pytest.mark.parametrize("every", [15, 25])
def test_few_faults_are_left_to_second_tries(every: int) -> None:
    """Below a tenth nobody is put out, however many requests."""
    group = new()
    for member in (0, 1, 3):
        tell(group, member, Verdict.WELL, 1.0, 30)
    mixed(group, 2, 1.0, n=500, every=every)
    assert list(group.weights(1.0)) == [2.0] * 4


def test_outage_of_all_puts_out_none() -> None:
    """It is nobody's fault alone."""
    group = new()
    for _ in range(50):
        for member in range(4):
            mixed(group, member, 1.0, n=3, every=3)
    assert list(group.weights(1.0)) == [2.0] * 4


def test_comparison_puts_out_half_at_most() -> None:
    """The third that is worse stays in; faults in a row put it out all the same."""
    group = new()
    tell(group, 3, Verdict.WELL, 1.0, 200)
    for member in range(3):
        tell(group, member, Verdict.WELL, 1.0, 20)
    for member in range(3):
        mixed(group, member, 2.0, n=40, every=2)
    weights = group.weights(2.0)
    assert sum(weight == 0.0 for weight in weights) == 2
    for member in range(3):
        tell(group, member, Verdict.FAULT, 2.0, EJECTION.faults)
    assert list(group.weights(2.0)) == [0.0, 0.0, 0.0, 2.0]


def test_few_requests_are_not_compared() -> None:
    """Three faults of nine may be chance."""
    group = new()
    tell(group, 0, Verdict.WELL, 1.0, 100)
    mixed(group, 1, 1.0, n=9, every=3)
    assert list(group.weights(1.0)) == [2.0] * 4


def test_all_are_used_when_most_are_out() -> None:
    """Of ten: eight out are passed over, nine out are used."""
    group = new(10)
    for member in range(8):
        tell(group, member, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [0.0] * 8 + [2.0] * 2 and not group.is_panicking
    tell(group, 8, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [2.0] * 10 and group.is_panicking


def test_lone_member_is_always_used() -> None:
    """There is nobody else; and its answers bring it back."""
    group = new(1)
    tell(group, 0, Verdict.FAULT, 1.0, 100)
    assert list(group.weights(1.0)) == [2.0]
    for second in range(5, 12):
        tell(group, 0, Verdict.WELL, float(second))
    assert list(group.weights(12.0)) == [pytest.approx(2.0, rel=0.95)]
    assert not group.is_panicking


def test_member_that_says_nothing_while_others_answer_is_suspected_until_it_does() -> None:
    """Five wait there for longer than three times the slowest first byte: no time-out is waited for."""
    group = new()
    for member in range(4):
        group.begin(member, 0.0)
        group.answers(member, 0.0, 1.0)
        group.ended(member, Verdict.WELL, 0.0, 1.0, answered=True)
    for _ in range(5):
        group.begin(1, 10.0)
    assert list(group.weights(12.8)) == [2.0] * 4
    assert list(group.weights(13.1)) == [2.0, 0.0, 2.0, 2.0]
    group.answers(1, 10.0, 13.2)
    assert list(group.weights(13.2)) == [2.0] * 4


@pytest.mark.parametrize("n_waiting", [1, 4])
def test_few_that_wait_are_no_reason_to_suspect(n_waiting: int) -> None:
    """One long prompt is none."""
    group = new()
    for _ in range(n_waiting):
        group.begin(1, 10.0)
    assert list(group.weights(500.0)) == [2.0] * 4


def test_silence_of_all_suspects_half_at_most() -> None:
    """Where all think for a minute, somebody must."""
    group = new()
    for member in range(4):
        for _ in range(5):
            group.begin(member, 10.0 + member)
    assert list(group.weights(100.0)) == [0.0, 0.0, 2.0, 2.0]


def test_second_try_goes_to_who_makes_no_faults() -> None:
    """A share of faults, a row of them and silence weigh; nobody is left out."""
    group = new()
    for member in range(4):
        tell(group, member, Verdict.WELL, 1.0, 40)
    mixed(group, 1, 1.0, n=5, every=5)
    tell(group, 2, Verdict.FAULT, 1.0, 3)
    group.begin(3, 1.0)
    weights = list(group.weights(5.0, again=True))
    assert weights[0] == 2.0
    assert 0.5 < weights[1] < 1.9
    assert 0.0 < weights[2] < 0.2
    assert 0.0 < weights[3] < 0.3
    assert list(group.weights(5.0)) == [2.0] * 4


def test_keys_that_all_rest_leave_a_member_out_and_say_for_how_long() -> None:
    """To ask again before is to be refused again; a busy member is better than none."""
    keys = Keys(1)
    rested = MemberHealth(MemberRules(), 0.0, keys=keys, is_new=False)
    other = MemberHealth(MemberRules(), 0.0, is_new=False)
    group = GroupHealth([rested, other], [1.0, 1.0])
    keys.begin(0, 1.0)
    keys.answered(0, 429, [(b"retry-after", b"30")], 1.0, 1.0, 0.0)
    assert list(group.weights(1.0)) == [0.0, 1.0]
    for _ in range(3):
        group.begin(1, 2.0)
        group.ended(1, Verdict.BUSY, 2.0, 2.0, answered=False, cooldown_s=5.0)
    assert list(group.weights(2.0)) == [0.0, 1.0]
    assert group.cooldown_left_s(2.0) == pytest.approx(29.0)
    assert list(group.weights(31.0)) == [1.0, 1.0]
    alone = GroupHealth([rested], [1.0])
    assert list(alone.weights(2.0)) == [0.0] and not alone.is_panicking


def rest(group: GroupHealth, member: int, now_s: float) -> None:
    """Three 503 in a row, to come back in ten seconds."""
    for _ in range(3):
        group.begin(member, now_s)
        group.ended(member, Verdict.BUSY, now_s, now_s, answered=False, cooldown_s=10.0)


def test_busy_member_is_used_before_one_that_is_out() -> None:
    """Three 503 are no reason to send all to the one that fails."""
    group = new(2)
    tell(group, 0, Verdict.FAULT, 1.0, EJECTION.faults)
    rest(group, 1, 1.0)
    assert list(group.weights(1.0)) == [0.0, 2.0] and not group.is_panicking
    assert group.n_in == 0, "a fallback that is well comes first"
    assert group.probe(3.0) == 0, "it is tested all the same"
    assert list(group.weights(11.0)) == [0.0, 2.0] and group.n_in == 1


def test_busy_member_alone_does_not_get_the_load_of_nine() -> None:
    """As one that is in would not: where most are out, all are used."""
    group = new(10)
    for member in range(9):
        tell(group, member, Verdict.FAULT, 1.0, EJECTION.faults)
    rest(group, 9, 1.0)
    assert list(group.weights(1.0)) == [2.0] * 10 and group.is_panicking


def test_key_that_rests_is_not_used_before_a_member_that_is_out() -> None:
    """It is refused for sure."""
    keys = Keys(1)
    group = GroupHealth([MemberHealth(MemberRules(), 0.0, keys=each, is_new=False) for each in (keys, None)], [1.0] * 2)
    keys.begin(0, 1.0)
    keys.answered(0, 429, [(b"retry-after", b"30")], 1.0, 1.0, 0.0)
    tell(group, 1, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [0.0, 1.0] and group.is_panicking


def test_member_whose_key_was_refused_is_out() -> None:
    """The key is ejected, and where there is no other one nothing can be sent there."""
    keys = Keys(1)
    group = GroupHealth(
        [MemberHealth(MemberRules(), 0.0, keys=keys, is_new=False), MemberHealth(MemberRules(), 0.0, is_new=False)],
        [1.0, 1.0],
    )
    keys.begin(0, 1.0)
    keys.answered(0, 401, [], 1.0, 1.0, 0.0)
    assert list(group.weights(1.0)) == [0.0, 1.0]
    tell(group, 1, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [1.0, 1.0] and group.is_panicking, "it does not rest, it is out"


def test_all_out_is_panic_whatever_is_set() -> None:
    """A wrong belief must not refuse requests."""
    members = [MemberHealth(MemberRules(), 0.0, is_new=False) for _ in range(3)]
    group = GroupHealth(members, [1.0] * 3, GroupRules(panic_percent=100.0))
    for member in range(3):
        assert not group.is_panicking
        tell(group, member, Verdict.FAULT, 1.0, EJECTION.faults)
        group.weights(1.0)
    assert list(group.weights(1.0)) == [1.0] * 3


def test_panic_may_be_set() -> None:
    """At 30 %: one of three is enough."""
    members = [MemberHealth(MemberRules(), 0.0, is_new=False) for _ in range(3)]
    group = GroupHealth(members, [1.0, 2.0, 3.0], GroupRules(panic_percent=30.0))
    tell(group, 0, Verdict.FAULT, 1.0, EJECTION.faults)
    assert list(group.weights(1.0)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("n_of", "n", "share"), [(0.0, 10.0, 0.0), (3.0, 10.0, 0.108), (30.0, 100.0, 0.219)])
def test_interval_is_wilsons(n_of: float, n: float, share: float) -> None:
    """As tables have it."""
    assert at_least(n_of, n) == pytest.approx(share, abs=0.001)
