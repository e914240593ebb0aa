"""Members that fail in their own ways, in virtual time, behind workers that judge them: what clients see of it.

A request goes to a member that wants a probe, else to the balancer's choice; if it fails before its first byte it goes
once more elsewhere, within the retry budget. Each worker judges alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from velox.policy.balance.candidates import Balancer, Candidates
from velox.policy.health.group import GroupHealth, GroupRules
from velox.policy.health.member import MemberHealth, MemberRules, Verdict
from velox.policy.retries.retry import RetryBudget

__all__ = ["TIMEOUT_S", "Fleet", "Story", "erring", "flapping", "stalling", "steady"]

TIMEOUT_S = 10.0  # to the first byte

# What a member does with a request that begins at a time: verdict, time to the first byte, time to the end.
Member = Callable[[float, random.Random], tuple[Verdict, float, float]]


def steady(now_s: float, rng: random.Random) -> tuple[Verdict, float, float]:
    first_s = rng.uniform(0.1, 0.3)
    return Verdict.WELL, first_s, first_s + rng.expovariate(0.5)


def flapping(up_s: float, down_s: float) -> Member:
    """Up and down in turn; while down, connections are refused."""

    def member(now_s: float, rng: random.Random) -> tuple[Verdict, float, float]:
        if now_s % (up_s + down_s) >= up_s:
            return Verdict.FAULT, 0.001, 0.001
        return steady(now_s, rng)

    return member


def erring(share: float) -> Member:
    """A part of all requests is answered with a 500."""

    def member(now_s: float, rng: random.Random) -> tuple[Verdict, float, float]:
        return (Verdict.FAULT, 0.1, 0.1) if rng.random() < share else steady(now_s, rng)

    return member


def stalling(from_s: float, until_s: float) -> Member:
    """Says nothing to what comes in between."""

    def member(now_s: float, rng: random.Random) -> tuple[Verdict, float, float]:
        return (Verdict.FAULT, TIMEOUT_S, TIMEOUT_S) if from_s <= now_s < until_s else steady(now_s, rng)

    return member


@dataclass
class Story:
    """attempts: (when, member, verdict), as they began. ttft_s: of requests that were answered."""

    requests: int = 0
    retries: int = 0
    failed: int = 0  # seen by clients
    no_budget: int = 0  # of them: there was no second try
    ttft_s: list[float] = field(default_factory=list)
    attempts: list[tuple[float, int, Verdict]] = field(default_factory=list)
    out: list[tuple[float, int, int]] = field(default_factory=list)  # when, worker, member: from attempt to attempt

    def at(self, part: float) -> float:
        return sorted(self.ttft_s)[min(len(self.ttft_s) - 1, int(part * len(self.ttft_s)))]

    def back(self, member: int, from_s: float) -> float:
        """Return when the last worker let `member` in again, within 100 s."""
        return max(
            (at_s for at_s, _, each in self.out if each == member and from_s < at_s < from_s + 100.0), default=from_s
        )

    def share(self, member: int, from_s: float, until_s: float) -> float:
        """Return the part of all attempts between two times that went to `member`."""
        found = [each for at_s, each, _ in self.attempts if from_s <= at_s < until_s]
        return found.count(member) / max(1, len(found))

    def last(self, member: int, from_s: float, until_s: float, *, gap_s: float) -> float:
        """Return when `member` got its last attempt before the first gap so long between these two times."""
        found = [at_s for at_s, each, _ in self.attempts if each == member and from_s <= at_s < until_s]
        times = [from_s, *found, until_s]
        return next((one for one, other in itertools.pairwise(times) if other - one >= gap_s), until_s)


class Fleet:
    """The members behind some workers."""

    def __init__(
        self,
        members: Sequence[Member],
        make: Callable[[], Balancer],
        *,
        rules: tuple[MemberRules, GroupRules] | None,
        workers: int = 2,
        seed: int = 1,
    ) -> None:
        """rules: None: nobody is judged."""
        n = len(members)
        self.rng = random.Random(seed)
        self.members = members
        self.balancers = [make() for _ in range(workers)]
        self.budgets = [RetryBudget(20, 10 / workers) for _ in range(workers)]
        self.inflight = [0] * n
        member_rules, group_rules = rules or (MemberRules(), GroupRules())
        self.is_judged = rules is not None
        self.groups = [
            GroupHealth([MemberHealth(member_rules, 0.0, is_new=False) for _ in members], [1.0] * n, group_rules)
            for _ in range(workers)
        ]
        self.story = Story()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def play(self, rate: float, until_s: float) -> Story:
        at_s = 0.0
        while (at_s := at_s + self.rng.expovariate(rate)) < until_s:
            self._run(at_s)
            self._arrive(at_s)
        self._run(float("inf"))
        return self.story

    def _run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            at_s, _, happens = heapq.heappop(self._events)
            happens(at_s)

    def _later(self, at_s: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happens))

    def _arrive(self, now_s: float) -> None:
        worker = self.rng.randrange(len(self.groups))
        self.story.requests += 1
        self.budgets[worker].on_request(now_s)
        self._attempt(worker, now_s, now_s, ())

    def _attempt(self, worker: int, arrived_s: float, now_s: float, tried: tuple[int, ...]) -> None:
        group, balancer, rng = self.groups[worker], self.balancers[worker], self.rng
        weights = group.weights(now_s, again=bool(tried)) if self.is_judged else [1.0] * len(self.members)
        probed = group.probe(now_s, tried) if self.is_judged and not tried else None
        picked = balancer.pick(Candidates(weights, self.inflight), now_s, rng.random(), tried=tried)
        member = picked if probed is None else probed
        if member is None:
            self.story.failed += 1
            return
        verdict, first_s, end_s = self.members[member](now_s, rng)
        self.story.attempts.append((now_s, member, verdict))
        self.story.out += [(now_s, worker, n) for n, weight in enumerate(weights) if not weight]
        self.inflight[member] += 1
        balancer.began(member, now_s)
        group.begin(member, now_s)

        def begins(at_s: float) -> None:
            self.story.ttft_s.append(at_s - arrived_s)
            balancer.answered(member, at_s - now_s, at_s)
            group.answers(member, now_s, at_s)

        def ends(at_s: float) -> None:
            self.inflight[member] -= 1
            group.ended(member, verdict, now_s, at_s, answered=verdict is Verdict.WELL, random=rng.random())
            if verdict is Verdict.WELL:
                return
            balancer.failed(member, at_s - now_s, at_s)
            if tried or not self.budgets[worker].take(at_s):
                self.story.failed += 1
                self.story.no_budget += not tried
                return
            self.story.retries += 1
            self._attempt(worker, arrived_s, at_s, (*tried, member))

        if verdict is Verdict.WELL:
            self._later(now_s + first_s, begins)
        self._later(now_s + end_s, ends)
