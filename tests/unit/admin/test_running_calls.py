"""The API's calls about what runs: who may, what comes back, and what the log says of a request that was ended."""

from __future__ import annotations

import asyncio
import json
import logging

import msgspec
import pytest

from velox.admin.api.service import Api
from velox.admin.message import AdminRequest, Reply
from velox.admin.roles import Role
from velox.admin.running.calls import RequestPages
from velox.profiling.running import RunningRequest, RunningRequests

IDENT = "vx-0a1b2c3d-7"
CONFIGURATION = b'{"settings":[],"upstreams":[],"routes":[],"limits":[],"budgets":[]}'


class Workers:
    """Two of them: the first is stuck, the other one has one request."""

    def __init__(self, *, both_are_stuck: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self._is_stuck = both_are_stuck

    async def ask(self, what: str, which: str) -> list[bytes | None]:
        self.asked.append((what, which))
        if self._is_stuck:
            return [None, None]
        row = RunningRequest(id=IDENT, phase="ttfb", age_s=1.5, endpoint="chat")
        told = {
            "tasks": msgspec.json.encode(RunningRequests(1, [row])),
            "end": b"ended" if which == IDENT else b"",
            "configuration": CONFIGURATION,
        }
        return [None, told[what]]


def ask(method: str, path: str, role: Role | None, workers: Workers) -> Reply:
    api = Api(
        [*RequestPages(workers.ask, logging.getLogger("admin")).routes()], lambda _: None, "1", logging.getLogger()
    )
    return asyncio.run(api.reply(AdminRequest(method, path, "", "localhost", {}), role))


@pytest.mark.parametrize("role", [Role.ADMIN, Role.VIEWER, Role.OPEN])
def test_running_requests_are_for_all_who_read(role: Role) -> None:
    reply = ask("GET", "/api/v1/requests", role, Workers())

    found = json.loads(reply.body or b"")
    assert (reply.status, found["total"], found["missing"]) == (200, 1, [0])
    assert (found["data"][0]["id"], found["data"][0]["worker"]) == (IDENT, 1)


def test_end_asks_all_workers_and_is_logged_with_who_did_it(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers()
    with caplog.at_level("INFO", "admin"):
        reply = ask("DELETE", f"/api/v1/requests/{IDENT}", Role.ADMIN, workers)

    assert (reply.status, json.loads(reply.body or b"")) == (200, {"id": IDENT, "ended": True})
    assert workers.asked == [("end", IDENT)]
    assert [record.getMessage() for record in caplog.records] == [f"request {IDENT} was ended by admin"]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPEN, None])
def test_end_is_for_admins_alone(role: Role | None) -> None:
    """Where no token is set nobody is one."""
    workers = Workers()
    reply = ask("DELETE", f"/api/v1/requests/{IDENT}", role, workers)

    assert reply.status == (401 if role is None else 403)
    assert workers.asked == []


@pytest.mark.parametrize("ident", ["vx-0a1b2c3d-8", "..", "%00", "vx-0A-1", "x" * 300])
def test_end_of_what_does_not_run_is_404(ident: str) -> None:
    assert ask("DELETE", f"/api/v1/requests/{ident}", Role.ADMIN, Workers()).status == 404


def test_configuration_is_that_of_the_first_worker_that_answers() -> None:
    reply = ask("GET", "/api/v1/configuration", Role.VIEWER, Workers())

    assert (reply.status, json.loads(reply.body or b"")) == (200, json.loads(CONFIGURATION))
    assert ask("GET", "/api/v1/configuration", Role.VIEWER, Workers(both_are_stuck=True)).status == 503
