"""Whether a caller may use a model.

Knows: names of models. Does not know: who called (auth.py), or where a request names its model (access.py).
"""

from __future__ import annotations

from velox.policy.patterns import matches
from velox.types import Caller

__all__ = ["may_use"]


def may_use(caller: Caller, model: str) -> bool:
    """Say whether a caller's key may use a model."""
    return not caller.models or any(matches(pattern, model) for pattern in caller.models)
