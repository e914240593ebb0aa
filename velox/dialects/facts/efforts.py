"""Efforts of reasoning by their names, and what they come to in tokens, for models that want one or the other.

Knows: the names in their order, and a budget for each. Does not know: any dialect or model.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Reasoning

__all__ = ["EFFORTS", "budget_of", "effort_of", "taken_effort"]

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_DEFAULT: Final = "high"  # of "as the model likes": Anthropic's own default
# The least that Anthropic takes is 1024. Other gateways have nearly the same figures.
_BUDGETS: Final = MappingProxyType(
    {"minimal": 1024, "low": 1024, "medium": 2048, "high": 4096, "xhigh": 8192, "max": 16384}
)
# Budgets that people give are larger than those that an effort comes to: up to this many tokens it is that effort.
_LOW_UP_TO: Final = 2048
_MEDIUM_UP_TO: Final = 8192


def budget_of(reasoning: Reasoning) -> int:
    """Return the tokens for reasoning; 0: none at all."""
    if reasoning.enabled is False:
        return 0
    if reasoning.budget_tokens is not None:
        return max(0, reasoning.budget_tokens)
    return _BUDGETS.get(reasoning.effort or _DEFAULT, 0)


def effort_of(reasoning: Reasoning) -> str:
    """Return the name of the effort: "none", "minimal", "low", "medium", "high", "xhigh", "max"."""
    if reasoning.enabled is False:
        return "none"
    if reasoning.effort is not None:
        return reasoning.effort
    budget = reasoning.budget_tokens
    if budget is None:
        return _DEFAULT
    if budget <= 0:
        return "none"
    if budget <= _LOW_UP_TO:
        return "low"
    return "medium" if budget <= _MEDIUM_UP_TO else "high"


def taken_effort(effort: str, taken: tuple[str, ...], dropped: DroppedFields, field: str = "reasoning") -> str:
    """Return the effort as a model takes it: itself, the next lower one, or the lowest. Another one is dropped.

    taken: those that the model takes. field: its name then. Reasoning that was asked for is not switched off, and a
    word that is no effort is left as it is.
    """
    known = [each for each in EFFORTS[1:] if each in taken]
    if effort in taken or effort not in EFFORTS or not known:
        return effort
    dropped.drop(field, problem=f"the effort of reasoning may be {', '.join(known)} for this model")
    lower = [each for each in known if EFFORTS.index(each) < EFFORTS.index(effort)]
    return lower[-1] if lower else known[0]
