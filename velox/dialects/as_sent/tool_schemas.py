"""Makes schemas of tools fit the target's models, in bodies that go up as sent to another than the API's own provider.

    Chat Completions    tools[].function.parameters
    Responses           tools[].parameters
    Messages            tools[].input_schema

The client knows what the API's own maker takes, not who answers: Claude at OpenRouter refuses `anyOf` at the top of a
schema that OpenAI's clients send, as it does in a translated request. So they are made to fit in the same way
(tools/tool_fit.py). Names of properties stay: the arguments of calls pass as they come, and could not be given back. A
schema that is none is the client's to hear of from who answers. A body of which no schema has to be changed passes byte
for byte.

Knows: where the three APIs have schemas. Does not know: which ones a model refuses (facts), or how one is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.provider_traits import ProviderTraits
from velox.dialects.json_text.text import is_blank, joined, quoted, raw_text
from velox.dialects.tools.tool_fit import as_taken
from velox.dialects.tools.tool_schema import object_schema
from velox.types import ApiKind

__all__ = ["with_fitted_schemas"]

_Fields: TypeAlias = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TOOLS: Final = b'"tools"'
_WITH_SCHEMAS: Final = frozenset({ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES})
_SCHEMAS: Final[Mapping[ApiKind, str]] = {ApiKind.CHAT: "parameters", ApiKind.RESPONSES: "parameters"}
_OF_CLAUDE: Final = "input_schema"
_FUNCTION: Final = "function"
_NOT_HERE: Final = frozenset({"properties.keys", "malformed"})


def with_fitted_schemas(
    body: bytes | bytearray, client_api: ApiKind, facts: ModelFacts, traits: ProviderTraits
) -> bytes | bytearray:
    """Return a body whose schemas the model takes; the same if they all do.

    facts, traits: of the model and the provider that get it.
    """
    is_own = client_api in traits.defines
    if is_own or client_api not in _WITH_SCHEMAS or not facts.schemas_refuse or body.find(_TOOLS) < 0:
        return body
    refused = tuple(each for each in facts.schemas_refuse if each not in _NOT_HERE)
    try:
        fields = _FIELDS.decode(body)
        tools = _LIST.decode(fields["tools"]) if "tools" in fields else []
        fitted = [_fitted(tool, client_api, refused) for tool in tools]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body  # who answers says what is wrong with it
    if all(new is old for new, old in zip(fitted, tools, strict=True)):
        return body
    fields["tools"] = msgspec.Raw(msgspec.json.encode(fitted))
    return msgspec.json.encode(fields)


def _fitted(raw: msgspec.Raw, client_api: ApiKind, refused: tuple[str, ...]) -> msgspec.Raw:
    tool = _FIELDS.decode(raw)
    if client_api is ApiKind.CHAT:
        if _FUNCTION not in tool:
            return raw
        function = _FIELDS.decode(tool[_FUNCTION])
        if not _fit(function, "parameters", refused):
            return raw
        tool[_FUNCTION] = msgspec.Raw(msgspec.json.encode(function))
    elif not _fit(tool, _SCHEMAS.get(client_api, _OF_CLAUDE), refused):
        return raw
    return msgspec.Raw(msgspec.json.encode(tool))


def _fit(tool: _Fields, name: str, refused: tuple[str, ...]) -> bool:
    """Change the schema of a tool; return whether it had to be."""
    schema = tool.get(name)
    fitted = None if schema is None else as_taken(bytes(schema), refused)
    if fitted is None:
        return False
    try:
        tool[name] = msgspec.Raw(object_schema(fitted.schema))
    except BadRequestError:
        return False  # of something else than an object, which no model takes
    if fitted.note:
        description, note = raw_text(tool.get("description", msgspec.Raw(b""))), quoted(fitted.note)
        tool["description"] = msgspec.Raw(
            note if description is None or is_blank(description) else joined((description, note))
        )
    return True
