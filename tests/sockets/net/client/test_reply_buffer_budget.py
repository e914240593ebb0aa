"""What all replies of one HTTP/2 connection may hold together: who is held when it is much, and who goes on."""

from __future__ import annotations

from typing import Final

import pytest

from tests.sockets.net.core_http2 import ENGINES, GET, Name, Server, asked, run, serve
from tests.sockets.net.core_ingress import App, Exchange, eventually
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.reply_buffer_budget import MAX_AHEAD, ReplyBufferBudget, held_bytes
from velox.protocol.http2.engine import CANCEL, REFUSED_STREAM, SendQueue

KIB: Final = 1024
MIB: Final = 1 << 20
each_engine = pytest.mark.parametrize("engine", ENGINES)


def begin(exchange: Exchange, n_bytes: int) -> None:
    exchange.client.begin_reply(200, [], None, bytes(n_bytes), False, has_body=True)


def room_of(server: Server) -> ReplyBufferBudget:
    (connection,) = server.ingress.connections
    assert isinstance(connection, ClientHttp2Connection)
    return connection.reply_budget


@each_engine
def test_full_room_holds_all_streams_and_takes_no_more(engine: Name) -> None:
    """In the turn in which it becomes full, also those without a reply yet; afterwards all go on."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client(window=0)
            *stalled, quiet = await asked(client, app, 18)
            *giving, silent = app.exchanges
            for n, exchange in enumerate(giving):
                assert not silent.paused.is_set(), n
                begin(exchange, 128 * KIB)
            assert all(exchange.paused.is_set() for exchange in app.exchanges), "before anything is written"
            assert silent.client.is_write_paused, "also who begins an attempt now is told"
            refused = client.request(GET)
            await client.until(lambda: refused in client.resets)
            assert client.resets == {refused: REFUSED_STREAM} and len(app.exchanges) == 18

            for stream_id in stalled[:4]:
                client.open_window(stream_id, 128 * KIB)
            await client.until(lambda: all(len(client.bodies[stream_id]) == 128 * KIB for stream_id in stalled[:4]))
            await eventually(lambda: silent.n_resumed == 1)
            assert [exchange.n_resumed for exchange in giving] == [1] * 4 + [0] * 13
            client.open_window(quiet, 100)
            silent.answer(b"fine")
            await client.whole(quiet)
            (again,) = await asked(client, app, 1)
            client.open_window(again, 100)
            app.exchanges[-1].answer()
            await client.whole(again)

    run(main)


@each_engine
@pytest.mark.parametrize("how", ["reset", "late"])
def test_streams_that_are_given_up_make_room(engine: Name, how: str) -> None:
    """Whoever ends them; nothing is left on the account."""

    async def main() -> None:
        app = App()
        async with serve(app, engine, write_s=0.5 if how == "late" else 5.0) as server:
            client = await server.client(window=0)
            *stalled, _quiet = await asked(client, app, 18)
            *giving, silent = app.exchanges
            for exchange in giving:
                begin(exchange, 128 * KIB)
            assert room_of(server).is_full
            if how == "reset":
                for stream_id in stalled:
                    client.http2.reset_stream(stream_id, CANCEL)
                await client.say()
            await eventually(lambda: silent.n_resumed == 1)
            await eventually(lambda: room_of(server).n_bytes == 0)

    run(main)


@each_engine
def test_twenty_streams_that_are_not_read_hold_up_no_other(engine: Name) -> None:
    """Nor do those beside them, which then may have 16 KiB each; not even where its own reply fills what is left."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client(window=0)
            await asked(client, app, 80)
            stalled = list(app.exchanges)
            for exchange in stalled[:20]:
                begin(exchange, 64 * KIB + 1)
                await exchange.paused.wait()
            for exchange in stalled[20:]:
                begin(exchange, 1)
            (quick,) = await asked(client, app, 1)
            active = app.exchanges[-1]
            client.open_window(quick, 8 * MIB)
            begin(active, 0)
            # One after the other: each may have no more than it has when it is held.
            for exchange in stalled[20:56]:
                exchange.client.body(bytes(16 * KIB), False)
                await exchange.paused.wait()
            for n in range(1, 17):
                active.client.body(bytes(256 * KIB), False)
                assert room_of(server).is_full
                await client.until(lambda n=n: len(client.bodies[quick]) == n * 256 * KIB)  # type: ignore[misc]
                await eventually(lambda n=n: active.n_resumed == n)  # type: ignore[misc]
            active.client.body(b"", True)
            active.client.finish()
            await client.whole(quick)
            assert not any(exchange.n_resumed for exchange in stalled[:56])

    run(main)


@each_engine
def test_sixteen_replies_may_run_ahead_and_the_next_when_one_of_them_is_over(engine: Name) -> None:
    """Whoever ends it. Over HTTP/2 an upstream may send so much whatever is held."""

    async def main() -> None:
        app = App()
        async with serve(app, engine) as server:
            client = await server.client(window=0)
            first, second, *_ = await asked(client, app, MAX_AHEAD + 2)
            assert [exchange.client.may_run_ahead for exchange in app.exchanges] == [True] * MAX_AHEAD + [False] * 2
            client.http2.reset_stream(first, CANCEL)
            await asked(client, app, 2)
            begin(app.exchanges[1], 1)
            app.exchanges[1].client.body(b"", True)
            app.exchanges[1].client.finish()
            await asked(client, app, 1)
            client.open_window(second, 1)
            await client.whole(second)
            await asked(client, app, 2)
            later = app.exchanges[MAX_AHEAD + 2 :]
            assert [exchange.client.may_run_ahead for exchange in later] == [True, False, False, True, False]

    run(main)


def test_account_of_a_stream_counts_what_is_kept_and_not_only_what_is_left() -> None:
    """A block of which a part has gone is kept as a whole, or copied."""
    assert held_bytes(0, 5 * MIB) == 0
    assert held_bytes(1000, 1000) == 1000, "nothing has gone: it is what it is"
    assert held_bytes(1, 128 * KIB) == 64 * KIB + 2
    assert held_bytes(100 * KIB, 128 * KIB) == 128 * KIB

    queue = SendQueue()
    queue.push(bytes(128 * KIB), False)
    while queue.n_bytes > 1:
        queue.take(min(16 * KIB, queue.n_bytes - 1))
        (chunk,) = queue._chunks
        assert memoryview(memoryview(chunk).obj).nbytes <= 2 * queue.n_bytes + 16 * KIB
