"""What no single vector shows: how far ahead a client is read, whom it can make us speak to, its body over HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import uvloop

from tests.e2e.harness import VeloxProcess, read_reply
from tests.sockets.net.core_ingress import App, Exchange, Server, eventually, serve
from tests.vectors.play import COMMON
from tests.vectors.recorder import Recorder
from tests.vectors.vector import GET, json_request, request
from velox.protocol.http2.engine import EngineFactory
from velox.protocol.http2.engines import engine_factory

# And one read.
MOST_BYTES = 2 * 64 * 1024
BUFFERED = re.compile(r"buffered=(\d+)")


def held_bytes(server: Server) -> int:
    """Return what the one connection holds of requests that are not begun."""
    (connection,) = server.ingress.connections
    return int(BUFFERED.search(repr(connection))[1])  # type: ignore[index]


@contextlib.asynccontextmanager
async def far_ahead(app: App, make_engine: EngineFactory | None, wire: bytes) -> AsyncIterator[Server]:
    """Serve a client that sends many megabytes ahead; every way in which a plain socket is read."""
    async with serve(app, http2=make_engine) as server:
        client = await server.connect()
        ahead = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(client, wire))
        await eventually(lambda: len(app.exchanges) == 1)
        yield server
        assert not ahead.done(), "the rest is in the kernel, and with the client"
        ahead.cancel()
        client.close()


@pytest.mark.parametrize("make_engine", [None, engine_factory("h2")], ids=["http1", "first bytes looked at"])
def test_client_that_sends_far_ahead_is_read_no_further(make_engine: EngineFactory | None) -> None:
    """While a request is being answered, the next ones stay bytes, and most of them in the kernel."""

    async def main() -> None:
        app = App(lambda exchange: None)  # it is not answered
        async with far_ahead(app, make_engine, request(GET) * 400_000) as server:
            held = []

            def has_stopped() -> bool:
                held.append(held_bytes(server))
                return len(held) > 50 and len(set(held[-50:])) == 1 and held[-1] > 0

            await eventually(has_stopped)
            assert 64 * 1024 < held[-1] <= MOST_BYTES
            assert len(app.exchanges) == 1

    uvloop.run(main())


def test_answers_let_no_more_be_read_than_they_make_room_for() -> None:
    """A small request that is answered is no reason for another read while the limit is still exceeded."""

    async def main() -> None:
        held = []
        answered = asyncio.Event()

        def answer(exchange: Exchange) -> None:
            held.append(held_bytes(server))
            exchange.answer()
            if len(held) == 2000:
                answered.set()

        app = App(answer)
        async with serve(app) as server:
            client = await server.connect()
            loop = asyncio.get_running_loop()
            ahead = asyncio.ensure_future(loop.sock_sendall(client, request(GET) * 400_000))

            async def take() -> None:
                while await loop.sock_recv(client, 1 << 20):
                    pass

            replies = asyncio.ensure_future(take())
            await answered.wait()
            ahead.cancel()
            replies.cancel()
            client.close()
        assert 64 * 1024 < max(held) <= MOST_BYTES

    uvloop.run(main())


@pytest.mark.parametrize("size", [200_000, 64 * 1024 + 1])
def test_request_that_is_longer_than_what_may_wait_is_read_on(size: int) -> None:
    """The limit is one on requests that wait: the open one gets all of its body, and the next ones theirs."""

    async def main() -> None:
        bodies = []

        def answer(exchange: Exchange) -> None:
            bodies.append(exchange.body)
            exchange.answer()

        app = App(answer)
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        wire = (b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + body) * 10
        async with serve(app) as server:
            client = await server.connect()
            ahead = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(client, wire))
            await eventually(lambda: len(bodies) == 10)
            await ahead
            client.close()
        assert all(each == body for each in bodies)

    uvloop.run(main())


@contextlib.contextmanager
def trap() -> Iterator[tuple[int, list[str]]]:
    """Yield the port of a listener that nobody has a reason to connect to, and who did."""
    listener = socket.create_server(("127.0.0.1", 0))
    caught: list[str] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, address = listener.accept()
                caught.append(repr(address))
                sock.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], caught
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


@pytest.fixture(scope="module")
def velox(upstream: Recorder) -> Iterator[VeloxProcess]:
    with VeloxProcess({**COMMON, "VELOX_UPSTREAM_ORIGIN": upstream.url}) as process:
        upstream.wait_warm()
        yield process


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("announced", [True, False], ids=["length", "no length"])
def test_body_without_meaning_is_refused_over_http2_too(upstream: Recorder, method: str, announced: bool) -> None:
    """B-12: on its way up it would be HTTP/1.1, whatever it came as. The connection lives on."""
    env = {**COMMON, "VELOX_UPSTREAM_ORIGIN": upstream.url, "VELOX_LISTEN_HTTP2": "on"}
    with VeloxProcess(env) as process, httpx.Client(http1=False, http2=True, trust_env=False) as client:
        upstream.take()
        content = b"hello" if announced else iter([b"hel", b"lo"])
        refused = client.request(method, f"{process.base_url}/v1/models", content=content)
        passed = client.get(f"{process.base_url}/v1/models")

    assert (refused.http_version, refused.status_code) == ("HTTP/2", 400)
    assert refused.headers["x-velox-reason"] == "bad_request"
    assert passed.status_code == 200
    assert len(upstream.take()) == 1


def test_nobody_connects_to_what_a_request_names(velox: VeloxProcess) -> None:
    """B-29, B-30: addresses in heads, targets and bodies are data. A listener at each of them hears nothing."""
    with trap() as (port, caught):
        url = f"http://127.0.0.1:{port}/"
        names = ("x-target-url", "x-portkey-custom-host", "x-upstream", "x-api-base", "forwarded", "x-forwarded-host")
        wires = [request(GET, f"{name}: {url}".encode()) for name in names]
        wires += [
            request(GET, host=f"Host: 127.0.0.1:{port}".encode()),
            request(f"GET {url} HTTP/1.1".encode()),
            request(f"GET /v1/models?url={url} HTTP/1.1".encode()),
            request(f"CONNECT 127.0.0.1:{port} HTTP/1.1".encode()),
        ]
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url + "a.png"}}]}]
        wires += [
            json_request(json.dumps({"model": "m", **fields}).encode())
            for fields in (
                {"api_base": url},
                {"base_url": url},
                {"custom_host": url},
                {"fallbacks": [{"api_base": url}]},
                {"extra_headers": {"host": url}},
                {"messages": image},
                {"model_url": url, "webhook": url, "file": url},
            )
        ]
        for wire in wires:
            with velox.connect() as sock:
                sock.sendall(wire)
                assert read_reply(sock).status in (200, 400, 405)

    assert caught == []
