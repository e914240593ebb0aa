"""Errors of an upstream reach the client as they are, and never with the key that Velox sent (F-25, F-26, F-32)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.tools import CHAT, CHAT_STREAM, request_bytes

KEY = "sk-ours-0123456789abcdef"


@dataclass(frozen=True)
class Keyed:
    """A scripted upstream behind a gateway that has a key for it."""

    upstream: RecordingUpstream
    velox: VeloxProcess


@pytest.fixture(scope="module", params=[False, True], ids=["http1", "http2"])
def keyed(request: pytest.FixtureRequest) -> Iterator[Keyed]:
    """One for each HTTP version."""
    with RecordingUpstream(http2=request.param) as upstream:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all", "OPENAI_API_KEY": KEY}
        with VeloxProcess(env) as velox:
            yield Keyed(upstream, velox)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("piece", [1, 7, 10_000], ids=lambda piece: f"piece={piece}")
def test_error_that_echoes_our_key_is_replaced(keyed: Keyed, status: int, piece: int) -> None:
    """F-26: the status stays, the key is nowhere: not in the reply, the log or the metrics; and it is counted."""
    body = b'{"error":{"message":"Incorrect API key provided: %b"}}' % KEY.encode()

    async def echoes(call: Call) -> None:
        assert call.header("authorization") == f"Bearer {KEY}"
        await call.head(status, [*JSON, ("www-authenticate", f'Bearer error="{KEY}"'), ("x-request-id", "req_1")])
        for at in range(0, len(body), piece):
            await call.data(body[at : at + piece])
            await call.drain()
        await call.end()

    before = keyed.velox.metric("velox_upstream_auth_failures_total")
    with keyed.upstream.playing(echoes) as upstream:
        reply = keyed.velox.request("POST", "/v1/chat/completions", CHAT)
        assert len(upstream.calls) == 1, "nobody tries a refused key twice"

    assert reply.status == status
    assert reply.error()["code"] == "upstream_status" and "replaced" in str(reply.error()["message"])
    assert reply.header("x-request-id") == "req_1"
    assert KEY.encode() not in reply.body and reply.header("www-authenticate") is None
    line = keyed.velox.wait_access(lambda line: line["id"] == reply.header("x-velox-request-id"))
    assert KEY not in str(line)
    assert KEY.encode() not in keyed.velox.admin("/metrics").body
    keyed.velox.wait_metric("velox_upstream_auth_failures_total", lambda n: n == before + 1)


@pytest.mark.parametrize("code", ["context_length_exceeded", "content_filter"])
@pytest.mark.parametrize("asked", [CHAT, CHAT_STREAM], ids=["plain", "stream"])
def test_error_of_the_upstream_passes_unchanged(keyed: Keyed, code: str, asked: bytes) -> None:
    """F-25, S12, S13: a refused request is answered in the provider's own words, after exactly one attempt."""
    body = b'{ "error" : {"message": "caf\xc3\xa9", "type":"invalid_request_error","param":"messages","code":"%b"}}\n'
    body %= code.encode()

    async def refuses(call: Call) -> None:
        await call.reply(400, [*JSON, ("x-request-id", "req_2")], body)

    with keyed.upstream.playing(refuses) as upstream:
        reply = keyed.velox.request("POST", "/v1/chat/completions", asked)
        assert len(upstream.calls) == 1

    assert (reply.status, reply.body) == (400, body)
    assert reply.header("x-request-id") == "req_2" and reply.header("x-velox-reason") is None


def test_compressed_error_passes_as_it_is(keyed: Keyed) -> None:
    """F-32: what is compressed is not inflated, not even to look for a key."""
    body = gzip.compress(b"0" * 10_000_000)

    async def bomb(call: Call) -> None:
        await call.reply(400, [*JSON, ("content-encoding", "gzip")], body)

    with keyed.upstream.playing(bomb):
        reply = keyed.velox.request("POST", "/v1/chat/completions", CHAT)

    assert (reply.status, reply.header("content-encoding"), reply.body) == (400, "gzip", body)


def test_long_error_is_not_hoarded_and_passes_whole(keyed: Keyed) -> None:
    """Of a long error the first bytes reach the client before the last ones are sent."""
    start, rest = b"X" * 70_000, b"Y" * 70_000

    async def long(call: Call) -> None:
        await call.head(400, [("content-type", "text/plain")])
        await call.data(start)
        await call.step()
        await call.data(rest)
        await call.end()

    with keyed.upstream.playing(long) as upstream, keyed.velox.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/chat/completions", CHAT, {"connection": "close"}))
        got = b""
        while got.count(b"X") < 60_000:
            got += sock.recv(65536)
        upstream.step()
        while piece := sock.recv(65536):
            got += piece

    assert got.startswith(b"HTTP/1.1 400 ") and got.endswith(b"0\r\n\r\n")
    assert (got.count(b"X"), got.count(b"Y")) == (len(start), len(rest))


@pytest.mark.parametrize(
    ("sent", "is_good"), [("my-trace_01", True), ("a" * 64, True), ("a" * 65, False), ("a b", False)]
)
def test_clients_own_request_id_comes_back(sent: str, is_good: bool) -> None:
    """Where the upstream sent none, and on errors of Velox; the upstream's own wins; no id, nothing back."""

    async def answer(call: Call) -> None:
        fields = [*JSON, ("x-request-id", "req_of_upstream")] if "files" in call.target else [*JSON]
        await call.reply(200, fields, b"{}")

    with RecordingUpstream(script=answer) as upstream, VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox:
        for _ in range(6):  # kept heads too
            passed, own, error = (
                velox.request("GET", target, None, {"x-request-id": sent})
                for target in ("/v1/models", "/v1/files", "/metrics")
            )
            assert passed.header("x-request-id") == (sent if is_good else None)
            assert own.header("x-request-id") == "req_of_upstream"
            assert error.header("x-request-id") == (sent if is_good else error.header("x-velox-request-id"))
            assert error.header("x-velox-request-id") != sent
        assert upstream.calls[-1].header("x-request-id") == (sent if is_good else None)
