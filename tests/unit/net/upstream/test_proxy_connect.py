"""CONNECT: the request, and what each answer means, however it is cut."""

from __future__ import annotations

import pytest

from velox.net.upstream.proxy_connect import ConnectExchange, ProxyRefusedError

AUTHORITY = b"api.example:443"


def _exchange(authorization: bytes = b"") -> ConnectExchange:
    return ConnectExchange(AUTHORITY, authorization)


def test_request_names_the_host_twice_and_the_login_once() -> None:
    """RFC 9112 §3.2.3: the target is HOST:PORT, and so is the Host."""
    assert _exchange().request == (
        b"CONNECT api.example:443 HTTP/1.1\r\nhost: api.example:443\r\nuser-agent: velox\r\n\r\n"
    )
    assert _exchange(b"Basic eA==").request.endswith(b"\r\nproxy-authorization: Basic eA==\r\n\r\n")


@pytest.mark.parametrize("bad", [b"a:1\r\nx: y", b"a:1\n", b"a\0:1"])
def test_request_is_never_more_than_it_says(bad: bytes) -> None:
    """Whatever a setting holds."""
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        ConnectExchange(bad, b"")
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        ConnectExchange(AUTHORITY, bad)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nvia: x\r\n\r\n",
        b"HTTP/1.1 299\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
@pytest.mark.parametrize("rest", [b"", b"\x16\x03\r\n\r\n"])
def test_tunnel_begins_behind_the_head_however_it_is_cut(answer: bytes, rest: bytes) -> None:
    """RFC 9110 §9.3.6: at the first empty line of a 2xx, whatever its fields say."""
    assert _exchange().feed(answer + rest) == rest
    for at in range(1, len(answer)):
        exchange = _exchange()
        assert exchange.feed(answer[:at]) is None
        assert exchange.feed(answer[at:] + rest) == rest
    exchange = _exchange()
    assert [exchange.feed(answer[n : n + 1]) for n in range(len(answer))] == [None] * (len(answer) - 1) + [b""]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 407 X\r\n\r\n",
            "asks for a user and a password (407 Proxy Authentication Required): give them in its",
        ),
        (b"HTTP/1.1 403 <script>\r\n\r\n", "does not connect to api.example:443 (403 Forbidden)"),
        (b"HTTP/1.1 504 \r\n\r\n", "can't reach api.example:443 (504 Gateway Timeout)"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://evil\r\n\r\n", "does not connect to api.example:443 (302 Found)"),
        (b"HTTP/1.1 799 \r\n\r\n", "does not connect to api.example:443 (799)"),
        (b"HTTP/2 200\r\n\r\n", "answers with what is no HTTP/1"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "answers with what is no HTTP/1"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "answers with what is no HTTP/1"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "answers with what is no HTTP/1"),
        (b"SSH-2.0-x\r\n", "answers with what is no HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 16384, "answers with a head of over 16384 bytes"),
    ],
)
def test_all_else_is_no_tunnel(answer: bytes, words: str) -> None:
    """What the proxy wrote stands in no error: a page may be there, or what it was told."""
    with pytest.raises(ProxyRefusedError) as refused:
        _exchange().feed(answer)
    assert str(refused.value).startswith(words)


def test_login_that_is_refused_is_told_from_none() -> None:
    """Who has given one is not told to."""
    with pytest.raises(ProxyRefusedError, match="does not take the user and password of its URL"):
        _exchange(b"Basic eA==").feed(b"HTTP/1.1 407 X\r\n\r\n")
