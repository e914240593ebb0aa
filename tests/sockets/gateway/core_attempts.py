"""What tests of an exchange's attempts share: scripts, and a client that asks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Final

import uvloop

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, Step, request_head
from velox.errors import Reason
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Retry
from velox.policy.health.member import EJECTION, MemberHealth, State, Verdict
from velox.policy.retries.retry import RetryRules
from velox.types import ANYONE

__all__ = [
    "BODY",
    "RULES",
    "SILENT",
    "ask",
    "attempts",
    "broken",
    "put_out",
    "run",
    "status_of",
    "submit",
    "until",
    "whole",
]

BODY: Final = b'{"model":"m","messages":[]}'
RULES: Final = RetryRules(1, frozenset({429, 500, 503}), 10.0)


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test on the loop of production; what nobody retrieves fails it."""
    complaints: list[dict[str, object]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        await main()
        gc.collect()

    uvloop.run(watched())
    assert not complaints, complaints


def whole(status: int = 200, body: bytes = b"ok", *headers: Header) -> list[Step]:
    return [(ReplyHead.of(status, list(headers), len(body)), body, True)]


def broken(reason: Reason = Reason.UPSTREAM_RESET, unprocessed: Retry | None = None) -> list[Step]:
    return [UpstreamFailure(reason, "broken", unprocessed=unprocessed)]


SILENT: Final[list[Step]] = []


def submit(made: Gateway, client: FakeClient, *headers: Header) -> Exchange:
    exchange = submit_any(made, client, *headers)
    assert exchange is not None, "it was refused on the spot"
    return exchange


def submit_any(made: Gateway, client: FakeClient, *headers: Header) -> Exchange | None:
    return made.submit(client, request_head(more=headers), BODY, ANYONE)


async def ask(made: Gateway, *headers: Header) -> FakeClient:
    client = FakeClient()
    submit_any(made, client, *headers)
    async with asyncio.timeout(PATIENCE_S):
        await client.finished.wait()
    assert made.n_active == 0
    return client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def status_of(client: FakeClient) -> int:
    return int(client.written.split(b" ", 2)[1])


def attempts(*upstreams: ScriptedUpstream) -> list[int]:
    return [len(upstream.opened_s) for upstream in upstreams]


def put_out(health: MemberHealth, now_s: float) -> None:
    """Let so many requests fail there that it gets none but probes."""
    for _ in range(EJECTION.faults):
        health.begin(now_s)
        health.ended(Verdict.FAULT, now_s, now_s, answered=False)
    assert health.state(now_s) is State.OUT
