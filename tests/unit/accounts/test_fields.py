"""The one table of fields: what is checked, what OpenAPI says of it, and what --help says of it are the same."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from velox.accounts.fields import FIELDS, Field
from velox.accounts.model import KINDS

_EVERY = [(kind, name) for kind in KINDS for name in FIELDS[kind]]
# Values of each kind of JSON, at and beyond the bounds that fields have.
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 60, 60.0, 1.5, 2**53, "", "x", "team_admin", "high", "urgent", "a b", "a" * 64),
    *("a" * 65, "a" * 128, "a" * 129, "a@b.c", "@", "2027-01-31", "2027-01-31T12:00:00Z", "2027-13-01", "\n"),
    *([], ["x"], ["gpt-*", "o1"], ["a b"], ["x"] * 2, [f"m{n}" for n in range(1001)], ["/v1/files*"], ["files"], [1]),
    *([f"t{n}" for n in range(9)], {}, {"a": 1}, [{"usd": 1, "window": "day"}], [None], "1"),
]


def _fits(schema: Any, value: Any) -> bool:
    """Tell whether a value fits a schema, as far as fields use JSON Schema; a reference is to an object."""
    if "anyOf" in schema:
        return any(_fits(each, value) for each in schema["anyOf"])
    if "$ref" in schema:
        return isinstance(value, dict)
    if "enum" in schema:
        return any(value is each or (value == each and isinstance(value, str)) for each in schema["enum"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if _type(value) not in types:
        return False
    if isinstance(value, str) and "format" in schema:
        return _is_time(value, schema["format"])
    if isinstance(value, str):
        return re.search(schema.get("pattern", "").removesuffix("$") + r"\Z", value) is not None
    if isinstance(value, list):
        return len(value) <= schema["maxItems"] and all(_fits(schema["items"], each) for each in value)
    return not isinstance(value, int | float) or schema["minimum"] <= value <= schema["maximum"]


def _type(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return "integer"  # JSON Schema 2020-12, §6.1.1
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _is_time(value: str, form: str) -> bool:
    try:
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        return False
    return (len(value) == len("2027-01-31")) if form == "date" else found.tzinfo is not None


def _takes(field: Field, value: Any) -> bool:
    try:
        field.read(value)
    except ValueError as exc:
        assert str(exc), "it says what was expected"
        return False
    return True


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_field_takes_what_its_schema_says_and_nothing_else(kind: Any, name: str) -> None:
    field = FIELDS[kind][name]

    for value in _VALUES:
        assert _takes(field, value) is _fits(field.schema, value), (value, field.schema)


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_field_is_described(kind: Any, name: str) -> None:
    assert FIELDS[kind][name].about
