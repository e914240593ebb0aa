"""The structs of keys, teams and users: what is taken, what OpenAPI says of it, and what --help says are the same."""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec
import pytest

from velox.accounts import objects
from velox.accounts.fields import FIELDS, OBJECTS, FieldError, read_object
from velox.accounts.model import KINDS
from velox.policy.budgets.budget import BudgetError, parse_budget

_EVERY = [(kind, name) for kind in KINDS for name in FIELDS[kind]]
_SCHEMAS: dict[str, Any] = msgspec.json.schema_components(tuple(OBJECTS.values()), ref_template="{name}")[1]
# Values of each kind of JSON, at and beyond the bounds that fields have.
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 60, 60.0, 1.5, 2**53, "", "x", "team_admin", "high", "urgent", "a b", "a" * 64),
    *("a" * 65, "a" * 128, "a" * 129, "a@b.c", "@", "2027-01-31", "2027-01-31T12:00:00Z", "2027-13-01", "\n", "x\n"),
    *([], ["x"], ["gpt-*", "o1"], ["a b"], ["x"] * 2, [f"m{n}" for n in range(1001)], ["/v1/files*"], ["files"], [1]),
    *([f"t{n}" for n in range(9)], {}, {"a": 1}, [{"usd": 1, "window": "day"}], [{"usd": 1}], [None], "1", ["x\n"]),
    [{"usd": 1, "window": "day"}] * 17,
]
_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def _fits(schema: Any, value: Any) -> bool:
    """Tell whether a value fits a schema, as far as these use JSON Schema."""
    if "$ref" in schema:
        return _fits(_SCHEMAS[schema["$ref"]], value)
    if "anyOf" in schema:
        return any(_fits(each, value) for each in schema["anyOf"])
    if "enum" in schema:
        return isinstance(value, str) and value in schema["enum"]
    kind = _TYPES.get(type(value), "object")
    if isinstance(value, float) and value.is_integer():
        kind = "integer"  # JSON Schema 2020-12, §6.1.1
    if kind != schema["type"] and not (kind == "integer" and schema["type"] == "number"):
        return False
    if isinstance(value, str):
        return _is_text(schema, value)
    if isinstance(value, list):
        least, most = schema.get("minItems", 0), schema["maxItems"]
        return least <= len(value) <= most and all(_fits(schema["items"], each) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties")
        return known is None or (
            set(schema["required"]) <= set(value) <= set(known)
            and all(_fits(known[each], value[each]) for each in value)
        )
    return kind in ("null", "boolean") or schema["minimum"] <= value <= schema["maximum"]


def _is_text(schema: Any, value: str) -> bool:
    if "format" in schema:
        try:
            found = datetime.datetime.fromisoformat(value)
        except ValueError:
            return False
        return len(value) == len("2027-01-31") if schema["format"] == "date" else found.tzinfo is not None
    # `$` is the end of the text in ECMA 262, which JSON Schema takes.
    ecma = schema.get("pattern", "").replace("$(?!\\n)", r"\Z")
    return re.search(ecma, value) is not None and schema.get("minLength", 0) <= len(value) <= schema.get(
        "maxLength", 10**9
    )


def _takes(kind: Any, name: str, value: Any) -> bool:
    try:
        read_object(kind, {name: value})
    except FieldError as exc:
        assert exc.field.partition(".")[0] == name
        assert exc.expected.startswith("expected "), "it says what was expected"
        return False
    return True


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_field_takes_what_its_schema_says_and_nothing_else(kind: Any, name: str) -> None:
    schema = _SCHEMAS[kind.title()]["properties"][name]

    for value in _VALUES:
        assert _takes(kind, name, value) is _fits(schema, value), (value, schema)


@pytest.mark.parametrize(("kind", "name"), _EVERY)
def test_field_is_described(kind: Any, name: str) -> None:
    assert FIELDS[kind][name].about and FIELDS[kind][name].expected


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (
            "window",
            [
                *(
                    "1s",
                    "99999999s",
                    "100000000s",
                    "316224000s",
                    "316224001s",
                    "1234567890s",
                    "0s",
                    "00d",
                    "0000000001s",
                ),
                *("5270400m", "5270401m", "87840h", "87841h", "3660d", "3661d", "000003660d", "0000003660d", "522w"),
                *("523w", "9w", "30d\n", " 30d", "30", "d", "٣d", "month", "Month", "total", "", 0, 1, 316224000),
                *(316224001, 3600.0, 1.5, True, None, []),
            ],
        ),
        (
            "usd",
            [
                *(
                    0,
                    10**9,
                    10**9 + 1,
                    -1,
                    1.5,
                    0.0,
                    True,
                    "0",
                    "1000000000",
                    "1000000000.0",
                    "1000000000.1",
                    "1.",
                    "1\n",
                ),
                *("999999999.999999999", "0999999999.5", "0000000005", "00000000005", ".5", "1.1234567890", "1e3", []),
            ],
        ),
        (
            "tokens",
            [
                *(0, 10**15, 10**15 + 1, -1, 1.5, 1000.0, True, "0", f"{10**15}", f"{10**15 + 1}", f"0{10**14}", "2M"),
                *(f"{10**12}k", f"{10**12 + 1}k", f"{10**9}M", f"{10**9 + 1}M", f"000000{10**9}M", f"0000000{10**9}M"),
                *("1 k", "1K", "M", "5\n", []),
            ],
        ),
        (
            "soft",
            [
                *(
                    0,
                    1,
                    100,
                    101,
                    50.0,
                    True,
                    "1",
                    "001",
                    "0001",
                    "100",
                    "101",
                    "100%",
                    "0",
                    "000%",
                    "%",
                    "50%\n",
                    [],
                    [1],
                ),
                *(["50%", 80], [0], [[1]], list(range(1, 11)), list(range(1, 12)), "", {}),
            ],
        ),
        ("strict", [True, False, "true", "on", "yes", "false", "off", "no", "maybe", 1, ""]),
        ("unpriced", ["refuse", "allow", "no", True, ""]),
        ("zone", ["UTC", "Europe/Berlin", "", 1]),
        ("starts", ["2026-01-31", "2026-01-31T12:00:00Z", "yesterday", "", 1]),
    ],
)
def test_budget_is_described_as_it_is_read(field: str, values: list[Any]) -> None:
    """The schema's patterns are those of the reader, which the file of settings has, too."""
    schema = _SCHEMAS["Budget"]["properties"]
    assert set(objects.Budget.__struct_fields__) == set(schema)
    base = {"window": "day" if field == "zone" else "30d", **({} if field == "tokens" else {"usd": 1})}
    for value in values:
        budget = {**base, field: value}
        try:
            parse_budget(budget)
        except BudgetError:
            is_read = False
        else:
            is_read = True
        assert _fits(schema[field], value) is is_read, value
        assert _takes("key", "budgets", [budget]) is is_read, value
