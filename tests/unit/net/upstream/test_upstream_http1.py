"""An HTTP/1.1 connection to an upstream, over a transport in memory: reuse, ends and their causes, uploads."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Final, cast

import pytest

from tests.unit.net.upstream_wire import KIB, MIB, Loop, Owner, Secured, Sink, TlsTransport, Transport, asked
from velox.errors import Reason
from velox.heads import ReplyHead
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.interface import ReadBuffer, UpstreamFailure
from velox.outcomes import ConnectionEnd, Retry

OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


class Line:
    """A connection, its loop, its owner and its transport."""

    def __init__(self, transport: Transport | None = None) -> None:
        self.loop: Final = Loop()
        self.owner: Final = Owner()
        self.transport: Final = transport or Transport()
        self.connection: Final = Http1Connection(
            self.owner,
            ReadBuffer(clock=self.loop.time),
            b"api.example",
            cast(asyncio.AbstractEventLoop, self.loop),
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    def open(self, body: bytes | None = None, sink: Sink | None = None) -> Sink:
        sink = sink or Sink()
        self.connection.open(asked(body), sink)
        return sink

    def give(self, data: bytes) -> None:
        self.transport.read(data)

    def lose(self) -> None:
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    def turn(self, n: int = 1) -> None:
        for _ in range(n):
            self.loop.turn()


def failed(sink: Sink) -> tuple[Reason, Retry | None]:
    assert sink.failure is not None and not sink.ended
    return sink.failure.reason, sink.failure.unprocessed


@pytest.mark.parametrize("n_before", [0, 10, 60])
def test_what_tls_has_read_before_the_end_is_taken(n_before: int) -> None:
    """A paused sink's connection is not read from; uvloop forgets what waits when the upstream closes."""
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\n" + b"x" * 20_000
    line = Line(TlsTransport())
    sink = line.open()
    if n_before:
        line.give(reply[:n_before])
    secured = line.transport.secured = Secured()
    secured.unread += reply[n_before:]
    line.lose()
    assert (sink.ended, sink.body, sink.failure) == (True, b"x" * 20_000, None)
    assert line.owner.ends == [ConnectionEnd.CLOSED] and not line.connection.has_room


def test_connection_serves_one_exchange_after_the_other() -> None:
    """Room again with each whole reply; nothing is told of an end."""
    line = Line()
    for n in range(3):
        assert line.connection.n_rooms == 1
        sink = line.open(b"{}")
        assert (line.connection.n_rooms, line.connection.n_begun) == (0, n + 1)
        line.give(OK + b"hello")
        assert sink.ended and sink.body == b"hello"
    assert (line.owner.n_room, line.owner.ends) == (3, [])


@pytest.mark.parametrize(
    "reply",
    [
        OK.replace(b"5", b"0") + b"extra",
        OK + b"helloHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\nextra",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nextra",
    ],
    ids=["longer than said", "a second reply", "204 with a body", "after the last chunk"],
)
def test_bytes_after_a_reply_spoil_the_connection_not_the_reply(reply: bytes) -> None:
    """F-30: the next reply would begin with them."""
    line = Line()
    sink = line.open()
    line.give(reply)
    assert sink.ended and line.transport.is_closed
    assert line.owner.ends == [ConnectionEnd.EXTRA_DATA] and line.owner.n_room == 0


def test_bytes_between_two_exchanges_spoil_the_connection() -> None:
    """F-30, in a read of their own."""
    line = Line()
    line.open()
    line.give(OK + b"hello")
    line.give(b"x")
    assert line.owner.ends == [ConnectionEnd.EXTRA_DATA] and line.transport.is_closed


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 99 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\nb: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 201 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 16) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11,
    ],
    ids=["status", "NUL", "bare LF", "201 headers", "64 KiB head", "two framings", "two lengths", "11 interim"],
)
def test_reply_that_breaks_the_protocol_ends_the_connection(reply: bytes) -> None:
    """F-29, F-31: 502 upstream_protocol, and no byte more is read from there."""
    line = Line()
    sink = line.open()
    line.give(reply)
    assert failed(sink) == (Reason.UPSTREAM_PROTOCOL, None) and sink.head is None
    assert line.transport.is_closed and line.owner.ends == [ConnectionEnd.PROTOCOL]


def test_ten_interim_replies_are_skipped() -> None:
    """F-31: 100 and 103 are not the reply."""
    line = Line()
    sink = line.open()
    line.give(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10 + OK + b"hello")
    assert sink.ended and sink.head is not None and sink.head.status == 200


# -- ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clean", "whole"), [(True, True), (False, False)], ids=["said", "unsaid"])
def test_reply_until_close_is_whole_when_the_upstream_said_so(clean: bool, whole: bool) -> None:
    """FIN or close_notify ends it; a connection that is just gone cuts it (F-13)."""
    line = Line()
    sink = line.open()
    line.give(b"HTTP/1.1 200 OK\r\n\r\nhello")
    if clean:
        line.connection.eof_received()
    line.lose()
    assert sink.body == b"hello" and sink.ended == whole
    if not whole:
        assert failed(sink) == (Reason.UPSTREAM_TRUNCATED, None)
    assert line.owner.ends == [ConnectionEnd.LOST]


def test_end_of_file_between_two_exchanges_takes_the_room_at_once() -> None:
    """No request may be written to a connection that the loop is about to close."""
    line = Line()
    line.connection.eof_received()
    assert not line.connection.has_room and line.owner.ends == [ConnectionEnd.CLOSED]
    line.lose()
    assert line.owner.ends == [ConnectionEnd.CLOSED]


@pytest.mark.parametrize(
    ("served", "n_received", "retry"),
    [(True, 0, Retry.STALE), (True, 1, Retry.STALE), (True, None, None), (True, -1, None), (False, 0, None)],
)
def test_request_that_a_closed_connection_never_delivered_is_free(
    served: bool, n_received: int | None, retry: Retry | None
) -> None:
    """F-10: the peer had closed the idle connection. Free only if its kernel has not received the whole head.

    n_received: of the request's bytes; None: all; -1: all but the last one of the body.
    """
    line = Line()
    if served:
        line.open()
        line.give(OK + b"hello")
    before = len(line.transport.sent)
    sink = line.open(b"{}")
    if n_received is not None:
        line.transport.n_received = (before if n_received >= 0 else len(line.transport.sent)) + n_received
    line.connection.eof_received()
    line.lose()
    assert failed(sink) == (Reason.UPSTREAM_RESET, retry)
    assert sink.failure is not None and sink.failure.may_be_stale is served


def test_reset_of_a_connection_that_had_served_is_not_free() -> None:
    """A reset does not tell whether the request was read: a server may reset what it has read."""
    line = Line()
    line.open()
    line.give(OK + b"hello")
    line.transport.n_received = len(line.transport.sent)
    sink = line.open(b"{}")
    line.lose()
    assert failed(sink) == (Reason.UPSTREAM_RESET, None)
    assert sink.failure is not None and sink.failure.may_be_stale


def test_request_on_a_closing_transport_is_refused_unwritten() -> None:
    """The loop knows of the end, the connection not yet."""
    line = Line()
    line.transport.is_closed = True
    with pytest.raises(UpstreamFailure) as caught:
        line.open()
    assert caught.value.unprocessed is Retry.STALE and line.connection.n_streams == 0
    assert not line.connection.has_room, "the next attempt must not get it again"
    assert line.owner.ends == [ConnectionEnd.CLOSED]


def test_cancel_closes_and_the_sink_hears_nothing_more() -> None:
    """F-43, also while reading is paused; once, and for one cause."""
    line = Line()
    sink = line.open()
    line.give(OK + b"he")
    line.connection.pause()
    line.connection.cancel()
    sink.is_deaf = True
    line.connection.resume()
    line.connection.connection_lost(None)
    line.connection.cancel()
    assert line.transport.is_closed and line.owner.ends == [ConnectionEnd.CANCELLED]


@pytest.mark.parametrize("head", [False, True])
def test_abort_tells_a_cut_reply_from_one_that_never_began(head: bool) -> None:
    """At shutdown, say."""
    line = Line()
    sink = line.open()
    if head:
        line.give(OK + b"he")
    line.connection.abort(ConnectionEnd.SHUTDOWN)
    assert failed(sink) == (Reason.UPSTREAM_TRUNCATED if head else Reason.UPSTREAM_RESET, None)
    assert line.owner.ends == [ConnectionEnd.SHUTDOWN]


def test_retired_connection_ends_with_its_reply() -> None:
    """The cause is the first one."""
    line = Line()
    sink = line.open()
    line.connection.retire(ConnectionEnd.AGE)
    assert not line.transport.is_closed
    line.give(OK + b"hello")
    assert sink.ended and line.transport.is_closed and line.owner.ends == [ConnectionEnd.AGE]


# -- uploads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_body", [200 * KIB, 20 * MIB], ids=["one write", "slices"])
def test_upload_to_an_upstream_that_takes_nothing_is_counted_and_not_copied(n_body: int) -> None:
    """F-38: n_unsent is what the kernel has not taken; a slice or two wait beside the body."""
    line = Line()
    line.transport.room = 10 * KIB
    body = bytes(n_body)
    tracemalloc.start()
    line.open(body)
    line.turn(10)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < MIB
    held = line.connection.n_unsent
    assert n_body - 10 * KIB <= held <= n_body - 9 * KIB
    line.transport.make_room(50 * KIB)
    assert line.connection.n_unsent == held - 50 * KIB
    while line.connection.n_unsent:
        line.transport.make_room(MIB)
        line.turn()
    assert len(line.transport.take()) > n_body


@pytest.mark.parametrize("n_body", [200 * KIB, 2 * MIB])
def test_reply_that_came_before_the_end_of_the_upload_is_the_last(n_body: int) -> None:
    """An early 413 is whole; the upstream would read the rest of the body as the next request."""
    line = Line()
    line.transport.room = 10 * KIB
    sink = line.open(bytes(n_body))
    line.give(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
    assert sink.ended and line.transport.is_closed and line.owner.ends == [ConnectionEnd.LAST]
    assert line.connection.n_unsent == 0


def test_reads_that_take_long_become_short_and_leave_the_turn_to_others() -> None:
    """A reply of many small events: what one turn of the loop takes is bounded by its time, not by its bytes."""
    line = Line()

    class Slow(Sink):
        def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
            line.loop.now_s += len(data) * 1e-6  # 1 ms for 1 KB
            super().on_reply(head, data, end)

    sink = line.open(sink=Slow())
    line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    first = len(line.connection.get_buffer(-1))
    line.give(bytes(first))
    assert not line.transport.is_reading(), "no more in this turn"
    line.turn()
    assert line.transport.is_reading()
    assert len(line.connection.get_buffer(-1)) <= 2048 < first
    line.connection.pause()
    line.give(bytes(5000))
    line.turn()
    assert not line.transport.is_reading(), "the sink has paused it"
    assert bytes(sink.body) == bytes(first + 5000)


def test_reads_that_are_gone_through_quickly_become_long() -> None:
    """A large reply that passes unread."""
    line = Line()
    line.open()
    line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    for _ in range(4):
        line.give(bytes(len(line.connection.get_buffer(-1))))
    assert len(line.connection.get_buffer(-1)) == 128 * 1024 and line.transport.is_reading()


def test_short_reads_of_one_turn_are_counted_together() -> None:
    """X8, X9: an upstream that is read quickly, 32 times in a row: together no more than a millisecond of a turn."""
    line = Line()

    class Quick(Sink):
        def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
            line.loop.now_s += 0.0004
            super().on_reply(head, data, end)

    line.open(sink=Quick())
    line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
    for _ in range(3):
        assert line.transport.is_reading()
        line.give(bytes(len(line.connection.get_buffer(-1))))
    assert not line.transport.is_reading(), "no more in this turn"
    line.connection.pause()
    line.connection.resume()
    assert not line.transport.is_reading(), "nor because the client takes more"
    line.turn()
    assert line.transport.is_reading()
