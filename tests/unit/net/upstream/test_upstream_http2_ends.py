"""How HTTP/2 connections and their streams end, and what is said about it: causes, and what may be tried again."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import cast

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.unit.net.upstream_wire import KIB, MIB, OK, Secured, Sink, Wire
from tests.unit.protocol.http2.http2_peers import Name
from velox.errors import Reason
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http2.engine import REFUSED_STREAM, EngineSettings


@pytest.fixture(params=["ngh2", "h2"])
def engine(request: pytest.FixtureRequest) -> Name:
    return cast(Name, request.param)


def failed(sink: Sink) -> tuple[Reason, Retry | None]:
    """What the sink was told."""
    assert sink.failure is not None and not sink.ended
    return sink.failure.reason, sink.failure.unprocessed


# -- what may be tried again --------------------------------------------------------------------


def test_refused_stream_is_unprocessed_and_its_neighbour_goes_on(engine: Name) -> None:
    """F-35: REFUSED_STREAM says that no work was done."""
    wire = Wire(engine)
    (refused, first), (other, second) = wire.open(), wire.open()
    wire.pump()
    wire.server.reset(first.id, REFUSED_STREAM)
    wire.answer(second)
    wire.pump()
    assert failed(refused) == (Reason.UPSTREAM_RESET, Retry.REFUSED)
    assert other.ended and wire.owner.ends == []


@pytest.mark.parametrize("last", [0, 1], ids=["none", "one"])
def test_streams_above_a_goaway_are_unprocessed(engine: Name, last: int) -> None:
    """F-34: also when the upstream says that it has taken none at all; those it has taken go on."""
    wire = Wire(engine)
    opened = [wire.open(b"body") for _ in range(3)]
    wire.loop.turn()
    wire.give(GoAwayFrame(0, last).serialize())
    taken = [stream.id <= last for _, stream in opened]
    assert [sink.failure is None for sink, _ in opened] == taken
    assert {failed(sink) for sink, _ in opened if sink.failure} == {(Reason.UPSTREAM_RESET, Retry.GOAWAY)}
    assert wire.owner.ends == [ConnectionEnd.GOAWAY]
    wire.loop.turn()
    assert wire.is_closed == (last == 0)


def test_what_tls_has_read_before_the_end_is_taken(engine: Name) -> None:
    """A connection in line for its turn is not read from; uvloop forgets what waits when the upstream closes."""
    wire = Wire(engine)
    (whole, first), (cut, second) = wire.open(), wire.open()
    wire.pump()
    wire.answer(first, b"x" * 20 * KIB)
    wire.answer(second, b"part", end=False)
    secured = wire.transport.secured = Secured()
    secured.unread += wire.server.take_output()
    wire.lose()
    assert whole.ended and whole.body == b"x" * 20 * KIB
    assert failed(cut)[0] is Reason.UPSTREAM_TRUNCATED and wire.owner.ends == [ConnectionEnd.LOST]


def test_refusal_after_a_goaway_that_covers_it_is_a_refusal(engine: Name) -> None:
    """The GOAWAY is not what sent this one away."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.loop.turn()
    wire.give(GoAwayFrame(0, stream.id).serialize() + RstStreamFrame(stream.id, REFUSED_STREAM).serialize())
    assert failed(sink) == (Reason.UPSTREAM_RESET, Retry.REFUSED)


def test_refusal_after_the_head_is_a_cut_reply(engine: Name) -> None:
    """Work was done: there was a head."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.answer(stream, b"part", end=False)
    wire.pump()
    wire.give(RstStreamFrame(stream.id, REFUSED_STREAM).serialize())
    assert failed(sink) == (Reason.UPSTREAM_TRUNCATED, None) and sink.body == b"part"


def test_lost_connection_tells_what_was_never_written(engine: Name) -> None:
    """A request that was not even written is free to try again; one that was may have been begun."""
    wire = Wire(engine)
    written, first = wire.open()
    wire.pump()
    wire.answer(first, b"part", end=False)
    silent, _ = wire.open()
    wire.pump()
    wire.transport.room = 0
    wire.open(bytes(MIB))  # fills what the kernel takes
    wire.loop.turn()
    unwritten, _ = wire.open()
    wire.loop.turn()
    wire.lose()
    assert failed(written) == (Reason.UPSTREAM_TRUNCATED, None)
    assert failed(silent) == (Reason.UPSTREAM_RESET, None)
    assert failed(unwritten) == (Reason.UPSTREAM_RESET, Retry.STALE)
    assert wire.owner.ends == [ConnectionEnd.LOST]


@pytest.mark.parametrize("n_received", [0, 1, None])
def test_requests_that_a_closed_connection_never_delivered_are_free(engine: Name, n_received: int | None) -> None:
    """F-10 over HTTP/2: the peer had closed the idle connection, and received nothing since. n_received: None: all."""
    wire = Wire(engine)
    served, stream = wire.open()
    wire.pump()
    wire.answer(stream)
    wire.pump()
    assert served.ended
    before = len(wire.transport.sent)
    (one, _), (two, _) = wire.open(), wire.open()
    wire.loop.turn()
    if n_received is not None:
        wire.transport.n_received = before + n_received
    wire.connection.eof_received()
    wire.lose()
    expected = Retry.STALE if n_received == 0 else None
    assert failed(one) == failed(two) == (Reason.UPSTREAM_RESET, expected)
    assert one.failure is not None and one.failure.may_be_stale


def test_first_request_of_a_connection_is_never_stale(engine: Name) -> None:
    """It did not idle: an upstream that hangs up on each request would be asked for ever."""
    wire = Wire(engine)
    sink, _ = wire.open()
    wire.loop.turn()
    wire.transport.n_received = 0
    wire.connection.eof_received()
    wire.lose()
    assert failed(sink) == (Reason.UPSTREAM_RESET, None)


def test_request_on_a_closing_transport_is_refused_unwritten(engine: Name) -> None:
    """The loop knows of the end, the connection not yet."""
    wire = Wire(engine)
    wire.transport.is_closed = True
    with pytest.raises(UpstreamFailure) as caught:
        wire.open()
    assert caught.value.unprocessed is Retry.STALE and wire.connection.n_streams == 0
    assert not wire.connection.has_room, "the next attempt must not get it again"
    assert wire.owner.ends == [ConnectionEnd.CLOSED]


# -- causes, once each ------------------------------------------------------------------------------------------


def _fatal(wire: Wire) -> None:
    wire.give(b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x")  # DATA on stream 0


CAUSES: list[tuple[str, Callable[[Wire], object], ConnectionEnd]] = [
    ("close", lambda wire: wire.lose(), ConnectionEnd.CLOSED),
    ("end of file", lambda wire: wire.connection.eof_received(), ConnectionEnd.CLOSED),
    ("goaway", lambda wire: wire.give(GoAwayFrame(0, 0).serialize()), ConnectionEnd.GOAWAY),
    ("broken rule", _fatal, ConnectionEnd.PROTOCOL),
    ("age", lambda wire: wire.connection.retire(ConnectionEnd.AGE), ConnectionEnd.AGE),
    ("shutdown", lambda wire: wire.connection.abort(ConnectionEnd.SHUTDOWN), ConnectionEnd.SHUTDOWN),
]


@pytest.mark.parametrize(("end", "cause"), [c[1:] for c in CAUSES], ids=[c[0] for c in CAUSES])
def test_owner_hears_of_the_end_once_and_of_its_first_cause(
    engine: Name, end: Callable[[Wire], object], cause: ConnectionEnd
) -> None:
    """Whatever comes after it, and in whatever order the loop tells it."""
    wire = Wire(engine)
    end(wire)
    assert wire.owner.ends == [cause] and not wire.connection.has_room and wire.connection.n_rooms == 0
    wire.connection.retire(ConnectionEnd.REQUESTS)
    wire.pump()
    wire.connection.abort(ConnectionEnd.SHUTDOWN)
    wire.connection.connection_lost(None)
    assert wire.owner.ends == [cause] and wire.connection.is_closed


def test_end_of_file_inside_a_reply_cuts_it(engine: Name) -> None:
    """A half of a connection answers nobody."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    wire.answer(stream, b"part", end=False)
    wire.pump()
    wire.connection.eof_received()
    assert failed(sink) == (Reason.UPSTREAM_TRUNCATED, None)
    assert wire.is_closed and wire.owner.ends == [ConnectionEnd.LOST]


# -- PING ---------------------------------------------------------------------------------------------------------


def pings(wire: Wire) -> int:
    """How many questions have been sent since the last time."""
    wire.loop.turn()
    return wire.transport.take().count(b"\x00\x00\x08\x06\x00")


def test_silent_upstream_is_asked_once_and_then_left(engine: Name) -> None:
    """RFC 9113 §6.7: after the silence a PING, 5 s later the end; not a moment before."""
    wire = Wire(engine)
    sink, _ = wire.open()
    pings(wire)
    wire.connection.check_alive(100.0, 30.0)
    wire.connection.check_alive(129.9, 30.0)
    assert pings(wire) == 0
    wire.connection.check_alive(130.0, 30.0)
    wire.connection.check_alive(134.9, 30.0)
    assert pings(wire) == 1 and not wire.is_closed
    wire.connection.check_alive(135.0, 30.0)
    assert failed(sink) == (Reason.UPSTREAM_RESET, None)
    assert wire.is_closed and wire.owner.ends == [ConnectionEnd.PING]
    wire.connection.check_alive(200.0, 30.0)


@pytest.mark.parametrize("sign", [PingFrame(0, b"velox-up", flags=["ACK"]), SettingsFrame(0)], ids=["pong", "any"])
def test_any_byte_is_a_sign_of_life(engine: Name, sign: Frame) -> None:
    """What comes after the question counts as its answer, and the silence begins anew."""
    wire = Wire(engine)
    wire.connection.check_alive(100.0, 30.0)
    wire.connection.check_alive(130.0, 30.0)
    wire.give(sign.serialize())
    wire.connection.check_alive(136.0, 30.0)
    assert pings(wire) == 1
    wire.connection.check_alive(165.9, 30.0)
    assert pings(wire) == 0
    wire.connection.check_alive(166.0, 30.0)
    assert pings(wire) == 1 and not wire.is_closed


# -- streams and rules --------------------------------------------------------------------------------------------


def test_stream_limit_of_one_and_then_of_none_is_no_deadlock(engine: Name) -> None:
    """F-36: the stream in flight ends, nothing begins above the limit, and the owner hears when there is room again."""
    wire = Wire(engine, EngineSettings(max_streams_local=1))
    assert wire.connection.n_rooms == 1
    sink, stream = wire.open()
    wire.pump()
    assert not wire.connection.has_room
    wire.give(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 0}).serialize())
    n_room = wire.owner.n_room
    wire.give(HeadersFrame(stream.id, Encoder().encode(OK), flags=["END_HEADERS", "END_STREAM"]).serialize())
    wire.loop.turn()
    assert sink.ended and not wire.connection.has_room and wire.owner.n_room == n_room
    wire.give(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 2}).serialize())
    assert wire.connection.n_rooms == 2 and wire.owner.n_room == n_room + 1
    assert wire.owner.ends == []


def test_one_stream_of_a_hundred_ends_badly_and_no_other(engine: Name) -> None:
    """F-40: given up by us, reset by the upstream, or against a rule: it is that stream's affair."""
    wire = Wire(engine)
    opened = [wire.open() for _ in range(100)]
    wire.pump()
    for _, stream in opened:
        wire.answer(stream, b"part ", end=False)
    wire.pump()
    opened[10][1].cancel()
    opened[10][0].is_deaf = True
    wire.server.reset(opened[20][1].id)
    wire.pump()
    # A head in the middle of a body that does not end it (RFC 9113 §8.1).
    block = Encoder().encode([(b"x", b"y")])
    wire.give(HeadersFrame(opened[30][1].id, block, flags=["END_HEADERS"]).serialize())
    wire.pump()
    for n, (_, stream) in enumerate(opened):
        if n not in (10, 20, 30):
            wire.server.send_data(stream.id, b"rest", True)
    wire.pump()
    whole = [n for n, (sink, _) in enumerate(opened) if sink.body == b"part rest" and sink.ended]
    assert whole == [n for n in range(100) if n not in (10, 20, 30)]
    assert [failed(opened[n][0])[0] for n in (20, 30)] == [Reason.UPSTREAM_TRUNCATED] * 2
    assert wire.owner.ends == [] and wire.connection.n_streams == 0


@pytest.mark.slow
def test_late_frames_of_a_cancelled_stream_change_nothing(engine: Name) -> None:
    """Data, trailers and a reset that were on their way when we left; the windows are whole afterwards."""
    wire = Wire(engine)
    for _ in range(600):  # 150 MiB, more than the connection's window
        sink, stream = wire.open()
        wire.pump()
        wire.answer(stream, bytes(256 * KIB), end=False)
        late = wire.server.take_output() if wire.server.has_output else b""
        stream.cancel()
        sink.is_deaf = True
        wire.give(late)
        stream.resume()
        stream.pause()
        stream.cancel()
        wire.pump()
    sink, stream = wire.open()
    wire.pump()
    wire.answer(stream, bytes(256 * KIB))
    wire.pump()
    assert sink.ended and wire.owner.ends == []


# -- floods (F-39) --------------------------------------------------------------------------------------------------


def _bomb() -> list[Frame]:
    fields = [*OK, *[(b"bomb", b"x" * 4_000)] * 20]
    return [HeadersFrame(1, Encoder().encode(fields), flags=["END_HEADERS"])]


def _continued() -> list[Frame]:
    return [HeadersFrame(1, Encoder().encode(OK)), *[ContinuationFrame(1, b"") for _ in range(100)]]


FLOODS: list[tuple[str, Callable[[], list[Frame]]]] = [
    ("PING", lambda: [PingFrame(0, b"12345678")] * 100),
    ("PING answers", lambda: [PingFrame(0, b"12345678", flags=["ACK"])] * 100),
    ("SETTINGS", lambda: [SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 9})] * 100),
    ("empty DATA", lambda: [DataFrame(1, b"")] * 100),
    ("WINDOW_UPDATE", lambda: [WindowUpdateFrame(0, 1)] * 100),
    ("WINDOW_UPDATE of a stream", lambda: [WindowUpdateFrame(1, 1)] * 100),
    ("PRIORITY", lambda: [PriorityFrame(1, depends_on=0, stream_weight=15)] * 100),
    ("header bomb", _bomb),
    ("CONTINUATION", _continued),
]


@pytest.mark.slow
@pytest.mark.parametrize("flood", [f for _, f in FLOODS], ids=[n for n, _ in FLOODS])
@pytest.mark.parametrize("reads", [True, False], ids=["reading", "deaf"])
def test_flood_ends_the_connection_with_flat_memory(
    engine: Name, flood: Callable[[], list[Frame]], reads: bool
) -> None:
    """F-39: what brings nothing is counted, whether or not the upstream reads our answers."""
    wire = Wire(engine)
    sink, stream = wire.open()
    wire.pump()
    assert stream.id == 1
    if flood not in (_bomb, _continued):
        wire.answer(stream, b"part", end=False)
        wire.pump()
    if not reads:
        wire.transport.room = 0
    data = b"".join(frame.serialize() for frame in flood())
    gc.collect()
    tracemalloc.start()
    for _ in range(200):
        wire.give(data)
        wire.loop.turn()
        wire.transport.take()
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert wire.is_closed and wire.owner.ends == [ConnectionEnd.PROTOCOL]
    assert failed(sink)[1] is None
    assert grown < 4 * MIB  # 3 of them when Python's own table of names happens to grow just now


@pytest.mark.slow
def test_what_comes_now_and_then_is_no_flood(engine: Name) -> None:
    """PING for hours, and an upload whose window opens byte by byte: forgiven with time, or with every reply."""
    wire = Wire(engine)
    for second in range(3_000):
        wire.give(PingFrame(0, b"12345678").serialize())
        wire.connection.check_alive(float(second), 30.0)
        wire.loop.turn()
        wire.transport.take()
    for _ in range(3):
        sink, stream = wire.open()
        wire.pump()
        wire.give(b"".join(WindowUpdateFrame(0, 1).serialize() for _ in range(900)))
        wire.answer(stream, b"all")
        wire.pump()
        assert sink.ended
    assert wire.owner.ends == []
