"""Reads that go past the worker's buffer while a reply's chunks come alone, and when they must not."""

from __future__ import annotations

import asyncio
from typing import Final, cast

import pytest

from tests.unit.net.upstream.test_lone_chunks import HEAD, alone
from tests.unit.net.upstream.test_upstream_http1 import Line
from tests.unit.net.upstream_wire import KIB, Sink, TlsTransport
from velox.outcomes import ConnectionEnd
from velox.protocol.http1 import write as http1_write

LAST: Final = http1_write.LAST_CHUNK


def passing(line: Line) -> Sink:
    """Begin a reply, and bring it to where its reads come as bytes."""
    sink = line.open(sink=Sink(takes_chunks=True))
    for data in (HEAD, alone(30), alone(31)):
        assert not passes(line)
        line.give(data)
    assert passes(line)
    return sink


def passes(line: Line) -> bool:
    """Say whether the next read comes as bytes."""
    is_other = line.transport.protocol is not line.connection
    assert is_other is not isinstance(line.transport.protocol, asyncio.BufferedProtocol)
    return is_other


def test_reply_of_lone_chunks_passes_by_up_to_its_end() -> None:
    """Whatever comes in between; and the next reply on that connection begins in the buffer."""
    line = Line()
    for n in range(1, 3):
        sink = passing(line)
        for data in (alone(20), alone(20) * 2, b"1", b"4\r\n" + b"x" * 20 + b"\r\n", alone(20)):
            line.give(data)
            assert passes(line)
        assert sink.n_chunks == 3
        line.give(LAST)
        assert sink.ended and sink.body == b"x" * (30 + 31 + 100)
        assert not passes(line) and line.connection.n_rooms == 1
        assert line.owner.n_room == n


def test_large_read_goes_back_to_the_buffer() -> None:
    """One such read may come, as large as the loop makes them, and is read like any other; the next is smaller."""
    line = Line()
    sink = passing(line)
    n_bytes = len(line.connection.get_buffer(-1))
    line.give(alone(n_bytes - 9))
    assert passes(line), "as much as a read of the buffer"
    line.give(alone(250 * KIB))
    assert not passes(line)
    assert sink.body == b"x" * (30 + 31 + n_bytes - 9 + 250 * KIB)
    line.give(alone(20))
    assert passes(line), "the upstream is slow again"


def test_paused_connection_reads_into_the_buffer() -> None:
    """What gathers while a client takes nothing may be much."""
    line = Line()
    sink = passing(line)
    line.connection.pause()
    assert not passes(line) and not line.transport.is_reading()
    line.connection.resume()
    line.give(alone(20) * 3)
    assert not passes(line)
    line.give(alone(20))
    assert passes(line) and len(sink.body) == 30 + 31 + 80


@pytest.mark.parametrize("how", ["cancelled", "given up", "cut", "closed in order", "garbage", "the last one"])
def test_connection_that_ends_is_told_as_ever(how: str) -> None:
    """However it ends."""
    line = Line()
    sink = passing(line)
    protocol = line.transport.protocol
    assert isinstance(protocol, asyncio.Protocol)
    match how:
        case "cancelled":
            sink.is_deaf = True
            line.connection.cancel()
        case "given up":
            line.connection.abort(ConnectionEnd.SHUTDOWN)
        case "cut":
            protocol.connection_lost(ConnectionResetError())
        case "closed in order":
            assert not protocol.eof_received()
            protocol.connection_lost(None)
        case "garbage":
            line.give(b"no size\r\n")
        case "the last one":
            line.connection.retire(ConnectionEnd.LAST)
            line.give(LAST)
    assert not line.connection._passes_by and line.connection.is_closed
    assert sink.ended is (how == "the last one")
    assert (sink.failure is not None) is (how not in ("cancelled", "the last one"))
    assert len(line.owner.ends) == 1


def test_upload_is_held_up_through_either_protocol() -> None:
    """A reply may begin before its request has been sent whole."""
    line = Line()
    line.transport.room = 0
    sink = line.open(b"u" * (512 * KIB), Sink(takes_chunks=True))
    for data in (HEAD, alone(30), alone(31)):
        line.give(data)
    assert passes(line) and line.connection.n_unsent > 0
    for _ in range(40):
        line.transport.make_room(64 * KIB)
        line.turn()
    assert line.connection.n_unsent == 0 and len(line.transport.sent) > 512 * KIB
    line.give(LAST)
    assert sink.ended and line.connection.n_rooms == 1


def test_tls_and_chunks_that_are_looked_at_stay_with_the_buffer() -> None:
    """TLS has its own way of reading; and where no chunk is taken alone, nothing would be saved."""
    for line, sink in ((Line(TlsTransport()), Sink(takes_chunks=True)), (Line(), Sink())):
        line.open(sink=sink)
        for data in (HEAD, alone(30), alone(31), alone(32)):
            line.give(data)
        assert not passes(line) and sink.body == b"x" * (30 + 31 + 32)


def test_chunk_that_pauses_its_client_is_the_last_of_its_kind() -> None:
    """The pause comes from inside the sink: what is paused must not pass by."""

    class Pausing(Sink):
        def on_chunk(self, chunk: bytes, at: int) -> bool:
            line.connection.pause()
            return super().on_chunk(chunk, at)

    line = Line()
    sink = line.open(sink=Pausing(takes_chunks=True))
    for data in (HEAD, alone(30), alone(31)):
        line.give(data)
    assert sink.n_chunks == 1 and not line.transport.is_reading() and not passes(line)
    line.connection.resume()
    line.give(alone(20) * 2)
    assert not passes(line) and len(sink.body) == 30 + 31 + 40


def test_protocol_tells_the_connection_of_its_writes() -> None:
    """The loop asks whoever is the protocol to write less."""
    line = Line()
    passing(line)
    protocol = cast(asyncio.Protocol, line.transport.protocol)
    protocol.pause_writing()
    assert line.connection._write_paused
    protocol.resume_writing()
    assert not line.connection._write_paused
