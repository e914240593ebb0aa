"""Cases of things that any server takes: sections generic and hpack of h2spec 2.6, written anew.

Knows: what the client says, what is wanted. Does not know: who is at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.h2spec.talker import (
    COMPRESSION_ERROR,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PRIORITY,
    Case,
    Step,
    Talker,
    answer,
    close,
    connection_error,
    data_of,
    end_of_stream,
    frame,
    pong,
    settings_ack,
    uint32,
)

__all__ = ["GENERIC", "HPACK", "both", "get", "post"]

WINDOW: Final = 4


def both(*steps: Step) -> Step:
    """Return the steps as one."""

    def say(talker: Talker) -> None:
        for step in steps:
            step(talker)

    return say


def get(talker: Talker) -> None:
    """A request without a body."""
    talker.head(talker.get)


def post(talker: Talker) -> None:
    """A request whose body is to come."""
    talker.head(talker.post, end=False)


def _split(*cuts: int) -> Step:
    """A request whose block is cut there."""

    def say(talker: Talker) -> None:
        block = talker.block(talker.get)
        pieces = [block[a:b] for a, b in zip((0, *cuts), (*cuts, None), strict=True)]
        talker.say(frame(1, END_STREAM, 1, pieces[0]))
        for piece in pieces[1:-1]:
            talker.continuation(piece, end=False)
        talker.continuation(pieces[-1])

    return say


def _padded_head(talker: Talker) -> None:
    talker.say(frame(1, END_STREAM | END_HEADERS | PADDED, 1, b"\x08" + talker.block(talker.get) + bytes(8)))


def _head_with_priority(talker: Talker) -> None:
    payload = uint32(0) + b"\xff" + talker.block(talker.get)
    talker.say(frame(1, END_STREAM | END_HEADERS | PRIORITY, 1, payload))


def _with_method(method: bytes) -> Step:
    return lambda it: it.head([(b":method", method), *it.get[1:]])


def _post_with_trailers(talker: Talker) -> None:
    talker.head([*talker.post, (b"trailer", b"x-test")], end=False)
    talker.data(end=False)
    talker.head([(b"x-test", b"ok")])


def _with_block(before: bytes, after: bytes) -> Step:
    return lambda it: it.say(frame(1, END_STREAM | END_HEADERS, 1, before + it.block(it.get) + after))


def _all_settings(talker: Talker) -> None:
    talker.setting((1, 4096), (2, 1), (3, 100), (4, 65_535), (5, 16_384), (6, 100))


GENERIC: Final[Sequence[Case]] = [
    Case("generic/1/1", "preface and settings", lambda it: it.ping(), pong()),
    Case("generic/2/1", "PRIORITY on an idle stream", both(Talker.priority, Talker.ping), pong()),
    Case(
        "generic/2/2",
        "WINDOW_UPDATE on a half-closed (remote) stream",
        both(lambda it: it.setting((WINDOW, 0)), get, lambda it: it.window(1, 1)),
        data_of(),
    ),
    Case(
        "generic/2/3",
        "PRIORITY on a half-closed (remote) stream",
        both(lambda it: it.setting((WINDOW, 0)), get, Talker.priority, lambda it: it.window(1, 1)),
        data_of(),
    ),
    Case("generic/2/4", "RST_STREAM on a half-closed (remote) stream", both(get, Talker.reset, Talker.ping), pong()),
    Case("generic/2/5", "PRIORITY on a closed stream", both(get, end_of_stream, Talker.priority, Talker.ping), pong()),
    Case("generic/3.1/1", "DATA", both(post, Talker.data), answer()),
    Case("generic/3.1/2", "two DATA", both(post, lambda it: it.data(end=False), Talker.data), answer()),
    Case(
        "generic/3.1/3",
        "DATA with padding",
        both(post, lambda it: it.say(frame(0, END_STREAM | PADDED, 1, b"\x06test" + bytes(6)))),
        answer(),
    ),
    Case("generic/3.2/1", "HEADERS", get, answer()),
    Case("generic/3.2/2", "HEADERS with padding", _padded_head, answer()),
    Case("generic/3.2/3", "HEADERS with priority", _head_with_priority, answer()),
    Case("generic/3.3/1", "PRIORITY of 1", both(lambda it: it.priority(weight=0), get), answer()),
    Case("generic/3.3/2", "PRIORITY of 256", both(Talker.priority, get), answer()),
    Case("generic/3.3/3", "PRIORITY with a dependency", both(lambda it: it.priority(3, 1, 0), get), answer()),
    Case("generic/3.3/4", "PRIORITY, exclusive", both(lambda it: it.priority(1, 1 << 31, 0), get), answer()),
    Case("generic/3.3/5", "PRIORITY on a higher idle stream", both(lambda it: it.priority(3), get), answer()),
    Case("generic/3.4/1", "RST_STREAM", both(post, Talker.reset, Talker.ping), pong()),
    Case("generic/3.5/1", "SETTINGS", _all_settings, settings_ack()),
    Case("generic/3.7/1", "PING", Talker.ping, pong()),
    Case("generic/3.8/1", "GOAWAY", lambda it: it.say(frame(7, 0, 0, bytes(8))), close()),
    Case("generic/3.9/1", "WINDOW_UPDATE of the connection", both(lambda it: it.window(0, 1), Talker.ping), pong()),
    Case("generic/3.9/2", "WINDOW_UPDATE of a stream", both(get, lambda it: it.window(1, 1)), answer()),
    Case("generic/3.10/1", "a CONTINUATION", _split(5), answer()),
    Case("generic/3.10/2", "two CONTINUATION", _split(5, 10), answer()),
    Case("generic/4/1", "GET", get, answer()),
    Case("generic/4/2", "HEAD", _with_method(b"HEAD"), answer()),
    Case("generic/4/3", "POST", both(post, Talker.data), answer()),
    Case("generic/4/4", "POST with trailers", _post_with_trailers, answer()),
    Case("generic/5/1", "indexed field", _with_block(b"", b"\xba"), answer()),
    *[
        Case(f"generic/5/{n}", what, _with_block(b"", field), answer())
        for n, what, field in (
            (2, "indexing, name from the table", b"\x7a\x06h2spec"),
            (3, "indexing, name from the table, Huffman", b"\x7a\x84\x9c\x48\xac\xa4"),
            (4, "indexing, new name", b"\x40\x06x-test\x06h2spec"),
            (5, "indexing, new name, Huffman", b"\x40\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4"),
            (6, "not indexed, name from the table", b"\x0f\x2b\x06h2spec"),
            (7, "not indexed, name from the table, Huffman", b"\x0f\x2b\x84\x9c\x48\xac\xa4"),
            (8, "not indexed, new name", b"\x00\x06x-test\x06h2spec"),
            (9, "not indexed, new name, Huffman", b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4"),
            (10, "never indexed, name from the table", b"\x1f\x2b\x06h2spec"),
            (11, "never indexed, name from the table, Huffman", b"\x1f\x2b\x84\x9c\x48\xac\xa4"),
            (12, "never indexed, new name", b"\x10\x06x-test\x06h2spec"),
            (13, "never indexed, new name, Huffman", b"\x10\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4"),
        )
    ],
    Case("generic/5/14", "a new table size", _with_block(b"\x20", b""), answer()),
    Case("generic/5/15", "two new table sizes", _with_block(b"\x20\x3f\xe1\x1f", b""), answer()),
]

_UNDECODABLE: Final = (
    ("hpack/2.3.3/1", "an index beyond both tables", b"\xfe"),
    ("hpack/2.3.3/2", "a literal with an index beyond both tables", b"\x7f\x3f\x04test"),
    ("hpack/4.2/1", "a table size behind fields", b"\x21"),
    ("hpack/5.2/1", "Huffman padding over 7 bits", b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
    ("hpack/5.2/2", "Huffman padding of zeros", b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
    ("hpack/5.2/3", "Huffman with EOS", b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\xff\xff\xff\xfd\x25\x42\x7f"),
    ("hpack/6.1/1", "index 0", b"\x80"),
)

HPACK: Final[Sequence[Case]] = [
    *[
        Case(case_id, what, _with_block(b"", field), connection_error(COMPRESSION_ERROR))
        for case_id, what, field in _UNDECODABLE
    ],
    Case(
        "hpack/6.3/1",
        "a table size over the limit",
        _with_block(b"\x3f\xe2\x1f", b""),  # 4,097
        connection_error(COMPRESSION_ERROR),
    ),
]
