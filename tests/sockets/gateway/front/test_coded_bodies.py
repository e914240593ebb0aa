"""Requests whose bodies came compressed: one is decoded at a time, within the room for bodies."""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

import brotli
import pytest

from tests.sockets.gateway.core_gateway import FakeClient, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.front.coded_bodies import CodedBodies
from velox.heads import RequestHead
from velox.net.application import Client, ClientExchange
from velox.types import ANYONE, Caller

P = ParamSpec("P")
T = TypeVar("T")

TEXT: Final = b"".join(b'{"n":%d},' % n for n in range(100_000))
IN_BR: Final = ((b"content-encoding", b"br"),)
HEAD: Final = (
    (b"content-encoding", b"gzip"),
    (b"content-digest", b"sha-256=:x:"),
    (b"x-tag", b"1"),
)


def in_loop(story: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in a loop of its own."""

    @functools.wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await story(*args, **kwargs)

        asyncio.run(main())

    return test


class RoomyClient(FakeClient):
    """A client whose connection has room for so much."""

    def __init__(self, room: int = 1 << 30) -> None:
        super().__init__()
        self.room = room

    def hold_more(self, n_bytes: int) -> bool:
        self.room -= n_bytes
        return self.room >= 0


class Running:
    """An exchange that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def client_gone(self, *, stalled: bool = False) -> None:
        self.told.append(f"gone {stalled}")

    def client_paused(self) -> None:
        self.told.append("paused")

    def client_resumed(self) -> None:
        self.told.append("resumed")


class Taker:
    """Takes requests, and notes them."""

    def __init__(self) -> None:
        self.taken: list[tuple[RequestHead, bytes]] = []
        self.refused: list[Reason] = []
        self.bugs: list[Exception] = []
        self.running = Running()
        self.done = asyncio.Event()

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange:
        assert body is not None and caller is ANYONE
        self.taken.append((head, bytes(body)))
        self.done.set()
        return self.running

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.refused.append(error.reason)
        self.done.set()

    def crashed(self, exc: Exception) -> None:
        self.bugs.append(exc)


class NotingThread(TranslationThread):
    """Notes how many pieces of work it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.n_runs = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.n_runs += 1
        return await super().run(work)


def bodies_of(taker: Taker, most_bytes: int, thread: TranslationThread | None = None) -> CodedBodies:
    return CodedBodies(taker, asyncio.get_running_loop(), most_bytes, thread or TranslationThread())


@in_loop
async def test_request_goes_on_without_its_coding() -> None:
    """C16: its length is that of the body; what was said of the coded one is gone, as is its coding."""
    taker = Taker()
    head = request_head(more=HEAD)
    bodies_of(taker, 1 << 30).open(RoomyClient(), head, gzip.compress(TEXT), ANYONE)
    await taker.done.wait()

    ((sent, body),) = taker.taken
    assert body == TEXT and not taker.refused and not taker.bugs
    assert (sent.method, sent.path, sent.content_length, sent.chunked) == (head.method, head.path, len(TEXT), False)
    assert sent.headers == [(b"content-type", b"application/json"), (b"x-tag", b"1")]


@in_loop
async def test_others_have_turns_meanwhile() -> None:
    """C16: a body of a megabyte takes several turns of the loop."""
    taker, n_turns = Taker(), 0
    bodies_of(taker, 1 << 30).open(RoomyClient(), request_head(more=HEAD), gzip.compress(TEXT), ANYONE)
    while not taker.done.is_set():
        await asyncio.sleep(0)
        n_turns += 1
    assert n_turns > len(TEXT) // (128 * 1024)


@in_loop
async def test_body_in_br_is_decoded_in_the_thread() -> None:
    """C16: 128 KiB at a time, as its decoder may work on 16 MiB before it gives any; no other coding is."""
    thread, n_of_br = NotingThread(), 0
    for coding, packed in ((b"br", brotli.compress(TEXT)), (b"gzip", gzip.compress(TEXT))):
        taker = Taker()
        head = request_head(more=((b"content-encoding", coding),))
        bodies_of(taker, 1 << 30, thread).open(RoomyClient(), head, packed, ANYONE)
        await taker.done.wait()
        ((sent, body),) = taker.taken
        assert body == TEXT and sent.content_length == len(TEXT) and sent.header(b"content-encoding") is None
        assert thread.n_runs > len(TEXT) // (8 * 128 * 1024)
        n_of_br = thread.n_runs if coding == b"br" else n_of_br
    assert thread.n_runs == n_of_br


@in_loop
async def test_bomb_in_br_is_refused_early() -> None:
    """14 bytes that stand for 16 MiB: no more than 1 MiB of room is asked for."""
    taker, client = Taker(), RoomyClient()
    packed = brotli.compress(bytes(16 << 20), lgwin=24)
    assert len(packed) < 20
    bodies_of(taker, 1 << 30).open(client, request_head(more=IN_BR), packed, ANYONE)
    await taker.done.wait()
    assert taker.refused == [Reason.BAD_REQUEST] and not taker.taken and not taker.bugs
    assert client.room >= (1 << 30) - (1 << 20)


@in_loop
async def test_client_that_leaves_a_body_in_br_ends_the_work() -> None:
    """The step that the thread is in is its last; the next body has its turn."""
    taker, thread = Taker(), NotingThread()
    bodies = bodies_of(taker, 1 << 30, thread)
    left = bodies.open(RoomyClient(), request_head(more=IN_BR), brotli.compress(TEXT), ANYONE)
    while not thread.n_runs:
        await asyncio.sleep(0)
    left.client_gone()
    bodies.open(RoomyClient(), request_head(path=b"/v1/next", more=IN_BR), brotli.compress(b"{}"), ANYONE)
    await taker.done.wait()
    assert [head.path for head, _ in taker.taken] == [b"/v1/next"] and not taker.refused and not taker.bugs
    assert thread.n_runs <= 4


@in_loop
async def test_connection_is_heard_before_and_after() -> None:
    """A client that reads slowly before its request has begun does so after."""
    taker = Taker()
    exchange = bodies_of(taker, 1 << 30).open(RoomyClient(), request_head(more=HEAD), gzip.compress(TEXT), ANYONE)
    exchange.client_paused()
    exchange.client_resumed()
    exchange.client_paused()
    await taker.done.wait()
    exchange.client_resumed()
    exchange.client_gone(stalled=True)
    assert taker.running.told == ["paused", "resumed", "gone True"]


@in_loop
async def test_client_that_leaves_ends_the_work() -> None:
    """And the next one has its turn."""
    taker = Taker()
    bodies = bodies_of(taker, 1 << 30)
    left = bodies.open(RoomyClient(), request_head(more=HEAD), gzip.compress(TEXT), ANYONE)
    await asyncio.sleep(0)
    left.client_gone()
    bodies.open(RoomyClient(), request_head(path=b"/v1/next", more=HEAD), gzip.compress(b"{}"), ANYONE)
    await taker.done.wait()
    assert [head.path for head, _ in taker.taken] == [b"/v1/next"] and not taker.refused
    assert repr(bodies) == "<CodedBodies none>"


@pytest.mark.parametrize(
    ("body", "room", "most", "reason"),
    [
        (b"{}", 1 << 30, 1 << 30, Reason.BAD_REQUEST),
        (gzip.compress(TEXT), 1 << 30, len(TEXT) - 1, Reason.BODY_TOO_LARGE),
        (gzip.compress(TEXT), len(TEXT) - 1, 1 << 30, Reason.OVERLOAD_MEMORY),
        (brotli.compress(TEXT), 1 << 30, len(TEXT) - 1, Reason.BODY_TOO_LARGE),
        (brotli.compress(TEXT), len(TEXT) - 1, 1 << 30, Reason.OVERLOAD_MEMORY),
        (brotli.compress(TEXT)[:-1], 1 << 30, 1 << 30, Reason.BAD_REQUEST),
    ],
)
@in_loop
async def test_body_that_is_none_or_too_large_is_refused(body: bytes, room: int, most: int, reason: Reason) -> None:
    """C16: bounds are of the decoded body: VELOX_MAX_BODY, and the room that all bodies have together."""
    taker = Taker()
    head = request_head(more=HEAD if body.startswith((b"\x1f\x8b", b"{")) else IN_BR)
    bodies_of(taker, most).open(RoomyClient(room), head, body, ANYONE)
    await taker.done.wait()
    assert taker.refused == [reason] and not taker.taken and not taker.bugs
