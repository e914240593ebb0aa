"""The pages that are read for one request: when they end, and what comes of one that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

import pytest

from tests.unit.net.upstream.pool_server import Server
from tests.unit.virtual_time import run
from velox.errors import Reason, VeloxError
from velox.gateway.access.own_pages import OwnPages
from velox.gateway.access.ownership import ListFilter
from velox.gateway.cpu_work import TranslationThread
from velox.heads import ReplyHead
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import (
    ReplySink,
    UpstreamFailure,
    UpstreamRequest,
    UpstreamStream,
)
from velox.policy.api.objects import KINDS
from velox.policy.routes.entries import Timeouts
from velox.protocol.list_pages import PageWalk
from velox.shm.object_table import ObjectMemory, ObjectTable
from velox.types import Dialect


class ListServer(Server):
    """Has a list; pages of 10. told: by the number of the page that is asked for, status and body of another reply."""

    def __init__(self, items: list[str], dialect: Dialect, takes_s: float = 0.01) -> None:
        super().__init__(takes_s=takes_s)
        self.items = items
        self.dialect = dialect
        self.told: dict[int, tuple[int, bytes]] = {}

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Any:
        asked = parse_qs(request.target.decode().partition("?")[2])
        self.status, self.body = self.told.get(len(self.asked), (200, self._page(asked)))
        # The reply is made when it is asked for.
        return super().open(request, _Told(sink, self.status, self.body))

    def _page(self, asked: dict[str, list[str]]) -> bytes:
        if self.dialect is Dialect.GOOGLE:
            begin = int(asked.get("pageToken", ["0"])[0])
            more = {"nextPageToken": str(begin + 10)} if begin + 10 < len(self.items) else {}
            return json.dumps(
                {"files": [{"name": f"files/{each}"} for each in self.items[begin : begin + 10]], **more}
            ).encode()
        begin = self.items.index(asked["after"][0]) + 1 if "after" in asked else 0
        page = [{"id": each} for each in self.items[begin : begin + 10]]
        return json.dumps({"data": page, "has_more": begin + 10 < len(self.items)}).encode()


class _Told:
    """A sink that gets what was made for it."""

    def __init__(self, sink: ReplySink, status: int, body: bytes) -> None:
        self._sink, self._status, self._body = sink, status, body

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        headers = [(b"content-type", b"application/json"), (b"x-page", b"1")]
        self._sink.on_reply(ReplyHead.of(self._status, headers, len(self._body)), self._body, end)

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        self._sink.on_failure(failure)


OTHERS = [f"x{n}" for n in range(250)]
OWN = ("own1", "own2", "files/own1", "files/own2")


@dataclass
class Limits:
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float = 0.0


class Setup:
    """One request for a list. heard: what its sink was told: a status and a page, or a failure."""

    def __init__(self, server: Server, dialect: Dialect) -> None:
        self.heard: list[object] = []
        self.lost: list[VeloxError] = []
        self.heads: list[int] = []
        self.bugs: list[Exception] = []
        self.server = server
        table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
        for each in OWN:
            table.remember(each, table.number("b"))
        files = next(kind for kind in KINDS if kind.collection == "files")
        self.listed = ListFilter(table, table.number("b"), files)
        self.fails = False
        self.pages = OwnPages(
            PageWalk(b"", dialect),
            self.listed,
            self.build,
            cast(Any, server),
            cast(Timeouts, Limits()),
            TranslationThread(),
            TurnBudget(asyncio.get_running_loop()),
            on_head=lambda head: self.heads.append(head.status),
            on_lost=self.lost.append,
            on_bug=self.bugs.append,
        )

    def build(self, query: bytes) -> UpstreamRequest:
        if self.fails:
            raise RuntimeError("a bug")
        return UpstreamRequest.of(b"GET", b"/v1/files?" + query, [])

    def open(self) -> UpstreamStream:
        return self.pages.open(self)

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        assert head is not None and end and head.content_length == len(data)
        assert (b"x-page", b"1") in head.headers
        self.heard.append((head.status, data if head.status != 200 else json.loads(data)))

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.heard.append(failure.reason)


def talk(server: Server, dialect: Dialect, then: Callable[[Setup], None], wait_s: float = 60.0) -> None:
    async def begin() -> None:
        setup = Setup(server, dialect)
        setup.open()
        await asyncio.sleep(wait_s)
        then(setup)
        assert server.n_open == 0

    run(begin())


def test_one_reply_behind_many_pages_of_others() -> None:
    """One after the other, each as the list tells of it."""

    def then(setup: Setup) -> None:
        page = {"data": [{"id": "own1"}], "has_more": False}
        assert setup.heard == [(200, page)] and setup.heads == [200] * 26
        assert setup.server.most_open == 1
        targets = [target for _, target in setup.server.asked]
        assert targets[:3] == [b"/v1/files?", b"/v1/files?after=x9", b"/v1/files?after=x19"] and len(targets) == 26

    talk(ListServer([*OTHERS, "own1"], Dialect.OPENAI), Dialect.OPENAI, then)


def test_page_of_googles_that_is_the_last_for_its_caller() -> None:
    """Its token is left out, though the list goes on with others' things."""

    def then(setup: Setup) -> None:
        assert setup.heard == [(200, {"files": [{"name": "files/own1"}]})]
        assert len(setup.server.asked) == 26

    talk(ListServer(["own1", *OTHERS], Dialect.GOOGLE), Dialect.GOOGLE, then)


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        ((429, b"slow"), (429, b"slow")),
        ((500, b"{}"), (500, b"{}")),
        ((302, b""), (302, b"")),
        ((0, b""), Reason.UPSTREAM_RESET),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_page_that_fails_is_the_reply(at: int, told: tuple[int, bytes], heard: object) -> None:
    """The first as well as a later one; nothing more is asked for."""
    server = ListServer(OTHERS, Dialect.OPENAI)
    server.told[at] = told

    def then(setup: Setup) -> None:
        assert setup.heard == [heard] and len(server.asked) == at + 1 and setup.lost == []

    talk(server, Dialect.OPENAI, then)


@pytest.mark.parametrize("body", [b"[1]", b'{"files":{}}'])
def test_what_is_no_page_passes(body: bytes) -> None:
    """Whoever filters it says what comes of it."""
    server = ListServer(OTHERS, Dialect.OPENAI)
    server.told[0] = (200, body)

    talk(server, Dialect.OPENAI, lambda setup: _same(setup.heard, [(200, json.loads(body))]))


def _same(found: object, wanted: object) -> None:
    assert found == wanted


def test_list_that_is_too_long_is_not_read_to_its_end() -> None:
    """A token leads the client on from where it was left."""

    def then(setup: Setup) -> None:
        (heard,) = setup.heard
        assert isinstance(heard, tuple) and heard[1]["nextPageToken"] == "1000"
        assert len(setup.server.asked) == 100 and setup.lost == []

    talk(ListServer(OTHERS * 8, Dialect.GOOGLE), Dialect.GOOGLE, then)


def test_list_that_only_others_ids_lead_through_is_refused_at_the_bound() -> None:
    """An empty page would be taken for an empty list, and their ids are not the client's to know."""

    def then(setup: Setup) -> None:
        (error,) = setup.lost
        assert setup.heard == [] and (error.reason, error.status) == (Reason.UPSTREAM_TOTAL_TIMEOUT, 504)
        assert not isinstance(error, UpstreamFailure), "it is no fault of the upstream's"
        assert "first 100 pages" in error.message and "x" + "99" not in error.message

    talk(ListServer([f"x{n}" for n in range(2000)], Dialect.OPENAI), Dialect.OPENAI, then)


def test_slow_list_is_not_read_for_longer_than_clients_wait() -> None:
    """Twenty seconds after the begin no more pages are asked for."""

    def then(setup: Setup) -> None:
        (heard,) = setup.heard
        assert isinstance(heard, tuple) and heard[1]["nextPageToken"] == "50"
        assert len(setup.server.asked) == 5

    talk(ListServer(OTHERS, Dialect.GOOGLE, takes_s=4.0), Dialect.GOOGLE, then)


@pytest.mark.parametrize("waits_s", [0.0, 0.005, 0.035])
def test_client_that_leaves_ends_it(waits_s: float) -> None:
    """Wherever it is; nothing more goes up."""

    async def leave() -> None:
        setup = Setup(ListServer(OTHERS, Dialect.OPENAI), Dialect.OPENAI)
        stream = setup.open()
        await asyncio.sleep(waits_s)
        stream.cancel()
        await asyncio.sleep(0)
        n_asked = len(setup.server.asked)
        await asyncio.sleep(1)
        assert setup.heard == [] and setup.lost == [] and len(setup.server.asked) == n_asked
        assert setup.server.n_open == 0

    run(leave())


def test_bug_in_the_midst_ends_the_request() -> None:
    """It is recorded, and told as what it is."""
    server = ListServer(OTHERS, Dialect.OPENAI)

    async def break_it() -> None:
        setup = Setup(server, Dialect.OPENAI)
        setup.fails = True
        setup.open()
        await asyncio.sleep(1)
        assert setup.heard == [Reason.INTERNAL] and [str(bug) for bug in setup.bugs] == ["a bug"]

    run(break_it())


def test_page_of_megabytes_is_one_as_any() -> None:
    """It is read and written beside the loop."""

    async def talk_of_much() -> None:
        server = ListServer([], Dialect.OPENAI)
        many = [{"id": "own1", "text": "x" * 400_000}, {"id": "x1", "text": "x" * 400_000}]
        server.told[0] = (200, json.dumps({"data": many, "has_more": True, "last_id": "x1"}).encode())
        setup = Setup(server, Dialect.OPENAI)
        setup.open()
        while not setup.heard:
            await asyncio.sleep(0.001)
        assert setup.heard == [(200, {"data": many[:1], "has_more": True, "last_id": "own1"})]

    asyncio.run(asyncio.wait_for(talk_of_much(), 20))


def test_list_filter_passes_the_page_that_was_filtered_and_no_other() -> None:
    """What two attempts at once bring goes through one filter."""

    def then(setup: Setup) -> None:
        ((_, page),) = cast(list[tuple[int, object]], setup.heard)
        passed, other = json.dumps(page).encode(), json.dumps({"data": [{"id": "x1"}, {"id": "own2"}]}).encode()
        for given, wanted in ((passed, page), (other, {"data": [{"id": "own2"}]})):
            setup.listed.begin(ReplyHead.of(200, [], None), is_sse=False, is_plain=True)
            assert json.loads(setup.listed.feed(given, True)) == wanted

    talk(ListServer(["x1", "own1"], Dialect.OPENAI), Dialect.OPENAI, then)


def test_long_page_lets_others_have_their_turns() -> None:
    """OpenAI's pages have up to 10,000 files: to look for all of their owners takes longer than a turn may."""
    table = ObjectTable(ObjectMemory(1024, 1, 1), 0)
    listed = ListFilter(table, table.number("b"), KINDS[0])

    assert len(list(listed.leave_own({"data": [{"id": each} for each in OTHERS]}))) == len(OTHERS) // 50
