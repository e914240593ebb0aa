"""The facts of models, as data: rules with patterns, of which each says something of the models that it matches.

    facts_of(row, model, own)   what the row has, then each rule of the table that matches, then each of `own`

A later rule overrides an earlier one, field by field, so the table goes from the general to the particular. Facts age:
users add rules of their own (`model_facts` in the file), which come last.

Knows: names of models, as of November 2026. Does not know: what a writer does with a fact (dialects/).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from velox.dialects.facts import ModelFacts
from velox.policy.patterns import matches
from velox.providers.provider import Provider

__all__ = ["RULES", "Fact", "ModelRule", "facts_of"]

Fact: TypeAlias = int | bool | str | tuple[str, ...] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ModelRule:
    """What is known of some models. models: patterns. facts: fields of ModelFacts. providers: names of rows; none: all.

    where: of a user's rule, for a problem.
    """

    models: tuple[str, ...]
    facts: tuple[tuple[str, Fact], ...]
    providers: tuple[str, ...] = ()
    where: str = ""

    def is_for(self, provider: str, model: str) -> bool:
        """True for a model of a provider that it says something of."""
        return (not self.providers or provider in self.providers) and any(
            matches(pattern, model) for pattern in self.models
        )


def _rule(*models: str, providers: tuple[str, ...] = (), **facts: Fact) -> ModelRule:
    return ModelRule(models, tuple(facts.items()), providers)


RULES: Final[tuple[ModelRule, ...]] = (
    # Anthropic. Names differ by place: claude-opus-4-7, us.anthropic.claude-opus-4-7-v1:0, anthropic/claude-opus-4.7.
    _rule("*claude*", max_output=64_000, thinking="budget", forced_choice=False, max_tokens_name="max_tokens"),
)


def facts_of(row: Provider, model: str, own: Iterable[ModelRule] = ()) -> ModelFacts:
    """Return what is known of a model at a provider. own: rules of the settings. The caller keeps it."""
    name = model.lower()
    changes: dict[str, Fact] = {}
    for rule in (*RULES, *own):
        if rule.is_for(row.name, name):
            changes.update(rule.facts)
    return msgspec.structs.replace(row.facts, **changes) if changes else row.facts
