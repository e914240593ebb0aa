"""What is written on HTTP/1.1, byte by byte, and read back by another implementation."""

from __future__ import annotations

import h11
import pytest

from velox.protocol.http1 import write as http1_write

FIELDS = [(b"content-type", b"application/json"), (b"x-two", b"1"), (b"x-two", b"2")]


def test_request_head_exact() -> None:
    """A request is built: our line, Host, the given fields in order, our length."""
    start, lines = http1_write.request_start(b"POST", b"/v1/a?b", b"api.example"), http1_write.field_lines(FIELDS)
    assert http1_write.request_head(start, lines, 5, b"hello") == http1_write.request_head(start, lines, 5) + b"hello"
    assert http1_write.request_head(start, lines, 5) == (
        b"POST /v1/a?b HTTP/1.1\r\nhost: api.example\r\ncontent-type: application/json\r\nx-two: 1\r\nx-two: 2\r\n"
        b"content-length: 5\r\n\r\n"
    )
    start = http1_write.request_start(b"GET", b"/", b"a")
    assert http1_write.request_head(start, b"", None) == b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "length", "chunked", "close", "wire"),
    [
        (200, 5, False, False, b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 5\r\n\r\n"),
        (200, None, True, False, b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"),
        (404, 0, False, True, b"HTTP/1.1 404 Not Found\r\nx: y\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        (204, None, False, False, b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n"),
        (529, 0, False, False, b"HTTP/1.1 529 \r\nx: y\r\ncontent-length: 0\r\n\r\n"),
    ],
)  # fmt: skip
def test_reply_head_exact(status: int, length: int | None, chunked: bool, close: bool, wire: bytes) -> None:
    """A reply's head for each way of framing, and for a status that has no name."""
    built = http1_write.reply_head(status, [(b"x", b"y")], content_length=length, chunked=chunked, close=close)

    assert built == wire


@pytest.mark.parametrize("bad", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\x00b"])
def test_head_with_line_break_refused(bad: bytes) -> None:
    """CVE-2025-57804: a field that would become two is never written, wherever it came from."""
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        http1_write.field_lines([(b"x", bad)])
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        http1_write.request_start(b"GET", b"/" + bad, b"a")
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        http1_write.reply_head(200, [(bad, b"x")], content_length=0, chunked=False, close=False)


def test_chunk_exact_and_empty_is_none() -> None:
    """An empty piece writes nothing: as a chunk it would end the body."""
    assert http1_write.chunk(b"a" * 26) == b"1a\r\n" + b"a" * 26 + b"\r\n"
    assert http1_write.chunk(b"") == b""


def test_reply_read_back_by_h11() -> None:
    """Another implementation reads the same reply from our bytes."""
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(
        http1_write.CONTINUE_100
        + http1_write.reply_head(200, FIELDS, content_length=None, chunked=True, close=False)
        + http1_write.chunk(b"hello")
        + http1_write.LAST_CHUNK
    )

    interim, reply, data, end = (peer.next_event() for _ in range(4))

    assert isinstance(interim, h11.InformationalResponse) and interim.status_code == 100
    assert isinstance(reply, h11.Response) and reply.status_code == 200
    assert [(bytes(n), bytes(v)) for n, v in reply.headers][:3] == FIELDS
    assert isinstance(data, h11.Data) and bytes(data.data) == b"hello"
    assert isinstance(end, h11.EndOfMessage)
