"""Heads that are kept: what is read of a head must not depend on those that came before it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velox.errors import VeloxError
from velox.heads import Header
from velox.protocol.heads.memory import Bounds
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.head_reader import Http2HeadReader
from velox.protocol.http2.request_head import MalformedError, read_head

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


NEW_EACH_TIME = [[*BASE, (b"x", b"new%d" % n), (b"content-length", b"5")] for n in range(6)]


def outcome(read: object, fields: list[Header], *, end_stream: bool) -> object:
    """Return what reading gives: a head, or what was raised."""
    try:
        if isinstance(read, Http2HeadReader):
            head = read.read(fields, end_stream=end_stream)
            read.accept(head)
        else:
            head = read_head(fields, LIMITS, end_stream=end_stream)
    except MalformedError:
        return "malformed"
    except VeloxError as error:
        return (error.reason, error.status)
    return head


@example(heads=[([(b"x", b"1"), (b"x", b"5")], True), ([(b"x", b"1\0x\x005")], True)], is_trained=False)
@example(heads=[([(b"content-length", b"5")], False), ([(b"", b"")], True)], is_trained=False)
@example(
    heads=[([(b"x", b"1"), (b"content-length", b"5")], False), ([(b"x", b"1\0content-length\x005")], True)],
    is_trained=True,
)
@given(heads=st.lists(st.tuples(HEADS, st.booleans()), max_size=30), is_trained=st.booleans())
def test_kept_head_is_what_reading_it_anew_would_give(heads: list[tuple[list[Header], bool]], is_trained: bool) -> None:
    """Also of heads that are made to look alike: NUL inside, a length twice, in a value, or none."""
    reader = Http2HeadReader(LIMITS)
    for fields in NEW_EACH_TIME * is_trained:
        outcome(reader, fields, end_stream=False)
    for more, end_stream in heads:
        fields = [*BASE, *more]
        fresh = outcome(None, fields, end_stream=end_stream)
        assert outcome(reader, fields, end_stream=end_stream) == fresh
        assert outcome(reader, fields, end_stream=end_stream) == fresh


def trained(*heads: list[Header], end_stream: bool = False) -> Http2HeadReader:
    """Return a reader that knows these heads, and what is new in them."""
    reader = Http2HeadReader(LIMITS)
    for _ in range(3):
        for head in heads:
            outcome(reader, head, end_stream=end_stream)
    return reader


def test_heads_that_differ_in_their_length_alone_have_one_shape() -> None:
    """The gateway keeps what it found of a head by that shape."""
    reader = trained([*BASE, (b"content-length", b"5")])
    short, long = (reader.read([*BASE, (b"content-length", length)], end_stream=False) for length in (b"5", b"7"))

    assert (short.content_length, long.content_length) == (5, 7)
    assert short.shape is long.shape and short.shape.is_shared


def test_heads_that_differ_in_what_is_always_new_have_one_shape() -> None:
    """And the values are the objects that came: a client may have said them in a byte (http2/ngh2_engine.py)."""
    reader = trained(*NEW_EACH_TIME)
    value = bytes(bytearray(b"another"))
    one = reader.read([*BASE, (b"x", value), (b"content-length", b"9")], end_stream=False)
    other = reader.read(NEW_EACH_TIME[0], end_stream=False)

    assert one.shape is other.shape and one.shape.is_shared
    assert one.values[0] is value and one.headers == [(b"x", b"another")]
    assert (other.values, other.content_length) == ((b"new0",), 5)


def test_heads_of_many_sessions_have_one_shape() -> None:
    """And those of another priority have another one: Velox acts on it."""
    of_sessions = [[*BASE, (b"x-velox-session", b"s%d" % n)] for n in range(20)]
    reader = trained(*of_sessions)
    heads = [reader.read(fields, end_stream=False) for fields in of_sessions]
    assert len({id(head.shape) for head in heads}) == 1 and heads[0].shape.is_shared
    assert [head.header(b"x-velox-session") for head in heads] == [b"s%d" % n for n in range(20)]

    urgent = [[*BASE, (b"x-velox-priority", b"%d" % n)] for n in range(20)]
    reader = trained(*urgent)
    assert all(reader.read(fields, end_stream=False).values == () for fields in urgent)


def test_head_without_a_body_has_another_shape() -> None:
    """What is asked of a request depends on its body."""
    reader = trained([*BASE, (b"content-length", b"5")], BASE)
    for _ in range(3):
        outcome(reader, BASE, end_stream=True)
    with_body = reader.read([*BASE, (b"content-length", b"5")], end_stream=False)
    without = reader.read(BASE, end_stream=True)
    unannounced = reader.read(BASE, end_stream=False)

    assert len({id(each.shape) for each in (with_body, without, unannounced)}) == 3
    assert unannounced.chunked and not without.chunked and not without.has_body


@pytest.mark.slow
def test_credential_is_carried_beside_the_shape() -> None:
    """Callers whose heads are alike share what follows from them, and memory is bounded whatever comes."""
    key = (b"authorization", b"Bearer a")
    reader = trained([*BASE, key])
    shape = reader.read([*BASE, key], end_stream=False).shape
    assert shape.is_shared

    for n in range(2_000):
        mine = [*BASE, (b"authorization", b"Bearer %d" % n)]
        head = reader.read(mine, end_stream=False)
        assert head.shape is shape and head.header(b"authorization") == b"Bearer %d" % n
        outcome(reader, [*mine, (b"x-%d" % n, b"1")], end_stream=False)
        outcome(reader, [*BASE, (b"x-%d" % n, b"1")], end_stream=True)

    assert len(reader._memory) <= 2 * Bounds().lines
    reader.clear()
    assert not reader.read([*BASE, key], end_stream=False).shape.is_shared


def test_kept_head_tells_whether_its_host_is_ours() -> None:
    """As reading it anew does."""
    reader = Http2HeadReader(Http1Limits(hosts=frozenset({b"gateway.test"})))
    for _ in range(6):
        for authority, is_own in ((b"gateway.test:80", True), (b"127.0.0.1:80", True), (b"evil.test", False)):
            for agent, is_browser in ((b"Mozilla/5.0 (X11)", True), (b"OpenAI/Python 1.0", False)):
                fields = [*BASE[:2], (b":authority", authority), BASE[3], (b"user-agent", agent)]
                head = reader.read(fields, end_stream=True)
                reader.accept(head)
                assert head.shape.is_foreign_page is (is_browser and not is_own)
    assert head.shape.is_shared


def test_page_is_of_its_own_kind_however_many_came_before() -> None:
    """What follows from its Origin is never taken from a head with another one."""
    reader = Http2HeadReader(LIMITS)
    for n in range(12):
        head = reader.read([*BASE, (b"origin", b"http://localhost:%d" % n)], end_stream=True)
        reader.accept(head)
        assert (b"origin", b"http://localhost:%d" % n) in head.shape.fields
