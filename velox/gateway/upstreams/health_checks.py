"""Health checks: what a worker asks its members by itself, whether they are well and how busy they are.

    tick()      every 0.25 s: asks those whose turn it is
    replace()   at a reload: a member that stays goes on as it was

Knows: when which member is queried, and who gets the result. Does not know: how a question is sent
(internal_request.py), how many bad answers it takes (policy/health/member.py), or what a load is for
(policy/balance/scraped.py).

A member is asked one thing at a time. Who could not be asked, as all its connections were busy, has not answered badly:
then nobody is told. Nor is anybody of what is an answer to the key (401, 403, 429): requests have others, or find out
by themselves. Each worker asks for itself: it is the way from there that counts.

A server writes its metrics in some 10 ms, in which it does little else: so all workers together ask it about twice a
second, and seldom while none of those members has a request, as there is nothing to choose for.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.internal_request import ask, ask_status
from velox.gateway.upstreams.member import Member
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest
from velox.policy.health.member import State
from velox.protocol.load_metrics import read_load

__all__ = ["HealthChecks", "load_every_s"]

_EVERY_S: Final = 1.0
_MOST_EVERY_S: Final = 4.0  # an answer counts for 10 s, and some may be lost
_JITTER: Final = 0.1
_SELDOM: Final = 5.0  # times as long: while nobody has requests, and after an answer that was none
_LOAD_PATH: Final = "/metrics"
_LOAD_TIMEOUT_S: Final = 2.0  # a server that is slow to say how busy it is says it all the same
_LOAD_BYTES: Final = 4 * 1024 * 1024  # pages have 50 to 500 KB
# Questions that one tick begins: after a stop of the loop all may be due.
_PER_TICK: Final = 80

# Of a member with keys they say nothing, nor where credentials of a cloud sign in, which no probe carries.
_OF_KEYS: Final = frozenset({401, 403, 429})


def load_every_s(n_workers: int) -> float:
    """Return how often each of so many workers asks a member for its load."""
    return min(_MOST_EVERY_S, max(_EVERY_S, n_workers / 2.0))


class HealthChecks:
    """The questions of one worker.

    load_every_s: from one question for a load to the next. on_health: called with why active probes have put a member
    out; None: they bring it back. on_load: called with why a load can't be read, once; None: it can again.
    on_bug: called with an error that is not a member's. random: in [0, 1).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        load_every_s: float,
        on_health: Callable[[Member, str | None], None],
        on_load: Callable[[Member, str | None], None],
        on_bug: Callable[[Exception], None],
        random: Callable[[], float] = random.random,
    ) -> None:
        self._loop: Final = loop
        self._load_every_s: Final = load_every_s
        self._on_health: Final = on_health
        self._on_load: Final = on_load
        self._on_bug: Final = on_bug
        self._random: Final = random
        self._watched: dict[Member, _ProbedMember] = {}
        self._line: list[tuple[float, int, _ProbedMember]] = []  # a heap: when, and a number that is never the same
        self._n_scheduled = 0
        self._is_busy = False  # one of those with a load had requests
        self._looked_s = -math.inf  # when that was so

    def __repr__(self) -> str:
        return f"<HealthChecks {len(self._watched)} watched, {self.n_asking} asked>"

    @property
    def n_asking(self) -> int:
        """Questions under way."""
        return sum(watched.task is not None for watched in self._watched.values())

    def replace(self, members: Iterable[Member]) -> None:
        """Ask these from now on, and no others."""
        before, self._watched = self._watched, {}
        for member in members:
            if member.health.active is None and member.load is None:
                continue
            watched = before.pop(member, None)
            if watched is None:
                # The first questions are spread, as those of a probe's schedule are.
                load_s = self._loop.time() + self._load_every_s * self._random()
                watched = _ProbedMember(member, math.inf if member.load is None else load_s)
                self._schedule(watched)
            self._watched[member] = watched
        for gone in before.values():
            gone.close()

    def close(self) -> None:
        """Ask no more."""
        self.replace(())
        self._line.clear()

    def tick(self, now_s: float) -> None:
        """Ask those whose time has come. now_s: the loop's time."""
        for _ in range(_PER_TICK):
            if not self._line or self._line[0][0] > now_s:
                return
            watched = heapq.heappop(self._line)[2]
            if not watched.is_closed:
                self._ask(watched, now_s)

    def _schedule(self, watched: _ProbedMember) -> None:
        self._n_scheduled += 1
        heapq.heappush(self._line, (watched.next_s(), self._n_scheduled, watched))

    def _ask(self, watched: _ProbedMember, now_s: float) -> None:
        active = watched.member.health.active
        if active is not None and active.is_due(now_s):
            active.begin(now_s, self._random())
            question = self._probe
        else:
            every_s = self._load_every_s * (1.0 + _JITTER * (2.0 * self._random() - 1.0))
            watched.load_s = now_s + every_s
            if now_s < watched.seldom_s and not self._has_requests(now_s):
                self._schedule(watched)
                return
            watched.seldom_s = now_s + _SELDOM * every_s
            question = self._read_load
        watched.task = self._loop.create_task(self._run_guarded(question, watched), name="health check")

    async def _run_guarded(
        self, question: Callable[[_ProbedMember], Coroutine[None, None, None]], watched: _ProbedMember
    ) -> None:
        try:
            await question(watched)
        except Exception as exc:
            self._on_bug(exc)
        finally:
            watched.task = None
            self._schedule(watched)

    async def _probe(self, watched: _ProbedMember) -> None:
        member = watched.member
        entry, active = member.entry.probe, member.health.active
        assert entry is not None and active is not None, "only such members are probed"
        request = self._probe_request(member, entry.path)
        try:
            status = await ask_status(member.pool, request, self._loop, timeout_s=active.timeout_s)
            problem = None if 200 <= status < 300 else f"it answered {status} to {entry.path}"
        except UpstreamFailure as failure:
            if failure.reason is Reason.CONN_LIMIT:
                return  # it was never asked
            status, problem = 0, failure.message
        except VeloxError:
            return  # it was never asked
        signs_in = member.health.keys is not None or member.forwarders[0].authority is not None
        if status in _OF_KEYS and signs_in:
            return
        now_s = self._loop.time()
        was_up, was_out = active.is_up, member.health.state(now_s) is State.OUT
        member.health.probed(problem is None, now_s)
        if active.is_up is not was_up:
            if problem is not None and not was_out:
                member.counts.count_ejection(member.row)
            self._on_health(member, problem)

    async def _read_load(self, watched: _ProbedMember) -> None:
        member = watched.member
        kind, scraped = member.entry.load, member.load
        assert kind != "off" and scraped is not None, "only such members are asked for it"
        request = self._probe_request(member, _LOAD_PATH)
        problem: str | None = None
        try:
            answer = await ask(member.pool, request, self._loop, timeout_s=_LOAD_TIMEOUT_S, max_bytes=_LOAD_BYTES)
        except UpstreamFailure as failure:
            problem = failure.message
        except VeloxError:
            return
        else:
            load = read_load(kind, answer.body) if 200 <= answer.status < 300 else None
            if load is not None:
                scraped.told(*load, member.counts.inflight(member.row), self._loop.time())
            elif 200 <= answer.status < 300:
                problem = f"its {_LOAD_PATH} has none of {kind}'s metrics"
            else:
                problem = f"it answered {answer.status} to {_LOAD_PATH}"
        if problem is not None:
            watched.load_s = max(watched.load_s, watched.seldom_s)
        if (problem is None) is not watched.tells:
            watched.tells = problem is None
            self._on_load(member, problem)

    def _probe_request(self, member: Member, path: str) -> UpstreamRequest:
        """Return a GET with what all requests to a member carry, and a key that may be used, if there is one.

        path: wherever its API begins.
        """
        keys = member.health.keys
        key = None if keys is None else keys.pick(self._loop.time(), self._random())
        added = member.entry.headers
        names = {name for name, _ in added}
        forwarder = member.forwarders[key or 0]
        usual = forwarder.warmup("").headers
        headers = [*(field for field in usual if field[0] not in names), *added]
        target = path.encode("ascii")
        if forwarder.query is not None:
            target = forwarder.query.on(target)
        return UpstreamRequest.of(b"GET", target, headers, None)

    def _has_requests(self, now_s: float) -> bool:
        """Say whether a member with a load has requests, or had some a moment ago."""
        if now_s - self._looked_s >= self._load_every_s / 2.0:
            self._looked_s = now_s
            loaded = (member for member in self._watched if member.load is not None)
            self._is_busy = any(member.counts.inflight(member.row) for member in loaded)
        return self._is_busy


class _ProbedMember:
    """One member that is asked. load_s: when for its load; seldom_s: and when though there are no requests."""

    __slots__ = ("is_closed", "load_s", "member", "seldom_s", "task", "tells")

    def __init__(self, member: Member, load_s: float) -> None:
        self.member: Final = member
        self.load_s = load_s
        self.seldom_s = load_s
        self.tells = True  # its load can be read, as far as is known
        self.task: asyncio.Task[None] | None = None  # the question under way
        self.is_closed = False

    def next_s(self) -> float:
        active = self.member.health.active
        return self.load_s if active is None else min(active.next_s(), self.load_s)

    def close(self) -> None:
        self.is_closed = True
        if self.task is not None:
            self.task.cancel()
