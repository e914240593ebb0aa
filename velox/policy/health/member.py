"""The health of one member: whether it is out, rests, is due for a probe, and how much it may take.

Knows: the ends of this worker's attempts there, what active probes found, whether its upstream's keys may be used. Does
not know: the other members (group.py), a clock, chance, or what a fault is (verdict.py).

    in     faults in a row                          -> out   (breaker.py)
    in     more faults than its peers               -> out   (group.py decides)
    out    hold over, probes in a row are well      -> in, with a slow start
    in     many wait, and nothing is heard          -> suspected, until something is (group.py decides)
    any    active probes fail                       -> out, until they are good again
    any    no connection can be made                -> out, until one can
    any    503 in a row, or all its keys rest       -> rests, for as long as told

How long it is out grows each time, and it is back within 30 s of being well: 10 s for a probe that still waits, 12 s
until the next one, jitter on top, and some that are well, a second apart. Who was put out for its share of faults needs
five of those in a row: of a member that fails a third of its requests two thirds are well, but five only 13 times in
100.

One 503 among good answers is a server that sheds what is too much: to send it nothing for a second would only move
the load to the next. Only a row of them, with nothing good in between, makes it rest.

An active probe does not bring back a member that requests found out: a health page answers while completions fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from velox.policy.breaker import Breaker, BreakerRules
from velox.policy.health.active import ProbeSchedule
from velox.policy.health.changes import Changes
from velox.policy.health.keys import Keys
from velox.policy.health.verdict import Verdict

__all__ = ["EJECTION", "MemberHealth", "MemberRules", "State"]

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
_FIRST_REST_S: Final = 1.0  # where it does not say for how long; doubled while it goes on
_MOST_REST_S: Final = 15.0
_MEMORY_S: Final = 60.0  # requests and faults are forgotten by time: 1/e of them after this
_FADED_EVERY_S: Final = 0.1  # 0.2 % of what fades
_HEARD: Final = frozenset({Verdict.WELL, Verdict.KEY, Verdict.QUOTA, Verdict.BUSY})


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


class MemberHealth:
    """One member in one worker. All times are monotonic seconds and never decrease."""

    __slots__ = (
        "_at_s",
        "_breaker",
        "_faults",
        "_heard_s",
        "_is_reachable",
        "_n_busy",
        "_n_rests",
        "_n_waiting",
        "_requests",
        "_rests_s",
        "_rules",
        "_slow_at_s",
        "_slowest_s",
        "_warm_s",
        "active",
        "changes",
        "is_suspected",
        "keys",
    )

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
        self._rests_s = 0.0  # until then
        self._n_busy = 0  # 503 in a row
        self._n_rests = 0  # for which it did not say how long
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

    def state(self, now_s: float) -> State:
        """Return whether it may have requests."""
        if self._breaker.is_open or not self._is_reachable or (self.active is not None and not self.active.is_up):
            return State.OUT
        if now_s < self._rests_s:
            return State.RESTING
        keys = self.keys
        if keys is not None and not keys.is_usable(now_s):
            return State.OUT if keys.rests_s(now_s) is None else State.RESTING
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
        if now_s < self._rests_s:
            return self._rests_s
        return math.inf if now_s >= self._warm_s else now_s + _WARM_STEP_S

    def rests_s(self, now_s: float) -> float:
        """Return how long its keys rest yet, 0 if one may be used: nothing can be sent there before."""
        if self.keys is None or self.keys.is_usable(now_s):
            return 0.0
        return self.keys.rests_s(now_s) or 0.0

    def wants_probe(self, now_s: float) -> bool:
        """True if a request that can go elsewhere afterwards should go here now."""
        if not self._breaker.is_open or not self._breaker.allows(now_s) or now_s < self._rests_s:
            return False
        if not self._is_reachable or (self.active is not None and not self.active.is_up):
            return False
        return self.keys is None or self.keys.is_usable(now_s)

    def begin(self, now_s: float) -> None:
        """An attempt goes there. Its end is to be told, whatever it is, with the same time."""
        if self._breaker.is_open:
            self._breaker.begin(now_s)
        if not self._n_waiting:
            self._heard_s = now_s
        self._n_waiting += 1
        if self._n_waiting == _WAITING and now_s - self._heard_s > _QUIET_S:
            self.changes.n += 1

    def answers(self, began_s: float, now_s: float) -> None:
        """A good reply begins: told at most once of an attempt, and before its end."""
        self._n_busy = self._n_rests = 0
        self._n_waiting -= 1
        self._hear(now_s)
        waited_s = now_s - began_s
        # Faded now and then, not for each request.
        if waited_s > self._slowest_s or now_s - self._slow_at_s > _FADED_EVERY_S:
            self._slowest_s = max(self.slowest_s(now_s), waited_s)
            self._slow_at_s = now_s
        if self._breaker.n_faults:
            was_open = self._breaker.is_open
            self._breaker.answers()
            if was_open:
                self._may_return(now_s)

    def ended(
        self,
        verdict: Verdict,
        began_s: float,
        now_s: float,
        *,
        answered: bool,
        rest_s: float | None = None,
        random: float = 0.5,
    ) -> None:
        """An attempt ended. answered: answers() was told. rest_s: what a busy member asks for. random: in [0, 1)."""
        was_open = self._breaker.is_open
        if not answered:
            self._n_waiting -= 1
            if verdict in _HEARD:
                self._hear(now_s)
            elif self.is_suspected:
                self._clear()
        if verdict is Verdict.WELL or verdict is Verdict.KEY:
            self._n_busy = self._n_rests = 0
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
                self._busy(rest_s, began_s, now_s)
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

    def _busy(self, rest_s: float | None, began_s: float, now_s: float) -> None:
        self._n_busy += 1
        if self._n_busy < _BUSY:
            return
        if rest_s is None:
            if began_s < self._rests_s:
                return  # those that were under way together are one refusal
            rest_s = min(_MOST_REST_S, _FIRST_REST_S * 2.0**self._n_rests)
            self._n_rests += 1
        self._rests_s = max(self._rests_s, now_s + rest_s)
        self.changes.n += 1

    def _count(self, faults: float, now_s: float) -> None:
        if self._breaker.is_open:
            return  # probes are judged by the breaker
        if now_s - self._at_s > _FADED_EVERY_S:
            self._requests, self._faults = self.counts(now_s)
            self._at_s = now_s
        self._requests += 1.0
        self._faults += faults

    def _may_return(self, now_s: float) -> None:
        if not self._breaker.is_open:
            self._warm_s = now_s + self._rules.warm_s
            self.changes.n += 1

    def _hear(self, now_s: float) -> None:
        self._heard_s = now_s
        if self.is_suspected:
            self._clear()

    def _clear(self) -> None:
        self.is_suspected = False
        self.changes.n += 1
