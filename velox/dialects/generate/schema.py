"""JSON schemas as Google's older field takes them (`parameters`, `responseSchema`), and back.

    subset()       a JSON schema -> the subset
    json_schema()  the subset -> a JSON schema

The subset has no references and no `const`, knows one type for a value and writes null as `nullable`. What can't be
said in it is left out: the schema then allows more than it did. No nesting is added.

Knows: the keywords of both. Does not know: which field a schema is for (write_request.py), or which model takes which.
Source: the REST reference of v1beta (Schema); google-genai's _transformers.py.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

import msgspec

from velox.dialects.canonical.model import JsonValue

__all__ = ["Inlining", "SchemaError", "SubsetSchemas", "json_schema", "subset"]

# A schema's JSON object, decoded: it has no other shape than what JSON allows.
_Schema: TypeAlias = dict[str, Any]

# Inlined references can grow a schema without bound, and each node costs tokens of the prompt.
_MOST_NODES: Final = 5000
_MOST_DEPTH: Final = 64
_MOST_REMEMBERED: Final = 256
_LONGEST_REMEMBERED: Final = 64 * 1024  # bytes, as it came and as it was rewritten
# Of all schemas of one request: parts that are there more often than they were written.
_MOST_INLINED: Final = 10_000
_BYTES_A_NODE: Final = 16  # at least, where it is written
_COPIES_A_NODE: Final = 64  # of properties, which take as long
_KEPT: Final = (
    "title",
    "description",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
)
_FORMATS: Final = {"string": ("enum", "date-time"), "number": ("float", "double"), "integer": ("int32", "int64")}
_NUMBERS: Final = frozenset({"minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"})
_NULL: Final = {"type": "null"}


class SchemaError(ValueError):
    """A schema that is no object, or nests or grows over a bound."""


class Inlining:
    """What references of one request's schemas may add: a few hundred bytes of them can stand for millions of parts."""

    __slots__ = ("_n_left",)

    def __init__(self) -> None:
        self._n_left = _MOST_INLINED

    def take(self, n: int) -> None:
        """Take so many parts. Raises SchemaError: there are not so many left."""
        self._n_left -= n
        if self._n_left < 0:
            raise SchemaError(f"the schemas of a request have over {_MOST_INLINED} parts more, without $ref")


class SubsetSchemas:
    """Remembers what subset() made of schemas: agents send the same ones in every request.

    Bounded in number and in bytes; the oldest goes.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: Final[dict[bytes, JsonValue | None]] = {}

    def __repr__(self) -> str:
        return f"<SubsetSchemas {len(self._found)}>"

    def subset(self, schema: JsonValue, inlining: Inlining | None = None) -> JsonValue | None:
        """Return subset() of a schema. inlining: of its request; what is remembered takes none. Raises SchemaError."""
        if len(schema) > _LONGEST_REMEMBERED:
            return subset(schema, inlining)
        digest = hashlib.sha256(schema).digest()
        if digest in self._found:
            return self._found[digest]
        found = subset(schema, inlining)
        if found is not None and len(found) > _LONGEST_REMEMBERED:
            return found
        if len(self._found) >= _MOST_REMEMBERED:
            del self._found[next(iter(self._found))]
        self._found[digest] = found
        return found


def subset(schema: JsonValue, inlining: Inlining | None = None) -> JsonValue | None:
    """Rewrite a JSON schema. None: an object without properties, which Google wants left out. Raises SchemaError.

    inlining: of its request; None: its own.
    """
    root = _decoded(schema)
    rewriting = _Subset(root)
    found = rewriting.rewrite(root, (), 0)
    (inlining or Inlining()).take(max(0, rewriting.n_nodes - len(schema) // _BYTES_A_NODE))
    if found.get("type") == "object" and not found.get("properties"):
        return None
    return msgspec.json.encode(found)


def json_schema(schema: JsonValue) -> JsonValue:
    """Rewrite a schema of Google's subset as a JSON schema. Raises SchemaError."""
    return msgspec.json.encode(_standard(_decoded(schema), 0))


def _decoded(schema: JsonValue) -> _Schema:
    try:
        found = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SchemaError("the schema is no JSON, or nests too deeply") from exc
    if not isinstance(found, dict):
        raise SchemaError("a schema must be an object")
    return found


class _Subset:
    """Rewrites one schema. Its references are those into `root`."""

    def __init__(self, root: _Schema) -> None:
        self._root: Final = root
        self.n_nodes = 0

    def _count(self, n: int = 1) -> None:
        self.n_nodes += n
        if self.n_nodes > _MOST_NODES:
            raise _too_large()

    def rewrite(self, schema: object, seen: tuple[str, ...], depth: int) -> _Schema:
        """Return the schema in the subset. seen: the references on the way here."""
        self._count()
        if depth > _MOST_DEPTH:
            raise _too_large()
        if not isinstance(schema, dict):
            return {"type": "string"}  # `true`: anything
        merged, seen = self._merged(schema, seen)
        if merged is None:
            return {"type": "object"}  # a reference into itself
        found: _Schema = {}
        types, nullable = _types(merged)
        members = [each for key in ("anyOf", "oneOf") for each in _list(merged.get(key))]
        if len(types) > 1 and not members:
            members = [{**merged, "type": one, "title": None, "description": None} for one in types]
        if any(each == _NULL for each in members):
            nullable = True
            members = [each for each in members if each != _NULL]
        if len(members) == 1:
            found = self.rewrite({**_without_members(merged), **_dict(members[0])}, seen, depth + 1)
        elif members:
            found["anyOf"] = [self.rewrite(each, seen, depth + 1) for each in members]
        else:
            self._plain(merged, types[0] if types else _inferred(merged), found, seen, depth)
        for key in ("title", "description"):
            if isinstance(merged.get(key), str):
                found[key] = merged[key]
        if nullable:
            found["nullable"] = True
        return found

    def _plain(self, schema: _Schema, kind: str, found: _Schema, seen: tuple[str, ...], depth: int) -> None:
        """Write a schema of one type."""
        found["type"] = kind
        for key in _KEPT:
            if key in schema and schema[key] is not None:
                found[key] = schema[key]
        form = schema.get("format")
        if isinstance(form, str) and form in _FORMATS.get(kind, ()):
            found["format"] = form
        values = _list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        names = [value for value in values if isinstance(value, str) and value]
        if kind == "string" and names:
            found["enum"] = names
            found.pop("pattern", None)
        if kind == "array":
            found["items"] = self._items(schema, seen, depth)
        properties = _dict(schema.get("properties")) if kind == "object" else {}
        if properties:
            found["properties"] = {name: self.rewrite(each, seen, depth + 1) for name, each in properties.items()}
            names = [name for name in _list(schema.get("required")) if isinstance(name, str)]
            required = [name for name in names if name in properties]
            if required:
                found["required"] = required

    def _items(self, schema: _Schema, seen: tuple[str, ...], depth: int) -> _Schema:
        """Return the schema of an array's items: those of a tuple become alternatives."""
        items = schema.get("items")
        several = _list(schema.get("prefixItems")) or _list(items)
        if not several:
            return self.rewrite(items, seen, depth + 1)
        unlike = list({msgspec.json.encode(each): each for each in several}.values())
        return self.rewrite(unlike[0] if len(unlike) == 1 else {"anyOf": unlike}, seen, depth + 1)

    def _merged(self, schema: _Schema, seen: tuple[str, ...]) -> tuple[_Schema | None, tuple[str, ...]]:
        """Return a schema with its reference and its allOf put into it; None: it refers to itself."""
        for _ in range(_MOST_DEPTH):
            if "$ref" in schema:
                reference = schema["$ref"]
                if not isinstance(reference, str) or reference in seen:
                    return None, seen
                seen = (*seen, reference)
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                schema = {**self._referred(reference), **rest}
            elif "allOf" in schema:
                whole = {key: value for key, value in schema.items() if key != "allOf"}
                before = seen
                for each in _list(schema["allOf"]):
                    # Parts that are put into one are work, too: they can double with each reference.
                    self._count(1 + len(_dict(whole.get("properties"))) // _COPIES_A_NODE)
                    part, more = self._merged(_dict(each), before)
                    if part is None:
                        return None, seen
                    seen = (*seen, *more[len(before) :])
                    whole = _both(whole, part)
                schema = whole
            else:
                return schema, seen
        return None, seen

    def _referred(self, reference: str) -> _Schema:
        """Return what a reference means; nothing, where it means nothing here."""
        found: object = self._root
        for name in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ("",):
            found = _dict(found).get(name.replace("~1", "/").replace("~0", "~"))
        return _dict(found)


def _too_large() -> SchemaError:
    return SchemaError(f"a schema has over {_MOST_NODES} parts, or nests over {_MOST_DEPTH} levels, without $ref")


def _both(one: _Schema, other: _Schema) -> _Schema:
    """Return what both schemas say."""
    both = {**other, **one}
    if "properties" in one and "properties" in other:
        both["properties"] = {**_dict(other["properties"]), **_dict(one["properties"])}
    if "required" in one and "required" in other:
        both["required"] = [*_list(one["required"]), *_list(other["required"])]
    return both


def _types(schema: _Schema) -> tuple[list[str], bool]:
    """Return the types but null, and whether null is one."""
    given = schema.get("type")
    types = [each.lower() for each in ([given] if isinstance(given, str) else _list(given)) if isinstance(each, str)]
    nullable = "null" in types or schema.get("nullable") is True or None in _list(schema.get("enum"))
    found = [each for each in types if each != "null"]
    return (found or ["string"] if types else found), nullable


def _inferred(schema: _Schema) -> str:
    """Return the type of a schema that names none."""
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    values = [*_list(schema.get("enum")), schema.get("const")]
    for kind, name in ((bool, "boolean"), (float, "number"), (int, "integer")):
        if any(isinstance(value, kind) for value in values):
            return name
    return "string"


def _without_members(schema: _Schema) -> _Schema:
    return {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "type", "nullable")}


def _standard(schema: _Schema, depth: int) -> _Schema:
    """Rewrite a schema of the subset; its names may be in either case."""
    if depth > _MOST_DEPTH:
        raise SchemaError(f"a schema nests over {_MOST_DEPTH} levels")
    found: _Schema = {}
    for name, value in schema.items():
        key = _camel(name)
        if value is None or key in ("nullable", "propertyOrdering", "example"):
            continue
        if key == "type" and isinstance(value, str):
            if value.upper() != "TYPE_UNSPECIFIED":
                found[key] = value.lower()
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found[key] = _standard(value, depth + 1)
        elif key == "anyOf" and isinstance(value, list):
            found[key] = [_standard(_dict(each), depth + 1) for each in value]
        elif key in ("properties", "defs", "$defs") and isinstance(value, dict):
            inner = {each: _standard(_dict(one), depth + 1) for each, one in value.items()}
            found["$defs" if key == "defs" else key] = inner
        elif key in ("ref", "$ref"):
            found["$ref"] = value
        elif key in _NUMBERS and isinstance(value, str) and value.isdecimal():
            found[key] = int(value)  # proto3 writes 64 bits as a string
        elif key != "format" or value not in ("enum", *_FORMATS["number"], *_FORMATS["integer"]):
            found[key] = value
    if schema.get("nullable") is True:
        return _nullable(found)
    return found


def _nullable(schema: _Schema) -> _Schema:
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], _NULL]}
    if "enum" in schema:
        schema["enum"] = [*_list(schema["enum"]), None]
    if "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


def _camel(name: str) -> str:
    if "_" not in name:
        return name
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> _Schema:
    return value if isinstance(value, dict) else {}
