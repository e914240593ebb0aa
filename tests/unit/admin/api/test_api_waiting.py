"""Calls of the API that wait for a slow database: how many may, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading

from velox.admin.api.call import Answer, ApiCall
from velox.admin.api.routes import Route
from velox.admin.api.service import Api
from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, Reply
from velox.admin.roles import Role

MOST = 32


class Slow:
    """A listener's pages with one call of the API, which waits until the test lets it go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done: list[ApiCall] = []
        route = Route("GET", "/api/v1/slow", "slow", "Waits.", self._handle, {"type": "object"})
        self.app = AdminApp(
            metrics=lambda: b"figures",
            ready=lambda: Readiness(alive=True, ready=True, reasons=()),
            profiles=None,
            api=Api([route], lambda _secret: None, "1", logging.Logger("test")),
        )

    def _handle(self, call: ApiCall) -> Answer:
        assert self.go.wait(30)
        self.done.append(call)
        return Answer(200, {})

    async def ask(self, path: str = "/api/v1/slow") -> Reply:
        return await self.app.reply(AdminRequest("GET", path, "", "localhost", {}))


async def _waiting(slow: Slow, n: int) -> list[asyncio.Task[Reply]]:
    tasks = [asyncio.create_task(slow.ask()) for _ in range(n)]
    await asyncio.sleep(0)  # each has begun
    return tasks


def test_probes_and_figures_never_wait_for_a_database() -> None:
    """Though all threads of the API are taken, and as many calls wait as may."""

    async def run() -> None:
        slow = Slow()
        calls = await _waiting(slow, MOST)
        try:
            for path in ("/readyz", "/livez", "/metrics"):
                assert (await asyncio.wait_for(slow.ask(path), 5)).status == 200
            assert not slow.done
        finally:
            slow.go.set()
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}

    asyncio.run(run())


def test_one_call_too_many_is_refused_at_once() -> None:
    """It is told to come again. A place is free again when a call is answered, or its client leaves."""

    async def run() -> None:
        slow = Slow()
        calls = await _waiting(slow, MOST)
        try:
            refused = await asyncio.wait_for(slow.ask(), 5)
            assert refused.status == 503 and b'"busy"' in (refused.body or b"")
            assert dict(refused.headers)["Retry-After"] == "1"

            calls.pop().cancel()
            await asyncio.sleep(0)
            calls += await _waiting(slow, 1)
        finally:
            slow.go.set()
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        assert len(slow.done) == MOST, "what its client no longer wants is not done"
        assert (await slow.ask()).status == 200

    asyncio.run(run())


def test_tokens_that_are_made_up_keep_no_admin_waiting() -> None:
    """Though as many calls of clients wait as may, and one more is refused."""

    async def run() -> None:
        go = threading.Event()
        route = Route("GET", "/api/v1/fast", "fast", "Answers.", lambda _call: Answer(200, {}), {"type": "object"})

        def nobody(_secret: str) -> None:
            assert go.wait(30)

        api = Api([route], nobody, "1", logging.Logger("test"))
        request = AdminRequest("GET", "/api/v1/fast", "", "localhost", {"authorization": "Bearer sk-made-up"})
        calls = [asyncio.create_task(api.reply(request, None)) for _ in range(MOST)]
        await asyncio.sleep(0)  # each has begun
        try:
            assert (await asyncio.wait_for(api.reply(request, None), 5)).status == 503
            for role in (Role.ADMIN, Role.VIEWER):
                assert (await asyncio.wait_for(api.reply(request, role), 5)).status == 200
        finally:
            go.set()
        assert {reply.status for reply in await asyncio.gather(*calls)} == {401}

    asyncio.run(run())
