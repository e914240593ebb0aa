"""Model servers in virtual time behind a balancer: what a caller waits for its first token.

A server answers `slots` requests at once, the others wait in line. A request takes its slot for the time to read what
is not in the server's cache of prompts, then for its answer. The balancer is told what the gateway would tell it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from velox.policy.balance.candidates import Balancer, Candidates

__all__ = ["Request", "Server", "conversations", "play", "poisson"]

_CHUNK = 256


@dataclass
class Server:
    """read_bytes_s: prompt bytes read in a second; first_s: time to a first token on top; tokens_s: per request."""

    slots: int
    first_s: float = 0.05
    read_bytes_s: float = 1e9
    tokens_s: float = 50.0
    cache_chunks: int = 0  # of 256 bytes
    running: int = 0
    line: deque[int] = field(default_factory=deque)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def read(self, prompt: bytes) -> tuple[float, int]:
        """Return the time to the first token once the request has its slot, and how many bytes were in the cache."""
        hit = 0
        value = 0
        is_known = True
        seen = []
        for at in range(0, len(prompt) - _CHUNK + 1, _CHUNK):
            value = hash((value, prompt[at : at + _CHUNK]))
            seen.append(value)
            is_known = is_known and value in self.cache
            hit += _CHUNK if is_known else 0
        for value in reversed(seen):
            self.cache[value] = None
            self.cache.move_to_end(value)
        while len(self.cache) > self.cache_chunks:
            self.cache.popitem(last=False)
        return self.first_s + (len(prompt) - hit) / self.read_bytes_s, hit


@dataclass(frozen=True)
class Request:
    at_s: float
    tokens: int
    prompt: bytes = b""


@dataclass
class Story:
    """What was seen of the requests, in the order of their first tokens."""

    ttft_s: list[float] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)  # requests by server
    bytes_read: int = 0
    bytes_hit: int = 0
    most_inflight: list[int] = field(default_factory=list)

    def at(self, part: float) -> float:
        return sorted(self.ttft_s)[min(len(self.ttft_s) - 1, int(part * len(self.ttft_s)))]

    @property
    def hit_rate(self) -> float:
        return self.bytes_hit / max(1, self.bytes_read)


def play(
    servers: list[Server],
    make: Callable[[], Balancer],
    requests: Iterable[Request],
    *,
    workers: int = 2,
    weights: list[float] | None = None,
    key_bytes: int | None = None,
) -> Story:
    """Serve all; each request comes to a worker at random. Counts in flight are shared, balancers are not.

    key_bytes: how much of a prompt is the key; None: all of it.
    """
    rng = random.Random(1)
    balancers = [make() for _ in range(workers)]
    inflight = [0] * len(servers)
    candidates = Candidates(weights or [1.0] * len(servers), inflight)
    story = Story(taken=[0] * len(servers), most_inflight=[0] * len(servers))
    order = itertools.count()
    events: list[tuple[float, int, str, int]] = []
    jobs: list[tuple[Request, int, int]] = []  # request, worker, server

    def start(job: int, now_s: float) -> None:
        request, _, member = jobs[job]
        server = servers[member]
        server.running += 1
        first_s, hit = server.read(request.prompt)
        story.bytes_read += len(request.prompt)
        story.bytes_hit += hit
        heapq.heappush(events, (now_s + first_s, next(order), "first", job))
        heapq.heappush(events, (now_s + first_s + request.tokens / server.tokens_s, next(order), "end", job))

    def happen() -> None:
        now_s, _, what, job = heapq.heappop(events)
        request, worker, member = jobs[job]
        if what == "first":
            story.ttft_s.append(now_s - request.at_s)
            balancers[worker].answered(member, now_s - request.at_s, now_s)
            return
        inflight[member] -= 1
        servers[member].running -= 1
        if servers[member].line:
            start(servers[member].line.popleft(), now_s)

    for request in requests:
        while events and events[0][0] <= request.at_s:
            happen()
        worker = rng.randrange(workers)
        member = balancers[worker].pick(candidates, request.at_s, rng.random(), request.prompt[:key_bytes])
        assert member is not None
        jobs.append((request, worker, member))
        inflight[member] += 1
        story.taken[member] += 1
        story.most_inflight[member] = max(story.most_inflight[member], inflight[member])
        balancers[worker].began(member, request.at_s)
        if servers[member].running < servers[member].slots:
            start(len(jobs) - 1, request.at_s)
        else:
            servers[member].line.append(len(jobs) - 1)
    while events:
        happen()
    return story


def poisson(rng: random.Random, rate: float, until_s: float, mean_tokens: int = 100) -> list[Request]:
    """Requests at random times with answers of random length."""
    requests = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < until_s:
        requests.append(Request(at_s, 1 + int(rng.expovariate(1 / mean_tokens))))
    return requests


def conversations(
    rng: random.Random, rate: float, until_s: float, *, systems: int = 4, turns: int = 6, think_s: float = 8.0
) -> list[Request]:
    """Conversations that begin at random times: each turn sends all before it, and the system prompt of its app."""
    heads = [rng.randbytes(rng.randrange(600, 2500)) for _ in range(systems)]
    requests = []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < until_s:
        prompt = rng.choice(heads)
        turn_s = at_s
        for _ in range(turns):
            prompt += rng.randbytes(rng.randrange(200, 1500))
            requests.append(Request(turn_s, 1 + int(rng.expovariate(1 / 60)), prompt))
            turn_s += rng.expovariate(1 / think_s)
    requests.sort(key=lambda request: request.at_s)
    return requests
