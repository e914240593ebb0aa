"""Whether a caller may use a model.

Knows: names of models. Does not know: who called (auth.py), or where a request names its model (access.py).
"""

from __future__ import annotations

from typing import Final

from velox.policy.patterns import matches
from velox.types import Caller

__all__ = ["may_use"]

_PRESET: Final = "@preset/"


def may_use(caller: Caller, model: str) -> bool:
    """Say whether a caller's key may use a model.

    A name with a preset in it (`cheap@preset/dear`, at OpenRouter) runs what the preset says: only a pattern that has
    one itself allows it.
    """
    patterns = caller.terms.models
    if not patterns:
        return True
    if _PRESET in model.lower():
        patterns = tuple(pattern for pattern in patterns if _PRESET in pattern.lower())
    return any(matches(pattern, model) for pattern in patterns)
