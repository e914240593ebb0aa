"""Schemas as Claude's structured output takes them: of its answer, and of the arguments of strict tools.

Every object must say `additionalProperties: false`; `oneOf` is `anyOf`, and bounds (minimum, maxLength, pattern, ...)
are refused: they go into the description, where the model reads them. A schema that fits is passed as it came.

Source: transform_schema() of the anthropic SDK, which does the same for its users.

Knows: which keywords are taken. Does not know: any request.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import orjson

from velox.dialects.form import JsonValue
from velox.dialects.losses import BadRequestError

__all__ = ["fitted_schema"]

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
# Of the schema itself: they say nothing of the answer.
_IGNORED: Final = frozenset({"$schema", "$id", "$comment"})


def fitted_schema(schema: JsonValue, param: str = "response_format") -> JsonValue:
    """Return the schema as it is taken. param: where it stands. Raises BadRequestError."""
    return _fitted_anew(schema, param) if len(schema) > _LONGEST_REMEMBERED else _remembered(schema, param)


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
    return schema if fitted == found else orjson.dumps(fitted)


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
        told = schema.get("description")
        fitted["description"] = f"{told}\n\n{rules}" if isinstance(told, str) else rules
    return fitted
