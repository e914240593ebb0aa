"""The tools of a request as a target takes them, where it refuses what JSON Schema allows; and their calls' arguments.

    older drafts               draft 2020-12, for every target (schema_drafts.py)
    "top.anyOf", "top.oneOf", "top.allOf", "top.ref"
                               one object: the properties of all branches, and `required` that is so in all of them;
                               what that does not say stands as a sentence in the tool's description
    "top.enum", "top.not", ... the sentence alone
    "properties.keys"          other names, which are restored in the arguments of calls
    "malformed"                what is no schema then is a 400 that names the tool

Which of these a target refuses is a fact of its models (ModelFacts.schemas_refuse). A schema that fits stays as it
stood, byte for byte.

Anthropic, on every platform: "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the
top level", and "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", which is checked at the top only
(aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws#709, decocms/studio#6874).
OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
(chatanywhere/GPT_API_free#403).

Knows: how a schema is made to fit. Does not know: any target, or how a dialect writes a tool.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import orjson

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import JsonValue, Request, Tool, ToolUse
from velox.dialects.canonical.names import FittedNames
from velox.dialects.json_text.text import is_blank, joined, quoted
from velox.dialects.tools.argument_keys import with_keys
from velox.dialects.tools.schema_drafts import MOST_DEPTH, Schema, SchemaTooDeepError, current, fault

__all__ = ["FittedSchema", "ToolKeys", "as_taken", "fit_tools", "fitted_parameters"]

# By the client's name of a tool: the names of its properties there -> the client's.
ToolKeys: TypeAlias = dict[str, Mapping[str, str]]

_MOST_SCHEMAS: Final = 256  # remembered: a client asks with the same ones again and again
_LONGEST_REMEMBERED: Final = 16 * 1024  # bytes: those of agents have a few thousand; all that are kept 8 MiB
_MOST_PARTS: Final = 2000  # of one schema's top, once it is merged: references can double it again and again
_MOST_PARTS_OF_ALL: Final = 20_000  # of all tools of a request: 30 ms
_MOST_LARGE: Final = 1024 * 1024  # bytes of schemas that are not remembered, which are gone through in each request
_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]+")
_MOST_KEY: Final = 64
_KEYS: Final = "properties.keys"
_MALFORMED: Final = "malformed"
_TOP: Final = "top."
_MERGED: Final = ("$ref", "allOf", "anyOf", "oneOf")
# What speaks of the same object as the schema that it stands in.
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "$comment", "$id", "$schema"})
# What has the properties for keys.
_BY_KEY: Final = frozenset({"properties", "dependentSchemas", "dependentRequired", "default"})
_TO_PROPERTIES: Final = "#/properties/"
_NO_KEYS: Final[Mapping[str, str]] = MappingProxyType({})
_NOTE: Final = "The arguments must also fit this JSON schema: "


class FittedSchema(NamedTuple):
    """A schema as it is taken. note: what it does not say any more. keys: its names of properties -> the client's.

    n_parts: what its top was made of, references as often as they stand there.
    """

    schema: JsonValue
    note: str = ""
    keys: Mapping[str, str] = _NO_KEYS
    fault: str = ""
    n_parts: int = 0


def fit_tools(request: Request, refused: tuple[str, ...]) -> ToolKeys:
    """Make the tools of a request fit, and the calls in its history; return the names to restore in the answer.

    refused: ModelFacts.schemas_refuse. The schema of the answer is put into the current draft. Raises BadRequestError.
    """
    keys: ToolKeys = {}
    n_parts = n_large = 0
    for tool in request.tools:
        schema = tool.parameters
        if schema is not None:
            # As _changed(): it is asked for each tool of each request.
            if len(schema) <= _LONGEST_REMEMBERED:
                fitted = _remembered(schema, refused)
            else:
                n_large += len(schema)
                fitted = _changed_anew(schema, refused) if n_large <= _MOST_LARGE else None
            if fitted is not None:
                n_parts += fitted.n_parts
                if n_parts > _MOST_PARTS_OF_ALL:
                    raise BadRequestError("the tools have too many alternatives at the top of their schemas", "tools")
                _check(fitted, tool.name)
                tool.parameters = fitted.schema
                tool.description = _with_note(tool, fitted.note)
                if fitted.keys:
                    keys[tool.name] = fitted.keys
    form = request.format
    if form is not None and form.schema is not None:
        fitted = _changed(form.schema, ())
        if fitted is not None:
            request.format = msgspec.structs.replace(form, schema=fitted.schema)
    if keys:
        _fit_history(request, keys)
    return keys


def fitted_parameters(schema: JsonValue, refused: tuple[str, ...], name: str, param: str = "tools") -> FittedSchema:
    """Return the schema of a tool's arguments as it is taken. name, param: for an error. Raises BadRequestError."""
    found = _changed(schema, refused) or FittedSchema(schema)
    _check(found, name, param)
    return found


def as_taken(schema: JsonValue, refused: tuple[str, ...]) -> FittedSchema | None:
    """Return a schema as it is taken; None: it is as it stands, or is none, or can't be changed within bounds."""
    found = _changed(schema, refused) if len(schema) <= _MOST_LARGE else None
    return found if found is not None and not found.fault else None


def _check(fitted: FittedSchema, name: str, param: str = "tools") -> None:
    if fitted.fault:
        raise BadRequestError(f"the schema of the tool {name!r} can't be sent to this model: {fitted.fault}", param)


def _changed(schema: JsonValue, refused: tuple[str, ...]) -> FittedSchema | None:
    """Return a schema that fits; None: it does as it stands."""
    return _changed_anew(schema, refused) if len(schema) > _LONGEST_REMEMBERED else _remembered(schema, refused)


def _with_note(tool: Tool, note: str) -> bytes | None:
    if not note:
        return tool.description
    description = tool.description
    return quoted(note) if description is None or is_blank(description) else joined((description, quoted(note)))


def _fit_history(request: Request, keys: ToolKeys) -> None:
    """Give the properties of calls the names that they have there."""
    theirs = {tool: {own: their for their, own in names.items()} for tool, names in keys.items()}
    for message in request.messages:
        if message.plain is None:
            for block in message.blocks:
                if type(block) is ToolUse and block.name in theirs:
                    block.arguments = with_keys(block.arguments, theirs[block.name])


# -- one schema -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _remembered(schema: JsonValue, refused: tuple[str, ...]) -> FittedSchema | None:
    return _changed_anew(schema, refused)


def _changed_anew(schema: JsonValue, refused: tuple[str, ...]) -> FittedSchema | None:
    try:
        given = orjson.loads(schema)
        return _made_to_fit(given, refused) if isinstance(given, dict) else None
    except ValueError:
        return None  # half a character: its readers tell
    except (RecursionError, orjson.JSONEncodeError):
        return None  # a value in it nests too deeply to be written anew


def _made_to_fit(given: Schema, refused: tuple[str, ...]) -> FittedSchema | None:
    try:
        found = current(given)
    except SchemaTooDeepError:
        return None  # its readers tell
    try:
        found, said, n_parts = _without_refused(found, refused)
    except SchemaTooDeepError as exc:
        return FittedSchema(b"", fault=str(exc))
    keys: dict[str, str] = {}
    if _KEYS in refused:
        keys = _keys_of(found)
        if keys:
            found, said = _renamed(found, keys), _renamed(said, keys)
            found = _with_references(found, keys)
    written = orjson.dumps(found)
    if _MALFORMED in refused and (wrong := fault(found)):
        return FittedSchema(written, fault=wrong)
    if written == orjson.dumps(given):
        return None
    note = _NOTE + orjson.dumps(said).decode() if said else ""
    return FittedSchema(written, note, {their: own for own, their in keys.items()}, n_parts=n_parts)


def _without_refused(schema: Schema, refused: tuple[str, ...]) -> tuple[Schema, Schema, int]:
    """Return a schema without what is refused at its top, what it does not say any more, and its parts there."""
    words = [word for word in schema if _TOP + word.removeprefix("$") in refused]
    if not words:
        return schema, {}, 0
    merging = _Merging(schema)
    found = merging.merged(schema, (), 0) if any(word in _MERGED for word in words) else schema
    said = {word: schema[word] for word in words if word in _MERGED and merging.is_lossy}
    said.update({word: value for word, value in found.items() if _TOP + word.removeprefix("$") in refused})
    return {name: value for name, value in found.items() if name not in said}, said, merging.n_parts


class _Merging:
    """Makes one object of a schema's branches. Its references are those into `root`.

    is_lossy: what it made allows more than the schema did.
    """

    __slots__ = ("_root", "is_lossy", "n_parts")

    def __init__(self, root: Schema) -> None:
        self._root: Final = root
        self.n_parts = 0
        self.is_lossy = False

    def merged(self, schema: Schema, seen: tuple[str, ...], depth: int) -> Schema:
        """Return the object. seen: the references on the way here. Raises SchemaTooDeepError."""
        self.n_parts += 1 + len(_dict(schema.get("properties")))
        if depth > MOST_DEPTH or self.n_parts > _MOST_PARTS:
            raise SchemaTooDeepError(f"the top of the schema has over {_MOST_PARTS} parts, or nests too deeply")
        found = {name: value for name, value in schema.items() if name not in _MERGED}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = None if reference in seen else self._referred(reference)
            if target is None:
                self.is_lossy = True
            else:
                found = self._both(found, self.merged(target, (*seen, reference), depth + 1))
        for branch in _objects(schema.get("allOf")):
            found = self._both(found, self.merged(branch, seen, depth + 1))
        for word in ("anyOf", "oneOf"):
            branches = [self.merged(branch, seen, depth + 1) for branch in _objects(schema.get(word))]
            if branches:
                found = self._both(found, self._either(branches))
        return found

    def _referred(self, reference: str) -> Schema | None:
        found: object = self._root
        if not reference.startswith("#/"):
            return None
        for name in reference[2:].split("/"):
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def _both(self, one: Schema, other: Schema) -> Schema:
        """Return what holds where both do."""
        both = {**other, **one}
        for name in one.keys() & other.keys():
            if name not in ("properties", "required", "additionalProperties", "type", *_ANNOTATIONS):
                self.is_lossy = self.is_lossy or one[name] != other[name]
        properties = dict(_dict(one.get("properties")))
        for name, each in _dict(other.get("properties")).items():
            known = properties.get(name, each)
            properties[name] = each if known == each else {"allOf": [known, each]}
        if properties:
            both["properties"] = properties
        required = list(dict.fromkeys([*_names(one), *_names(other)]))
        if required:
            both["required"] = required
        if one.get("additionalProperties") is False or other.get("additionalProperties") is False:
            both["additionalProperties"] = False
        return both

    def _either(self, branches: list[Schema]) -> Schema:
        """Return what holds where any of them does: as much as one object can say of it."""
        if len(branches) == 1:
            return branches[0]
        self.is_lossy = True
        shapes: dict[str, dict[bytes, Any]] = {}
        for branch in branches:
            for name, each in _dict(branch.get("properties")).items():
                shapes.setdefault(name, {})[orjson.dumps(each)] = each
        found: Schema = {}
        if shapes:
            unlike = {name: list(each.values()) for name, each in shapes.items()}
            found["properties"] = {
                name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in unlike.items()
            }
        others = [set(_names(branch)) for branch in branches[1:]]
        required = [name for name in _names(branches[0]) if all(name in each for each in others)]
        if required:
            found["required"] = required
        if all(branch.get("additionalProperties") is False for branch in branches):
            found["additionalProperties"] = False
        for name in ("$defs", "definitions"):
            definitions = {key: each for branch in branches for key, each in _dict(branch.get(name)).items()}
            if definitions:
                found[name] = definitions
        return found


def _objects(branches: object) -> list[Schema]:
    """Return the branches that an object may fit."""
    if not isinstance(branches, list):
        return []
    found = [branch for branch in branches if isinstance(branch, dict)]
    return [branch for branch in found if _may_be_object(branch.get("type"))]


def _may_be_object(kind: object) -> bool:
    return kind is None or kind == "object" or (isinstance(kind, list) and "object" in kind)


def _dict(value: object) -> Schema:
    return value if isinstance(value, dict) else {}


def _names(schema: Schema) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


# -- names of properties ------------------------------------------------------------------------------------


def _keys_of(schema: Schema) -> dict[str, str]:
    """Return the properties that need another name, with it. It is the same one in all requests."""
    properties = _dict(schema.get("properties"))
    fitting = FittedNames(_KEY, _MOST_KEY, {})
    keys: dict[str, str] = {}
    taken = set(properties)
    for name in properties:
        fitted = fitting.fit(name)
        if fitted != name:
            while fitted in taken:
                fitted = fitting.fit(fitted + "~")
            taken.add(fitted)
            keys[name] = fitted
    return keys


def _renamed(schema: Schema, keys: Mapping[str, str]) -> Schema:
    """Return a schema with other names for the properties of the object that it is of."""
    found: Schema = {}
    for name, value in schema.items():
        if name in _BY_KEY and isinstance(value, dict):
            found[name] = {keys.get(key, key): each for key, each in value.items()}
        elif name == "required" and isinstance(value, list):
            found[name] = [keys.get(each, each) if isinstance(each, str) else each for each in value]
        elif name in _IN_PLACE and isinstance(value, list):
            found[name] = [_renamed(each, keys) if isinstance(each, dict) else each for each in value]
        elif name in _IN_PLACE and isinstance(value, dict):
            found[name] = _renamed(value, keys)
        else:
            found[name] = value
    for name, value in found.items():
        if name == "dependentSchemas" and isinstance(value, dict):
            found[name] = {key: _renamed(each, keys) if type(each) is dict else each for key, each in value.items()}
        elif name == "dependentRequired" and isinstance(value, dict):
            lists = {key: each for key, each in value.items() if isinstance(each, list)}
            found[name] = {**value, **{key: [keys.get(one, one) for one in each] for key, each in lists.items()}}
    return found


def _with_references(value: Any, keys: Mapping[str, str]) -> Any:
    """Return a schema whose references to the renamed properties find them."""
    if isinstance(value, list):
        return [_with_references(each, keys) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _with_references(each, keys) for name, each in value.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith(_TO_PROPERTIES):
        name, slash, rest = reference.removeprefix(_TO_PROPERTIES).partition("/")
        own = name.replace("~1", "/").replace("~0", "~")
        found["$ref"] = _TO_PROPERTIES + keys.get(own, name) + slash + rest
    return found
