"""A reply that one read brings whole: it needs no decoder, and nobody can tell the difference."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.net.upstream.test_upstream_http1 import Line
from tests.unit.net.upstream_wire import Sink, asked
from velox.errors import Reason
from velox.heads import ReplyHead
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http1.response import ResponseDecoder, ResponseError, decode_first
from velox.protocol.http1.response_head import ReplyHeads

STARTS: Final = [b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Same"]
RARE_STARTS: Final = [
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 99 Odd",
    b"HTTP/1.1 103 Early",
    b"HTTP/1.1 101 Up",
    b"HTTP/2",
    b"",
]
FIELDS: Final = [
    b"content-type: application/json",
    b"x-request-id: 1",
    b"date: Mon, 23 Nov 2026 00:00:00 GMT",
    b"connection: close",
    b"connection: keep-alive",
    b"content-length: 0",
    b"content-length: 5",
    b"Content-Length: 5",
    b"content-length: 5, 5",
    b"transfer-encoding: chunked",
    b"x: a\x00b",
    b"x: a\nb: c",
    b" folded",
]
TAILS: Final = [b"", b"hello", b"hello!", b"hell", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhel", b"HTTP/1.1 200 OK\r\n\r\n"]

replies: Final = st.builds(
    lambda start, fields, end, tail: start + b"".join(b"\r\n" + field for field in fields) + end + tail,
    st.sampled_from(STARTS * 3 + RARE_STARTS),
    st.lists(st.sampled_from(FIELDS), max_size=4),
    st.sampled_from([b"\r\n\r\n"] * 6 + [b"\r\n", b"\n\n", b""]),
    st.sampled_from(TAILS),
)

# Everything that a connection looks at: head, body, complete, keep_alive, surplus, switched, rest, the error.
Seen = tuple[ReplyHead | None, bytes, bool, bool, bool, object, bytes, str]


def seen(decoder: ResponseDecoder) -> Seen:
    body = decoder.take_body()
    d = decoder
    return d.head, body, d.complete, d.keep_alive, d.surplus, d.switched, d.rest, ""


def error(exc: ResponseError) -> Seen:
    return None, b"", False, False, False, None, b"", str(exc)


def by_decoder(data: bytes, heads: ReplyHeads, *, head_request: bool, upgrade: bool) -> Seen:
    decoder = ResponseDecoder(heads, head_request=head_request, upgrade=upgrade)
    try:
        decoder.feed(data)
    except ResponseError as exc:
        return error(exc)
    return seen(decoder)


def by_first_read(data: bytes, heads: ReplyHeads, *, head_request: bool, upgrade: bool) -> Seen:
    try:
        first = decode_first(data, heads, head_request=head_request, upgrade=upgrade)
    except ResponseError as exc:
        return error(exc)
    if isinstance(first, ResponseDecoder):
        return seen(first)
    return *first, True, True, False, None, b"", ""


@given(replies, st.booleans(), st.booleans())
def test_first_read_says_what_the_decoder_says(data: bytes, head_request: bool, upgrade: bool) -> None:
    """Cold and with a head that was read before: the same head, body, ends and errors."""
    heads, others = ReplyHeads(), ReplyHeads()
    for _ in range(2):
        first = by_first_read(data, heads, head_request=head_request, upgrade=upgrade)
        assert first == by_decoder(data, others, head_request=head_request, upgrade=upgrade)


Outcome = tuple[ReplyHead | None, bytes, bool, tuple[Reason, Retry | None] | None, int, list[ConnectionEnd], bool, bool]


def outcome(pieces: list[bytes], *, method: bytes, is_lost: bool) -> Outcome:
    """Give a connection's reply in pieces; return what its sink and its pool heard."""
    line, sink = Line(), Sink()
    line.connection.open(asked(b"{}", method), sink)
    for piece in pieces:
        if piece and not line.transport.is_closed:
            line.give(piece)
    if is_lost and not line.transport.is_closed:
        line.connection.eof_received()
        line.lose()
    failure = sink.failure and (sink.failure.reason, sink.failure.unprocessed)
    connection = line.connection
    ends = (line.owner.n_room, line.owner.ends, connection.has_room, line.transport.is_closed)
    return sink.head, sink.body, sink.ended, failure, *ends


@given(replies, st.lists(st.integers(0, 120), max_size=4), st.sampled_from([b"POST", b"HEAD"]), st.booleans())
def test_chunking_of_a_reply_makes_no_difference(data: bytes, cuts: list[int], method: bytes, is_lost: bool) -> None:
    """R-H1: one read or many, the sink gets the same reply and the pool the same connection.

    Bytes after a whole reply count as a break of their own where they come in their own read: they are left out here.
    """
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    decoder_says = by_decoder(data, ReplyHeads(), head_request=method == b"HEAD", upgrade=False)
    if decoder_says[4]:
        return
    one, many = (outcome(each, method=method, is_lost=is_lost) for each in ([data], pieces))
    if one[3] is not None and one[3][0] is Reason.UPSTREAM_PROTOCOL:
        # What was good before the fault may have been passed on already.
        assert many[3] == one[3] and many[4:] == one[4:]
        return
    assert many == one


def test_connection_is_free_when_the_sink_hears_of_the_end() -> None:
    """The next exchange may begin from within on_reply()."""
    line = Line()
    rooms: list[tuple[bool, int]] = []

    class Looking(Sink):
        def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
            rooms.append((line.connection.has_room, line.owner.n_room))
            super().on_reply(head, data, end)

    first = line.open(b"{}", Looking())
    line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    second = line.open(b"{}", Looking())
    line.give(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh")
    line.give(b"o")
    assert first.body == b"hi" and second.body == b"ho"
    assert rooms == [(True, 1), (False, 1), (True, 2)]


def test_whole_reply_before_the_whole_request_ends_the_connection() -> None:
    """The upstream still reads a body, and would take the next request for it."""
    line = Line()
    sink = line.open(b"x" * (600 << 10))
    line.give(b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\nno")
    assert sink.ended and sink.body == b"no"
    assert line.owner.ends == [ConnectionEnd.LAST] and line.transport.is_closed and not line.connection.has_room
