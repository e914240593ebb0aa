"""What is done to the servers of a fleet while it is under load, and what the gateway says of them meanwhile.

Knows: when servers go and come, and the gateway's metrics over time. Does not know: load, or what clients see.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from bench.model_servers import ModelServer, series, total

__all__ = ["FaultPlan", "Look", "Outage", "Story", "watched"]

_LOOK_S: Final = 0.2
_QUIET_S: Final = 1.0
_USUAL_S: Final = 5.0
_HALF_S: Final = 2.0
_UPSTREAM: Final = "velox_upstream_"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """When what is done, in seconds. flap, stall: from when to when of each period it is away, and the period."""

    flap: tuple[float, float, float] = (10.0, 30.0, 60.0)
    stall: tuple[float, float, float] = (40.0, 60.0, 90.0)

    def shrunk(self, seconds: float) -> FaultPlan:
        """Return a plan that fits into a run that is shorter than two minutes."""
        scale = min(1.0, seconds / 120.0)
        flap, stall = (tuple(scale * each for each in times) for times in (self.flap, self.stall))
        return FaultPlan((flap[0], flap[1], flap[2]), (stall[0], stall[1], stall[2]))


@dataclass(frozen=True, slots=True)
class Outage:
    """One server away. how: crash (killed), leave (asked to end) or stall (stopped). Times from the run's start."""

    server: str
    how: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the gateway: by upstream, how many workers use it, and how many attempts have begun there."""

    at_s: float
    n_using: dict[str, float]
    n_begun: dict[str, float]


@dataclass(slots=True)
class Story:
    """What happened in a run."""

    outages: list[Outage] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def out_after_s(self, outage: Outage) -> float | None:
        """Return how long after its begin the first second came in which nothing was sent there; None: never."""
        looks = [look for look in self.looks if outage.from_s <= look.at_s]
        for index, look in enumerate(looks):
            for later in looks[index:]:
                if later.n_begun[outage.server] > look.n_begun[outage.server]:
                    break
                if later.at_s >= look.at_s + _QUIET_S:
                    return look.at_s - outage.from_s
        return None

    def n_sent(self, outage: Outage) -> float:
        """Return how many attempts were begun there meanwhile."""
        return self._begun(outage.server, outage.until_s) - self._begun(outage.server, outage.from_s)

    def back_after_s(self, outage: Outage, n_workers: int) -> float | None:
        """Return how long after its end all workers used it again; None: not before the next one, or the end."""
        for look in self.looks:
            if outage.until_s <= look.at_s < self._next_s(outage) and look.n_using[outage.server] >= n_workers:
                return look.at_s - outage.until_s
        return None

    def half_after_s(self, outage: Outage) -> float | None:
        """Return how long after its end it had half of the requests that it had before; None: as above."""
        name = outage.server
        span_s = min(_USUAL_S, outage.from_s)
        usual = (self._begun(name, outage.from_s) - self._begun(name, outage.from_s - span_s)) / max(span_s, _LOOK_S)
        for look in self.looks:
            if outage.until_s + _HALF_S <= look.at_s < self._next_s(outage):
                grown = look.n_begun[name] - self._begun(name, look.at_s - _HALF_S)
                if grown >= max(1.0, usual * _HALF_S / 2.0):
                    return look.at_s - outage.until_s
        return None

    def _begun(self, server: str, at_s: float) -> float:
        """Return how many attempts had been begun there by then, from the last look before."""
        seen = [look.n_begun[server] for look in self.looks if look.at_s <= at_s]
        return seen[-1] if seen else self.looks[0].n_begun[server]

    def _next_s(self, outage: Outage) -> float:
        """Return when the same server goes away again."""
        later = (each.from_s for each in self.outages if each.server == outage.server and each.from_s > outage.from_s)
        return min(later, default=float("inf"))


class _Watch:
    """Looks at the gateway, now and then and just before something is done."""

    def __init__(self, story: Story, admin: int, names: Sequence[str], begin_s: float, ended: threading.Event) -> None:
        self.story: Final = story
        self._admin: Final = admin
        self._names: Final = names
        self._begin_s: Final = begin_s
        self._ended: Final = ended

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._begin_s

    def until(self, at_s: float) -> bool:
        """Wait until that many seconds from the start; False: the run is over."""
        return not self._ended.wait(max(0.0, at_s - self.now_s()))

    def run(self) -> None:
        """Look until the run is over."""
        n = 0
        while self.until(n * _LOOK_S):
            n += 1
            self.look()

    def look(self) -> None:
        """Look once."""
        found = series(self._admin, _UPSTREAM)
        using, begun = {}, {}
        for name in self._names:
            of_it = f'upstream="{name}"'
            using[name] = total(found, f"{_UPSTREAM}state", of_it, 'state="in"')
            begun[name] = total(found, f"{_UPSTREAM}inflight_requests", of_it)
            begun[name] += total(found, f"{_UPSTREAM}requests_total", of_it)
        self.story.looks.append(Look(self.now_s(), using, begun))


@contextlib.contextmanager
def watched(
    admin: int, names: Sequence[str], plan: FaultPlan, flapping: ModelServer | None, stalling: ModelServer | None
) -> Iterator[Story]:
    """Do it while the block lasts, and look at the gateway; at its end all servers are well again."""
    story = Story()
    ended = threading.Event()
    watch = _Watch(story, admin, names, time.monotonic(), ended)
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(watch.run)]
        if flapping is not None:
            running.append(threads.submit(_flap, watch, flapping, plan.flap))
        if stalling is not None:
            running.append(threads.submit(_stall, watch, stalling, plan.stall))
        try:
            yield story
        finally:
            ended.set()
        for each in running:
            each.result()
    story.outages.sort(key=lambda each: each.from_s)
    story.looks.sort(key=lambda each: each.at_s)


def _flap(watch: _Watch, server: ModelServer, times: tuple[float, float, float]) -> None:
    """Kill it and ask it to end, in turn, and start it again."""
    from_s, until_s, period_s = times
    n = 0
    while watch.until(from_s + n * period_s):
        how = "leave" if n % 2 else "crash"
        watch.look()
        gone_s = watch.now_s()
        if how == "crash":
            server.crash()
        else:
            server.stop()
        watch.until(until_s + n * period_s)
        server.start()
        watch.story.outages.append(Outage(server.name, how, gone_s, watch.now_s()))
        n += 1


def _stall(watch: _Watch, server: ModelServer, times: tuple[float, float, float]) -> None:
    """Stop its process and let it go on."""
    from_s, until_s, period_s = times
    n = 0
    while watch.until(from_s + n * period_s):
        watch.look()
        gone_s = watch.now_s()
        server.pause()
        watch.until(until_s + n * period_s)
        server.resume()
        watch.story.outages.append(Outage(server.name, "stall", gone_s, watch.now_s()))
        n += 1
