"""The best of a few drawn at random, by time to the first byte times load.

Knows: how a member's latency is estimated, and how members are compared. Does not know: a clock, chance, or how replies
end.

Power of d choices: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001. A few draws do nearly
as well as looking at all, cost the same for any number of members, and workers that know the same don't all run to the
same member. Two draws are enough among equals. Where half of the members are slow, a quarter of all pairs are two slow
ones, more than those may be able to serve, and no comparison helps: so it is four, of which that is a sixteenth
(docs/decisions/0022-balancing.md), and all where there are no more.

Peak EWMA: Finagle's PeakEwma.scala (Linkerd's, Envoy's). The estimate rises at once to a latency that is higher and
comes down slowly, by the time since: with nothing heard it fades, so that a member which was slow is tried again. It
differs in this:

- What is measured is the time to the first byte. How long a reply is, its client chose.
- Requests in flight are all workers', latencies are this worker's. So "asked, nothing known yet" can't be read from
  the requests in flight: it counts its own.
- A member that fails fast must not look fast: a failure makes it as slow as the slowest, and twice what it was.
- Who gave up tells that it took at least so long.
- Those that still wait tell something, too: it takes at least as long as they have waited, on average. A member that
  stalls, or has a line, is otherwise heard of only when it is over, and in the meantime its estimate fades.

Members are drawn regardless of weight; the comparison is by weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from velox.policy.balance.candidates import Balancer, Candidates, Key, Tried, usable

__all__ = ["PeakEwma", "PeakLatency"]

DECAY_S: Final = 10.0  # Finagle's and Linkerd's default
# Far beyond any latency: who was asked for the first time and has not answered is avoided, not forbidden.
_UNKNOWN_S: Final = 1e6
_FAILED_S: Final = 1.0  # a first failure, where nobody's latency is known; arbitrary
_MOST_S: Final = 60.0  # failures make nobody slower than this: 40 s of silence then bring it to a second
_PAIRS: Final = 2  # a double has 26 bits for each
_LEAST_DRAWN: Final = 2


class PeakLatency:
    """What this worker knows of the latency of one member. May outlive its group: reload keeps those of old members."""

    __slots__ = ("_began_s", "_estimate_s", "_n_asked", "_since_s")

    def __init__(self) -> None:
        self._estimate_s = 0.0  # as of _since_s
        self._since_s = 0.0
        self._n_asked = 0  # by this worker, and nothing heard yet
        self._began_s = 0.0  # when those began, the sum

    def __repr__(self) -> str:
        return f"<PeakLatency {self._estimate_s:.3f} s, {self._n_asked} asked>"

    def began(self, now_s: float) -> None:
        """One more was asked."""
        self._n_asked += 1
        self._began_s += now_s

    def ended(self, waited_s: float, now_s: float) -> None:
        """One that was asked is over."""
        self._n_asked -= 1
        # Begun anew when nobody waits, or errors of rounding would add up for ever.
        self._began_s = self._began_s - (now_s - waited_s) if self._n_asked > 0 else 0.0

    def heard(self, latency_s: float, now_s: float) -> None:
        """It took so long."""
        estimate_s = self._estimate_s
        if latency_s >= estimate_s:
            self._estimate_s = latency_s
        else:
            keep = math.exp(min(0.0, self._since_s - now_s) / DECAY_S)
            self._estimate_s = max(latency_s, estimate_s * keep + latency_s * (1.0 - keep))
        self._since_s = now_s

    def estimate_s(self, now_s: float) -> float:
        """Return the estimate as it has faded; 0 if nothing is known."""
        return self._estimate_s * math.exp(min(0.0, self._since_s - now_s) / DECAY_S)

    def cost_s(self, now_s: float) -> float:
        """Return the estimate to compare by: a member of which nothing is known is asked at once, but only once."""
        estimate_s = self._estimate_s
        if estimate_s:
            estimate_s *= math.exp(min(0.0, self._since_s - now_s) / DECAY_S)
            n_asked = self._n_asked
            if n_asked:
                age_s = now_s - self._began_s / n_asked
                return age_s if age_s > estimate_s else estimate_s
            return estimate_s
        return _UNKNOWN_S if self._n_asked else 0.0


class PeakEwma(Balancer):
    """The choice by latency and load."""

    __slots__ = ("_latencies", "_pairs")

    learns: ClassVar[bool] = True

    def __init__(self, latencies: Sequence[PeakLatency], *, pairs: int = _PAIRS) -> None:
        """latencies: by member; shared with other groups that have the same members. pairs: drawn, of two members."""
        self._latencies: Final = latencies
        self._pairs: Final = pairs

    def __repr__(self) -> str:
        return f"<PeakEwma {list(self._latencies)}>"

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
    ) -> int | None:
        """Choose the best of those drawn."""
        weights = usable(candidates.weights, tried)
        latencies = self._latencies
        inflight = candidates.inflight
        extra = candidates.extra
        best: int | None = None
        least_load = least_cost = 0.0
        for member in _draw(weights, random, self._pairs):
            load = (inflight[member] + extra[member] + 1.0) / weights[member]
            cost = latencies[member].cost_s(now_s) * load
            # Of two unknown ones the load decides.
            if best is None or cost < least_cost or (cost == least_cost and load < least_load):
                best = member
                least_load = load
                least_cost = cost
        return best

    def began(self, member: int, now_s: float) -> None:
        """An attempt goes to `member`."""
        self._latencies[member].began(now_s)

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        """The first byte came after `waited_s`."""
        latency = self._latencies[member]
        latency.ended(waited_s, now_s)
        latency.heard(waited_s, now_s)

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt failed: from now on the member is taken for the slowest."""
        slowest_s = max(latency.estimate_s(now_s) for latency in self._latencies)
        latency = self._latencies[member]
        latency.ended(waited_s, now_s)
        latency.heard(min(_MOST_S, max(_FAILED_S, waited_s, slowest_s, 2.0 * latency.estimate_s(now_s))), now_s)

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        """The attempt was given up: it would have taken longer than `waited_s`."""
        latency = self._latencies[member]
        latency.ended(waited_s, now_s)
        if waited_s > latency.estimate_s(now_s):
            latency.heard(waited_s, now_s)


def _draw(weights: Sequence[float], random: float, pairs: int) -> list[int]:
    """Return the members to compare, all of which may be chosen; none where none may."""
    n = len(weights)
    if n > 2 * pairs:
        drawn = []
        for _ in range(pairs):
            random *= n
            one = int(random)
            random = (random - one) * (n - 1)
            other = int(random)
            random -= other
            if other >= one:
                other += 1
            if weights[one] > 0.0:
                drawn.append(one)
            if weights[other] > 0.0:
                drawn.append(other)
        if len(drawn) >= _LEAST_DRAWN:
            return drawn
    # Few there are, or most are out: all that are left, from anywhere on, for of those alike the first is chosen.
    first = int(random * n)
    return [member for member in (*range(first, n), *range(first)) if weights[member] > 0.0]
