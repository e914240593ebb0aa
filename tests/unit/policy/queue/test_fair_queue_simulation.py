"""The queue before servers that are simulated in virtual time: what callers feel.

`Servers` takes from the queue whenever one of its slots is free, as the gateway does. Times of service are drawn from a
seeded generator; virtual time jumps from event to event, so an hour of load takes a second.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from velox.policy.queue.fair_queue import FairQueue, Outcome
from velox.types import Priority

SECOND = 1_000_000_000
TIMEOUT_S = 5.0


class Request(NamedTuple):
    number: int
    caller: str
    priority: Priority
    at_s: float
    service_s: float
    cost: int


@dataclass
class Fate:
    """What became of the requests of one caller; seconds."""

    waits: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # by when they ended
    refused_at_once: int = 0
    refused_late: int = 0
    evicted: int = 0
    tokens: int = 0

    def wait_at(self, part: float) -> float:
        return sorted(self.waits)[min(len(self.waits) - 1, int(part * len(self.waits)))]

    def latency_at(self, part: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(part * len(self.latencies)))]


class Servers:
    """`slots` of them behind one queue. Figures count from `from_s` on."""

    def __init__(self, slots: int, *, depth: int = 16_384, floor: float = 0.1, from_s: float = 0.0) -> None:
        self.queue: FairQueue[Request] = FairQueue(depth, 1 << 40, 64, round(TIMEOUT_S * SECOND), floor)
        self.slots = slots
        self.from_s = from_s
        self.fates: dict[str, Fate] = defaultdict(Fate)
        self.n_done = 0
        self._running = 0
        self._ends: list[tuple[float, int, Request, float]] = []

    def run(self, arrivals: Iterable[Request]) -> dict[str, Fate]:
        for request in arrivals:
            while self._next_s() <= request.at_s:
                self._step()
            self._offer(request)
        while self._ends:
            self._step()
        return self.fates

    def _next_s(self) -> float:
        deadline_ns = self.queue.next_deadline_ns
        late_s = float("inf") if deadline_ns is None else deadline_ns / SECOND
        return min(late_s, self._ends[0][0] if self._ends else float("inf"))

    def _step(self) -> None:
        now_s = self._next_s()
        if self._ends and self._ends[0][0] <= now_s:
            _, _, request, began_s = heapq.heappop(self._ends)
            self._running -= 1
            self.queue.serviced(round((now_s - began_s) * SECOND))
            if request.at_s >= self.from_s:
                self.n_done += 1
                self.fates[request.caller].latencies.append(now_s - request.at_s)
        self._drain(now_s)

    def _offer(self, request: Request) -> None:
        fate = self.fates[request.caller]
        now_ns = round(request.at_s * SECOND)
        verdict = self.queue.offer(
            request,
            now_ns,
            caller=request.caller,
            priority=request.priority,
            cost=request.cost,
            n_bytes=1000,
            deadline_ns=now_ns + 3600 * SECOND,
        )
        for evicted in verdict.evicted:
            self.fates[evicted.caller].evicted += 1
        if verdict.outcome is not Outcome.ADMITTED:
            fate.refused_at_once += request.at_s >= self.from_s
        self._drain(request.at_s)

    def _drain(self, now_s: float) -> None:
        now_ns = round(now_s * SECOND)
        for late in self.queue.late(now_ns):
            self.fates[late.caller].refused_late += late.at_s >= self.from_s
        for request, waited_ns in self.queue.take(self.slots - self._running, now_ns):
            self._running += 1
            heapq.heappush(self._ends, (now_s + request.service_s, request.number, request, now_s))
            if request.at_s >= self.from_s:
                self.fates[request.caller].waits.append(waited_ns / SECOND)
                self.fates[request.caller].tokens += request.cost


def arrivals(
    rng: random.Random,
    until_s: float,
    rates: dict[str, float],
    service: Callable[[random.Random], float],
    **classes: Priority,
) -> list[Request]:
    """Poisson arrivals of each caller, at so many a second."""
    requests = []
    for caller, rate in rates.items():
        at_s = 0.0
        while (at_s := at_s + rng.expovariate(rate)) < until_s:
            requests.append((at_s, caller, service(rng)))
    requests.sort()
    return [
        Request(number, caller, classes.get(caller, Priority.NORMAL), at_s, service_s, 1000)
        for number, (at_s, caller, service_s) in enumerate(requests)
    ]


def exponential(mean_s: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.expovariate(1 / mean_s)


def heavy_tailed(mean_s: float) -> Callable[[random.Random], float]:
    """Return a log-normal time: most are short, a few ten times the mean."""
    return lambda rng: rng.lognormvariate(0, 1.2) * mean_s / 2.054


def constant(mean_s: float) -> Callable[[random.Random], float]:
    return lambda rng: mean_s


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "service_s", "until_s"), [(10, 0.5, 60), (20, 0.2, 30)])
@pytest.mark.parametrize("part", [0.05, 1 / 3])
def test_light_caller_does_not_notice_one_that_sends_a_hundred_times_as_much(
    slots: int, service_s: float, until_s: int, part: float
) -> None:
    """Its wait is within a service time of what it is alone, at p99; nearly none of it is refused."""
    light = part * slots / service_s
    alone = Servers(slots).run(arrivals(random.Random(2), until_s, {"light": light}, exponential(service_s)))["light"]

    fates = Servers(slots).run(
        arrivals(random.Random(2), until_s, {"light": light, "loud": 100 * light}, exponential(service_s))
    )

    both = fates["light"]
    assert both.wait_at(0.5) <= alone.wait_at(0.5) + service_s / 2
    assert both.wait_at(0.99) <= alone.wait_at(0.99) + 1.5 * service_s
    assert both.evicted + both.refused_late + both.refused_at_once <= 0.05 * len(alone.waits)
    assert len(fates["loud"].waits) >= 0.9 * (slots / service_s * until_s - len(both.waits))


@pytest.mark.slow
@pytest.mark.parametrize("service", [exponential, heavy_tailed, constant])
@pytest.mark.parametrize(("slots", "service_s"), [(10, 0.1), (100, 1.0)])
def test_overload_of_ten_times_keeps_latency_and_throughput(
    service: Callable[[float], Callable[[random.Random], float]], slots: int, service_s: float
) -> None:
    """Who is accepted has its answer in about twice the time that it takes; the servers are never idle."""
    from_s, until_s = 15, 40
    capacity = slots / service_s
    servers = Servers(slots, from_s=from_s)

    fate = servers.run(arrivals(random.Random(1), until_s, {"a": 10 * capacity}, service(service_s)))["a"]

    assert fate.wait_at(0.5) <= 1.1 * service_s
    assert sum(fate.latencies) / len(fate.latencies) <= 2.3 * service_s
    assert servers.n_done >= 0.95 * capacity * (until_s - from_s)
    assert fate.refused_late <= 0.01 * fate.refused_at_once  # the refused are told at once


@pytest.mark.slow
@pytest.mark.parametrize("flood", [Priority.HIGH, Priority.NORMAL])
def test_low_class_keeps_its_floor_under_a_flood_of_a_higher(flood: Priority) -> None:
    """A tenth of what is served, in a queue that is full of others; the flood has the rest."""
    fates = Servers(20, depth=200, from_s=10).run(
        arrivals(random.Random(3), 60, {"flood": 1000, "low": 100}, exponential(0.2), flood=flood, low=Priority.LOW)
    )

    part = fates["low"].tokens / (fates["low"].tokens + fates["flood"].tokens)
    assert 0.09 <= part <= 0.12


@pytest.mark.slow
def test_high_class_does_not_notice_a_flood_of_a_lower() -> None:
    """It waits for the next server that is free, whatever waits below it."""
    fates = Servers(20, depth=200).run(
        arrivals(random.Random(4), 60, {"high": 20, "flood": 1000}, exponential(0.2), high=Priority.HIGH)
    )

    assert fates["high"].wait_at(0.99) <= 0.1
    assert fates["high"].refused_at_once + fates["high"].refused_late + fates["high"].evicted == 0


def test_burst_is_absorbed() -> None:
    """What can be served before its time is over waits for it: a burst is no overload."""
    rng = random.Random(5)
    burst = [Request(n, "a", Priority.NORMAL, 1.0, rng.expovariate(1 / 0.2), 1000) for n in range(200)]

    fate = Servers(20).run(burst)["a"]

    assert len(fate.waits) == 200


def test_servers_that_stop_are_waited_for_until_the_deadline() -> None:
    """A stall of 3 s: who waits is served after it, not sent away in it."""
    stall = [Request(n, "a", Priority.NORMAL, 1.0, 3.0, 1000) for n in range(10)]
    behind = [Request(10 + n, "b", Priority.NORMAL, 1.1, 0.1, 1000) for n in range(20)]

    fates = Servers(10).run(stall + behind)

    assert len(fates["b"].waits) == 20
