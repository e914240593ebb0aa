"""Settings of HTTP/2 to the upstream: how far a reply runs ahead of its client, when an upstream is asked."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import Call, RecordingUpstream, healthy
from tests.e2e.tools import CHAT, covers

pytestmark = pytest.mark.more

KIB: Final = 1 << 10


def run_ahead(window_bytes: int, engine: str, listen_http2: str) -> int:
    """Return how much of an endless reply the upstream got rid of to a client of HTTP/1.1 that reads nothing."""
    n_sent = 0

    async def endless(call: Call) -> None:
        nonlocal n_sent
        if call.target != "/v1/files/endless":
            await healthy(call)
            return
        await call.head(200, [("content-type", "application/octet-stream")])
        while not call.left_s:  # data() returns at once when nobody takes it any more
            await call.data(bytes(16 * KIB))
            n_sent += 16 * KIB

    with RecordingUpstream(http2=True) as upstream, upstream.playing(endless), socket.socket() as client:
        env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_EGRESS_POOL_CONNECTIONS": "1"}
        env |= {
            "VELOX_UPSTREAM_STREAM_WINDOW": str(window_bytes),
            "VELOX_HTTP2_ENGINE": engine,
            "VELOX_LISTEN_HTTP2": listen_http2,
            "VELOX_RATE_LIMIT_RPM": "0",
        }
        with VeloxProcess(env) as velox:
            velox.wait_warm()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            client.connect(("127.0.0.1", velox.port))
            client.sendall(b"GET /v1/files/endless HTTP/1.1\r\nhost: velox\r\n\r\n")
            until(lambda: n_sent >= window_bytes, "a window's worth of the reply")
            before = -1
            while n_sent != before:
                before = n_sent
                # The other streams of the connection go on meanwhile.
                for _ in range(5):
                    assert velox.request("POST", "/v1/chat/completions", CHAT).status == 200
            assert upstream.n_connections == 1
            client.close()  # else the gateway drains until it has read everything
    return n_sent


@covers("VELOX_UPSTREAM_STREAM_WINDOW")
@pytest.mark.parametrize("listen_http2", ["off", "on"])
@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_upstream_stream_window_is_what_a_reply_runs_ahead_of_its_client(engine: str, listen_http2: str) -> None:
    """Beside what sockets and the client's write buffer take: the same for both windows, 4.5 MiB at most.

    Where clients may speak HTTP/2, too, streams begin with a narrow window; this client's are widened.
    """
    narrow, wide = 128 * KIB, 6 * 1024 * KIB
    behind_narrow, behind_wide = (run_ahead(window, engine, listen_http2) for window in (narrow, wide))
    assert narrow <= behind_narrow <= narrow + 4608 * KIB
    assert wide <= behind_wide <= wide + 4608 * KIB


def be_silent(engine: str) -> None:
    """Be an upstream that takes everything and says nothing."""
    preface: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    ping: Final = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        env = {"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{listener.getsockname()[1]}", "VELOX_UPSTREAM_HTTP2": "on"}
        env |= {"VELOX_WORKERS": "1", "VELOX_EGRESS_POOL_CONNECTIONS": "1", "VELOX_HTTP2_ENGINE": engine}
        with VeloxProcess({**env, "VELOX_EGRESS_PING_INTERVAL": "1s", "VELOX_READY_REQUIRES_UPSTREAM": "off"}):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS
                began_s = time.monotonic()
                came = b""
                while ping not in came:
                    piece = connection.recv(4 * KIB)
                    assert piece, "left without being asked"
                    came += piece
                asked_s = time.monotonic()
                assert came.startswith(preface)
                assert 0.9 <= asked_s - began_s < 4.0
                try:
                    while connection.recv(4 * KIB):
                        pass
                except ConnectionResetError:
                    pass
                assert 4.5 <= time.monotonic() - asked_s < 9.0


@covers("VELOX_EGRESS_PING_INTERVAL")
def test_egress_ping_interval_is_the_silence_after_which_an_upstream_is_asked() -> None:
    """An upstream that says nothing is asked, and left 5 s later. Both engines at once."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(be_silent, engine) for engine in ("ngh2", "h2")]:
            done.result()
