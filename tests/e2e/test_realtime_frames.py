"""What passes through a tunnel: every kind of frame, unchanged, in both directions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.e2e.harness import VeloxProcess
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


@pytest.fixture(scope="module")
def upstream() -> Iterator[WebSocketUpstream]:
    """A server that echoes."""
    with WebSocketUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: WebSocketUpstream) -> Iterator[VeloxProcess]:
    """A gateway in front of it; at the end nothing is left open."""
    with VeloxProcess(upstream.env()) as running, nothing_left(running):
        yield running


@pytest.mark.parametrize("compression", [None, "deflate"])
@pytest.mark.parametrize(
    "message",
    ["", "hello", "grüße ☃", b"", b"\x00\xff" * 100, "x" * 65536, b"\x88\x02\x03\xe8" * 70_000, os.urandom(1 << 20)],
    ids=["empty", "text", "utf-8", "empty binary", "binary", "64 KiB", "looks like frames", "1 MiB"],
)
def test_message_comes_back_as_it_was(
    upstream: WebSocketUpstream, velox: VeloxProcess, message: str | bytes, compression: str | None
) -> None:
    """Text and binary of any size; with permessage-deflate negotiated end to end, and without."""
    with connect(velox, compression=compression) as ws:
        for _ in range(3):
            ws.send(message)
            assert ws.recv() == message
        extensions = [extension.name for extension in ws.protocol.extensions]

    assert extensions == (["permessage-deflate"] if compression else [])
    assert upstream.wait_session().wait_closed() == (1000, "")


def test_many_messages_ahead_keep_their_order(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """The client sends 2,000 before it reads one."""
    with connect(velox) as ws:
        for number in range(2000):
            ws.send(f"message {number}")
        assert [ws.recv() for _ in range(2000)] == [f"message {number}" for number in range(2000)]
    upstream.wait_session()


def test_fragments_stay_fragments(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """RFC 6455 §5.4: a message in pieces is not put together on the way, in either direction."""
    with connect(velox) as ws:
        ws.send(iter([b"one", b"", b"two" * 30_000]))
        assert ws.recv() == b"onetwo" + b"two" * 29_999
        ws.send("fragments")
        assert list(ws.recv_streaming()) == ["a", "", "bc" * 1000, "d", ""]  # the library ends with an empty one
    upstream.wait_session()


def test_pings_of_both_sides_are_answered(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """The endpoints answer each other's pings; the gateway answers none itself."""
    with connect(velox) as ws:
        assert ws.ping(b"from the client").wait(20)
        ws.send("ping me")
        assert ws.recv() == "pong came"
    upstream.wait_session()


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1000, "bye"), (1001, "page closed"), (3000, "x" * 120)])
def test_close_of_the_client_reaches_the_upstream(
    upstream: WebSocketUpstream, velox: VeloxProcess, code: int, reason: str
) -> None:
    """Code and text as they were; the upstream's answer comes back."""
    with connect(velox) as ws:
        ws.close(code, reason)
        assert (ws.close_code, ws.close_reason) == (code, reason)

    assert upstream.wait_session().wait_closed() == (code, reason)


def test_close_of_the_upstream_reaches_the_client(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """Code and text as they were."""
    with connect(velox) as ws:
        ws.send("close 4321")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "as you wish")
    upstream.wait_session()


def test_subprotocol_is_chosen_by_the_upstream(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """The client's offer goes up, the upstream's choice comes back."""
    with connect(velox, subprotocols=["other", "realtime"]) as ws:
        assert ws.subprotocol == "realtime"
    upstream.wait_session()


def test_frames_over_tls_to_the_upstream(certificates: Certificates) -> None:
    """The same over TLS: large messages either way, both closes."""
    with WebSocketUpstream(certificates=certificates) as upstream, VeloxProcess(upstream.env()) as velox:
        with nothing_left(velox), connect(velox) as ws:
            for size in (1, 20_000, 1 << 20):
                message = os.urandom(size)
                ws.send(message)
                assert ws.recv() == message
        assert upstream.wait_session().wait_closed() == (1000, "")
        with nothing_left(velox), connect(velox) as ws, pytest.raises(ConnectionClosed) as closed:
            ws.send("close 4321")
            ws.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4321


def test_bytes_that_are_no_frames_pass_too() -> None:
    """The endpoints judge each other: what the gateway does not understand it neither changes nor holds back."""
    noise = bytes(range(256)) * 40

    def script(sock, head: bytes) -> None:  # type: ignore[no-untyped-def]
        sock.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-accept: %b\r\n\r\n%b" % (WS_ACCEPT.encode(), noise)
        )
        got = b""
        while len(got) < len(noise):
            got += sock.recv(65536)
        sock.sendall(got[::-1])

    with (
        RawUpstream(script) as upstream,
        VeloxProcess(upstream.env()) as velox,
        nothing_left(velox),
        velox.connect() as sock,
    ):
        # What is sent ahead of the 101 arrives too.
        sock.sendall(raw_handshake() + noise[:1000])
        assert read_head(sock).startswith(b"HTTP/1.1 101 ")
        sock.sendall(noise[1000:])
        got = b""
        while len(got) < 2 * len(noise):
            piece = sock.recv(65536)
            assert piece
            got += piece
    assert got == noise + noise[::-1]


def test_frames_through_a_unix_socket(upstream: WebSocketUpstream, tmp_path: Path) -> None:
    """A sidecar's clients come that way."""
    listen = {"VELOX_LISTEN": f"unix:{tmp_path / 'velox.sock'}"}
    with (
        VeloxProcess({**upstream.env(), **listen}) as velox,
        nothing_left(velox),
        connect(velox, sock=velox.connect()) as ws,
    ):
        message = os.urandom(1 << 20)
        ws.send(message)
        assert ws.recv() == message
    assert upstream.wait_session().wait_closed() == (1000, "")
