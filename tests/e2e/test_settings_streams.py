"""Settings of event streams."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import SSE, Call, RecordingUpstream
from tests.e2e.tools import CHAT_STREAM, Client, covers

pytestmark = pytest.mark.more

PING = b"8\r\n: ping\n\n\r\n"
FIRST = b'data: {"id":"1"}\n\n'
LAST = b"data: [DONE]\n\n"
# Silences are looked at every 0.3 s; the rest is for a busy machine.
LATE_S = 2.5


@covers("VELOX_SSE_KEEPALIVE")
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
def test_comments_fill_a_silence_between_events_and_nothing_else(http2: bool) -> None:
    """Comments come one after the other while the model thinks; the SDKs and the idle timer skip them."""

    async def thinks(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(FIRST)
        await call.step()
        await call.data(b"data: {")
        await call.step()
        await call.data(b"}\n\n" + LAST)
        await call.end()

    with (
        RecordingUpstream(http2=http2) as upstream,
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1", "VELOX_SSE_KEEPALIVE": "100ms"}) as velox,
        upstream.playing(thinks),
        Client(velox) as client,
    ):
        client.send_chat(CHAT_STREAM)
        client.read_until(FIRST + b"\r\n")
        began_s = time.monotonic()
        client.read_until(PING)
        client.read_until(PING)
        assert 0.1 <= time.monotonic() - began_s < LATE_S
        upstream.step()
        client.read_until(b"data: {\r\n")
        # Half an event: no comment may come here, however long it takes.
        client.sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.sock.settimeout(10.0)
        upstream.step()
        assert client.read_until(b"0\r\n\r\n").endswith(LAST + b"\r\n0\r\n\r\n")


def test_no_comment_unless_it_is_asked_for() -> None:
    """The default is 0: what the upstream sent is all that comes, byte for byte."""

    async def thinks(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(FIRST)
        await call.step()
        await call.data(LAST)
        await call.end()

    with (
        RecordingUpstream() as upstream,
        VeloxProcess({**upstream.env(), "VELOX_WORKERS": "1"}) as velox,
        upstream.playing(thinks),
        Client(velox) as client,
    ):
        client.send_chat(CHAT_STREAM)
        client.read_until(FIRST + b"\r\n")
        client.sock.settimeout(0.8)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.sock.settimeout(10.0)
        upstream.step()
        assert client.read_until(b"0\r\n\r\n").endswith(LAST + b"\r\n0\r\n\r\n")


@covers("VELOX_SSE_KEEPALIVE")
def test_comments_do_not_hide_a_stalled_upstream() -> None:
    """F-18, F-19: neither our comments nor the upstream's keep a text alive that does not go on."""

    async def stalls(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(FIRST)
        await call.data(FIRST * (2048 // len(FIRST) + 1))
        while not call.left.is_set():
            await call.data(b": ka\n\n")
            await asyncio.sleep(0.05)

    with (
        RecordingUpstream() as upstream,
        VeloxProcess(
            {
                **upstream.env(),
                "VELOX_WORKERS": "1",
                "VELOX_SSE_KEEPALIVE": "100ms",
                "VELOX_UPSTREAM_IDLE_TIMEOUT": "1s",
            }
        ) as velox,
        upstream.playing(stalls),
        Client(velox) as client,
    ):
        client.send_chat(CHAT_STREAM)
        client.read_until(FIRST)
        began_s = time.monotonic()
        rest = client.read_to_end()
        assert 0.9 <= time.monotonic() - began_s < 1.0 + LATE_S
        assert b": ka\n\n" in rest and b"upstream_idle_timeout" in rest
        assert not rest.endswith(b"0\r\n\r\n")
        upstream.wait_left(upstream.calls[0])
