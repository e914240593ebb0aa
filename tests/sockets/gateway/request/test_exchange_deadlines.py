"""How an exchange ends that is ended from outside: its client, deadlines, time-outs, a drain, in every phase."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import TIMEOUTS, Stand, composed, in_order, settings_with, upstream_of
from tests.sockets.gateway.core_attempts import (
    BODY,
    RULES,
    SILENT,
    ask,
    attempts,
    run,
    status_of,
    submit,
    until,
    whole,
)
from tests.sockets.gateway.core_gateway import (
    LIMITS,
    FakeClient,
    ScriptedUpstream,
    full_in_minutes,
    gateway,
    one_a_minute,
    request_head,
)
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import ReplyHead
from velox.types import ANYONE

MESSAGES = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}]}'
CHAT = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
)

# -- ends in the middle of it ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "stalled", "drain", "total", "deadline"])
@pytest.mark.parametrize("phase", ["limit", "connect", "ttfb", "backoff"])
def test_exchange_that_is_ended_in_any_phase_ends_at_once(phase: str, how: str) -> None:
    """At any deadline, too: slot, token and stream are given back once, the client is told if there."""

    async def never(_owner: object) -> ScriptedUpstream:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def main() -> None:
        upstream = ScriptedUpstream(whole(503, b"", (b"retry-after", b"9")) if phase == "backoff" else SILENT)
        dial = never if phase == "connect" else upstream.dial
        limited = [one_a_minute()] if phase == "limit" else []
        timeouts = replace(TIMEOUTS, total_s=600.0)
        with gateway(dial, rules=RULES, limited=limited, max_wait_s=600.0, timeouts=timeouts) as made:  # type: ignore[arg-type]
            if phase == "limit":
                made.parts.limiter.limits(ANYONE, None).quotas[0].quota.take(1, time.monotonic_ns())
            client = FakeClient()
            exchange = submit(made, client, (b"x-request-timeout-ms", b"300000"))
            await until(lambda: exchange.phase == phase)
            if how == "total" and exchange.reply is None:
                return  # it has not begun to run
            end(made, exchange, how)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert made.n_active == 0
            assert upstream.n_open == 0
            assert full_in_minutes(made) in ([], [1]), "what it had taken ahead of its time is given back"
            if how in ("gone", "stalled"):
                assert (client.written, client.finished.is_set()) == (b"", False)
            else:
                wanted = {"drain": 503, "total": 504, "deadline": 503 if phase == "limit" else 504}
                assert status_of(client) == wanted[how]
                assert client.written.count(b"HTTP/1.1 ") == 1

    run(main)


def end(made: Gateway, exchange: Exchange, how: str) -> None:
    now_s = asyncio.get_running_loop().time()
    if how == "drain":
        made.fail_all(VeloxError(Reason.DRAINING, "leaving", close=True))
    elif how == "total":
        made.sweep(now_s + 601.0)
    elif how == "deadline":
        made.sweep(now_s + 301.0)
    else:
        exchange.client_gone(stalled=how == "stalled")


@pytest.mark.parametrize("header", [b"x-request-timeout-ms", b"x-stainless-read-timeout"])
def test_deadline_of_a_client_is_kept_to_the_moment(header: bytes) -> None:
    """An upstream that is silent: 504 when the client's time is over, and no retry that would begin after it."""

    async def main() -> None:
        first, second = ScriptedUpstream(SILENT), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            client = await ask(made, (header, b"50" if header.endswith(b"ms") else b"0.05"))
            assert loop.time() - began_s >= 0.045
            assert status_of(client) == 504 and b"upstream_ttfb_timeout" in client.written
            assert b"x-should-retry: false" in client.written
            assert attempts(first, second) == [1, 0]
            assert first.n_open == 0

    run(main)


def test_deadline_in_the_queue_is_a_refusal_that_may_be_tried_again() -> None:
    """503 queue_timeout: the upstream has seen nothing of it."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        with gateway(upstream.dial, limits=replace(LIMITS, max_inflight=1)) as made:
            first = submit(made, FakeClient())
            await until(lambda: upstream.n_open == 1)
            client = FakeClient()
            submit(made, client, (b"x-request-timeout-ms", b"30"))
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert status_of(client) == 503 and b"queue_timeout" in client.written
            assert b"x-should-retry: true" in client.written
            assert (len(made.queue), attempts(upstream)) == (0, [1])
            first.client_gone()

    run(main)


def test_token_that_would_come_after_the_deadline_is_not_waited_for() -> None:
    """It goes back, and the client is told at once."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole())
        with gateway(upstream.dial, limited=[one_a_minute()], max_wait_s=600.0) as made:
            assert status_of(await ask(made)) == 200
            client = await ask(made, (b"x-request-timeout-ms", b"500"))
            assert status_of(client) == 503 and b"queue_timeout" in client.written
            assert full_in_minutes(made) == [1]

    run(main)


def test_deadline_does_not_bound_a_reply_that_has_begun() -> None:
    """It is for the first byte."""

    async def main() -> None:
        upstream = ScriptedUpstream([(ReplyHead.of(200, [], None), b"some" * 100, False)])
        with gateway(upstream.dial) as made:
            client = FakeClient()
            exchange = submit(made, client, (b"x-request-timeout-ms", b"30"))
            await until(lambda: client.written != b"")
            loop = asyncio.get_running_loop()
            await until(lambda: loop.time() > exchange.deadline_s + 0.02)
            made.sweep(loop.time())
            await asyncio.sleep(0)
            assert (made.n_active, client.cuts) == (1, [])
            exchange.client_gone()

    run(main)


# -- timers -----------------------------------------------------------------------------------------------


def test_upstream_that_takes_nothing_of_the_body_is_left_and_a_slow_one_is_not() -> None:
    """F-37, F-38: 504 body_timeout; the first byte's time runs from when the body was taken."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        upstream.n_unsent = 100
        timeouts = replace(TIMEOUTS, write_s=5.0, first_byte_s=20.0)
        with gateway(upstream.dial, timeouts=timeouts, rules=RULES) as made:
            client = FakeClient()
            submit(made, client)
            await until(lambda: upstream.n_open == 1)
            now_s = asyncio.get_running_loop().time()
            for second in range(0, 90, 3):
                upstream.n_unsent -= 1  # a byte each three seconds is progress
                made.sweep(now_s + second)
            made.sweep(now_s + 91.9)
            assert upstream.n_open == 1
            made.sweep(now_s + 92.1)
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert status_of(client) == 504 and b"body_timeout" in client.written
            assert b"x-should-retry: true" not in client.written
            assert attempts(upstream) == [1]

    run(main)


def test_first_byte_is_waited_for_from_the_moment_the_body_is_sent() -> None:
    """A long upload takes nothing of it."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        upstream.n_unsent = 100
        timeouts = replace(TIMEOUTS, write_s=5.0, first_byte_s=20.0)
        with gateway(upstream.dial, timeouts=timeouts) as made:
            client = FakeClient()
            submit(made, client)
            await until(lambda: upstream.n_open == 1)
            now_s = asyncio.get_running_loop().time()
            made.sweep(now_s)
            upstream.n_unsent = 0
            made.sweep(now_s + 4.0)
            made.sweep(now_s + 23.9)
            assert upstream.n_open == 1
            made.sweep(now_s + 24.1)
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert b"upstream_ttfb_timeout" in client.written

    run(main)


@pytest.mark.parametrize(("looked_s", "expected"), [(99.0, [1, 0]), (101.0, [1, 1])])
def test_held_reply_that_comes_bit_by_bit_is_no_silent_one(looked_s: float, expected: list[int]) -> None:
    """Its head came, and the client sees nothing before it is translated: only silence counts, as in any reply.

    DeepSeek and OpenRouter send blanks while the model of a plain answer thinks. One that stops is asked for elsewhere.
    """
    json = (b"content-type", b"application/json")

    async def main() -> None:
        first = ScriptedUpstream([(ReplyHead.of(200, [json], None), b"\n", False)])
        other = ScriptedUpstream(whole(200, CHAT, json))
        timeouts = replace(TIMEOUTS, first_byte_s=20.0, idle_s=60.0)
        upstreams = tuple(replace(upstream_of(name, timeouts=timeouts), provider="mistral") for name in "ab")
        settings = settings_with(upstreams=upstreams, routes=(in_order("ab"),))
        with composed(settings, {"a": Stand(first.dial), "b": Stand(other.dial)}) as made:
            client, head = FakeClient(), request_head(path=b"/v1/messages")
            exchange = made.gateway.submit(client, head, MESSAGES, ANYONE)
            assert isinstance(exchange, Exchange)
            await until(lambda: exchange.reply is not None and exchange.reply.last_s > 0.0)
            assert exchange.reply is not None and not client.written
            now_s = asyncio.get_running_loop().time()
            made.gateway.sweep(now_s + 39.0)
            exchange.reply.last_s = now_s + 40.0  # a blank came
            made.gateway.sweep(now_s + looked_s)
            first.streams[0].play((None, CHAT, True))
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert status_of(client) == 200 and b'"text":"hi"' in client.written
            assert attempts(first, other) == expected

    run(main)


@pytest.mark.parametrize("texts", [b'"a"', b'["a","b"]'])
def test_texts_that_go_up_as_several_calls_may_take_as_long_as_one(texts: bytes) -> None:
    """Each call has the time to the first byte; the time to take a body is not for calls that are not answered."""
    json = (b"content-type", b"application/json")

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        timeouts = replace(TIMEOUTS, write_s=30.0, first_byte_s=60.0)
        region = (("region", "us-east-1"),)
        entry = replace(upstream_of("a", timeouts=timeouts, n_keys=1), provider="bedrock", parameters=region)
        settings = settings_with(upstreams=(entry,), routes=(in_order("a"),))
        with composed(settings, {"a": Stand(upstream.dial)}) as made:
            client, body = FakeClient(), b'{"model":"amazon.titan-embed-text-v2:0","input":%b}' % texts
            assert made.gateway.submit(client, request_head(path=b"/v1/embeddings"), body, ANYONE) is not None
            await until(lambda: upstream.n_open == texts.count(b'"') // 2)
            now_s = asyncio.get_running_loop().time()
            made.gateway.sweep(now_s + 1.0)
            made.gateway.sweep(now_s + 55.0)
            for stream in upstream.streams:
                stream.play(*whole(200, b'{"embedding":[0.5],"inputTextTokenCount":1}', json))
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert status_of(client) == 200, client.written

    run(main)


@pytest.mark.parametrize(("stream", "sse"), [(False, False), (True, False), (False, True)])
def test_whole_reply_has_a_limit_of_its_kind(stream: bool, sse: bool) -> None:
    """VELOX_UPSTREAM_TOTAL_TIMEOUT for a plain reply, VELOX_STREAM_TIMEOUT for a stream."""

    async def main() -> None:
        headers = [(b"content-type", b"text/event-stream")] if sse else []
        upstream = ScriptedUpstream([(ReplyHead.of(200, headers, None), b"data: 1\n\n" * 40, False)])
        limits, timeouts = replace(LIMITS, stream_timeout_s=20.0), replace(TIMEOUTS, total_s=10.0)
        with gateway(upstream.dial, limits=limits, timeouts=timeouts) as made:
            client = FakeClient()
            body = b'{"model":"m","stream":true}' if stream else BODY
            assert made.submit(client, request_head(), body, ANYONE) is not None
            await until(lambda: client.written != b"")
            now_s = asyncio.get_running_loop().time()
            total_s = 20.0 if stream or sse else 10.0
            made.sweep(now_s + total_s - 1.0)
            await asyncio.sleep(0)
            assert made.n_active == 1
            made.sweep(now_s + total_s + 0.1)
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert client.cuts and (b"upstream_total_timeout" in client.cuts[0][0]) is sse

    run(main)
