"""Budgets over several gateways: real ones with a real Redis that is frozen, emptied, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.priced import COST_NANO, Priced, ask, ask_held, reply_held
from tests.e2e.redis_server import FlipProxy, redis_server

# What each request holds: some 30 tokens of prompt and 100 of an answer. Each costs COST_NANO.
HELD_NANO = 1_030_000
N_CLIENTS = 8


def ask_all(gateways: Sequence[VeloxProcess], n: int) -> list[int]:
    with ThreadPoolExecutor(N_CLIENTS) as clients:
        return list(clients.map(lambda at: ask(gateways[at % len(gateways)]), range(n)))


@pytest.fixture
def priced(tmp_path: Path) -> Priced:
    return Priced(tmp_path)


def test_case_01_two_gateways_spend_one_budget(priced: Priced) -> None:
    """Spent is at most the limit and what the requests that ran at the edge cost above their holds; and not much less.
    What was spent stays so after a restart of one, whose ledger knows only its own part."""
    budget = {"per": "gateway", "usd": "0.06", "window": "day"}
    with redis_server() as server:
        more = {"redis_url": server.url, "redis_timeout": "2s", "replicas": "2"}
        with priced.gateways(2, [budget], **more) as found:
            statuses = ask_all(found, 60)
            n_limit = 60_000_000 // COST_NANO
            assert set(statuses) == {200, 429}
            assert n_limit - 6 <= statuses.count(200) == priced.n_calls <= n_limit + N_CLIENTS
        before = priced.n_calls
        with priced.running([budget], **more) as velox:
            until(lambda: [ask(velox) for _ in range(8)].count(429) == 8, "nothing is left")
            assert priced.n_calls <= max(before, n_limit + 1)


def test_case_18_redis_that_is_frozen_emptied_and_back_gives_no_burst(priced: Priced) -> None:
    """Each gateway goes on with its share, without a stall; over all, the limit holds but for a bounded part."""
    budget = {"per": "key", "usd": "0.06", "window": "day"}
    with redis_server() as server:
        more = {"redis_url": server.url, "redis_timeout": "500ms", "replicas": "2"}
        with priced.gateways(2, [budget], **more) as found:
            assert ask_all(found, 8) == [200] * 8
            server.pause()
            until(lambda: not any(velox.metric("velox_redis_up") for velox in found), "both know")
            assert ask_all(found, 8) == [200] * 8
            server.kill()
            server.start()  # and empty
            until(lambda: all(velox.metric("velox_redis_up") for velox in found), "both know")
            n_limit = 60_000_000 // COST_NANO
            # For two seconds nobody gets more than it had.
            until(lambda: ask_all(found, 4) == [429] * 4 and priced.n_calls >= n_limit - 6, "it is used up")
            ask_all(found, 40)
            assert n_limit - 6 <= priced.n_calls <= n_limit + N_CLIENTS + n_limit // 8


@pytest.mark.parametrize("delay_ms", [0, 80])
def test_strict_budget_is_exact_over_gateways_whatever_is_asked_between(priced: Priced, delay_ms: int) -> None:
    """Every fourth request asks for what never fits, and Redis may be slower than a request waits for it elsewhere."""
    budget, n_fit = {"per": "gateway", "usd": "0.04", "window": "total", "strict": True}, 19
    with redis_server() as server:
        proxy = FlipProxy(server.port, delay_ms / 1000)
        try:
            with priced.gateways(2, [budget], redis_url=proxy.url, replicas="2") as found:

                def asked(n: int) -> int:
                    return ask_held(found[n % 2], 100_000 if n % 8 > 5 else 100)

                def is_used_up() -> bool:
                    with ThreadPoolExecutor(N_CLIENTS) as clients:
                        return set(clients.map(asked, range(40))) == {429} and priced.n_calls >= n_fit

                until(is_used_up, "it is used up", 30)
                assert priced.n_calls == n_fit and is_used_up()
        finally:
            proxy.close()


def test_strict_budget_is_refused_while_redis_is_down(priced: Priced) -> None:
    """M9: what was granted before is spent. Then it is a 503 that says why, and the page says that it does not know."""
    budget = {"per": "gateway", "usd": "0.4", "window": "total", "strict": True}
    with redis_server() as server, priced.gateways(2, [budget], redis_url=server.url, replicas="2") as found:
        assert [ask_held(velox) for velox in found] == [200, 200]
        server.kill()
        until(lambda: not any(velox.metric("velox_redis_up") for velox in found), "both know")
        until(lambda: {ask_held(velox) for velox in found} == {503}, "what was granted is used up")
        assert priced.n_calls * COST_NANO < 400_000_000 // 2
        reply = reply_held(found[0])
        assert reply.header("x-velox-reason") == "limits_unavailable" and "Redis does not answer" in str(reply.error())
        told = found[0].admin("/api/v1/budgets").json()["data"]
        assert isinstance(told, list) and [each["state"] for each in told] == ["redis_down"]
        assert float(told[0]["left"]) < 0.0025
        server.start()
        until(lambda: [ask_held(velox) for velox in found] == [200, 200], "it goes on")


def test_redis_that_forbids_what_budgets_need_is_told_once(priced: Priced) -> None:
    """Limits could be shared and budgets can't: each gateway goes on with its share, and asks again with pauses."""
    budget = {"per": "key", "usd": "60", "window": "day"}
    with redis_server() as server:
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "SETUSER", "few", "on", ">p", "~*", "+@all", "-hset")
        url = server.url.replace("redis://", "redis://few:p@")
        with priced.running([budget], redis_url=url, redis_timeout="2s") as velox:
            until(
                lambda: ask(velox) == 200 and velox.metric('velox_leases_total{result="failed"}') >= 3, "it has failed"
            )
            told = [line for line in velox.stderr.lines if "Redis is" in line]
            assert len(told) == 1 and "its user may not run all commands" in told[0], told
