"""How a tunnel ends: by either side, in good order or not, by time, by a drain; and how slow sides are held."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import websockets.sync.connection
import websockets.sync.server
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.frames import Frame, Opcode

from tests.e2e.harness import VeloxProcess, read_reply, until
from tests.e2e.leaving import close, half_close, reset
from tests.e2e.tools import covers, open_fds
from tests.e2e.upstreams import Certificates
from tests.e2e.websocket_upstreams import (
    WS_ACCEPT,
    RawUpstream,
    WebSocketUpstream,
    connect,
    nothing_left,
    raw_handshake,
    read_head,
)
from tests.patience import PROMPT_S

pytestmark = pytest.mark.more

# The product's promise is 0.1 s; a busy machine of a CI gets ten times that. What was measured is printed.
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n\r\n"
    % WS_ACCEPT.encode()
)
GOING_AWAY = b"\x03\xe9"


def open_raw(velox: VeloxProcess, target: str = "/v1/realtime?model=m") -> socket.socket:
    """Open a tunnel on a plain socket."""
    sock = velox.connect()
    sock.sendall(raw_handshake(target))
    assert read_head(sock).startswith(b"HTTP/1.1 101 ")
    return sock


def read_all(sock: socket.socket) -> bytes:
    """Read to the end; a reset is one."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 20):
            got += piece
    return got


@pytest.fixture(scope="module")
def echo() -> Iterator[WebSocketUpstream]:
    """A server that echoes."""
    with WebSocketUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(echo: WebSocketUpstream) -> Iterator[VeloxProcess]:
    """A gateway in front of it; at the end nothing is left open."""
    with VeloxProcess(echo.env()) as running, nothing_left(running):
        yield running


# -- by one side --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_client_that_leaves_is_seen_by_the_upstream(
    echo: WebSocketUpstream, velox: VeloxProcess, leave: Callable[[socket.socket], None]
) -> None:
    """Without a Close frame, at once; and no clean end is made of it."""
    sock = open_raw(velox)
    session = echo.wait_session()

    began_s = time.monotonic()
    leave(sock)
    code, _ = session.wait_closed()
    took_s = time.monotonic() - began_s
    sock.close()

    print(f"\nupstream saw the end after {took_s * 1000:.1f} ms ({leave.__name__})", end=" ")
    assert code == 1006
    assert took_s < PROMPT_S
    line = velox.wait_access(lambda line: line["reason"] == "client_closed")
    assert (line["status"], line["close_code"]) == (499, None)


@pytest.mark.parametrize("leave", [close, reset])
def test_upstream_that_is_cut_is_no_clean_end(leave: Callable[[socket.socket], None]) -> None:
    """RFC 6455 §7.1.5: the client sees 1006, at once, with every byte that came before."""
    cut_s: list[float] = []
    go = threading.Event()

    def script(sock: socket.socket, head: bytes) -> None:
        accept = head.decode().lower()
        assert "sec-websocket-key" in accept
        sock.sendall(SWITCHED + Frame(Opcode.TEXT, b"last words").serialize(mask=False) + b"\x81\x7e\xff\xffhalf")
        go.wait(20)
        cut_s.append(time.monotonic())
        leave(sock)

    with RawUpstream(script) as upstream, VeloxProcess(upstream.env()) as velox, nothing_left(velox):
        with open_raw(velox) as sock:
            go.set()
            got = read_all(sock)
            took_s = time.monotonic() - cut_s[0]
        assert got == b"\x81\x0alast words\x81\x7e\xff\xffhalf"
        print(f"\nclient saw the end after {took_s * 1000:.1f} ms ({leave.__name__})", end=" ")
        assert took_s < PROMPT_S
        line = velox.wait_access(lambda line: line["endpoint"] == "realtime")
        assert (line["status"], line["reason"], line["close_code"]) == (502, "upstream_truncated", None)


def test_killed_upstream_is_1006_for_a_real_client() -> None:
    """The same, as a WebSocket library sees it."""
    socks: list[socket.socket] = []

    def handler(ws: websockets.sync.server.ServerConnection) -> None:
        ws.recv()
        socks.append(ws.socket)
        ws.socket.shutdown(socket.SHUT_RDWR)  # what the kernel does for a process that is killed
        ws.recv()

    with (
        WebSocketUpstream(handler) as upstream,
        VeloxProcess(upstream.env()) as velox,
        nothing_left(velox),
        connect(velox) as ws,
    ):
        ws.send("die")
        with pytest.raises(ConnectionClosedError) as closed:
            ws.recv()
        assert (closed.value.rcvd, ws.close_code) == (None, 1006)


def test_end_after_a_close_is_a_good_one(velox: VeloxProcess, echo: WebSocketUpstream) -> None:
    """A client that says goodbye and goes without waiting for the answer was served."""
    sock = open_raw(velox)
    session = echo.wait_session()
    sock.sendall(Frame(Opcode.CLOSE, b"\x0f\xa1").serialize(mask=True))
    sock.close()

    assert session.wait_closed()[0] == 4001
    line = velox.wait_access(lambda line: line["close_code"] == 4001)
    assert (line["status"], line["reason"]) == (101, "ok")


def test_half_closed_side_still_gets_what_was_on_its_way() -> None:
    """What the upstream says after the client has closed its sending side arrives; then it is over."""

    def script(sock: socket.socket, head: bytes) -> None:
        sock.sendall(SWITCHED)
        assert sock.recv(100) == b"bye" and sock.recv(100) == b""
        sock.sendall(b"x" * 300_000)
        sock.close()

    with (
        RawUpstream(script) as upstream,
        VeloxProcess(upstream.env()) as velox,
        nothing_left(velox),
        open_raw(velox) as sock,
    ):
        sock.sendall(b"bye")
        half_close(sock)
        assert len(read_all(sock)) == 300_000


@pytest.mark.parametrize("is_tls", [False, True])
def test_client_that_half_closes_behind_its_close_frame_gets_the_answer(
    certificates: Certificates, is_tls: bool
) -> None:
    """TLS has no half of an end that could be passed on: the upstream has its time to answer all the same."""
    with (
        WebSocketUpstream(certificates=certificates if is_tls else None) as upstream,
        VeloxProcess(upstream.env()) as velox,
        nothing_left(velox),
        open_raw(velox) as sock,
    ):
        sock.sendall(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        half_close(sock)
        assert read_all(sock) == b"\x88\x02\x03\xe8"


def test_upstream_that_ignores_the_clients_end_is_left() -> None:
    """It is not waited for."""
    may_end = threading.Event()

    def script(sock: socket.socket, head: bytes) -> None:
        sock.sendall(SWITCHED)
        while sock.recv(100):
            pass
        may_end.wait(20)  # it says no more, and does not close

    with RawUpstream(script) as upstream, VeloxProcess(upstream.env()) as velox:
        sock = open_raw(velox)
        half_close(sock)
        velox.wait_access(lambda line: line["reason"] == "client_closed")
        velox.wait_metric("velox_tunnels", lambda n: n == 0)
        assert sock.recv(1) == b""
        sock.close()
        may_end.set()


# -- by time ------------------------------------------------------------------------------------------------


@covers("VELOX_TUNNEL_IDLE_TIMEOUT")
def test_silent_tunnel_is_closed_and_a_ping_is_no_silence(echo: WebSocketUpstream) -> None:
    """Both sides get a Close frame, 1001."""
    with VeloxProcess({**echo.env(), "VELOX_TUNNEL_IDLE_TIMEOUT": "1s"}) as velox, nothing_left(velox):
        with connect(velox) as ws:
            session = echo.wait_session()
            began_s = time.monotonic()
            while time.monotonic() < began_s + 2.0:
                assert ws.ping().wait(20)
                assert not session.ended.wait(0.1)
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv()
        assert closed.value.rcvd is not None
        goodbye = (1001, "no byte came from either side for too long")
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == goodbye
        assert session.wait_closed() == goodbye
        line = velox.wait_access(lambda line: line["endpoint"] == "realtime")
        assert (line["reason"], line["close_code"]) == ("tunnel_timeout", 1001)


@covers("VELOX_TUNNEL_TIMEOUT")
def test_tunnel_ends_when_it_has_lasted_long_enough(echo: WebSocketUpstream) -> None:
    """Though it is in use."""
    with VeloxProcess({**echo.env(), "VELOX_TUNNEL_TIMEOUT": "1s"}) as velox, nothing_left(velox):
        with connect(velox) as ws:
            session = echo.wait_session()
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    ws.send("hi")
                    assert ws.recv() == "hi"
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        assert session.wait_closed()[0] == 1001
        assert velox.wait_access(lambda line: line["endpoint"] == "realtime")["reason"] == "tunnel_timeout"


# -- by a drain ---------------------------------------------------------------------------------------------


def test_drain_says_goodbye_to_both_sides(echo: WebSocketUpstream) -> None:
    """Within the window the tunnel works on; at its end, 1001 and a text, and the gateway ends well."""
    with VeloxProcess({**echo.env(), "VELOX_DRAIN_TIMEOUT": "1s"}) as velox:
        with connect(velox) as ws:
            session = echo.wait_session()
            velox.signal(signal.SIGTERM)
            velox.wait_log(lambda text: "draining" in text)
            ws.send("still here")
            assert ws.recv() == "still here"
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "the gateway is shutting down")
        assert session.wait_closed() == (1001, "the gateway is shutting down")
        assert velox.wait() == 0
        line = velox.wait_access(lambda _line: True)
        assert (line["reason"], line["close_code"], line["endpoint"]) == ("draining", 1001, "realtime")


def test_drain_waits_for_no_tunnel_that_has_ended(echo: WebSocketUpstream) -> None:
    """The window is a limit, no sentence."""
    with VeloxProcess({**echo.env(), "VELOX_DRAIN_TIMEOUT": "60s"}) as velox:
        with connect(velox):
            session = echo.wait_session()
            velox.signal(signal.SIGTERM)
            velox.wait_log(lambda text: "draining" in text)
        assert session.wait_closed()[0] == 1000
        assert velox.wait(20) == 0


def test_drain_begins_no_new_tunnel(echo: WebSocketUpstream) -> None:
    """A request that was coming when the drain began is answered, but not with a WebSocket, which would be cut soon."""
    n_before = len(echo.requests)
    with VeloxProcess({**echo.env(), "VELOX_DRAIN_TIMEOUT": "5s"}) as velox, connect(velox) as running:
        session = echo.wait_session()
        with velox.connect() as sock:
            sock.sendall(raw_handshake()[:20])
            velox.wait_metric("velox_client_connections", lambda n: n == 2)
            velox.signal(signal.SIGTERM)
            velox.wait_metric('velox_worker_up{worker="0"}', lambda n: n == 0)
            sock.sendall(raw_handshake()[20:])
            reply = read_reply(sock)
        running.close()
        assert session.wait_closed()[0] == 1000
        assert (reply.status, reply.header("x-velox-reason")) == (503, "draining")
    assert len([request for request in echo.requests[n_before:] if "realtime" in request.path]) == 1


def test_goodbye_waits_for_the_end_of_a_frame() -> None:
    """The Close frame stands after the frame that was open, whichever of the two directions that was in."""
    frame = Frame(Opcode.BINARY, b"u" * 1000).serialize(mask=False)
    masked = Frame(Opcode.BINARY, b"c" * 1000).serialize(mask=True)
    is_draining, got = threading.Event(), bytearray()
    done = threading.Event()

    def script(sock: socket.socket, head: bytes) -> None:
        sock.sendall(SWITCHED + frame[:500])
        while len(got) < 500:
            got.extend(sock.recv(500 - len(got)))
        # The goodbye to the client can't have been sent yet: the one to us is held back just as it is, by the client's.
        is_draining.wait(20)
        sock.sendall(frame[500:] + frame)
        with contextlib.suppress(OSError):
            while piece := sock.recv(65536):
                got.extend(piece)
        done.set()

    env = {"VELOX_DRAIN_TIMEOUT": "500ms"}
    with RawUpstream(script) as upstream, VeloxProcess({**upstream.env(), **env}) as velox:
        with open_raw(velox) as sock:
            sock.sendall(masked[:500])
            down = b""
            while len(down) < 500:
                down += sock.recv(500 - len(down))
            velox.signal(signal.SIGTERM)
            # From here the drain's end can't be seen from outside before it acts: the halves are sent right at it.
            velox.wait_log(lambda text: "draining" in text)
            time_of_end = threading.Timer(0.65, is_draining.set)
            time_of_end.start()
            is_draining.wait(20)
            sock.sendall(masked[500:] + masked)
            down += read_all(sock)
            time_of_end.join()
        assert done.wait(20)
        assert velox.wait() == 0
    assert down[: len(frame)] == frame
    assert down[len(frame) :][:4] == b"\x88\x1e" + GOING_AWAY
    assert bytes(got[: len(masked)]) == masked
    assert got[len(masked)] == 0x88 and got[len(masked) + 1] == 0x80 | 0x1E


# -- slow sides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", ["client", "upstream"])
@pytest.mark.more
def test_slow_side_holds_the_other_in_bounded_memory(slow: str) -> None:
    """Whoever writes 48 MB to a side that reads nothing is stopped; once it reads, all of it arrives."""
    payload = b"\x82\x7f" + (48 << 20).to_bytes(8) + b"0123456789abcdef" * (3 << 20)
    sent: list[int] = [0]
    may_read = threading.Event()
    received: list[int] = [0]

    def write(sock: socket.socket) -> None:
        view = memoryview(payload)
        while view:
            n = sock.send(view[:65536])
            sent[0] += n
            view = view[n:]

    def read(sock: socket.socket) -> None:
        may_read.wait(60)
        while received[0] < len(payload):
            received[0] += len(sock.recv(1 << 20))

    def script(sock: socket.socket, head: bytes) -> None:
        sock.settimeout(60)
        sock.sendall(SWITCHED)
        (write if slow == "client" else read)(sock)

    with RawUpstream(script) as upstream, VeloxProcess(upstream.env()) as velox, nothing_left(velox):
        worker = velox.worker_pids()[0]
        rss_before = rss(worker)
        with open_raw(velox) as sock:
            sock.settimeout(60)
            side = threading.Thread(target=read if slow == "client" else write, args=(sock,))
            side.start()
            until(lambda: is_still(sent), "the writer is stopped", 60)
            assert sent[0] < len(payload)
            grown = rss(worker) - rss_before
            print(f"\n{sent[0] >> 10} KiB were taken, most by kernels; the worker grew by {grown >> 10} KiB", end=" ")
            assert grown < 4 << 20
            may_read.set()
            until(lambda: received[0] == len(payload), "all has arrived", 60)
            side.join(60)


@pytest.mark.parametrize(
    ("slow", "variable", "reason"),
    [
        ("client", "VELOX_CLIENT_WRITE_TIMEOUT", "client_slow"),
        ("upstream", "VELOX_UPSTREAM_WRITE_TIMEOUT", "upstream_idle_timeout"),
    ],
)
def test_side_that_takes_nothing_is_cut(slow: str, variable: str, reason: str) -> None:
    """After its write time-out, whatever the idle time-out is; the other side sees an end without a Close frame."""
    may_end, saw = threading.Event(), []

    def flood(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(b"\x82\x7e\x40\x00" + bytes(0x4000))
        saw.append(True)

    def script(sock: socket.socket, head: bytes) -> None:
        sock.settimeout(60)
        sock.sendall(SWITCHED)
        if slow == "client":
            flood(sock)
        may_end.wait(60)

    with RawUpstream(script) as upstream, VeloxProcess({**upstream.env(), variable: "500ms"}) as velox:
        with open_raw(velox) as sock:
            sock.settimeout(60)
            if slow == "upstream":
                flood(sock)
            line = velox.wait_access(lambda line: line["endpoint"] == "realtime", 60)
            until(lambda: bool(saw), "the writer is told")
        may_end.set()
        velox.wait_metric("velox_tunnels", lambda n: n == 0)
    assert (line["reason"], line["close_code"]) == (reason, None)


def rss(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def is_still(counter: list[int]) -> bool:
    """True when the counter has not moved for half a second."""
    before = counter[0]
    time.sleep(0.5)
    return before > 0 and counter[0] == before


# -- many ---------------------------------------------------------------------------------------------------


def test_many_tunnels_leave_nothing(echo: WebSocketUpstream, velox: VeloxProcess) -> None:
    """200 tunnels, each used, then cut in the ways there are: descriptors, slots and exchanges are as before."""
    leaves = [close, reset, half_close]
    worker = velox.worker_pids()[0]
    n_before = open_fds(worker)
    # Closed here whatever happens: tunnels that a failure leaves open would fail the tests after this one, too.
    with nothing_left(velox), contextlib.ExitStack() as opened:
        targets = [f"/v1/realtime?model=m&number={number}" for number in range(200)]
        socks = [opened.enter_context(open_raw(velox, target)) for target in targets]
        assert velox.wait_metric("velox_tunnels", lambda n: n >= 200) == 200
        # Not 400 more than before: a connection that was being warmed up then may be gone or in use now.
        assert open_fds(worker) >= 400
        # The server answers each on a thread of its own, and only then tells of it: they come in any order.
        came = {session.request.path: session for session in [echo.wait_session() for _ in socks]}
        sessions = [came[target] for target in targets]
        for number, sock in enumerate(socks):
            sock.sendall(Frame(Opcode.TEXT, b"hi").serialize(mask=True))
            assert sock.recv(4) == b"\x81\x02hi"
            if number % 4 == 3:
                sessions[number].ws.socket.shutdown(socket.SHUT_RDWR)
            else:
                leaves[number % 4](sock)
        for session in sessions:
            session.wait_closed()
    until(lambda: open_fds(worker) <= n_before, "descriptors are given back")
    with connect(velox) as ws:
        ws.send("still there")
        assert ws.recv() == "still there"
    echo.wait_session()


# -- the same over TLS --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["client", "upstream", "both"])
def test_ends_over_tls_are_as_over_tcp(side: str, certificates: Certificates) -> None:
    """Messages pass, a cut is 1006, a client that leaves is seen, a drain says 1001: whichever side has TLS."""

    def handler(ws: websockets.sync.server.ServerConnection) -> None:
        while True:
            message = ws.recv()
            if message == "die":
                ws.socket.close() if side == "client" else ws.socket.shutdown(socket.SHUT_RDWR)
            ws.send(message)

    listens = {"VELOX_TLS_CERT": certificates.cert_file, "VELOX_TLS_KEY": certificates.key_file}
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with WebSocketUpstream(handler, certificates=None if side == "client" else certificates) as upstream:
        env = {**upstream.env(), **({} if side == "upstream" else listens), "VELOX_DRAIN_TIMEOUT": "100ms"}
        with VeloxProcess(env) as velox:
            open_one = partial(connect, velox, context=None if side == "upstream" else context)
            with open_one() as ws:
                message = b"0123456789abcdef" * (1 << 16)
                ws.send(message)
                assert ws.recv() == message
            assert upstream.wait_session().wait_closed() == (1000, "")

            with open_one() as ws:
                ws.send("die")
                with pytest.raises(ConnectionClosedError) as closed:
                    ws.recv()
                assert (closed.value.rcvd, ws.close_code) == (None, 1006)
            upstream.wait_session().wait_closed()

            with open_one() as ws:
                session = upstream.wait_session()
                began_s = time.monotonic()
                ws.socket.shutdown(socket.SHUT_RDWR)
                assert session.wait_closed()[0] == 1006
                assert time.monotonic() - began_s < PROMPT_S

            velox.wait_metric("velox_tunnels", lambda n: n == 0)
            with open_one() as ws:
                session = upstream.wait_session()
                velox.signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed) as left:
                    ws.recv()
                assert left.value.rcvd is not None and left.value.rcvd.code == 1001
                assert session.wait_closed()[0] == 1001
            assert velox.wait() == 0


@pytest.mark.parametrize("slow", ["client", "upstream"])
def test_slow_side_over_tls_holds_the_other_in_bounded_memory(slow: str, certificates: Certificates) -> None:
    """As over TCP, with what TLS holds on top."""
    received: list[int] = [0]
    sent: list[int] = [0]
    may_read, message = threading.Event(), b"0123456789abcdef" * (1 << 16)

    def write(ws: websockets.sync.connection.Connection) -> None:
        for _ in range(64):
            ws.send(message)
            sent[0] += 1

    def read(ws: websockets.sync.connection.Connection) -> None:
        may_read.wait(60)
        for _ in range(64):
            assert ws.recv() == message
            received[0] += 1

    def handler(ws: websockets.sync.server.ServerConnection) -> None:
        (write if slow == "client" else read)(ws)
        ws.recv()

    listens = {"VELOX_TLS_CERT": certificates.cert_file, "VELOX_TLS_KEY": certificates.key_file}
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with (
        WebSocketUpstream(handler, certificates=certificates) as upstream,
        VeloxProcess({**upstream.env(), **listens}) as velox,
        nothing_left(velox),
    ):
        worker = velox.worker_pids()[0]
        before = rss(worker)
        with connect(velox, context=context) as ws:
            side = threading.Thread(target=read if slow == "client" else write, args=(ws,))
            side.start()
            until(lambda: is_still(sent), "the writer is stopped", 60)
            grown = rss(worker) - before
            print(f"\n{sent[0]} MiB were taken; the worker grew by {grown >> 10} KiB", end=" ")
            assert sent[0] < 64 and grown < 6 << 20
            may_read.set()
            until(lambda: received[0] == 64, "all has arrived", 60)
            side.join(60)
