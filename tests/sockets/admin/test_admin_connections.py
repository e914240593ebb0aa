"""Connections of the admin listener: several requests on one, bodies, TLS, and clients that are slow or hostile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.e2e.watching import until
from tests.sockets.admin.test_admin_server import get, raw
from tests.sockets.profiling.profile_workers import stop_worker
from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply
from velox.admin.server import BODY_BYTES, MAX_CONNECTIONS, run
from velox.settings.checks.certificates import read_certificate

Address = tuple[str, int]
ECHO = "/echo"
LATER = "/later"  # is answered when the client has left
MUCH = "/much"  # more than a client's buffers and the kernel's hold


class EchoApp(AdminApp):
    """Answers /echo with the request's method, body and whether a key may be shown."""

    def is_api(self, path: str) -> bool:
        """One page takes all methods."""
        return path == ECHO

    async def reply(self, request: AdminRequest) -> Reply:
        """Say what has come."""
        if request.path == LATER:
            await asyncio.Event().wait()
        if request.path == MUCH:
            return Reply(200, bytes(512 * 1024))
        if request.path != ECHO:
            return await super().reply(request)
        return Reply(200, f"{request.method} {len(request.body)} {request.is_private} ".encode() + request.body[:40])


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # of its connections, too
        pid = os.fork()
        if not pid:
            app = EchoApp(
                metrics=lambda: b"figures\n",
                ready=lambda: Readiness(True, True, ()),
                profiles=None,
                tls=None if context is None else lambda: context,
            )
            try:
                run(sock, app)
            finally:
                os._exit(0)
        try:
            yield sock.getsockname()
        finally:
            stop_worker(pid)


@pytest.fixture(scope="module")
def admin() -> Iterator[Address]:
    with serving() as address:
        yield address


def request(method: str, path: str, body: bytes = b"", *more: str) -> bytes:
    length = (f"Content-Length: {len(body)}",) if body else ()
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *length, *more, "", "")).encode() + body


def bodies(replies: bytes) -> list[bytes]:
    """Return the bodies of replies that came one after the other."""
    found = []
    while replies:
        head, _, replies = replies.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append(replies[:length])
        replies = replies[length:]
    return found


LAST = "Connection: close"


def test_requests_follow_each_other_on_one_connection_in_order(admin: Address) -> None:
    """Sent at once or byte by byte: each body belongs to its request, and each reply has its turn."""
    sent = (
        request("GET", "/healthz")
        + request("POST", ECHO, b"one")
        + request("PATCH", ECHO, b"", "Transfer-Encoding: chunked")
        + b"3\r\ntwo\r\n1\r\n!\r\n0\r\n\r\n"
        + request("DELETE", ECHO)
        + request("PUT", ECHO, b"GET / HTTP/1.1\r\n\r\n", LAST)
    )
    wanted = [
        b"ok\n",
        b"POST 3 True one",
        b"PATCH 4 True two!",
        b"DELETE 0 True ",
        b"PUT 18 True GET / HTTP/1.1\r\n\r\n",
    ]

    assert bodies(raw(admin, sent)) == wanted
    with socket.create_connection(admin, timeout=10) as sock:
        for n in range(len(sent)):
            sock.sendall(sent[n : n + 1])
        replies = b""
        while more := sock.recv(65536):
            replies += more
    assert bodies(replies) == wanted


def test_empty_line_before_a_request_changes_nothing(admin: Address) -> None:
    """A body after the reply to HEAD would be read as the next reply."""
    replies = raw(admin, b"\r\n" + request("HEAD", "/healthz") + b"\r\n" + request("GET", "/healthz", b"", LAST))

    assert replies.count(b"ok\n") == 1 and replies.endswith(b"\r\n\r\nok\n")


def test_reply_says_whether_another_request_may_follow(admin: Address) -> None:
    """HTTP/1.1 goes on, also after a refusal; HTTP/1.0 and a client that says so do not; nor what can't be read on."""
    with socket.create_connection(admin, timeout=10) as sock:
        for path in ("/healthz", "/absent", "/healthz"):
            sock.sendall(request("GET", path))
            assert b"\r\nconnection: close" not in sock.recv(4096)
    unread = request("POST", "/metrics", b"", "Content-Length: 3")
    for sent in (request("GET", "/healthz", b"", LAST), b"GET /healthz HTTP/1.0\r\n\r\n", unread):
        assert b"\r\nconnection: close\r\n" in raw(admin, sent)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("POST", ECHO, bytes(BODY_BYTES), LAST), 200),
        (request("POST", ECHO, b"", f"Content-Length: {BODY_BYTES + 1}"), 413),
        (request("POST", ECHO, b"", "Content-Length: 9999999999999999999"), 400),
        (request("POST", ECHO, b"", "Transfer-Encoding: chunked") + b"100001\r\n" + bytes(BODY_BYTES + 1), 413),
        (request("POST", ECHO, b"", "Transfer-Encoding: chunked") + b"fffffffffffff\r\n", 413),
        (request("POST", ECHO, b"", "Transfer-Encoding: chunked") + b"3 \r\nabc\r\n0\r\n\r\n", 400),
        (request("POST", ECHO, b"", "Transfer-Encoding: chunked") + b"3\nabc\n0\n\n", 400),
        (request("POST", ECHO, b"", "Transfer-Encoding: chunked", "Content-Length: 3"), 400),
        (request("POST", ECHO, b"", "Transfer-Encoding: gzip, chunked"), 501),
        (request("POST", ECHO, b"", "Transfer-Encoding : chunked"), 400),
        (request("POST", ECHO, b"", "Content-Length: 3", "Content-Length: 4") + b"abc", 400),
        (request("POST", ECHO, b"", "Content-Length: 3, 3") + b"abc", 400),
        (request("POST", ECHO, b"", "Content-Length: +3") + b"abc", 400),
        (request("POST", ECHO, b"", "Content-Length: 03") + b"abc", 400),
        (request("POST", ECHO, b"", "Content-Length: -1"), 400),
        (request("POST", ECHO, b"", "Authorization: Bearer a", "Authorization: Bearer b"), 400),
        (request("POST", ECHO, b"abc", "Expect: a-wonder"), 417),
        (b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\nContent-Length: 3\r\n\r\nabc", 400),
        (request("TRACE", ECHO), 405),
        (request("POST", ECHO, b"{}", "Origin: http://127.0.0.1"), 403),
    ],
)
def test_body_is_framed_in_one_way_only(admin: Address, sent: bytes, status: int) -> None:
    """What two servers could read as two different bodies is refused, and nothing after it is a request."""
    replies = raw(admin, sent + request("GET", "/metrics"))

    assert replies.startswith(b"HTTP/1.1 %d " % status)
    assert replies.count(b"\r\ncache-control: ") == 1
    assert b"figures" not in replies


def test_body_is_asked_for_where_the_client_waits(admin: Address) -> None:
    """`Expect: 100-continue`, as curl sends it with a large body."""
    with socket.create_connection(admin, timeout=10) as sock:
        sock.sendall(request("POST", ECHO, b"", "Content-Length: 3", "Expect: 100-continue"))
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert sock.recv(4096).endswith(b"POST 3 True abc")


def test_clients_that_stop_in_the_middle_keep_no_probe_out(admin: Address) -> None:
    """In the head, in the body, between two requests: each that comes replaces the one that waits longest."""
    beginnings = (
        b"POST /echo HT",
        request("POST", ECHO, b"", "Content-Length: 100") + b"abc",
        request("POST", ECHO, b"", "Transfer-Encoding: chunked") + b"5\r\nab",
        request("GET", "/healthz"),
    )
    with contextlib.ExitStack() as held:
        for n in range(4 * MAX_CONNECTIONS):
            sock = held.enter_context(socket.create_connection(admin, timeout=10))
            sock.sendall(beginnings[n % 4])
            if n % 32 == 31:
                assert get(admin, "/healthz")[0].status == 200
    assert get(admin, "/healthz")[0].status == 200


def test_crowd_that_takes_no_reply_keeps_no_probe_out(admin: Address) -> None:
    """They wait for their client, as those do that send nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(2 * MAX_CONNECTIONS):
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(admin)
            sock.sendall(request("GET", MUCH))
            sock.recv(1)  # it is on its way
        assert get(admin, "/healthz")[0].status == 200


def test_long_reply_comes_whole_to_a_slow_client(admin: Address) -> None:
    """It is written as the client takes it; the next request on the connection is answered after it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(admin)
        sock.settimeout(20)
        sock.sendall(request("GET", MUCH) + request("GET", "/healthz", b"", LAST))
        replies = bytearray()
        while more := sock.recv(3000):
            replies += more
    assert bodies(bytes(replies)) == [bytes(512 * 1024), b"ok\n"]


def test_connection_that_was_answered_last_stays_the_longest(admin: Address) -> None:
    """However long it has been there: a crowd that sends nothing replaces the others of the crowd."""
    with contextlib.ExitStack() as held:
        old = held.enter_context(socket.create_connection(admin, timeout=10))
        for n in range(4 * MAX_CONNECTIONS):
            held.enter_context(socket.create_connection(admin, timeout=10))
            if n % 16 == 15:
                old.sendall(request("GET", "/healthz"))
                assert old.recv(4096).endswith(b"ok\n")


def test_connections_over_the_limit_are_503_when_each_is_being_answered(admin: Address) -> None:
    """While 64 wait for slow answers, another one gets 503; after they have closed, a new one is served."""
    with contextlib.ExitStack() as held:
        for _ in range(MAX_CONNECTIONS):
            sock = held.enter_context(socket.create_connection(admin, timeout=10))
            # The second one is read when the first has been answered.
            sock.sendall(request("GET", "/healthz") + request("GET", LATER))
            assert sock.recv(12) == b"HTTP/1.1 200"
        over = raw(admin, b"")
    until(lambda: get(admin, "/healthz")[0].status == 200, "there is room again")

    assert over.startswith(b"HTTP/1.1 503")


def test_body_that_is_cut_ends_the_connection_and_nothing_else(admin: Address) -> None:
    """Nobody is there to be told."""
    with socket.create_connection(admin, timeout=10) as sock:
        sock.sendall(request("POST", ECHO, b"", "Content-Length: 100") + b"abc")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(4096) == b""
    assert get(admin, "/healthz")[0].status == 200


def test_tls_serves_requests_and_ends_properly(tmp_path: Path) -> None:
    """Several requests on a connection, a large body, close_notify at the end; plain text is told to use TLS."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    both = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(both))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    read_certificate(str(both), str(both), None).load_into(context)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with serving(context) as address, contextlib.ExitStack() as held:
        for _ in range(2 * MAX_CONNECTIONS):  # that never shake hands
            held.enter_context(socket.create_connection(address, timeout=10))
        for _ in range(2):
            with (
                socket.create_connection(address, timeout=10) as plain,
                client.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as sock,
            ):
                sock.sendall(request("GET", "/healthz") + request("POST", ECHO, bytes(500_000), LAST))
                replies = b""
                while more := sock.recv(65536):
                    replies += more
            assert bodies(replies)[0] == b"ok\n" and b"POST 500000 True " in replies
        plain_text = raw(address, request("GET", "/healthz"))
        assert plain_text.startswith(b"HTTP/1.1 400 ") and b"write https:// instead of http://" in plain_text


def test_refusal_holds_nothing_of_the_request() -> None:
    """A reply that repeated its request could be made to say anything."""
    assert b"secret" not in (RefusalError(400, "this is not an HTTP/1.1 request").reply.body or b"")
