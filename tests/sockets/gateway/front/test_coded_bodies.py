"""Requests whose bodies came compressed: one is decoded at a time, within the room for bodies."""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec

import pytest

from tests.sockets.gateway.core_gateway import FakeClient, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.front.coded_bodies import CodedBodies
from velox.heads import RequestHead
from velox.net.application import Client, ClientExchange
from velox.types import ANYONE, Caller

P = ParamSpec("P")

TEXT: Final = b"".join(b'{"n":%d},' % n for n in range(100_000))
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


def bodies_of(taker: Taker, most_bytes: int) -> CodedBodies:
    return CodedBodies(taker, asyncio.get_running_loop(), most_bytes)


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
    ],
)
@in_loop
async def test_body_that_is_none_or_too_large_is_refused(body: bytes, room: int, most: int, reason: Reason) -> None:
    """C16: bounds are of the decoded body: VELOX_MAX_BODY, and the room that all bodies have together."""
    taker = Taker()
    bodies_of(taker, most).open(RoomyClient(room), request_head(more=HEAD), body, ANYONE)
    await taker.done.wait()
    assert taker.refused == [reason] and not taker.taken and not taker.bugs
