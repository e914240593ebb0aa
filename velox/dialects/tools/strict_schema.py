"""Schemas that OpenAI takes as strict: each object says which properties it has, all of them required, and no others.

It refuses `strict: true` with any other schema. Anthropic's clients ask for their answers so without a word for it, and
may leave properties out. Nothing may stand beside a `$ref` either: a description of it, as Pydantic writes one, goes
around it, where it says the same.

Source: OpenAI's guide to structured outputs, "Supported schemas".

Knows: which schemas are strict. Does not know: any dialect.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import orjson

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import JsonValue

__all__ = ["strict_field", "taken_strict"]

_MOST_SCHEMAS: Final = 256  # remembered: a client asks with the same ones again and again
_LONGEST_REMEMBERED: Final = 64 * 1024  # bytes
_MOST_DEPTH: Final = 100
_FIELDS: Final = {None: b"", True: b',"strict":true', False: b',"strict":false'}
_REFUSED: Final = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
)

# They say nothing of what is valid.
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples"})


def taken_strict(
    schema: JsonValue, strict: bool | None, dropped: DroppedFields, param: str
) -> tuple[JsonValue, bool | None]:
    """Return the schema and what `strict` is for it: what was asked for, or False where that would be refused.

    param: where it stands. Raises BadRequestError where the route is strict.
    """
    if not strict:
        return schema, strict
    taken = _taken_anew(schema) if len(schema) > _LONGEST_REMEMBERED else _taken(schema)
    if taken is not None:
        return taken, True
    dropped.drop("strict", param)
    return schema, False


def strict_field(strict: bool | None) -> bytes:
    """Return `strict` as a field behind others; b"": none."""
    return _FIELDS[strict]


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _taken(schema: JsonValue) -> JsonValue | None:
    return _taken_anew(schema)


def _taken_anew(schema: JsonValue) -> JsonValue | None:
    """Return a schema as it is taken as strict, None: it is not."""
    try:
        found = orjson.loads(schema)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("type") != "object":
        return None
    closed = _closed(found, 0)
    if closed is None:
        return None
    try:
        return schema if closed == found else orjson.dumps(closed)
    except (RecursionError, orjson.JSONEncodeError):
        return None  # a value in it nests too deeply to be written anew


def _closed(schema: Any, depth: int) -> dict[str, Any] | None:
    """Return a schema with nothing beside a `$ref`. None: not all objects are closed, or a keyword is refused."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH or not _REFUSED.isdisjoint(schema):
        return None
    if "$ref" in schema and len(schema) > 1:
        said = {name: value for name, value in schema.items() if name != "$ref"}
        return {"anyOf": [{"$ref": schema["$ref"]}], **said} if said.keys() <= _ANNOTATIONS else None
    kind, properties = schema.get("type"), schema.get("properties", {})
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema:
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return None
        if not isinstance(required, list) or not properties.keys() <= {name for name in required if type(name) is str}:
            return None
    closed = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _closed(each, depth + 1) for key, each in schema[name].items()}
            if None in closed[name].values():
                return None
    if isinstance(schema.get("anyOf"), list):
        closed["anyOf"] = [_closed(each, depth + 1) for each in schema["anyOf"]]
        if None in closed["anyOf"]:
            return None
    if "items" in schema:
        closed["items"] = _closed(schema["items"], depth + 1)
        if closed["items"] is None:
            return None
    return closed
