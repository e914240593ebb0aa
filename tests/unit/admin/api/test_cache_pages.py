"""Purges by the API: what they take out, who may, what is refused, and what the log and the metrics are told."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from tests.unit.admin.api.schema_check import problems
from velox.admin.api.cache import CachePages
from velox.admin.api.service import Api
from velox.admin.message import AdminRequest
from velox.admin.roles import Role
from velox.policy.cache.rules import key_partition
from velox.profiling.running import CachedBy, CachedParts
from velox.shm.answer_ring import AnswerMemory, AnswerRing

MANAGED = b"managed!"
STATIC = b"static!!"
KEPT = [(MANAGED, "evals"), (MANAGED, "rest"), (STATIC, "evals")]


class Gateway:
    """Its cache has an answer of two keys, one of them managed, for two routes. One of two workers is stuck."""

    def __init__(self, *, has_cache: bool = True, has_room: bool = True, all_stuck: bool = False) -> None:
        self.ring = AnswerRing(AnswerMemory(1 << 16, 64, 2, 2), 0)
        for caller, route in KEPT:
            self.ring.put(key_partition(caller), (route,), b"x", route)
        self._has_cache = has_cache
        self._all_stuck = all_stuck
        self.told: list[int] = []
        pages = CachePages(
            self.ring if has_room else None, self._ask, self._managed, self.told.append, logging.getLogger("admin")
        )
        self._api = Api([*pages.routes()], lambda _: None, "1", logging.getLogger())

    async def _ask(self, what: str, which: str) -> list[bytes | None]:
        assert what == "cached"
        asked = msgspec.json.decode(which, type=CachedBy)
        partitions = [key_partition(STATIC)] if asked.key == "shop" else []
        parts = CachedParts(self._has_cache, asked.route in ("evals", "rest"), partitions)
        return [None, None if self._all_stuck else msgspec.json.encode(parts)]

    def _managed(self, key: str) -> bytes | None:
        return MANAGED if key == "key_1" else None

    def purge(self, query: str = "", role: Role | None = Role.ADMIN) -> tuple[int, dict[str, Any]]:
        request = AdminRequest("POST", "/api/v1/cache/purge", query, "localhost", {})
        reply = asyncio.run(self._api.reply(request, role))
        return reply.status, json.loads(reply.body or b"")

    def left(self) -> list[tuple[bytes, str]]:
        return [each for each in KEPT if self.ring.get(key_partition(each[0]), each[1], 60.0)]

    def document(self) -> dict[str, Any]:
        request = AdminRequest("GET", "/api/v1/openapi.json", "", "localhost", {})
        found: dict[str, Any] = json.loads(asyncio.run(self._api.reply(request, Role.ADMIN)).body or b"")
        return found


@pytest.mark.parametrize(
    ("query", "left", "which"),
    [
        ("", [], "all"),
        ("route=evals", [KEPT[1]], "route 'evals'"),
        ("key=key_1", [KEPT[2]], "key 'key_1'"),
        ("key=shop", KEPT[:2], "key 'shop'"),
        ("key=key_1&route=rest", [KEPT[0], KEPT[2]], "route 'rest', key 'key_1'"),
        ("older_than=600", KEPT, "older than 600 s"),
        ("route=evals&older_than=1", KEPT, "route 'evals', older than 1 s"),
    ],
)
def test_purge_takes_out_what_is_named(
    query: str, left: list[tuple[bytes, str]], which: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, n_purged = Gateway(), len(KEPT) - len(left)
    with caplog.at_level("INFO", "admin"):
        status, body = gateway.purge(query)

    assert (status, body, gateway.left(), gateway.told) == (200, {"purged": n_purged}, left, [n_purged])
    assert [record.getMessage() for record in caplog.records] == [
        f"cache: {n_purged} answers were purged by admin: {which}"
    ]
    document = gateway.document()
    operation = document["paths"]["/api/v1/cache/purge"]["post"]
    assert not problems(body, operation["responses"]["200"]["content"]["application/json"]["schema"], document)
    assert [each["name"] for each in operation["parameters"]] == ["route", "key", "older_than"]
    assert operation["description"] == "For admins."


@pytest.mark.parametrize(
    ("query", "status", "code", "field", "told"),
    [
        ("route=nope", 404, "not_found", "route", "there is no route 'nope'"),
        ("key=nobody", 404, "not_found", "key", "there is no key 'nobody'"),
        ("key=shop&route=nope", 404, "not_found", "route", "there is no route 'nope'"),
        ("route=", 400, "invalid", "route", "expected a name"),
        ("key=", 400, "invalid", "key", "expected a name"),
        (f"key={'x' * 257}", 400, "invalid", "key", "expected a name"),
        ("older_than=10m", 400, "invalid", "older_than", "expected a whole number"),
        ("older_than=0", 400, "invalid", "older_than", "expected a whole number"),
        ("all=1", 400, "invalid", "all", "there are route, key, older_than"),
    ],
)
def test_purge_of_nothing_that_there_is_takes_nothing_out(
    query: str, status: int, code: str, field: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty name, of a script's empty variable, does not mean all."""
    gateway = Gateway()
    with caplog.at_level("INFO", "admin"):
        found, body = gateway.purge(query)

    assert (found, body["error"]["code"], body["error"]["field"]) == (status, code, field)
    assert told in body["error"]["message"]
    assert (gateway.left(), gateway.told, caplog.records) == (KEPT, [], [])


@pytest.mark.parametrize(
    ("gateway", "status", "code", "told"),
    [
        (Gateway(has_room=False), 404, "off", "VELOX_CACHE_BYTES"),
        (Gateway(has_cache=False), 404, "off", "no route has a cache"),
        (Gateway(all_stuck=True), 503, "busy", "no worker"),
    ],
)
def test_gateway_without_a_cache_says_so(gateway: Gateway, status: int, code: str, told: str) -> None:
    found, body = gateway.purge()
    assert (found, body["error"]["code"]) == (status, code)
    assert told in body["error"]["message"]
    assert gateway.told == []


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPEN, None])
def test_purge_is_for_admins_alone(role: Role | None) -> None:
    """No key of a client purges, not that of a team's admin either."""
    gateway = Gateway()
    assert gateway.purge("", role)[0] == (401 if role is None else 403)
    assert gateway.left() == KEPT
