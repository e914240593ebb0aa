"""A model server with a knee, and clients that always want more, in virtual time: for tests of concurrency limits."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from velox.policy.queue.concurrency import ConcurrencyLimit

__all__ = ["ModelServer", "Seen"]


@dataclass(frozen=True)
class Seen:
    """What there was to see. limits: of all workers together, once a second, in order. rate: answers a second."""

    limits: list[int]
    shares: list[float]
    rate: float
    ttft_s: list[float]
    n_refused: int

    def limit(self, share: float) -> int:
        return self.limits[int(share * (len(self.limits) - 1))]

    @property
    def median_ttft_s(self) -> float:
        return self.ttft_s[len(self.ttft_s) // 2]


class ModelServer:
    """Serves workers, each with a limit of its own and always as many requests as that lets pass.

    capacity: answers made at full speed. shares: beyond it all get slower in proportion; else more wait in line.
    refuses_from: so many at once get 429. refuses_part: and so many of all, however few there are. prompt_sigma: of the
    logarithm of the time that a prompt takes. Answers have exponential lengths, 100 tokens on average. offered: how
    many requests there are at once, over all workers.
    """

    token_s = 0.02
    mean_tokens = 100.0

    def __init__(
        self,
        limits: Sequence[ConcurrencyLimit],
        capacity: int,
        *,
        shares: bool = False,
        refuses_from: int | None = None,
        refuses_part: float = 0.0,
        prompt_sigma: float = 0.5,
        offered: int | None = None,
        is_streamed: bool = True,
        seed: int = 1,
    ) -> None:
        self.limits = limits
        self.capacity = capacity
        self.prompt_s = 0.2
        self.offered = offered
        self._shares = shares
        self.refuses_from = refuses_from
        self.refuses_part = refuses_part
        self._sigma = prompt_sigma
        self._is_streamed = is_streamed
        self._random = random.Random(seed)
        self._order = itertools.count()
        self.now_s = 0.0
        self._own_s = 0.0  # the time as it passes for the answers
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._own_later: list[tuple[float, int, Callable[[], None]]] = []  # by its own time
        self._line: deque[Callable[[], None]] = deque()
        self._n_running = 0
        self._n_ended = 0
        self._n_refused = 0
        self._ttft_s: list[float] = []

    @property
    def peak(self) -> float:
        """Answers a second at the knee."""
        return self.capacity / (self.prompt_s * 2.718 ** (self._sigma**2 / 2) + self.token_s * self.mean_tokens)

    @property
    def peak_s(self) -> float:
        """How long an answer takes at full speed, on average."""
        return self.capacity / self.peak

    def play(self, seconds: float) -> Seen:
        """Go on for so long; return what there was to see."""
        began_s, n_ended, n_refused, n_first = self.now_s, self._n_ended, self._n_refused, len(self._ttft_s)
        limits: list[int] = []
        shares = [0.0] * len(self.limits)
        look_s = began_s
        while True:
            self._send()
            if self.now_s >= look_s:
                each = [limit.limit for limit in self.limits]
                limits.append(sum(each))
                shares = [share + n for share, n in zip(shares, each, strict=True)]
                look_s += 1.0
            if not self._step(began_s + seconds):
                break
        return Seen(
            sorted(limits),
            [share / len(limits) for share in shares],
            (self._n_ended - n_ended) / seconds,
            sorted(self._ttft_s[n_first:]) or [0.0],
            self._n_refused - n_refused,
        )

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _speed(self) -> float:
        return min(1.0, self.capacity / self._n_running) if self._shares and self._n_running else 1.0

    def _step(self, until_s: float) -> bool:
        """Let the next thing happen; False if that is after the end."""
        own_at_s = self.now_s + (self._own_later[0][0] - self._own_s) / self._speed if self._own_later else until_s
        at_s = self._later[0][0] if self._later else until_s
        next_s = max(self.now_s, min(own_at_s, at_s, until_s))
        self._own_s += (next_s - self.now_s) * self._speed
        self.now_s = next_s
        if next_s >= until_s:
            return False
        _, _, happens = heapq.heappop(self._own_later if own_at_s <= at_s else self._later)
        happens()
        return True

    def _send(self) -> None:
        for limit in self.limits:
            while limit.free_slots > 0 and (self.offered is None or self._n_inside < self.offered):
                self._request(limit)

    @property
    def _n_inside(self) -> int:
        return self._n_running + len(self._line)

    def _request(self, limit: ConcurrencyLimit) -> None:
        began_s = self.now_s
        limit.begin(began_s)
        if self._refuses():
            self._n_refused += 1
            self._at(self._later, began_s + 0.01, lambda: self._refuse(limit, began_s))
            return
        prompt_s = self.prompt_s * self._random.lognormvariate(0, self._sigma)
        answer_s = self.token_s * max(1.0, self._random.expovariate(1 / self.mean_tokens))

        def begin() -> None:
            self._n_running += 1
            first_s = self._own_s + prompt_s
            if self._is_streamed:
                self._at(self._own_later, first_s, lambda: self._first(limit, began_s))
            self._at(self._own_later, first_s + answer_s, lambda: self._end(limit, began_s))

        if self._shares or self._n_running < self.capacity:
            begin()
        else:
            self._line.append(begin)

    def _refuses(self) -> bool:
        if self.refuses_part and self._random.random() < self.refuses_part:
            return True
        return self.refuses_from is not None and self._n_inside >= self.refuses_from

    def _at(self, heap: list[tuple[float, int, Callable[[], None]]], at_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(heap, (at_s, next(self._order), happens))

    def _refuse(self, limit: ConcurrencyLimit, began_s: float) -> None:
        limit.refused(began_s, self.now_s)
        limit.ended(began_s, self.now_s, replied=False)

    def _first(self, limit: ConcurrencyLimit, began_s: float) -> None:
        took_s = self.now_s - began_s
        self._ttft_s.append(took_s)
        limit.replied(began_s, took_s, self.now_s, streamed=self._is_streamed)

    def _end(self, limit: ConcurrencyLimit, began_s: float) -> None:
        if not self._is_streamed:
            self._first(limit, began_s)
        self._n_running -= 1
        self._n_ended += 1
        limit.ended(began_s, self.now_s, replied=True)
        while self._line and self._n_running < self.capacity:
            self._line.popleft()()
