"""An HTTP/2 connection to an upstream, on both engines, against a server engine over a wire in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, cast

import pytest

from tests.unit.http2_peers import Recorder
from velox.errors import Reason
from velox.net.upstream import ReadBuffer, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.net.upstream_http2 import Http2Connection, Http2Stream
from velox.protocol.http2 import EngineSettings
from velox.protocol.http2_engines import engine_factory
from velox.types import Header, ReplyHead

MIB: Final = 1 << 20
OK: Final[list[Header]] = [(b":status", b"200"), (b"content-type", b"text/plain")]


class Loop:
    """Keeps what is to be called soon until the wire is pumped."""

    def __init__(self) -> None:
        self.soon: Final[list[Callable[[], None]]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)


class Owner:
    """The pool's place."""

    def __init__(self) -> None:
        self.n_room = 0
        self.n_closed = 0

    def on_room(self, connection: UpstreamConnection) -> None:
        self.n_room += 1

    def on_closed(self, connection: UpstreamConnection) -> None:
        self.n_closed += 1


class Sink:
    """The gateway's place."""

    def __init__(self) -> None:
        self.head: ReplyHead | None = None
        self.body = b""
        self.n_calls = 0
        self.ended = False
        self.failure: UpstreamFailure | None = None

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        assert not self.ended and self.failure is None, "told after the end"
        self.head = head or self.head
        self.body += data
        self.n_calls += 1
        self.ended = end

    def on_failure(self, failure: UpstreamFailure) -> None:
        assert not self.ended and self.failure is None, "told after the end"
        self.failure = failure


class Wire:
    """The connection, its transport, and the upstream at the other end."""

    def __init__(self, engine: Literal["ngh2", "h2"], server_settings: EngineSettings | None = None) -> None:
        self.loop: Final = Loop()
        self.owner: Final = Owner()
        self.peer: Final = Recorder()
        self.server: Final = engine_factory("ngh2")(self.peer, server_settings or EngineSettings(), False)
        self.peer.engine = self.server
        self.server.start()
        self.is_closed = False
        self._sent = bytearray()
        self.connection: Final = Http2Connection(
            self.owner,
            ReadBuffer(),
            b"api.example",
            cast(asyncio.AbstractEventLoop, self.loop),
            engine_factory(engine),
            scheme=b"https",
        )
        self.connection.connection_made(cast(asyncio.BaseTransport, self))
        self.pump()

    def write(self, data: bytes) -> None:
        self._sent += data

    def abort(self) -> None:
        self.is_closed = True

    def give(self, data: bytes) -> None:
        """Let the connection read, as a loop would."""
        view = self.connection.get_buffer(-1)
        for at in range(0, len(data), len(view)):
            if not self.is_closed:
                piece = data[at : at + len(view)]
                view[: len(piece)] = piece
                self.connection.buffer_updated(len(piece))

    def turn(self) -> None:
        """Do what was to be done soon."""
        soon, self.loop.soon[:] = self.loop.soon[:], []
        for callback in soon:
            callback()

    def pump(self) -> None:
        """Carry bytes both ways until both sides are quiet."""
        for _ in range(10_000):
            self.turn()
            sent, self._sent = bytes(self._sent), bytearray()
            if sent:
                self.server.receive(sent)
            came = self.server.take_output() if self.server.has_output else b""
            if came:
                self.give(came)
            if not (sent or came or self.loop.soon):
                return
        raise AssertionError("the two never become quiet")

    def open(self, body: bytes | None = None, method: bytes = b"POST") -> tuple[Sink, Http2Stream]:
        sink = Sink()
        return sink, self.connection.open(UpstreamRequest(method, b"/v1/x", [], b"", body), sink)


@pytest.fixture(params=["ngh2", "h2"])
def engine(request: pytest.FixtureRequest) -> Literal["ngh2", "h2"]:
    return cast(Literal["ngh2", "h2"], request.param)


def test_reply_reaches_its_sink_and_the_stream_is_forgotten(engine: Literal["ngh2", "h2"]) -> None:
    """One exchange, one call: head and body of one read come together."""
    wire = Wire(engine)
    sink, stream = wire.open(b"{}")
    wire.pump()
    assert (wire.peer.body(stream.id), wire.connection.n_streams) == (b"{}", 1)
    wire.server.send_response(stream.id, OK, False)
    wire.server.send_data(stream.id, b"hello", True)
    wire.pump()
    assert (sink.body, sink.ended, sink.n_calls, wire.connection.n_streams) == (b"hello", True, 1, 0)


@pytest.mark.parametrize("status", [b"600", b"999", b"20", b"2xx"])
def test_status_that_is_none_is_a_protocol_error(engine: Literal["ngh2", "h2"], status: bytes) -> None:
    """As over HTTP/1.1: 200 to 599. What the client would be sent otherwise is no HTTP."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.server.send_response(stream.id, [(b":status", status)], True)
    wire.pump()
    assert sink.head is None
    assert sink.failure is not None
    assert sink.failure.reason in (Reason.UPSTREAM_PROTOCOL, Reason.UPSTREAM_RESET)


def test_upload_is_given_up_when_the_reply_came_before_its_end(engine: Literal["ngh2", "h2"]) -> None:
    """RFC 9113 §8.1: an early 413. The rest of the body is not kept for an upstream that never asks for it."""
    wire = Wire(engine, EngineSettings(stream_window=65_535))
    wire.peer.acknowledges = False
    sink, stream = wire.open(bytes(10 * MIB))
    wire.pump()
    wire.server.send_response(stream.id, [(b":status", b"413")], True)
    wire.pump()
    assert sink.ended and sink.head is not None and sink.head.status == 413
    assert wire.connection._engine.queued_bytes(stream.id) == 0
    assert [stream_id for stream_id, _ in wire.peer.resets] == [stream.id]


def test_early_replies_do_not_use_up_the_streams(engine: Literal["ngh2", "h2"]) -> None:
    """Streams whose uploads were given up count no longer, here or in the engine."""
    wire = Wire(engine, EngineSettings(stream_window=65_535, max_streams_local=3))
    wire.peer.acknowledges = False
    for _ in range(10):
        assert wire.connection.has_room
        sink, stream = wire.open(bytes(MIB))
        wire.pump()
        wire.server.send_response(stream.id, [(b":status", b"413")], True)
        wire.pump()
        assert sink.ended
    assert not wire.is_closed


def test_whole_reply_counts_though_the_connection_breaks_in_the_same_read(engine: Literal["ngh2", "h2"]) -> None:
    """What came whole was paid for; only the others are cut."""
    if engine == "h2":
        pytest.skip("h2 loses the events of a read that ends in an error")
    wire = Wire(engine)
    whole, first = wire.open()
    cut, second = wire.open()
    wire.pump()
    wire.server.send_response(first.id, OK, False)
    wire.server.send_data(first.id, b"all", True)
    wire.server.send_response(second.id, OK, False)
    wire.server.send_data(second.id, b"part", False)
    # A frame that no peer may send: DATA on stream 0.
    wire.give(wire.server.take_output() + b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x")
    assert (whole.body, whole.ended, whole.failure) == (b"all", True, None)
    assert cut.body == b"part" and cut.failure is not None
    assert cut.failure.reason is Reason.UPSTREAM_TRUNCATED
    assert (wire.is_closed, wire.owner.n_closed) == (True, 1)


@pytest.mark.xfail(reason="8 stream windows make up the connection's: see the windows of EngineSettings", strict=True)
def test_slow_clients_do_not_hold_up_the_others_of_their_connection(engine: Literal["ngh2", "h2"]) -> None:
    """F-45: a paused stream keeps its own window, and not the one that all streams of the connection share."""
    wire = Wire(engine)
    for _ in range(10):
        _, slow = wire.open()
        slow.pause()
        wire.pump()
        wire.server.send_response(slow.id, OK, False)
        wire.server.send_data(slow.id, bytes(9 * MIB), False)
        wire.pump()
    sink, quick = wire.open()
    wire.pump()
    wire.server.send_response(quick.id, OK, False)
    wire.server.send_data(quick.id, b"hello", True)
    wire.pump()
    assert sink.body == b"hello" and sink.ended


def test_paused_stream_gets_no_more_than_its_window(engine: Literal["ngh2", "h2"]) -> None:
    """Back-pressure: until the client has caught up the upstream is held at 8 MiB, and goes on afterwards."""
    wire = Wire(engine)
    sink, stream = wire.open()
    stream.pause()
    wire.pump()
    wire.server.send_response(stream.id, OK, False)
    wire.server.send_data(stream.id, bytes(20 * MIB), True)
    wire.pump()
    assert len(sink.body) == 8 * MIB and not sink.ended
    stream.resume()
    wire.pump()
    assert len(sink.body) == 20 * MIB and sink.ended


def test_cancelled_streams_leave_nothing_behind(engine: Literal["ngh2", "h2"]) -> None:
    """F-43: RST_STREAM(CANCEL) each, also with bytes held; the connection stays usable, its window whole."""
    wire = Wire(engine)
    for _ in range(300):
        _, stream = wire.open()
        stream.pause()
        wire.pump()
        wire.server.send_response(stream.id, OK, False)
        wire.server.send_data(stream.id, bytes(MIB), False)
        wire.pump()
        stream.cancel()
        wire.pump()
    assert wire.peer.resets[-1][1] == 8 and len(wire.peer.resets) == 300
    assert wire.connection.has_room and wire.connection.n_streams == 0


def test_goaway_lets_running_streams_end_and_then_closes(engine: Literal["ngh2", "h2"]) -> None:
    """R-POOL-2: no new stream; the pool is told at once; the last reply closes the connection."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.server.goaway()
    wire.pump()
    assert not wire.connection.has_room and wire.owner.n_closed == 1 and not wire.is_closed
    wire.server.send_response(stream.id, OK, True)
    wire.pump()
    assert sink.ended and wire.is_closed
