"""Large bodies of many short strings: all that is left out of them are texts, in short steps."""

from __future__ import annotations

import json
import re

import pytest
import simdjson
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocol.json.test_body_skim import chat, run
from velox.protocol.json.text_free import text_free


def strictly(data: bytes, _offset: int) -> None:
    """Raise ValueError for what is no content of strings."""
    simdjson.Parser().parse(b'["%b"]' % data)


JSON = st.recursive(
    st.one_of(st.text(max_size=12), st.sampled_from(["\\" * 7, '"' * 5, "a" * 9, ""]), st.integers(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)),
)


def shortened(value: object, most: int, *, ascii_only: bool) -> object:
    """Leave out what text_free() leaves out, of a document that is parsed."""
    if isinstance(value, str):
        return value if len(json.dumps(value, ensure_ascii=ascii_only).encode()) - 2 <= most else ""
    if isinstance(value, list):
        return [shortened(each, most, ascii_only=ascii_only) for each in value]
    if isinstance(value, dict):
        return {name: shortened(each, most, ascii_only=ascii_only) for name, each in value.items()}
    return value


@given(JSON, st.integers(0, 9), st.sampled_from([None, 1]), st.booleans())
def test_all_long_values_are_left_out_and_no_name(
    document: object, most: int, indent: int | None, ascii_only: bool
) -> None:
    document = [document]
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    data, _ = run(text_free(body, strictly, most, len(body)))
    assert data is not None and run(text_free(body, strictly, most, len(data)))[0] == data
    assert run(text_free(body, strictly, most, len(data) - 1))[0] is None
    assert json.loads(data) == shortened(document, most, ascii_only=ascii_only)


@pytest.mark.parametrize("text", [b"x" * 500, b'\\"' * 400_000, b"\\\\" * 100_000, "ä".encode() * 70_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_steps_are_short(text: bytes, kind: type[bytes]) -> None:
    """A yield for each 64 KiB."""
    n = 3_000_000 // len(text)
    body = kind(chat(b"x", b',"y":[%b1]' % (b'"%b",' % text * n)))
    data, turns = run(text_free(body, strictly, 256, len(body)))
    assert data is not None and json.loads(data) == json.loads(chat(b"x", b',"y":[%b1]' % (b'"",' * n)))
    assert turns >= len(body) // 70_000
    unended = kind(body[: len(body) // 2])
    left, _ = run(text_free(unended, strictly, 256, len(body)))
    assert left is not None and left.startswith(b'{"model":"m"')


@pytest.mark.parametrize("fault", [b"\\x", b"\n", b"\xff", b"\\ud800"])
@pytest.mark.parametrize("at", [5, 100_000, -5])
def test_fault_in_what_is_left_out_is_found(fault: bytes, at: int) -> None:
    text = b"a word " * 20_000
    text = text[:at] + fault + text[at:]
    for body in (chat(text), chat(b"x", b',"y":[%b1]' % (b'"a text",' * 300 + b'"%b",' % text[-300:]))):
        if fault in body:
            with pytest.raises(ValueError, match=r"\w"):
                run(text_free(body, strictly, 100, len(body)))


@pytest.mark.parametrize("n_blanks", [0, 3, 70_000, 200_000])
def test_name_is_left_whatever_stands_behind_it(n_blanks: int) -> None:
    name = b"n" * 1_000
    body = b'{"%b"%b:"%b"}' % (name, b" " * n_blanks, b"v" * 1_000)
    data, _ = run(text_free(body, strictly, 100, len(body)))
    assert data is not None and bytes(data) in (b'{"%b"%b:""}' % (name, b" " * n_blanks), body)
    assert re.match(rb'\{"n{1000}"', data)
