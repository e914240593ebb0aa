"""What an exchange leaves behind, and what it never hands to the next one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Final, NoReturn

import pytest
import uvloop

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_gateway import FakeClient, end_of, gateway, request_head
from velox.errors import Reason
from velox.gateway.reply.headers import NO_ATTEMPTS, ReplyFields
from velox.gateway.reply.reply import Reply
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import ConnectionOwner, ReplySink, UpstreamFailure, UpstreamRequest
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.response import lone_chunk
from velox.types import ANYONE


class Body(bytearray):
    """A request's body whose end can be seen."""


async def refuse(_owner: ConnectionOwner) -> NoReturn:
    raise UpstreamFailure(Reason.UPSTREAM_CONNECT, "refused", unprocessed=Retry.CONNECT)


class Upstream:
    """One connection that answers each request as `script` says, in the turn after it came."""

    is_settled = True

    def __init__(self, *script: tuple[ReplyHead | None, bytes, bool] | UpstreamFailure) -> None:
        self.queued = False
        self.is_closed = False
        self.n_streams = 0
        self.n_unsent = 0
        self.n_begun = 0
        self.address = ""
        self.end: ConnectionEnd | None = None
        self._script: Final = script

    @property
    def has_room(self) -> bool:
        return self.n_streams == 0

    @property
    def n_rooms(self) -> int:
        return 1 - self.n_streams

    async def dial(self, _owner: ConnectionOwner) -> Upstream:
        return self

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Upstream:
        self.n_streams = 1
        for step in self._script:
            if isinstance(step, UpstreamFailure):
                asyncio.get_running_loop().call_soon(sink.on_failure, step)
            else:
                asyncio.get_running_loop().call_soon(sink.on_reply, *step)
        return self

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None:
        self.n_streams = 0

    def retire(self, cause: ConnectionEnd) -> None: ...

    def check_alive(self, now_s: float, silence_s: float) -> None: ...

    def abort(self, cause: ConnectionEnd) -> None:
        self.is_closed = True


def failure() -> UpstreamFailure:
    return UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "cut")


def head(status: int = 200, *headers: Header, length: int | None = None) -> ReplyHead:
    return ReplyHead.of(status, list(headers), length)


@pytest.mark.parametrize("ends", ["whole", "cut", "refused", "redirect", "gone"])
def test_body_is_freed_when_its_exchange_has_ended(ends: str) -> None:
    """A reference cycle would hold up to 64 MiB until the collector comes by, long after the budget forgot them."""

    async def main() -> None:
        upstreams = {
            "whole": Upstream((head(), b"ok", True)),
            "cut": Upstream((head(), b"some", False), failure()),
            "refused": Upstream(),
            "redirect": Upstream((head(302), b"", False)),
            "gone": Upstream((head(), b"some" * 100, False)),
        }
        upstream = upstreams[ends]
        with gateway(refuse if ends == "refused" else upstream.dial) as made:
            client = FakeClient()
            body = Body(b'{"model":"m","messages":[]}')
            watched = weakref.ref(body)
            exchange = made.submit(client, request_head(), body, ANYONE)
            assert exchange is not None
            del body
            if ends == "gone":
                async with asyncio.timeout(PATIENCE_S):
                    while not client.written:
                        await asyncio.sleep(0)
                exchange.client_gone()
            else:
                async with asyncio.timeout(PATIENCE_S):
                    await client.finished.wait()
            del exchange
            for _ in range(5):
                await asyncio.sleep(0)
            assert made.n_active == 0
            assert watched() is None

    gc.collect()
    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


def reply_for(client: FakeClient, method: bytes = b"GET", *, http_1_0: bool = False) -> Reply:
    request = request_head(method, http_1_0=http_1_0)
    client.is_http_1_0 = http_1_0
    reply = Reply(client, request, b"vx-1", asyncio.get_running_loop(), ReplyFields())
    reply.begin(None, NO_ATTEMPTS)
    return reply


class Stream:
    """An upstream connection as the stream of its one exchange."""

    def __init__(self) -> None:
        self.n_cancelled = 0

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None:
        self.n_cancelled += 1


def test_late_end_of_a_reply_that_timed_out_frees_its_stream() -> None:
    """An HTTP/1.1 connection whose exchange has ended may carry another one before the first has noticed."""

    async def main() -> None:
        reply, stream = reply_for(FakeClient()), Stream()
        reply.attach(stream)
        reply.on_failure(failure())
        reply.on_reply(head(), b"late", True)
        reply.detach()
        assert stream.n_cancelled == 0
        with pytest.raises(UpstreamFailure):
            await end_of(reply)

    uvloop.run(main())


@pytest.mark.parametrize(
    ("length", "http_1_0", "tells"), [(None, False, True), (None, True, True), (1000, False, False)]
)
def test_cut_stream_tells_of_its_error_only_where_that_can_not_make_it_whole(
    length: int | None, http_1_0: bool, tells: bool
) -> None:
    """With an announced length, an error event would be counted as the bytes that are missing."""

    async def main() -> None:
        client = FakeClient()
        reply = reply_for(client, http_1_0=http_1_0)
        reply.on_reply(head(200, (b"content-type", b"text/event-stream"), length=length), b"data: 1\n\n", False)
        reply.cut(failure())
        assert [(b"upstream_truncated" in last, reset) for last, reset in client.cuts] == [(tells, http_1_0)]

    uvloop.run(main())


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_body_that_may_not_be_is_not_passed_on(method: bytes, status: int) -> None:
    """RFC 9110 §6.4.1: the client would read it as its next reply."""

    async def main() -> None:
        client = FakeClient()
        reply = reply_for(client, method)
        reply.on_reply(head(status), b"HTTP/1.1 200 smuggled\r\n", False)
        reply.on_reply(None, b"HTTP/1.1 200 smuggled\r\n", True)
        assert client.written.endswith(b"\r\n\r\n") and b"smuggled" not in client.written

    uvloop.run(main())


class HastyClient(FakeClient):
    """Leaves as soon as it has its answer, before the exchange had a turn to notice that it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.leave: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        super().write(data)
        asyncio.get_running_loop().call_soon(self.leave)


def test_client_that_leaves_with_its_whole_answer_was_served() -> None:
    """A reply that is whole ends as such, however soon its client closes: it is no `client_closed`."""

    async def main() -> None:
        with gateway(Upstream((head(), b"ok", True)).dial) as made:
            client = HastyClient()
            exchange = made.submit(client, request_head(), Body(b'{"model":"m"}'), ANYONE)
            assert exchange is not None
            client.leave = exchange.client_gone
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert client.written.endswith(b"ok")
            assert made.n_active == 0

    uvloop.run(main())


def test_chunk_that_comes_in_the_turn_in_which_its_client_left_is_not_written() -> None:
    """The exchange ends a turn later, and the client's transport is closed already: uvloop's raises."""

    async def main() -> None:
        event = b'data: {"id":"1","choices":[]}\n\n'
        chunk = http1_write.chunk(event)
        sse = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
        with gateway(Upstream((sse, event, False)).dial) as made:
            client = FakeClient()
            exchange = made.submit(client, request_head(), Body(b'{"model":"m"}'), ANYONE)
            assert exchange is not None
            async with asyncio.timeout(PATIENCE_S):
                while not client.written:
                    await asyncio.sleep(0)
            assert exchange.reply is not None
            assert exchange.reply.on_chunk(chunk, lone_chunk(chunk))
            written = client.written
            exchange.client_gone()
            assert not exchange.reply.on_chunk(chunk, lone_chunk(chunk)) and client.written == written
            for _ in range(5):
                await asyncio.sleep(0)
            assert made.n_active == 0

    uvloop.run(main())
