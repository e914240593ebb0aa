"""A worker driven to every place at once where clients can make it hold bytes: docs/memory.md's bound holds, and means
something.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hpack import Encoder, NeverIndexedHeaderTuple

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.tools import CHAT, request_bytes
from tests.e2e.upstreams import make_certificates
from tests.e2e.watching import until
from tests.h2spec.talker import END_HEADERS, END_STREAM, frame, uint32
from velox.protocol.http2.engine import PREFACE
from velox.runtime.capacity import memory_of
from velox.settings import load

MIB = 2**20
N_CONNECTIONS, N_BODIES, N_HEADS = 160, 3, 7
N_READERS = N_CONNECTIONS - N_BODIES - N_HEADS
BODY = CHAT + b" " * (8 * MIB - len(CHAT))
# 31 KiB in 90 fields: a head that is just allowed, and as costly as one can be.
FIELDS = {f"x-{n:02}": "v" * 330 for n in range(90)}
LIMITS = {
    "VELOX_WORKERS": "1",
    "VELOX_MAX_CONNECTIONS": str(N_CONNECTIONS),
    "VELOX_MAX_INFLIGHT": str(N_CONNECTIONS),
    "VELOX_QUEUE_DEPTH": str(N_CONNECTIONS),
    "VELOX_MAX_TUNNELS": "1",
    "VELOX_MAX_BODY": "8MiB",
    "VELOX_BODY_BUDGET": f"{8 * N_BODIES}MiB",
    "VELOX_RATE_LIMIT_RPM": "0",
    "VELOX_CLIENT_MIN_RATE": "0",
    "VELOX_HEADER_TIMEOUT": "120s",
    "VELOX_BODY_TIMEOUT": "120s",
    "VELOX_CLIENT_WRITE_TIMEOUT": "120s",
}


async def large(call: Call) -> None:
    """Answer with 4 MiB: more than every buffer on the way."""
    await call.reply(200, (), b"x" * (4 * MIB))


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(pid: int) -> int:
    """Return a process's resident memory once it has not changed for half a second."""
    deadline_s = time.monotonic() + 30
    seen, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < 0.5:
        assert time.monotonic() < deadline_s, "it never settles"
        now = resident(pid)
        if now != seen:
            seen, since_s = now, time.monotonic()
        time.sleep(0.01)
    return seen


def connect(velox: VeloxProcess, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection to the gateway; context: with TLS."""
    sock = velox.connect(60.0)
    return sock if context is None else context.wrap_socket(sock, server_hostname="localhost")


def push_all(socks: Sequence[socket.socket], data: bytes) -> None:
    """Send `data` on every connection for as long as any of them takes more of it."""
    left = {sock: memoryview(data) for sock in socks}
    poll, by_descriptor = select.poll(), {sock.fileno(): sock for sock in socks}
    for sock in socks:
        sock.setblocking(False)
        poll.register(sock, select.POLLOUT)
    while left and (ready := poll.poll(1000)):
        for descriptor, _ in ready:
            sock = by_descriptor[descriptor]
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                left[sock] = left[sock][sock.send(left[sock]) :]
            if not left[sock]:
                poll.unregister(sock)
                del left[sock]


@pytest.mark.parametrize("way", ["http1", "http2", "tls"])
@pytest.mark.more
def test_memory_at_its_worst_is_within_the_bound(way: str, tmp_path: Path) -> None:
    """Bodies to the whole budget, heads half sent, replies not read and requests sent ahead."""
    with RecordingUpstream(http2=way == "http2") as upstream, upstream.playing(large), contextlib.ExitStack() as stack:
        env = {**upstream.env(), **LIMITS}
        context = None
        if way == "tls":
            files = make_certificates(tmp_path)
            env |= {"VELOX_TLS_CERT": files.cert_file, "VELOX_TLS_KEY": files.key_file}
            context = ssl.create_default_context(cafile=files.ca_file)
        bound = memory_of(load(env), 2**20)
        velox = stack.enter_context(VeloxProcess(env, by_exec=True))
        (worker,) = velox.worker_pids()
        idle = settled(worker)
        all_ = [stack.enter_context(connect(velox, context)) for _ in range(N_CONNECTIONS)]
        bodies, heads, readers = all_[:N_BODIES], all_[N_BODIES : N_BODIES + N_HEADS], all_[-N_READERS:]
        for sock in readers:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            sock.sendall(request_bytes("GET", "/v1/files/f/content", headers=FIELDS))
        velox.wait_metric("velox_inflight_requests", lambda value: value == N_READERS)
        for sock in heads:
            sock.sendall(request_bytes("GET", "/v1/models", headers=FIELDS)[:-2])
        push_all(bodies, request_bytes("POST", "/v1/chat/completions", BODY)[:-1])
        push_all(readers, request_bytes("GET", "/v1/models") * 20_000)
        most = settled(worker)
        print(f"idle {idle >> 20} MiB, at its worst {most >> 20} MiB, {bound}")
        assert velox.metric("velox_client_connections") == N_CONNECTIONS
        assert velox.metric("velox_inflight_requests") == N_READERS, "all of them at the same time"
        assert most <= bound.n_bytes
        assert most >= bound.n_bytes / 3, "a bound three times too high would tell nobody anything"
        velox.signal(signal.SIGKILL)  # nothing is left to be answered


# -- clients that speak HTTP/2 ----------------------------------------------------------------------------------------

N_HTTP2, N_STREAMS = 5, 100
REQUEST = Encoder().encode(
    [
        NeverIndexedHeaderTuple(*field)
        for field in ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/v1/models"), (b":authority", b"a"))
    ]
)
# A window of no byte for each reply, and as many requests as a connection may have at once.
HUNDRED_REQUESTS = (
    PREFACE
    + frame(4, 0, 0, (4).to_bytes(2) + uint32(0))
    + b"".join(frame(1, END_HEADERS | END_STREAM, 2 * n + 1, REQUEST) for n in range(N_STREAMS))
)


async def large_when_told(call: Call) -> None:
    """Answer with more than is read of a reply that nobody takes, when all requests are there."""
    await call.step()
    await call.reply(200, (), b"x" * (512 * 1024))


@pytest.mark.parametrize("engine", ["ngh2", "h2"])
@pytest.mark.parametrize("way", ["http1", "http2"])
@pytest.mark.more
def test_replies_to_a_hundred_streams_are_within_the_room_of_one_connection(way: str, engine: str) -> None:
    """A connection does not cost what a hundred do. way: to the upstream."""
    n_requests = N_HTTP2 * N_STREAMS
    with (
        RecordingUpstream(http2=way == "http2") as upstream,
        upstream.playing(large_when_told),
        contextlib.ExitStack() as stack,
    ):
        env = {
            **upstream.env(),
            **LIMITS,
            "VELOX_LISTEN_HTTP2": "on",
            "VELOX_HTTP2_ENGINE": engine,
            "VELOX_MAX_CONNECTIONS": str(N_HTTP2),
            "VELOX_MAX_INFLIGHT": str(n_requests),
            "VELOX_QUEUE_DEPTH": str(n_requests),
            "VELOX_BODY_BUDGET": "64MiB",  # what a connection holds above its own room takes of it
        }
        bound = memory_of(load(env), 2**20)
        (replies,) = [row for row in bound.rows if row.what == "unread replies"]
        velox = stack.enter_context(VeloxProcess(env, by_exec=True))
        (worker,) = velox.worker_pids()
        for _ in range(N_HTTP2):
            stack.enter_context(velox.connect(60.0)).sendall(HUNDRED_REQUESTS)
        upstream.wait_call(n_requests)
        before = settled(worker)
        upstream.step(n_requests)
        until(lambda: resident(worker) - before >= replies.n_bytes / 3, "replies have come")
        most = settled(worker)
        print(f"{before >> 20} MiB, with replies {most >> 20} MiB, {replies}, {bound}")
        assert velox.metric("velox_inflight_requests") == n_requests, "all of them at the same time"
        # A reply's head and its objects belong to another row: its request's.
        assert most - before <= replies.n_bytes + n_requests * 16 * 1024
        assert most - before >= replies.n_bytes / 3, "and it means something"
        assert most <= bound.n_bytes
        velox.signal(signal.SIGKILL)  # nothing is left to be answered
