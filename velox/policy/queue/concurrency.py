"""How many requests may run at once on one upstream: a fixed number, or one that is found out.

Knows: when each request began, when its reply did, which were refused. Does not know: a clock, who waits for room, or
what a reply is. docs/concurrency.md shows what it does, docs/decisions/0021-adaptive-concurrency.md why it does it so.

A model server decodes some requests at once at full speed; more of them wait inside it, unseen, unfairly and too late
to be refused. AdaptiveLimit keeps it at that knee. It looks at the time from the send to the first event of a reply:
how long the whole takes says more of the answer's length than of the server.

    round      as many requests as the limit, begun under it (8 at least); its median is compared with the base
    base       the median where the server does not queue: learned at the start, lowered by what is faster, and measured
               anew by a probe: one round at half the limit, now and then, in all workers at the same time
    congested  the median is over 1.3 times the base
    a sign     congestion takes off those who wait, by Little's law (waiting = rate x delay), within 7 to 30 % of the
               limit; a 429, a 503 or silence 7 %; each at most once a round trip. Refusals without a good reply in
               between are an outage, whatever the number: they come back within milliseconds, and take half at most.
               Those among good replies take no more than their part of what ran, and nothing once they are known to
               be by chance (Refusals)
    no sign    a step up: long while far from where the last sign came, short near it; none if the limit was not used
    start      4, doubled each round until the first sign

A server that has become slower for good looks congested as well. But then it does not help to send less: if the median
has not followed the limit down to three quarters, it goes no further down, and the next probes raise the base.

Sources: Brakmo and Peterson, TCP Vegas, 1995 (the queue as rate x delay); Netflix concurrency-limits, Gradient2 (steps
of the square root of the limit: the smaller of two grows faster in proportion, and cut in proportion they become
equal); Ha, Rhee and Xu, CUBIC, 2008 (slower near the last sign); BBR (the probe). Gradient2 itself takes its base from
a long average of all latencies, which a standing queue raises until it is no longer seen.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["AdaptiveLimit", "ConcurrencyLimit", "FixedLimit", "Refusals", "Unlimited"]

_UNLIMITED: Final = 1 << 30
_START: Final = 4.0  # few for any server; three rounds more are 32
_LEAST_ROUND: Final = 8  # the median of fewer says little where prompts differ in length
_LEAST_START_ROUND: Final = 4
_LEAST_S: Final = 0.005  # a wait that nobody minds; and uvloop's clock counts whole milliseconds
_SLOW: Final = 1.3  # times the base; the bounds of the medians keep chance out
_CUT: Final = 0.93  # a tenth costs 1 % of the throughput, and is no fairer
_DEEPEST_CUT: Final = 0.7
_LEAST_REFUSED: Final = 0.5  # of the limit before a run of refusals: where nothing is taken the number is not to blame
_LEAST_CALM: Final = 64  # good replies with no refusal in between, and
_CALM_ROUNDS: Final = 4  # so many rounds of them: what ran when it refused before tells nothing any more
_CALM_S: Final = 60.0  # nor does, so long after, what part it refused
_REMEMBERED: Final = 16  # refusals that this part is an average of
_IN_A_ROW: Final = 4  # by chance, one in 60 where a quarter is refused
_MORE: Final = 3.0  # times as many as by chance have another reason; the average of so few is off by a quarter
_SHORT_STEP: Final = 0.08  # times the square root of the limit
_LONG_STEP: Final = 0.4
_NEAR_FROM: Final = 0.95  # of the limit at the last sign
_NEAR_TO: Final = 1.15
_FOLLOWED: Final = 0.75  # of the limit before a run of signs: by then the median has to have followed,
_FOLLOWED_BY: Final = 0.85  # to this part of what it was then; in a queue it falls further than the limit
_BASE_GAIN: Final = 0.25
_LEARNED: Final = 24  # samples that the first base is made of; then some of the doublings may have been too much
_PROBE_WEIGHT: Final = 16  # the base stands for as many samples against those of a probe
_MOST_SLOWER: Final = 2.0  # that one probe makes of a base: a mistake is not to become large at once
_CREEP: Final = 1.1  # of the base a round, while the limit is as low as can be
_PROBE: Final = 0.5
_PROBE_EVERY_S: Final = 64.0  # doubled while it is less than
_PROBE_ROUNDS: Final = 40  # so that probes, a round or two each, take 2 to 4 % of the time at half the limit
_ENOUGH: Final = 0.75  # of a round have replied: those that have not are the slow ones


class ConcurrencyLimit:
    """The limit of one upstream in one worker: the base, which counts and never limits.

    All times are monotonic seconds. They never decrease, but those that requests began at may: one may have been chosen
    before another, and begin after it. n_begun: how many run, counted or not. All that one without a limit needs to
    hear of a request is one more in it when it begins, and one less when it has ended.
    """

    def __init__(self) -> None:
        self.n_begun = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.in_flight} of {self.limit}>"

    @property
    def limit(self) -> int:
        """How many may run; 0: any number."""
        return 0

    @property
    def in_flight(self) -> int:
        """How many run and are counted."""
        return self.n_begun

    @property
    def free_slots(self) -> int:
        """How many more may begin; below 0: some began without asking, as second attempts do."""
        return _UNLIMITED

    def begin(self, now_s: float, *, is_tunnel: bool = False) -> None:
        """A request begins. is_tunnel: it becomes a tunnel. Whether it was allowed to is the caller's affair."""
        self.n_begun += 1

    def replied(self, began_s: float, first_byte_s: float, now_s: float, *, streamed: bool) -> bool:
        """The reply brings its first event, `first_byte_s` after it was sent. Return True if there is more room now.

        streamed: it comes while it is made; else the time is that of the whole answer. began_s: as given to begin().
        """
        return False

    def refused(self, began_s: float, now_s: float) -> None:
        """The upstream said that it has too much to do (429, 503), or nothing for as long as one waits."""

    def ended(self, began_s: float, now_s: float, *, replied: bool, is_tunnel: bool = False) -> None:
        """Count the end of a request. replied: replied() was called for it. began_s, is_tunnel: as given to begin()."""
        self.n_begun -= 1


class Unlimited(ConcurrencyLimit):
    """No limit."""


class FixedLimit(ConcurrencyLimit):
    """A number that the settings give. Tunnels count: each is a request that runs, whatever it does just now."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit: Final = limit

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def free_slots(self) -> int:
        return self._limit - self.n_begun


class AdaptiveLimit(ConcurrencyLimit):
    """A limit that follows the server. Tunnels do not count: how many of them a server bears, their delay does not say.

    most: it never grows beyond.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most: Final = max(1, most)
        self._limit = min(_START, float(self._most))
        self._is_start = True
        self._n_lasting = 0
        self._round: Round | None = None
        self._round_s = 0.0  # how long a round takes
        self._bases: Final[dict[bool, float]] = {}  # of streamed replies, and of others
        self._n_learned = 0  # samples that the first base is made of
        self._cut_s = -math.inf
        self._sign = 0.0  # the limit at which the last sign came
        self._refused = 0.0  # the limit when the last run of refusals began,
        self._refused_s = -math.inf  # and when that was
        self._is_heard = False  # a good reply to what was sent since then
        self._n_replies = 0  # good ones, since the last refusal
        self._refusals: Final = Refusals()
        self._run: tuple[float, float] | None = None  # the limit and the median when this run of signs began
        self._is_probe = False
        self._before = (0.0, 0.0)  # the limit and the median before the probe
        self._probe_n: int | None = None

    def __repr__(self) -> str:
        return f"<AdaptiveLimit {self.in_flight} of {self._limit:.1f} bases={self._bases}>"

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        return self.n_begun - self._n_lasting

    @property
    def free_slots(self) -> int:
        return int(self._limit) - self.in_flight

    def begin(self, now_s: float, *, is_tunnel: bool = False) -> None:
        self.n_begun += 1
        if is_tunnel:
            self._n_lasting += 1
            return
        current = self._round
        if current is None:
            if self.in_flight > int(self._limit):
                return  # what began under a larger limit is still there
            current = self._round = Round(self._round_size(), now_s)
        if current.n_begun < current.n:
            current.is_used |= self.in_flight >= int(self._limit)
            if now_s < current.began_s:
                return  # chosen before the round: it would be waited for, and its reply would not count
            current.n_begun += 1
            if now_s > current.last_s:
                current.last_s = now_s

    def replied(self, began_s: float, first_byte_s: float, now_s: float, *, streamed: bool) -> bool:
        self._n_replies += 1
        if began_s >= self._refused_s:
            self._is_heard = True
        current = self._round
        if current is None or not current.has(began_s):
            return False
        (current.streamed if streamed else current.whole).append(first_byte_s)
        return self._look(current, now_s)

    def refused(self, began_s: float, now_s: float) -> None:
        if not self._bases:
            return  # nothing is answered yet, however few it is
        least = self._refusals.least(self._limit, self.in_flight, self._n_replies, now_s)
        self._n_replies = 0
        if began_s <= self._cut_s or self.in_flight > self.limit:
            return  # it was sent before the last sign, or before that had an effect
        limit = self._before[0] if self._is_probe else self._limit
        if now_s - began_s > max(self._bases.values()):
            least = 0.0  # in this time more could be answered than were refused, and the number be too large
        elif least >= limit:
            if self._refusals.note_chance():
                self._sign = 0.0  # the last one was a refusal, and told nothing of the number
            return
        self._is_probe = False
        self._limit = limit
        if self._is_heard:
            self._is_heard = False
            self._refused, self._refused_s = limit, now_s
        self._signal(max(1.0, least, self._refused * _LEAST_REFUSED, limit * _CUT), now_s)
        self._sign = self._refused

    def ended(self, began_s: float, now_s: float, *, replied: bool, is_tunnel: bool = False) -> None:
        self.n_begun -= 1
        if is_tunnel:
            self._n_lasting -= 1
            return
        current = self._round
        if current is not None:
            current.n_ended += 1
            if not replied and current.has(began_s):
                current.n_lost += 1
                self._look(current, now_s)

    # -- at the end of a round ------------------------------------------------------------------------

    def _round_size(self) -> int:
        return max(_LEAST_START_ROUND if self._is_start else _LEAST_ROUND, self.limit)

    def _look(self, current: Round, now_s: float) -> bool:
        """Judge a round that is over. Return True if there is more room now."""
        if not current.is_over:
            return False
        self._round = None
        before = self.limit
        if current.streamed or current.whole:  # else all were lost
            self._judge(current, now_s)
        return self.limit > before

    def _judge(self, current: Round, now_s: float) -> None:
        streamed = current.is_streamed
        low_s, median_s, high_s = current.medians_s()
        base_s = self._bases.setdefault(streamed, median_s)
        if self._is_probe:
            self._end_probe(current, median_s)
            return
        elapsed_s = now_s - current.began_s
        if not self._is_start:
            self._round_s += (elapsed_s - self._round_s) * _BASE_GAIN
            if self._is_due(now_s):
                self._begin_probe(median_s)
                return
        if low_s > max(base_s * _SLOW, base_s + _LEAST_S):
            # What ended is what the server does; first events come in bursts while it has room.
            n_waiting = current.n_ended / elapsed_s * (low_s - base_s) if elapsed_s > 0 else 0.0
            self._congested(streamed, median_s, n_waiting, now_s)
            return
        self._run = None
        if self._n_learned < _LEARNED:
            # The first rounds are small, and each tells as much as it has samples.
            self._n_learned += current.n
            self._bases[streamed] = base_s + (median_s - base_s) * current.n / self._n_learned
        elif high_s < base_s:
            self._bases[streamed] = base_s + (median_s - base_s) * _BASE_GAIN
        if current.is_used:
            self._grow()

    def _grow(self) -> None:
        if self._is_start:
            grown = self._limit * 2
        else:
            near = self._sign * _NEAR_FROM <= self._limit <= self._sign * _NEAR_TO
            grown = self._limit + math.sqrt(self._limit) * (_SHORT_STEP if near else _LONG_STEP)
        self._limit = min(grown, float(self._most))

    def _congested(self, streamed: bool, median_s: float, n_waiting: float, now_s: float) -> None:
        if self._is_start:
            # The limit before this one was good.
            self._signal(max(1.0, self._limit / 2), now_s)
            return
        if self._limit <= 1.0:
            # One at a time can't queue: this is what the server takes, or what others make of it.
            self._bases[streamed] = min(median_s, self._bases[streamed] * _CREEP)
            return
        if self._run is None:
            self._run = (self._limit, median_s)
        limit, slow_s = self._run
        if self._limit > limit * _FOLLOWED:
            self._run = (limit, max(slow_s, median_s))  # a queue may still be building up
        elif median_s > slow_s * _FOLLOWED_BY:
            return  # it does not help to send less; the next probe tells whether the server has become slower
        emptied = min(self._limit * _CUT, self._limit - n_waiting)
        self._signal(max(1.0, self._limit * _DEEPEST_CUT, emptied), now_s)

    def _signal(self, limit: float, now_s: float) -> None:
        """Go down to `limit`."""
        self._sign = self._limit
        self._limit = limit
        self._is_start = False
        self._cut_s = now_s
        self._round = None

    # -- the probe ------------------------------------------------------------------------------------

    def _is_due(self, now_s: float) -> bool:
        """Return True when the clock, which all workers have in common, has come to the next probe."""
        every_s = _PROBE_EVERY_S
        while every_s < self._round_s * _PROBE_ROUNDS:
            every_s *= 2  # so each of one worker's probes is at the time of one of another's
        n = int(now_s / every_s)
        is_due = self._probe_n is not None and n != self._probe_n
        self._probe_n = n
        return is_due

    def _begin_probe(self, median_s: float) -> None:
        self._is_probe = True
        self._before = (self._limit, median_s)
        self._limit = max(1.0, self._limit * _PROBE)

    def _end_probe(self, current: Round, median_s: float) -> None:
        self._is_probe = False
        streamed = current.is_streamed
        limit, before_s = self._before
        base_s = self._bases[streamed]
        gain = current.n / (current.n + _PROBE_WEIGHT)
        if median_s > base_s:
            if median_s < before_s * _FOLLOWED_BY:
                gain = _BASE_GAIN  # there was a queue, and may still be some of it
            elif median_s * _FOLLOWED_BY > before_s:
                gain = 0.0  # slower at half: something else has just changed
        self._bases[streamed] = min(base_s + (median_s - base_s) * gain, base_s * _MOST_SLOWER)
        if median_s > base_s * _SLOW and median_s < before_s * _FOLLOWED_BY:
            self._sign = self._limit  # it queues even at half, and there is where to go on from
        else:
            self._limit = limit
            self._run = None


class Refusals:
    """How many requests a server surely takes at once that refuses some: the part that it answers of those that ran.

    One that refuses what is above a number is no mystery: it has so many, and the part that it answers of what is sent
    is at most that number's part of what ran, as refusals are quicker than replies. Of one that refuses by chance, as a
    balancer does with a dead server behind it, that part is as good as before; without this, refusals that have
    nothing to do with the number would take the limit down to 1. Refusals in a row are hardly by chance.

    One that refuses as many at that number as above it refuses by chance: a number would have ended it. From then on
    refusals say nothing, or a limit that grows would be taken down by each, and stay far below the knee. Until they are
    clearly more, in a row, or over.
    """

    __slots__ = ("_between", "_chance", "_last_s", "_limit", "_most", "_n", "_n_in_a_row")

    def __init__(self) -> None:
        self._between = 0.0  # good replies between two refusals, on average
        self._chance = 0.0  # the same where they are by chance; 0: they are not, as far as is known
        self._n = 0  # of so many
        self._n_in_a_row = 0
        self._last_s = -math.inf
        self._limit = 0.0  # where it began
        self._most = 0  # that ran at a refusal since then

    def least(self, limit: float, in_flight: int, n_replies: int, now_s: float) -> float:
        """Note a refusal; return the number, inf if they are by chance. n_replies: good ones since the last."""
        if limit >= self._limit or n_replies >= max(_LEAST_CALM, limit * _CALM_ROUNDS):
            self._limit, self._most = limit, 0
        self._most = max(self._most, in_flight)
        if now_s - self._last_s > _CALM_S:
            self._n = n_replies = 0  # how many were before the first, nobody has counted
            self._chance = 0.0
        self._last_s = now_s
        self._n = min(self._n + 1, _REMEMBERED)
        self._between += (min(n_replies, _LEAST_CALM) - self._between) / self._n
        self._n_in_a_row = 1 if n_replies else self._n_in_a_row + 1
        if self._n_in_a_row >= _IN_A_ROW:
            self._chance = 0.0
            return 0.0
        if self._between * _MORE < self._chance:
            self._chance = 0.0
            self._limit, self._most = limit, in_flight
        return math.inf if self._chance else self._most * self._between / (self._between + 1.0)

    def note_chance(self) -> bool:
        """A refusal came though no more ran than the number. Return True if that was not known of them."""
        is_new = not self._chance
        self._chance = max(self._chance, self._between)
        return is_new


class Round:
    """Requests that begin under one limit, and how long the replies to them took to begin.

    Only requests that began in the round count, and all of them: of those that were sent while a limit grows, the fast
    ones reply first, and a median of the replies so far would be that of the fast ones.
    """

    __slots__ = ("began_s", "is_used", "last_s", "n", "n_begun", "n_ended", "n_lost", "streamed", "whole")

    def __init__(self, n: int, now_s: float) -> None:
        self.n: Final = n
        self.began_s: Final = now_s
        self.last_s = now_s  # when the last of those that have begun did
        self.n_begun = 0
        self.is_used = False  # the limit was used up
        self.n_ended = 0  # in this time, whenever they began
        self.n_lost = 0
        self.streamed: list[float] = []
        self.whole: list[float] = []

    def has(self, began_s: float) -> bool:
        """Say whether a request that began then belongs to it."""
        return self.began_s <= began_s <= self.last_s

    @property
    def is_over(self) -> bool:
        """True when it can be judged."""
        return self.n_begun >= self.n and len(self.streamed) + len(self.whole) + self.n_lost >= self.n * _ENOUGH

    @property
    def is_streamed(self) -> bool:
        """True if the streamed replies are enough to judge by: the others tell more of their length."""
        return len(self.streamed) * 4 >= len(self.streamed) + len(self.whole)

    def medians_s(self) -> tuple[float, float, float]:
        """Return the median between its bounds, one standard error away: what is not chance, however samples spread.

        (0, 0, 0): there is none. Those that have not replied are slower than all others.
        """
        samples = sorted(self.streamed if self.is_streamed else self.whole)
        n = len(samples) + max(0, self.n - self.n_lost - len(self.streamed) - len(self.whole))
        if not samples:
            return 0.0, 0.0, 0.0
        last, middle, error = len(samples) - 1, n / 2, math.sqrt(n) / 2
        low, median, high = (samples[min(last, int(rank))] for rank in (middle - error, middle, middle + error))
        return low, median, high
