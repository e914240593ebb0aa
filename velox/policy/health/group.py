"""The health of a group: the weight each member has now, who is worse than its peers, and when all are used.

Knows: the members' health, side by side. Does not know: how one is chosen (balance/), a clock, or chance. A member may
be in several groups; what is known of it is the same in all.

Worse than its peers: so many of a member's requests were faults that, chance aside, it fails more than a tenth and more
than twice what the others do. "Chance aside" is the lower end of Wilson's interval. An outage of all is nobody's fault
alone, and is left as it is. Envoy compares with the mean less 1.9 deviations of five hosts with 100 requests each; a
group here has two to eight, with a few requests a second.

Suspected: five or more wait there for a first byte, and nothing was heard for three times as long as the slowest first
byte that any member had lately. It gets nothing more until something is heard. Time-outs tell the same, but only after
a minute; and no probe is needed, those that wait are it. Where all are slow alike, that is the slowest first byte.

Both are comparisons, and may put out half of the group at most. Faults in a row have no such bound: who fails always is
no use to anybody. When most are out all are used instead (panic): those left could not bear the load, and what puts out
nearly all is more likely a mistake here than there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from velox.policy.health.member import SILENT_S, MemberHealth, State, Verdict

__all__ = ["GroupHealth", "GroupRules", "at_least"]

_Z: Final = 1.96  # one in forty members that are well looks worse than it is by more than this
_LEAST_REQUESTS: Final = 10.0  # faded by age; fewer are judged by faults in a row alone
_LEAST_SHARE: Final = 0.1  # of faults; below it, second attempts hide all
_TIMES_PEERS: Final = 2.0
_TIMES_SLOWEST: Final = 3.0
_QUIET_EVERY_S: Final = 0.02  # while many wait somewhere for long, it is looked whether for too long


@dataclass(frozen=True, slots=True)
class GroupRules:
    """most_out_percent: of the members, that a comparison may put out. panic_percent: all are used if more are out.

    hold_s: how long one that is worse than its peers is out at least. least_late_s: no first byte is late before.
    """

    most_out_percent: float = 50.0
    panic_percent: float = 80.0
    hold_s: float = 10.0
    least_late_s: float = 2.0


class GroupHealth:
    """The members of one group in one worker. All times are monotonic seconds and never decrease."""

    def __init__(
        self, members: Sequence[MemberHealth], weights: Sequence[float], rules: GroupRules | None = None
    ) -> None:
        """weights: as configured, by member, more than 0."""
        assert len(members) == len(weights), "one weight for each member"
        self._members: Final = tuple(members)
        self._configured: Final = tuple(weights)
        self._effective: Final = list(weights)
        self._rules: Final = rules or GroupRules()
        # In a worker all members and keys have the same.
        noted = [each.changes for each in members]
        noted += [each.keys.changes for each in members if each.keys is not None]
        self._changes: Final = tuple({id(each): each for each in noted}.values())
        self._n_changes = 0  # as of the last look
        self._holds_until_s = -math.inf  # what was found then, if there is no change
        self._out: list[int] = []  # as of the last look
        self.even: Sequence[float] | None = None  # what weights() returned last, if all are the same, and more than 0
        self.is_panicking = False
        self.n_in = len(members)  # who are neither out nor rest

    def __repr__(self) -> str:
        return f"<GroupHealth {list(self._members)}>"

    def weights(self, now_s: float, *, again: bool = False) -> Sequence[float]:
        """Return the weights to choose by. All are 0 only if all keys rest: see cooldown_left_s().

        Who rests is not out: it has said itself when it can be asked again, and is no reason for panic. Where nobody is
        in, a busy member counts as one that is, as it answers some requests; a key that rests does not. again: for a
        request that has failed once: it should go to one that makes no faults at all, for most requests are not tried
        a third time.
        """
        self._look(now_s)
        if again:
            return [weight * member.trust(now_s) for weight, member in zip(self._effective, self._members, strict=True)]
        return self._effective

    def probe(self, now_s: float, tried: Collection[int] = ()) -> int | None:
        """Return the member that a request should go to before any choice; None: choose.

        Only for a request that can still go elsewhere if this fails: so nobody is harmed by asking.
        """
        self._look(now_s)
        for n in self._out:
            if n not in tried and self._members[n].wants_probe(now_s):
                return n
        return None

    def _look(self, now_s: float) -> None:
        """Look at all members, unless what was found last still holds: no request is to pay for their number."""
        n_changes = 0
        for changes in self._changes:
            n_changes += changes.n
        if now_s < self._holds_until_s and n_changes == self._n_changes:
            return
        self._n_changes = n_changes
        least_late_s = self._rules.least_late_s
        until_s = now_s + least_late_s  # nobody has been quiet for longer before
        effective = self._effective
        out: list[int] = []
        resting: list[int] = []
        quiet: list[int] = []
        for n, member in enumerate(self._members):
            until_s = min(until_s, member.holds_until_s(now_s))
            state = member.state(now_s)
            if state is State.IN:
                effective[n] = self._configured[n] * member.warmth(now_s)
                if now_s - member.waits_since_s <= least_late_s:
                    until_s = min(until_s, member.waits_since_s + least_late_s)
                elif member.quiet_s(now_s) > least_late_s:
                    quiet.append(n)
                continue
            effective[n] = 0.0
            (resting if state is State.RESTING else out).append(n)
        self._out = out
        self._holds_until_s = min(until_s, now_s + _QUIET_EVERY_S) if quiet else until_s
        self.n_in = n_judged = len(effective) - len(resting) - len(out)
        if not n_judged:
            for n in resting:
                if not self._members[n].cooldown_left_s(now_s):
                    effective[n] = self._configured[n]
                    n_judged += 1
        n_judged += len(out)
        self.is_panicking = bool(out) and (
            len(out) == n_judged or 100.0 * len(out) > self._rules.panic_percent * n_judged
        )
        if self.is_panicking:
            for n in out:
                effective[n] = self._configured[n]
        elif quiet:
            self._suspect(quiet, len(out), now_s)
        is_even = effective[0] > 0.0 and effective.count(effective[0]) == len(effective)
        self.even = effective if is_even else None

    def probe_timeout_s(self, now_s: float) -> float:
        """Return when a first byte is so late that it says something: after three times the slowest of late."""
        slowest_s = max(member.slowest_s(now_s) for member in self._members) or SILENT_S
        return max(self._rules.least_late_s, _TIMES_SLOWEST * slowest_s)

    def cooldown_left_s(self, now_s: float) -> float | None:
        """Return how long it is until the first key that rests is back; None if none rests."""
        return min((each for member in self._members if (each := member.cooldown_left_s(now_s))), default=None)

    def begin(self, member: int, now_s: float) -> None:
        """An attempt goes to `member`. Its end must be reported, whatever it is, with the same time."""
        self._members[member].begin(now_s)

    def answers(self, member: int, began_s: float, now_s: float) -> None:
        """A good reply of `member` begins: reported at most once per attempt, before its end."""
        self._members[member].answers(began_s, now_s)

    def ended(
        self,
        member: int,
        verdict: Verdict,
        began_s: float,
        now_s: float,
        *,
        answered: bool,
        cooldown_s: float | None = None,
        random: float = 0.5,
    ) -> None:
        """An attempt at `member` ended. answered: answers() was told. cooldown_s: what a busy member asks for.

        random: in [0, 1).
        """
        found = self._members[member]
        found.ended(verdict, began_s, now_s, answered=answered, cooldown_s=cooldown_s, random=random)
        if verdict in (Verdict.FAULT, Verdict.CUT) and self._is_worse(member, now_s):
            found.eject(now_s, hold_s=self._rules.hold_s, random=random)

    def _suspect(self, quiet: Sequence[int], n_out: int, now_s: float) -> None:
        """Take the weight of those that have been quiet for too long, the longest first, while it may be taken."""
        probe_timeout_s = self.probe_timeout_s(now_s)
        for n in sorted(quiet, key=lambda n: -self._members[n].quiet_s(now_s)):
            n_out += 1
            if 100.0 * n_out > self._rules.most_out_percent * len(self._members):
                return
            if self._members[n].quiet_s(now_s) > probe_timeout_s:
                self._effective[n] = 0.0
                self._members[n].is_suspected = True

    def _is_worse(self, member: int, now_s: float) -> bool:
        """Say whether `member` fails more than its peers, and may be put out for it."""
        n_requests, n_faults = self._members[member].counts(now_s)
        if n_requests < _LEAST_REQUESTS:
            return False
        share = at_least(n_faults, n_requests)
        if share <= _LEAST_SHARE:
            return False
        peers = [each for n, each in enumerate(self._members) if n != member and each.state(now_s) is State.IN]
        n_out = 1 + sum(each.state(now_s) is State.OUT for each in self._members)
        if not peers or 100.0 * n_out > self._rules.most_out_percent * len(self._members):
            return False
        counts = [each.counts(now_s) for each in peers]
        n_peer_requests = sum(requests for requests, _ in counts)
        n_peer_faults = sum(faults for _, faults in counts)
        # As if one more of theirs had failed: of peers that were hardly asked nothing is known.
        return share > _TIMES_PEERS * (n_peer_faults + 1.0) / (n_peer_requests + 2.0)


def at_least(n_of: float, n: float) -> float:
    """Return the share that `n_of` in `n` speak for at least.

    Source: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.
    """
    share = n_of / n
    z2 = _Z * _Z
    spread = _Z * math.sqrt(share * (1.0 - share) / n + z2 / (4.0 * n * n))
    return (share + z2 / (2.0 * n) - spread) / (1.0 + z2 / n)
