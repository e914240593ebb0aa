"""JSON schemas of older drafts, and of nearly none, as draft 2020-12 has them: what says the same, and no more.

    exclusiveMinimum: true beside minimum: 1     exclusiveMinimum: 1
    items: [A, B], additionalItems: C            prefixItems: [A, B], items: C
    required: true inside of a property          its name among `required` of the object
    dependencies                                 dependentRequired, dependentSchemas
    type: "any"                                  no type
    type: "STRING", "dict", "float"              "string", "object", "number"
    description: null                            none

Servers of MCP, and tools that were made from OpenAPI or by hand, send all of them. Anthropic answers "JSON schema is
invalid. It must match JSON Schema draft 2020-12", OpenAI "True is not of type 'number'".

Source: json-schema.org, the release notes of the drafts 4 to 2020-12; the draft's own meta-schema.

Knows: keywords and what they mean. Does not know: which target takes what (tool_fit.py).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

__all__ = ["MOST_DEPTH", "Schema", "SchemaTooDeepError", "current", "fault"]

# A schema's JSON, decoded.
Schema: TypeAlias = dict[str, Any]

MOST_DEPTH: Final = 100
# Where schemas stand: one, a list of them, or some by name.
_ONE: Final = frozenset(
    {
        *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains"),
        *("not", "if", "then", "else", "items", "additionalItems", "contentSchema"),
    }
)
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Names of types that other languages have for them.
_SAME_TYPES: Final = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "none": "null",
    "str": "string",
    "tuple": "array",
}
_ANY: Final = "any"
_STRINGS: Final = frozenset({"title", "description", "format", "pattern", "$ref", "$schema", "$id", "$comment"})
_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_COUNTS: Final = frozenset(
    {
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    }
)
_FLAGS: Final = frozenset({"uniqueItems", "deprecated", "readOnly", "writeOnly"})
# What null says nothing in.
_NEVER_NULL: Final = (
    _ONE | _LISTS | _MAPS | _STRINGS | _NUMBERS | _COUNTS | _FLAGS | {"type", "required", "enum", "examples"}
)
# Its drafts 3 and 4: what is rewritten is none of them any more.
_OLD: Final = ("http://json-schema.org/draft-04/schema", "http://json-schema.org/draft-03/schema")


class SchemaTooDeepError(ValueError):
    """A schema that nests too deeply."""


def current(schema: Schema) -> Schema:
    """Return a schema as draft 2020-12 has it. What can't be said exactly stays. Raises SchemaTooDeepError."""
    found: Schema = _current(schema, 0)
    return found


def fault(schema: Schema) -> str:
    """Return what is no schema of draft 2020-12, with its place: "properties.a.type"; "" for nothing."""
    return _fault(schema, "", 0)


def _current(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth > MOST_DEPTH:
        raise SchemaTooDeepError(f"the schema nests over {MOST_DEPTH} levels")
    found: Schema = {}
    for name, value in schema.items():
        if value is None and name in _NEVER_NULL:
            continue
        if isinstance(value, dict):
            if name in _MAPS or name == "dependencies":
                value = {key: _current(each, depth + 1) for key, each in value.items()}
            elif name in _ONE:
                value = _current(value, depth + 1)
        elif isinstance(value, list) and (name in _LISTS or name == "items"):
            value = [_current(each, depth + 1) for each in value]
        found[name] = value
    if "type" in found:
        _set_type(found)
    _set_bounds(found)
    _set_items(found)
    _set_required(found, schema.get("properties"))
    _set_dependencies(found)
    if str(found.get("$schema", "")).startswith(_OLD):
        del found["$schema"]
    return found


def _set_type(schema: Schema) -> None:
    given = schema["type"]
    types = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in types):
        return
    if all(each in _TYPES for each in types) and len(set(types)) == len(types):
        return
    words = [each if each in _TYPES else each.lower() for each in types]
    words = list(dict.fromkeys(_SAME_TYPES.get(each, each) for each in words))
    if _ANY in words:
        del schema["type"]
    else:
        schema["type"] = words if isinstance(given, list) else words[0]


def _set_bounds(schema: Schema) -> None:
    for name, bound in _BOUNDS.items():
        value = schema.get(name)
        if not isinstance(value, bool):
            continue
        del schema[name]
        if value and _is_number(schema.get(bound)):
            schema[name] = schema.pop(bound)


def _set_items(schema: Schema) -> None:
    items, others = schema.get("items"), schema.pop("additionalItems", None)
    if isinstance(items, list):  # beside one schema for all, that of the others says nothing
        del schema["items"]
        if items:
            schema.setdefault("prefixItems", items)
        if others is not None:
            schema["items"] = others


def _set_required(schema: Schema, given: object) -> None:
    """Put what properties say of themselves into the list of the object. given: its properties, as they came."""
    required = schema.get("required")
    if isinstance(required, bool):
        del schema["required"]  # the object's own, which stands in the list of another one
        required = None
    properties = given if isinstance(given, dict) else {}
    more = [name for name, each in properties.items() if isinstance(each, dict) and each.get("required") is True]
    if required is None or (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        names = list(dict.fromkeys([*(required or ()), *more]))
        if names != (required or []):
            schema["required"] = names


def _set_dependencies(schema: Schema) -> None:
    dependencies = schema.get("dependencies")
    if not isinstance(dependencies, dict):
        return
    del schema["dependencies"]
    names = {key: [each] if isinstance(each, str) else each for key, each in dependencies.items()}
    lists = {key: each for key, each in names.items() if isinstance(each, list)}
    others = {key: each for key, each in names.items() if isinstance(each, dict | bool)}
    if lists:
        schema.setdefault("dependentRequired", lists)
    if others:
        schema.setdefault("dependentSchemas", others)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- faults -------------------------------------------------------------------------------------------


def _fault(schema: Any, path: str, depth: int) -> str:
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, dict):
        return f"{path or 'it'} is no schema"
    if depth > MOST_DEPTH:
        return f"{path} nests over {MOST_DEPTH} levels"
    for name, value in schema.items():
        place = f"{path}.{name}" if path else name
        wrong = _wrong(name, value)
        if wrong:
            return f"{place} {wrong}"
        inner: dict[str, Any] = {}
        if name in _MAPS:
            inner = {f"{place}.{key}": each for key, each in value.items()}
        elif name in _LISTS:
            inner = {f"{place}[{n}]": each for n, each in enumerate(value)}
        elif name in _ONE:
            inner = {place: value}
        for where, each in inner.items():
            if found := _fault(each, where, depth + 1):
                return found
    return ""


def _wrong(name: str, value: Any) -> str:
    """Return what is wrong with the value of a keyword, as far as it is no schema itself."""
    if name == "type":
        words = value if isinstance(value, list) else [value]
        is_good = bool(words) and all(isinstance(each, str) and each in _TYPES for each in words)
        return "" if is_good else f"is none of {', '.join(sorted(_TYPES))}"
    if name in _STRINGS:
        return "" if isinstance(value, str) else "is no text"
    if name in _NUMBERS:
        return "" if _is_number(value) and (name != "multipleOf" or value > 0) else "is no number"
    if name in _COUNTS:
        is_good = _is_number(value) and value >= 0 and value == int(value)
        return "" if is_good else "is no number of things"
    if name in _FLAGS:
        return "" if isinstance(value, bool) else "is neither true nor false"
    if name in _MAPS:
        return "" if isinstance(value, dict) else "is no object"
    if name in _LISTS:
        return "" if isinstance(value, list) and value else "is no list of schemas"
    if name == "required":
        is_good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "" if is_good and len(set(value)) == len(value) else "is no list of names"
    if name in ("enum", "examples"):
        return "" if isinstance(value, list) else "is no list"
    if name == "dependentRequired":
        is_good = isinstance(value, dict) and all(
            isinstance(names, list) and all(isinstance(each, str) for each in names) for names in value.values()
        )
        return "" if is_good else "is no object of lists of names"
    return ""
