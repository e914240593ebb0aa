"""Two workers, one of which has a call that clients of the other one join: over a real socket, with any end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import socket
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.sockets.gateway.core_attempts import run
from velox.errors import Reason, VeloxError
from velox.gateway.join.link import LinkClient
from velox.gateway.join.peers import Peers
from velox.heads import ReplyHead
from velox.policy.join.frames import (
    QUESTION_BYTES,
    FrameKind,
    Question,
    Wanted,
    frame_bytes,
    head_bytes,
    question_bytes,
)
from velox.policy.join.joined_call import CALL_BYTES, FollowerAlone, JoinedCall, JoinedPiece
from velox.policy.join.table import JoinBounds, JoinTable
from velox.shm.join_index import JoinIndex, JoinMemory, JoinPlace

KEY: Final = bytes(range(32))
NAME: Final = bytes(range(32, 64))
HEAD: Final = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
CUT: Final = VeloxError(Reason.UPSTREAM_RESET, "gone")


class Worker:
    def __init__(self, memory: JoinMemory, block: int, all_bytes: int = 1 << 24, uid: int | None = None) -> None:
        self.table: Final = JoinTable(JoinBounds(1 << 20, all_bytes))
        self.index: Final = JoinIndex(memory, block)
        self.peers: Final = Peers(self.index, self.table, asyncio.get_running_loop(), uid=uid)

    def begin(self, key: bytes = KEY, name: bytes | None = None) -> JoinedCall:
        call = self.table.begin("a", key, name, may_retry=True)
        assert call is not None
        self.peers.publish(call, (key,) if name is None else (key, name))
        return call

    async def join(self, wanted: Wanted = Wanted.EQUAL, key: bytes = KEY, name: bytes | None = None) -> FrameKind:
        places = self.peers.find(wanted, key, name)
        begin = self.table.begin
        return await self.peers.join(places, wanted, key, name, lambda: begin("a", key, name, may_retry=True))


class Reader:
    """A follower that reads all that comes."""

    def __init__(self, call: JoinedCall | None) -> None:
        assert call is not None
        self._moved: Final = asyncio.Event()
        self.follower: Final = call.join(self._moved.set)

    async def read(self) -> bytes | FollowerAlone:
        data = b""
        while True:
            piece = self.follower.next()
            if isinstance(piece, FollowerAlone):
                self.follower.leave()
                return piece
            if isinstance(piece, JoinedPiece):
                data += piece.data
                if piece.end:
                    self.follower.leave()
                    return data
            else:
                await self._moved.wait()
                self._moved.clear()


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Worker, Worker]]:
    memory = JoinMemory(4)
    has, asks = Worker(memory, 0), Worker(memory, 3)
    try:
        yield has, asks
        async with asyncio.timeout(30):
            while has.peers._links or asks.peers._links:
                await asyncio.sleep(0)
        assert (has.table.n_taken, asks.table.n_taken) == (0, 0)
    finally:
        has.peers.close()
        asks.peers.close()
        await asyncio.sleep(0)


def test_call_is_followed_from_its_first_byte_and_both_ends_are_left_empty() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            call.begin(HEAD, is_sse=True)
            call.feed(b"one ", False)
            assert await asks.join() is FrameKind.JOINED
            reader = Reader(asks.table.find_equal(KEY))
            again = Reader(asks.table.find_equal(KEY))
            assert call.n_followers == 0 or call.n_followers == 1
            reading = asyncio.gather(reader.read(), again.read())
            await asyncio.sleep(0)
            call.feed(b"two", True)
            assert await reading == [b"one two", b"one two"]
            call.close()
            assert asks.peers.find(Wanted.EQUAL, KEY, None) == []
            for each in asks.table._calls.copy().values():
                for mirrored in each.copy():
                    mirrored.close()

    run(main)


@pytest.mark.parametrize("is_sse", [True, False])
@pytest.mark.parametrize("n_bytes", [10, 900_000])
def test_answer_that_is_whole_already_is_had_by_all_that_ask_at_once(n_bytes: int, is_sse: bool) -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin(name=NAME)
            call.begin(HEAD, is_sse=is_sse)
            call.feed(b"x" * n_bytes, True)

            async def one() -> bytes | FollowerAlone:
                assert await asks.join(Wanted.NAMED, name=NAME) is FrameKind.JOINED
                return await Reader(asks.table.find_named(NAME, KEY)).read()

            assert set(await asyncio.gather(*(one() for _ in range(5)))) == {b"x" * n_bytes}
            assert await asks.join(Wanted.NAMED, key=b"k" * 32, name=NAME) is FrameKind.MISMATCH
            call.close()
            while asks.table.n_taken:
                await asyncio.sleep(0.01)

    run(main)


def test_last_follower_elsewhere_that_leaves_is_seen_where_the_call_is() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call, told = has.begin(), asyncio.Event()
            call.on_empty = lambda is_empty: told.set() if is_empty else None
            assert await asks.join() is FrameKind.JOINED
            follower = Reader(asks.table.find_equal(KEY)).follower
            follower.leave()
            await told.wait()
            assert call.n_followers == 0
            call.on_empty = None
            call.close()

    run(main)


def test_failure_and_end_of_the_worker_leave_each_to_itself() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            assert await asks.join() is FrameKind.JOINED
            reader = Reader(asks.table.find_equal(KEY))
            reading = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0)
            call.fail(CUT)
            assert await reading is FollowerAlone.ALONE
            call = has.begin()
            assert await asks.join() is FrameKind.JOINED
            reader = Reader(asks.table.find_equal(KEY))
            call.begin(HEAD, is_sse=True)
            call.feed(b"some", False)
            while not isinstance(piece := reader.follower.next(), JoinedPiece):
                await asyncio.sleep(0)
            assert piece.data == b"some"
            for each in tuple(has.peers._links):
                each.close()  # as a kill does
            with pytest.raises(VeloxError):
                await reader.read()
            reader.follower.leave()
            call.close()
            call.fail(CUT)

    run(main)


def test_slow_reader_elsewhere_is_waited_for_by_the_socket_and_then_cut_off() -> None:
    """It holds up nobody, and the memory of both workers stays in its bound."""

    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            here = Reader(call)
            assert await asks.join() is FrameKind.JOINED
            slow = Reader(asks.table.find_equal(KEY))
            call.begin(HEAD, is_sse=True)
            n_sent = 0
            while call.n_followers < 2:
                await asyncio.sleep(0)
            while call.n_followers == 2:
                call.feed(b"x" * 60_000, False)
                n_sent += 60_000
                while here.follower.next() is not None:
                    pass
                assert has.table.n_taken <= (1 << 20) + CALL_BYTES
                assert asks.table.n_taken <= (1 << 20) + CALL_BYTES
                await asyncio.sleep(0)
            assert n_sent < 30_000_000
            with pytest.raises(VeloxError):
                await slow.read()
            slow.follower.leave()
            here.follower.leave()
            call.fail(CUT)

    run(main)


def test_stranger_learns_nothing() -> None:
    """Who does not know the token gets the answer of a call that is not there, and garbage nothing at all."""

    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            (place,) = asks.peers.find(Wanted.EQUAL, KEY, None)
            right = question_bytes(Question(place.token, Wanted.EQUAL, KEY, None))
            wrong = question_bytes(Question(b"x" * 16, Wanted.EQUAL, KEY, None))
            answers = []
            for asked in (wrong, right[:16] + b"\xff" + right[17:], b"\0" * QUESTION_BYTES):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.setblocking(False)
                sock.connect(place.name)
                reader, writer = await asyncio.open_unix_connection(sock=sock)
                writer.write(asked)
                answers.append(await reader.read())
                writer.close()
                await writer.wait_closed()
            assert set(answers) == {bytes(5)}
            assert call.n_joined == 0
            call.close()
            assert await asks.join() is FrameKind.NONE

    run(main)


async def stranger(place: JoinPlace) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.connect(place.name)
    return await asyncio.open_unix_connection(sock=sock)


def test_process_of_another_user_is_not_heard() -> None:
    """Even where it knows the token. This one stands for it: the worker is told that it is itself another user's."""

    async def main() -> None:
        memory = JoinMemory(4)
        has, asks = Worker(memory, 0, uid=os.geteuid() + 1), Worker(memory, 3)
        call = has.begin()
        (place,) = asks.peers.find(Wanted.EQUAL, KEY, None)
        reader, writer = await stranger(place)
        with contextlib.suppress(ConnectionError):
            writer.write(question_bytes(Question(place.token, Wanted.EQUAL, KEY, None)))
            assert await reader.read() == b""
        writer.close()
        while has.peers._links:
            await asyncio.sleep(0)
        assert call.n_joined == 0
        call.close()
        call.fail(CUT)
        has.peers.close()
        asks.peers.close()
        await asyncio.sleep(0)

    run(main)


def test_who_connects_and_asks_nothing_is_not_waited_for_and_dropped() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            (place,) = asks.peers.find(Wanted.EQUAL, KEY, None)
            reader, writer = await stranger(place)
            writer.write(place.token)  # not all of a question
            while not has.peers._links:
                await asyncio.sleep(0)
            assert has.peers.n_links == 0, "it follows nothing"
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
            assert await asks.join() is FrameKind.JOINED
            assert (has.peers.n_links, asks.peers.n_links) == (1, 1)
            Reader(asks.table.find_equal(KEY)).follower.leave()
            call.close()
            call.fail(CUT)

    run(main)


@pytest.mark.parametrize("end", ["at once", "cancelled"])
def test_links_that_are_lost_before_they_are_answered_are_let_go(end: str) -> None:
    async def main() -> None:
        async with two() as (_, asks):
            other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            other.bind(b"")
            other.listen(100)
            place = JoinPlace(other.getsockname(), bytes(16))
            for _each in range(50):
                asking = asyncio.ensure_future(asks.peers.join([place], Wanted.EQUAL, KEY, None, lambda: None))
                await asyncio.sleep(0)  # it has connected, and does not know yet
                taken, _ = other.accept()
                with taken:
                    if end == "cancelled":
                        taken.setblocking(False)
                        await asyncio.get_running_loop().sock_recv(taken, QUESTION_BYTES)
                        asking.cancel()
                        with pytest.raises(asyncio.CancelledError):
                            await asking
                        await asyncio.sleep(0)
                        taken.settimeout(30)
                        assert taken.recv(1) == b"", "nobody holds it open any more"
                if end == "at once":
                    assert await asking is FrameKind.NONE
                async with asyncio.timeout(30):
                    while asks.peers._links:
                        await asyncio.sleep(0)
            other.close()

    run(main)


def test_same_name_with_another_body_at_the_same_time_has_an_answer_of_its_own() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin(name=NAME)
            wrong = asks.join(Wanted.NAMED, key=b"k" * 32, name=NAME)
            right = asks.join(Wanted.NAMED, name=NAME)
            assert await asyncio.gather(wrong, right) == [FrameKind.MISMATCH, FrameKind.JOINED]
            Reader(asks.table.find_named(NAME, KEY)).follower.leave()
            call.close()
            call.fail(CUT)

    run(main)


class FakeTransport(asyncio.Transport):
    """Says whether more may come."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def write(self, data: object) -> None: ...

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None: ...


def test_reply_that_nobody_has_joined_yet_waits_at_the_other_worker() -> None:
    async def main() -> None:
        table = JoinTable(JoinBounds(1 << 20, 1 << 24))
        question = Question(bytes(16), Wanted.EQUAL, KEY, None)
        begin = functools.partial(table.begin, "a", KEY, None, may_retry=False)
        link = LinkClient(question, begin, asyncio.get_running_loop(), lambda _: None)
        transport = FakeTransport()
        link.connection_made(transport)
        link.data_received(frame_bytes(FrameKind.JOINED) + head_bytes(HEAD, is_sse=True))
        n_sent = 0
        while transport.reads:
            assert n_sent < 256 * 1024
            link.data_received(frame_bytes(FrameKind.DATA, b"x" * 10_000))
            n_sent += 10_000
        reader = Reader(table.find_equal(KEY))
        while not transport.reads:
            await asyncio.sleep(0)
        link.data_received(frame_bytes(FrameKind.END))
        assert await reader.read() == b"x" * n_sent
        link.connection_lost(None)
        call = table.find_equal(KEY)
        if call is not None:
            call.close()

    run(main)


def test_worker_that_is_gone_or_stands_still_is_no_answer() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            has.peers.close()
            await asyncio.sleep(0)
            assert await asks.join() is FrameKind.NONE
            still = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            still.bind(b"")
            still.listen(1)
            place = asks.peers.find(Wanted.EQUAL, KEY, None)[0]._replace(name=still.getsockname())
            begin = asks.table.begin
            answer = await asks.peers.join(
                [place], Wanted.EQUAL, KEY, None, lambda: begin("a", KEY, None, may_retry=False)
            )
            assert answer is FrameKind.NONE
            still.close()
            call.close()

    run(main)


def test_links_are_no_garbage() -> None:
    async def main() -> None:
        async with two() as (has, asks):
            call = has.begin()
            assert await asks.join() is FrameKind.JOINED
            reading = asyncio.ensure_future(Reader(asks.table.find_equal(KEY)).read())
            await asyncio.sleep(0)
            call.begin(HEAD, is_sse=True)
            call.feed(b"all", True)
            assert await reading == b"all"
            call.close()
            while asks.table.n_taken or asks.peers._links or has.peers._links:
                await asyncio.sleep(0.01)
            del call, reading

    run(main)
    gc.collect()
