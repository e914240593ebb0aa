"""Heads of replies that were read before: what is remembered of them never changes what one says."""

from __future__ import annotations

import itertools

import pytest

from velox.protocol.http1_response import ResponseDecoder, ResponseError
from velox.protocol.http1_response_head import ReplyHeads
from velox.types import ReplyHead

LENGTHS = (
    *(b"Content-Length: 2", b"content-length: 2", b"Content-length: 2", b"Content-Length: 3", b"Content-Length:2"),
    *(
        b"Content-Length: 02",
        b"Content-Length: ",
        b"Content-Length: 2 ",
        b"Content-Length: 2, 2",
        b" Content-Length: 2",
    ),
    *(
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"X: content-length: 2",
        b"X: y",
        b"X: z",
    ),
)
STARTS = (b"HTTP/1.1 200 OK", b"HTTP/1.1 204 X", b"HTTP/1.0 200 OK")
FIELDS = ((), *((one,) for one in LENGTHS), *itertools.product(LENGTHS, LENGTHS))
HEADS = [b"\r\n".join((start, *fields)) + b"\r\n\r\n" for start in STARTS for fields in FIELDS]
Said = tuple[ReplyHead | None, bytes, bool, bool, bool] | str


def said(known: ReplyHeads, head: bytes) -> Said:
    decoder = ResponseDecoder(known, head_request=False)
    try:
        decoder.feed(head + b"ab")
    except ResponseError as error:
        return str(error)
    return decoder.head, decoder.take_body(), decoder.complete, decoder.keep_alive, decoder.surplus


@pytest.mark.parametrize("start", STARTS)
def test_remembered_head_says_what_it_said(start: bytes) -> None:
    """Each head after each other one, whole or broken: held against a reader that remembers nothing."""
    heads = [head for head in HEADS if head.startswith(start)]
    alone = {head: said(ReplyHeads(), head) for head in heads}

    for first in heads:
        known = ReplyHeads()
        said(known, first)
        for head in heads:
            if head != first and not isinstance(alone[first], str):
                assert said(known, head) == alone[head]
                assert said(known, first) == alone[first]


def test_equal_heads_have_one_key() -> None:
    """Whatever their lengths are; and another field makes another key."""
    known = ReplyHeads()
    start = b"HTTP/1.1 200 OK\r\nX: y\r\n"

    keys = [known.read(start + b"Content-Length: %d\r\n\r\n" % n)[0].key for n in (1, 2, 10**17)]

    assert keys[0] is not None and keys == keys[:1] * 3
    assert known.read(start + b"Z: y\r\nContent-Length: 1\r\n\r\n")[0].key not in (None, keys[0])
    assert known.read(b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"y" * 3000))[0].key is None, "long ones are not kept"
