"""A circuit breaker: an upstream that fails again and again is passed over, and asked now and then whether it is back.

Knows: what an attempt's end says of an upstream, and when one may be tried again. Does not know: a clock, other
upstreams, or what a fault is (gateway/upstreams.py tells).

    closed  --5 faults in a row-->  open  --a success-->  closed
                                    while open, one attempt at a time may go as a probe, and at most one a second

An attempt that began before the faults did tells nothing of now: a stream that ends well while every new request fails
must not close the breaker. What tells of now is a reply that begins: long streams do not hide that all is well. Unless
replies were cut: those begin well, too, and only a whole one says that it is over.

Source: M. Nygard, Release It!, "Circuit Breaker"; differs in that half-open is no state of its own, only a question of
when the last probe was.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Breaker"]

FAULTS: Final = 5  # in a row. Arbitrary; Envoy ejects a host after as many
PROBE_EVERY_S: Final = 1.0
# A probe that waits for a silent upstream may take a minute; what is back sooner is to be found sooner.
PROBE_PENDING_S: Final = 10.0


class Breaker:
    """The breaker of one upstream. All times are monotonic seconds and never decrease."""

    __slots__ = ("_cuts", "_faults", "_pending", "_probe_s", "_since_s", "is_open")

    def __init__(self) -> None:
        self._faults = 0
        self._cuts = False  # this run of faults has replies that began and broke
        self._since_s = 0.0  # when the first attempt of this run of faults ended
        self._pending = False
        self._probe_s = 0.0  # when the last probe began; while open
        self.is_open = False

    def __repr__(self) -> str:
        return f"<Breaker {'open' if self.is_open else 'closed'} faults={self._faults}>"

    def allows(self, now_s: float) -> bool:
        """Say whether an attempt may begin: always while closed, as a probe while open."""
        if not self.is_open:
            return True
        return now_s - self._probe_s >= (PROBE_PENDING_S if self._pending else PROBE_EVERY_S)

    def begin(self, now_s: float) -> None:
        """An attempt begins; while open it may be the probe. Its end is to be told, whatever it is, with the same time.

        When all upstreams are out, requests come although none is allowed: if each were the probe, none would ever end
        as the last one that began, and the breaker would stay open over an upstream that answers them all.
        """
        if self.is_open and self.allows(now_s):
            self._pending = True
            self._probe_s = now_s

    def answers(self) -> None:
        """A reply begins, and well."""
        if self._faults and not self._cuts:
            self._close()

    def succeeded(self, began_s: float) -> None:
        """An attempt was answered. began_s: as given to begin()."""
        if self._faults and began_s >= (self._probe_s if self.is_open else self._since_s):
            self._close()

    def failed(self, began_s: float, now_s: float, *, cut: bool = False) -> None:
        """An attempt ended in a fault of the upstream. cut: inside a reply that had begun well."""
        self.gave_up(began_s)
        self._cuts |= cut
        if not self._faults:
            self._since_s = now_s
        self._faults += 1
        if self._faults >= FAULTS and not self.is_open:
            self.is_open = True
            self._probe_s = now_s

    def gave_up(self, began_s: float) -> None:
        """An attempt ended and said nothing of the upstream: it was cancelled, or told to come back later."""
        if self.is_open and began_s >= self._probe_s:
            self._pending = False

    def _close(self) -> None:
        self._faults = 0
        self._cuts = self._pending = self.is_open = False
