"""How replies leave on HTTP/1.1: which framing, and how an end looks that is none."""

from __future__ import annotations

import pytest

from tests.sockets.gateway.core_gateway import FakeClient
from velox.heads import Header

HEADERS: list[Header] = [(b"x", b"y")]


def begun(client: FakeClient, length: int | None = None, data: bytes = b"", end: bool = False) -> bytes:
    client.begin_reply(200, HEADERS, length, data, end, has_body=True)
    return client.written


def fields_of(wire: bytes) -> list[bytes]:
    return wire.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]


@pytest.mark.parametrize(
    ("length", "http_1_0", "will_close", "fields"),
    [
        (2, False, False, [b"content-length: 2"]),
        (2, False, True, [b"content-length: 2", b"connection: close"]),
        (None, False, False, [b"transfer-encoding: chunked"]),
        (None, False, True, [b"transfer-encoding: chunked", b"connection: close"]),
        (None, True, True, [b"connection: close"]),
    ],
)
def test_body_is_framed_by_its_length_by_chunks_or_by_the_close(
    length: int | None, http_1_0: bool, will_close: bool, fields: list[bytes]
) -> None:
    """RFC 9112 §6: HTTP/1.0 knows no chunks."""
    client = FakeClient()
    client.is_http_1_0, client.will_close = http_1_0, will_close

    wire = begun(client, length, b"ok", True)

    assert fields_of(wire) == [b"x: y", *fields]
    assert wire.endswith(b"\r\n\r\n2\r\nok\r\n0\r\n\r\n" if length is None and not http_1_0 else b"\r\n\r\nok")
    assert client.ends_at_close == (length is None and http_1_0)


def test_chunks_are_one_write_each_and_end_with_the_last() -> None:
    """What one read of the upstream brings is one chunk; an empty piece is none, because it would end the body."""
    client = FakeClient()
    before = len(begun(client))

    client.body(b"one", False)
    client.body(b"", False)
    client.body(b"two", True)

    assert client.written[before:] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_reply_without_a_body_is_a_head() -> None:
    """HEAD, 204, 304: a length may be announced, no chunk is."""
    client = FakeClient()
    client.begin_reply(304, HEADERS, None, b"", False, has_body=False)
    client.begin_reply(200, HEADERS, 5, b"", True, has_body=False)

    first, second, rest = client.written.split(b"\r\n\r\n")

    assert b"chunked" not in first and b"content-length: 5" in second
    assert rest == b""


@pytest.mark.parametrize(
    ("length", "http_1_0", "last", "reset"),
    [(9, False, b"rest", False), (None, False, b"4\r\nrest\r\n", False), (None, True, b"rest", True)],
)
def test_cut_reply_never_ends_its_framing(length: int | None, http_1_0: bool, last: bytes, reset: bool) -> None:
    """No last chunk, fewer bytes than announced, or a reset."""
    client = FakeClient()
    client.is_http_1_0 = http_1_0
    begun(client, length, b"some")

    client.cut(b"rest")

    assert client.cuts == [(last, reset)]


@pytest.mark.parametrize(("with_body", "rest"), [(True, b"why"), (False, b"")])
@pytest.mark.parametrize(("close", "will_close"), [(True, False), (False, True), (False, False)])
def test_answer_is_whole_and_says_whether_the_connection_ends(
    with_body: bool, rest: bytes, close: bool, will_close: bool
) -> None:
    """RFC 9110 §9.3.2: to a HEAD the length is announced and the body not sent."""
    client = FakeClient()
    client.will_close = will_close

    client.answer(404, HEADERS, b"why", with_body=with_body, close=close)

    head, _, body = client.written.partition(b"\r\n\r\n")
    assert body == rest and b"content-length: 3" in head
    assert (b"connection: close" in head) == (close or will_close)
    assert client.finished.is_set()


def test_head_that_can_not_be_sent_sends_nothing() -> None:
    """CVE-2025-57804: a field that came through HTTP/2 with a line's end in it."""
    client = FakeClient()

    with pytest.raises(ValueError, match="CR, LF or NUL"):
        client.begin_reply(200, [(b"x", b"a\r\nb: c")], None, b"", False, has_body=True)

    assert client.written == b""
