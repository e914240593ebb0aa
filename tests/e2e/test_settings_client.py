"""Settings that bound what a client may cost: sizes, connections, and the time it may take for each step."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.harness import VeloxProcess, read_reply, until
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.tools import CHAT, Client, clients, covers, reason, request_bytes

pytestmark = pytest.mark.more

# A deadline is looked at every quarter of a second; the rest is for a busy machine.
LATE_S = 1.5


def simulated(**settings: str) -> VeloxProcess:
    """Return a gateway of one worker with its own simulator; still to be started."""
    env = {f"VELOX_{name.upper()}": value for name, value in settings.items()}
    return VeloxProcess({"VELOX_WORKERS": "1", **env}, ("serve", "--sim"))


@covers("VELOX_MAX_BODY")
def test_max_body_is_the_largest_that_passes() -> None:
    """One byte more gets 413, whether its length is announced or not."""
    fits = CHAT + b" " * (1024 - len(CHAT))
    with simulated(max_body="1KiB") as velox:
        assert velox.request("POST", "/v1/chat/completions", fits).status == 200
        refused = velox.request("POST", "/v1/chat/completions", fits + b" ")
        assert (refused.status, reason(refused)) == (413, "body_too_large")
        chunked = {"transfer-encoding": "chunked", "content-type": "application/json"}
        with Client(velox) as client:
            client.send("POST", "/v1/chat/completions", headers=chunked)
            client.sock.sendall(b"401\r\n" + fits + b" \r\n0\r\n\r\n")
            refused = client.read()
        assert (refused.status, reason(refused)) == (413, "body_too_large")


@covers("VELOX_BODY_BUDGET")
@pytest.mark.parametrize(("budget", "status"), [("1MiB", 503), ("2MiB", 200)])
def test_body_budget_is_what_all_bodies_of_a_worker_share(budget: str, status: int) -> None:
    """C58: while one body of 1 MiB is on its way, a second one waits for room, and is refused when none comes."""
    body = CHAT + b" " * (2**20 - len(CHAT))
    with simulated(max_body="1MiB", body_budget=budget, queue_timeout="300ms") as velox, Client(velox) as slow:
        slow.sock.sendall(request_bytes("POST", "/v1/chat/completions", body)[:1000])
        with clients(velox, 1) as (client,):
            client.send_chat(body)
            reply = client.read()
            assert (reply.status, reason(reply)) == (status, "overload_memory" if status == 503 else "")
            if status == 503:
                assert (reply.header("retry-after"), reply.header("x-should-retry")) == ("1", "true")
        slow.sock.sendall(request_bytes("POST", "/v1/chat/completions", body)[1000:])
        assert slow.read().status == 200


@covers("VELOX_MAX_CONNECTIONS")
def test_max_connections_are_served_and_the_next_is_told() -> None:
    """Accepted, 503 conn_limit, closed; when one of the others leaves there is room again."""
    with simulated(max_connections="2") as velox, clients(velox, 2) as (first, second):
        with Client(velox) as third:
            refused = read_reply(third.sock)
            assert (refused.status, reason(refused)) == (503, "conn_limit")
            assert (refused.header("connection"), refused.header("x-should-retry")) == ("close", "true")
        assert first.ask().status == 200
        second.sock.close()
        until(lambda: velox.request("GET", "/v1/models").status == 200, "there is room again")


@covers("VELOX_HEADER_TIMEOUT")
def test_header_timeout_ends_a_head_that_does_not_come() -> None:
    """408 header_timeout, counted from its first byte."""
    with simulated(header_timeout="300ms") as velox, Client(velox) as client:
        began_s = time.monotonic()
        client.sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: ")
        refused = client.read()
        assert (refused.status, reason(refused)) == (408, "header_timeout")
        assert 0.3 <= time.monotonic() - began_s < LATE_S


@covers("VELOX_BODY_TIMEOUT")
def test_body_timeout_ends_a_body_that_stops_coming() -> None:
    """408 body_timeout after a silence, not after a whole time: each byte starts it anew."""
    with simulated(body_timeout="500ms") as velox, Client(velox) as client:
        whole = request_bytes("POST", "/v1/chat/completions", CHAT)
        client.sock.sendall(whole[:-4])
        for byte in whole[-4:-1]:
            time.sleep(0.3)  # the client is slow: this is what the test is about
            client.sock.sendall(bytes([byte]))
        began_s = time.monotonic()
        refused = client.read()
        assert (refused.status, reason(refused)) == (408, "body_timeout")
        assert 0.45 <= time.monotonic() - began_s < LATE_S


def trickle(min_rate: str, *, ends: bool) -> None:
    """Send a body byte by byte. ends: it is over after 10 s."""
    body = CHAT + b" " * 4096
    with simulated(body_timeout="2s", client_min_rate=min_rate) as velox, Client(velox) as client:
        began_s = time.monotonic()
        client.sock.sendall(request_bytes("POST", "/v1/chat/completions", body)[:-4096])
        client.sock.settimeout(0.25)
        sent = 0
        while time.monotonic() - began_s < 10 + LATE_S:
            client.sock.sendall(b" ")
            sent += 1
            with contextlib.suppress(TimeoutError):  # the client is slow: this is what the test is about
                refused = client.read()
                assert ends and (refused.status, reason(refused)) == (408, "body_timeout")
                assert "VELOX_CLIENT_MIN_RATE" in str(refused.error()["message"])
                assert time.monotonic() - began_s >= 10
                return
        assert not ends
        client.sock.sendall(b" " * (4096 - sent))
        client.sock.settimeout(10)
        assert client.read().status == 200


@covers("VELOX_CLIENT_MIN_RATE")
@pytest.mark.more
def test_client_min_rate_ends_a_body_that_comes_in_a_trickle() -> None:
    """F-46: never silent for long, but after 10 s in hand it is over; without a rate it goes on. Both at once."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(trickle, "1KiB", ends=True), pool.submit(trickle, "0", ends=False)]:
            done.result()


@covers("VELOX_KEEPALIVE_TIMEOUT")
def test_keepalive_timeout_closes_an_idle_connection() -> None:
    """Without a word: nothing was asked."""
    with simulated(keepalive_timeout="300ms") as velox, clients(velox, 1) as (client,):
        began_s = time.monotonic()
        assert client.read_to_end() == b""
        assert 0.25 <= time.monotonic() - began_s < LATE_S


@covers("VELOX_CLIENT_WRITE_TIMEOUT")
def test_client_write_timeout_ends_a_reply_that_is_not_read() -> None:
    """The client is cut off and the upstream let go: memory is not held for somebody who does not read."""
    size = 32 * 2**20

    async def large(call: Call) -> None:
        await call.reply(200, (), b"x" * size)

    with RecordingUpstream() as upstream, upstream.playing(large):
        settings = {"VELOX_WORKERS": "1", "VELOX_CLIENT_WRITE_TIMEOUT": "300ms"}
        with VeloxProcess({**upstream.env(), **settings}) as velox, Client(velox) as client:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            began_s = time.monotonic()
            client.send("GET", "/v1/files/f/content")
            gone = 'velox_requests_total{class="4xx",reason="client_slow",route="files"}'
            velox.wait_metric(gone, lambda value: value == 1)
            assert 0.3 <= time.monotonic() - began_s < 2 * LATE_S
            assert len(client.read_to_end()) < size
