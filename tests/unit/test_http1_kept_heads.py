"""Heads that a worker remembers: whatever came before, a head is read as if it were the first one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.errors import VeloxError
from velox.protocol.http1 import HeadReader, Http1Limits
from velox.types import RequestHead

LIMITS = Http1Limits(body_bytes=1000)


def outcome(reader: HeadReader, head: bytes) -> RequestHead | tuple[str, int]:
    """What a head is read as, or refused with. The key says only what was learned, so it is left out."""
    try:
        return replace(reader.read(head), key=None)
    except VeloxError as error:
        return error.reason.code, error.status


LINES = [
    b"Host: a",
    b"host: b",
    b"Content-Length: 5",
    b"Content-Length: 6",
    b"content-length: 7",
    b"CONTENT-LENGTH: 8",
    b"Content-Length:9",
    b"Content-Length: 10 ",
    b"Content-Length: +5",
    b"Content-Length: 05",
    b"Content-Length: 0",
    b"Content-Length: 1001",
    b"Content-Length: ",
    b"Content_Length: 5",
    b"X: Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: gzip",
    b"Connection: close",
    b"Connection: content-length",
    b"Expect: 100-continue",
    b"Authorization: Bearer k",
    b"Upgrade: h2c",
    b" Content-Length: 5",
]
HEADS = st.builds(
    lambda start, lines: b"\r\n".join([start, *lines, b"", b""]),
    st.sampled_from([b"POST /v1/x HTTP/1.1", b"GET /v1/x HTTP/1.1", b"POST /v1/x HTTP/1.0"]),
    st.lists(st.sampled_from(LINES), max_size=5).map(lambda lines: [b"Host: a", *lines])
    | st.lists(st.sampled_from(LINES), max_size=5),
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(heads=st.lists(HEADS, min_size=2, max_size=6))
def test_head_is_read_the_same_whatever_was_read_before(heads: list[bytes]) -> None:
    """Property: a reader that remembers and one that is new never disagree, on any sequence of heads."""
    reader = HeadReader(LIMITS)

    for head in heads:
        assert outcome(reader, head) == outcome(HeadReader(LIMITS), head)


def test_known_head_with_a_second_length_is_refused() -> None:
    """B-2: the length that was cut out of a known head does not hide another one."""
    reader = HeadReader(LIMITS)
    assert outcome(reader, b"POST / HTTP/1.1\r\nHost: a\r\nCONTENT-LENGTH: 5\r\n\r\n") != ("bad_framing", 400)

    smuggled = b"POST / HTTP/1.1\r\nHost: a\r\nCONTENT-LENGTH: 5\r\nContent-Length: 6\r\n\r\n"

    assert outcome(reader, smuggled) == ("bad_framing", 400)


@pytest.mark.parametrize(("digits", "length"), [(b"0", 0), (b"999", 999), (b"1000", 1000)])
def test_known_head_takes_each_length(digits: bytes, length: int) -> None:
    """The length is the one thing that may differ, and is checked each time."""
    reader = HeadReader(LIMITS)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\n"
    first = reader.read(head % b"5")

    again = reader.read(head % digits)

    assert again.content_length == length
    assert again.key == first.key is not None
    assert outcome(reader, head % b"1001") == ("body_too_large", 413)


def test_head_that_was_given_out_does_not_change_what_is_kept() -> None:
    """A connection may mark its own head (keep_alive after a refusal); the next one starts afresh."""
    reader = HeadReader(LIMITS)
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    for _ in range(3):
        given_out = reader.read(head)
        assert given_out.keep_alive
        given_out.keep_alive = False


def test_heads_that_never_repeat_leave_memory_bounded() -> None:
    """R-MEM-3: 10,000 different heads, and long ones, keep at most 512 of 2 KiB."""
    reader = HeadReader(LIMITS)

    for n in range(10_000):
        reader.read(b"GET / HTTP/1.1\r\nHost: a\r\ntraceparent: %d\r\n\r\n" % n)
    reader.read(b"GET / HTTP/1.1\r\nHost: a\r\nx: %b\r\n\r\n" % (b"y" * 4000))

    assert len(reader._known) <= 512
    assert all(len(key) <= 2048 for key in reader._known._known)


def test_known_head_without_a_body_does_not_hide_that_a_client_waits_with_one() -> None:
    """R-H1-9: without a body `Expect` asks for nothing; the same head with one is answered 100."""
    reader = HeadReader(LIMITS)
    head = b"POST / HTTP/1.1\r\nHost: a\r\n%bexpect: 100-continue\r\n\r\n"
    assert not reader.read(head % b"").expect_continue

    assert reader.read(head % b"Content-Length: 5\r\n").expect_continue
