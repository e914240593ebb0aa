"""Members of one JSON object and of the objects inside it, read as they come: what the standard library finds there."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from velox.protocol.json.outline import Outline
from velox.protocol.json.value_count import brackets_open, has_over
from velox.protocol.json.value_end import ValueEnd

PATHS = ("id", "type", "a.id", "a.b.id")
NAMES = st.sampled_from(["id", "type", "a", "b", "x", 'say "id"', "\\", "a.id"])
LEAVES = (
    st.none()
    | st.integers()
    | st.sampled_from(["", "resp_1", 'q"q', "back\\", "{[,", "\u00e9\n", '"id":"x"', "\ud83d", "]}"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=16
)
CHANCES = st.integers(0, 2**32).map(random.Random)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


def spelled(document: object, chance: random.Random, *, is_ascii: bool) -> str:
    """Write a value with letters that need not be escaped and are, blanks, and members that are there twice."""
    blank = chance.choice(["", "", " ", "\n\t", "\r\n"])
    if isinstance(document, dict):
        members = list(document.items())
        if members and chance.random() < 0.3:
            members.insert(0, (members[-1][0], chance.choice([None, "first", {"id": "first"}, ["id"]])))
        texts = (
            spelled(name, chance, is_ascii=is_ascii) + blank + ":" + blank + spelled(value, chance, is_ascii=is_ascii)
            for name, value in members
        )
        return "{" + blank + f"{blank},{blank}".join(texts) + blank + "}"
    if isinstance(document, list):
        return "[" + blank + ",".join(spelled(each, chance, is_ascii=is_ascii) for each in document) + blank + "]"
    if isinstance(document, str):
        letters = (
            f"\\u{ord(each):04x}"
            if ord(each) >= 0xD800 or (ord(each) < 128 and chance.random() < 0.3)
            else json.dumps(each, ensure_ascii=is_ascii)[1:-1]
            for each in document
        )
        return '"' + "".join(letters) + '"'
    return json.dumps(document)


def expected(document: dict[str, Any]) -> dict[str, object]:
    """Return what a parser finds at the paths; null where what should hold a member is no object."""
    found: dict[str, object] = {}
    for path in PATHS:
        *holders, last = path.split(".")
        value: Any = document
        for name in holders:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict) and last in value:
            found[path] = value[last]
    return found


@settings(deadline=None)
@given(document=DOCUMENTS, n_bytes=st.integers(1, 9), is_ascii=st.booleans(), chance=CHANCES, mark=st.booleans())
@example({"a": {"b": {"id": "1"}, "id": "2"}, "id": "3"}, 1, True, random.Random(1), False)
@example({"a": {"x": {"id": "1"}}, "b": {"id": "2"}, "x": [{"a": {"id": "3"}}]}, 1, True, random.Random(2), True)
@example({"a.id": "1", "a": {"b.id": "2", "b": {"id": "3"}}}, 3, True, random.Random(1), False)
def test_what_is_found_is_what_a_parser_finds(
    document: dict[str, Any], n_bytes: int, is_ascii: bool, chance: random.Random, mark: bool
) -> None:
    """However the object is written and cut: escapes, blanks, equal names, half surrogates, a byte order mark.

    And again for the next one.
    """
    text = spelled(document, chance, is_ascii=is_ascii)
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    outline = Outline(*PATHS)
    for _ in range(2):
        found = [each for at in range(0, len(data), n_bytes) for each in outline.feed(data[at : at + n_bytes])]
        told = outline.text()
        assert told is not None
        assert expected(json.loads(told)) == expected(json.loads(text))
        # One after the other each is told as it comes; those in an object that another one has replaced, too.
        last = {path: json.loads(value) for path, value in found}
        assert {path: last[path] for path in expected(json.loads(text))} == expected(json.loads(text))
        outline.clear()


@settings(deadline=None)
@given(document=DOCUMENTS, chance=CHANCES, is_ascii=st.booleans(), n_bytes=st.integers(1, 9))
def test_place_of_a_value_is_where_it_stands(
    document: dict[str, Any], chance: random.Random, is_ascii: bool, n_bytes: int
) -> None:
    """In bytes from the start, however the document is cut."""
    data = spelled(document, chance, is_ascii=is_ascii).encode()
    outline = Outline("id")
    for at in range(0, len(data), n_bytes):
        found = outline.feed(data[at : at + n_bytes])
        if found:
            assert data[outline.value_at :].startswith(found[-1][1])


@settings(deadline=None)
@given(value=VALUES, chance=CHANCES, is_ascii=st.booleans(), n_bytes=st.integers(1, 40))
def test_end_of_a_value_is_where_a_parser_finds_it(
    value: object, chance: random.Random, is_ascii: bool, n_bytes: int
) -> None:
    """Of texts, objects and arrays; and its brackets are as many as those that close it."""
    text = spelled([value], chance, is_ascii=is_ascii).encode()
    data = text + b',"]"}'
    end = ValueEnd()
    end.begin(data[0])
    at = 1
    for start in range(0, len(data), n_bytes):
        end.take(data[start : start + n_bytes])
        found = end.find(max(0, at - start))
        if found >= 0:
            assert start + found == len(text)
            break
    else:
        raise AssertionError("it has an end")
    assert sum(brackets_open(text, 0, len(text))) == 0
    assert sum(brackets_open(text[:-1].rstrip(), 0, len(text[:-1].rstrip()))) == 1


@settings(deadline=None)
@given(value=VALUES, chance=CHANCES, is_ascii=st.booleans())
def test_values_are_counted_outside_of_texts(value: object, chance: random.Random, is_ascii: bool) -> None:
    """Commas and objects, as a parser sees them."""

    def n_of(each: object) -> int:
        inner = list(each.values()) if isinstance(each, dict) else each if isinstance(each, list) else []
        return isinstance(each, dict) + max(0, len(inner) - 1) + sum(map(n_of, inner))

    text = spelled(value, chance, is_ascii=is_ascii)
    pairs = json.loads(text, object_pairs_hook=lambda found: dict(enumerate(each for _, each in found)))
    n = n_of(pairs)
    assert not has_over(text.encode(), n)
    assert n == 0 or has_over(text.encode(), n - 1)


def test_what_stands_before_an_object_must_be_its_lead() -> None:
    """As the name of a field of an event does; a line of another field has no object."""
    assert Outline("id", lead=b"data:").feed(b'data: {"id":1,') == [("id", b"1")]
    assert Outline("id", lead=b"data:").feed(b'\xef\xbb\xbfdata:{"id":1,') == [("id", b"1")]
    for line in (b'{"id":1,', b'event: {"id":1,', b'dat: {"id":1,', b'data:data:{"id":1,'):
        assert Outline("id", lead=b"data:").feed(line) == []


@pytest.mark.parametrize("value", [b'"' + b"x" * 20_000 + b'"', b"[" + b"1," * 9_000 + b"1]"])
def test_value_that_is_too_long_is_null_when_it_is_whole(value: bytes) -> None:
    """And what comes after it is read."""
    outline = Outline("id", "type")
    assert outline.feed(b'{"id":' + value[:9000]) == []
    assert outline.feed(value[9000:] + b',"type":"t"}') == [("id", b"null"), ("type", b'"t"')]


def test_what_is_no_json_gives_nothing() -> None:
    """Whatever comes: it must not fail."""
    for data in (b"", b"]}],", b'"id":"x"', b'["id","x"]', b"{" * 1000, b'{,"id"]"x"'):
        assert Outline("id").feed(data) == []


def test_field_of_an_object_of_an_object_is_found() -> None:
    """Also where no other field of the outer one is asked for."""
    data = b'{"a":{"id":"1","b":{"x":[{"id":"2"}],"id":"3"}},"b":{"id":"4"}}'
    assert Outline("a.b.id").feed(data) == [("a.b.id", b'"3"')]
