"""What budgets have left, by the API: amounts, pages, filters, and what a client's key may see."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.admin_requests import parse_request
from tests.unit.admin.api.schema_check import problems
from velox.accounts.active import caller_id_of
from velox.admin.api.budgets import BudgetPages
from velox.admin.api.call import Asker
from velox.admin.api.service import Api
from velox.admin.roles import Role
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule, BudgetScope
from velox.shm.budget_table import BudgetMemory, BudgetTable, Told

NOON = 1_795_435_200.0
KEY = "6161616161616161 shop"


class Door:
    def __init__(self, memory: BudgetMemory | None) -> None:
        self.own = Asker(Role.OWN, "key_1", "key_1", KEY, "web")
        routes = [*BudgetPages(memory, lambda: NOON).routes()]
        self.api = Api(routes, lambda _secret: self.own, "1", logging.Logger("test"))
        (_, self.document) = self("/api/v1/openapi.json")

    def __call__(self, target: str, role: Role | None = Role.VIEWER) -> tuple[int, dict[str, Any]]:
        head = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-x\r\n\r\n".encode()
        reply = asyncio.run(self.api.reply(parse_request(head, takes_any=self.api.takes), role))
        return reply.status, json.loads(reply.body)

    def names(self, target: str, role: Role | None = Role.VIEWER) -> list[tuple[str, str]]:
        status, body = self(target, role)
        assert status == 200
        operation = self.document["paths"]["/api/v1/budgets"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert not problems(body, schema, self.document)
        return [(each["scope"], each["name"]) for each in body["data"]]


@pytest.fixture
def memory() -> BudgetMemory:
    memory = BudgetMemory(1000, 1)
    table = BudgetTable(memory, 0)
    scopes: list[tuple[BudgetScope, str, str, dict[str, object]]] = [
        ("gateway", "", "", {"usd": "12.5", "window": "month", "zone": "Europe/Berlin"}),
        ("key", "6161616161616161", KEY, {"tokens": 1000, "window": "day"}),
        ("key", "6262626262626262", "6262626262626262 shop", {"tokens": 1000, "window": "day"}),
        ("team", "web", "web", {"tokens": 1000, "window": "total"}),
        ("team", "ops", "ops", {"tokens": 1000, "window": "30d"}),
    ]
    for scope, subject, who, fields in scopes:
        budget = table.budget(BudgetRule("budgets[0]", scope, parse_budget(fields)), subject, who, NOON)
        hold = budget.hold(100, NOON)
        assert hold is not None
        budget.spend(hold, 250)
    return memory


def test_budgets_are_told_with_what_is_left(memory: BudgetMemory) -> None:
    door = Door(memory)
    assert len(door.names("/api/v1/budgets")) == 5
    ((_, body), (_, ops)) = door("/api/v1/budgets?scope=gateway"), door("/api/v1/budgets?name=web")
    (one,) = body["data"]
    assert (one["unit"], one["limit"], one["spent"]) == ("usd", "12.500000000", "0.000000250")
    assert (one["window_start"], one["window_end"]) == ("2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z")
    (team,) = ops["data"]
    assert [team[name] for name in ("limit", "spent", "held", "left", "window_end")] == [1000, 250, 100, 650, None]


def test_budgets_whose_redis_is_down_say_so(memory: BudgetMemory) -> None:
    """What is left is what this gateway was granted and has not used: nothing else is sure."""
    door = Door(memory)
    assert {each["state"] for each in door("/api/v1/budgets")[1]["data"]} == {"known"}
    row, number = next(
        (row, memory.window_of(row)[1]) for row in memory.used_rows() if memory.window_of(row)[0] == 1000
    )
    memory.tell(row, number, Told(400, 30, 200, 1))
    memory.away_ns = 1
    assert len(door.names("/api/v1/budgets")) == 5
    found = door("/api/v1/budgets")[1]["data"]
    assert {each["state"] for each in found} == {"redis_down"}
    assert sorted((each["spent"], each["left"]) for each in found if each["unit"] == "tokens") == [
        *[(250, 0)] * 2,
        (250, 0),
        (280, 50),
    ]


def test_pages_have_each_budget_once(memory: BudgetMemory) -> None:
    door, cursor, found = Door(memory), "0", []
    while cursor is not None:
        _, body = door(f"/api/v1/budgets?limit=2&cursor={cursor}")
        found += [(each["scope"], each["id"]) for each in body["data"]]
        cursor = body["cursor"]
    assert len(found) == len(set(found)) == 5
    assert door.names("/api/v1/budgets?scope=key&name=shop") == [("key", "shop")] * 2


def test_budget_of_a_managed_key_is_found_by_its_id() -> None:
    """As the API has given it, whatever the key's name is."""
    memory, id_ = BudgetMemory(1000, 1), caller_id_of("key_7").hex()
    rule = BudgetRule("budgets[0]", "key", parse_budget({"tokens": 1000, "window": "day"}))
    for subject in (id_, "6161616161616161"):
        BudgetTable(memory, 0).budget(rule, subject, f"{subject} shop", NOON)
    (found,) = Door(memory)("/api/v1/budgets?name=key_7")[1]["data"]
    assert found["id"] == id_


def test_client_sees_its_own_and_its_teams(memory: BudgetMemory) -> None:
    door = Door(memory)
    assert sorted(door.names("/api/v1/budgets", None)) == [("key", "shop"), ("team", "web")]
    door.own = Asker(Role.OWN, "key_1", "key_1", f"{KEY} with another name", "")
    assert door.names("/api/v1/budgets", None) == [("key", "shop")]
    door.own = Asker(Role.OWN, "key_2", "key_2", "0000000000000000 shop", "")
    assert door.names("/api/v1/budgets", None) == []


@pytest.mark.parametrize("query", ["cursor=-1", "cursor=x", "cursor=9999999999999", "scope=none", "limit=0", "nam=1"])
def test_wrong_parameters_are_named(memory: BudgetMemory, query: str) -> None:
    status, body = Door(memory)(f"/api/v1/budgets?{query}")
    assert (status, body["error"]["field"]) == (400, query.partition("=")[0])


def test_without_records_there_are_none() -> None:
    assert Door(None)("/api/v1/budgets")[0] == 404
