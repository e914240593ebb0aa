"""Copies of a gateway's requests at a real mirror: one for each request, whatever becomes of either of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from tests.e2e.recording import Call, RecordingUpstream
from tests.sockets.gateway.composed import Stand, member_of, routing_of, upstream_of
from tests.sockets.gateway.core_attempts import (
    BODY,
    RULES,
    SILENT,
    ask,
    attempts,
    broken,
    run,
    status_of,
    submit,
    whole,
)
from tests.sockets.gateway.core_gateway import (
    NO_RETRIES,
    FakeClient,
    ScriptedUpstream,
    full_in_minutes,
    gateway,
    one_a_minute,
)
from tests.sockets.gateway.internal_requests import eventually, place
from velox.gateway.front.intake import Gateway
from velox.outcomes import Retry
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.queue.concurrency import ConcurrencyLimit, FixedLimit
from velox.policy.retries.retry import RetryRules
from velox.policy.routes.entries import ANYTHING, Mirror, RouteEntry, Target
from velox.policy.routes.split import MirrorGate


@pytest.fixture(scope="module", params=[False, True], ids=["http1", "http2"])
def shadow(request: pytest.FixtureRequest) -> Iterator[RecordingUpstream]:
    with RecordingUpstream(http2=request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def mirrored(
    main: ScriptedUpstream,
    shadow: RecordingUpstream,
    *,
    percent: float = 100.0,
    rules: RetryRules = NO_RETRIES,
    limited: Sequence[LimitRule] = (),
    concurrency: Sequence[ConcurrencyLimit] = (),
) -> AsyncIterator[tuple[Gateway, MirrorGate]]:
    """A gateway with one route to `main`, whose requests are copied. Nothing of the copies may be left at the end."""
    gate = MirrorGate(percent, 100, 1 << 20)
    with gateway(main.dial, rules=rules, limited=limited, concurrency=concurrency) as made:
        async with place(shadow) as there:
            (first,) = made.routing.members
            copied = member_of(upstream_of("shadow", n_keys=1), Stand(main.dial, pool=there.pool), row=1)
            entry = RouteEntry("r", ANYTHING, (Target("0"),), mirror=Mirror(Target("shadow"), percent))
            made.routing = routing_of((first, copied), entry, gate=gate)
            yield made, gate
            made.mirrors.close()
            await eventually(lambda: not len(made.mirrors))
            assert (gate.n_inflight, gate.n_bytes, made.routing.n_open) == (0, 0, 0)


async def _turns() -> None:
    """Let everything happen that needs no time."""
    for _ in range(30):
        await asyncio.sleep(0)


async def _silent(call: Call) -> None:
    await call.silence()


async def _events(call: Call) -> None:
    await call.head(200, (("content-type", "text/event-stream"),))
    await call.data(b'data: {"choices":[]}\n\n' * 100)
    await call.end()


def test_copy_has_the_body_and_a_key_of_its_own(shadow: RecordingUpstream) -> None:
    """Its answer, a stream of events, is read to the end and goes nowhere."""

    async def main() -> None:
        async with mirrored(ScriptedUpstream(whole(200, b"theirs")), shadow) as (made, _):
            client = await ask(made, (b"authorization", b"Bearer sk-of-the-client"))
            assert client.written.endswith(b"theirs")
            await eventually(lambda: shadow.calls and shadow.calls[0].ended == "answered" and not len(made.mirrors))
            (call,) = shadow.calls
            assert (call.method, call.target, call.body) == ("POST", "/v1/chat/completions", BODY)
            assert call.header("authorization") == "Bearer sk-of-the-gateway-0"

    with shadow.playing(_events):
        run(main)


def test_request_has_ended_though_its_copy_has_not(shadow: RecordingUpstream) -> None:
    """The client is served, its place is free, and its limits are counted once."""

    async def main() -> None:
        async with mirrored(ScriptedUpstream(whole()), shadow, limited=[one_a_minute()]) as (made, gate):
            assert status_of(await ask(made)) == 200
            assert made.n_active == 0 and full_in_minutes(made) == [1]
            await eventually(lambda: shadow.calls)
            assert status_of(await ask(made)) == 429
            assert (gate.n_inflight, gate.n_bytes) == (1, len(BODY))
        await eventually(lambda: shadow.calls[0].left_s)
        assert len(shadow.calls) == 1  # what is refused is not copied

    with shadow.playing(_silent):
        run(main)


def test_copies_that_run_make_no_room_for_others(shadow: RecordingUpstream) -> None:
    """They are in no queue: whoever is above the limit stays there, where priorities and fairness are."""

    async def main() -> None:
        async with mirrored(ScriptedUpstream(SILENT), shadow, concurrency=[FixedLimit(2)]) as (made, _):
            exchanges = [submit(made, FakeClient()) for _ in range(2)]
            await eventually(lambda: len(shadow.calls) == made.mirrors.n_begun == 2)
            exchanges += [submit(made, FakeClient()) for _ in range(4)]
            await _turns()
            assert (made.n_active, len(made.queue), len(shadow.calls)) == (2, 4, 2)
            for exchange in exchanges:
                exchange.client_gone()
            await eventually(lambda: not made.n_active)

    with shadow.playing(_silent):
        run(main)


def test_copy_goes_on_when_the_client_leaves(shadow: RecordingUpstream) -> None:
    """They have nothing to do with each other any more."""

    async def after_a_step(call: Call) -> None:
        await call.step()
        await call.reply(200)

    async def main() -> None:
        main_upstream = ScriptedUpstream(SILENT)
        async with mirrored(main_upstream, shadow) as (made, _):
            client = FakeClient()
            exchange = submit(made, client)
            await eventually(lambda: shadow.calls)
            exchange.client_gone()
            await eventually(lambda: not made.n_active)
            assert main_upstream.n_cancelled == 1 and len(made.mirrors) == 1
            shadow.step()
            await eventually(lambda: not len(made.mirrors))
            await eventually(lambda: shadow.calls[0].ended == "answered")  # which it notes when it has sent it

    with shadow.playing(after_a_step):
        run(main)


def test_request_that_is_tried_again_is_copied_once(shadow: RecordingUpstream) -> None:
    """Nor is a copy tried again: what fails, fails."""

    async def fails(call: Call) -> None:
        await call.reply(503, (), b"busy")

    async def main() -> None:
        upstream = ScriptedUpstream(broken(unprocessed=Retry.STALE), whole())
        async with mirrored(upstream, shadow, rules=RULES) as (made, _):
            assert status_of(await ask(made)) == 200
            assert attempts(upstream) == [2]
            await eventually(lambda: shadow.calls and not len(made.mirrors))
            assert len(shadow.calls) == 1

    with shadow.playing(fails):
        run(main)


def test_nothing_is_copied_at_no_percent(shadow: RecordingUpstream) -> None:
    """And a route without a mirror knows nothing of it."""

    async def main() -> None:
        async with mirrored(ScriptedUpstream(whole()), shadow, percent=0.0) as (made, _):
            for _ in range(50):
                assert status_of(await ask(made)) == 200
            assert not len(made.mirrors) and not shadow.calls

    with shadow.playing(_silent):
        run(main)
