"""What the body of a reply is, by its bytes: codings, kinds, and what its label says (protocol/reply_body.py)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.protocol.reply_body import BodyKind, BodyReader, CodingError, is_coded, is_events, label_of

_TEXT: Final = b'{"choices":[{"index":0,"message":{"content":"Hello"}}]}' * 3
_MIB: Final = 1024 * 1024


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _members(data: bytes) -> bytes:
    return gzip.compress(data[:20]) + gzip.compress(b"") + gzip.compress(data[20:])


def _frames(data: bytes) -> bytes:
    return zstandard.compress(data[:20]) + zstandard.compress(data[20:])


def _plain(data: bytes) -> bytes:
    return data


# Label, and how the body is made.
CODED: Final[list[tuple[bytes, Callable[[bytes], bytes]]]] = [
    (b"gzip", gzip.compress),
    (b"X-Gzip", gzip.compress),
    (b"gzip", _members),
    (b"deflate", zlib.compress),
    (b"deflate", _raw_deflate),
    (b"zstd", zstandard.compress),
    (b"zstd", _frames),
    # Wrong labels.
    (b"", gzip.compress),
    (b"", zstandard.compress),
    (b"br", gzip.compress),
    (b"deflate", gzip.compress),
    (b"gzip", _plain),
    (b"br", _plain),
    (b"deflate", _plain),
    (b"utf-8", _plain),
    (b"", _plain),
    (b"identity", _plain),
]


def _read(body: bytes, label: bytes, sizes: list[int]) -> tuple[bytes, BodyKind | None]:
    reader = BodyReader([(b"content-encoding", label)] if label else [])
    found, at = b"", 0
    for size in sizes:
        found += reader.feed(body[at : at + size], False)
        at += size
    found += reader.feed(body[at:], True)
    return found, reader.kind


@pytest.mark.parametrize(("label", "coded"), CODED)
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), max_size=6), tail=st.sampled_from([b"", b"\n", b"\0\0"]))
def test_body_says_the_same_however_it_is_coded_and_cut(
    label: bytes, coded: Callable[[bytes], bytes], sizes: list[int], tail: bytes
) -> None:
    """C40: the bytes decide, the label is a hint; what follows on the last member of a coded body is nothing."""
    body = coded(_TEXT) + (b"" if coded is _plain else tail)

    assert _read(body, label, sizes) == (_TEXT, BodyKind.OBJECT)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"a":1}', BodyKind.OBJECT),
        (b"[1]", BodyKind.ARRAY),
        (b"data: x\n\n", BodyKind.EVENTS),
        (b"event: x\ndata: y\n\n", BodyKind.EVENTS),
        (b": comment\n\n", BodyKind.EVENTS),
        (b"id: 1\n", BodyKind.EVENTS),
        (b"retry: 1\n", BodyKind.EVENTS),
        (b"<!DOCTYPE html>", BodyKind.HTML),
        (b"null", BodyKind.OTHER),
        (b"\x00\x00\x00\x9c", BodyKind.OTHER),
    ],
)
@settings(max_examples=25, deadline=None)
@given(before=st.text(" \n\t\r", max_size=3), bom=st.booleans(), sizes=st.lists(st.integers(0, 3), max_size=5))
def test_kind_is_told_by_the_first_byte(text: bytes, kind: BodyKind, before: str, bom: bool, sizes: list[int]) -> None:
    """C24: however it is cut, and whatever blanks come first, with which some servers keep a connection open."""
    body = (b"\xef\xbb\xbf" if bom else b"") + before.encode() + text

    found, told = _read(body, b"", sizes)

    assert told is kind and found.removeprefix(b"\xef\xbb\xbf").lstrip() == text


@pytest.mark.parametrize("body", [b"", b" \n", b"\xef\xbb\xbf"])
def test_nothing_has_no_kind(body: bytes) -> None:
    assert _read(body, b"", []) == (b"", None)


def test_flushes_are_read_as_they_come() -> None:
    """C40: each event of a compressed stream, with its flush."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    reader = BodyReader([(b"content-encoding", b"gzip")])

    for n in range(100):
        event = b"data: %d\n\n" % n
        assert reader.feed(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH), False) == event


@pytest.mark.parametrize("coded", [gzip.compress, zlib.compress, _raw_deflate, zstandard.compress])
def test_what_expands_too_far_is_refused(coded: Callable[[bytes], bytes]) -> None:
    """C40: a kilobyte may stand for a gigabyte: no more than a hundred times its length is ever made, beyond 1 MiB."""
    reader = BodyReader([(b"content-encoding", b"deflate")])

    with pytest.raises(CodingError, match="expands to over 100 times"):
        reader.feed(coded(b" " * 100 * _MIB), True)

    assert _read(coded(b"[" * _MIB), b"deflate", [])[1] is BodyKind.ARRAY  # so much is free


@pytest.mark.parametrize(
    ("label", "body"),
    [
        (b"br", b"\x8b\x0f\x80"),
        (b"gzip", b"\x1f\x8b\x08\xff"),
        (b"compress", b"\x1f\x9d\x90\x01"),
        (b"br, x", b"\x01" * 9),
    ],
)
def test_coding_that_cannot_be_read_is_an_error(label: bytes, body: bytes) -> None:
    with pytest.raises(CodingError):
        _read(body + b"\xff" * 50, label, [])


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_cut_body_is_for_its_reader_to_judge(cut: int) -> None:
    """What came of it is read: a stream has an end of its own, and JSON is whole or not."""
    body = gzip.compress(_TEXT)

    found, _ = _read(body[:-cut], b"gzip", [])

    assert _TEXT.startswith(found)
    assert cut > 8 or found == _TEXT  # the sum behind it says nothing of the text


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ([], (False, True)),
        ([(b"content-type", b"Text/Event-Stream; charset=utf-8")], (True, True)),
        ([(b"content-type", b"application/json"), (b"content-encoding", b"GZIP")], (False, False)),
        ([(b"content-type", b"text/event-stream"), (b"content-encoding", b"identity")], (True, True)),
        ([(b"content-encoding", b"")], (False, True)),
        ([(b"content-encoding", b"utf-8")], (False, True)),
        ([(b"content-encoding", b"identity, br")], (False, False)),
        ([(b"content-encoding", b"gzip"), (b"content-encoding", b"identity")], (False, False)),
    ],
)
def test_label_is_read_in_any_case_and_identity_is_no_coding(
    fields: list[tuple[bytes, bytes]], label: tuple[bool, bool]
) -> None:
    """One reader for all who ask: the reply's own, copies, hedges, probes."""
    assert label_of(fields) == label
    assert any(is_events(value) for name, value in fields if name == b"content-type") is label[0]
    assert any(is_coded(value) for name, value in fields if name == b"content-encoding") is not label[1]
