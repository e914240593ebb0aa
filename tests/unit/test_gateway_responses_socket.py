"""A Responses WebSocket that Velox answers itself (gateway/responses_socket.py): what it reads, holds and waits for."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from tests.unit.upstream_wire import KIB, Loop, Transport
from velox.gateway.responses_socket import ResponsesSocket
from velox.gateway.tunnels import Tunnels
from velox.heads import RequestHead, WebSocketOffer
from velox.net.tunnel import TunnelLimits
from velox.protocol.websocket_frames import CLOSE, PING, PONG, TEXT, frame

LIMITS: Final = TunnelLimits(idle_s=300.0, client_write_s=30.0, min_rate_bytes=1024)
READ: Final = 64 * KIB  # of one read


class Wire(Transport):
    """What lies between the socket and its client."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == self.HIGH

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        self.is_closed = True


class Recorder:
    """Counts refusals."""

    n_refused = 0

    def next_id(self) -> bytes:
        return b"1-1"

    def refused(self, *_: object) -> None:
        self.n_refused += 1


class Gateway:
    """The owner of a socket, as far as it is asked."""

    draining = False

    def __init__(self, tunnels: Tunnels) -> None:
        self.loop: Final = Loop()
        self.parts: Final = self
        self.tunnels: Final = tunnels
        self.recorder: Final = Recorder()


class Stand:
    """A socket after its handshake, with its transport."""

    def __init__(self, tunnels: Tunnels | None = None) -> None:
        self.gateway: Final = Gateway(tunnels or Tunnels(8, LIMITS))
        self.n_closed = 0
        head = RequestHead.of(b"GET", b"/v1/responses", (), offer=WebSocketOffer(b"k", (), b""))
        self.socket: Final = ResponsesSocket(cast(Any, self.gateway), cast(Any, None), head, self._closed)
        self.wire: Final = Wire()
        self.socket.take(cast(asyncio.Transport, self.wire), b"", lambda _: None)

    def _closed(self, socket: ResponsesSocket) -> None:
        self.n_closed += 1

    def send_all(self, data: bytes, most: int = 1 << 30) -> int:
        """Send for as long as it is read; return how many bytes were."""
        n_read = 0
        while self.wire.is_reading() and not self.wire.is_closed and n_read < min(len(data), most):
            self.wire.read(data[n_read : n_read + READ])
            n_read += READ
        return n_read

    def sweep(self, after_s: float) -> None:
        """Look at it after some time."""
        self.gateway.loop.now_s += after_s
        self.socket.check(self.gateway.loop.now_s, is_short_of_memory=False)


def sent(payload: bytes, opcode: int = TEXT) -> bytes:
    """Return a client's frame, masked."""
    head = frame(payload, opcode)[: -len(payload) or None]
    mask = b"\x01\x02\x03\x04"
    return bytes((head[0], head[1] | 0x80)) + head[2:] + mask + bytes(b ^ mask[n % 4] for n, b in enumerate(payload))


def test_client_that_takes_nothing_is_not_read() -> None:
    """Every bad message has an answer: those of one read wait, and what is left of it waits behind them."""
    stand = Stand()
    stand.wire.room = 0
    bad = sent(b"{}") * 9_000
    n_read = stand.send_all(bad)
    assert n_read == READ < len(bad)
    assert Wire.HIGH < len(stand.wire.waiting) < Wire.HIGH + KIB

    seen = stand.gateway.recorder.n_refused
    stand.wire.make_room(Wire.HIGH + KIB)
    assert stand.gateway.recorder.n_refused > seen
    while not stand.wire.is_reading():
        stand.wire.make_room(KIB)
    stand.wire.make_room(1 << 30)
    while n_read < len(bad):
        n_read += stand.send_all(bad[n_read:], READ)
    assert stand.gateway.recorder.n_refused == 9_000, "none is lost"


def test_pings_of_one_read_are_answered_in_one_write() -> None:
    """Tens of thousands of small objects would wait to be sent."""
    stand = Stand()
    stand.wire.read(sent(b"a", PING) + sent(b"b", PING) * 100)
    assert stand.wire.take() == frame(b"a", PONG) + frame(b"b", PONG) * 100
    assert stand.wire.n_writes == 1


def test_client_that_takes_too_little_is_ended() -> None:
    """What is written on top is no progress, and less than the rate is none either."""
    stand = Stand()
    stand.wire.room = 0
    stand.send_all(sent(b"{}") * 9_000)
    stand.sweep(29.0)
    stand.socket.send(bytes(KIB))
    assert not stand.wire.is_closed
    stand.wire.make_room(31 * KIB)
    stand.sweep(1.0)
    assert not stand.wire.is_closed, "it has taken a KiB a second"
    stand.wire.make_room(10 * KIB)
    stand.socket.send(bytes(KIB))
    stand.sweep(30.0)
    assert stand.wire.is_closed and stand.n_closed == 1


def test_nothing_is_held_after_a_protocol_error() -> None:
    """It is closed with 1002; what still comes can be no frame."""
    stand = Stand()
    stand.wire.read(b"\x81\x02hi" + b"\xff" * KIB)
    assert stand.wire.take()[2:4] == (1002).to_bytes(2)
    for _ in range(100):
        stand.wire.read(b"\xff" * READ)
    assert stand.socket._reader._data == b""
    assert stand.wire.n_writes == 1
    stand.sweep(2.0)
    assert stand.wire.is_closed


def test_close_frame_of_a_client_is_read_after_ours() -> None:
    """Messages before it are not held, and a ping has no answer any more."""
    stand = Stand()
    stand.socket.close(1001, "bye")
    closed = stand.wire.take()
    stand.wire.read(sent(b"p", PING))
    half = sent(b"m" * 50_000)
    stand.wire.read(half[:40_000])
    assert stand.socket._reader.held_bytes == 0
    stand.wire.read(half[40_000:] + sent((1001).to_bytes(2), CLOSE))
    assert stand.wire.take() == b"" and closed and stand.wire.is_closed


def test_answers_that_wait_pause_and_go_on_with_the_client() -> None:
    """The reading stands still from the first write above the mark to the last byte but a quarter of it."""
    stand = Stand()
    stand.wire.room = 0
    stand.socket.send(bytes(Wire.HIGH))
    assert not stand.wire.is_reading()
    stand.wire.make_room(Wire.HIGH // 2)
    assert not stand.wire.is_reading()
    stand.wire.make_room(Wire.HIGH)
    assert stand.wire.is_reading()
