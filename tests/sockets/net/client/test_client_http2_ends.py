"""A client's HTTP/2 connection: who reads slowly, who is late, and how a connection begins and ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Final

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame

from tests.patience import PATIENCE_S
from tests.sockets.net.core_http2 import (
    ENGINES,
    GET,
    NOTICE,
    POST,
    LaterLoop,
    Name,
    PeerClient,
    Server,
    asked,
    run,
    serve,
)
from tests.sockets.net.core_ingress import App, Exchange, eventually
from velox.errors import Reason
from velox.net.client.backlog import unsent_bytes
from velox.net.client.http2 import ClientHttp2Connection
from velox.protocol.http2.engine import CANCEL, INTERNAL_ERROR, NO_ERROR, PREFACE

KIB: Final = 1024
MIB: Final = 1 << 20
HTTP1: Final = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
each_engine = pytest.mark.parametrize("engine", ENGINES)


def begin(exchange: Exchange, data: bytes = b"") -> None:
    exchange.client.begin_reply(200, [], None, data, False, has_body=True)


def connection_of(server: Server) -> ClientHttp2Connection:
    (connection,) = server.ingress.connections
    assert isinstance(connection, ClientHttp2Connection)
    return connection


# -- who reads slowly -------------------------------------------------------------------------------------------------


@each_engine
def test_client_that_holds_up_one_stream_holds_up_no_other(engine: Name) -> None:
    """Above 64 KiB that wait for its window, that stream's upstream is held; below, it goes on."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            slow, quick = await asked(client, app, 2)
            held, other = app.exchanges
            client.held.add(slow)
            begin(held, bytes(65_535))
            begin(other, bytes(65_535))
            await client.until(lambda: len(client.bodies[slow]) == len(client.bodies[quick]) == 65_535)
            held.client.body(b"s" * (64 * KIB), False)
            other.client.body(b"q" * MIB, True)
            other.client.finish()
            await client.whole(quick)
            assert not held.paused.is_set(), "64 KiB may wait"
            held.client.body(b"one more", False)
            await held.paused.wait()
            assert held.client.is_write_paused and not held.n_resumed
            client.held.discard(slow)
            client.open_window(slow, MIB)
            await client.until(lambda: held.n_resumed == 1)
            held.client.body(b"", True)
            held.client.finish()
            await client.whole(slow)
            assert len(client.bodies[slow]) == 65_535 + 64 * KIB + 8
            assert client.bodies[slow].endswith(b"one more")

    run(main)


@each_engine
@pytest.mark.parametrize("is_finished", [False, True])
def test_reply_that_waits_for_its_window_too_long_is_given_up(engine: Name, is_finished: bool) -> None:
    """RST_STREAM, its exchange and its bytes are gone; the connection and its other streams go on."""

    async def main() -> None:
        app = App()
        async with serve(app, engine, write_s=0.3) as server:
            client = await server.client(window=0)
            stream_id = client.request(POST, b"body")
            await client.say()
            await eventually(lambda: len(app.exchanges) == 1)
            begin(app.exchanges[0], b"x" * 1000)
            assert server.ingress.budget.taken_bytes == 4
            if is_finished:
                app.exchanges[0].client.body(b"", True)
                app.exchanges[0].client.finish()
                assert server.ingress.budget.taken_bytes == 0, "nobody will read it again"
            await client.until(lambda: stream_id in client.resets)
            assert client.resets[stream_id] == CANCEL and client.bodies[stream_id] == b""
            if not is_finished:
                assert app.exchanges[0].gone.is_set() and app.exchanges[0].stalled
            app.exchanges[0].client.body(b"too late", True)
            (other,) = await asked(client, app, 1)
            client.open_window(other, 100)
            app.exchanges[1].answer(b"fine")
            await client.whole(other)

    run(main)


@each_engine
def test_reply_goes_through_a_window_of_one_byte(engine: Name) -> None:
    """B-50: slow is not late, as long as enough is taken in time."""
    text = b"served one byte at a time"

    async def main() -> None:
        app = App(lambda exchange: exchange.answer(text))
        async with serve(app, engine, write_s=0.5) as server:
            client = await server.client(window=1)
            stream_id = client.request(GET)
            for n in range(len(text)):
                await client.until(lambda n=n: len(client.bodies[stream_id]) == n + 1)  # type: ignore[misc]
            await client.whole(stream_id)
            assert client.bodies[stream_id] == text

    run(main)


@each_engine
def test_client_that_takes_nothing_of_the_connection_is_given_up(engine: Name) -> None:
    """F-45: all its exchanges hear that it stalled. While it takes nothing it is not read from either."""

    async def main() -> None:
        app = App()
        async with serve(app, engine, write_s=0.5) as server:
            client = await server.client(window=16 * MIB, receive_bytes=4096)
            await asked(client, app, 3)
            for exchange in app.exchanges:
                begin(exchange, bytes(4 * MIB))
            await eventually(lambda: bool(server.ingress.paused))
            pings = b"".join(PingFrame(0, b"whenever").serialize() for _ in range(100))
            await asyncio.get_running_loop().sock_sendall(client.sock, pings)
            for exchange in app.exchanges:
                await exchange.gone.wait()
                assert exchange.stalled and exchange.paused.is_set()
            await eventually(lambda: not server.ingress.connections)

    run(main)


@each_engine
def test_slow_client_of_the_connection_that_takes_all_is_served(engine: Name) -> None:
    """The other half: what was paused goes on when there is room."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client(window=16 * MIB, receive_bytes=4096)
            ids = await asked(client, app, 3)
            for exchange in app.exchanges:
                begin(exchange, bytes(2 * MIB))
            for exchange in app.exchanges:
                await exchange.paused.wait()
            for exchange in app.exchanges:
                exchange.client.body(b"end", True)
                exchange.client.finish()
            await client.whole(*ids)
            assert all(len(client.bodies[stream_id]) == 2 * MIB + 3 for stream_id in ids)

    run(main)


# -- who is late ------------------------------------------------------------------------------------------------------


@each_engine
def test_body_that_stops_coming_is_refused_alone(engine: Name) -> None:
    """F-46: 408 for that stream; others go on."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine, body_s=0.3) as server:
            client = await server.client()
            late = client.request(POST, b"half", end=False)
            await client.until(lambda: late in client.ended and late in client.resets)
            assert (client.status(late), client.resets[late]) == (408, NO_ERROR)
            assert [error.reason for error in app.errors] == [Reason.BODY_TIMEOUT]
            after = client.request(GET)
            await client.whole(after)

    run(main)


@each_engine
@pytest.mark.parametrize("what", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half", "preface"])
def test_connection_without_a_request_is_closed(engine: Name, what: bytes) -> None:
    """B-23: in the time that a head may take, as over HTTP/1.1."""

    async def main() -> None:
        async with serve(App(), engine, header_s=0.3) as server:
            sock = await server.connect()
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, what)
            async with asyncio.timeout(PATIENCE_S):
                while await loop.sock_recv(sock, 4096):
                    pass
            await eventually(lambda: not server.ingress.connections)

    run(main)


@each_engine
def test_idle_connection_is_told_and_closed(engine: Name) -> None:
    """GOAWAY names the last stream: a request that crosses it may be sent again."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine, keepalive_s=0.3) as server:
            client = await server.client()
            stream_id = client.request(GET)
            await client.whole(stream_id)
            await client.until_closed()
            assert client.goaways == [(stream_id, NO_ERROR)]

    run(main)


@each_engine
def test_connection_whose_client_says_goaway_is_closed_after_its_streams(engine: Name) -> None:
    """It opens no more: there is nothing to wait for."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            (stream_id,) = await asked(client, app, 1)
            await asyncio.get_running_loop().sock_sendall(client.sock, GoAwayFrame(0).serialize())
            app.exchanges[0].answer()
            await client.whole(stream_id)
            await client.until_closed()

    run(main)


def number_of(kind: type) -> int:
    """Return how many objects of a class there are. A compiled class may have no weak references."""
    return sum(type(each) is kind for each in gc.get_objects())


@each_engine
@pytest.mark.parametrize("how", ["idle", "asking", "fatal"])
def test_connection_that_is_over_is_freed_without_the_collector(engine: Name, how: str) -> None:
    """A worker seldom collects garbage: with the connection its engine goes, its tables and its streams."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            (stream_id,) = await asked(client, app, 1)
            if how == "idle":
                app.exchanges[0].answer()
                await client.whole(stream_id)
            connection = connection_of(server)
            watched, kind = weakref.ref(connection), type(connection.engine)
            del connection
            gc.collect()  # those of other tests are not to go meanwhile
            n_engines = number_of(kind)
            gc.disable()
            try:
                if how == "fatal":
                    loop = asyncio.get_running_loop()
                    await loop.sock_sendall(client.sock, b"\0\0\x04\x03\0\0\0\0\0" + bytes(4))  # RST_STREAM on 0
                    await client.until_closed()
                client.sock.close()
                await eventually(lambda: not server.ingress.connections)
                app.exchanges.clear()
                await eventually(lambda: watched() is None and number_of(kind) == n_engines - 1)
            finally:
                gc.enable()

    run(main)


# -- draining and retiring --------------------------------------------------------------------------------------------


@each_engine
def test_drain_names_the_last_stream_after_a_round_trip(engine: Name) -> None:
    """What is on its way is served, what has begun ends, then the connection closes."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            (first,) = await asked(client, app, 1)
            server.ingress.drain()
            await eventually(lambda: connection_of(server).deadline_s > 0)
            # Not read yet: for this client the connection is as open as before.
            (second,) = await asked(client, app, 1)
            await client.until(lambda: len(client.goaways) == 2)
            assert client.goaways == [(NOTICE, NO_ERROR), (second, NO_ERROR)]
            app.exchanges[1].answer()
            await client.whole(second)
            assert not client.is_closed
            app.exchanges[0].answer()
            await client.whole(first)
            await client.until_closed()
            assert not client.is_reset
            client.sock.close()
            await eventually(lambda: not server.ingress.connections)

    run(main)


@each_engine
def test_reply_that_is_cut_at_the_end_of_a_drain_is_reset_before_the_close(engine: Name) -> None:
    """F-56: the last stream's last word is not lost in the connection's end."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client()
            (stream_id,) = await asked(client, app, 1)
            begin(app.exchanges[0], b"some ")
            server.ingress.drain()
            await client.until(lambda: len(client.goaways) == 2)
            app.exchanges[0].client.cut(b"and why")
            await client.until_closed()
            assert client.resets == {stream_id: INTERNAL_ERROR} and client.bodies[stream_id] == b"some and why"

    run(main)


@each_engine
def test_drain_waits_for_a_slow_client_to_take_its_replies(engine: Name) -> None:
    """Whole in the engine is not whole at the client."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client(window=16 * MIB, receive_bytes=4096)
            ids = await asked(client, app, 2)
            for exchange in app.exchanges:
                exchange.answer(bytes(2 * MIB))
            await eventually(lambda: bool(server.ingress.paused))
            server.ingress.drain()
            await client.until_closed()
            assert sorted(client.ended) == ids and not client.is_reset
            assert client.goaways == [(NOTICE, NO_ERROR), (ids[-1], NO_ERROR)]

    run(main)


@each_engine
@pytest.mark.parametrize("goes_on", [True, False])
def test_last_bytes_of_a_slow_client_are_not_cut_off(engine: Name, goes_on: bool) -> None:
    """What lies in the socket when all is written has the time that any other byte has, and no more.

    Were it closed before, the next WINDOW_UPDATE would be answered by a reset, which overtakes them.
    """

    async def main() -> None:
        app = App()
        loop = LaterLoop(asyncio.get_running_loop())
        async with serve(app, engine, write_s=10.0, ingress_loop=loop) as server:
            client = await server.client(window=512 * KIB, receive_bytes=4096)
            ids = await asked(client, app, 2)
            for exchange in app.exchanges:
                exchange.answer(bytes(2 * MIB))
            connection = connection_of(server)
            server.ingress.drain()
            await client.until(lambda: "LINGER" in repr(connection))
            transport = connection._transport
            assert transport is not None and unsent_bytes(transport) > 64 * KIB
            loop.later_s = 3.0  # more than it is waited for the client's end when it has taken all
            await eventually(lambda: connection.deadline_s > loop.time())
            assert not transport.is_closing()
            if not goes_on:
                while server.ingress.connections:  # its kernel may still take some
                    loop.later_s += 11.0
                    await eventually(lambda: not server.ingress.connections or connection.deadline_s > loop.time())
                return
            await client.until_closed()
            assert sorted(client.ended) == ids and not client.is_reset

    run(main)


@each_engine
@pytest.mark.parametrize("has_asked", [False, True])
def test_drain_waits_for_no_idle_client(engine: Name, has_asked: bool) -> None:
    """A pooled client does not look at its idle connections, and answers no PING: a drain must not wait for it."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            client = await server.client()
            if has_asked:
                await client.whole(client.request(GET))
            server.ingress.drain()
            async with asyncio.timeout(PATIENCE_S):
                while server.ingress.connections:
                    await asyncio.sleep(0.01)
            await client.until_closed()
            assert client.goaways[-1] == (1 if has_asked else 0, NO_ERROR)

    run(main)


@each_engine
def test_connection_that_comes_while_draining_has_one_round_trip(engine: Name) -> None:
    """It was in the listener's queue: its first request is answered."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            server.ingress.draining = True
            client = await server.client()
            stream_id = client.request(GET)
            await client.whole(stream_id)
            await client.until_closed()
            assert client.goaways[-1] == (stream_id, NO_ERROR)

    run(main)


def test_connection_is_retired_after_ten_thousand_streams() -> None:
    """Whatever grows with a connection's age ends with it; no request is lost by that."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, "ngh2") as server:
            client = await server.client()
            for _ in range(9_999 // 99):
                await client.whole(*[client.request(GET) for _ in range(99)])
                client.ended.clear()
                app.exchanges.clear()
            assert not client.goaways
            await client.whole(client.request(GET))
            await client.until(lambda: len(client.goaways) == 2)
            last = 2 * 10_000 - 1
            assert client.goaways == [(NOTICE, NO_ERROR), (last, NO_ERROR)]
            await client.until_closed()

    run(main)


@each_engine
@pytest.mark.parametrize("is_busy", [False, True])
def test_connection_is_retired_after_an_hour(engine: Name, is_busy: bool) -> None:
    """Also one that is never idle; its streams end in peace."""

    async def main() -> None:
        app = App()
        loop = LaterLoop(asyncio.get_running_loop())
        async with serve(app, engine, keepalive_s=7200.0, ingress_loop=loop) as server:
            client = await server.client()
            (first,) = await asked(client, app, 1)
            if not is_busy:
                app.exchanges[0].answer()
                await client.whole(first)
            loop.later_s = 3599.0
            await asyncio.sleep(0.3)
            assert not client.http2.data_to_send() and connection_of(server).deadline_s
            loop.later_s = 3601.0
            await client.until(lambda: bool(client.goaways))
            if is_busy:
                app.exchanges[0].answer()
                await client.whole(first)
            await client.until_closed()
            assert client.goaways[-1] == (first, NO_ERROR)

    run(main)


# -- who speaks what --------------------------------------------------------------------------------------------------


@each_engine
def test_first_bytes_tell_which_http_it_is(engine: Name) -> None:
    """However they are cut; on one listener."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine) as server:
            loop = asyncio.get_running_loop()
            post = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"
            for cut, request in ((1, HTTP1), (1, post), (2, post), (len(post), post)):
                sock = await server.connect()
                await loop.sock_sendall(sock, request[:cut])
                await asyncio.sleep(0.01)
                await loop.sock_sendall(sock, request[cut:])
                assert (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 200 ")
            for cut in (1, 3, 23):
                sock = await server.connect()
                client = PeerClient(sock)
                said = client.http2.data_to_send()
                await loop.sock_sendall(sock, said[:cut])
                await asyncio.sleep(0.01)
                await loop.sock_sendall(sock, said[cut:])
                await client.whole(client.request(GET))
            assert server.ingress.n_http2 == 3

    run(main)


def test_preface_is_refused_while_http2_is_off() -> None:
    """B-22: 400, and the connection closes."""

    async def main() -> None:
        async with serve(App(), None) as server:
            sock = await server.connect()
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, PREFACE)
            assert (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 400 ")
            assert await loop.sock_recv(sock, 4096) == b""

    run(main)


def test_what_tls_agreed_on_is_what_is_spoken() -> None:
    """After a handshake nobody looks at first bytes: "http/1.1" is not HTTP/2, and "h2" is nothing else."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        app = App(lambda exchange: exchange.answer())
        async with serve(app, "ngh2", alpn="http/1.1") as server:
            sock = await server.connect()
            await loop.sock_sendall(sock, PREFACE)
            assert (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 400 ")
        async with serve(app, "ngh2", alpn="h2") as server:
            client = await server.client()
            await client.whole(client.request(GET))
            sock = await server.connect()
            await loop.sock_sendall(sock, HTTP1)
            got = b""
            while piece := await loop.sock_recv(sock, 4096):
                got += piece
            assert b"HTTP/1.1" not in got

    run(main)


@each_engine
def test_connection_too_many_is_told_that_nothing_was_processed(engine: Name) -> None:
    """Over TLS by GOAWAY; a plain one is refused before it has said what it speaks."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, engine, alpn="h2", max_connections=1) as server:
            taken = await server.client()
            await taken.whole(taken.request(GET))
            for _ in range(3):
                refused = await server.client()
                refused.request(GET)
                await refused.until_closed()
                assert refused.goaways == [(0, NO_ERROR)] and not refused.ended
                refused.sock.close()
                await eventually(lambda: len(server.ingress.connections) == 1)
            await taken.whole(taken.request(GET))
        async with serve(app, engine, max_connections=1) as server:
            taken = await server.client()
            await taken.whole(taken.request(GET))
            sock = await server.connect()
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, PREFACE)
            assert (await loop.sock_recv(sock, 4096)).startswith(b"HTTP/1.1 503 ")

    run(main)
