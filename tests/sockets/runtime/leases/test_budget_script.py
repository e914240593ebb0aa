"""The script of budgets in a real Redis: what it grants, whatever gateways report, and in whichever order they come."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.e2e.redis_server import RedisServer, redis_server
from velox.runtime.leases.lease_redis import BUDGET_SCRIPT, BudgetQuery, LeaseRedis

LIMIT = 1000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def gateways(server: RedisServer) -> Iterator[list[LeaseRedis]]:
    prefix = os.urandom(4).hex()
    found = [LeaseRedis(server.url, prefix, 5.0, f"gateway-{n}") for n in range(3)]
    yield found
    for each in found:
        each.close()


def ask(gateways: list[LeaseRedis], at: int, query: BudgetQuery, life: str) -> tuple[str, int, int]:
    """Return the life of Redis, what the gateway is granted, and what the others have."""
    life, _, [(grant, _, granted)] = gateways[at].ask_budgets((query,), f"gateway-{at}", life, 0, 24)
    return life, grant, granted


@pytest.mark.parametrize("seed", range(3))
def test_grants_together_are_within_the_limit_whatever_is_reported(gateways: list[LeaseRedis], seed: int) -> None:
    """Amounts that were never used, spend above the grants, needs of any size: no answer makes the sum too large."""
    rng, life, name = random.Random(seed), "", os.urandom(16)
    granted = [0, 0, 0]
    for _ in range(500):
        at, most = rng.randrange(3), rng.choice((50, LIMIT, 3 * LIMIT))
        spent = rng.randint(0, most // 3)
        used, needs = spent + rng.randint(0, most), rng.randint(0, most)
        had = rng.choice((granted[at], granted[at], granted[at] // 2, rng.randint(0, 2 * LIMIT)))
        query = BudgetQuery(name, 1, LIMIT, used, spent, had, needs, rng.randint(0, needs), 60_000)
        life, granted[at], of_others = ask(gateways, at, query, life)
        assert sum(granted) <= LIMIT, (granted, query)
        assert of_others >= sum(granted) - granted[at], "what others may spend is free for nobody"


def test_what_was_spent_beside_its_grant_is_free_for_nobody(gateways: list[LeaseRedis]) -> None:
    """A gateway that went on alone while Redis was down had not been granted what it spent then."""
    name = os.urandom(16)
    life, grant, _ = ask(gateways, 0, BudgetQuery(name, 1, LIMIT, 900, 900, 0, 0, 0, 60_000), "")
    assert grant <= LIMIT
    _, grant, _ = ask(gateways, 1, BudgetQuery(name, 1, LIMIT, 0, 0, 0, 200, 200, 60_000), life)
    assert grant == 0
    _, grant, _ = ask(gateways, 1, BudgetQuery(name, 1, LIMIT, 0, 0, 0, 80, 80, 60_000), life)
    assert 80 <= grant <= 100


def test_question_that_is_late_changes_nothing(server: RedisServer, gateways: list[LeaseRedis]) -> None:
    """Given up by its gateway, which has asked anew since then: what it tells is not true any more."""
    name, (here, *_) = os.urandom(16), gateways
    for had, needs in ((0, 300), (300, 300)):
        life, _, _ = ask(gateways, 0, BudgetQuery(name, 1, LIMIT, had, 0, had, needs, needs, 60_000), "")
    tag = here._tag
    keys = [f"{tag}budgets", f"{tag}budgets:gateway-0", f"{tag}budget:{name.hex()}:1"]
    with server.client() as client:
        before = client.hgetall(keys[-1])
        reply = client.eval(BUDGET_SCRIPT, 3, *keys, life, "gateway-0", "made", 0, 1, LIMIT, 0, 0, 0, 0, 0, 24, 60_000)
        assert reply == [b"late", b"2"] and client.hgetall(keys[-1]) == before


def test_gateway_that_starts_again_is_told_the_number_of_its_last_question(
    server: RedisServer, gateways: list[LeaseRedis]
) -> None:
    name = os.urandom(16)
    life, grant, _ = ask(gateways, 0, BudgetQuery(name, 1, LIMIT, 0, 0, 0, 700, 700, 60_000), "")
    ask(gateways, 0, BudgetQuery(name, 1, LIMIT, 600, 600, grant, 0, 0, 60_000), life)
    gateways[0].close()
    again = [LeaseRedis(server.url, gateways[0]._tag.removesuffix("{velox}:"), 5.0, "gateway-0")]
    _, grant, _ = ask(again, 0, BudgetQuery(name, 1, LIMIT, 600, 600, 0, 100, 100, 60_000), "")
    assert 700 <= grant <= LIMIT
    again[0].close()
