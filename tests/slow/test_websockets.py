"""Clients of WebSockets that do all they can to fill a gateway's memory: each is bounded, and ended."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.routed import named, nobody, routed
from tests.patience import PATIENCE_S

MIB: Final = 1 << 20
STALL_S: Final = 2.0
PING: Final = 9
TEXT: Final = 1


def framed(payload: bytes, opcode: int = TEXT, *, fin: bool = True) -> bytes:
    """Return a client's frame, with a mask of zeros."""
    n_bytes = len(payload)
    if n_bytes < 126:
        head = bytes((fin << 7 | opcode, 0x80 | n_bytes))
    else:
        head = bytes((fin << 7 | opcode, 0xFF)) + n_bytes.to_bytes(8)
    return head + bytes(4) + payload


def opened(velox: VeloxProcess, target: str = "/v1/responses") -> socket.socket:
    """Return a connection after its handshake."""
    sock = velox.connect()
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert b" 101 " in head, head
    return sock


def resident(velox: VeloxProcess) -> int:
    """Return the worker's resident memory in bytes."""
    (worker,) = velox.worker_pids()
    return int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_while_sent(velox: VeloxProcess, sock: socket.socket, data: bytes, seconds: float) -> int:
    """Send, and read nothing, until the gateway ends it; return the most memory that it had."""
    most, until_s = 0, time.monotonic() + seconds
    sock.settimeout(0.1)
    with contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() < until_s, "it was never ended"
            with contextlib.suppress(TimeoutError):
                sock.send(data)
            most = max(most, resident(velox))
    return most


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway that answers such WebSockets itself."""
    with nobody() as origin:
        config = {
            "api_keys": [{"name": "all", "key": KEY}],
            "upstreams": [{"name": "a", "provider": "anthropic", "origin": origin, "key": "env:MODEL_KEY"}],
        }
        settings = {"client_write_timeout": f"{STALL_S:g}s", "memory_soft": "off", "memory_hard": "off"}
        with routed(config, MODEL_KEY="sk-model-0123456789", **settings) as running:
            yield running


@pytest.mark.parametrize(
    "data",
    [framed(b"x" * 125, PING) * 2000, framed(b"", PING) * 20_000, framed(b"{}") * 20_000, b"\xff" * MIB],
    ids=["pings", "empty pings", "bad messages", "no frames"],
)
def test_client_that_sends_and_never_reads_is_ended(velox: VeloxProcess, data: bytes) -> None:
    """What it would be told waits up to a mark; then it is not read, and ended by VELOX_CLIENT_WRITE_TIMEOUT."""
    before = resident(velox)
    with opened(velox) as sock:
        most = most_while_sent(velox, sock, data, 15.0)
    assert most < before + 4 * MIB
    velox.wait_metric("velox_client_connections", lambda n: n == 0)


def test_messages_take_of_the_budget_of_bodies() -> None:
    """VELOX_MAX_BODY and VELOX_BODY_BUDGET: messages that never end hold no more than bodies may."""
    with nobody() as origin:
        config = {
            "upstreams": [{"name": "a", "provider": "anthropic", "origin": origin, "key": "env:MODEL_KEY"}],
            "max_body": "8MiB",
            "body_budget": "16MiB",
            "queue_timeout": "1s",
            "body_timeout": "3s",
        }
        with routed(config, MODEL_KEY="sk-model-0123456789") as velox, contextlib.ExitStack() as stack:
            before = resident(velox)
            socks = [stack.enter_context(opened(velox)) for _ in range(10)]
            push_unfinished(socks)
            assert resident(velox) < before + 30 * MIB
            for sock in socks:
                sock.settimeout(PATIENCE_S)  # some megabytes are still on their way
            codes = {int.from_bytes(sock.recv(4)[2:]) for sock in socks}
            assert codes == {1013, 1008}, "no room came in time, or no byte more"
            assert velox.request("POST", "/v1/responses", b" " * (8 * MIB + 1)).status == 413
            with opened(velox) as sock:
                sock.sendall(framed(b" " * (8 * MIB + 1))[:20])
                assert sock.recv(4)[2:] == (1009).to_bytes(2)


def push_unfinished(socks: list[socket.socket]) -> None:
    """Send a message of 8 MiB on each, all at once and without the last byte."""
    data = framed(b" " * (8 * MIB))[:-1]
    senders = [threading.Thread(target=push, args=(sock, data)) for sock in socks]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def push(sock: socket.socket, data: bytes) -> None:
    """Send for as long as it is taken, for some seconds at most."""
    sock.settimeout(4.0)
    with contextlib.suppress(OSError):
        sock.sendall(data)


def test_messages_that_are_looked_at_take_of_the_budget_too() -> None:
    """A key that is limited to some models: its messages are held until they are whole, and its tunnels are closed."""
    with named("models") as sims:
        config = {
            "api_keys": [{"name": "some", "key": KEY, "models": ["gpt-realtime*"]}],
            "upstreams": [{"name": "a", "origin": sims["models"]["origin"], "key": "env:MODEL_KEY"}],
            "max_body": "8MiB",
            "body_budget": "16MiB",
            "queue_timeout": "1s",
            "body_timeout": "3s",
        }
        target = "/v1/realtime?model=gpt-realtime"
        with routed(config, MODEL_KEY="sk-model-0123456789") as velox, contextlib.ExitStack() as stack:
            before = resident(velox)
            socks = [stack.enter_context(opened(velox, target)) for _ in range(10)]
            push_unfinished(socks)
            assert resident(velox) < before + 30 * MIB
            velox.wait_metric("velox_tunnels", lambda n: n == 0)
            with opened(velox, target) as sock:
                most = most_while_sent(velox, sock, framed(b"", fin=False) + framed(b"", 0, fin=False) * 50_000, 15.0)
            assert most < before + 30 * MIB
