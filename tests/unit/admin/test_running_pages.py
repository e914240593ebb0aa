"""What the workers tell of themselves, as one page of text or JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from velox.admin.message import TEXT, AdminRequest, RefusalError, Reply
from velox.admin.running.pages import RunningPages
from velox.profiling.running import (
    LongTurn,
    LongTurns,
    OpenConnection,
    OpenConnections,
    RunningRequest,
    RunningRequests,
)


def request_of(ident: str, age_s: float, **more: Any) -> RunningRequest:
    return RunningRequest(id=ident, phase="ttfb", age_s=age_s, endpoint="chat", **more)


def ask(page: str, query: str, answers: list[msgspec.Struct | None], method: str = "GET") -> tuple[Reply, list[str]]:
    """Ask for a page; return it with what the workers were asked."""
    asked: list[str] = []

    async def workers(what: str, which: str) -> list[bytes | None]:
        asked.append(f"{what}{which}")
        return [None if each is None else msgspec.json.encode(each) for each in answers]

    request = AdminRequest(method, f"/debug/pprof/{page}", query, "localhost", {})
    return asyncio.run(RunningPages(workers, lambda: 1010.0).reply(request)), asked


def lines(reply: Reply) -> list[str]:
    assert (reply.status, reply.content_type) == (200, TEXT)
    return (reply.body or b"").decode().splitlines()


def test_requests_of_all_workers_are_one_list_the_oldest_first() -> None:
    told = [
        RunningRequests(1, [request_of("vx-a-1", 2.0, upstream="one", key="app", key_id="k1", attempts=1)]),
        RunningRequests(1, [request_of("vx-b-1", 9.5, tried=("two=503",), attempts=2)]),
    ]
    reply, asked = ask("tasks", "", told)

    assert asked == ["tasks"]
    assert lines(reply)[0] == "2 requests run or are queued"
    assert [line.split()[:3] for line in lines(reply)[2:]] == [["9.500", "ttfb", "vx-b-1"], ["2.000", "ttfb", "vx-a-1"]]
    assert "2 two=503" in lines(reply)[2] and lines(reply)[2].endswith(" 1")
    found = json.loads(ask("tasks", "format=json", told)[0].body or b"")
    assert [(row["id"], row["worker"]) for row in found["rows"]] == [("vx-b-1", 1), ("vx-a-1", 0)]
    assert (found["total"], found["missing"]) == (2, [])


def test_page_says_who_is_missing_and_what_is_not_shown() -> None:
    """A worker that is stuck, and rows beyond those that a worker tells of."""
    reply, _ = ask("tasks", "", [None, RunningRequests(5000, [request_of("vx-1", 1.0)])])

    assert lines(reply)[:2] == [
        "worker 0 did not answer and is not shown",
        "5000 requests run or are queued; here are 1",
    ]


def test_what_clients_send_moves_no_terminal() -> None:
    """A model's name is a client's text."""
    row = request_of("vx-1", 1.0, model="\x1b[2Jm\u202e\nx")
    text = (ask("tasks", "", [RunningRequests(1, [row])])[0].body or b"").decode()

    assert text.isascii() and "\x1b" not in text
    assert "\\x1b[2Jm\\u202e\\nx" in text


def test_connections_stand_by_side_with_their_bytes() -> None:
    client = OpenConnection(
        side="client", peer="127.0.0.1:9", protocol="HTTP/2", state="open", streams=3, age_s=4.0, tls=True,
        bytes_in=10, bytes_out=20,
    )  # fmt: skip
    upstream = OpenConnection(
        side="upstream", peer="", protocol="HTTP/1.1", state="idle", streams=0, age_s=5.0, upstream="one", begun=7
    )
    shown = lines(ask("connections", "", [OpenConnections(2, [upstream, client])])[0])

    assert shown[0] == "2 connections are open"
    assert shown[2].split() == ["client", "127.0.0.1:9", "HTTP/2", "TLS", "open", "3", "4.0", "10", "20", "-", "0"]
    assert shown[3].split() == ["upstream", "-", "HTTP/1.1", "idle", "0", "5.0", "-", "-", "one", "0"]


def test_long_turns_stand_with_their_stacks_and_what_is_not_seen() -> None:
    turn = LongTurn(at_s=1000.0, lasted_s=0.25, stack=("outer (a.py:1)", "inner (b.py:2)"))
    told = [LongTurns(1, 0.05, [turn], "compiled functions are not seen"), LongTurns(0, 0.05, [])]
    shown = lines(ask("loop", "", told)[0])

    assert shown[0].startswith("compiled build: compiled functions are not seen")
    assert shown[1:] == [
        "turns of an event loop that lasted 50 ms and more: 1",
        "",
        "worker 0, 10.0 s ago, for at least 250 ms",
        "  outer (a.py:1)",
        "  inner (b.py:2)",
    ]
    assert json.loads(ask("loop", "format=json", told)[0].body or b"")["rows"][0]["lasted_s"] == 0.25


@pytest.mark.parametrize("query", ["format=html", "format=", "seconds=1", "format=json&format=json"])
def test_query_bad_is_400_and_asks_nobody(query: str) -> None:
    with pytest.raises(RefusalError) as caught:
        ask("tasks", query, [])
    assert caught.value.reply.status == 400


def test_head_asks_nobody() -> None:
    reply, asked = ask("loop", "", [], "HEAD")
    assert (reply.status, reply.body, asked) == (200, None, [])


def test_garbage_of_a_worker_is_no_answer() -> None:
    """Of a worker of another version, during an upgrade."""

    async def workers(what: str, which: str) -> list[bytes | None]:
        return [b"", b'{"total": 1}', b"\xff"]

    request = AdminRequest("GET", "/debug/pprof/tasks", "format=json", "localhost", {})
    reply = asyncio.run(RunningPages(workers).reply(request))
    assert json.loads(reply.body or b"")["missing"] == [0, 1, 2]
