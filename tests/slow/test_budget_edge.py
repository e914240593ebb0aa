"""Gateways at the edge of one budget: how far it is exceeded, with a Redis that answers, is slow, frozen or killed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.priced import COST_NANO, Priced, ask, ask_held, reply_held
from tests.e2e.redis_server import FlipProxy, RedisServer, redis_server

N_CLIENTS = 48
# Of $0.20 at $0.002: the last one holds a little more than what is left.
N_FIT = 99
STRICT = {"per": "gateway", "usd": "0.2", "window": "total", "strict": True}
# At an edge it may take some rounds in which parts that nobody uses go back; each is a second or two.
MOST_S = 90.0


def test_case_01_sixteen_workers_of_three_gateways_at_the_edge(tmp_path: Path) -> None:
    """docs/budgets.md: spent <= limit + n * (cost - hold), with n requests that run at one time."""
    priced = Priced(tmp_path)
    budget = {"per": "gateway", "usd": "0.6", "window": "day"}
    with redis_server() as server:
        more = {"redis_url": server.url, "redis_timeout": "5s", "replicas": "3"}
        # 16 workers and two more: all gateways have as many.
        with priced.gateways(3, [budget], 6, **more) as found, ThreadPoolExecutor(N_CLIENTS) as clients:
            statuses = list(clients.map(lambda at: ask(found[at % 3]), range(600)))
            spent = priced.n_calls * COST_NANO
            print(f"spent {spent / 1e9} of 0.6, {statuses.count(200)} answered, {statuses.count(429)} refused")
            assert set(statuses) == {200, 429} and statuses.count(200) == priced.n_calls
            assert 0.9 * 600_000_000 <= spent <= 600_000_000 + N_CLIENTS * (COST_NANO - 1_000_000)


class Crowd:
    """Eight clients of two gateways; every fourth asks for what never fits.

    pause_s: what a client waits after an answer.
    """

    def __init__(self, priced: Priced, gateways: list[VeloxProcess], pause_s: float) -> None:
        self._priced = priced
        self._gateways = gateways
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self.statuses: list[int] = []

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        with ThreadPoolExecutor(8) as clients:
            running = [clients.submit(self._client, n) for n in range(8)]
            try:
                yield
            finally:
                self._is_over.set()
            for each in running:
                each.result()

    def _client(self, n: int) -> None:
        while not self._is_over.is_set():
            status = ask_held(self._gateways[n % 2], 100_000 if n % 4 == 3 else 100)
            self.statuses.append(status)
            self._is_over.wait(0.02 if status != 200 else self._pause_s)

    def wait_for(self, n_calls: int, most_s: float = MOST_S) -> None:
        """Wait until so many were answered."""
        until_s = time.monotonic() + most_s
        while self._priced.n_calls < n_calls and time.monotonic() < until_s:
            self._is_over.wait(0.005)
        assert self._priced.n_calls >= n_calls, f"{self._priced.n_calls} of {n_calls} answered in {most_s} s"


@contextlib.contextmanager
def two_gateways(priced: Priced, url: str, pause_s: float = 0.0) -> Iterator[tuple[list[VeloxProcess], Crowd]]:
    with priced.gateways(2, [STRICT], 2, redis_url=url, replicas="2") as found:
        yield found, Crowd(priced, found, pause_s)


def check(priced: Priced, found: list[VeloxProcess], crowd: Crowd) -> None:
    """Exactly what fits was answered, and nothing more is, however often it is asked for."""
    for n in range(200):
        ask_held(found[n % 2])
    print(f"answered {priced.n_calls} of {N_FIT}, statuses {sorted(set(crowd.statuses))}")
    assert priced.n_calls == N_FIT and crowd.statuses.count(200) <= N_FIT


@pytest.mark.parametrize("delay_ms", [0, 25, 80, 250, 500])
def test_strict_budget_is_exact_with_a_redis_that_is_slow(tmp_path: Path, delay_ms: int) -> None:
    """Also if it is slower than a request may wait for a limit."""
    priced = Priced(tmp_path)
    with redis_server() as server:
        proxy = FlipProxy(server.port, delay_ms / 1000)
        try:
            with two_gateways(priced, proxy.url) as (found, crowd):
                with crowd.asking():
                    crowd.wait_for(N_FIT)
                    time.sleep(3)  # what was granted for nothing would be spent now
                check(priced, found, crowd)
        finally:
            proxy.close()


def test_strict_budget_is_exact_with_a_redis_that_pauses(tmp_path: Path) -> None:
    """For 80 ms, four times a second: longer than a request may wait for a limit."""
    priced, is_over = Priced(tmp_path), threading.Event()
    with redis_server() as server, two_gateways(priced, server.url) as (found, crowd), ThreadPoolExecutor(1) as pauser:

        def pause() -> None:
            while not is_over.wait(0.17):
                server.pause()
                is_over.wait(0.08)
                server.resume()

        pausing = pauser.submit(pause)
        try:
            with crowd.asking():
                crowd.wait_for(N_FIT)
                time.sleep(3)  # what was granted for nothing would be spent now
        finally:
            is_over.set()
        pausing.result()
        check(priced, found, crowd)


@pytest.mark.parametrize("how", ["freeze", "kill"])
def test_strict_budget_is_exact_with_a_redis_that_goes_away_and_comes_back(tmp_path: Path, how: str) -> None:
    """Three times, and killed ones come back empty. What a gateway asked for meanwhile counts once."""
    priced = Priced(tmp_path)
    with redis_server() as server, two_gateways(priced, server.url) as (found, crowd):
        with crowd.asking():
            for n in (20, 45, 70):
                crowd.wait_for(n)
                _away(server, how)
                assert priced.n_calls <= N_FIT
            crowd.wait_for(N_FIT)
            time.sleep(3)  # what was granted for nothing would be spent now
        check(priced, found, crowd)


def _away(server: RedisServer, how: str) -> None:
    """Have it not answer for four seconds."""
    if how == "freeze":
        server.pause()
        time.sleep(4)
        server.resume()
    else:
        server.kill()
        time.sleep(4)
        server.start()


@pytest.mark.parametrize("how", ["freeze", "kill"])
def test_strict_budget_is_within_its_limit_while_redis_stays_away(tmp_path: Path, how: str) -> None:
    """Only what was granted before is spent. Then 503, whose Retry-After grows.

    The clients pause, so that Redis is gone before the budget is used up: that would be 429.
    """
    priced = Priced(tmp_path)
    with redis_server() as server, two_gateways(priced, server.url, pause_s=0.05) as (found, crowd):
        with crowd.asking():
            crowd.wait_for(50)
            if how == "freeze":
                server.pause()
            else:
                server.kill()
            time.sleep(8)
        assert 50 <= priced.n_calls <= N_FIT
        assert 503 in crowd.statuses
        refused = [reply for velox in found for _ in range(20) if (reply := reply_held(velox)).status != 200]
        assert {reply.status for reply in refused} == {503}
        assert all(int(reply.header("retry-after") or 0) >= 4 for reply in refused)
        if how == "freeze":
            server.resume()
