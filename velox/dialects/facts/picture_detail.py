"""How closely a model looks at a picture: OpenAI's names, of which not every model and server knows all.

Codex sends "original", which is newer than Chat Completions' list: a server with a closed list answers 400 to it.

Knows: the names in their order. Does not know: any dialect or model.
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.facts.model_facts import ModelFacts

__all__ = ["taken_detail"]

_DETAILS: Final = ("low", "high", "original")
_FIELD: Final = "detail"


def taken_detail(asked: str | None, facts: ModelFacts, dropped: DroppedFields, path: str) -> str | None:
    """Return the detail as a model takes it: itself, or the next lower one, which is a loss; None: not said.

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
