"""Replaces values that only some providers of an API know by the nearest known one, in bodies that go up as sent.

    detail: "original"                            "high", where the model's facts have no such detail
    service_tier: "on_demand", "performance"      OpenAI's names of them, but at Groq, whose own they are
    messages[].prefix: false                      nothing, but where it is known: Mistral's SDK sends it with messages
                                                  of the assistant, and OpenAI refuses it. `true` goes up

Clients of OpenAI's APIs are pointed at others by a change of the model or by a fallback, and keep their values. All
else of a body stays, byte for byte; one without these words is not looked at any further.

Knows: both of OpenAI's APIs. Does not know: how a request is translated.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.openai_values import TIERS
from velox.dialects.facts.provider_traits import ProviderTraits
from velox.types import ApiKind

__all__ = ["with_known_values"]

_Fields: TypeAlias = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OF_OPENAI: Final = frozenset({ApiKind.CHAT, ApiKind.RESPONSES})
# Inside of a text each quote has a backslash before it, so that these are found in the structure alone.
_ORIGINAL: Final = b'"original"'
_DETAIL: Final = re.compile(rb'("detail"\s*+:\s*+)"original"')
_PREFIX: Final = b'"prefix"'
_TIER_WORDS: Final = tuple(b'"%b"' % word.encode() for word in TIERS)
_TIER: Final = re.compile(rb'("service_tier"\s*+:\s*+)"(' + "|".join(TIERS).encode() + rb')"')


def with_known_values(
    body: bytes | bytearray, client_api: ApiKind, facts: ModelFacts, traits: ProviderTraits
) -> bytes | bytearray:
    """Return a body with values that the provider knows. facts, traits: of the model and the provider that get it."""
    if client_api not in _OF_OPENAI:
        return body
    if not traits.any_detail and _ORIGINAL in body and "original" not in facts.image_details:
        body = _DETAIL.sub(rb'\1"high"', body)
    if not traits.own_tiers and any(word in body for word in _TIER_WORDS):
        body = _TIER.sub(_openai_tier, body)
    if client_api is ApiKind.CHAT and not traits.knows_prefix and body.find(_PREFIX) >= 0:
        return _without_prefix(body)
    return body


def _without_prefix(body: bytes | bytearray) -> bytes | bytearray:
    """Return a body without `prefix: false` of its messages; the same if it has none."""
    try:
        fields = _FIELDS.decode(body)
        messages = _LIST.decode(fields["messages"]) if "messages" in fields else []
        made = [_plain_message(each) for each in messages]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body  # who answers says what is wrong with it
    if all(new is old for new, old in zip(made, messages, strict=True)):
        return body
    fields["messages"] = msgspec.Raw(msgspec.json.encode(made))
    return msgspec.json.encode(fields)


def _plain_message(raw: msgspec.Raw) -> msgspec.Raw:
    if bytes(raw).find(_PREFIX) < 0:
        return raw
    message = _FIELDS.decode(raw)
    if bytes(message.get("prefix", b"")) != b"false":
        return raw
    del message["prefix"]
    return msgspec.Raw(msgspec.json.encode(message))


def _openai_tier(found: re.Match[bytes]) -> bytes:
    return b'%b"%b"' % (found[1], TIERS[found[2].decode()].encode())
