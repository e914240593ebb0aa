"""Clients that speak HTTP/2 with the gateway: the SDK, nghttp, h2load, and one that does what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Final

import httpx
import openai
import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream
from tests.e2e.tools import CHAT, CHAT_STREAM, covers, settled
from tests.e2e.upstreams import CHAT_SSE, Certificates, chat_chunk, find_tool
from tests.sockets.net.core_http2 import NOTICE, PeerClient
from tests.untrusting import NO_TRUST
from velox.heads import Header
from velox.protocol.http2.engine import CANCEL, INTERNAL_ERROR, NO_ERROR

# How the gateway speaks with its upstream; the engine is the one of both sides.
KINDS: Final = ("http1-ngh2", "http1-h2", "http2-ngh2", "http2-h2")
EVENTS: Final = chat_chunk("one ")
_BASE: Final[list[Header]] = [(b":scheme", b"http"), (b":authority", b"velox.test")]
POST: Final[list[Header]] = [(b":method", b"POST"), *_BASE, (b":path", b"/v1/chat/completions")]
POST += [(b"content-type", b"application/json")]
GET: Final[list[Header]] = [(b":method", b"GET"), *_BASE, (b":path", b"/v1/models")]


@pytest.fixture(scope="module", params=KINDS)
def front(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Wall]:
    """A gateway of one worker that clients may speak HTTP/2 with, and the scripted upstream behind it."""
    up, engine = request.param.split("-")
    is_http2 = up == "http2"
    with RecordingUpstream(http2=is_http2, certificates=certificates if is_http2 else None) as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all", "VELOX_RATE_LIMIT_RPM": "0"}
        env |= {"VELOX_LISTEN_HTTP2": "on", "VELOX_HTTP2_ENGINE": engine, "VELOX_EGRESS_POOL_CONNECTIONS": "1"}
        with VeloxProcess({**env, "VELOX_CLIENT_WRITE_TIMEOUT": "2s"}) as velox:
            velox.wait_warm()
            yield Wall("http1" if up == "http1" else engine, upstream, velox, velox.openai())


@pytest.fixture
def wall(front: Wall) -> Iterator[Wall]:
    """The gateway for one test: afterwards it is healthy and holds nothing that it did not hold before."""
    front.check_health()
    # Connections to the upstream that were needed once are kept for a while: as many as there were requests at once,
    # and those whose request another one has taken in the meantime.
    with settled(front.velox, http1_spares=4 if front.is_http2 else 400):
        yield front
    front.check_health()
    front.velox.wait_metric("velox_client_http2_connections", lambda n: n == 0)


@contextlib.contextmanager
def http2_sdk(velox: VeloxProcess) -> Iterator[openai.OpenAI]:
    """Return the SDK over HTTP/2 by prior knowledge."""
    with (
        httpx.Client(http1=False, http2=True, timeout=10) as client,
        openai.OpenAI(base_url=f"{velox.base_url}/v1", api_key=KEY, http_client=client, max_retries=0) as sdk,
    ):
        yield sdk


@contextlib.asynccontextmanager
async def connected(velox: VeloxProcess, *, window: int = 65_535) -> AsyncIterator[PeerClient]:
    sock = socket.create_connection(("127.0.0.1", velox.port))
    sock.setblocking(False)
    try:
        async with asyncio.timeout(30):
            client = PeerClient(sock, window=window)
            await client.until(lambda: client.http2.outbound_flow_control_window > 65_535)
            yield client
    finally:
        sock.close()


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


async def in_thread(wait: Callable[[], object]) -> None:
    """Wait for what the upstream's thread tells."""
    await asyncio.get_running_loop().run_in_executor(None, wait)


# -- the usual --------------------------------------------------------------------------------------------------------


@covers("VELOX_LISTEN_HTTP2")
def test_sdk_gets_whole_answers_over_http2(wall: Wall) -> None:
    """Plain and streamed; the upstream's request is built as for any client."""
    with http2_sdk(wall.velox) as sdk:
        for _ in range(3):
            reply = sdk.chat.completions.with_raw_response.create(
                model="m", messages=[{"role": "user", "content": "x"}]
            )
            assert reply.http_response.http_version == "HTTP/2"
            assert reply.parse().choices[0].message.content == "Hello from afar."
            assert reply.headers["x-request-id"] == "req_upstream"
            stream = sdk.chat.completions.create(model="m", messages=[], stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello from afar."
        with pytest.raises(openai.BadRequestError, match="not an object"):
            sdk.post("/chat/completions", cast_to=object, body=[1])


def test_request_goes_up_as_the_same_request_of_http1_does(wall: Wall) -> None:
    """Method, target, fields and body; nothing of HTTP/2's own."""
    url = f"{wall.velox.base_url}/v1/chat/completions?x=1&y=%20"
    headers = {"x-mine": "1", "cookie": "a=b", "te": "trailers", "content-type": "application/json"}
    wall.upstream.forget()
    for client in (httpx.Client(verify=NO_TRUST), httpx.Client(http1=False, http2=True)):
        with client:
            assert client.post(url, content=CHAT, headers=headers).status_code == 200

    over_http1, over_http2 = wall.upstream.calls
    assert (over_http2.method, over_http2.target, over_http2.body) == ("POST", "/v1/chat/completions?x=1&y=%20", CHAT)
    assert sorted(over_http1.headers) == sorted(over_http2.headers)
    assert not {"te", "cookie", ":path", "transfer-encoding"} & {name for name, _ in over_http2.headers[4:]}


def test_http1_is_spoken_on_the_same_listener(wall: Wall) -> None:
    """Who does not begin with the preface is not asked to."""
    assert wall.velox.request("GET", "/v1/models").status == 200
    with wall.velox.connect() as sock:
        sock.sendall(b"PRI * HTTP/1.1\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_hundred_requests_share_one_connection(wall: Wall) -> None:
    """Streams of a hundred clients' worth, side by side; one connection is counted."""

    async def main() -> None:
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(http1=False, http2=True, limits=limits, timeout=20) as client:
            url = f"{wall.velox.base_url}/v1/chat/completions"
            json_type = {"content-type": "application/json"}
            asked = [client.post(url, content=CHAT_STREAM, headers=json_type) for _ in range(100)]
            for reply in await asyncio.gather(*asked):
                assert (reply.status_code, reply.content) == (200, CHAT_SSE)
            assert wall.velox.wait_metric("velox_client_http2_connections", lambda n: n == 1)

    run(main)


def test_large_bodies_pass_both_ways(wall: Wall) -> None:
    """More than any window."""
    body = json.dumps({"model": "m", "input": "x" * (5 << 20)}).encode()

    async def echo(call: Call) -> None:
        await call.head(200, JSON)
        for at in range(0, len(call.body), 10_000):
            await call.data(call.body[at : at + 10_000])
            await call.drain()
        await call.end()

    with wall.upstream.playing(echo), httpx.Client(http1=False, http2=True, timeout=30) as client:
        url = f"{wall.velox.base_url}/v1/embeddings"
        reply = client.post(url, content=body, headers={"content-type": "application/json"})

    assert reply.content == body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_nghttp_is_served(wall: Wall, path: str, tmp_path: Path) -> None:
    """A client of another house, frame by frame: its log shows END_STREAM and no reset."""
    command = [find_tool("nghttp"), "-v", "--no-dep", f"{wall.velox.base_url}{path}"]
    if "chat" in path:
        body = tmp_path / "chat.json"
        body.write_bytes(CHAT)
        command[1:1] = ["-d", str(body), "-H", "content-type: application/json"]
    done = subprocess.run(command, capture_output=True, timeout=20, check=True)

    assert b":status: 200" in done.stdout and b"END_STREAM" in done.stdout
    assert b"recv RST_STREAM" not in done.stdout


def test_sdk_speaks_http2_over_a_unix_socket(tmp_path: Path) -> None:
    """As a sidecar's client would: the first bytes tell there, too."""
    path = tmp_path / "velox.sock"
    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_LISTEN": f"unix:{path}", "VELOX_LISTEN_HTTP2": "on"}
        transport = httpx.HTTPTransport(http1=False, http2=True, uds=str(path))
        with (
            VeloxProcess(env),
            httpx.Client(transport=transport) as client,
            openai.OpenAI(base_url="http://velox.test/v1", api_key=KEY, http_client=client, max_retries=0) as sdk,
        ):
            reply = sdk.chat.completions.with_raw_response.create(model="m", messages=[])
            assert reply.http_response.http_version == "HTTP/2"
            assert reply.parse().choices[0].message.content == "Hello from afar."


def test_h2load_finds_no_failure(wall: Wall) -> None:
    """2,000 requests, 50 side by side on each of 4 connections."""
    command = [find_tool("h2load"), "-n", "2000", "-c", "4", "-m", "50", f"{wall.velox.base_url}/v1/models"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)

    assert b"2000 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout, done.stdout.decode()


# -- clients that leave, or read slowly -------------------------------------------------------------------------------


def test_client_that_gives_up_one_of_many_cancels_that_one(wall: Wall) -> None:
    """The upstream is told at once, the siblings end whole, nothing leaks."""

    async def slow(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(EVENTS)
        await call.drain()
        await call.step()
        await call.data(b"data: [DONE]\n\n")
        await call.end()

    async def main() -> None:
        async with connected(wall.velox) as client:
            ids = [client.request(POST, CHAT_STREAM) for _ in range(10)]
            await client.until(lambda: all(client.bodies[stream_id] == EVENTS for stream_id in ids))
            client.http2.reset_stream(ids[3], CANCEL)
            await client.say()
            await in_thread(lambda: upstream.wait(lambda: any(call.left_s for call in upstream.calls), "one is left"))
            assert sum(call.left_s > 0 for call in upstream.calls) == 1
            upstream.step(9)
            await client.whole(*ids[:3], *ids[4:])
            assert all(client.bodies[stream_id].endswith(b"[DONE]\n\n") for stream_id in client.ended)

    with wall.upstream.playing(slow) as upstream:
        run(main)
    assert wall.velox.wait_access(lambda line: line["reason"] == "client_closed")["status"] == 499


@pytest.mark.parametrize("begun", [False, True])
def test_client_that_closes_cancels_all_its_streams(wall: Wall, begun: bool) -> None:
    """Before the first byte, and in the middle."""

    async def silent(call: Call) -> None:
        if begun:
            await call.head(200, SSE)
            await call.data(EVENTS)
        await call.silence()

    async def main() -> None:
        async with connected(wall.velox) as client:
            ids = [client.request(POST, CHAT_STREAM) for _ in range(5)]
            await client.say()
            await in_thread(lambda: upstream.wait_call(5))
            if begun:
                await client.until(lambda: all(client.bodies[stream_id] == EVENTS for stream_id in ids))
        for call in list(upstream.calls):
            await in_thread(lambda call=call: upstream.wait_left(call))  # type: ignore[misc]

    with wall.upstream.playing(silent) as upstream:
        run(main)


def test_many_cancels_leak_nothing(wall: Wall) -> None:
    """More than a connection has streams: each slot, stream and descriptor is back (F-43)."""

    async def silent(call: Call) -> None:
        await call.silence()

    async def main() -> None:
        async with connected(wall.velox) as client:
            for round_number in range(1, 6):
                ids = [client.request(POST, CHAT) for _ in range(15)]
                await client.say()
                await in_thread(lambda n=15 * round_number: upstream.wait_call(n))  # type: ignore[misc]
                for stream_id in ids:
                    client.http2.reset_stream(stream_id, CANCEL)
                await client.say()
                for call in list(upstream.calls):
                    await in_thread(lambda call=call: upstream.wait_left(call))  # type: ignore[misc]
            assert not client.goaways, "no client that resembles this one is a flood"

    with wall.upstream.playing(silent) as upstream:
        run(main)


def test_client_that_reads_one_stream_slowly_holds_up_only_that_one(wall: Wall) -> None:
    """Its upstream is held, the neighbours' are not; given up after VELOX_CLIENT_WRITE_TIMEOUT."""

    async def pour(call: Call) -> None:
        await call.head(200, JSON)
        if b"pour" in call.body:
            while not call.left_s:
                await call.data(b"z" * 65_536)
                await call.drain()
        else:
            await call.data(b"y" * 500_000)
            await call.end()

    async def main() -> None:
        async with connected(wall.velox) as client:
            slow = client.request(POST, b'{"model":"pour"}')
            client.held.add(slow)
            await client.until(lambda: len(client.bodies[slow]) == 65_535)
            quick = [client.request(POST, CHAT) for _ in range(5)]
            await client.whole(*quick)
            assert {len(client.bodies[stream_id]) for stream_id in quick} == {500_000}
            assert len(client.bodies[slow]) == 65_535 and slow not in client.resets
            await client.until(lambda: slow in client.resets)
            assert client.resets[slow] == CANCEL
            await client.whole(client.request(GET))

    with wall.upstream.playing(pour) as upstream:
        run(main)
        upstream.wait_left(next(call for call in upstream.calls if b"pour" in call.body))
    assert wall.velox.wait_access(lambda line: line["reason"] == "client_slow")["status"] == 499


# -- replies that are not whole, requests that are refused ------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "lose"])
def test_cut_stream_is_an_error_event_and_a_reset(wall: Wall, how: str) -> None:
    """No [DONE], no END_STREAM; the next request on the connection is served."""

    async def script(call: Call) -> None:
        if "models" in call.target:
            await call.reply(200, JSON, b"{}")
            return
        await call.head(200, SSE)
        await call.data(EVENTS)
        await call.drain()
        await call.step()
        call.cut() if how == "cut" else call.lose()

    async def main() -> None:
        async with connected(wall.velox) as client:
            stream_id = client.request(POST, CHAT_STREAM)
            await client.until(lambda: client.bodies[stream_id] == EVENTS)
            upstream.step()
            await client.until(lambda: stream_id in client.resets)
            assert client.resets[stream_id] == INTERNAL_ERROR and stream_id not in client.ended
            last = client.bodies[stream_id].removeprefix(EVENTS).removeprefix(b"data: ")
            assert json.loads(last)["error"]["type"] == "upstream_error"
            await client.whole(client.request(GET))

    with wall.upstream.playing(script) as upstream:
        run(main)


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["plain", "stream"])
def test_sdk_raises_on_a_reply_that_was_cut(wall: Wall, body: bytes) -> None:
    """An answer that is not whole is never taken for one."""

    async def script(call: Call) -> None:
        await call.head(200, SSE if body is CHAT_STREAM else JSON)
        await call.data(EVENTS if body is CHAT_STREAM else b'{"id":"x","choices":[')
        await call.drain()
        call.cut()

    with wall.upstream.playing(script), http2_sdk(wall.velox) as sdk, pytest.raises(openai.APIError):
        if body is CHAT_STREAM:
            list(sdk.chat.completions.create(model="m", messages=[], stream=True))
        else:
            sdk.chat.completions.create(model="m", messages=[])


def test_upload_that_is_refused_is_answered_before_it_is_whole(wall: Wall) -> None:
    """RFC 9113 §8.1: the answer, END_STREAM, then RST_STREAM(NO_ERROR); httpx shows the answer."""

    async def main() -> None:
        async with connected(wall.velox) as client:
            head = [*POST[:3], (b":path", b"/admin"), *POST[4:], (b"content-length", b"100")]
            stream_id = client.request(head, b"some", end=False)
            await client.until(lambda: stream_id in client.ended and stream_id in client.resets)
            assert (client.status(stream_id), client.resets[stream_id]) == (404, NO_ERROR)
            assert json.loads(client.bodies[stream_id])["error"]["code"] == "unknown_route"
            await client.whole(client.request(GET))

    run(main)


# -- the end ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def draining(engine: str, timeout: str) -> Iterator[tuple[RecordingUpstream, VeloxProcess]]:
    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_LISTEN_HTTP2": "on", "VELOX_DRAIN_TIMEOUT": timeout}
        with VeloxProcess({**env, "VELOX_HTTP2_ENGINE": engine}) as velox:
            yield upstream, velox


async def one_event(call: Call) -> None:
    await call.head(200, SSE)
    await call.data(EVENTS)
    await call.drain()
    await call.step()
    await call.data(b"data: [DONE]\n\n")
    await call.end()


@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_sigterm_lets_streams_end_and_takes_no_more(engine: str) -> None:
    """GOAWAY twice, the streams get their window, exit 0."""

    async def main(upstream: RecordingUpstream, velox: VeloxProcess) -> None:
        async with connected(velox) as client:
            ids = [client.request(POST, CHAT_STREAM) for _ in range(20)]
            await client.until(lambda: all(client.bodies[stream_id] == EVENTS for stream_id in ids))
            velox.signal(signal.SIGTERM)
            await client.until(lambda: len(client.goaways) == 2)
            assert client.goaways == [(NOTICE, NO_ERROR), (ids[-1], NO_ERROR)]
            upstream.step(20)
            await client.whole(*ids)
            assert all(client.bodies[stream_id].endswith(b"[DONE]\n\n") for stream_id in ids)
            await client.until_closed()
            assert not client.is_reset

    with draining(engine, "20s") as (upstream, velox), upstream.playing(one_event):
        asyncio.run(main(upstream, velox))
        assert velox.wait() == 0


@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_streams_that_outlast_the_drain_are_told_and_reset(engine: str) -> None:
    """F-56: an error event `draining`, then RST_STREAM; those that had no byte yet get 503."""

    async def script(call: Call) -> None:
        if call.target.endswith("/models"):
            await call.silence()
        await one_event(call)

    async def main(upstream: RecordingUpstream, velox: VeloxProcess) -> None:
        async with connected(velox) as client:
            streaming = client.request(POST, CHAT_STREAM)
            await client.until(lambda: client.bodies[streaming] == EVENTS)
            waiting = client.request(GET)
            await client.say()
            await in_thread(lambda: upstream.wait_call(2))
            velox.signal(signal.SIGTERM)
            await client.until(lambda: streaming in client.resets and waiting in client.ended)
            last = client.bodies[streaming].removeprefix(EVENTS).removeprefix(b"data: ")
            assert json.loads(last)["error"]["code"] == "draining"
            assert client.resets[streaming] == INTERNAL_ERROR and streaming not in client.ended
            assert client.status(waiting) == 503
            await client.until_closed()

    with draining(engine, "1s") as (upstream, velox), upstream.playing(script):
        asyncio.run(main(upstream, velox))
        assert velox.wait() == 0
