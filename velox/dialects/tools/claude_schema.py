"""Schemas as Claude's structured output takes them: of its answer, and of the arguments of strict tools.

Every object must say `additionalProperties: false`; `oneOf` is `anyOf`, and bounds (minimum, maxLength, pattern, ...)
are refused: they go into the description, where the model reads them. A schema that fits is passed as it came.

A request may have so many strict tools, and in its schemas so many parameters that are unions or optional. Over a limit
it gets a 400, so its tools go without `strict` then.

Source: transform_schema() of the anthropic SDK, which does the same for its users; Anthropic's guide to structured
outputs, "Schema complexity limits".

Knows: which keywords are taken, and the limits. Does not know: any request.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import orjson

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import JsonValue

__all__ = ["are_strict_taken", "fitted_schema"]

_MOST_SCHEMAS: Final = 256  # remembered: a client asks with the same ones again and again
_LONGEST_REMEMBERED: Final = 64 * 1024  # bytes
_MOST_DEPTH: Final = 100
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
# Taken as they are, wherever they stand.
_TAKEN: Final = frozenset({"type", "enum", "const", "title", "description", "required", "$ref", "default", "nullable"})
_OF_SCHEMAS: Final = frozenset({"properties", "$defs", "definitions"})
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
# Of one request.
_MOST_STRICT_TOOLS: Final = 20
_MOST_UNIONS: Final = 16
_MOST_OPTIONAL: Final = 24
# Of the schema itself: they say nothing of the answer.
_IGNORED: Final = frozenset({"$schema", "$id", "$comment"})


def fitted_schema(schema: JsonValue, param: str = "response_format") -> JsonValue:
    """Return the schema as it is taken. param: where it stands. Raises BadRequestError."""
    return _fitted_anew(schema, param) if len(schema) > _LONGEST_REMEMBERED else _remembered(schema, param)


def are_strict_taken(tools: Sequence[JsonValue], answer: JsonValue | None = None) -> bool:
    """Tell whether a request may have all of these strict tools. answer: the schema of its answer."""
    if len(tools) > _MOST_STRICT_TOOLS:
        return False
    schemas = tools if answer is None else [*tools, answer]
    counts = [_counted_anew(each) if len(each) > _LONGEST_REMEMBERED else _counted(each) for each in schemas]
    unions, optional = sum(each for each, _ in counts), sum(each for _, each in counts)
    return unions <= _MOST_UNIONS and optional <= _MOST_OPTIONAL


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _counted(schema: JsonValue) -> tuple[int, int]:
    return _counted_anew(schema)


def _counted_anew(schema: JsonValue) -> tuple[int, int]:
    """Return how many unions a schema has, and how many properties that are not required. It may be anything."""
    try:
        left = [orjson.loads(schema)]
    except ValueError:
        return 0, 0
    unions = optional = 0
    while left:
        each = left.pop()
        if not isinstance(each, dict):
            continue
        unions += isinstance(each.get("type"), list) or "anyOf" in each or "oneOf" in each
        properties, required = each.get("properties"), each.get("required")
        if isinstance(properties, dict):
            optional += sum(not isinstance(required, list) or name not in required for name in properties)
        for name in _OF_SCHEMAS:
            if isinstance(each.get(name), dict):
                left += each[name].values()
        for name in _LISTS:
            if isinstance(each.get(name), list):
                left += each[name]
        left.append(each.get("items"))
    return unions, optional


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _remembered(schema: JsonValue, param: str) -> JsonValue:
    return _fitted_anew(schema, param)


def _fitted_anew(schema: JsonValue, param: str) -> JsonValue:
    try:
        found: object = orjson.loads(schema)
    except ValueError:
        raise BadRequestError("the schema can't be read", param) from None
    if not isinstance(found, dict):
        raise BadRequestError("the schema must be an object", param)
    fitted = _fitted(found, param, 0)
    try:
        return schema if fitted == found else orjson.dumps(fitted)
    except (RecursionError, orjson.JSONEncodeError):
        raise BadRequestError("a value in the schema nests too deeply", param) from None


def _fitted(schema: Any, param: str, depth: int) -> Any:
    if not isinstance(schema, dict):
        return {} if schema is True else schema
    if depth > _MOST_DEPTH:
        raise BadRequestError(f"the schema is nested over {_MOST_DEPTH} deep", param)
    fitted: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _TAKEN:
            fitted[name] = value
        elif name in _OF_SCHEMAS and isinstance(value, dict):
            fitted[name] = {key: _fitted(each, param, depth + 1) for key, each in value.items()}
        elif name in _LISTS and isinstance(value, list):
            fitted[_LISTS[name]] = [_fitted(each, param, depth + 1) for each in value]
        elif name == "items" and isinstance(value, dict):
            fitted[name] = _fitted(value, param, depth + 1)
        elif (name == "format" and isinstance(value, str) and value in _FORMATS) or (
            name == "minItems" and value in (0, 1)
        ):
            fitted[name] = value
        elif name not in _IGNORED and name != "additionalProperties":
            said[name] = value
    kind = schema.get("type")
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema:
        fitted["additionalProperties"] = False
    if said:
        rules = "{" + ", ".join(f"{name}: {orjson.dumps(value).decode()}" for name, value in said.items()) + "}"
        description = schema.get("description")
        fitted["description"] = f"{description}\n\n{rules}" if isinstance(description, str) else rules
    return fitted
