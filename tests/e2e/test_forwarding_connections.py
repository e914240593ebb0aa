"""The client's connection: HEAD, replies without a body, HTTP/1.0, keep-alive, pipelining, Expect: 100-continue."""

from __future__ import annotations

import socket

import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import RawReply, is_closed, read_reply
from tests.e2e.recording import JSON, Call

HOST = b"host: velox.test\r\n"


async def name_target(call: Call) -> None:
    """Answer with the request's own target."""
    await call.reply(200, JSON, call.target.encode())


def exchange(sock: socket.socket, request: bytes) -> RawReply:
    """Send a request's bytes and read its reply."""
    sock.sendall(request)
    return read_reply(sock, head_request=request.startswith(b"HEAD"))


def test_head_has_the_length_and_no_body(wall: Wall) -> None:
    """HEAD passes as HEAD; its reply states the length of a body that does not come."""

    async def answer(call: Call) -> None:
        await call.head(200, [*JSON, ("content-length", "1234")])
        await call.end()

    with wall.upstream.playing(answer), wall.velox.connect() as sock:
        first = exchange(sock, b"HEAD /v1/files/file-1 HTTP/1.1\r\n" + HOST + b"\r\n")
        second = exchange(sock, b"HEAD /v1/files/file-1 HTTP/1.1\r\n" + HOST + b"\r\n")

    assert [call.method for call in wall.upstream.calls] == ["HEAD", "HEAD"]
    for reply in (first, second):
        assert (reply.status, reply.header("content-length")) == (200, "1234")


@pytest.mark.parametrize("status", [204, 304])
def test_reply_without_content_keeps_the_connection(wall: Wall, status: int) -> None:
    """204 and 304 have no body and no framing headers; the next request on the connection works."""

    async def answer(call: Call) -> None:
        if call.method == "DELETE":
            await call.head(status, [("x-request-id", "req_1")] if wall.is_http2 else [("content-length", "0")])
            await call.end()
        else:
            await name_target(call)

    with wall.upstream.playing(answer), wall.velox.connect() as sock:
        empty = exchange(sock, b"DELETE /v1/files/file-1 HTTP/1.1\r\n" + HOST + b"\r\n")
        following = exchange(sock, b"GET /v1/next HTTP/1.1\r\n" + HOST + b"\r\n")

    assert (empty.status, empty.body) == (status, b"")
    assert empty.header("transfer-encoding") is None
    assert status == 304 or empty.header("content-length") is None
    assert following.body == b"/v1/next"


def test_http10_client_gets_the_reply_to_its_end(wall: Wall) -> None:
    """An HTTP/1.0 client gets no chunks: a reply of unknown length ends with the connection."""

    async def answer(call: Call) -> None:
        await call.head(200, JSON)
        await call.data(b"one ")
        await call.step()
        await call.data(b"two")
        await call.end()

    with wall.upstream.playing(answer), wall.velox.connect() as sock:
        sock.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        start = sock.recv(65536)
        wall.upstream.step()
        reply = read_reply(sock, start=start)

    assert (reply.status, reply.body) == (200, b"one two")
    assert reply.header("transfer-encoding") is None and reply.header("content-length") is None
    assert reply.header("connection") == "close"


def test_http10_client_with_keep_alive_is_closed_or_told(wall: Wall) -> None:
    """An HTTP/1.0 client is never left waiting: the reply has a length, or the connection closes."""
    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        reply = exchange(sock, b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

        assert reply.body == b"/v1/models"
        if reply.header("connection") == "keep-alive":
            assert exchange(sock, b"GET /v1/two HTTP/1.0\r\n\r\n").body == b"/v1/two"
        assert is_closed(sock)


def test_connection_close_is_answered_and_closed(wall: Wall) -> None:
    """A client that asks for it gets its reply, and then the end."""
    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        reply = exchange(sock, b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n" + HOST + b"\r\n")

        assert (reply.body, reply.header("connection")) == (b"/v1/models", "close")
        assert is_closed(sock)


def test_many_requests_pass_on_one_connection(wall: Wall) -> None:
    """A connection is kept, with and without bodies in between."""
    body = b"x" * 1000
    upload = b"POST /v1/files HTTP/1.1\r\n" + HOST + b"content-length: 1000\r\n\r\n" + body

    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        for number in range(20):
            assert exchange(sock, upload).status == 200
            assert exchange(sock, b"GET /v1/n/%d HTTP/1.1\r\n" % number + HOST + b"\r\n").body == b"/v1/n/%d" % number


def test_pipelined_requests_are_answered_in_order(wall: Wall) -> None:
    """Requests sent at once are answered one after the other, in their order, whatever the first one takes."""

    async def answer(call: Call) -> None:
        if call.target == "/v1/n/0":
            await call.step()
        await name_target(call)

    requests = [b"GET /v1/n/%d HTTP/1.1\r\n" % number + HOST + b"\r\n" for number in range(50)]
    requests[7] = b"POST /v1/n/7 HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

    with wall.upstream.playing(answer), wall.velox.connect() as sock:
        sock.sendall(b"".join(requests))
        wall.upstream.wait_call()
        assert len(wall.upstream.calls) == 1
        wall.upstream.step()
        replies = [read_reply(sock) for _ in requests]

    assert [reply.body for reply in replies] == [b"/v1/n/%d" % number for number in range(50)]
    assert [call.target for call in wall.upstream.calls] == [f"/v1/n/{number}" for number in range(50)]
    assert wall.upstream.calls[7].body == b"hello"


def test_error_in_a_pipeline_stands_in_its_place(wall: Wall) -> None:
    """A request that is refused is answered in its turn, and those around it pass."""
    bad = (
        b"POST /v1/chat/completions HTTP/1.1\r\n"
        + HOST
        + b"content-type: application/json\r\ncontent-length: 1\r\n\r\n{"
    )
    good = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"

    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        sock.sendall(good + bad + good)
        statuses = [read_reply(sock).status for _ in range(3)]

    assert statuses == [200, 400, 200]


@pytest.mark.parametrize("framing", ["content-length: 5", "transfer-encoding: chunked"])
def test_expect_is_answered_before_the_body_and_not_forwarded(wall: Wall, framing: str) -> None:
    """A client that asks whether to send its body is told to at once."""
    head = b"POST /v1/files HTTP/1.1\r\nexpect: 100-continue\r\n" + HOST + framing.encode() + b"\r\n\r\n"
    body = b"5\r\nhello\r\n0\r\n\r\n" if "chunked" in framing else b"hello"

    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        sock.sendall(head)
        invitation = sock.recv(65536)
        sock.sendall(body)
        reply = read_reply(sock)
        call = wall.upstream.wait_call()

    assert invitation == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (reply.status, call.body, call.header("expect")) == (200, b"hello", None)


def test_expect_of_a_refused_request_gets_the_refusal(wall: Wall) -> None:
    """A body that would not be taken is not asked for."""
    head = b"POST /v1/files HTTP/1.1\r\nexpect: 100-continue\r\n" + HOST + b"content-length: 99999999999\r\n\r\n"

    with wall.upstream.playing(name_target), wall.velox.connect() as sock:
        sock.sendall(head)
        first = sock.recv(65536)

    assert first.startswith(b"HTTP/1.1 413 ")
    assert wall.upstream.calls == []


@pytest.mark.parametrize("n_interim", [1, 10])
def test_interim_replies_are_skipped(wall: Wall, n_interim: int) -> None:
    """1xx replies of the upstream are not the reply (F-31)."""

    async def answer(call: Call) -> None:
        for _ in range(n_interim):
            await call.interim(103, [("link", "</a>; rel=preload")])
        await name_target(call)

    with wall.upstream.playing(answer):
        reply = wall.velox.request("GET", "/v1/models")

    assert (reply.status, reply.body) == (200, b"/v1/models")
