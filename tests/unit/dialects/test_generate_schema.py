"""Schemas as Google's older field takes them, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import recorded
from velox.dialects.generate.schema import Inlining, SchemaError, SubsetSchemas, json_schema, subset


def _subset(schema: object) -> Any:
    found = subset(json.dumps(schema).encode())
    return None if found is None else json.loads(found)


def _of(schema: object) -> Any:
    """Return what becomes of a property's schema."""
    return _subset({"type": "object", "properties": {"x": schema}})["properties"]["x"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        (
            {"type": ["string", "integer"], "description": "d"},
            {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "d"},
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "T"},
            {"type": "string", "title": "T", "nullable": True},
        ),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": ["a", "", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"enum": [1, 2], "type": "integer"}, {"type": "integer"}),
        ({"enum": [1, 2]}, {"type": "integer"}),
        ({"const": True}, {"type": "boolean"}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        (
            {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "maxItems": 2},
            {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        ),
        (
            {"prefixItems": [{"type": "number"}, {"type": "string"}]},
            {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "string"}]}},
        ),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object"}),
        (
            {"type": "string", "default": "x", "examples": ["y"], "$comment": "z", "minLength": 1},
            {"type": "string", "minLength": 1},
        ),
        (True, {"type": "string"}),
        ({}, {"type": "string"}),
        ({"type": "null"}, {"type": "string", "nullable": True}),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"properties": {"b": {}}, "required": ["b"]},
                ]
            },
            {
                "type": "object",
                "properties": {"b": {"type": "string"}, "a": {"type": "string"}},
                "required": ["a", "b"],
            },
        ),
        (
            {"type": "object", "properties": {"a": {}}, "required": ["a", "gone"]},
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        ),
    ],
)
def test_pitfall_31_rules_of_the_subset(schema: object, expected: object) -> None:
    """Each of the rules, alone."""
    assert _of(schema) == expected


def test_pitfall_31_references_are_inlined_and_recursion_stops() -> None:
    """No $defs are left; a reference into itself becomes an object; what stands beside a reference counts."""
    schema = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"value": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
            },
            "a/b": {"type": "integer"},
        },
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/Node", "description": "first"},
            "again": {"$ref": "#/$defs/Node"},
            "n": {"$ref": "#/$defs/a~1b"},
            "all": {"allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/a~1b"}]},
            "gone": {"$ref": "#/$defs/Gone"},
            "root": {"$ref": "#"},
        },
    }
    node = {"type": "object", "properties": {"value": {"type": "string"}, "next": {"type": "object"}}}

    found = _subset(schema)

    properties = found["properties"]
    assert properties["node"] == {**node, "description": "first"}
    assert properties["again"] == node
    assert properties["n"] == properties["all"] == {"type": "integer"}
    assert properties["gone"] == {"type": "string"}
    assert "$" not in json.dumps(found)


def test_a_schema_without_properties_is_left_out() -> None:
    """Google wants no parameters at all then."""
    assert _subset({"type": "object", "properties": {}}) is None
    assert _subset({"type": "object"}) is None
    assert _subset({"type": "string"}) == {"type": "string"}


def test_a_schema_that_grows_or_nests_without_bound_is_refused() -> None:
    """Each reference doubles it; nesting has an end."""
    doubling: dict[str, Any] = {
        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in "ab"}}
        for n in range(20)
    }
    with pytest.raises(SchemaError):
        _subset({"$defs": doubling, "$ref": "#/$defs/L0"})
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError):
        _subset(deep)
    with pytest.raises(SchemaError):
        json_schema(json.dumps(deep).encode())
    for text in (b"[]", b"1", b"{", b"[" * 100_000):
        with pytest.raises(SchemaError):
            subset(text)


def doubling(n: int, part: dict[str, Any], name: str = "") -> bytes:
    """Return a schema whose references stand for 2**n parts; part: with "*" for the reference to the next."""
    parts = {f"d{i}": json.loads(json.dumps(part).replace("*", f"#/$defs/d{i + 1}")) for i in range(n)}
    root = {"title": name, "type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}}
    return json.dumps({**root, "$defs": {**parts, f"d{n}": {"type": "string"}}}).encode()


@pytest.mark.parametrize(
    "part",
    [
        {"allOf": [{"$ref": "*"}, {"$ref": "*"}]},
        {"anyOf": [{"$ref": "*"}, {"$ref": "*"}]},
        {"type": "object", "properties": {"a": {"$ref": "*"}, "b": {"$ref": "*"}}},
        {"type": "array", "prefixItems": [{"$ref": "*"}, {"title": "other", "$ref": "*"}]},
    ],
)
def test_references_that_double_are_refused_soon(part: dict[str, Any]) -> None:
    """A kilobyte of them would keep a worker at work for ever: 2**50 parts."""
    with pytest.raises(SchemaError):
        subset(doubling(50, part))


@pytest.mark.slow
def test_many_schemas_of_one_request_have_one_bound() -> None:
    """Each is below its own; those that were rewritten before cost nothing."""
    part = {"type": "object", "properties": {"a": {"$ref": "*"}, "b": {"$ref": "*"}}}
    schemas, inlining = SubsetSchemas(), Inlining()
    known = doubling(10, part)
    assert schemas.subset(known) is not None

    with pytest.raises(SchemaError):
        for n in range(20):
            schemas.subset(doubling(10, part, str(n)), inlining)
    assert schemas.subset(known, inlining) is not None
    plain = {f"p{n}": {"type": "string"} for n in range(1000)}
    more = Inlining()
    for n in range(30):
        assert schemas.subset(json.dumps({"type": "object", "title": str(n), "properties": plain}).encode(), more)


def test_a_long_schema_is_not_remembered() -> None:
    """Clients would fill the memory of a worker with descriptions."""
    schemas = SubsetSchemas()
    told = json.dumps({"type": "object", "description": "d" * 100_000, "properties": {"a": {"type": "string"}}})

    assert schemas.subset(told.encode()) is not None
    assert repr(schemas) == "<SubsetSchemas 0>"


def test_integers_of_twenty_digits_stay() -> None:
    """Pitfall 44."""
    assert subset(b'{"type":"integer","maximum":12345678901234567890}') == (
        b'{"type":"integer","maximum":12345678901234567890}'
    )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": "STRING", "enum": ["a"], "format": "enum", "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"type": "INTEGER", "format": "int64", "minimum": 1}, {"type": "integer", "minimum": 1}),
        (
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "min_items": "2"},
            {"type": "array", "items": {"type": "number"}, "minItems": 2},
        ),
        ({"any_of": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"type": "OBJECT", "properties": {"any_of": {"type": "BOOLEAN"}}, "property_ordering": ["any_of"]},
            {"type": "object", "properties": {"any_of": {"type": "boolean"}}},
        ),
        ({"type": "TYPE_UNSPECIFIED", "description": "d", "example": 1}, {"description": "d"}),
    ],
)
def test_the_subset_becomes_a_json_schema(schema: object, expected: object) -> None:
    """For models of other providers."""
    assert json.loads(json_schema(json.dumps(schema).encode())) == expected


def test_recorded_schemas_become_what_the_sdk_takes() -> None:
    """Every schema that somebody sent to Google, rewritten, is one of the SDK's model; twice gives the same."""
    n_schemas = 0
    for exchange in recorded("gemini", "enerateContent"):
        body = exchange.json
        schemas = [body.get("generationConfig", {}).get("responseJsonSchema")]
        for tool in body.get("tools", ()):
            schemas += [each.get("parameters_json_schema") for each in tool.get("functionDeclarations", ())]
        for schema in schemas:
            if schema is None:
                continue
            n_schemas += 1
            found = _subset(schema)
            if found is not None:
                types.Schema.model_validate(found)
                assert _subset(found) == found
    assert n_schemas > 50


def test_what_was_rewritten_is_remembered_within_a_bound() -> None:
    """The same answer, and never more than the bound."""
    schemas = SubsetSchemas()

    for n in range(1000):
        text = b'{"type":"string","minLength":%d}' % n
        assert schemas.subset(text) == schemas.subset(text) == text

    assert repr(schemas) == "<SubsetSchemas 256>"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "$defs",
                    "items",
                    "properties",
                    "enum",
                    "const",
                    "nullable",
                    "required",
                ]
            )
            | st.text(max_size=2),
            inner | st.sampled_from(["object", "string", "null", "array", "#", "#/$defs/a", "#/properties/a"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


def test_alternatives_that_are_no_list_stay_as_they_are() -> None:
    """The model's API says what is wrong with them; nothing else is raised for such a schema."""
    assert json.loads(json_schema(b'{"anyOf":false,"nullable":true,"type":"STRING"}')) == {
        "anyOf": False,
        "type": ["string", "null"],
    }


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["type", "anyOf", "allOf", "$ref", "properties", "items", "$defs", "enum"]), _JSON)
)
@pytest.mark.more
def test_any_json_is_rewritten_or_refused(schema: dict[str, Any]) -> None:
    """Nothing else is raised, and what comes out is the subset's."""
    text = json.dumps(schema).encode()
    try:
        found = subset(text)
    except SchemaError:
        return
    json_schema(text)
    assert found is None or b"$ref" not in found or "$ref" in json.dumps(schema)
