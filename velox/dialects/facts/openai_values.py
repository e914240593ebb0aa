"""Values that OpenAI's APIs have names for, and not every model and server knows: details of pictures, and tiers.

Codex sends the detail "original", which is newer than Chat Completions' list: a server with a closed list answers 400
to it.

Knows: the names, and which say the same. Does not know: any dialect, or which of them a target takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["TIERS", "taken_detail"]

# Groq's names -> OpenAI's; those of both are not here. Source: Groq's page "Service Tiers".
TIERS: Final[Mapping[str, str]] = MappingProxyType({"on_demand": "default", "performance": "priority"})
_DETAILS: Final = ("low", "high", "original")
_FIELD: Final = "detail"


def taken_detail(asked: str | None, facts: ModelFacts, dropped: DroppedFields, path: str) -> str | None:
    """Return the detail as a model takes it: itself, or the next lower one, which drops a field; None: not said.

    path: of the picture.
    """
    if asked is None or (asked in facts.image_details and _FIELD not in facts.refused):
        return asked
    if _FIELD in facts.refused or asked not in _DETAILS:
        dropped.drop(_FIELD, path)
        return None
    lower = [each for each in _DETAILS[: _DETAILS.index(asked)] if each in facts.image_details]
    dropped.drop(
        _FIELD, path, problem=f"the detail of a picture may be {', '.join(facts.image_details)} for this model"
    )
    return lower[-1] if lower else None
