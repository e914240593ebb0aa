"""Texts of one JSON object, read as it comes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from velox.protocol.top_fields import TopFields

PATHS = ("id", "type", "a.id", "a.b.id")
NAMES = st.sampled_from(["id", "type", "a", "b", "x", 'say "id"', "\\"])
LEAVES = st.none() | st.integers() | st.sampled_from(["", "resp_1", 'q"q', "back\\", "{[,", "\u00e9\n", '"id":"x"'])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=16
)


def expected(document: dict[str, Any]) -> dict[str, str]:
    """Return what a parser finds at the paths."""
    found = {}
    for path in PATHS:
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str):
            found[path] = value
    return found


@given(
    document=st.dictionaries(NAMES, VALUES, max_size=5),
    n_bytes=st.integers(1, 9),
    is_ascii=st.booleans(),
    indent=st.none() | st.just(1),
)
@example({"a": {"b": {"id": "1"}, "id": "2"}, "id": "3"}, 1, True, None)
@example({"a": {"x": {"id": "1"}}, "b": {"id": "2"}, "x": [{"a": {"id": "3"}}]}, 1, True, None)
def test_what_is_found_is_what_a_parser_finds(
    document: dict[str, Any], n_bytes: int, is_ascii: bool, indent: int | None
) -> None:
    """However the object is cut; and again for the next one."""
    data = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode()
    fields = TopFields(*PATHS)
    for _ in range(2):
        found = [each for at in range(0, len(data), n_bytes) for each in fields.feed(data[at : at + n_bytes])]
        assert dict(found) == expected(document)
        assert len(found) == len(dict(found))
        fields.clear()


def test_text_that_is_too_long_for_an_id_is_none() -> None:
    """And what comes after it is read."""
    fields = TopFields("id", "type")
    assert fields.feed(b'{"id":"%b' % (b"x" * 5000)) == []
    assert fields.feed(b'%b","type":"t"}' % (b"x" * 5000)) == [("type", "t")]


def test_what_is_no_json_gives_nothing() -> None:
    """Whatever comes: it must not fail."""
    for data in (b"", b"]}],", b'"id":"x"', b'{"id":"\n"}', b'{"id":"\\x"}', b'["id","x"]', b"{" * 1000, b'{,"id"]"x"'):
        assert TopFields("id").feed(data) == []


def test_field_of_an_object_of_an_object_is_found() -> None:
    """Also where no other field of the outer one is asked for."""
    data = b'{"a":{"id":"1","b":{"x":[{"id":"2"}],"id":"3"}},"b":{"id":"4"}}'
    assert TopFields("a.b.id").feed(data) == [("a.b.id", "3")]
