"""Ends that meet at the same turn of the loop, and what they must not leave behind: probes, rooms, cycles, promises."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_attempts import (
    RULES,
    SILENT,
    ask,
    attempts,
    broken,
    put_out,
    run,
    status_of,
    submit,
    until,
    whole,
)
from tests.sockets.gateway.core_gateway import (
    FakeClient,
    ScriptedConnection,
    ScriptedStream,
    ScriptedUpstream,
    gateway,
    request_head,
)
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.heads import ReplyHead
from velox.net.upstream.interface import ConnectionOwner, ReplySink, UpstreamFailure, UpstreamRequest
from velox.outcomes import Retry
from velox.policy.health.breaker import PROBE_EVERY_S
from velox.policy.health.member import MemberHealth, State
from velox.types import ANYONE

DRAINING: Final = VeloxError(Reason.DRAINING, "leaving", close=True)
TOOK_S: Final = 0.02


def wants_probe_soon(health: MemberHealth) -> bool:
    """True if it is out, and nothing holds its next probe up beyond the usual."""
    now_s = asyncio.get_running_loop().time()
    return health.state(now_s) is State.OUT and health.wants_probe(now_s + PROBE_EVERY_S)


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


class Slow(ScriptedUpstream):
    """Takes a moment, so that an attempt's begin and end are not the same instant of the loop's clock."""

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        if request.method == b"HEAD":
            return super().open(request, sink)
        self.opened_s.append(asyncio.get_running_loop().time())
        stream = ScriptedStream(self, sink)
        for step in whole(503, b"", (b"retry-after", b"9")):
            asyncio.get_running_loop().call_later(TOOK_S, stream.play, step)
        return stream


class EndsAtRefusal(Slow):
    """Ends the exchange in the very turn in which its reply is refused."""

    made: Gateway | None = None
    how = ""
    n_ended = 0

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        stream = super().open(request, sink)
        made = self.made
        if made is not None and request.method != b"HEAD":
            asyncio.get_running_loop().call_later(TOOK_S, self._end_all, made)
        return stream

    def _end_all(self, made: Gateway) -> None:
        self.n_ended += 1
        for exchange in tuple(made._active):
            if self.how == "gone":
                exchange.client_gone()
            else:
                exchange.fail(DRAINING)


@pytest.mark.parametrize("how", ["gone", "drain"])
def test_retry_that_is_given_up_in_the_turn_of_the_refusal_leaves_nothing(how: str) -> None:
    """Neither a wait of 9 s nor a probe that stays pending."""

    async def main() -> None:
        upstream = EndsAtRefusal()
        with gateway(upstream.dial, rules=RULES) as made:
            upstream.made, upstream.how = made, how
            health = made.routing.members[0].health
            put_out(health, asyncio.get_running_loop().time() - 60.0)
            client = FakeClient()
            submit(made, client)
            await until(lambda: upstream.n_ended == 1)
            await turns()
            assert made.n_active == 0
            assert wants_probe_soon(health)

    run(main)


def test_client_that_leaves_during_the_wait_leaves_no_probe_pending() -> None:
    """The retry would have been the probe."""

    async def main() -> None:
        upstream = Slow()
        with gateway(upstream.dial, rules=RULES) as made:
            health = made.routing.members[0].health
            exchange = submit(made, FakeClient())
            put_out(health, asyncio.get_running_loop().time() - 60.0)
            await until(lambda: exchange.phase == "backoff")
            exchange.client_gone()
            await turns()
            assert wants_probe_soon(health)

    run(main)


def test_request_that_cannot_be_built_takes_no_connection_with_it() -> None:
    """A bug in one request must not cost the next one its connection."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole())
        with gateway(upstream.dial) as made:
            assert status_of(await ask(made)) == 200
            assert status_of(await ask(made, (b"x-bad", b"a\nb"))) == 500
            async with asyncio.timeout(PATIENCE_S):
                assert status_of(await ask(made)) == 200

    run(main)


class Body(bytearray):
    """A body that can be watched."""


@pytest.mark.parametrize("how", ["whole", "refused", "cut", "not opened"])
def test_body_is_let_go_of_at_the_end_without_the_collector(how: str) -> None:
    """What the budget counts as given back is given back."""

    class Closed(ScriptedUpstream):
        def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
            if request.method == b"HEAD":
                return super().open(request, sink)
            raise UpstreamFailure(Reason.UPSTREAM_RESET, "closed", unprocessed=Retry.STALE)

    async def main() -> None:
        upstream = {
            "whole": ScriptedUpstream(whole()),
            "refused": ScriptedUpstream(whole(503, b"", (b"retry-after", b"0")), whole()),
            "cut": ScriptedUpstream([(ReplyHead.of(200, [], None), b"x", False), *broken()]),
            "not opened": Closed(SILENT),
        }[how]
        with gateway(upstream.dial, rules=RULES) as made:
            client, body = FakeClient(), Body(b'{"model":"m","messages":[]}')
            watched = weakref.ref(body)
            gc.collect()
            gc.disable()
            try:
                made.submit(client, request_head(), body, ANYONE)
                del body
                async with asyncio.timeout(PATIENCE_S):
                    await client.finished.wait()
                await turns()
                assert watched() is None
            finally:
                gc.enable()

    run(main)


async def no_dial(_owner: ConnectionOwner) -> ScriptedConnection:
    raise UpstreamFailure(Reason.UPSTREAM_CONNECT, "refused", unprocessed=Retry.CONNECT)


def test_sdk_is_not_asked_to_repeat_what_an_earlier_attempt_may_have_begun() -> None:
    """Reset at the first upstream, no connection to the second: work may have been done all the same."""

    async def main() -> None:
        first = ScriptedUpstream(broken())
        with gateway(first.dial, no_dial, rules=RULES) as made:
            client = await ask(made)
            assert status_of(client) == 502 and b"upstream_connect" in client.written
            assert b"x-should-retry: false" in client.written
        with gateway(no_dial, rules=RULES) as made:
            assert b"x-should-retry: true" in (await ask(made)).written
        assert attempts(first) == [1]

    run(main)


@pytest.mark.parametrize(("script", "says"), [(SILENT, b"false"), (None, b"true")], ids=["begun", "waits"])
def test_end_of_a_drain_says_whether_work_may_have_begun(script: list[object] | None, says: bytes) -> None:
    """True only for who still waited for a connection."""

    async def never(_owner: ConnectionOwner) -> ScriptedConnection:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        with gateway(never if script is None else upstream.dial) as made:
            client = FakeClient()
            exchange = submit(made, client)
            await until(lambda: exchange.phase == ("connect" if script is None else "ttfb"))
            made.fail_all(DRAINING)
            await turns()
            assert b"draining" in client.written and b"x-should-retry: " + says in client.written

    run(main)
