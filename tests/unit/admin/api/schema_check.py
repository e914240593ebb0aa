"""A check of values against the part of JSON Schema that the API's description uses; it refuses other keywords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["problems"]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_KNOWN: Final = (
    frozenset(
        ("type", "properties", "required", "additionalProperties", "items", "enum", "const", "pattern", "minimum")
    )
    | frozenset(("maximum", "maxItems", "maxLength", "format", "title", "description", "$ref"))
    | {"anyOf", "oneOf", "allOf", "not", "minLength", "minItems"}
)


def problems(value: Any, schema: Mapping[str, Any], document: Mapping[str, Any], at: str = "$") -> list[str]:
    """Return what is wrong with a value."""
    unknown = set(schema) - _KNOWN
    assert not unknown, f"keywords that this check does not know: {unknown}"
    if "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return problems(value, found, document, at)
    wrong = []
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        fits = any(
            isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names
        )
        if not fits:
            return [f"{at}: {value!r} is not of type {names}"]
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        wrong.append(f"{at}: {value!r} is not {schema['const']!r}")
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        wrong.append(f"{at}: {value!r} does not match")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        wrong.append(f"{at}: {value} is out of bounds")
    for word, is_right in (("anyOf", lambda n: n > 0), ("oneOf", lambda n: n == 1)):
        if word in schema and not is_right(sum(not problems(value, each, document, at) for each in schema[word])):
            wrong.append(f"{at}: {value!r} is none of {word} {schema[word]}")
    for each in schema.get("allOf", ()):
        wrong += problems(value, each, document, at)
    if "not" in schema and not problems(value, schema["not"], document, at):
        wrong.append(f"{at}: {value!r} must not be {schema['not']}")
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        wrong.append(f"{at}: {value!r} is too short")
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        wrong.append(f"{at}: {value!r} is too long")
    if isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        wrong.append(f"{at}: {len(value)} items are too few or too many")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        wrong += [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            if name in properties:
                wrong += problems(each, properties[name], document, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                wrong.append(f"{at}: {name} is not described")
    if isinstance(value, list):
        for n, each in enumerate(value):
            wrong += problems(each, schema.get("items", {}), document, f"{at}[{n}]")
    return wrong
