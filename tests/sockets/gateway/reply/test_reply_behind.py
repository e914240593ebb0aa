"""A reply of which a filter has more to do, or to give, than one turn of the loop is to take (reply.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.sockets.gateway.core_gateway import FakeClient, end_of
from tests.sockets.gateway.reply.test_reply import SSE, Stream, body_of, head, reply_for
from velox.errors import Reason, VeloxError
from velox.gateway.limits.usage_drain import DrainRules, UsageDrain
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.headers import NO_ATTEMPTS
from velox.gateway.reply.reply import Reply
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.types import Answers

JSON: Final = (b"content-type", b"application/json")
PIECES: Final = (b"one ", b"two ", b"three ")
WAIT_S: Final = 20.0


class Slow(ReplyFilter):
    """Holds a head; of data with a `#` it makes three pieces, beside the loop, once it may.

    thread: where that was done. fails: in place of them.
    """

    def __init__(self, *, fails: Exception | None = None) -> None:
        super().__init__()
        self.may_end: Final = threading.Event()
        self.thread: int | None = None
        self._fails: Final = fails
        self._head: ReplyHead | None = None
        self._left: list[bytes] = []

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        self._head = head
        return None

    def feed(self, data: bytes, end: bool) -> bytes:
        assert not self.is_behind, "it is fed in its turn"
        if b"#" in data:
            self.is_behind = self.has_work = True
            return b""
        self.released = self._head
        return data

    def work(self) -> None:
        self.may_end.wait(WAIT_S)
        self.thread = threading.get_ident()
        self.has_work = False
        self._left = list(PIECES)

    def go_on(self) -> bytes:
        if self._fails is not None:
            raise self._fails
        self.released = self._head
        piece = self._left.pop(0)
        self.is_behind = bool(self._left)
        return piece


class Paused(Stream):
    """An upstream's stream that notes whether it may bring more."""

    is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


def on_a_loop(test: Callable[[FakeClient], Awaitable[None]]) -> None:
    """Run a test on a loop whose time passes, as threads take some."""

    async def main() -> None:
        await asyncio.wait_for(test(FakeClient()), WAIT_S)

    asyncio.run(main())


async def turns() -> None:
    """Let the loop do what is to be done by now."""
    for _ in range(10):
        await asyncio.sleep(0)


async def caught_up(reply: Reply) -> None:
    while reply.is_behind:
        await asyncio.sleep(0)


def test_whole_reply_is_made_in_a_thread() -> None:
    """X7: the head waits, the upstream's stream is over, and the pieces go out each in a turn of its own."""

    async def test(client: FakeClient) -> None:
        slow, stream = Slow(), Stream()
        reply = reply_for(client, filters=[slow])
        reply.attach(stream)
        reply.on_reply(head(200, JSON), b"#", False)
        reply.on_reply(None, b"", True)
        await turns()
        assert (client.written, reply.started, reply.is_behind) == (b"", False, True)

        slow.may_end.set()
        await end_of(reply)
        assert body_of(client) == b"".join(PIECES)
        assert slow.thread not in (None, threading.get_ident())
        reply.detach()
        assert stream.n_cancelled == 0 and not reply.is_behind

    on_a_loop(test)


def test_stream_waits_and_goes_on_in_order() -> None:
    """A large event is made beside the loop: the upstream is held up, and what had come behind it follows it."""

    async def test(client: FakeClient) -> None:
        slow, stream = Slow(), Paused()
        reply = reply_for(client, filters=[slow])
        reply.attach(stream)
        reply.on_reply(head(200, SSE), b"zero ", False)
        reply.on_reply(None, b"#", False)
        assert stream.is_paused and reply.is_behind
        reply.on_reply(None, b"four ", False)
        reply.on_reply(None, b"#", False)
        reply.resume()
        assert stream.is_paused and body_of(client) == b"zero "

        slow.may_end.set()
        await caught_up(reply)
        assert not stream.is_paused
        reply.on_reply(None, b"end", True)
        await end_of(reply)
        made = b"".join(PIECES)
        assert body_of(client) == b"zero " + made + b"four " + made + b"end"

    on_a_loop(test)


def test_stream_that_is_attached_late_is_held_up_too() -> None:
    async def test(client: FakeClient) -> None:
        slow, stream = Slow(), Paused()
        reply = reply_for(client, filters=[slow])
        reply.on_reply(head(200, SSE), b"#", False)
        reply.attach(stream)
        assert stream.is_paused
        slow.may_end.set()
        await caught_up(reply)
        assert not stream.is_paused

    on_a_loop(test)


def test_failure_of_what_is_made_is_the_attempt_s() -> None:
    """Nothing has gone to the client: another upstream may be asked."""

    async def test(client: FakeClient) -> None:
        slow = Slow(fails=UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "too many"))
        slow.may_end.set()
        reply = reply_for(client, filters=[slow])
        reply.on_reply(head(200, JSON), b"#", True)
        with pytest.raises(UpstreamFailure, match="too many"):
            await end_of(reply)
        reply.detach()
        assert (client.written, reply.started, reply.is_behind) == (b"", False, False)

    on_a_loop(test)


def test_bug_of_a_filter_ends_the_reply() -> None:
    """No exchange waits for ever because of one."""

    async def test(client: FakeClient) -> None:
        slow = Slow(fails=ZeroDivisionError())
        slow.may_end.set()
        reply = reply_for(client, filters=[slow])
        reply.on_reply(head(200, JSON), b"#", True)
        with pytest.raises(ZeroDivisionError):
            await end_of(reply)

    on_a_loop(test)


def test_what_is_made_for_nobody_is_dropped() -> None:
    """A deadline, or a client that left: the next attempt's reply, if there is one, has nothing of it."""

    async def test(client: FakeClient) -> None:
        slow = Slow()
        reply = reply_for(client, filters=[slow])
        reply.on_reply(head(200, JSON), b"#", True)
        await turns()
        reply.on_failure(VeloxError(Reason.UPSTREAM_TTFB_TIMEOUT, "late"))
        with pytest.raises(VeloxError, match="late"):
            await end_of(reply)
        reply.detach()
        slow.may_end.set()

        slow.is_behind = False
        reply.begin(None, NO_ATTEMPTS)
        reply.on_reply(head(200, JSON), b"second", True)
        await end_of(reply)
        while slow.thread is None:
            await asyncio.sleep(0)
        await turns()
        assert body_of(client) == b"second"

    on_a_loop(test)


def test_drain_takes_the_rest_of_what_is_made() -> None:
    """The client leaves while it is made: what it holds of the usage is read all the same."""

    async def test(client: FakeClient) -> None:
        slow = Slow()
        reply = reply_for(client, filters=[slow])
        reply.on_reply(head(200, SSE), b"zero ", False)
        reply.on_reply(None, b"#", True)
        reply.client_gone()
        drain = UsageDrain(DrainRules("all", 5.0, 1000, 1), 0.0, reply.bytes_out, lambda: None)
        reply.drain(drain)
        slow.may_end.set()
        await end_of(reply)
        assert reply.bytes_out == len(b"zero " + b"".join(PIECES))
        assert body_of(client) == b"zero "

    on_a_loop(test)


def test_long_preludes_of_a_stream_pass_in_turns() -> None:
    """Then nobody reads on, and lone chunks go straight to the client."""

    async def test(client: FakeClient) -> None:
        prelude = b'data: {"type":"response.created","x":"%b"}\n\n' % (b"x" * 400_000)
        event = b'data: {"type":"response.output_text.delta"}\n\n'
        reply = reply_for(client, answers=Answers.RESPONSE)
        reply.on_reply(head(200, SSE), prelude[:200_000], False)
        reply.on_reply(None, prelude[200_000:], False)
        assert client.written == b""
        reply.on_reply(None, event, False)
        assert reply.started and reply.is_behind
        assert not reply.on_chunk(b"1\r\n!\r\n", 3)
        reply.on_reply(None, event, False)
        await caught_up(reply)
        assert body_of(client) == prelude + event * 2
        assert reply.on_chunk(b"%x\r\n%b\r\n" % (len(event), event), 4)
        reply.on_reply(None, b"", True)
        await end_of(reply)
        assert body_of(client) == prelude + event * 3

    on_a_loop(test)
