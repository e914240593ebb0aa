"""A value that fits a JSON Schema: what the simulator calls tools with, and its structured outputs.

Knows: the keywords that OpenAI takes in strict mode, and the usual others. Does not know: what asks for a value.
A schema that nothing fits, or that has no end, gets a value that fits as far as it can.
"""

from __future__ import annotations

from typing import Final, TypeAlias

__all__ = ["sample"]

_Schema: TypeAlias = dict[str, object]

_DEEPEST: Final = 24
_MOST_ITEMS: Final = 64
_LONGEST: Final = 4096
_WORD: Final = "simulated"
_FORMATS: Final = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def sample(schema: object) -> object:
    """Return a value that fits a schema."""
    return _value(schema, schema, 0)


def _value(schema: object, root: object, depth: int) -> object:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None if depth > _DEEPEST else _WORD
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list) and options:
            # Where a schema contains itself, the way out is often null.
            return _value(options[-1] if depth > _DEEPEST // 2 else options[0], root, depth + 1)
    match _kind(schema):
        case "object":
            return _object(schema, root, depth)
        case "array":
            return _array(schema, root, depth)
        case "integer" | "number" as kind:
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _text(schema)


def _resolved(schema: _Schema, root: object) -> _Schema:
    """Return a schema with what it refers to, and what it is all of."""
    for _ in range(_DEEPEST):
        target = schema.get("$ref")
        if not isinstance(target, str) or not target.startswith("#"):
            break
        found = root
        for word in target.removeprefix("#").strip("/").split("/"):
            if word:
                found = found.get(word.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        others = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**(found if isinstance(found, dict) else {}), **others}
    parts = schema.get("allOf")
    if isinstance(parts, list):
        merged: _Schema = {}
        for part in (*(part for part in parts if isinstance(part, dict)), schema):
            known = merged.get("properties")
            merged |= {name: value for name, value in part.items() if name != "allOf"}
            if isinstance(known, dict) and isinstance(part.get("properties"), dict):
                merged["properties"] = {**known, **part["properties"]}
        return merged
    return schema


def _kind(schema: _Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _object(schema: _Schema, root: object, depth: int) -> _Schema:
    properties = schema.get("properties")
    required = schema.get("required")
    fields = dict(properties) if isinstance(properties, dict) else {}
    for name in required if isinstance(required, list) else ():
        fields.setdefault(str(name), {})
    if depth > _DEEPEST // 2 and isinstance(required, list):
        fields = {name: fields[name] for name in map(str, required)}
    return {str(name): _value(each, root, depth + 1) for name, each in fields.items()}


def _array(schema: _Schema, root: object, depth: int) -> list[object]:
    least = schema.get("minItems")
    fixed = schema.get("prefixItems")
    items = [_value(each, root, depth + 1) for each in fixed] if isinstance(fixed, list) else []
    n_items = least if isinstance(least, int) else 0 if depth > _DEEPEST // 2 or schema.get("maxItems") == 0 else 1
    while len(items) < min(n_items, _MOST_ITEMS):
        items.append(_value(schema.get("items", {}), root, depth + 1))
    return items


def _number(schema: _Schema, *, whole: bool) -> float:
    least, most = (_bound(schema, word, f"exclusive{word.capitalize()}") for word in ("minimum", "maximum"))
    step = schema.get("multipleOf")
    unit: float = step if isinstance(step, int | float) and step > 0 else 1
    value: float = unit
    if least is not None:
        value = unit * (least // unit)
        while value < least or value == schema.get("exclusiveMinimum"):
            value += unit
    if most is not None and (value > most or value == schema.get("exclusiveMaximum")):
        middle = (least + most) / 2 if least is not None else most - unit
        value = middle if least is not None and not whole else unit * (most // unit)
        if value == schema.get("exclusiveMaximum"):
            value -= unit
    return int(value) if whole or value == int(value) else value


def _bound(schema: _Schema, *words: str) -> float | None:
    return next((value for word in words if isinstance(value := schema.get(word), int | float)), None)


def _text(schema: _Schema) -> str:
    text = _FORMATS.get(str(schema.get("format")), _WORD)
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        text = (text * (min(least, _LONGEST) // len(text) + 1))[:least]
    return text[:most] if isinstance(most, int) and most >= 0 else text
