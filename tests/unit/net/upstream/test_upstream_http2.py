"""An HTTP/2 connection to an upstream, on both engines, against a server engine over a wire in memory."""

from __future__ import annotations

import tracemalloc
from typing import Final, cast

import pytest

from tests.unit.net.upstream_wire import KIB, MIB, OK, Sink, Wire
from tests.unit.protocol.http2.http2_peers import Name
from velox.errors import Reason
from velox.net.upstream.http2 import NARROW_WINDOW_BYTES
from velox.outcomes import ConnectionEnd
from velox.protocol.http2.engine import EngineSettings

WINDOW: Final = 256 * KIB


@pytest.fixture(params=["ngh2", "h2"])
def engine(request: pytest.FixtureRequest) -> Name:
    return cast(Name, request.param)


def test_reply_reaches_its_sink_and_the_stream_is_forgotten(engine: Name) -> None:
    """One exchange, one call: head and body of one read come together."""
    wire = Wire(engine)
    sink, stream = wire.open(b"{}")
    wire.pump()
    assert (wire.peer.body(stream.id), wire.connection.n_streams) == (b"{}", 1)
    wire.server.send_response(stream.id, OK, False)
    wire.server.send_data(stream.id, b"hello", True)
    wire.pump()
    assert (sink.body, sink.ended, sink.n_calls, wire.connection.n_streams) == (b"hello", True, 1, 0)


def test_pieces_of_a_reply_are_offered_as_chunks(engine: Name) -> None:
    """To a sink that takes them, up to the end; the head, the end and what is no single chunk come as ever."""
    wire = Wire(engine)
    sink = Sink(takes_chunks=True)
    _, stream = wire.open(b"{}", sink=sink)
    wire.pump()
    wire.server.send_response(stream.id, OK, False)
    wire.pump()
    pieces = [b"data: 1\n\n", b"x", bytes(0xFFF), bytes(0x1000), b"data: 2\n\n"]
    for piece in pieces:
        wire.server.send_data(stream.id, piece, False)
        wire.pump()
    assert (sink.n_chunks, sink.n_calls) == (4, 2)  # the head, and the one that is too long
    wire.server.send_data(stream.id, b"", False)  # would be the last chunk
    wire.pump()
    wire.server.send_data(stream.id, b"end", True)
    wire.pump()
    assert (sink.n_chunks, sink.body, sink.ended) == (4, b"".join([*pieces, b"end"]), True)


def test_sink_that_takes_no_chunks_is_seldom_offered_one(engine: Name) -> None:
    """Two in 32, and again after a pause: which sinks take them is not known here, and may change."""
    wire = Wire(engine)
    sink = Sink()
    _, stream = wire.open(b"{}", sink=sink)
    wire.pump()
    wire.server.send_response(stream.id, OK, False)
    wire.pump()

    def offered(n: int) -> int:
        before = sink.n_offered
        for _ in range(n):
            wire.server.send_data(stream.id, b"data: 1\n\n", False)
            wire.pump()
        return sink.n_offered - before

    assert (offered(32), offered(32)) == (2, 2)
    stream.pause()
    stream.resume()
    assert offered(20) == 2
    assert sink.body == b"data: 1\n\n" * 84


@pytest.mark.slow
def test_small_pieces_are_acknowledged_together_and_all_of_them_in_the_end(engine: Name) -> None:
    """A stream gets many windows' worth in small pieces, and what is left at its end goes back to the connection."""
    wire = Wire(engine, stream_window_bytes=64 * KIB)
    sink, stream = wire.open(b"{}")
    wire.pump()
    wire.server.send_response(stream.id, OK, False)
    n_most = 0
    for _ in range(3000):
        wire.server.send_data(stream.id, bytes(100), False)
        wire.pump()
        n_most = max(n_most, stream.held)
    assert len(sink.body) == 300_000
    assert 0 < n_most <= NARROW_WINDOW_BYTES // 4
    wire.server.send_data(stream.id, b"x", True)
    wire.pump()
    assert sink.ended


@pytest.mark.parametrize("status", [b"600", b"999", b"20", b"2xx"])
def test_status_that_is_none_is_a_protocol_error(engine: Name, status: bytes) -> None:
    """As over HTTP/1.1: 200 to 599. What the client would be sent otherwise is no HTTP."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.server.send_response(stream.id, [(b":status", status)], True)
    wire.pump()
    assert sink.head is None
    assert sink.failure is not None
    assert sink.failure.reason in (Reason.UPSTREAM_PROTOCOL, Reason.UPSTREAM_RESET)


def test_length_that_is_no_length_ends_its_exchange_only(engine: Name) -> None:
    """An error that leaves the read would end the connection, and with it the exchanges of all others."""
    wire = Wire(engine)
    sink, stream = wire.open(method=b"HEAD")
    beside, other = wire.open()
    wire.pump()
    wire.server.send_response(stream.id, [*OK, (b"content-length", b"9" * 5000)], True)
    wire.pump()
    assert sink.head is None and sink.failure is not None
    wire.answer(other, b"hello")
    wire.pump()
    assert beside.ended


def test_upload_is_given_up_when_the_reply_came_before_its_end(engine: Name) -> None:
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


def test_early_replies_do_not_use_up_the_streams(engine: Name) -> None:
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


def test_whole_reply_counts_though_the_connection_breaks_in_the_same_read(engine: Name) -> None:
    """What came whole was paid for; only the others are cut."""
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
    assert (wire.is_closed, wire.owner.ends) == (True, [ConnectionEnd.PROTOCOL])


def test_slow_clients_do_not_hold_up_the_others_of_their_connection(engine: Name) -> None:
    """F-45: a paused stream keeps its own window, and not the one that all streams of the connection share."""
    wire = Wire(engine)
    for _ in range(10):
        _, slow = wire.open()
        slow.pause()
        wire.pump()
        wire.answer(slow, bytes(9 * MIB), end=False)
        wire.pump()
    sink, quick = wire.open()
    wire.pump()
    wire.answer(quick, b"hello")
    wire.pump()
    assert sink.body == b"hello" and sink.ended


@pytest.mark.slow
@pytest.mark.parametrize("window", [65_535, 16 * MIB])
def test_last_stream_gets_through_whatever_all_others_hold(engine: Name, window: int) -> None:
    """Every room but one is taken by a client that reads nothing; the last gets more than all windows together."""
    wire = Wire(engine, stream_window_bytes=window)
    n_rooms = wire.connection.n_rooms
    assert n_rooms == min(512, (2**31 - 1) // (2 * window))
    # A body of zeros for each would be gigabytes: the largest window is tried with fewer of them.
    for _ in range(n_rooms - 1 if window < MIB else 3):
        _, slow = wire.open()
        slow.pause()
        wire.pump()
        wire.answer(slow, bytes(window + 1), end=False)
        wire.pump()
    sink, quick = wire.open()
    wire.pump()
    n_body = 2 * 512 * window if window < MIB else 2 * window
    for _ in range(n_body // MIB):
        if sink.head is None:
            wire.server.send_response(quick.id, OK, False)
        wire.server.send_data(quick.id, bytes(MIB), False)
        wire.pump()
        assert len(sink.body) == MIB
        sink.body = b""
    wire.server.send_data(quick.id, b"end", True)
    wire.pump()
    assert sink.body == b"end" and sink.ended


@pytest.mark.parametrize("upload", [0, 5 * MIB])
def test_reply_that_may_not_run_ahead_has_a_narrow_window(engine: Name, upload: int) -> None:
    """Beside one that may, while an upload fills every write; both get all once they are read."""
    wire = Wire(engine, stream_window_bytes=128 * KIB)
    if upload:
        wire.open(bytes(upload))
    narrow_sink, narrow = wire.open(ahead=False)
    wide_sink, wide = wire.open()
    for stream in narrow, wide:
        stream.pause()
    wire.pump()
    for stream in narrow, wide:
        wire.answer(stream, bytes(MIB))
    wire.pump()
    assert (len(narrow_sink.body), len(wide_sink.body)) == (NARROW_WINDOW_BYTES, 128 * KIB)
    for stream in narrow, wide:
        stream.resume()
    wire.pump()
    assert len(narrow_sink.body) == len(wide_sink.body) == MIB and narrow_sink.ended and wide_sink.ended


def test_wide_window_is_announced_with_the_request_and_not_by_a_packet_of_its_own(engine: Name) -> None:
    """A hundred requests of one turn are one write with all their windows."""
    wire = Wire(engine)
    before = wire.transport.n_writes
    for _ in range(100):
        wire.open()
    wire.loop.turn()
    assert wire.transport.n_writes == before + 1
    assert wire.transport.take().count(b"\x00\x00\x04\x08\x00") == 100


def test_paused_stream_gets_no_more_than_its_window(engine: Name) -> None:
    """Back-pressure: until the client has caught up the upstream is held at one window, and goes on afterwards."""
    wire = Wire(engine)
    sink, stream = wire.open()
    stream.pause()
    wire.pump()
    wire.answer(stream, bytes(5 * MIB))
    wire.pump()
    assert len(sink.body) == WINDOW and not sink.ended
    stream.resume()
    wire.pump()
    assert len(sink.body) == 5 * MIB and sink.ended


@pytest.mark.parametrize("stops", [True, False], ids=["window", "socket"])
def test_upload_to_an_upstream_that_takes_nothing_is_not_copied(engine: Name, stops: bool) -> None:
    """F-37, F-38: what waits is the body itself, and a slice or two; n_unsent says how much."""
    wire = Wire(engine, EngineSettings(stream_window=65_535) if stops else EngineSettings(stream_window=16 * MIB))
    wire.peer.acknowledges = False
    if not stops:
        wire.transport.room = 100 * KIB
    body = bytes(10 * MIB)
    tracemalloc.start()
    _, stream = wire.open(body)
    assert stream.n_unsent == len(body)
    wire.pump()
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    held = stream.n_unsent
    assert grown < MIB and len(body) - 700 * KIB < held < len(body)
    if stops:
        wire.server.acknowledge(stream.id, 65_535)
    else:
        wire.transport.make_room(MIB)
    wire.pump()
    assert stream.n_unsent < held
    stream.cancel()
    assert stream.n_unsent == 0


def test_small_request_does_not_wait_behind_a_large_upload(engine: Name) -> None:
    """Beside a body that fills the pipe, the next request leaves with the next slice or two."""
    wire = Wire(engine, EngineSettings(stream_window=32 * MIB, connection_window=64 * MIB))
    wire.transport.room = 0
    _, large = wire.open(bytes(16 * MIB))
    for _ in range(5):
        wire.loop.turn()
        wire.transport.make_room(256 * KIB)
    wire.server.receive(wire.transport.take())
    _, small = wire.open(b"hello")
    n_between = 0
    while small.id not in wire.peer.ended:
        wire.loop.turn()
        wire.transport.make_room(64 * KIB)
        sent = wire.transport.take()
        n_between += len(sent)
        wire.server.receive(sent)
        assert n_between < MIB, "a mebibyte of somebody else's upload came first"
    assert large.n_unsent > 13 * MIB


@pytest.mark.slow
def test_cancelled_streams_leave_nothing_behind(engine: Name) -> None:
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


def test_goaway_lets_running_streams_end_and_then_closes(engine: Name) -> None:
    """No new stream; the pool is told at once; the last reply closes the connection."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.server.goaway()
    wire.pump()
    assert not wire.connection.has_room and wire.owner.ends == [ConnectionEnd.GOAWAY] and not wire.is_closed
    wire.server.send_response(stream.id, OK, True)
    wire.pump()
    assert sink.ended and wire.is_closed
