"""Schemas that OpenAI takes as strict: each object says which properties it has, all of them required, and no others.

It refuses `strict: true` with any other schema. Anthropic's clients ask for their answers so without a word for it, and
may leave properties out.

Source: OpenAI's guide to structured outputs, "Supported schemas".

Knows: which schemas are strict. Does not know: any dialect.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import orjson

from velox.dialects.form import JsonValue
from velox.dialects.losses import Losses

__all__ = ["strict_field", "taken_strict"]

_MOST_SCHEMAS: Final = 256  # remembered: a client asks with the same ones again and again
_LONGEST_REMEMBERED: Final = 64 * 1024  # bytes
_MOST_DEPTH: Final = 100
_FIELDS: Final = {None: b"", True: b',"strict":true', False: b',"strict":false'}
_REFUSED: Final = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
)


def taken_strict(schema: JsonValue, strict: bool | None, losses: Losses, param: str) -> bool | None:
    """Return what `strict` is for this schema: what was asked for, or False where that would be refused.

    param: where it stands. Raises BadRequestError where the route is strict.
    """
    if not strict or (_is_strict_anew(schema) if len(schema) > _LONGEST_REMEMBERED else _is_strict(schema)):
        return strict
    losses.drop("strict", param)
    return False


def strict_field(schema: JsonValue, strict: bool | None, losses: Losses, param: str) -> bytes:
    """Return what taken_strict() says as a field behind others; b"": none."""
    return _FIELDS[taken_strict(schema, strict, losses, param)]


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _is_strict(schema: JsonValue) -> bool:
    return _is_strict_anew(schema)


def _is_strict_anew(schema: JsonValue) -> bool:
    try:
        found = orjson.loads(schema)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("type") == "object" and _is_closed(found, 0)


def _is_closed(schema: Any, depth: int) -> bool:
    """Tell whether all objects of a schema are closed, and it has no keyword that is refused."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH or not _REFUSED.isdisjoint(schema):
        return False
    kind, properties = schema.get("type"), schema.get("properties", {})
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema:
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list) or not properties.keys() <= {name for name in required if type(name) is str}:
            return False
    inner = list(properties.values())
    for name in ("$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            inner += schema[name].values()
    if isinstance(schema.get("anyOf"), list):
        inner += schema["anyOf"]
    if "items" in schema:
        inner.append(schema["items"])
    return all(_is_closed(each, depth + 1) for each in inner)
