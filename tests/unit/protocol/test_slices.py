"""Work on megabytes in slices: what comes of it is what one call returns, and no slice is long."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velox.protocol.slices import (
    as_base64,
    concatenated,
    copied,
    drained,
    from_base64,
    joined_text,
    json_slices,
    text_slices,
    utf8_fault,
    utf8_slices,
)

SLICE = 32  # bytes
# Pairs, halves, escaped backslashes before letters that look like an escape, characters of 1 to 4 bytes.
PARTS = [rb"\ud83d", rb"\ude00", rb"\uDBFF", rb"\\", rb"\n", b"u", b"d83d", "é".encode(), "€".encode(), "😀".encode()]
ESCAPED = st.lists(st.sampled_from([*PARTS, rb"\\" * 40, b"a" * 25]), max_size=40).map(b"".join)


def result(work: Callable[[], object]) -> object:
    try:
        return work()
    except ValueError:
        return ValueError


@given(st.lists(st.binary(max_size=100)))
@example([b""])
@example([b"a"] * 10_000)
def test_pieces_are_one_text(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    for some in (pieces, iter(pieces), [whole], [bytearray(whole)]):
        assert concatenated(some, SLICE) == whole
    assert drained(pieces) == whole
    assert pieces == []


@pytest.mark.parametrize("n_bytes", [0, 1, 1_000_000])
def test_copies(n_bytes: int) -> None:
    assert copied(bytearray(n_bytes)) == bytes(n_bytes)


@given(ESCAPED)
def test_slices_of_json_cut_no_escape_no_pair_and_no_character(data: bytes) -> None:
    slices = list(json_slices(data, SLICE))

    assert b"".join(slices) == data
    assert all(slices[:-1]) and all(len(each) <= SLICE for each in slices)
    for each in slices:
        each.decode("utf-8")  # no character is cut
    ends, at = set(), 0
    while at < len(data):  # escape after escape, from the left
        n = 6 if data[at : at + 2] == rb"\u" else 2 if data[at : at + 1] == b"\\" else 1
        if n == 6 and data[at + 2 : at + 4].lower() in (b"d8", b"db") and data[at + 6 : at + 10] == rb"\ude":
            n = 12
        at += n
        ends.add(at)
    at = 0
    for each in slices[:-1]:
        at += len(each)
        assert at in ends


@given(st.text(st.sampled_from("aé€😀"), max_size=100))
def test_slices_of_text_cut_no_character(text: str) -> None:
    slices = list(utf8_slices(text.encode(), SLICE))

    assert "".join(each.decode() for each in slices) == text
    assert all(len(each) <= SLICE for each in slices)
    assert "".join(text_slices(text, SLICE)) == text
    assert joined_text(text_slices(text, SLICE)) == text
    assert joined_text(text_slices(text, SLICE, begin=3)) == text[3:]


@given(st.lists(st.sampled_from([b"a", "€".encode(), "😀".encode(), b"\xff", b"\x80", b"\xf0\x9f"]), max_size=60))
def test_fault_of_utf8_is_found(parts: list[bytes]) -> None:
    data = b"".join(parts)
    fault = utf8_fault(data, SLICE)

    assert (fault is None) is (result(data.decode) is not ValueError)
    assert fault is None or fault < len(data)


@given(st.binary(max_size=200))
def test_base64_is_that_of_the_standard_library(data: bytes) -> None:
    text = as_base64(data, SLICE)

    assert text == base64.b64encode(data).decode()
    assert from_base64(text, SLICE) == data


@given(st.text(st.sampled_from("A4=-"), max_size=20), st.integers(0, 40))
def test_what_is_no_base64_is_refused_as_by_the_standard_library(text: str, n: int) -> None:
    text = "A" * n + text

    assert result(lambda: from_base64(text, 8)) == result(lambda: base64.b64decode(text, validate=True))
