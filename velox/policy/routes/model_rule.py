"""What is said of some models: a fact of `ModelFacts` by its name, for models that match a pattern.

Knows: patterns. Does not know: which facts there are (dialects/facts), or any model (providers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from velox.policy.patterns import matches

__all__ = ["Fact", "ModelRule", "told_family"]

_FAMILY: Final = "family"

Fact: TypeAlias = int | bool | str | tuple[str, ...] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ModelRule:
    """What is known of some models. models: patterns, in lower case. facts: names and values of fields of ModelFacts.

    providers: names of rows; none: all. where: of a user's rule, for a problem.
    """

    models: tuple[str, ...]
    facts: tuple[tuple[str, Fact], ...]
    providers: tuple[str, ...] = ()
    where: str = field(default="", compare=False)

    def is_for(self, provider: str, model: str) -> bool:
        """True for a model of a provider that it says something of. model: in lower case."""
        return self.concerns(provider) and any(matches(pattern, model) for pattern in self.models)

    def concerns(self, provider: str) -> bool:
        """True for a provider of whose models it may say something."""
        return not self.providers or provider in self.providers


def told_family(provider: str, model: str, rules: Iterable[ModelRule]) -> str:
    """Return the name by which rules know a model whose own does not tell, as an ARN; "" for none. The last counts."""
    name, found = model.lower(), ""
    for rule in rules:
        if rule.is_for(provider, name):
            for of, fact in rule.facts:
                if of == _FAMILY and isinstance(fact, str):
                    found = fact
    return found
