"""A circuit breaker: an upstream that fails again and again is passed over, and asked now and then whether it is back.

Knows: what an attempt's end says of an upstream, and when one may be tried again. Does not know: a clock, chance, other
upstreams, or what a fault is (health/member.py tells).

    closed  --faults in a row, or told to open-->  open  --probes in a row that are well-->  closed
                                    while open, one attempt at a time may go as a probe, and at most one a second

An attempt that began before the faults did tells nothing of now: a stream that ends well while every new request fails
must not close the breaker. What tells of now is a reply that begins: long streams do not hide that all is well. Unless
replies were cut: those begin well, too, and only a whole one says that it is over.

Source: M. Nygard, Release It!, "Circuit Breaker"; differs in that half-open is no state of its own, only a question of
when the next probe is due. How long nobody is let through may grow, as in Envoy's outlier detection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["STEADY", "Breaker", "BreakerRules"]

FAULTS: Final = 5  # in a row. Arbitrary; Envoy ejects a host after as many
PROBE_EVERY_S: Final = 1.0
# A probe that waits for a silent upstream may take a minute; what is back sooner is to be found sooner.
PROBE_PENDING_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """How soon it opens, and how long it stays so.

    faults: in a row, that open it. probes: in a row that are well, that close it. hold_s: nobody is let through after
    it opened, and after a probe that failed; doubled each time, most_hold_s at most. calm_s: for each such time since
    the last probe, it is doubled once less. jitter: so much of it more or less, by chance: workers that opened
    together don't ask together.
    """

    faults: int = FAULTS
    probes: int = 1
    hold_s: float = 0.0
    most_hold_s: float = 0.0
    calm_s: float = 30.0
    jitter: float = 0.0


STEADY: Final = BreakerRules()  # one probe a second, one that is well is enough


class Breaker:
    """The breaker of one upstream. All times are monotonic seconds and never decrease."""

    def __init__(self, rules: BreakerRules = STEADY) -> None:
        self._rules: Final = rules
        self.n_faults = 0  # in a row; 0 once something was well
        self._cuts = False  # this run of faults has replies that began and broke
        self._since_s = 0.0  # when the first attempt of this run of faults ended
        self._pending = False
        self._probe_s = 0.0  # when the last probe began, or else it opened
        self._fault_s = 0.0  # when it opened, or a probe failed since
        self._next_s = 0.0  # when the next may; while open
        self._is_heard = False  # the last probe began well; it may still be cut
        self._n_well = 0  # probes in a row
        self._n_well_wanted = rules.probes
        self._n_held = 0  # times that were held, less those that calm has taken off
        self.is_open = False

    def __repr__(self) -> str:
        return f"<Breaker {'open' if self.is_open else 'closed'} faults={self.n_faults}>"

    def allows(self, now_s: float) -> bool:
        """Say whether an attempt may begin: always while closed, as a probe while open."""
        return not self.is_open or now_s >= self._next_s

    def begin(self, now_s: float) -> None:
        """An attempt begins; while open it may be the probe. Its end must be reported with the same time.

        When all upstreams are out, requests come although none is allowed: if each were the probe, none would ever end
        as the last one that began, and the breaker would stay open over an upstream that answers them all.
        """
        if self.is_open and self.allows(now_s):
            self._pending = True
            self._is_heard = False
            self._probe_s = now_s
            self._next_s = now_s + PROBE_PENDING_S

    def answers(self) -> None:
        """A reply begins, and well."""
        if self.n_faults and not self._cuts:
            self._well()

    def succeeded(self, began_s: float) -> None:
        """An attempt was answered. began_s: as given to begin()."""
        if self.n_faults and began_s >= (self._judged_from_s if self.is_open else self._since_s):
            self._well()

    def failed(self, began_s: float, now_s: float, *, cut: bool = False, random: float = 0.5) -> None:
        """An attempt ended in a fault of the upstream. cut: inside a reply that had begun well. random: in [0, 1)."""
        self._cuts |= cut
        if not self.n_faults:
            self._since_s = now_s
        self.n_faults += 1
        if not self.is_open:
            if self.n_faults >= self._rules.faults:
                self.open(now_s, random=random)
        elif began_s >= self._judged_from_s and (self._pending or self._is_heard):
            self._n_well = 0
            self._fault_s = now_s
            self._pending = self._is_heard = False
            self._next_s = max(self._probe_s + PROBE_EVERY_S, now_s + self._held_s(random))

    def gave_up(self, began_s: float) -> None:
        """An attempt ended and does not count: it was cancelled, or got a Retry-After."""
        if self._pending and began_s >= self._probe_s:
            self._pending = False
            self._next_s = self._probe_s + PROBE_EVERY_S

    def open(self, now_s: float, *, hold_s: float = 0.0, probes: int = 0, random: float = 0.5) -> None:
        """Open it, whatever was heard.

        hold_s: nobody is let through for so long at least. probes: that close it; 0: as the rules say.
        """
        if self.is_open:
            return
        calm = int((now_s - self._probe_s) / self._rules.calm_s)
        self._n_held = max(0, self._n_held - calm)
        if not self.n_faults:
            self.n_faults = 1
            self._since_s = now_s
        self._n_well = 0
        self._n_well_wanted = probes or self._rules.probes
        self._pending = self._is_heard = False
        self._probe_s = self._fault_s = now_s
        self._next_s = now_s + max(PROBE_EVERY_S, hold_s, self._held_s(random))
        self.is_open = True

    @property
    def _judged_from_s(self) -> float:
        """When an attempt began at the earliest whose end tells something while it is open.

        Only a whole reply tells that replies are cut no more, and a probe's may take longer than it is to the next
        probe: if only the last one counted, none would ever end in time.
        """
        return self._fault_s if self._cuts else self._probe_s

    def _held_s(self, random: float) -> float:
        """Return how long nobody is let through now, one time more."""
        rules = self._rules
        held_s = min(rules.most_hold_s, rules.hold_s * 2.0**self._n_held)
        if held_s < rules.most_hold_s:
            self._n_held += 1
        return held_s * (1.0 + rules.jitter * (2.0 * random - 1.0))

    def _well(self) -> None:
        """Something tells that all is well now. Where one good sign is not enough, only probes count, and each once."""
        if self.is_open and self._n_well_wanted > 1:
            if not self._pending and not self._cuts:  # where replies were cut, each attempt is told of only once
                return
            self._n_well += 1
            if self._n_well < self._n_well_wanted:
                self._is_heard = True
                self._pending = False
                self._next_s = self._probe_s + PROBE_EVERY_S
                return
        self.n_faults = self._n_well = 0
        self._cuts = self._pending = self._is_heard = self.is_open = False
