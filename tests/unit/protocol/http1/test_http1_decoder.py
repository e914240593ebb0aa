"""The connection of a client: bodies, pipelining, any split of the bytes, any cut."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velox.errors import Reason, VeloxError
from velox.heads import RequestHead
from velox.protocol.http1.request import Http1Limits, RequestDecoder

LIMITS = Http1Limits(body_bytes=64)


@dataclass
class Seen:
    """What a connection brought: whole exchanges, one that may be open, and how it ended."""

    requests: list[tuple[RequestHead, bytes]] = field(default_factory=list)
    opened: RequestHead | None = None
    refused: tuple[int, Reason] | None = None


def play(pieces: list[bytes], limits: Http1Limits = LIMITS) -> Seen:
    """Read a connection that comes in these pieces, each request to its end before the next."""
    decoder, seen, body = RequestDecoder(limits), Seen(), b""
    try:
        for piece in pieces:
            decoder.feed(piece)
            while True:
                if seen.opened is None:
                    seen.opened = decoder.read_head()
                    if seen.opened is None:
                        break
                body += decoder.read_body()
                if not decoder.body_complete:
                    break
                seen.requests.append((seen.opened, body))
                seen.opened, body = None, b""
    except VeloxError as error:
        assert error.close
        seen.refused = (error.status, error.reason)
    return seen


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    """Cut a wire at these places."""
    ends = sorted({min(place, len(wire)) for place in places} | {0, len(wire)})
    return [wire[a:b] for a, b in itertools.pairwise(ends)]


GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
COUNTED = b"POST /v1/a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED_HEAD = b"POST /v1/b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b'5\r\nhello\r\n06;a=b;c="d;\\""\r\n world\r\n0\r\nX: y\r\n\r\n'
LAST = b"POST /v1/c HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
WIRES = [
    GET,
    COUNTED,
    CHUNKED,
    LAST,
    GET * 3,
    CHUNKED + COUNTED + GET + CHUNKED,
    LAST + GET,
    b"\r\n" + COUNTED + b"\r\n" + GET,
    GET + CHUNKED_HEAD + b"5\r\nhelloX\r\n",
    COUNTED + b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    CHUNKED_HEAD + b"41\r\n" + b"a" * 65 + b"\r\n0\r\n\r\n",
    GET + b"NO",
]


@pytest.mark.parametrize("wire", WIRES)
def test_connection_cut_at_each_byte_gives_the_same(wire: bytes) -> None:
    """Two segments, wherever the cut is, are the same requests as one."""
    whole = play([wire])

    for i in range(len(wire) + 1):
        assert play([wire[:i], wire[i:]]) == whole


@pytest.mark.parametrize("wire", WIRES)
def test_connection_dripped_gives_the_same(wire: bytes) -> None:
    """F-15: one byte per segment is the same as one segment."""
    assert play([wire[i : i + 1] for i in range(len(wire))]) == play([wire])


@given(wires=st.lists(st.sampled_from(WIRES), min_size=1, max_size=4), places=st.lists(st.integers(0, 700)))
def test_connection_any_split_gives_the_same(wires: list[bytes], places: list[int]) -> None:
    """Chunking invariance: segments carry no meaning."""
    wire = b"".join(wires)

    assert play(cut(wire, places)) == play([wire])


@given(
    wire=st.sampled_from(WIRES),
    at=st.integers(0, 300),
    insert=st.binary(max_size=3) | st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b"0", b"\x00", b":", b","]),
    remove=st.integers(0, 3),
    places=st.lists(st.integers(0, 300), max_size=5),
)
@example(wire=GET, at=0, insert=b"\r\n\r\n", remove=0, places=[1])
def test_connection_mutated_any_split_gives_the_same_requests(
    wire: bytes, at: int, insert: bytes, remove: int, places: list[int]
) -> None:
    """Damaged input raises nothing but VeloxError, and any split of it gives the same requests before the refusal."""
    damaged = wire[:at] + insert + wire[at + remove :]
    whole = play([damaged])

    pieces = play(cut(damaged, places))

    assert pieces.requests == whole.requests
    assert (pieces.refused is None) == (whole.refused is None)


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_connection_random_bytes_raise_only_refusals(pieces: list[bytes]) -> None:
    """B-23: random binary never gives a request, and never another exception."""
    assert play(pieces).requests == []


@pytest.mark.parametrize("wire", [GET, COUNTED, CHUNKED, LAST])
def test_connection_truncated_at_each_byte_completes_nothing(wire: bytes) -> None:
    """A request that was cut anywhere is not a request."""
    for i in range(len(wire)):
        seen = play([wire[:i]])
        assert seen.requests == []
        assert seen.refused is None


def test_pipelined_requests_read_one_at_a_time_in_order() -> None:
    """The next request waits, unread, until the body of the open one was read."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(COUNTED + CHUNKED + GET)

    first = decoder.read_head()
    assert first is not None and first.path == b"/v1/a"
    assert decoder.read_head() is None
    assert decoder.buffered == len(b"hello" + CHUNKED + GET)
    assert decoder.read_body() == b"hello"
    second = decoder.read_head()
    assert second is not None and second.path == b"/v1/b"
    assert decoder.read_body() == b"hello world"
    third = decoder.read_head()
    assert third is not None and third.path == b"/v1/models"
    assert decoder.body_complete
    assert decoder.buffered == 0


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_body_of_get_consumed_exactly(method: bytes) -> None:
    """B-12: a body where none is usual is read by its length, and never taken for a request."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    wire = method + b" / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled + GET

    seen = play([wire])

    assert [(head.path, body) for head, body in seen.requests] == [(b"/", smuggled), (b"/v1/models", b"")]


def test_expect_continue_with_pipelined_body_framed_by_length() -> None:
    """B-13: Expect changes nothing about where the body ends."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"

    seen = play([head, b"abc" + GET])

    assert [body for _, body in seen.requests] == [b"abc", b""]


def test_close_ignores_what_follows() -> None:
    """B-14: bytes after the last request are dropped, not held."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(LAST + GET)
    assert decoder.read_head() is not None
    assert decoder.read_body() == b"hi"

    decoder.feed(GET)

    assert decoder.read_head() is None
    assert decoder.buffered == 0


def test_body_over_content_length_belongs_to_the_next_request() -> None:
    """The limit of the body holds at n-1 and n, and is refused at n+1 before a byte of it is read (B-40)."""
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    assert [len(body) for _, body in play([post % 63 + b"a" * 63 + post % 64 + b"a" * 64]).requests] == [
        63,
        64,
    ]
    assert play([post % 65]).refused == (413, Reason.BODY_TOO_LARGE)


def test_large_segment_of_body_passes_uncopied() -> None:
    """A segment that is all body comes out as the same object: a large body is not copied on its way in."""
    decoder = RequestDecoder(Http1Limits())
    decoder.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n")
    assert decoder.read_head() is not None
    segment = b"a" * 262_144
    decoder.feed(segment)

    assert decoder.read_body() is segment
    assert decoder.buffered == 0
    assert not decoder.body_complete


def test_body_read_in_parts_accounts_each_byte() -> None:
    """Bodies that outrun their reader are kept, and given in order."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(COUNTED[:-5] + b"h")
    assert decoder.read_head() is not None
    decoder.feed(b"el")
    decoder.feed(b"lo" + GET)

    assert decoder.read_body() == b"hello"
    assert decoder.body_complete
    assert decoder.read_head() is not None


def test_repr_tells_state_and_bytes() -> None:
    """A decoder in a debugger says where it stands."""
    decoder = RequestDecoder(LIMITS)
    assert repr(decoder) == "<RequestDecoder idle, 0 bytes buffered>"
    decoder.feed(COUNTED)
    decoder.read_head()
    assert repr(decoder) == "<RequestDecoder in body, 5 bytes buffered>"
