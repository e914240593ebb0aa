"""Fuzz of the admin API: a few hundred made-up calls each time; tests/slow makes more. Would a bug be found?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.admin.api.api_fuzz import Fuzzer, House
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import Route
from velox.admin.roles import Role


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20, 21])
def test_api_holds_its_promises_whatever_is_asked(tmp_path: Path, seed: int) -> None:
    """No 500, nothing done of what is refused, nothing shown to others, and all answers as they are described."""
    fuzzer = Fuzzer(House(tmp_path / "ledger"), seed)

    asyncio.run(fuzzer.run(600))

    assert set(fuzzer.statuses) >= {200, 201, 400, 401, 403, 404, 405}, "all ways are gone"


def _answers_more(route: Route) -> Route:
    def handle(call: ApiCall) -> Answer:
        answer = route.handle(call)
        return Answer(answer.status, {**answer.body, "more": 1})

    return replace(route, handle=handle)


def _does_and_refuses(route: Route) -> Route:
    def handle(call: ApiCall) -> Answer:
        answer = route.handle(call)
        raise ApiError(400, "invalid", f"{len(answer.body)} fields")

    return replace(route, handle=handle)


def _lets_everybody(route: Route) -> Route:
    return replace(route, roles=frozenset(Role))


def _fails_when_long(route: Route) -> Route:
    def handle(call: ApiCall) -> Answer:
        if any(len(value) > 100 for value in call.query.values()):
            raise KeyError("a bug")
        return route.handle(call)

    return replace(route, handle=handle)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [_answers_more, _does_and_refuses, _lets_everybody, _fails_when_long])
def test_planted_bug_is_found(tmp_path: Path, plant: Callable[[Route], Route]) -> None:
    """Whatever kind of bug it is, some call of the same few hundred shows it."""
    fuzzer = Fuzzer(House(tmp_path / "ledger", plant), 20)

    with pytest.raises((AssertionError, KeyError)):
        asyncio.run(fuzzer.run(600))
