"""Replies of upstreams: heads, bodies, ends, and what an upstream may not send."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.heads import ReplyHead
from velox.protocol.http1.response import ResponseDecoder, ResponseError
from velox.protocol.http1.response_head import ReplyHeads

OK = b"HTTP/1.1 200 OK\r\n"
Seen = tuple[ReplyHead | None, bytes, bool, bool]


def play(pieces: list[bytes], *, head_request: bool = False, closed: bool = False) -> Seen | str:
    """Read a reply; return head, body, complete and keep_alive, or "refused"."""
    decoder, body = ResponseDecoder(ReplyHeads(), head_request=head_request), b""
    try:
        for piece in pieces:
            decoder.feed(piece)
            body += decoder.take_body()
    except ResponseError:
        return "refused"
    whole = decoder.eof() if closed else decoder.complete
    return decoder.head, body, whole, decoder.keep_alive


def head(*fields: bytes, status: int = 200, length: int | None = None, until_close: bool = False) -> ReplyHead:
    pairs = [tuple(field.split(b": ", 1)) for field in fields]
    return ReplyHead.of(status, [(name, value) for name, value in pairs], length, until_close)


COUNTED = OK + b"Content-Type: a/b \r\nX-Request-ID: r1\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nX: trailer\r\n\r\n"
TO_CLOSE = OK + b"X: y\r\n\r\nhello"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
WIRES = [
    COUNTED,
    CHUNKED,
    TO_CLOSE,
    INTERIM * 2 + COUNTED,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    OK + b"Content-Length: 0\r\n\r\n",
    COUNTED + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
    CHUNKED + b"x",
    b"HTTP/1.1 100 Continue\r\n\r\n",
]


@pytest.mark.parametrize(
    ("wire", "seen"),
    [
        (COUNTED, (head(b"content-type: a/b", b"x-request-id: r1", length=5), b"hello", True, True)),
        (CHUNKED, (head(), b"hello world", True, True)),
        (TO_CLOSE, (head(b"x: y", until_close=True), b"hello", False, False)),
        (INTERIM * 10 + COUNTED, (head(b"content-type: a/b", b"x-request-id: r1", length=5), b"hello", True, True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (head(status=204), b"", True, True)),
        (b"HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n", (head(status=304, length=5), b"", True, True)),
        (b"HTTP/1.1 429\r\nContent-Length: 0\r\n\r\n", (head(status=429, length=0), b"", True, True)),
        (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nab", (head(length=2), b"ab", True, False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", (head(length=2), b"ab", True, False)),
        (OK + b"Content-Length: 9\r\n\r\nab", (head(length=9), b"ab", False, True)),
    ],
)  # fmt: skip
def test_reply_read_with_its_framing(wire: bytes, seen: Seen) -> None:
    """Length, chunks, close, interim replies (F-31), statuses without body: head, body, whole, may stay open."""
    assert play([wire]) == seen


@pytest.mark.parametrize("wire", WIRES)
def test_reply_cut_at_each_byte_gives_the_same(wire: bytes) -> None:
    """F-15: segments carry no meaning."""
    whole = play([wire])

    assert play([wire[i : i + 1] for i in range(len(wire))]) == whole
    for i in range(len(wire)):
        assert play([wire[:i], wire[i:]]) == whole


@given(
    wire=st.sampled_from(WIRES),
    at=st.integers(0, 200),
    insert=st.binary(max_size=4),
    places=st.sets(st.integers(0, 200)),
)
def test_reply_mutated_any_split_gives_the_same(wire: bytes, at: int, insert: bytes, places: set[int]) -> None:
    """Damaged replies raise nothing but ResponseError, and are damaged the same way however they are split."""
    wire = wire[:at] + insert + wire[at:]
    ends = sorted({min(place, len(wire)) for place in places} | {0, len(wire)})
    whole = play([wire])

    pieces = play([wire[a:b] for a, b in itertools.pairwise(ends)])

    if isinstance(whole, str) or isinstance(pieces, str):
        assert pieces == whole
    else:
        # CRLF after a reply may be skipped inside a segment and count as surplus in the next: only keep_alive differs.
        assert pieces[:3] == whole[:3]


@pytest.mark.parametrize("wire", [COUNTED, CHUNKED])
def test_reply_truncated_at_each_byte_is_not_whole(wire: bytes) -> None:
    """F-13: a reply that was cut anywhere never looks complete."""
    for i in range(len(wire)):
        seen = play([wire[:i]], closed=True)
        assert isinstance(seen, tuple) and not seen[2] and not seen[3]


def test_reply_to_close_whole_when_the_peer_closes() -> None:
    """Without length or chunks the close is the end; the connection is gone with it."""
    assert play([TO_CLOSE], closed=True) == (head(b"x: y", until_close=True), b"hello", True, False)
    assert play([TO_CLOSE[:10]], closed=True) == (None, b"", False, False)


@pytest.mark.parametrize(
    "fields",
    [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""],
    ids=["length", "chunked", "neither"],
)
def test_reply_to_head_ends_with_its_head(fields: bytes) -> None:
    """RFC 9112 §6.3: a reply to HEAD has no body, whatever it says; one that comes spoils the connection."""
    wire = OK + fields + b"\r\n"

    for i in range(len(wire)):
        seen = play([wire[:i], wire[i:]], head_request=True)
        assert isinstance(seen, tuple) and seen[1:] == (b"", True, True)
    for surplus in (b"h", b"\r\n", b"0\r\n\r\n", b"hello"):
        seen = play([wire + surplus], head_request=True)
        assert isinstance(seen, tuple) and seen[1:] == (b"", True, False)
        assert play([wire, surplus], head_request=True) == seen


@pytest.mark.parametrize("surplus", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", b"H", b"\x00"])
@pytest.mark.parametrize("wire", [COUNTED, CHUNKED, b"HTTP/1.1 204 X\r\n\r\n"])
def test_reply_surplus_spoils_connection_not_reply(wire: bytes, surplus: bytes) -> None:
    """F-30: bytes after the end never get into a body, and the connection is not used again."""
    whole = play([wire])
    assert isinstance(whole, tuple)

    for pieces in ([wire + surplus], [wire, surplus], [wire[:-1], wire[-1:] + surplus]):
        assert play(pieces) == (*whole[:3], False)


@pytest.mark.parametrize(
    "wire",
    [
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: +5\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999\r\n\r\n",
        OK + b"X: a\rb\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: a\x00b\r\n\r\n",
        OK + b"X: a\x01b\r\n\r\n",
        OK + b"X: a\r\n b\r\n\r\n",
        OK + b"X : a\r\n\r\n",
        OK + b"X\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
        b"HTTP/1.1 99 X\r\n\r\n",
        b"HTTP/1.1 600 X\r\n\r\n",
        b"HTTP/1.1 2000 X\r\n\r\n",
        b"HTTP/1.1 abc X\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"hello",
        b"\x15\x03\x01",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        INTERIM * 11 + COUNTED,
        b"HTTP/1.1 100 Continue\r\nX: a\rb\r\n\r\n" + COUNTED,
        OK + b"X: y\r\n" * 201 + b"\r\n",
        pytest.param(OK + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n", marks=pytest.mark.slow),
        OK + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n",
    ],
    ids=lambda wire: repr(wire[:48]),
)  # fmt: skip
def test_reply_broken_refused(wire: bytes) -> None:
    """F-29: what breaks the protocol is an error of the upstream, in one segment or byte by byte."""
    n_bytes = 1 if len(wire) < 10_000 else 64
    assert play([wire]) == "refused"
    assert play([wire[i : i + n_bytes] for i in range(0, min(len(wire), 70_000), n_bytes)]) == "refused"


def test_reply_limits_exact() -> None:
    """F-29: 200 fields and a head of 64 KiB pass, one more does not."""

    def sized(n: int) -> bytes:
        return OK + b"X: " + b"y" * (n - len(OK) - 7) + b"\r\n\r\n"

    assert isinstance(play([OK + b"X: y\r\n" * 200 + b"\r\n"]), tuple)
    for size in (65535, 65536):
        assert len(sized(size)) == size and isinstance(play([sized(size)]), tuple)
    assert play([sized(65537)]) == "refused"
    assert play([OK + b"X: " + b"y" * 70_000]) == "refused"


def test_reply_chunk_framing_without_body_refused() -> None:
    """An upstream that sends extensions or trailers without end does not fill memory."""
    start = OK + b"Transfer-Encoding: chunked\r\n\r\n"

    assert play([start, b"5;", *[b"a" * 8192] * 9]) == "refused"
    assert play([start, b"0\r\n", *[b"X: y\r\n" * 1000] * 12]) == "refused"


def test_reply_hop_by_hop_fields_removed() -> None:
    """What Connection names, in one field or two, and what always ends at a hop, is not the client's."""
    wire = (
        OK + b"Connection: x-mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: a\r\nTrailer: b\r\n"
        b"Upgrade: h2c\r\nConnection: X-Too\r\nConnection: keep-alive\r\nX-Too: 2\r\nSet-Cookie: a\r\n"
        b"Set-Cookie: b\r\nX: \xe9\r\nContent-Length: 0\r\n\r\n"
    )

    seen = play([wire])

    assert seen == (head(b"set-cookie: a", b"set-cookie: b", b"x: \xe9", length=0), b"", True, True)


def test_reply_from_memoryview_owns_its_bytes() -> None:
    """A read buffer that is used again does not change what was read from it."""
    decoder = ResponseDecoder(ReplyHeads(), head_request=False)
    wire = OK + b"X: abcd\r\nContent-Length: 10\r\n\r\nhello"
    buffer = bytearray(wire)
    decoder.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    again = bytearray(b"world")
    decoder.feed(memoryview(again))
    again[:] = bytes(5)

    assert decoder.head == head(b"x: abcd", length=10)
    assert decoder.take_body() == b"helloworld"
    assert decoder.take_body() == b""
    assert decoder.complete


def test_reply_decoder_freed_without_the_collector() -> None:
    """An exchange leaves no reference cycle: its memory goes when it ends, not when the collector runs."""

    class Watched(ResponseDecoder):
        __slots__ = ("__weakref__",)

    decoder = Watched(ReplyHeads(), head_request=False)
    decoder.feed(COUNTED)
    watch = weakref.ref(decoder)
    parser = weakref.ref(decoder._collector) if hasattr(decoder._collector, "__weakref__") else None
    gc.disable()
    try:
        del decoder
        assert watch() is None
        assert parser is None or parser() is None
    finally:
        gc.enable()
