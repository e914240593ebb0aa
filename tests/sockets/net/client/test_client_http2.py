"""A client's HTTP/2 connection: requests as they come in, replies as they go out."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.net.core_http2 import ENGINES, GET, POST, Name, run, serve
from tests.sockets.net.core_ingress import App, Exchange, eventually
from velox.errors import Reason, VeloxError
from velox.heads import Header, RequestHead
from velox.net.application import Client
from velox.net.client.body_budget import FIRST_BYTES
from velox.protocol.http2.engine import CANCEL, INTERNAL_ERROR, NO_ERROR, PROTOCOL_ERROR
from velox.types import Caller

KIB = 1024
each_engine = pytest.mark.parametrize("engine", ENGINES)


def length(n_bytes: int) -> Header:
    return (b"content-length", b"%d" % n_bytes)


class Doorman(App):
    """Refuses every request by its head."""

    def check_head(self, head: RequestHead) -> Caller:
        raise VeloxError(Reason.UNKNOWN_ROUTE, "no such path")


@each_engine
def test_request_arrives_as_over_http1(engine: Name) -> None:
    """Method, path, query, fields and body; what HTTP/2 says otherwise is no field."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer(b"done"))
        async with serve(app, engine) as server:
            client = await server.client()
            target = (b":path", b"/v1/files/a%2Fb?limit=1&x=%20")
            fields = [(b"x-one", b"1"), (b"te", b"trailers"), (b"x_two", b"2"), length(3)]
            first = client.request([*POST[:3], target, *fields], b"abc")
            second = client.request(GET)
            await client.whole(first, second)

            asked, plain = app.exchanges
            assert (asked.head.method, asked.head.path, asked.head.query) == (
                b"POST",
                b"/v1/files/a%2Fb",
                b"limit=1&x=%20",
            )
            assert asked.head.headers == [(b"x-one", b"1")]
            assert (asked.body, plain.body) == (b"abc", None)
            assert plain.head.method == b"GET"
            assert client.status(first) == 200 and client.bodies[first] == b"done"
            assert length(4) in client.heads[first]

    run(main)


@each_engine
@pytest.mark.parametrize("announced", [True, False])
def test_body_in_many_pieces_is_whole(engine: Name, announced: bool) -> None:
    """The windows are opened again as it comes; both kinds of length."""
    body = bytes(range(256)) * 1200  # 300 KiB: five windows of a stream

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id = client.request([*POST, *([length(len(body))] if announced else [])], end=False)
            sent = 0
            while sent < len(body):
                room = client.http2.local_flow_control_window(stream_id)
                if room:
                    client.send(stream_id, body[sent : sent + room], end=sent + room >= len(body))
                    sent += room
                    await client.say()
                else:
                    await client.turn()
            await client.whole(stream_id)
            assert app.exchanges[0].body == body
            assert server.ingress.budget.taken_bytes == 0

    run(main)


@each_engine
def test_hundred_streams_are_answered_side_by_side(engine: Name) -> None:
    """The last one that came may be the first one that ends."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            ids = [client.request([*POST, (b"x-number", b"%d" % n)], b"%d" % n) for n in range(100)]
            await client.say()
            await eventually(lambda: len(app.exchanges) == 100)
            for exchange in reversed(app.exchanges):
                exchange.answer(bytes(exchange.body or b""))
            await client.whole(*ids)
            assert [client.bodies[stream_id] for stream_id in ids] == [b"%d" % n for n in range(100)]
            again = client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 101)
            app.exchanges[-1].answer()
            await client.whole(again)

    run(main)


@each_engine
def test_reply_in_parts_is_whole(engine: Name) -> None:
    """A head alone, pieces, an end that brings nothing; no length is made up."""

    def answer(exchange: Exchange) -> None:
        client = exchange.client
        client.begin_reply(200, [(b"content-type", b"text/event-stream")], None, b"", False, has_body=True)
        client.body(b"one ", False)
        client.body(b"", False)
        client.body(b"two", False)
        client.body(b"", True)
        client.finish()

    async def main() -> None:
        async with serve(App(answer), engine) as server:
            client = await server.client()
            stream_id = client.request(GET)
            await client.whole(stream_id)
            assert client.bodies[stream_id] == b"one two"
            assert dict(client.heads[stream_id]) == {b":status": b"200", b"content-type": b"text/event-stream"}

    run(main)


@each_engine
@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_reply_without_a_body_ends_with_its_head(engine: Name, method: bytes, status: int) -> None:
    """RFC 9110 §6.4.1: and what an upstream sends with it goes nowhere."""

    def answer(exchange: Exchange) -> None:
        exchange.client.begin_reply(status, [], 5 if method == b"HEAD" else None, b"", True, has_body=False)
        exchange.client.finish()

    async def main() -> None:
        async with serve(App(answer), engine) as server:
            client = await server.client()
            stream_id = client.request([(b":method", method), *GET[1:]])
            await client.whole(stream_id)
            assert client.status(stream_id) == status and client.bodies[stream_id] == b""
            assert (length(5) in client.heads[stream_id]) == (method == b"HEAD")

    run(main)


@each_engine
def test_refused_head_is_answered_before_its_body_which_is_not_wanted(engine: Name) -> None:
    """RFC 9113 §8.1: an answer with END_STREAM, then RST_STREAM(NO_ERROR); the connection goes on."""

    async def main() -> None:
        app = Doorman()
        async with serve(app, engine) as server:
            client = await server.client()
            first = client.request([*POST, length(10)], b"some", end=False)
            await client.until(lambda: first in client.ended and first in client.resets)
            assert client.status(first) == 404 and client.resets[first] == NO_ERROR
            second = client.request(GET)
            await client.whole(second)
            assert second not in client.resets, "its request was whole"
            assert not app.exchanges

    run(main)


@each_engine
@pytest.mark.parametrize("how", ["upper", "crlf", "connection", "authority", "path", "pseudo"])
def test_malformed_request_is_reset_and_its_neighbours_are_not(engine: Name, how: str) -> None:
    """B-48: RST_STREAM(PROTOCOL_ERROR); nothing of it reaches the gateway."""
    bad = {
        "upper": [*GET, (b"X-Upper", b"1")],
        "crlf": [*GET, (b"x", b"a\r\nb: c")],
        "connection": [*GET, (b"connection", b"keep-alive")],
        "authority": [*GET, (b"host", b"other.test")],
        "path": [*GET[:3], (b":path", b"")],
        "pseudo": [*GET, (b":path", b"/v1/other")],
    }[how]

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client(checks=False)
            before = client.request(GET)
            stream_id = client.request(bad)
            await client.until(lambda: stream_id in client.resets)
            after = client.request(GET)
            await client.whole(before, after)
            assert client.resets == {stream_id: PROTOCOL_ERROR}
            assert len(app.exchanges) == 2

    run(main)


@each_engine
def test_trailers_are_dropped(engine: Name) -> None:
    """They end the request and are nobody's."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id = client.request(POST, b"body", end=False)
            client.http2.send_headers(stream_id, [(b"authorization", b"Bearer x")], end_stream=True)
            await client.whole(stream_id)
            assert app.exchanges[0].body == b"body" and app.exchanges[0].head.headers == []

    run(main)


@each_engine
@pytest.mark.parametrize("body", [b"", b"cut"])
def test_body_that_trailers_cut_short_reaches_nobody(engine: Name, body: bytes) -> None:
    """B-49: a length that is not the sum of the DATA frames is malformed, whatever ends them (RFC 9113 §8.1.1)."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id = client.request([*POST, length(10)], end=False)
            if body:
                client.send(stream_id, body)
            client.http2.send_headers(stream_id, [(b"x-late", b"1")], end_stream=True)
            await client.until(lambda: stream_id in client.resets)
            after = client.request(GET)
            await client.whole(after)
            assert client.resets == {stream_id: PROTOCOL_ERROR}
            assert [exchange.head.method for exchange in app.exchanges] == [b"GET"]

    run(main)


@each_engine
def test_client_that_waits_for_100_is_asked_for_its_body(engine: Name) -> None:
    """After the head has passed; not when it was refused."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id = client.request([*POST, (b"expect", b"100-continue"), length(4)], end=False)
            await client.until(lambda: client.interim == [stream_id])
            client.send(stream_id, b"body", end=True)
            await client.whole(stream_id)
            assert app.exchanges[0].body == b"body"
        async with serve(Doorman(), engine) as server:
            client = await server.client()
            stream_id = client.request([*POST, (b"expect", b"100-continue"), length(4)], end=False)
            await client.whole(stream_id)
            assert client.interim == []

    run(main)


class Broken(App):
    """Has a bug: at one of the points at which a connection asks it something."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where: Final = where

    def check_head(self, head: RequestHead) -> Caller:
        if (b"x-break", b"1") in head.headers and self._where == "head":
            raise KeyError("a bug")
        return super().check_head(head)

    def submit(self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller) -> Exchange:
        if (b"x-break", b"1") not in head.headers or self._where == "head":
            return super().submit(client, head, body, caller)
        if self._where == "submit":
            raise KeyError("a bug")
        exchange = BrokenExchange(client, head, body)
        self.exchanges.append(exchange)
        return exchange


class BrokenExchange(Exchange):
    """Has a bug wherever it is told of its client."""

    def client_paused(self) -> None:
        raise KeyError("a bug")

    def client_gone(self, *, stalled: bool = False) -> None:
        raise KeyError("another bug")


@each_engine
@pytest.mark.parametrize("where", ["head", "submit", "submit late", "pause", "gone"])
def test_bug_ends_the_stream_that_met_it_and_no_other(engine: Name, where: str) -> None:
    """RST_STREAM(INTERNAL_ERROR), recorded; its neighbours and later streams are served."""

    async def main() -> None:
        app = Broken(where.split()[0])
        async with serve(app, engine) as server:
            client = await server.client()
            before = client.request(GET)
            if where == "submit late":
                broken = client.request([*POST, (b"x-break", b"1")], b"some ", end=False)
                await client.say()
                client.send(broken, b"and the end", end=True)
            else:
                broken = client.request([*GET, (b"x-break", b"1")])
            await client.say()
            if where in ("pause", "gone"):
                client.held.add(broken)
                await eventually(lambda: len(app.exchanges) == 2)
                n_bytes = 256 * KIB if where == "pause" else 1
                app.exchanges[1].client.begin_reply(200, [], None, bytes(n_bytes), False, has_body=True)
            if where == "gone":
                client.http2.reset_stream(broken, CANCEL)
                await client.say()
                await eventually(lambda: bool(app.crashes))
            else:
                await client.until(lambda: broken in client.resets)
                assert client.resets == {broken: INTERNAL_ERROR}
            n_before = len(app.exchanges)
            after = client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == n_before + 1)
            for exchange in app.exchanges:
                if not isinstance(exchange, BrokenExchange):
                    exchange.answer()
            await client.whole(before, after)
            assert all(isinstance(exc, KeyError) for exc in app.crashes) and app.crashes
            app.crashes.clear()

    run(main)


# -- the room for bodies ----------------------------------------------------------------------------------------------


@each_engine
@pytest.mark.parametrize(
    ("budget", "body_bytes", "reason"),
    [(1 << 20, 1000, Reason.BODY_TOO_LARGE), (1000, 1 << 20, Reason.OVERLOAD_MEMORY)],
)
def test_body_of_unknown_length_is_counted_as_it_comes(
    engine: Name, budget: int, body_bytes: int, reason: Reason
) -> None:
    """At the byte; what it held is given back."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine, budget=budget, body_bytes=body_bytes) as server:
            client = await server.client()
            fits = client.request(POST, bytes(1000))
            await client.whole(fits)
            over = client.request(POST, bytes(1001), end=False)
            await client.until(lambda: over in client.ended and over in client.resets)
            assert [error.reason for error in app.errors] == [reason]
            assert (client.status(over), client.resets[over]) == (reason.fact.status, NO_ERROR)
            assert server.ingress.budget.taken_bytes == 0

    run(main)


@each_engine
def test_announced_body_over_the_limit_is_refused_by_its_head(engine: Name) -> None:
    """B-40: before a byte of it is read."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine, body_bytes=1000) as server:
            client = await server.client()
            stream_id = client.request([*POST, length(1001)], end=False)
            await client.whole(stream_id)
            assert client.status(stream_id) == 413

    run(main)


@each_engine
def test_announced_body_waits_for_room_and_gets_it(engine: Name) -> None:
    """What came meanwhile is no more than its window, and is not lost."""

    async def main() -> None:
        app = App()
        async with serve(app, engine, budget=100 * KIB) as server:
            client = await server.client()
            first = client.request([*POST, length(60 * KIB)], bytes(60 * KIB))
            await client.say()
            await eventually(lambda: len(app.exchanges) == 1)
            body = b"b" * (60 * KIB)
            second = client.request([*POST, length(len(body))], body)
            small = client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 2)
            assert app.exchanges[1].head.method == b"GET", "who has no body waits for no room"
            app.exchanges[1].answer()
            app.exchanges[0].answer()
            await client.whole(first, small)
            await eventually(lambda: len(app.exchanges) == 3)
            assert app.exchanges[2].body == body
            app.exchanges[2].answer()
            await client.whole(second)

    run(main)


@each_engine
@pytest.mark.parametrize("leaves", [False, True])
def test_announced_body_that_gets_no_room_is_refused_or_leaves(engine: Name, leaves: bool) -> None:
    """After the time that a request may wait: 503. Who leaves the line holds nothing."""

    async def main() -> None:
        app = App()
        async with serve(app, engine, budget=100 * KIB) as server:
            client = await server.client()
            first = client.request([*POST, length(60 * KIB)], bytes(60 * KIB))
            await client.say()
            await eventually(lambda: len(app.exchanges) == 1)
            second = client.request([*POST, length(60 * KIB)], bytes(1000), end=False)
            if leaves:
                client.http2.reset_stream(second, CANCEL)
                await client.say()
                app.exchanges[0].answer()
            else:
                await client.whole(second)
                assert client.status(second) == 503
                assert app.errors[0].reason is Reason.OVERLOAD_MEMORY
                app.exchanges[0].answer()
            await client.whole(first)
            await eventually(lambda: server.ingress.budget.taken_bytes == 0)
            assert len(app.exchanges) == 1

    run(main)


@each_engine
def test_long_body_holds_what_has_come_and_gives_way(engine: Name) -> None:
    """What it announces keeps nobody out; where no more fits it is refused, and what it held is free."""
    piece = bytes(30 * KIB)

    async def main() -> None:
        app = App()
        async with serve(app, engine, budget=2 * FIRST_BYTES + 100 * KIB) as server:
            client = await server.client()
            first, second = (client.request([*POST, length(1 << 20)], piece, end=False) for _ in range(2))
            small = client.request([*POST, length(50 * KIB)], bytes(50 * KIB))
            await client.say()
            await eventually(lambda: len(app.exchanges) == 1)
            assert server.ingress.budget.taken_bytes == 2 * FIRST_BYTES + 50 * KIB
            for _ in range(9):
                await client.until(lambda: client.http2.local_flow_control_window(first) >= len(piece))
                client.send(first, piece)
                await client.say()
            await eventually(lambda: server.ingress.budget.taken_bytes == 2 * FIRST_BYTES + 94 * KIB)
            assert not app.errors, "300 KiB of it are here"
            await client.until(lambda: client.http2.local_flow_control_window(first) >= len(piece))
            client.send(first, piece)
            await client.whole(first)
            assert client.status(first) == 503
            assert app.errors[0].reason is Reason.OVERLOAD_MEMORY
            assert server.ingress.budget.taken_bytes == FIRST_BYTES + 50 * KIB
            client.http2.reset_stream(second, CANCEL)
            app.exchanges[0].answer()
            await client.whole(small)

    run(main)


# -- clients that give up ---------------------------------------------------------------------------------------------


@each_engine
def test_client_that_gives_up_one_of_many_harms_no_other(engine: Name) -> None:
    """F-43: its exchange hears of it at once, the others go on."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            ids = [client.request(POST, b"%d" % n) for n in range(20)]
            await client.say()
            await eventually(lambda: len(app.exchanges) == 20)
            for exchange in app.exchanges:
                exchange.client.begin_reply(200, [], None, b"begun ", False, has_body=True)
            client.http2.reset_stream(ids[7], CANCEL)
            await client.say()
            async with asyncio.timeout(PATIENCE_S):
                await app.exchanges[7].gone.wait()
            assert [exchange.gone.is_set() for exchange in app.exchanges].count(True) == 1
            app.exchanges[7].client.body(b"too late", True)  # nothing happens
            for exchange in app.exchanges:
                if not exchange.gone.is_set():
                    exchange.client.body(b"done", True)
                    exchange.client.finish()
            await client.whole(*ids[:7], *ids[8:])

    run(main)


@each_engine
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_client_that_leaves_takes_all_its_requests_with_it(engine: Name, how: str) -> None:
    """Also those whose bodies have not come whole."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            for n in range(5):
                client.request(POST, b"%d" % n)
            client.request([*POST, length(10)], b"half", end=False)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 5)
            leave(client.sock, how)
            async with asyncio.timeout(PATIENCE_S):
                for exchange in app.exchanges:
                    await exchange.gone.wait()
            await eventually(lambda: not server.ingress.connections)
            for exchange in app.exchanges:
                exchange.answer()  # nothing happens

    run(main)


@each_engine
def test_cut_reply_is_reset_and_never_ended(engine: Name) -> None:
    """What came, a last word, RST_STREAM(INTERNAL_ERROR); the next request is served."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id, quiet = client.request(GET), client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 2)
            for exchange in app.exchanges:
                exchange.client.begin_reply(200, [], None, b"some ", False, has_body=True)
            app.exchanges[0].client.cut(b"and why it ends")
            app.exchanges[1].client.cut(b"")
            await client.until(lambda: len(client.resets) == 2)
            assert client.bodies[stream_id] == b"some and why it ends" and client.bodies[quiet] == b"some "
            assert client.resets == {stream_id: INTERNAL_ERROR, quiet: INTERNAL_ERROR}
            assert client.ended == []
            again = client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 3)
            app.exchanges[2].answer()
            await client.whole(again)

    run(main)


@each_engine
def test_head_that_can_not_be_sent_sends_nothing(engine: Name) -> None:
    """CVE-2025-57804: a client behind us might write it as HTTP/1.1."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            stream_id = client.request(GET)
            await client.say()
            await eventually(lambda: len(app.exchanges) == 1)
            with pytest.raises(ValueError, match="CR, LF or NUL"):
                app.exchanges[0].client.begin_reply(200, [(b"x", b"a\r\nb: c")], 0, b"", True, has_body=True)
            app.exchanges[0].client.answer(502, [], b"no", with_body=True, close=False)
            await client.whole(stream_id)
            assert client.status(stream_id) == 502

    run(main)


def leave(sock: socket.socket, how: str) -> None:
    """Close, reset, or close the sending side of a connection."""
    if how == "half":
        sock.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
