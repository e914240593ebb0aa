"""The members that one stage of a route chooses from, and what became of each choice.

    Group.pick()   a probe that is due, or else the balancer's choice among those that are well; and which key
    Pick           one choice: who is told that it begins, answers, and how it ended
    Stage          a group, without those of its members that don't have a request's model

Knows: who is asked before a choice (health, balancer, keys, concurrency, scraped load), and who is told of its end.
Does not know: what is sent, which stage comes next (routing.py), or whether a request is tried again (retries.py).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from velox.errors import Reason
from velox.gateway.member import Member
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest
from velox.outcomes import Retry
from velox.policy.balance.candidates import Balancer, Candidates
from velox.policy.health.group import GroupHealth, GroupRules
from velox.policy.health.member import State
from velox.policy.health.verdict import Verdict, of_failure, of_giving_up, of_status
from velox.policy.retry import retry_after_s
from velox.policy.routes import NO_RULES, HeaderRules
from velox.protocol.model_rewrite import with_model
from velox.types import BodyFields, Headers, RequestHead

__all__ = ["Group", "Pick", "Stage", "stage_of"]

_NOT_BEGUN: Final = -1.0
_ANY_KEY: Final = 0
_SWITCHED: Final = 101
_WELL: Final = Verdict.WELL  # the attribute of an enumeration takes 50 ns
# Nobody has too much to do for longer: what says so would have the member back in days.
_MOST_REST_S: Final = 300.0


class Group:
    """The members of one stage in one worker.

    weights: as configured, by member. models: what each is asked for instead of the model that the client named; None:
    that one. request_rules: of the route. rules: of their health.
    """

    __slots__ = (
        "_candidates",
        "_learns_load",
        "_weights",
        "balancer",
        "health",
        "is_limited",
        "is_simple",
        "learns",
        "members",
        "models",
        "request_rules",
    )

    def __init__(
        self,
        members: Sequence[Member],
        models: Sequence[str | None],
        weights: Sequence[float],
        balancer: Balancer,
        request_rules: HeaderRules = NO_RULES,
        *,
        rules: GroupRules | None = None,
    ) -> None:
        self.members: Final = tuple(members)
        self.models: Final = tuple(models)
        self.balancer: Final = balancer
        self.health: Final = GroupHealth([member.health for member in members], weights, rules)
        self.request_rules: Final = request_rules
        self._weights: Final = tuple(weights)
        self._candidates: Final = Candidates(self._weights, _inflight(self.members))
        self.is_limited: Final = any(member.concurrency.limit for member in members)
        # One member, whose key is not chosen either.
        self.is_simple: Final = len(members) == 1 and members[0].health.keys is None
        self.learns: Final = balancer.learns
        self._learns_load: Final = any(member.load is not None for member in members)

    def __repr__(self) -> str:
        return f"<Group {' '.join(member.name for member in self.members)}>"

    def pick(
        self,
        now_s: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
        *,
        again: bool = False,
        may_probe: bool = False,
        anyhow: bool = False,
        within_limits: bool = False,
    ) -> Pick | None:
        """Choose a member, and one of its keys; None: there is none.

        key: what requests are kept together by. tried: members that this request can't go to, or not again. again: it
        has failed once. may_probe: it can go elsewhere if it fails. anyhow: though none is well, but to none whose keys
        all rest. within_limits: to none that has no room left.
        """
        n = self.health.probe(now_s, tried) if may_probe else None
        if n is not None:
            probe = self.take(n, now_s)
            probe.late_s = self.health.late_s(now_s)
            return probe
        weights = self.health.weights(now_s, again=again)
        if not anyhow and not self.health.n_in:
            return None
        chance = random.random()
        n = self.balancer.pick(self._weighed(weights, now_s, within_limits), now_s, chance, key, tried)
        if n is None and anyhow:
            weights = self._reachable(now_s)
            n = self.balancer.pick(self._weighed(weights, now_s, within_limits), now_s, chance, key, tried)
        return None if n is None else self.take(n, now_s)

    def take(self, n: int, now_s: float, tried_keys: Collection[int] = ()) -> Pick:
        """Return the choice of member `n`, with whichever key may be used, or any if none may."""
        keys = self.members[n].health.keys
        key = None if keys is None else keys.pick(now_s, random.random(), tried_keys)
        return Pick(self, n, _ANY_KEY if key is None else key)

    def has_room(self, now_s: float, closed: Collection[int] = (), *, anyhow: bool = False) -> bool | None:
        """Say whether one of those that pick() chooses from may have a request more; None: it chooses from none.

        closed: members that the request can't go to.
        """
        weights = self.health.weights(now_s)
        if not anyhow and not self.health.n_in:
            return None
        found = [n for n, weight in enumerate(weights) if weight > 0.0 and n not in closed]
        if anyhow and not found:
            found = [n for n, weight in enumerate(self._reachable(now_s)) if weight > 0.0 and n not in closed]
        return any(self.members[n].concurrency.room > 0 for n in found) if found else None

    def _reachable(self, now_s: float) -> Sequence[float]:
        """Return the weights where all that health says of members is their keys' rest."""
        return [
            0.0 if member.health.rests_s(now_s) else weight
            for member, weight in zip(self.members, self._weights, strict=True)
        ]

    def _weighed(self, weights: Sequence[float], now_s: float, within_limits: bool) -> Candidates:
        """Return what the choice is made from. weights: by health."""
        candidates = self._candidates
        if self._learns_load:
            loads = [member.load for member in self.members]
            candidates.extra = [0.0 if load is None else load.extra(now_s) for load in loads]  # noqa: S610
            weights = [
                weight if load is None else weight * load.headroom(now_s)
                for weight, load in zip(weights, loads, strict=True)
            ]
        if within_limits and self.is_limited:
            weights = [
                weight if member.concurrency.room > 0 else 0.0
                for weight, member in zip(weights, self.members, strict=True)
            ]
        candidates.weights = weights
        candidates.is_even = weights is self.health.even  # as they are, neither lowered nor for one that has failed
        return candidates


class Stage(NamedTuple):
    """A group, and those of its members that don't have the model."""

    group: Group
    closed: frozenset[int]

    @property
    def is_open(self) -> bool:
        """True if one of them has it."""
        return len(self.closed) < len(self.group.members)


def stage_of(group: Group, model: str | None) -> Stage:
    """Return the stage of requests that name a model; None: they name none."""
    closed = frozenset(
        n
        for n, member in enumerate(group.members)
        if (asked := group.models[n] or model) is not None and not member.entry.has_model(asked)
    )
    return Stage(group, closed)


def _inflight(members: Sequence[Member]) -> Sequence[int]:
    """Return the requests in flight by member, counted when they are asked for: most choices look at two."""
    return members[0].counts.inflight_of([member.row for member in members])


class Pick:
    """One choice. begin() first, then at most one each of answers() and has_first(), then one of those that end it."""

    __slots__ = (
        "_answers",
        "_began_s",
        "_forwarder",
        "_group",
        "_has_first",
        "_headers",
        "_key_heard",
        "key",
        "keys",
        "late_s",
        "member",
        "n",
    )

    def __init__(self, group: Group, n: int, key: int) -> None:
        member = group.members[n]
        self._group: Final = group
        self.n: Final = n  # among the members of its group
        self.key: Final = key
        self.keys: Final = member.health.keys  # what is known of them
        self.member: Final = member
        self._forwarder: Final = member.forwarders[key]
        self._began_s = _NOT_BEGUN
        self._answers = False
        self._has_first = False
        self._headers: Headers = []
        self._key_heard = False
        self.late_s = math.inf  # of a probe: when its silence says that the member is not back

    def __repr__(self) -> str:
        return f"<Pick {self.member.name} key={self.key} {'begun' if self._began_s >= 0.0 else 'not begun'}>"

    @property
    def group(self) -> Group:
        """What it was chosen from."""
        return self._group

    @property
    def secret(self) -> bytes | None:
        """The key that goes up, which no error may show; None where the client's own does."""
        return self._forwarder.secret

    def build(
        self, head: RequestHead, peek: BodyFields, body: bytes | bytearray | None, *, to_be_read: bool
    ) -> UpstreamRequest:
        """Return the request to send. to_be_read: Velox reads the reply, which must not be compressed then."""
        model = self._group.models[self.n]
        if model is not None and body and peek.model is not None and model != peek.model:
            body = with_model(body, model)
        return self._forwarder.build(head, peek, body, to_be_read=to_be_read, rules=self._group.request_rules)

    def build_upgrade(self, head: RequestHead) -> UpstreamRequest:
        """Return the request to send for a WebSocket."""
        return self._forwarder.build_upgrade(head, self._group.models[self.n], self._group.request_rules)

    def begin(self, now_s: float) -> None:
        """The attempt begins, or is sure to: others that choose in the same turn see that a probe is taken."""
        if self._began_s >= 0.0:
            return
        self._began_s = now_s
        group, member = self._group, self.member
        member.health.begin(now_s)
        if group.learns:
            group.balancer.began(self.n, now_s)
        member.counts.began(member.row)
        if self.keys is not None:
            self.keys.begin(self.key, now_s)

    def answers(self, status: int, headers: Headers, now_s: float) -> None:
        """A reply begins. headers: as it came. What an error says of the key counts at once, for the next choice."""
        self._headers = headers
        if status >= 400:
            self._tell_key(status, now_s)
            return
        self._answers = True
        self.member.health.answers(self._began_s, now_s)
        if status == _SWITCHED:
            # All that a tunnel tells of latency; how long it lasts is the client's affair.
            self._has_first = True
            self._group.balancer.answered(self.n, now_s - self._began_s, now_s)

    def has_first(self, waited_s: float, now_s: float) -> None:
        """The first bytes of a good reply's body are there. waited_s: since it was sent."""
        self._has_first = True
        group, member = self._group, self.member
        if group.learns:
            group.balancer.answered(self.n, waited_s, now_s)
        member.counts.observe_ttfb(member.row, round(waited_s * 1e9))

    def answered(self, status: int, now_s: float) -> None:
        """Its reply is whole, or was refused for another attempt's."""
        if self.keys is not None:
            self._tell_key(status, now_s)
        if status < 400:
            self._ended(_WELL, now_s)
            return
        verdict, rest_s = of_status(status), None
        if verdict in (Verdict.QUOTA, Verdict.BUSY):
            self.member.concurrency.refused(self._began_s, now_s)
        if verdict is Verdict.BUSY:
            rest_s = retry_after_s(self._headers, time.time())
            rest_s = None if rest_s is None else min(rest_s, _MOST_REST_S)
        self._ended(verdict, now_s, rest_s)

    def broke(self, failure: UpstreamFailure, now_s: float) -> None:
        """It ended without a whole reply that goes to the client."""
        if failure.reason is Reason.UPSTREAM_STATUS:
            self.answered(failure.status, now_s)
            return
        if failure.unprocessed is Retry.STALE:
            self.member.pool.doubt_idle(now_s)
        if failure.reason is Reason.UPSTREAM_TTFB_TIMEOUT:
            self.member.concurrency.refused(self._began_s, now_s)
        self._forget_key()
        # A connection that could not be made is a fault; a stream refused, or a connection closed in time, is not.
        unprocessed = failure.unprocessed not in (None, Retry.CONNECT)
        self._ended(of_failure(failure.reason, unprocessed=unprocessed), now_s)

    def gave_up(self, now_s: float) -> None:
        """It was ended from this side, or never made."""
        if self._began_s < 0.0:
            return
        self._forget_key()
        waited_s = now_s - self._began_s
        is_silent = waited_s >= self.late_s and not self._answers
        self._ended(Verdict.SILENT if is_silent else of_giving_up(waited_s, answered=self._answers), now_s)

    def _tell_key(self, status: int, now_s: float) -> None:
        if self.keys is not None and not self._key_heard:
            self._key_heard = True
            more = (self._headers, self._began_s, now_s, time.time())
            self.keys.answered(self.key, status, *more, random=random.random())

    def _forget_key(self) -> None:
        if self.keys is not None and not self._key_heard:
            self._key_heard = True
            self.keys.gave_up(self.key, self._began_s)

    def _ended(self, verdict: Verdict, now_s: float, rest_s: float | None = None) -> None:
        group, member = self._group, self.member
        answered = self._answers
        if verdict is _WELL:
            member.health.ended(verdict, self._began_s, now_s, answered=answered)
        else:
            was_in = member.health.state(now_s) is not State.OUT
            more = (self.n, verdict, self._began_s, now_s)
            group.health.ended(*more, answered=answered, rest_s=rest_s, random=random.random())
            if was_in and member.health.state(now_s) is State.OUT:
                member.counts.count_ejection(member.row)
        if group.learns and not self._has_first:
            self._tell_balancer(verdict, now_s)
        member.counts.ended(member.row)

    def _tell_balancer(self, verdict: Verdict, now_s: float) -> None:
        """It ended before the first bytes of a good reply."""
        balancer, waited_s = self._group.balancer, now_s - self._began_s
        if verdict in (Verdict.FAULT, Verdict.CUT, Verdict.SILENT):
            balancer.failed(self.n, waited_s, now_s)
        elif self._answers and verdict is Verdict.WELL:
            balancer.answered(self.n, waited_s, now_s)  # a reply without a body
        else:
            balancer.gave_up(self.n, waited_s, now_s)
