"""Four members, of which one flaps, one answers 30 % with a 500 and one stalls: what clients see, with one failover.

Figures of docs/decisions/0023-health.md are from here: `python -m tests.unit.policy.health.test_health_simulation`
prints them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.policy.health.health_fleet import Fleet, Story, erring, flapping, stalling, steady
from velox.policy.balance.candidates import Balancer, LeastInflight
from velox.policy.balance.peak_ewma import PeakEwma, PeakLatency
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.breaker import STEADY
from velox.policy.health.group import GroupRules
from velox.policy.health.member import MemberRules

FLAPS, ERRS, STALLS = 1, 2, 3
STALL = (100.0, 160.0)
RULES = (MemberRules(), GroupRules())
# What there was before: five faults in a row, a probe a second, back at once.
BREAKERS = (MemberRules(STEADY, warm_s=0.0), GroupRules(most_out_percent=0.0, panic_percent=100.0))


def ewma() -> Balancer:
    return PeakEwma([PeakLatency() for _ in range(4)])


def play(
    rules: tuple[MemberRules, GroupRules] | None,
    make: Callable[[], Balancer] = RoundRobin,
    *,
    rate: float = 20.0,
    until_s: float = 200.0,
    seed: int = 1,
) -> Story:
    members = [steady, flapping(60.0, 20.0), erring(0.3), stalling(*STALL)]
    return Fleet(members, make, rules=rules, seed=seed).play(rate, until_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_see_few_of_the_faults(seed: int) -> None:
    """Fewer than one in a thousand, where without judgement it is one in thirty."""
    judged, plain = play(RULES, seed=seed), play(None, seed=seed)

    assert judged.failed < judged.requests / 1000
    assert plain.failed > plain.requests / 30


@pytest.mark.slow
def test_second_tries_are_few() -> None:
    """Who is known to fail is not asked: the extra load is below 5 %, a third of what breakers alone leave."""
    judged, breakers = play(RULES), play(BREAKERS)

    assert judged.retries < judged.requests / 20
    assert judged.retries < breakers.retries / 3


@pytest.mark.slow
def test_member_that_errs_gets_a_small_part() -> None:
    """30 % of faults never come five in a row: it is found out beside its peers, and probes let it back seldom."""
    judged = play(RULES)

    assert judged.share(ERRS, 50.0, 200.0) < 0.1
    assert play(BREAKERS).share(ERRS, 50.0, 200.0) > 0.2


@pytest.mark.slow
def test_member_that_stalls_is_out_before_time_outs_tell_and_back_soon() -> None:
    """Suspected within 5 s, where the time-out takes 10; back within 30 s of being well."""
    judged = play(RULES)

    assert judged.last(STALLS, *STALL, gap_s=3.0) < STALL[0] + 5.0
    assert judged.share(STALLS, STALL[0] + 5.0, STALL[1]) < 0.02
    assert judged.back(STALLS, STALL[1]) < STALL[1] + 30.0
    assert judged.share(STALLS, STALL[1] + 30.0, 200.0) > 0.15


@pytest.mark.slow
def test_all_that_fail_alike_are_used_alike() -> None:
    """An outage of the model behind all members is nobody's fault alone: none is out for long, none gets it all."""
    story = Fleet([erring(0.3)] * 4, RoundRobin, rules=RULES).play(20.0, 200.0)

    for member in range(4):
        assert 0.15 < story.share(member, 0.0, 200.0) < 0.35


def main() -> None:
    """Print the figures."""
    ways: list[tuple[str, tuple[MemberRules, GroupRules] | None]] = [
        ("nobody judged", None),
        ("breakers alone", BREAKERS),
        ("health", RULES),
    ]
    makers: list[tuple[str, Callable[[], Balancer]]] = [
        ("round robin", RoundRobin),
        ("least in flight", LeastInflight),
        ("peak EWMA", ewma),
    ]
    for chosen, make in makers:
        for rate in (5.0, 20.0, 100.0):
            for name, rules in ways:
                stories = [play(rules, make, rate=rate, until_s=600.0, seed=seed) for seed in (1, 2, 3)]
                n = sum(story.requests for story in stories)
                failed = sum(story.failed for story in stories)
                unpaid = sum(story.no_budget for story in stories)
                retries = sum(story.retries for story in stories)
                slow = sum(sum(ttft > 5.0 for ttft in story.ttft_s) for story in stories)
                out = max(story.last(STALLS, *STALL, gap_s=3.0) - STALL[0] for story in stories)
                back = max(story.back(STALLS, STALL[1]) - STALL[1] for story in stories)
                errs = sum(story.share(ERRS, 50.0, 600.0) for story in stories) / 3
                print(
                    f"{chosen:16} {rate:5} {name:15} failed {failed / n:.3%} ({failed}, {unpaid} no budget)"
                    f"  again {retries / n:.1%}  over 5 s {slow / n:.2%}  out {out:.1f} s  back {back:.0f} s"
                    f"  errs {errs:.1%}"
                )


if __name__ == "__main__":
    main()
