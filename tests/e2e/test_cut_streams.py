"""Streams that were cut, as each kind of client sees them (F-12, F-13)."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream, Script
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, request_bytes
from tests.e2e.upstreams import Certificates, chat_chunk

EVENTS = chat_chunk("one ")


def to_end(sock: socket.socket) -> tuple[bytes, bool]:
    """Return all that came, and whether a reset ended it."""
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionResetError:
        return got, True
    return got, False


@pytest.mark.parametrize("how", ["cut", "lose"])
def test_stream_that_ends_after_its_head_is_an_error_event(wall: Wall, how: str) -> None:
    """F-12: the status was 200, nothing came after it: one error event, no end of the chunks."""

    async def head_only(call: Call) -> None:
        await call.head(200, SSE)
        await call.drain()
        await call.step()
        call.cut() if how == "cut" else call.lose()

    with wall.upstream.playing(head_only) as upstream, wall.velox.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/chat/completions", CHAT_STREAM))
        head = sock.recv(65536)
        upstream.step()
        rest, _ = to_end(sock)
        assert len(upstream.calls) == 1, "the client has seen the head: there is no other try"

    assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n")
    size, _, event = rest.partition(b"\r\n")
    assert int(size, 16) == len(event) - 2
    assert json.loads(event.removeprefix(b"data: "))["error"]["type"] == "upstream_error"


def test_stream_of_anthropic_ends_with_an_event_named_error(wall: Wall) -> None:
    """Anthropic's SDKs raise on `event: error`; they don't know `data.error`."""
    first = b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(first)
        await call.drain()
        await call.step()
        call.cut()

    with wall.upstream.playing(script) as upstream, Client(wall.velox) as client:
        client.send("POST", "/v1/messages", CHAT_STREAM, {"anthropic-version": "2023-06-01"})
        client.read_until(first)
        upstream.step()
        rest = client.read_to_end()

    event = rest[rest.index(b"event: error\n") :].removesuffix(b"\r\n")
    name, data, *blank = event.split(b"\n")
    body = json.loads(data.removeprefix(b"data: "))
    assert (name, blank) == (b"event: error", [b"", b""])
    assert body["type"] == "error" and body["error"]["code"] in ("upstream_truncated", "upstream_protocol")
    assert body["error"]["message"] and body["error"]["type"]
    assert b"message_stop" not in rest and not rest.endswith(b"0\r\n\r\n")


def test_stream_with_a_length_is_cut_without_a_word(wall: Wall) -> None:
    """Where the length was announced, an error event would fill up what is missing: the connection just ends."""

    async def script(call: Call) -> None:
        await call.head(200, [*SSE, ("content-length", str(len(EVENTS) + 500))])
        await call.data(EVENTS)
        await call.drain()
        await call.step()
        call.cut()

    with wall.upstream.playing(script) as upstream, Client(wall.velox) as client:
        client.send_chat(CHAT_STREAM)
        got = client.read_until(EVENTS)
        upstream.step()
        got += client.read_to_end()

    assert got.partition(b"\r\n\r\n")[2] == EVENTS


def test_stream_to_a_client_of_http10_ends_in_a_reset(wall: Wall) -> None:
    """Where the close ends the reply, only a reset tells that it was no end."""

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(EVENTS)
        await call.drain()
        await call.step()
        call.cut()

    with wall.upstream.playing(script) as upstream, wall.velox.connect() as sock:
        request = request_bytes("POST", "/v1/chat/completions", CHAT_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0")
        sock.sendall(request)
        got = b""
        while EVENTS not in got:
            got += sock.recv(65536)
        upstream.step()
        _, was_reset = to_end(sock)

    assert was_reset and b"transfer-encoding" not in got


@pytest.mark.parametrize("asked", [CHAT, CHAT_STREAM], ids=["plain", "stream"])
def test_tls_reply_that_ends_at_close_needs_the_close_of_tls(asked: bytes, certificates: Certificates) -> None:
    """F-13, RFC 8446 §6.1: an end of the TCP stream that TLS did not announce is a cut, by whomever."""

    def script(*, announced: bool) -> Script:
        async def play(call: Call) -> None:
            await call.head(200, [*(SSE if asked is CHAT_STREAM else JSON), ("connection", "close")])
            await call.data(EVENTS)
            await call.drain()
            await call.step()
            if announced:
                call.cut()
            else:
                with contextlib.suppress(OSError):
                    fd = call.link.transport.get_extra_info("socket").fileno()
                    with socket.socket(fileno=fd) as raw:
                        raw.shutdown(socket.SHUT_WR)
                        raw.detach()
                await call.silence()

        return play

    with (
        RecordingUpstream(certificates=certificates) as upstream,
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1", "VELOX_UPSTREAM_HTTP2": "off"}) as velox,
    ):
        for announced in (True, False):
            with upstream.playing(script(announced=announced)), Client(velox) as client:
                client.send_chat(asked)
                got = client.read_until(EVENTS)
                upstream.step()
                if announced:
                    got += client.read_until(b"0\r\n\r\n")
                    assert b"upstream_" not in got
                else:
                    got += client.read_to_end()
                    assert not got.endswith(b"0\r\n\r\n")
                    assert (b"upstream_truncated" in got) == (asked is CHAT_STREAM)
