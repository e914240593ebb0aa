"""Sixteen workers of three gateways at the edge of one budget: how far it is exceeded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.priced import COST_NANO, Priced, ask
from tests.e2e.redis_server import redis_server

N_CLIENTS = 48


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
