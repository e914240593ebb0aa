"""The tunnel itself, between two real connections: who is held, what an end becomes, how it is closed from here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import struct
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest
import uvloop
from websockets.frames import Frame, Opcode

from tests.patience import PATIENCE_S
from tests.sockets.net.core_ingress import eventually
from velox.errors import Reason, VeloxError
from velox.net.client.body_budget import BodyBudget
from velox.net.message_budget import FREE_BYTES
from velox.net.tunnel import CLOSE_S, READ_BYTES, UNSENT_BYTES, Asking, Tunnel, TunnelLimits
from velox.net.upstream.interface import ReadBuffer, UpstreamFailure
from velox.protocol.websocket.handshake import FrameScanner, close_frame
from velox.protocol.websocket.messages import MessageGate

LIMITS: Final = TunnelLimits(idle_s=60.0, client_write_s=60.0, upstream_write_s=60.0)
STOP: Final = VeloxError(Reason.DRAINING, "the gateway is shutting down")
BYE: Final = close_frame(1001, "bye")
TEXT: Final = Frame(Opcode.TEXT, b"hello").serialize(mask=False)
MASKED: Final = Frame(Opcode.TEXT, b"hello").serialize(mask=True)


def run(work: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 30))


@dataclass
class Setup:
    """A tunnel, the two peers' sockets, and what it ended with."""

    tunnel: Tunnel
    client: socket.socket
    upstream: socket.socket
    ended: asyncio.Future[VeloxError | None]
    lost: list[str] = field(default_factory=list)

    async def say(self, sock: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, data)

    async def hear(self, sock: socket.socket, n_bytes: int) -> bytes:
        """Read exactly so many bytes; fewer if the connection ends."""
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while len(got) < n_bytes:
                piece = await asyncio.wait_for(
                    asyncio.get_running_loop().sock_recv(sock, min(65536, n_bytes - len(got))), PATIENCE_S
                )
                if not piece:
                    break
                got += piece
        return got

    async def hear_all(self, sock: socket.socket) -> bytes:
        return await self.hear(sock, 1 << 40)

    async def end(self) -> VeloxError | None:
        return await asyncio.wait_for(asyncio.shield(self.ended), PATIENCE_S)


async def pair() -> tuple[socket.socket, asyncio.Transport]:
    """Return the peer's socket, and our transport at its other end."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as opened:
        theirs = opened.enter_context(socket.socket())
        for sock in (listener, theirs):  # so that a slow reader is one soon
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        theirs.connect(listener.getsockname())
        opened.pop_all()
        ours, _ = listener.accept()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    return theirs, transport


def wanted(message: bytes, has_asked: bool) -> Sequence[str]:
    return [message.decode()] if message.startswith(b"ask") and not has_asked else ()


@contextlib.asynccontextmanager
async def tunnel(
    limits: TunnelLimits = LIMITS,
    *,
    early: bytes = b"",
    rest: bytes = b"",
    bodies: BodyBudget | None = None,
    asks_others: Asking | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[Setup]:
    """Open one. early, rest: what the client and the upstream had sent before it was there.

    bodies: room for the client's messages, which are held until they are whole; None: they are not. asks_others: about
    each that begins with "ask".
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[VeloxError | None] = loop.create_future()
    made = Tunnel(ReadBuffer(READ_BYTES), limits, loop, ended.set_result, clock)
    client, client_transport = await pair()
    upstream, upstream_transport = await pair()
    setup = Setup(made, client, upstream, ended)
    made.upstream.take(upstream_transport, rest, lambda exc: setup.lost.append("upstream"))
    made.client.take(client_transport, early, lambda exc: setup.lost.append("client"))
    if bodies is not None:
        made.guard(MessageGate(wanted), None, bodies, asks_others)
    made.start()
    with client, upstream:
        yield setup
    made.abort()
    await setup.end()
    assert sorted(setup.lost) == ["client", "upstream"]


def test_bytes_that_came_before_it_come_first() -> None:
    """What the client sent ahead of the 101, and what the upstream sent with it."""

    async def work() -> None:
        async with tunnel(early=MASKED[:3], rest=TEXT[:2]) as t:
            await t.say(t.client, MASKED[3:])
            await t.say(t.upstream, TEXT[2:])
            assert await t.hear(t.upstream, len(MASKED)) == MASKED
            assert await t.hear(t.client, len(TEXT)) == TEXT
            assert (t.tunnel.client.n_bytes, t.tunnel.upstream.n_bytes) == (len(MASKED), len(TEXT))

    run(work)


def test_goodbye_reaches_both_sides_and_both_answers_end_it() -> None:
    """RFC 6455 §5.5.1 and §7.1.1: Close frames both ways, then both connections are closed; the error is as given."""

    async def work() -> None:
        async with tunnel() as t:
            t.tunnel.close(STOP, "bye")
            assert await t.hear(t.client, len(BYE)) == BYE
            to_upstream = await t.hear(t.upstream, len(BYE) + 4)
            scanner = FrameScanner()
            scanner.feed(to_upstream)
            assert to_upstream[1] & 0x80 and (scanner.between, scanner.close_code) == (True, 1001)
            assert not t.ended.done()

            await t.say(t.client, Frame(Opcode.CLOSE, b"\x03\xe9").serialize(mask=True))
            assert await t.hear(t.client, 1) == b""
            assert not t.ended.done()
            await t.say(t.upstream, Frame(Opcode.CLOSE, b"\x03\xe9").serialize(mask=False))
            assert await t.hear(t.upstream, 1) == b""
            t.client.close()
            t.upstream.close()
            assert await t.end() is STOP
            assert t.tunnel.close_code == 1001

    run(work)


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
def test_goodbye_waits_for_the_frame_that_is_open(cut: int) -> None:
    """Wherever the frame stands, in its head too: the Close frame follows its last byte, and nothing follows that."""

    async def work() -> None:
        async with tunnel() as t:
            await t.say(t.upstream, TEXT + TEXT[:cut])
            assert await t.hear(t.client, len(TEXT) + cut) == TEXT + TEXT[:cut]
            t.tunnel.close(STOP, "bye")
            assert len(await t.hear(t.upstream, len(BYE) + 4)) == len(BYE) + 4  # that direction is between frames
            await t.say(t.upstream, TEXT[cut:] + TEXT + Frame(Opcode.CLOSE, b"\x03\xe9").serialize(mask=False))
            await t.say(t.client, MASKED + Frame(Opcode.CLOSE, b"\x03\xe9").serialize(mask=True))

            assert await t.hear_all(t.client) == TEXT[cut:] + BYE
            assert await t.hear_all(t.upstream) == b""

    run(work)


def test_goodbye_after_a_sides_own_close_adds_nothing() -> None:
    """RFC 6455 §5.5.1: nothing follows a Close frame, not another one either."""

    async def work() -> None:
        async with tunnel() as t:
            theirs = Frame(Opcode.CLOSE, b"\x0f\xa0").serialize(mask=False)
            await t.say(t.upstream, theirs)
            assert await t.hear(t.client, len(theirs)) == theirs
            t.tunnel.close(STOP, "bye")
            await t.say(t.client, Frame(Opcode.CLOSE, b"\x0f\xa0").serialize(mask=True))

            assert await t.hear_all(t.client) == b""
            assert len(await t.hear_all(t.upstream)) == len(BYE) + 4
            assert await t.end() is STOP
            assert t.tunnel.close_code == 4000

    run(work)


@pytest.mark.parametrize("begun", [b"", b"\x82\x7e\xff\xff half a frame", b"\x82", b"\x82\xff" + b"\xff" * 8])
def test_goodbye_that_nobody_answers_ends_all_the_same(begun: bytes) -> None:
    """After CLOSE_S. A frame that never ends gets no Close frame inside."""

    async def work() -> None:
        async with tunnel() as t:
            if begun:
                await t.say(t.upstream, begun)
                assert await t.hear(t.client, len(begun)) == begun
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            t.tunnel.close(STOP, "bye")
            assert await t.end() is STOP
            assert loop.time() - began_s >= CLOSE_S * 0.9
            assert await t.hear_all(t.client) == (b"" if begun else BYE)

    run(work)


def test_goodbye_is_said_once() -> None:
    """A second close() changes nothing: neither the bytes nor what it ended with."""

    async def work() -> None:
        async with tunnel() as t:
            t.tunnel.close(STOP, "bye")
            t.tunnel.close(VeloxError(Reason.TUNNEL_TIMEOUT, "late"), "too late")
            t.client.shutdown(socket.SHUT_WR)
            t.upstream.shutdown(socket.SHUT_WR)
            assert await t.hear_all(t.client) == BYE
            assert await t.end() is STOP
            t.tunnel.close(VeloxError(Reason.TUNNEL_TIMEOUT, "late"), "too late")

    run(work)


@pytest.mark.parametrize(
    ("first", "said", "reason"),
    [
        ("client", b"", Reason.CLIENT_CLOSED),
        ("upstream", b"", Reason.UPSTREAM_TRUNCATED),
        ("client", MASKED, Reason.CLIENT_CLOSED),
        ("upstream", TEXT, Reason.UPSTREAM_TRUNCATED),
        ("client", Frame(Opcode.CLOSE, b"").serialize(mask=True), None),
        ("upstream", Frame(Opcode.CLOSE, b"\x03\xf3").serialize(mask=False), None),
        ("upstream", Frame(Opcode.CLOSE, b"\x03\xf3").serialize(mask=False)[:-1], Reason.UPSTREAM_TRUNCATED),
    ],
    # Not the frames: each is masked with bytes of chance.
    ids=["client", "upstream", "client, text", "upstream, text", "client, close", "upstream, close", "half a close"],
)  # fmt: skip
def test_end_of_one_side_is_the_others(first: str, said: bytes, reason: Reason | None) -> None:
    """What was said arrives, then the end, and to blame is who ended first; a whole Close frame blames nobody."""

    async def work() -> None:
        async with tunnel() as t:
            leaves, stays = (t.client, t.upstream) if first == "client" else (t.upstream, t.client)
            await t.say(leaves, said)
            leaves.close()
            assert await t.hear_all(stays) == said
            stays.close()
            error = await t.end()
            assert (None if error is None else error.reason) is reason
            assert isinstance(error, UpstreamFailure) == (reason is Reason.UPSTREAM_TRUNCATED)

    run(work)


@pytest.mark.parametrize("slow", ["client", "upstream"])
def test_side_that_reads_nothing_stops_the_other(slow: str) -> None:
    """No more is held than what may wait, and one read; then it goes on from where it stopped."""

    async def work() -> None:
        async with tunnel() as t:
            reads, writes = (t.client, t.upstream) if slow == "client" else (t.upstream, t.client)
            end = t.tunnel.client if slow == "client" else t.tunnel.upstream
            block, n_sent, most = bytes(range(256)) * 256, 0, 0
            while True:
                try:
                    await asyncio.wait_for(t.say(writes, block), 0.3)
                except TimeoutError:
                    break  # the kernels' buffers are full too
                n_sent += len(block)
                assert n_sent < 16 << 20, "nobody stops it"
                most = max(most, end.n_unsent)
            assert 0 < end.n_unsent <= most <= UNSENT_BYTES + READ_BYTES
            assert (await t.hear(reads, n_sent)).startswith(block)
            assert not t.ended.done()

    run(work)


@pytest.mark.parametrize(
    ("slow", "reason"), [("client", Reason.CLIENT_SLOW), ("upstream", Reason.UPSTREAM_IDLE_TIMEOUT)]
)
def test_side_that_takes_nothing_for_too_long_is_cut(slow: str, reason: Reason) -> None:
    """Both are; one that takes a little now and then is not."""

    async def work() -> None:
        async with tunnel(TunnelLimits(60.0, 0.0, 30.0, 30.0)) as t:
            reads, writes = (t.client, t.upstream) if slow == "client" else (t.upstream, t.client)
            end = t.tunnel.client if slow == "client" else t.tunnel.upstream

            async def fill() -> int:
                n_sent = 0
                is_full = False
                while not is_full:
                    try:
                        await asyncio.wait_for(t.say(writes, bytes(65536)), 0.3)
                        n_sent += 65536
                    except TimeoutError:  # or the machine is slow
                        is_full = end.n_unsent > 0
                    assert n_sent < 16 << 20, "nobody stops it"
                return n_sent

            n_sent = await fill()
            now_s = asyncio.get_running_loop().time()
            t.tunnel.check(now_s + 29)
            await t.hear(reads, n_sent // 2)
            t.tunnel.check(now_s + 31)
            assert not t.ended.done()
            await fill()
            # The first look sees what was taken meanwhile, if anything; from there on nothing is.
            t.tunnel.check(now_s + 40)
            t.tunnel.check(now_s + 71)
            error = await t.end()
            assert error is not None and error.reason is reason
            assert t.tunnel.close_code is None

    run(work)


@pytest.mark.parametrize("other", ["stays", "half closes", "leaves"])
@pytest.mark.parametrize(
    ("slow", "reason"), [("client", Reason.CLIENT_SLOW), ("upstream", Reason.UPSTREAM_IDLE_TIMEOUT)]
)
def test_side_that_takes_no_little_rest_is_cut(slow: str, reason: Reason, other: str) -> None:
    """Also where so little waits that the other side is read on, and where that has ended."""

    async def work() -> None:
        async with tunnel(TunnelLimits(1e6, 0.0, 30.0, 30.0)) as t:
            writes = t.upstream if slow == "client" else t.client
            end = t.tunnel.client if slow == "client" else t.tunnel.upstream
            while not end.n_unsent:
                n_bytes = end.peer.n_bytes
                await t.say(writes, bytes(8192))
                await eventually(lambda n_bytes=n_bytes: end.peer.n_bytes == n_bytes + 8192)
                assert n_bytes < 16 << 20, "the kernels' buffers have an end"
            assert end.n_unsent < UNSENT_BYTES
            if other == "half closes":
                writes.shutdown(socket.SHUT_WR)
            elif other == "leaves":
                writes.close()
            now_s = asyncio.get_running_loop().time()
            t.tunnel.check(now_s)
            t.tunnel.check(now_s + 29)
            assert not t.ended.done()
            t.tunnel.check(now_s + 31)
            error = await t.end()
            assert error is not None and error.reason is reason

    run(work)


class Waiting(asyncio.Transport):
    """A transport with bytes that wait for the kernel, which has some of its own."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.is_aborted = False

    def is_reading(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1000

    def abort(self) -> None:
        self.is_aborted = True


def test_side_that_takes_what_the_kernel_holds_is_not_stalled() -> None:
    """The kernel gives room back in large pieces: a slow reader would seem to take nothing in between."""

    async def work() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for _ in range(4):
                ours.send(bytes(1000))
            loop = asyncio.get_running_loop()
            made = Tunnel(ReadBuffer(READ_BYTES), LIMITS, loop, lambda error: None)
            client, now_s = Waiting(ours), loop.time()
            made.client.take(client, b"")
            for seconds in (0.0, 50.0, 100.0, 150.0, 200.0):
                made.moved_s = now_s + seconds
                made.check(now_s + seconds)
                assert not client.is_aborted
                if seconds < 200.0:
                    theirs.recv(1000)
            made.check(now_s + 261.0)
            assert client.is_aborted

    run(work)


def test_times_are_counted_from_the_last_byte_and_from_the_first() -> None:
    """idle_s from the last byte of either side, total_s from the 101."""

    async def work() -> None:
        async with tunnel(TunnelLimits(30.0, 100.0, 60.0, 60.0)) as t:
            now_s = asyncio.get_running_loop().time()
            t.tunnel.check(now_s + 29)
            t.tunnel.moved_s = now_s + 80
            t.tunnel.check(now_s + 99)
            assert not t.tunnel.goodbye
            t.tunnel.check(now_s + 101)
            assert "longest" in t.tunnel.goodbye

        async with tunnel(TunnelLimits(30.0, 0.0, 60.0, 60.0)) as t:
            t.tunnel.check(asyncio.get_running_loop().time() + 31)
            assert (await t.hear(t.client, 4))[:1] == b"\x88"
            error = await t.end()
            assert error is not None and error.reason is Reason.TUNNEL_TIMEOUT

    run(work)


def test_half_closed_tunnel_ends_in_its_time() -> None:
    """A side that ignores the other's end is left after 2 s, but not before it has taken what is on its way."""

    async def work() -> None:
        async with tunnel() as t:
            loop = asyncio.get_running_loop()
            await t.say(t.upstream, bytes(20 << 10))
            t.upstream.shutdown(socket.SHUT_WR)
            assert await t.hear_all(t.client) == bytes(20 << 10)
            t.tunnel.check(loop.time() + 1.5)
            await t.say(t.client, MASKED)
            assert await t.hear(t.upstream, len(MASKED)) == MASKED
            t.tunnel.check(loop.time() + 2.5)
            error = await t.end()
            assert error is not None and error.reason is Reason.UPSTREAM_TRUNCATED

    run(work)


# -- messages that are held until they are whole --------------------------------------------------------------------

LARGE: Final = Frame(Opcode.BINARY, bytes(1 << 20)).serialize(mask=True)


def budget() -> BodyBudget:
    """Return one that refuses who waits as soon as it is asked to."""
    return BodyBudget(2 << 20, 0.0, asyncio.get_running_loop().time)


def test_held_message_takes_of_the_budget_until_the_upstream_has_it() -> None:
    """All that is held of it, and then what of it waits to be sent."""

    async def work() -> None:
        bodies = budget()
        async with tunnel(bodies=bodies) as t:
            await t.say(t.client, LARGE[:-1])
            await eventually(lambda: bodies.taken_bytes == len(LARGE) - 1 - FREE_BYTES)
            await t.say(t.client, LARGE[-1:])
            await eventually(lambda: t.tunnel.client.n_bytes == len(LARGE))
            assert bodies.taken_bytes > len(LARGE) // 2, "the upstream reads nothing"
            assert await t.hear(t.upstream, len(LARGE)) == LARGE
            await eventually(lambda: not bodies.taken_bytes)

    run(work)


def test_client_whose_message_has_no_room_is_not_read() -> None:
    """It goes on when some comes; when none comes in time, both sides are closed with 1013."""

    async def work() -> None:
        bodies = budget()
        for comes in (True, False):
            async with tunnel(bodies=bodies) as t:
                assert bodies.take_now(2 << 20)
                saying = asyncio.create_task(t.say(t.client, LARGE))
                await eventually(lambda: "waiting=1" in repr(bodies))
                assert t.tunnel.client.n_bytes <= FREE_BYTES + READ_BYTES
                if comes:
                    bodies.give(2 << 20)
                    assert await t.hear(t.upstream, len(LARGE)) == LARGE
                else:
                    bodies.expire()
                    assert int.from_bytes((await t.hear(t.client, 4))[2:]) == 1013
                    error = await t.end()
                    assert error is not None and error.reason is Reason.OVERLOAD_MEMORY
                    bodies.give(2 << 20)
                saying.cancel()
            assert bodies.taken_bytes == 0

    run(work)


def test_client_that_leaves_gives_its_room_back() -> None:
    """In the midst of a message."""

    async def work() -> None:
        bodies = budget()
        async with tunnel(bodies=bodies) as t:
            await t.say(t.client, LARGE[: len(LARGE) // 2])
            await eventually(lambda: bodies.taken_bytes > len(LARGE) // 4)
            t.client.close()
            await eventually(lambda: not bodies.taken_bytes)

    run(work)


def test_held_message_that_never_ends_closes_both_sides() -> None:
    """As a body that is silent for too long is refused: others wait for its room."""

    async def work() -> None:
        async with tunnel(bodies=budget()) as t:
            await t.say(t.client, MASKED + LARGE[:1000])
            await eventually(lambda: t.tunnel.client.n_bytes == len(MASKED) + 1000)
            now_s = asyncio.get_running_loop().time()
            t.tunnel.check(now_s + LIMITS.message_idle_s - 1.0)
            assert t.tunnel.close_code is None
            t.tunnel.check(now_s + LIMITS.message_idle_s + 1.0)
            error = await t.end()
            assert error is not None and error.reason is Reason.BODY_TIMEOUT
            assert t.tunnel.close_code == 1008

    run(work)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_read_that_takes_long_is_the_last_of_its_turn(is_guarded: bool) -> None:
    """Ten thousand small frames are one read: the next one is shorter, and comes in the next turn of the loop."""

    async def work() -> None:
        ticks = itertools.count()
        bodies = BodyBudget(1 << 20, 5.0, lambda: 0.0) if is_guarded else None
        async with tunnel(clock=lambda: next(ticks) * 0.005, bodies=bodies) as t:
            end = t.tunnel.client
            transport = end._transport
            assert transport is not None
            first = end.get_buffer(-1)
            n_bytes = len(first) // len(MASKED) * len(MASKED)
            first[:n_bytes] = MASKED * (n_bytes // len(MASKED))
            end.buffer_updated(n_bytes)
            assert not transport.is_reading() and len(end.get_buffer(-1)) < len(first)
            end.peer.resume_writing()
            assert not transport.is_reading(), "nor because the other side takes more"
            await asyncio.sleep(0)
            assert transport.is_reading()
            await t.say(t.client, MASKED * 2000)
            assert await t.hear(t.upstream, n_bytes + 2000 * len(MASKED)) == MASKED * (n_bytes // len(MASKED) + 2000)

    run(work)


# -- messages about which others are asked ------------------------------------------------------------------------

ASK: Final = Frame(Opcode.TEXT, b"ask").serialize(mask=True)


class Others:
    """Who is asked, and says nothing until it is told to."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.n_left = 0  # questions that nobody waits for any more
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, names: Sequence[str]) -> None:
        """See Asking."""
        self.asked.append(list(names))
        try:
            await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            self.n_left += 1
            raise

    def answer(self) -> None:
        """Answer what was asked; the next question waits again."""
        self._answer.set_result(None)
        self._answer = asyncio.get_running_loop().create_future()


def test_message_waits_for_its_answer_and_nothing_overtakes_it() -> None:
    """Meanwhile its sender is not read, and what comes from the other side passes. The next question is its own."""

    async def work() -> None:
        others, bodies = Others(), budget()
        async with tunnel(bodies=bodies, asks_others=others.ask, early=MASKED + ASK) as t:
            assert await t.hear(t.upstream, len(MASKED)) == MASKED
            saying = asyncio.create_task(t.say(t.client, MASKED * 2 + ASK + LARGE))
            await t.say(t.upstream, TEXT)
            assert await t.hear(t.client, len(TEXT)) == TEXT
            assert (others.asked, t.tunnel.client.n_bytes) == ([["ask"]], len(MASKED + ASK))

            others.answer()
            assert await t.hear(t.upstream, len(ASK + MASKED * 2)) == ASK + MASKED * 2
            await eventually(lambda: others.asked == [["ask"], ["ask"]])
            assert t.tunnel.client.n_bytes <= len(MASKED * 3 + ASK * 2) + FREE_BYTES + READ_BYTES, "it is read on"
            others.answer()
            assert await t.hear(t.upstream, len(ASK + LARGE)) == ASK + LARGE
            await saying
            await eventually(lambda: not bodies.taken_bytes)

    run(work)


def cut_by_upstream(t: Setup) -> None:
    t.upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
    t.upstream.close()


def closed_by_us(t: Setup) -> None:
    t.tunnel.close(STOP, "bye")


def too_late(t: Setup) -> None:
    t.tunnel.check(asyncio.get_running_loop().time() + LIMITS.message_idle_s + 1.0)


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (cut_by_upstream, Reason.UPSTREAM_TRUNCATED),
        (closed_by_us, Reason.DRAINING),
        (too_late, Reason.TUNNEL_TIMEOUT),
    ],
)
def test_end_while_a_message_waits_ends_the_question(cut: Callable[[Setup], None], reason: Reason) -> None:
    """Nothing of the message goes up, and with the collector off nothing of the tunnel stays in memory."""

    async def work() -> None:
        others, bodies = Others(), budget()
        async with tunnel(bodies=bodies, asks_others=others.ask) as t:
            await t.say(t.client, ASK)
            await eventually(lambda: others.asked == [["ask"]])
            t.tunnel.check(asyncio.get_running_loop().time() + LIMITS.message_idle_s - 1.0)
            assert t.tunnel.close_code is None
            cut(t)
            await eventually(lambda: others.n_left == 1)
            t.client.close()
            if cut is not cut_by_upstream:
                heard = await t.hear_all(t.upstream)
                assert ASK not in heard
            error = await t.end()
            assert error is not None and error.reason is reason
            watched = weakref.ref(t.tunnel)
            end = weakref.ref(t.tunnel.client)
        assert bodies.taken_bytes == 0
        del t, error
        await asyncio.sleep(0)
        assert (watched(), end()) == (None, None)

    gc.collect()
    gc.disable()
    try:
        run(work)
    finally:
        gc.enable()


def test_client_that_leaves_while_its_message_waits_has_sent_it() -> None:
    """It is not read meanwhile: the message goes up when its answer is there, and the end follows it."""

    async def work() -> None:
        others = Others()
        async with tunnel(bodies=budget(), asks_others=others.ask) as t:
            await t.say(t.client, ASK + MASKED)
            await eventually(lambda: others.asked == [["ask"]])
            t.client.close()
            others.answer()
            assert await t.hear_all(t.upstream) == ASK + MASKED
            t.upstream.close()
            error = await t.end()
            assert error is not None and error.reason is Reason.CLIENT_CLOSED

    run(work)


def test_question_that_fails_closes_both_sides() -> None:
    """By a fault of ours, which is reported: nobody can say whose it is that the message names."""

    async def fails(names: Sequence[str]) -> None:
        raise RuntimeError("a fault")

    async def work() -> None:
        seen: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        async with tunnel(bodies=budget(), asks_others=fails) as t:
            await t.say(t.client, ASK)
            assert int.from_bytes((await t.hear(t.client, 4))[2:]) == 1013
            assert ASK not in await t.hear_all(t.upstream)
            error = await t.end()
            assert (seen, error and error.reason) == (["a fault"], Reason.INTERNAL)

    run(work)
