"""A request that goes up as several calls: how many at a time, who hears of what."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from tests.unit.net.upstream.pool_server import Server
from tests.unit.virtual_time import run
from velox.dialects.canonical.errors import BrokenReplyError
from velox.errors import Reason
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.translation.batch_split import BatchSplit
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest


@dataclass
class Limits:
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float = 0.0
    limit: int = 0


class Sink:
    """What the attempt's reply hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        assert head is not None and end
        self.heard.append((head.status, data))

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.heard.append(failure.reason)
        assert failure.unprocessed is None


class Setup:
    """Calls of one attempt at a server."""

    def __init__(self, server: Server, n: int, limits: Limits | None = None) -> None:
        self.taken: list[int] = []
        self.threads: set[int] = set()
        self.bugs: list[Exception] = []
        self.sink = Sink()
        self.server = server
        limits = limits or Limits()
        bodies = [b"%d" % n for n in range(n)]
        self.calls = BatchSplit(
            bodies, self.build, self.take, server, limits, limits.limit, self.bugs.append, TranslationThread()
        )

    def build(self, body: bytes) -> UpstreamRequest:
        return UpstreamRequest.of(b"POST", b"/" + body, [], body)

    def take(self, number: int, headers: Headers, body: bytes) -> None:
        self.taken.append(number)
        self.threads.add(threading.get_ident())
        if body == b"broken":
            raise BrokenReplyError("broken")
        if body == b"bug":
            raise RuntimeError("a bug")


def test_all_answers_are_one_reply() -> None:
    """A few at a time; it is told once, when the last is there."""

    async def talk() -> None:
        setup = Setup(Server(body=b"good"), 20)
        setup.calls.open(setup.sink)
        while not setup.sink.heard:
            await asyncio.sleep(0.001)
        assert setup.sink.heard == [(200, b"")]
        assert sorted(setup.taken) == list(range(20)) and setup.server.most_open == 8
        await asyncio.sleep(1)
        assert len(setup.sink.heard) == 1 and setup.server.n_open == 0

    run(talk())


@pytest.mark.parametrize("size", [1000, 300_000])
def test_large_answers_are_read_beside_the_loop(size: int) -> None:
    """Vectors of megabytes; the reply is told when all of them are read."""

    async def talk() -> None:
        setup = Setup(Server(body=b"1" * size), 3)
        setup.calls.open(setup.sink)
        while not setup.sink.heard:
            await asyncio.sleep(0)
        assert setup.sink.heard == [(200, b"")] and sorted(setup.taken) == [0, 1, 2]
        assert (threading.get_ident() in setup.threads) is (size == 1000) and len(setup.threads) == 1

    asyncio.run(asyncio.wait_for(talk(), 20))


def test_upstream_of_a_few_at_a_time_gets_no_more() -> None:
    """Its own limit counts."""

    async def talk() -> None:
        setup = Setup(Server(), 9, Limits(limit=3))
        setup.calls.open(setup.sink)
        await asyncio.sleep(1)
        assert setup.sink.heard == [(200, b"")] and setup.server.most_open == 3

    run(talk())


@pytest.mark.parametrize(
    ("status", "body", "heard"),
    [
        (429, b"slow", (429, b"slow")),
        (302, b"", (302, b"")),
        (0, b"", Reason.UPSTREAM_RESET),
        (200, b"broken", Reason.UPSTREAM_PROTOCOL),
        (200, b"bug", Reason.INTERNAL),
    ],
)
def test_first_that_fails_is_the_reply(status: int, body: bytes, heard: object) -> None:
    """Nothing more is sent, and what is under way is given up."""

    async def talk() -> None:
        setup = Setup(Server(status, body), 100)
        setup.calls.open(setup.sink)
        await asyncio.sleep(1)
        assert setup.sink.heard == [heard]
        assert len(setup.server.asked) == 8 and setup.server.n_open == 0
        assert [str(bug) for bug in setup.bugs] == (["a bug"] if heard is Reason.INTERNAL else [])

    run(talk())


@pytest.mark.parametrize("n_turns", [0, 1, 2, 5])
def test_client_that_leaves_ends_all(n_turns: int) -> None:
    """Wherever they are."""

    async def talk() -> None:
        setup = Setup(Server(), 50)
        stream = setup.calls.open(setup.sink)
        for _ in range(n_turns):
            await asyncio.sleep(0)
        stream.cancel()
        n_asked = len(setup.server.asked)
        await asyncio.sleep(1)
        assert setup.sink.heard == [] and setup.taken == []
        assert len(setup.server.asked) == n_asked and setup.server.n_open == 0

    run(talk())


def test_call_without_an_answer_is_not_waited_for_for_ever() -> None:
    """It has the time that a request has for its first byte."""

    async def talk() -> None:
        setup = Setup(Server(takes_s=1000.0), 3, Limits(first_byte_s=5.0))
        setup.calls.open(setup.sink)
        await asyncio.sleep(6)
        assert setup.sink.heard == [Reason.UPSTREAM_TTFB_TIMEOUT] and setup.server.n_open == 0

    run(talk())


def test_answer_that_stops_in_the_middle_is_not_waited_for_for_ever() -> None:
    """Though the whole request has no limit of time."""

    async def talk() -> None:
        setup = Setup(Server(begins=True, takes_s=1000.0), 3, Limits(first_byte_s=5.0, idle_s=7.0))
        setup.calls.open(setup.sink)
        await asyncio.sleep(11)
        assert setup.sink.heard == []
        await asyncio.sleep(2)
        assert setup.sink.heard == [Reason.UPSTREAM_TOTAL_TIMEOUT] and setup.server.n_open == 0

    run(talk())
