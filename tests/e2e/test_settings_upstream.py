"""Settings of the way up: where requests go, how the gateway connects, and how long it waits for what."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import SSE, Call, RecordingUpstream, healthy
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, covers, reason
from tests.e2e.upstreams import CHAT_SSE, Certificates
from tests.sockets.net.dialing import full_listener

pytestmark = pytest.mark.more

# Deadlines are looked at every 0.3 s, and a connection is tried three times; the rest is for a busy machine.
LATE_S = 2.5


@contextlib.contextmanager
def before(upstream: RecordingUpstream, **settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker in front of `upstream`, which forgets what it has seen."""
    env = {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    with upstream.playing(healthy), VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1", **env}) as velox:
        yield velox


# -- where to -----------------------------------------------------------------------------------------------


@covers("VELOX_UPSTREAM_ORIGIN", "VELOX_UPSTREAM_REQUEST_PATH", "VELOX_UPSTREAM_WARMUP_PATH")
def test_upstream_paths_are_below_the_path_of_the_origin() -> None:
    """The client's path goes up as it came, a bare POST / and the warm-up where they are told to; all below it."""
    with RecordingUpstream() as upstream:
        settings = {
            "upstream_origin": f"http://127.0.0.1:{upstream.port}/base",
            "upstream_request_path": "/v1/chat/completions",
            "upstream_warmup_path": "/warm",
        }
        with before(upstream, **settings) as velox:
            warmup = upstream.wait_call()
            assert (warmup.method, warmup.target) == ("HEAD", "/base/warm")
            assert velox.request("GET", "/v1/models?limit=2").status == 200
            assert velox.request("POST", "/", CHAT).status == 200
            went = [call.target for call in upstream.calls if call.method != "HEAD"]
            assert went == ["/base/v1/models?limit=2", "/base/v1/chat/completions"]
            assert all(call.header("host") == f"127.0.0.1:{upstream.port}" for call in upstream.calls)


# -- how ----------------------------------------------------------------------------------------------------


@covers("VELOX_HTTP2_ENGINE")
@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_http2_engine_is_the_one_that_is_loaded(engine: str) -> None:
    """Both serve; only with `ngh2` the worker has that library in memory."""
    with RecordingUpstream(http2=True) as upstream, before(upstream, http2_engine=engine) as velox:
        assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
        (worker,) = velox.worker_pids()
        assert ("ngh2" in Path(f"/proc/{worker}/maps").read_text()) == (engine == "ngh2")


@covers("VELOX_UPSTREAM_HTTP2")
@pytest.mark.parametrize(("mode", "first"), [("auto", b"HEAD /v1"), ("on", b"PRI * HT"), ("off", b"HEAD /v1")])
def test_upstream_http2_over_plain_text(mode: str, first: bytes) -> None:
    """Without TLS nothing can be agreed on: HTTP/2 only on request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        settings = {"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        with VeloxProcess({**settings, "VELOX_WORKERS": "1", "VELOX_UPSTREAM_HTTP2": mode}):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(8, socket.MSG_WAITALL) == first


@covers("VELOX_UPSTREAM_HTTP2", "VELOX_UPSTREAM_CA_FILE")
@pytest.mark.parametrize(("mode", "agreed"), [("auto", "h2"), ("on", "h2"), ("off", "http/1.1")])
def test_upstream_http2_over_tls(mode: str, agreed: str, certificates: Certificates) -> None:
    """With TLS an upstream that speaks both gets what the setting says."""
    context = certificates.server_context("h2", "http/1.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        settings = {
            "VELOX_UPSTREAM_ORIGIN": f"https://127.0.0.1:{listener.getsockname()[1]}",
            "VELOX_UPSTREAM_CA_FILE": certificates.ca_file,
            "VELOX_UPSTREAM_HTTP2": mode,
        }
        with VeloxProcess({**settings, "VELOX_WORKERS": "1"}):
            connection, _ = listener.accept()
            connection.settimeout(5)
            with context.wrap_socket(connection, server_side=True) as secured:
                assert secured.selected_alpn_protocol() == agreed
                assert secured.version() == "TLSv1.3"


@covers("VELOX_UPSTREAM_CA_FILE")
def test_upstream_ca_file_decides_whom_to_trust(certificates: Certificates) -> None:
    """Signed by an authority that nobody named: 502 upstream_tls, and not a byte of the request is sent."""
    with RecordingUpstream(certificates=certificates) as upstream:
        with before(upstream) as velox:
            assert velox.request("GET", "/v1/models").status == 200
        with upstream.playing(healthy):
            stranger = {"VELOX_UPSTREAM_ORIGIN": upstream.env()["VELOX_UPSTREAM_ORIGIN"], "VELOX_WORKERS": "1"}
            with VeloxProcess(stranger) as velox:
                refused = velox.request("GET", "/v1/models")
                assert (refused.status, reason(refused)) == (502, "upstream_tls")
            assert not upstream.calls


@covers("VELOX_EGRESS_POOL_CONNECTIONS")
@pytest.mark.parametrize(("workers", "connections"), [("2", 5), ("3", 3), ("1", 1)])
def test_egress_pool_connections_are_warm_before_the_first_request(workers: str, connections: int) -> None:
    """So many over all workers, each with its HEAD; requests use them, and none is dialed anew."""
    with RecordingUpstream(http2=True) as upstream:
        settings = {"egress_pool_connections": str(connections), "workers": workers}
        with before(upstream, **settings) as velox:
            until(lambda: upstream.n_warmups == connections, f"{connections} warm-ups")
            assert {velox.request("GET", "/v1/models").status for _ in range(10)} == {200}
            assert (upstream.n_open, upstream.n_connections) == (connections, connections)


# -- how long -----------------------------------------------------------------------------------------------


@covers("VELOX_UPSTREAM_CONNECT_TIMEOUT")
def test_upstream_connect_timeout_bounds_the_wait_for_a_connection() -> None:
    """An upstream that does not even answer the first packet: 502 upstream_connect, tried again in vain."""
    with full_listener() as port:
        settings = {"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{port}", "VELOX_WORKERS": "1"}
        with VeloxProcess({**settings, "VELOX_UPSTREAM_CONNECT_TIMEOUT": "300ms"}) as velox:
            began_s = time.monotonic()
            refused = velox.request("GET", "/v1/models")
            assert (refused.status, reason(refused)) == (502, "upstream_connect")
            assert 0.3 <= time.monotonic() - began_s < LATE_S


@covers("VELOX_UPSTREAM_TLS_TIMEOUT")
def test_upstream_tls_timeout_bounds_the_handshake() -> None:
    """An upstream that takes the connection and says nothing: 502 upstream_tls."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"VELOX_UPSTREAM_ORIGIN": f"https://127.0.0.1:{silent.getsockname()[1]}", "VELOX_WORKERS": "1"}
        with VeloxProcess({**settings, "VELOX_UPSTREAM_TLS_TIMEOUT": "300ms"}) as velox:
            began_s = time.monotonic()
            refused = velox.request("GET", "/v1/models")
            assert (refused.status, reason(refused)) == (502, "upstream_tls")
            assert 0.3 <= time.monotonic() - began_s < LATE_S


@covers("VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT")
def test_upstream_first_byte_timeout_bounds_the_wait_for_a_reply() -> None:
    """504 upstream_ttfb_timeout, not to be retried: the work may have been done. The upstream is let go."""

    async def silent(call: Call) -> None:
        await call.silence()

    with (
        RecordingUpstream(http2=True) as upstream,
        before(upstream, upstream_first_byte_timeout="400ms") as velox,
        upstream.playing(silent),
    ):
        began_s = time.monotonic()
        late = velox.request("POST", "/v1/chat/completions", CHAT)
        assert (late.status, reason(late)) == (504, "upstream_ttfb_timeout")
        assert late.header("x-should-retry") == "false"
        assert 0.4 <= time.monotonic() - began_s < LATE_S
        upstream.wait_left(upstream.calls[0])


@covers("VELOX_UPSTREAM_THINKING_TIMEOUT")
def test_upstream_thinking_timeout_bounds_the_wait_for_a_model_that_may_think() -> None:
    """A plain answer comes when its model is done; a stream's first byte does not wait for that."""

    async def silent(call: Call) -> None:
        await call.silence()

    with (
        RecordingUpstream(http2=True) as upstream,
        before(upstream, upstream_first_byte_timeout="300ms", upstream_thinking_timeout="1200ms") as velox,
        upstream.playing(silent),
    ):
        for body, least_s in ((CHAT_STREAM, 0.3), (CHAT, 1.2)):
            began_s = time.monotonic()
            late = velox.request("POST", "/v1/chat/completions", body)
            assert (late.status, reason(late)) == (504, "upstream_ttfb_timeout")
            assert least_s <= time.monotonic() - began_s < least_s + LATE_S


@covers("VELOX_UPSTREAM_FIRST_EVENT_TIMEOUT")
def test_upstream_first_event_timeout_bounds_the_wait_for_a_streams_first_event() -> None:
    """S07: a head and comments are none. The client has no byte, so it gets a 504; other requests may take longer.

    A reply that begins in time passes unchanged, whatever comes later.
    """

    async def thinks(call: Call) -> None:
        if b'"stream": true' not in call.body:
            await asyncio.sleep(0.8)
            await healthy(call)
            return
        await call.head(200, SSE)
        await call.data(b": thinking\n\n")
        await call.step()
        await call.data(CHAT_SSE)
        await call.end()

    with (
        RecordingUpstream(http2=True) as upstream,
        before(upstream, upstream_first_event_timeout="400ms") as velox,
        upstream.playing(thinks),
    ):
        began_s = time.monotonic()
        late = velox.request("POST", "/v1/chat/completions", CHAT_STREAM)
        assert (late.status, reason(late)) == (504, "upstream_ttfb_timeout")
        assert 0.4 <= time.monotonic() - began_s < LATE_S
        upstream.wait_left(upstream.calls[0])
        assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
        upstream.step()
        reply = velox.request("POST", "/v1/chat/completions", CHAT_STREAM)
        assert (reply.status, reply.body) == (200, b": thinking\n\n" + CHAT_SSE)


@covers("VELOX_UPSTREAM_STALL_TIMEOUT")
def test_upstream_stall_timeout_bounds_a_silence_inside_a_text() -> None:
    """Not one before it: a model may think for minutes, also behind the first events, which hold no text."""
    first = CHAT_SSE[: CHAT_SSE.index(b"\n\n") + 2]

    async def thinks_and_stalls(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(first)
        await call.step()
        await call.data(first * (2048 // len(first) + 1))
        await call.silence()

    with (
        RecordingUpstream(http2=True) as upstream,
        before(upstream, upstream_stall_timeout="400ms", upstream_idle_timeout="60s") as velox,
        upstream.playing(thinks_and_stalls),
    ):
        with Client(velox) as client:
            client.send_chat(CHAT_STREAM)
            client.read_until(first)
            time.sleep(0.8)
            upstream.step()
            began_s = time.monotonic()
            rest = client.read_to_end()
        assert 0.35 <= time.monotonic() - began_s < LATE_S
        assert rest.count(b'"choices"') > 5, "it was not cut while it thought"
        assert b"upstream_idle_timeout" in rest and b"[DONE]" not in rest


@covers("VELOX_UPSTREAM_IDLE_TIMEOUT")
def test_upstream_idle_timeout_bounds_a_silence_inside_a_reply() -> None:
    """The stream ends with an error event and never as if it were whole. The upstream is let go."""
    first = CHAT_SSE[: CHAT_SSE.index(b"\n\n") + 2]

    async def stalls(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(first)
        await call.silence()

    with (
        RecordingUpstream(http2=True) as upstream,
        before(upstream, upstream_idle_timeout="400ms") as velox,
        upstream.playing(stalls),
    ):
        with Client(velox) as client:
            client.send_chat(CHAT_STREAM)
            client.read_until(first)
            began_s = time.monotonic()
            rest = client.read_to_end()
        assert 0.35 <= time.monotonic() - began_s < LATE_S
        event = json.loads(rest[rest.index(b"data: ") + 6 :].split(b"\n")[0])
        assert event["error"]["code"] == "upstream_idle_timeout"
        assert not rest.endswith(b"0\r\n\r\n") and b"[DONE]" not in rest
        upstream.wait_left(upstream.calls[0])
