"""Heads of HTTP/2 replies that were read before: what is remembered of them never changes what one says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.gateway.reply.headers import DROPPED, ReplyFields
from velox.heads import Header, Headers, ReplyHead
from velox.protocol.http2.response_head import Http2ReplyHeads

# Each value that reading looks at, and its neighbours.
ODD = (
    (b":status", b"204"),
    (b":status", b"199"),
    (b":status", b"abc"),
    (b"content-length", b"2"),
    (b"content-length", b"02"),
    (b"content-length", b""),
    (b"content-length", b"+2"),
    (b"content-length", b"9" * 19),
    (b"content-type", b"text/event-stream"),
    (b"content-encoding", b"gzip"),
    (b"connection", b"close"),
    (b"transfer-encoding", b"chunked"),
    (b"set-cookie", b"a=b"),
    (b"x-request-id", b"y\r\nx: z"),
    (b"x-request-id", b"\xff\0"),
    (b"x-%b", b"%d"),
)


def provider(n: int, length: int = 2) -> Headers:
    """A head of a provider, with what is new in each reply."""
    return [
        (b":status", b"200"),
        (b"date", b"Sun, 06 Nov 1994 08:49:%02d GMT" % (n % 60)),
        (b"content-type", b"application/json"),
        (b"openai-processing-ms", b"%d" % n),
        (b"x-ratelimit-remaining-requests", b"%d" % n),
        (b"x-request-id", b"req_%032x" % n),
        (b"set-cookie", b"__cf_bm=%d; path=/; HttpOnly" % n),
        (b"set-cookie", b"_cfuvid=%d; path=/; Secure" % n),
        (b"server", b"cloudflare"),
        (b"cf-ray", b"%016x-FRA" % n),
        (b"content-length", b"%d" % length),
    ]


def trained(heads: Iterable[Headers]) -> Http2ReplyHeads:
    known = Http2ReplyHeads()
    for head in [*heads] * 3:
        known.read(head)
    return known


def passed(fields: ReplyFields, head: ReplyHead, dropped: frozenset[bytes]) -> tuple[object, ...]:
    """Return what the client gets of a head, as pairs and as lines."""
    template, *kind = fields.passed(head.shape, dropped)
    said: list[object] = []
    for write in (template.headers, template.lines):
        try:
            said.append(write(head.values))
        except ValueError as error:
            said.append(str(error))
    return *said, *kind


def test_what_is_new_in_each_reply_is_found_out() -> None:
    """Ids, counts, the date, and cookies, though there are two of them."""
    known = trained(map(provider, range(8)))

    one, other = known.read(provider(100)), known.read(provider(101, 7))

    assert one is not None and other is not None
    assert one.shape is other.shape and one.shape.is_shared
    assert (one.content_length, other.content_length) == (2, 7)
    assert one.values[3] == b"req_%032x" % 100 and other.values[3] == b"req_%032x" % 101
    assert [name for name, value in one.shape.fields if value is not None] == [b"content-type", b"server"]


@pytest.mark.parametrize("odd", ODD)
def test_value_that_reading_looks_at_is_looked_at_each_time(odd: Header) -> None:
    """In place of a field of its name, and beside it."""
    known = trained(map(provider, range(8)))
    for at, (name, _) in enumerate(provider(0)):
        instead = provider(50)
        if name == odd[0]:
            instead[at] = odd
        beside = [*instead[:at], odd, *instead[at:]]
        for head in [instead, beside] * 3:
            assert known.read(head) == Http2ReplyHeads().read(head)


@st.composite
def twisted(draw: st.DrawFn) -> Headers:
    """Return a head that is known but for its values, with some fields changed, moved, doubled or left out."""
    head = provider(draw(st.integers(0, 10**6)), draw(st.integers(0, 1100)))
    for _ in range(draw(st.integers(0, 3))):
        at, other = (draw(st.integers(0, len(head) - 1)) for _ in range(2))
        name, value = head[at]
        cut = draw(st.integers(0, len(value)))
        match draw(st.integers(0, 5)):
            case 0:
                head[at], head[other] = head[other], head[at]
            case 1:
                head.insert(other, head[at])
            case 2 if len(head) > 1:
                del head[at]
            case 3:
                inserted = draw(st.sampled_from([b" ", b"\t", b"\x00", b"\n", b"\r", b"\x80", b":", b"x", b"0", b"%b"]))
                head[at] = name, value[:cut] + inserted + value[cut:]
            case 4:
                head[at] = draw(st.sampled_from(ODD))
            case _:
                head[at] = name, value[cut:]
    return head


@settings(max_examples=1500, deadline=None)
@given(head=twisted(), dropped=st.sampled_from([frozenset[bytes](), DROPPED, frozenset({b"date", b"x-request-id"})]))
@pytest.mark.more
def test_head_that_is_nearly_known_says_what_it_says_to_others(head: Headers, dropped: frozenset[bytes]) -> None:
    """Property: read, and passed to the client, as by a gateway that has seen nothing."""
    known, fields = trained(map(provider, range(8))), ReplyFields()
    for each in (head, head, head, provider(9), head, provider(10)):
        ours, theirs = known.read(each), Http2ReplyHeads().read(each)
        assert ours == theirs
        if ours is not None and theirs is not None:
            assert passed(fields, ours, dropped) == passed(ReplyFields(), theirs, dropped)
    usual = known.read(provider(10**7))
    assert usual is not None and usual.shape.is_shared


def test_replies_that_are_new_in_every_field_leave_memory_bounded() -> None:
    """An upstream may send what it likes, too."""
    known = trained(map(provider, range(8)))
    for n in range(5_000):
        known.read(
            [(b":status", b"200"), (b"x-%d" % n, b"%d" % n), (b"location", b"%d" % n), (b"big", b"%d" % n * 500)]
        )

    assert len(known._memory.marks) <= 256 and len(known._memory.plans) <= 64
    assert len(known._memory) <= 512


def test_heads_of_several_plans_and_as_many_fields_do_not_pass_for_one_another() -> None:
    """The plans that were used last are tried first, by the number of fields; more of them than are tried."""
    kinds = [b"application/json", b"text/event-stream", b"text/plain", b"a/b", b"c/d", b"e/f"]

    def head(kind: bytes, n: int) -> Headers:
        return [(name, kind if name == b"content-type" else value) for name, value in provider(n)]

    known = trained(head(kind, n) for kind in kinds for n in range(8))
    for n in range(20):
        for kind in kinds:
            read = known.read(head(kind, 100 + n))
            assert read is not None and read.shape.is_shared
            assert read == Http2ReplyHeads().read(head(kind, 100 + n))


def test_plans_that_are_tried_first_are_few() -> None:
    known = Http2ReplyHeads()
    for n in range(100):
        for _ in range(4):
            known.read([(b":status", b"200"), *[(b"x", b"1")] * n])

    assert len(known._recent) <= 16
    assert sum(map(len, known._recent.values())) <= 64
