"""The schema of a tool's arguments, as models' APIs want it: of an object, and saying so.

    object_schema()    Anthropic, Bedrock and Gemini refuse one without `"type": "object"`
    listed_schema()    OpenAI refuses one without `properties` as well

Clients send both: servers of MCP often have tools without arguments, or leave the type out. A schema that has what is
needed passes as it stood.

Knows: what the APIs want. Does not know: any dialect.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import JsonValue
from velox.dialects.json_text.surrogates import keeping_surrogates

__all__ = ["NO_PARAMETERS", "listed_schema", "object_schema"]

NO_PARAMETERS: Final = b'{"type":"object","properties":{}}'
_OF_OBJECT: Final = (b'{"type":"object"', b'{"type": "object"')
_LISTED: Final = (b'{"type":"object","properties":{', b'{"type": "object", "properties": {')
_ABSENT: Final = (b"", b"null")


class _Top(msgspec.Struct):
    """What stands at the top of a schema."""

    type: msgspec.Raw = msgspec.Raw()
    properties: msgspec.Raw = msgspec.Raw()


_TOP: Final = msgspec.json.Decoder(_Top)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TYPES: Final = msgspec.json.Decoder(list[str])


def object_schema(schema: JsonValue | None) -> JsonValue:
    """Return a schema that says that it is of an object. Raises BadRequestError for one of something else."""
    if schema is None:
        return NO_PARAMETERS
    return schema if schema.startswith(_OF_OBJECT) else keeping_surrogates(_of_object, schema)


def listed_schema(schema: JsonValue | None) -> JsonValue:
    """Return a schema of an object that has `properties`. Raises as object_schema()."""
    if schema is None:
        return NO_PARAMETERS
    return schema if schema.startswith(_LISTED) else keeping_surrogates(_listed, schema)


def _of_object(schema: JsonValue) -> JsonValue:
    kind = bytes(_top(schema).type)
    if kind == b'"object"':
        return schema
    if kind not in _ABSENT and not _may_be_object(kind):
        raise BadRequestError('a tool\'s schema must be of type "object"', "tools")
    return _with(schema, "type", b'"object"')


def _listed(schema: JsonValue) -> JsonValue:
    schema = _of_object(schema)
    if bytes(_top(schema).properties) not in _ABSENT:
        return schema
    return _with(schema, "properties", b"{}")


def _top(schema: JsonValue) -> _Top:
    try:
        return _TOP.decode(schema)
    except msgspec.ValidationError:
        raise BadRequestError("a tool's schema must be an object", "tools") from None
    except msgspec.DecodeError as exc:
        raise BadRequestError(f"a tool's schema can't be read: {exc}", "tools") from None


def _may_be_object(kind: bytes) -> bool:
    try:
        return "object" in _TYPES.decode(kind)
    except msgspec.DecodeError:
        return False


def _with(schema: JsonValue, name: str, value: bytes) -> JsonValue:
    """Return a schema with a keyword at its begin; others stand as they did."""
    fields = _FIELDS.decode(schema)
    if name in fields:
        fields[name] = msgspec.Raw(value)
        return b"{%b}" % b",".join([b"%b:%b" % (json.dumps(each).encode(), bytes(fields[each])) for each in fields])
    rest = schema.lstrip()[1:].lstrip()
    return b'{"%b":%b' % (name.encode(), value) + (b"" if rest.startswith(b"}") else b",") + rest
