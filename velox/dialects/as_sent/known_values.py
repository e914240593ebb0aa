"""Replaces values that only some providers of an API know by the nearest known one, in bodies that go up as sent.

    detail: "original"                            "high", where the model's facts have no such detail
    service_tier: "on_demand", "performance"      OpenAI's names of them, but at Groq, whose own they are

Clients of OpenAI's APIs are pointed at others by a change of the model or by a fallback, and keep their values. All
else of a body stays, byte for byte; one without these words is not looked at any further.

Knows: both of OpenAI's APIs. Does not know: how a request is translated.
"""

from __future__ import annotations

import re
from typing import Final

from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.openai_values import TIERS
from velox.dialects.facts.provider_traits import ProviderTraits
from velox.types import ApiKind

__all__ = ["with_known_values"]

_OF_OPENAI: Final = frozenset({ApiKind.CHAT, ApiKind.RESPONSES})
# Inside of a text each quote has a backslash before it, so that these are found in the structure alone.
_ORIGINAL: Final = b'"original"'
_DETAIL: Final = re.compile(rb'("detail"\s*+:\s*+)"original"')
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
    return body


def _openai_tier(found: re.Match[bytes]) -> bytes:
    return b'%b"%b"' % (found[1], TIERS[found[2].decode()].encode())
