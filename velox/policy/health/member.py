"""The health of one member: whether it is ejected, in cooldown, due for a probe, and how much it may take.

Knows: the ends of this worker's attempts there, what active probes found, whether its upstream's keys may be used.
Does not know: the other members (group.py), a clock, or chance.

    in     faults in a row                          -> out   (breaker.py)
    in     more faults than its peers               -> out   (group.py decides)
    out    hold over, probes in a row are well      -> in, with a slow start
    in     many wait, and nothing is heard          -> suspected, until something is (group.py decides)
    any    active probes fail                       -> out, until they are good again
    any    no connection can be made                -> out, until one can
    any    503 in a row, or all keys in cooldown    -> cooldown, for as long as it said

How long it is out grows each time, and it is back within 30 s of being well: 10 s for a probe that still waits, 12 s
until the next one, jitter on top, and some that are well, a second apart. Who was put out for its share of faults needs
five of those in a row: of a member that fails a third of its requests two thirds are well, but five only 13 times in
100.

One 503 among good answers is a server that sheds what is too much: to send it nothing for a second would only move
the load to the next. Only a row of them, with nothing good in between, begins a cooldown.

An active probe does not bring back a member that requests found out: a health page answers while completions fail.

Verdict, what the end of an attempt says of its member and of the key that it carried:

    4xx                               the request was wrong: the member is well
    401, 403                          the same, and the key may be no good
    429                               the account has had enough for now: nothing of the member; the key rests
    503, 529                          the member is busy: no fault; three in a row and it rests
    other 5xx, transport, time-outs   faults
    cut replies                       faults of a kind that begins well
    given up from this side           nothing; after a long silence as good as a fault

ProbeSchedule, when a member is actively probed: until the first answer the member counts as well, and the first answer
decides alone. From then on `fall` bad ones in a row turn it, and `rise` good ones turn it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from velox.errors import Blame, Reason
from velox.policy.health.breaker import Breaker, BreakerRules
from velox.policy.health.keys import Changes, Keys

__all__ = [
    "EJECTION",
    "SILENT_S",
    "ActiveRules",
    "MemberHealth",
    "MemberRules",
    "ProbeSchedule",
    "State",
    "Verdict",
    "of_failure",
    "of_giving_up",
    "of_status",
]

EJECTION: Final = BreakerRules(faults=5, probes=2, hold_s=1.0, most_hold_s=12.0, calm_s=30.0, jitter=0.2)
_WARM_FROM: Final = 0.1  # of its weight, a member begins with: enough to be asked at all (Envoy's default)
_STEEP: Final = 16.0  # arbitrary
_QUICK_S: Final = 1.0  # no first byte is slow before
_LEAST_TRUST: Final = 1e-3  # a member is never left out for it
_PROBES: Final = 5
_PRIOR: Final = 8.0  # requests that are remembered of one that was put out for its share of faults
_WAITING: Final = 5  # as many as faults in a row: if they all time out, it is out
_QUIET_S: Final = 1.0  # silence that is worth a look when so many wait; below what any group minds
_WARM_STEP_S: Final = 0.05  # of a slow start: in less its weight is the same, as far as anybody can tell
_SLOWEST_S: Final = 300.0  # a slow first byte is forgotten in this time: replies that do not stream may be seldom
_BUSY: Final = 3  # in a row, then it rests; arbitrary
_FIRST_COOLDOWN_S: Final = 1.0  # where it does not say for how long; doubled while it goes on
_MAX_COOLDOWN_S: Final = 15.0
_MEMORY_S: Final = 60.0  # requests and faults are forgotten by time: 1/e of them after this
_FADED_EVERY_S: Final = 0.1  # 0.2 % of what fades
# Who waits longer for a first byte is hardly impatient. Arbitrary; models that think first take 5 to 30 s, but then a
# run of these without one answer in between is rare, and a mistake costs one probe.
SILENT_S: Final = 10.0
_JITTER: Final = 0.1  # of the time between two, either way: members must not be asked all at once for ever


class Verdict(IntEnum):
    """What the end of an attempt says; the table above."""

    WELL = 0
    NOTHING = 1
    KEY = 2
    QUOTA = 3
    BUSY = 4
    FAULT = 5
    CUT = 6
    SILENT = 7


_HEARD: Final = frozenset({Verdict.WELL, Verdict.KEY, Verdict.QUOTA, Verdict.BUSY})
_OF_STATUS: Final = {401: Verdict.KEY, 403: Verdict.KEY, 429: Verdict.QUOTA, 503: Verdict.BUSY, 529: Verdict.BUSY}
_CUTS: Final = frozenset({Reason.UPSTREAM_TRUNCATED, Reason.UPSTREAM_IDLE_TIMEOUT})
_NO_FAULTS: Final = frozenset({Reason.UPSTREAM_TOTAL_TIMEOUT})  # a reply may be long


class State(IntEnum):
    """Why a member gets requests, or none."""

    IN = 0
    RESTING = 1
    OUT = 2


@dataclass(frozen=True, slots=True)
class MemberRules:
    """warm_s: how long a slow start takes; 0: none."""

    breaker: BreakerRules = EJECTION
    warm_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ActiveRules:
    """every_s: from one probe to the next. timeout_s: one that takes longer is a bad answer, and lost if untold."""

    every_s: float = 5.0
    timeout_s: float = 2.0
    rise: int = 2  # HAProxy's defaults for both
    fall: int = 3


class ProbeSchedule:
    """The probes of one member by one worker. All times are monotonic seconds."""

    __slots__ = ("_began_s", "_is_asking", "_is_known", "_n_against", "_next_s", "_rules", "is_up")

    def __init__(self, rules: ActiveRules, now_s: float, random: float) -> None:
        """random: in [0, 1); the first probes of several members are spread over the time between two."""
        self._rules: Final = rules
        self._next_s = now_s + rules.every_s * random
        self._began_s = 0.0
        self._is_asking = False
        self._is_known = False
        self._n_against = 0  # answers in a row that speak against the belief
        self.is_up = True

    def __repr__(self) -> str:
        return f"<ProbeSchedule {'up' if self.is_up else 'down'}, {self._n_against} against>"

    @property
    def timeout_s(self) -> float:
        """How long a probe may take."""
        return self._rules.timeout_s

    def next_s(self) -> float:
        """Return when the next probe is due. One without a reported end is due again after its time-out."""
        return self._began_s + self._rules.timeout_s + self._rules.every_s if self._is_asking else self._next_s

    def is_due(self, now_s: float) -> bool:
        """Say whether a probe is to be sent now."""
        return now_s >= self.next_s()

    def begin(self, now_s: float, random: float) -> None:
        """A probe is sent. The time to the next one counts from here, however long this one takes."""
        self._is_asking = True
        self._began_s = now_s
        self._next_s = now_s + self._rules.every_s * (1.0 + _JITTER * (2.0 * random - 1.0))

    def ended(self, is_good: bool) -> bool:
        """The answer to the last probe, or its failure; True if the belief turns by it."""
        self._is_asking = False
        if is_good is self.is_up:
            self._n_against = 0
            self._is_known = True
            return False
        self._n_against += 1
        if self._is_known and self._n_against < (self._rules.rise if is_good else self._rules.fall):
            return False
        self._is_known = True
        self._n_against = 0
        self.is_up = is_good
        return True


class MemberHealth:
    """One member in one worker. All times are monotonic seconds and never decrease."""

    def __init__(
        self,
        rules: MemberRules,
        now_s: float,
        *,
        keys: Keys | None = None,
        active: ProbeSchedule | None = None,
        is_new: bool = True,
        changes: Changes | None = None,
    ) -> None:
        """keys: of its upstream, shared by its members. is_new: it begins slowly; all of a new gateway may be, too.

        changes: where it is noted when state() or warmth() may be others than holds_until_s() said; the same for many.
        """
        self.changes: Final = changes or Changes()
        self._rules: Final = rules
        self._breaker: Final = Breaker(rules.breaker)
        self._cooldown_until_s = 0.0  # until then
        self._n_busy = 0  # 503 in a row
        self._n_cooldowns = 0  # for which it did not say how long
        self._warm_s = now_s + rules.warm_s if is_new else now_s  # from then on it has all its weight
        # Of the last seconds, less what was forgotten until _at_s.
        self._requests = 0.0
        self._faults = 0.0
        self._at_s = now_s
        self._n_waiting = 0  # attempts, for a first byte
        self._heard_s = now_s  # when something was heard last, or else they began to wait
        self._slowest_s = 0.0  # first byte, as of _slow_at_s
        self._slow_at_s = now_s
        self.keys: Final = keys
        self.active: Final = active
        self._is_reachable = True
        self.is_suspected = False  # by a group: it wants to know when something is heard

    def __repr__(self) -> str:
        return f"<MemberHealth {self._breaker!r} faults={self._faults:.1f}/{self._requests:.1f}>"

    @property
    def is_reachable(self) -> bool:
        """Told from outside: there is a connection, or the last try to make one did not fail."""
        return self._is_reachable

    @is_reachable.setter
    def is_reachable(self, is_reachable: bool) -> None:
        if is_reachable is not self._is_reachable:
            self._is_reachable = is_reachable
            self.changes.n += 1

    @property
    def is_faultless(self) -> bool:
        """True unless the last of its attempts that counts was a fault."""
        return not self._breaker.n_faults

    @property
    def fails_requests(self) -> bool:
        """True while it is out for how its requests ended."""
        return self._breaker.is_open

    def state(self, now_s: float) -> State:
        """Return whether it may have requests."""
        if self._breaker.is_open or not self._is_reachable or (self.active is not None and not self.active.is_up):
            return State.OUT
        if now_s < self._cooldown_until_s:
            return State.RESTING
        keys = self.keys
        if keys is not None and not keys.is_usable(now_s):
            return State.OUT if keys.cooldown_left_s(now_s) is None else State.RESTING
        return State.IN

    def warmth(self, now_s: float) -> float:
        """Return how much of its weight it may have while it is in: below 1 in a slow start."""
        if now_s >= self._warm_s:
            return 1.0
        return max(_WARM_FROM, 1.0 - (self._warm_s - now_s) / self._rules.warm_s)

    def holds_until_s(self, now_s: float) -> float:
        """Return until when state() and warmth() stay as they are, if no change is noted; now_s: that is not known."""
        if self._breaker.is_open or not self._is_reachable:
            return math.inf
        if self.keys is not None and not self.keys.is_sure(now_s):
            return now_s
        if now_s < self._cooldown_until_s:
            return self._cooldown_until_s
        return math.inf if now_s >= self._warm_s else now_s + _WARM_STEP_S

    def cooldown_left_s(self, now_s: float) -> float:
        """Return how long its keys rest yet, 0 if one may be used: nothing can be sent there before."""
        if self.keys is None or self.keys.is_usable(now_s):
            return 0.0
        return self.keys.cooldown_left_s(now_s) or 0.0

    def wants_probe(self, now_s: float) -> bool:
        """True if a request that can go elsewhere afterwards should go here now."""
        if not self._breaker.is_open or not self._breaker.allows(now_s) or now_s < self._cooldown_until_s:
            return False
        if not self._is_reachable or (self.active is not None and not self.active.is_up):
            return False
        return self.keys is None or self.keys.is_usable(now_s)

    def begin(self, now_s: float) -> None:
        """An attempt goes there. Its end must be reported, whatever it is, with the same time."""
        if self._breaker.is_open:
            self._breaker.begin(now_s)
        if not self._n_waiting:
            self._heard_s = now_s
        self._n_waiting += 1
        if self._n_waiting == _WAITING and now_s - self._heard_s > _QUIET_S:
            self.changes.n += 1

    def answers(self, began_s: float, now_s: float) -> None:
        """The head of a good reply has come: reported at most once per attempt, before its end."""
        self._n_waiting -= 1
        self._heard_s = now_s
        if self.is_suspected:
            self._clear()
        waited_s = now_s - began_s
        # Faded now and then, not for each request.
        if waited_s > self._slowest_s or now_s - self._slow_at_s > _FADED_EVERY_S:
            self._slowest_s = max(self.slowest_s(now_s), waited_s)
            self._slow_at_s = now_s

    def begins_well(self, now_s: float) -> None:
        """The first of a good reply's body has come: an error may follow a good head. After answers()."""
        self._n_busy = self._n_cooldowns = 0
        if self._breaker.n_faults:
            was_open = self._breaker.is_open
            self._breaker.answers()
            if was_open:
                self._may_return(now_s)

    def succeeded(self, began_s: float, now_s: float, *, answered: bool = True) -> None:
        """An attempt ended well: the same as ended() with Verdict.WELL, and cheap while there was no fault."""
        if self._breaker.n_faults or not answered:
            self.ended(Verdict.WELL, began_s, now_s, answered=answered)
            return
        self._n_busy = self._n_cooldowns = 0
        if now_s - self._at_s > _FADED_EVERY_S:
            self._fade(now_s)
        self._requests += 1.0

    def ended(
        self,
        verdict: Verdict,
        began_s: float,
        now_s: float,
        *,
        answered: bool,
        cooldown_s: float | None = None,
        random: float = 0.5,
    ) -> None:
        """Note the end of an attempt. answered: answers() was called. cooldown_s: of a busy member. random: 0 to 1."""
        was_open = self._breaker.is_open
        if not answered:
            self._n_waiting -= 1
            if verdict in _HEARD:
                self._heard_s = now_s
            if self.is_suspected:
                self._clear()
        if verdict is Verdict.WELL or verdict is Verdict.KEY:
            self._n_busy = self._n_cooldowns = 0
            if self._breaker.n_faults:
                self._breaker.succeeded(began_s)
            self._count(0.0, now_s)
        elif verdict in (Verdict.FAULT, Verdict.CUT):
            self._breaker.failed(began_s, now_s, cut=verdict is Verdict.CUT, random=random)
            self._count(1.0, now_s)
        elif verdict is Verdict.SILENT:
            # Not counted: as a part of all it would tell of the clients' patience.
            self._breaker.failed(began_s, now_s, random=random)
        else:
            self._breaker.gave_up(began_s)
            if verdict is Verdict.BUSY:
                self._busy(cooldown_s, began_s, now_s)
        if was_open:
            self._may_return(now_s)
        elif self._breaker.is_open:
            self._requests = self._faults = 0.0  # what it did before says nothing of what comes back
            self.changes.n += 1

    def eject(self, now_s: float, *, hold_s: float, random: float = 0.5) -> None:
        """Put it out for its share of faults. hold_s: at least until the first probe.

        A little of what it did is remembered: if it comes back the same, few requests are enough to tell.
        """
        self._breaker.open(now_s, hold_s=hold_s, probes=_PROBES, random=random)
        self.changes.n += 1
        if self._requests > _PRIOR:
            self._faults *= _PRIOR / self._requests
            self._requests = _PRIOR

    def probed(self, is_good: bool, now_s: float) -> None:
        """An active probe ended."""
        assert self.active is not None, "who probes has its schedule from here"
        if self.active.ended(is_good):
            self.changes.n += 1
            if is_good:
                self._warm_s = now_s + self._rules.warm_s

    def quiet_s(self, now_s: float) -> float:
        """Return how long nothing was heard while many wait; 0 while few do. They end, so this does."""
        return now_s - self._heard_s if self._n_waiting >= _WAITING else 0.0

    @property
    def waits_since_s(self) -> float:
        """When something was heard last by those that wait; inf while none does."""
        return self._heard_s if self._n_waiting else math.inf

    def slowest_s(self, now_s: float) -> float:
        """Return the slowest first byte of late, faded by age; 0 if none is known."""
        return self._slowest_s * math.exp(min(0.0, self._slow_at_s - now_s) / _SLOWEST_S)

    def trust(self, now_s: float) -> float:
        """Return how much of its weight it may have of requests that have failed once: 1 if all was well of late.

        Falls steeply: a share of 5 % halves it, 30 % leave 0.3 %. Faults in a row halve it each, and so does silence
        for as long as the slowest first byte.
        """
        requests, faults = self.counts(now_s)
        share = min(1.0, faults / (requests + 1.0))
        n_halved = float(self._breaker.n_faults)
        if self._n_waiting:
            n_halved += (now_s - self._heard_s) / max(_QUICK_S, self.slowest_s(now_s))
        return max(_LEAST_TRUST, math.pow(1.0 - share, _STEEP) * math.pow(0.5, n_halved))

    def counts(self, now_s: float) -> tuple[float, float]:
        """Return the requests of the last seconds and their faults, both faded by age."""
        keep = math.exp(min(0.0, self._at_s - now_s) / _MEMORY_S)
        return self._requests * keep, self._faults * keep

    def _busy(self, cooldown_s: float | None, began_s: float, now_s: float) -> None:
        self._n_busy += 1
        if self._n_busy < _BUSY:
            return
        if cooldown_s is None:
            if began_s < self._cooldown_until_s:
                return  # those that were under way together are one refusal
            cooldown_s = min(_MAX_COOLDOWN_S, _FIRST_COOLDOWN_S * 2.0**self._n_cooldowns)
            self._n_cooldowns += 1
        self._cooldown_until_s = max(self._cooldown_until_s, now_s + cooldown_s)
        self.changes.n += 1

    def _count(self, faults: float, now_s: float) -> None:
        if self._breaker.is_open:
            return  # probes are judged by the breaker
        if now_s - self._at_s > _FADED_EVERY_S:
            self._fade(now_s)
        self._requests += 1.0
        self._faults += faults

    def _fade(self, now_s: float) -> None:
        self._requests, self._faults = self.counts(now_s)
        self._at_s = now_s

    def _may_return(self, now_s: float) -> None:
        if not self._breaker.is_open:
            self._warm_s = now_s + self._rules.warm_s
            self.changes.n += 1

    def _clear(self) -> None:
        self.is_suspected = False
        self.changes.n += 1


def of_status(status: int) -> Verdict:
    """Judge a whole reply."""
    found = _OF_STATUS.get(status)
    if found is not None:
        return found
    return Verdict.FAULT if status >= 500 else Verdict.WELL


def of_failure(reason: Reason, *, unprocessed: bool = False) -> Verdict:
    """Judge an attempt without a whole reply. reason: not UPSTREAM_STATUS, which has a status to judge by.

    unprocessed: the member surely did no work and can be reached: it refused the stream, or closed an idle connection.
    """
    if reason is Reason.UPSTREAM_REDIRECT:
        return Verdict.WELL
    # Nor is it the member's fault that this worker had no open file left, or a bug in the translation of its reply.
    if unprocessed or reason in _NO_FAULTS or reason.fact.blame is Blame.GATEWAY:
        return Verdict.NOTHING
    return Verdict.CUT if reason in _CUTS else Verdict.FAULT


def of_giving_up(waited_s: float, *, answered: bool) -> Verdict:
    """Judge an attempt that was ended from this side: the client left, or a hedge was faster.

    answered: a byte had come. A member that stalls would else never be found out by clients who leave before the
    time-out: only their silence tells of it.
    """
    return Verdict.SILENT if waited_s >= SILENT_S and not answered else Verdict.NOTHING
