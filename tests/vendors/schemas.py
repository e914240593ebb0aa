"""Which schemas of tools vendors take: the meta-schema of JSON Schema's draft 2020-12, and the vendors' own rules.

Sources: json-schema.org/draft/2020-12 (meta/applicator, meta/validation, meta/core), and the issues named at each rule.

Knows: schemas. Does not know: requests.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["claude_problem", "draft_problem", "google_problem", "openai_problem"]

_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_SIMPLE: Final = {"array", "boolean", "integer", "null", "number", "object", "string"}
_SCHEMAS: Final = (
    *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "not"),
    *("if", "then", "else", "items", "contentSchema"),
)
_ARRAYS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS: Final = ("properties", "patternProperties", "$defs", "dependentSchemas", "definitions")
_TEXTS: Final = ("title", "description", "format", "pattern", "$ref", "$schema", "$id", "$comment")


def draft_problem(schema: Any) -> str | None:
    """Return where a schema does not fit the meta-schema of draft 2020-12; None: it does."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{schema!r} is not of type 'object', 'boolean'"
    for name, value in schema.items():
        problem = _keyword_problem(name, value)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _keyword_problem(name: str, value: Any) -> str | None:
    if name in _SCHEMAS:
        return draft_problem(value)
    if name in _ARRAYS:
        if not isinstance(value, list) or not value:
            return "a non-empty array is needed"
        return next(filter(None, map(draft_problem, value)), None)
    if name in _OBJECTS:
        if not isinstance(value, dict):
            return f"{value!r} is not of type 'object'"
        return next(filter(None, map(draft_problem, value.values())), None)
    if name in _TEXTS and not isinstance(value, str):
        return f"{value!r} is not of type 'string'"
    if name == "type":
        given = value if isinstance(value, list) else [value]
        if not given or any(each not in _SIMPLE for each in given) or len(set(given)) < len(given):
            return f"{value!r} is not valid under any of the given schemas"
    if name in ("required", "dependentRequired"):
        for names in value.values() if name == "dependentRequired" else [value]:
            if not isinstance(names, list) or any(not isinstance(each, str) for each in names):
                return f"{names!r} is not of type 'array'"
            if len(set(names)) < len(names):
                return f"{names!r} has non-unique elements"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf") and not is_number:
        return f"{value!r} is not of type 'number'"
    is_count = is_number and value >= 0 and value == int(value)
    if re.fullmatch("(min|max)(Length|Items|Properties|Contains)", name) and not is_count:
        return f"{value!r} is not of type 'integer'"
    if name in ("enum", "examples") and not isinstance(value, list):
        return f"{value!r} is not of type 'array'"
    if name in ("uniqueItems", "deprecated", "readOnly", "writeOnly") and not isinstance(value, bool):
        return f"{value!r} is not of type 'boolean'"
    return None


def claude_problem(schema: Any) -> str | None:
    """Return what Anthropic says of the schema of a tool, on every platform."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return ".type: Input should be 'object'"
    if any(name in schema for name in ("anyOf", "oneOf", "allOf")):
        # anthropics/claude-code#4886, and others quote it.
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    if any(_KEY.fullmatch(key) is None for key in schema.get("properties") or ()):
        # aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws#709: at the top only.
        return ".properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    if draft_problem(schema) is not None:
        return ": JSON schema is invalid. It must match JSON Schema draft 2020-12"
    return None


def openai_problem(schema: Any) -> str | None:
    """Return what OpenAI says of the schema of a function that is not strict."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "schema must be a JSON Schema of 'type: \"object\"'"
    if any(name in schema for name in ("oneOf", "anyOf", "allOf", "enum", "not")):
        # chatanywhere/GPT_API_free#403.
        return "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
    if "properties" not in schema:
        return "object schema missing properties"
    return draft_problem(schema)


def google_problem(schema: Any) -> str | None:
    """Return what Google says of `parametersJsonSchema`."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "functionDeclaration parameters schema should be of type OBJECT"
    return draft_problem(schema)
