"""Heads that are kept: what is read of a head must not depend on those that came before it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from velox.errors import VeloxError
from velox.protocol.http1 import Http1Limits
from velox.protocol.http2_head import MalformedError, read_head
from velox.protocol.http2_heads import Http2HeadReader
from velox.types import Header, RequestHead

LIMITS = Http1Limits(body_bytes=1000)
BASE: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"gateway.test"),
    (b":path", b"/v1/chat/completions"),
]
# What two of them have in common, or could be taken for one another by.
TEXTS = st.sampled_from(
    [b"", b"\0", b"\0\0", b"x", b"1", b"5", b"05", b"1001", b"a\0content-length\x005", b"content-length", b"x\0x", b"B"]
)
NAMES = st.sampled_from([b"x", b"content-length", b"expect", b"", b"x\0", b"authorization", b"content-type"])
HEADS = st.lists(st.tuples(NAMES, TEXTS), max_size=4)


def outcome(read: object, fields: list[Header], *, end_stream: bool) -> object:
    """Return what reading gives: a head without its key, or what was raised."""
    try:
        if isinstance(read, Http2HeadReader):
            head = read.read(fields, end_stream=end_stream)
        else:
            head = read_head(fields, LIMITS, end_stream=end_stream)
    except MalformedError:
        return "malformed"
    except VeloxError as error:
        return (error.reason, error.status)
    return replace(head, key=None)


@example(heads=[([(b"x", b"1"), (b"x", b"5")], True), ([(b"x", b"1\0x\x005")], True)])
@example(heads=[([(b"content-length", b"5")], False), ([(b"", b"")], True)])
@example(heads=[([(b"x", b"1"), (b"content-length", b"5")], False), ([(b"x", b"1\0content-length\x005")], True)])
@given(heads=st.lists(st.tuples(HEADS, st.booleans()), max_size=30))
def test_kept_head_is_what_reading_it_anew_would_give(heads: list[tuple[list[Header], bool]]) -> None:
    """Also of heads that are made to look alike: NUL inside, a length twice, in a value, or none."""
    reader = Http2HeadReader(LIMITS)
    for more, end_stream in heads:
        fields = [*BASE, *more]
        fresh = outcome(None, fields, end_stream=end_stream)
        assert outcome(reader, fields, end_stream=end_stream) == fresh
        assert outcome(reader, fields, end_stream=end_stream) == fresh


def read_both(first: list[Header], second: list[Header], *, end_stream: bool) -> tuple[RequestHead, RequestHead]:
    reader = Http2HeadReader(LIMITS)
    return reader.read(first, end_stream=end_stream), reader.read(second, end_stream=end_stream)


def test_heads_that_differ_in_their_length_alone_have_one_key() -> None:
    """The gateway keeps what it found of a head by that key."""
    short, long = read_both([*BASE, (b"content-length", b"5")], [*BASE, (b"content-length", b"7")], end_stream=False)

    assert (short.content_length, long.content_length) == (5, 7)
    assert short.key == long.key is not None
    assert short.headers is long.headers, "kept once, however many streams hold it"


def test_head_without_a_body_has_another_key() -> None:
    """What is asked of a request depends on its body."""
    reader = Http2HeadReader(LIMITS)
    with_body = reader.read([*BASE, (b"content-length", b"5")], end_stream=False)
    without = reader.read(BASE, end_stream=True)
    unannounced = reader.read(BASE, end_stream=False)

    assert len({with_body.key, without.key, unannounced.key}) == 3
    assert unannounced.key is None and unannounced.chunked
