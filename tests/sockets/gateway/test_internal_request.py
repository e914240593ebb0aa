"""Requests of the gateway's own, at real upstreams: what they bring, how they end, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest

from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.recording_http2 import Http2Call
from tests.sockets.gateway.internal_requests import GET, Place, eventually, place, request
from tests.sockets.net.dialing import dialer_to, full_listener, local, nothing_left, run
from velox.errors import Reason, VeloxError
from velox.gateway.internal_request import Answer, ask, ask_status
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest
from velox.net.upstream.pool import UpstreamPool
from velox.outcomes import Retry

LONG_S: Final = 60.0
SHORT_S: Final = 0.1
TEXT: Final = (("content-type", "text/plain"),)


@pytest.fixture(scope="module", params=[False, True], ids=["http1", "http2"])
def upstream(request: pytest.FixtureRequest) -> Iterator[RecordingUpstream]:
    with RecordingUpstream(http2=request.param) as made:
        yield made


Talk = Callable[[Place], Awaitable[None]]


def with_place(upstream: RecordingUpstream, talk: Talk, *, max_connections: int = 4) -> None:
    """Talk with an upstream; nothing may be left afterwards."""

    async def main() -> None:
        async with nothing_left(), place(upstream, max_connections=max_connections) as made:
            await talk(made)

    upstream.forget()
    run(main())


async def asked(
    where: Place, what: UpstreamRequest = GET, *, timeout_s: float = LONG_S, max_bytes: int = 1000
) -> Answer:
    return await ask(where.pool, what, asyncio.get_running_loop(), timeout_s=timeout_s, max_bytes=max_bytes)


async def status(where: Place, *, timeout_s: float = LONG_S, first_byte_s: float | None = None) -> int:
    loop = asyncio.get_running_loop()
    return await ask_status(where.pool, GET, loop, timeout_s=timeout_s, first_byte_s=first_byte_s)


async def silent(call: Call) -> None:
    await call.silence()


def test_compressed_answer_comes_as_its_text(upstream: RecordingUpstream) -> None:
    """As lists of models, though the gateway asked for one that is not; a coding that nobody knows is a failure."""

    async def coded(call: Call) -> None:
        await call.reply(200, (*TEXT, ("content-encoding", "gzip")), gzip.compress(b"a list"))

    async def unknown(call: Call) -> None:
        await call.reply(200, (*TEXT, ("content-encoding", "br")), b"\x8b\x02\x80a list\x03")

    async def talk(where: Place) -> None:
        with upstream.playing(coded):
            answer = await asked(where)
            assert answer.body == b"a list"
            assert not [value for name, value in answer.headers if name == b"content-encoding"]
        with upstream.playing(unknown), pytest.raises(UpstreamFailure) as raised:
            await asked(where)
        assert raised.value.reason is Reason.UPSTREAM_PROTOCOL

    with_place(upstream, talk)


def test_answer_comes_whole_with_its_status(upstream: RecordingUpstream) -> None:
    """In several pieces; with a status that is no success; without a body. One connection serves them all."""

    async def pieces(call: Call) -> None:
        await call.head(200, TEXT)
        for _ in range(3):
            await call.data(b"vllm:x 1\n")
        await call.end()

    async def refusal(call: Call) -> None:
        await call.reply(404, TEXT, b"no such path")

    async def empty(call: Call) -> None:
        await call.reply(200)

    async def talk(where: Place) -> None:
        with upstream.playing(pieces):
            answer = await asked(where)
            assert (answer.status, answer.body) == (200, b"vllm:x 1\n" * 3)
            assert (b"content-type", b"text/plain") in answer.headers
        with upstream.playing(refusal):
            assert (await asked(where)).status == 404
        with upstream.playing(empty):
            assert (await asked(where, request(b"POST", b"/v1/x", b"{}"))).body == b""
            assert [(call.method, call.target, call.body) for call in upstream.calls] == [("POST", "/v1/x", b"{}")]
        assert upstream.n_connections == n_before + 1

    n_before = upstream.n_connections
    with_place(upstream, talk)


@pytest.mark.parametrize(("n_bytes", "fits"), [(999, True), (1000, True), (1001, False), (1 << 20, False)])
def test_answer_longer_than_it_may_be_is_given_up(upstream: RecordingUpstream, n_bytes: int, fits: bool) -> None:
    """And its stream is ended, however much of it is still to come."""

    async def long(call: Call) -> None:
        await call.head(200, TEXT)
        await call.data(b"x" * n_bytes)
        if fits:
            await call.end()
        else:
            await call.silence()

    async def talk(where: Place) -> None:
        with upstream.playing(long):
            if fits:
                assert len((await asked(where)).body) == n_bytes
                return
            with pytest.raises(UpstreamFailure) as failed:
                await asked(where)
            assert failed.value.reason is Reason.UPSTREAM_PROTOCOL
            await eventually(lambda: upstream.calls[0].left_s)

    with_place(upstream, talk)


def test_answer_that_is_thrown_away_may_have_any_length(upstream: RecordingUpstream) -> None:
    """Only its status is wanted."""

    async def long(call: Call) -> None:
        await call.reply(206, TEXT, b"x" * (1 << 20))

    async def talk(where: Place) -> None:
        with upstream.playing(long):
            assert await status(where) == 206

    with_place(upstream, talk)


@pytest.mark.parametrize("begins", [False, True])
def test_time_out_ends_the_stream(upstream: RecordingUpstream, begins: bool) -> None:
    """Before the head, and inside the body."""

    async def stalls(call: Call) -> None:
        if begins:
            await call.head(200, TEXT)
            await call.data(b"x")
        await call.silence()

    async def talk(where: Place) -> None:
        with upstream.playing(stalls):
            with pytest.raises(UpstreamFailure) as failed:
                await asked(where, timeout_s=SHORT_S)
            assert failed.value.reason is (Reason.UPSTREAM_TOTAL_TIMEOUT if begins else Reason.UPSTREAM_TTFB_TIMEOUT)
            assert failed.value.unprocessed is None
            await eventually(lambda: upstream.calls[0].left_s)
        assert (await asked(where, request(target=b"/v1/y"))).status == 200

    with_place(upstream, talk)


def test_answer_that_has_begun_gets_the_longer_time(upstream: RecordingUpstream) -> None:
    """The time for the first byte is one thing, the time for all of it another."""

    async def slow_body(call: Call) -> None:
        await call.head(200, TEXT)
        await call.step()
        await call.end()

    async def talk(where: Place) -> None:
        loop = asyncio.get_running_loop()
        with upstream.playing(slow_body):
            asking = loop.create_task(status(where, first_byte_s=SHORT_S))
            await asyncio.sleep(3 * SHORT_S)
            upstream.step()
            assert await asking == 200
        with upstream.playing(silent):
            with pytest.raises(UpstreamFailure) as failed:
                await status(where, first_byte_s=SHORT_S)
            assert failed.value.reason is Reason.UPSTREAM_TTFB_TIMEOUT

    with_place(upstream, talk)


@pytest.mark.parametrize("begins", [False, True])
def test_cancelled_request_ends_its_stream(upstream: RecordingUpstream, begins: bool) -> None:
    """As soon as it is cancelled."""

    async def stalls(call: Call) -> None:
        if begins:
            await call.head(200, TEXT)
        await call.silence()

    async def talk(where: Place) -> None:
        with upstream.playing(stalls):
            asking = asyncio.get_running_loop().create_task(asked(where))
            await eventually(lambda: upstream.calls)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await eventually(lambda: upstream.calls[0].left_s)

    with_place(upstream, talk)


def test_request_cancelled_at_any_step_leaves_nothing(upstream: RecordingUpstream) -> None:
    """After each number of turns of the loop: in the line for a connection, in its dial, before and after the send."""

    async def talk(where: Place) -> None:
        for n_turns in range(30):
            tasks = [asyncio.create_task(asked(where)) for _ in range(3)]
            for _ in range(n_turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (await asked(where)).status == 200
        await eventually(lambda: not where.n_open)

    with_place(upstream, talk)


@pytest.mark.parametrize("begins", [False, True])
def test_broken_answer_is_a_failure(upstream: RecordingUpstream, begins: bool) -> None:
    """Cut before its head, and inside its body. It is not sent again, for work may have been done there.

    But a connection of HTTP/1.1 that is closed at once after it had idled was closed before.
    """

    async def breaks(call: Call) -> None:
        if begins:
            await call.head(200, TEXT)
            await call.data(b"x")
        call.cut()

    async def talk(where: Place) -> None:
        with upstream.playing(breaks):
            with pytest.raises(UpstreamFailure) as failed:
                await asked(where)
            assert failed.value.reason is (Reason.UPSTREAM_TRUNCATED if begins else Reason.UPSTREAM_RESET)
            assert len(upstream.calls) == 1 or not (begins or upstream.http2)

    with_place(upstream, talk)


def test_refused_stream_is_sent_again_but_not_for_ever() -> None:
    """RFC 9113 §8.7: a refused stream was not processed."""
    n_refused = 0

    async def refuses(call: Call) -> None:
        nonlocal n_refused
        assert isinstance(call, Http2Call)
        if n_refused:
            n_refused -= 1
            call.refuse()
        else:
            await call.reply(200)

    async def talk(where: Place) -> None:
        nonlocal n_refused
        with upstream.playing(refuses):
            n_refused = 2
            assert (await asked(where)).status == 200
            n_refused = 3
            with pytest.raises(UpstreamFailure) as failed:
                await asked(where)
            assert failed.value.unprocessed is Retry.REFUSED
            assert len(upstream.calls) == 6

    with RecordingUpstream(http2=True) as upstream:
        with_place(upstream, talk)


def test_room_that_is_left_is_passed_on() -> None:
    """HTTP/2: while one request waits for its answer the connection takes others, also those that wait in line."""

    async def first_waits(call: Call) -> None:
        if len(upstream.calls) == 1:
            await call.silence()
        else:
            await call.reply(200)

    async def talk(where: Place) -> None:
        with upstream.playing(first_waits):
            waiting = asyncio.create_task(asked(where))
            await eventually(lambda: upstream.calls)
            answers = await asyncio.gather(*(asked(where, timeout_s=5.0) for _ in range(5)))
            assert [answer.status for answer in answers] == [200] * 5
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    with RecordingUpstream(http2=True) as upstream:
        with_place(upstream, talk, max_connections=1)


def test_connection_closed_just_as_it_is_used_is_no_answer() -> None:
    """F-10: an upstream that closes idle connections after as long as a probe's interval is well."""

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_closed
        n_served = 0
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if n_served == 1 and n_closed < 2:
                    n_closed += 1
                    return  # it had idled since its first request
                n_served += 1
                body = b"" if head.startswith(b"HEAD") else b"ok"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + body)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(closes, "127.0.0.1", 0)
        async with server:
            pool = UpstreamPool(
                dialer_to(local(server.sockets[0].getsockname()[1])).dial,
                request(b"HEAD", b"/v1/models"),
                warm_connections=2,
                max_connections=4,
                warmup_timeout_s=5.0,
                on_change=lambda: None,
                on_warm_failure=lambda _: None,
            )
            pool.start()
            await eventually(lambda: pool.statistics().connections == 2 and not pool.statistics().streams)
            assert (await asked(Place(pool))).body == b"ok"
            pool.close()

    n_closed = 0
    run(main())
    assert n_closed


def test_busy_member_is_not_taken_for_one_that_is_gone() -> None:
    """All its connections are in use: that says nothing of its health. No connection at all does."""

    async def talk(where: Place) -> None:
        with upstream.playing(silent):
            waiting = asyncio.create_task(asked(where))
            await eventually(lambda: upstream.calls)
            with pytest.raises(VeloxError) as busy:
                await asked(where, timeout_s=SHORT_S)
            assert busy.value.reason is Reason.QUEUE_TIMEOUT and not isinstance(busy.value, UpstreamFailure)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def unreachable(port: int) -> None:
        pool = UpstreamPool(
            dialer_to(local(port), connect_timeout_s=LONG_S).dial,
            request(b"HEAD", b"/v1/models"),
            warm_connections=1,
            max_connections=1,
            warmup_timeout_s=5.0,
            on_change=lambda: None,
            on_warm_failure=lambda _: None,
        )
        with pytest.raises(UpstreamFailure) as failed:
            await asked(Place(pool), timeout_s=SHORT_S)
        assert failed.value.reason is Reason.UPSTREAM_CONNECT
        assert not pool.statistics().waiting
        pool.close()
        with pytest.raises(VeloxError) as over:
            await asked(Place(pool))
        assert over.value.reason is Reason.DRAINING

    with RecordingUpstream() as upstream:
        with_place(upstream, talk, max_connections=1)
    with full_listener() as port:
        run(unreachable(port))
