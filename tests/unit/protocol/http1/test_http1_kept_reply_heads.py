"""Heads of replies that were read before: what is remembered of them never changes what one says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.gateway.reply.headers import DROPPED, ReplyFields
from velox.heads import ReplyHead
from velox.protocol.http1.response import ResponseDecoder, ResponseError
from velox.protocol.http1.response_head import ReplyHeads

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
    found = known.find(head + b"ab")
    if found is not None:
        assert found == (known.read(head), len(head)), "found by its form it says what its lines say"
    decoder = ResponseDecoder(known, head_request=False)
    try:
        decoder.feed(head + b"ab")
    except ResponseError as error:
        return str(error)
    return decoder.head, decoder.take_body(), decoder.complete, decoder.keep_alive, decoder.surplus


def passed(fields: ReplyFields, head: ReplyHead, dropped: frozenset[bytes]) -> tuple[object, ...]:
    """Return what the client gets of a head, as pairs and as lines."""
    template, *kind = fields.passed(head.shape, dropped)
    return template.headers(head.values), template.lines(head.values), *kind


@pytest.mark.slow
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


# A head of a provider with what is new in each reply.
PROVIDER = (
    b"HTTP/1.1 200 OK",
    b"Date: Sun, 06 Nov 1994 08:49:%(second)02d GMT",
    b"Content-Type: application/json",
    b"Content-Length: %(length)d",
    b"Connection: keep-alive",
    b"openai-processing-ms: %(n)d",
    b"x-ratelimit-remaining-requests: %(n)d",
    b"x-request-id: req_%(n)032x",
    b"set-cookie: __cf_bm=%(n)d; path=/; HttpOnly",
    b"set-cookie: _cfuvid=%(n)d; path=/; Secure",
    b"Server: cloudflare",
    b"CF-RAY: %(n)016x-FRA",
)


def provider(n: int, length: int = 2) -> bytes:
    values = {b"n": n, b"second": n % 60, b"length": length}
    return b"\r\n".join([line % values for line in PROVIDER] + [b"", b""])


def trained(*heads: bytes) -> ReplyHeads:
    known = ReplyHeads()
    for _ in range(3):
        for head in heads:
            said(known, head)
    return known


def test_equal_heads_have_one_shape() -> None:
    """Whatever their lengths are; and another field makes another shape."""
    start = b"HTTP/1.1 200 OK\r\nX: y\r\n"
    known = trained(start + b"Content-Length: 5\r\n\r\n")

    shapes = [known.read(start + b"Content-Length: %d\r\n\r\n" % n)[0].shape for n in (1, 2, 10**17)]

    assert shapes[0].is_shared and shapes == shapes[:1] * 3
    assert not known.read(start + b"Z: y\r\nContent-Length: 1\r\n\r\n")[0].shape.is_shared
    long = b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"y" * 5000)
    assert not [known.read(long)[0].shape for _ in range(4)][-1].is_shared, "long ones are not kept"


def test_what_is_new_in_each_reply_is_found_out() -> None:
    """Ids, counts, the date, and cookies, though there are two of them."""
    known = trained(*map(provider, range(8)))

    one, other = known.read(provider(100))[0], known.read(provider(101, 7))[0]

    assert one.shape is other.shape and one.shape.is_shared
    assert (one.content_length, other.content_length) == (2, 7)
    new = [b"date", b"openai-processing-ms", b"x-ratelimit-remaining-requests", b"x-request-id"]
    assert [name for name, value in one.shape.fields if value is None] == [
        *new,
        b"set-cookie",
        b"set-cookie",
        b"cf-ray",
    ]
    for n in range(100):
        assert known.read(provider(n)) == ReplyHeads().read(provider(n))


@st.composite
def twisted(draw: st.DrawFn) -> bytes:
    """Return a head that is known but for its values, with some bytes changed, lines moved, doubled or left out."""
    lines = provider(draw(st.integers(0, 10**6)), draw(st.integers(0, 1100)))[:-4].split(b"\r\n")
    for _ in range(draw(st.integers(0, 3))):
        at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        line = lines[at]
        cut = draw(st.integers(0, len(line)))
        match draw(st.integers(0, 5)):
            case 0:
                lines[at], lines[other] = lines[other], line
            case 1:
                lines.insert(other, line)
            case 2 if len(lines) > 1:
                del lines[at]
            case 3:
                inserted = draw(st.sampled_from([b" ", b"\t", b"\x00", b"\n", b"\r", b"\x80", b":", b"x", b"0"]))
                lines[at] = line[:cut] + inserted + line[cut:]
            case 4:
                lines[at] = draw(st.sampled_from([line.lower(), line.upper(), line.replace(b": ", b":"), line + b" "]))
            case _:
                lines[at] = line[:cut] + line[cut + 1 :]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@settings(max_examples=1500, deadline=None)
@given(head=twisted(), dropped=st.sampled_from([frozenset[bytes](), DROPPED, frozenset({b"date", b"x-request-id"})]))
@pytest.mark.more
def test_head_that_is_nearly_known_says_what_it_says_to_others(head: bytes, dropped: frozenset[bytes]) -> None:
    """Property: read, and passed to the client, as by a gateway that has seen nothing."""
    known, fields = trained(*map(provider, range(8))), ReplyFields()
    for _ in range(3):
        assert said(known, head) == said(ReplyHeads(), head)
    for each in (head, provider(9), provider(10)):
        try:
            (ours, *how), (theirs, *how_theirs) = known.read(each), ReplyHeads().read(each)
        except (ResponseError, ValueError):  # no decoder gives a head to a reader that is none
            continue
        assert (ours, how) == (theirs, how_theirs)
        assert passed(fields, ours, dropped) == passed(ReplyFields(), theirs, dropped)
    assert known.read(provider(10**7))[0].shape.is_shared


def test_replies_that_are_new_in_every_line_leave_memory_bounded() -> None:
    """An upstream may send what it likes, too."""
    known = trained(*map(provider, range(8)))
    for n in range(5_000):
        known.read(b"HTTP/1.1 200 OK\r\nx-%d: %d\r\nlocation: %d\r\ncontent-length: 0\r\n\r\n" % (n, n, n))

    assert len(known._memory.marks) <= 256 and len(known._memory.plans) <= 64
