"""The arguments of calls, where a dialect has them as a string; and custom tools, whose input is a text.

Knows: how they become a JSON object, and back. Does not know: any dialect's fields.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.model import JsonText, JsonValue
from velox.dialects.json_text.large import decode_large
from velox.dialects.json_text.surrogates import masked
from velox.dialects.json_text.text import EMPTY, decoded, quoted
from velox.protocol.slices import SLICE_BYTES

__all__ = ["CUSTOM_SCHEMA", "custom_arguments", "custom_input", "read_arguments", "written_arguments"]

# The parameters of a function that stands for a custom tool: the text.
CUSTOM_SCHEMA: Final = b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}'
_NO_ARGUMENTS: Final = b"{}"
_WRAP: Final = b'{"_invalid_arguments":'
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_arguments(raw: bytes) -> JsonValue:
    """Return the arguments of a call, a JSON string of an object, as an object. Others are wrapped, never refused."""
    if raw[:1] == b"{":
        return raw  # some servers send an object
    if raw in (b"", b"null", EMPTY):
        return _NO_ARGUMENTS
    if raw[:1] != b'"':
        return _WRAP + quoted(raw.decode("utf-8", "replace")) + b"}"
    text = decoded(raw)
    value = text.encode("utf-8", "backslashreplace").strip()
    if not value or value == b"null":
        return _NO_ARGUMENTS
    if value[:1] == b"{" and _is_object(value):
        return value
    return _WRAP + quoted(text) + b"}"


def written_arguments(arguments: JsonValue) -> JsonText:
    """Return the arguments of a call as a string, for a dialect that has them so.

    Those that were cut, or are no object for another reason, are what the model wrote: as in a stream, and as OpenAI
    sends them.
    """
    if arguments.startswith(_WRAP) and (given := _only_text(arguments)) is not None:
        return given
    return quoted(arguments.decode("utf-8", "surrogatepass"))


def _is_object(value: bytes) -> bool:
    """Tell whether JSON that begins as an object is one."""
    try:
        if len(value) <= SLICE_BYTES:
            _ANY.decode(value)
        else:
            decode_large(_ANY, value)
    except (msgspec.DecodeError, RecursionError):
        half = masked(value)
        return half is not None and _is_object(half)
    return True


def custom_arguments(text: JsonText) -> JsonValue:
    """Return the arguments of the function that stands for a custom tool."""
    return b'{"input":%b}' % text


def custom_input(arguments: JsonValue) -> JsonText:
    """Return the text for a custom tool of the function that stood for it; all of the arguments, if that is not one."""
    found = _only_text(arguments)
    return quoted(arguments.decode("utf-8", "replace")) if found is None else found


def _only_text(arguments: JsonValue) -> JsonText | None:
    """Return the value of the only field of an object; None: it has others, or it is no text."""
    try:
        fields = _FIELDS.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = bytes(next(iter(fields.values()))) if len(fields) == 1 else b""
    return found if found[:1] == b'"' else None
