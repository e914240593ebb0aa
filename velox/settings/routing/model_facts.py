"""What users say of models: rules that override the table of models' facts (velox/providers/model_facts.py).

Knows: which facts there are, and how each is written. Does not know: any model, or what is done with a fact.

    model_facts:
      - {models: ["claude-next-*"], thinking: adaptive, max_output: 64000, sampling: false}
      - {models: ["glm-*"], providers: [zai], renamed: {seed: random_seed}, refused: [logit_bias]}
      - {models: ["*claude*"], providers: [vertex], beta_fields: {shine: shiny-2027-01-01, tools.dull: refused}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, get_type_hints

from velox.dialects.facts.efforts import EFFORTS
from velox.dialects.facts.model_facts import BY, ModelFacts
from velox.policy.routes.model_rule import Fact, ModelRule
from velox.providers.rows import PROVIDERS
from velox.settings import parse
from velox.settings.problems import Problem, unknown
from velox.settings.yaml.tree import Section, Tree

__all__ = ["FIELDS", "parse_model_facts"]

_MOST_RULES: Final = 256
_MOST_OUTPUT: Final = 10_000_000
_KINDS: Final = get_type_hints(ModelFacts)
FIELDS: Final = ("models", "providers", *_KINDS)
# The words that writers know (dialects/facts/model_facts.py).
_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "thinking": (
            *("none", "adaptive", "always", "between_tools", "budget", "level", "thinking_budget", "effort", "toggle"),
            *("switch", "reasoning_effort", "reasoning_config", "nova"),
        ),
        "max_tokens_name": ("max_tokens", "max_completion_tokens"),
        "call_ids": ("any", "mistral", "bedrock", "none"),
        "added_marks": ("agents", "always", "never"),
    }
)
_LISTS: Final = ("refused", "schemas_refuse", "image_details")
_BETA: Final = re.compile(r"[A-Za-z0-9_.*-]{1,128}")
_FIELD: Final = re.compile(r"[A-Za-z0-9_.]{1,64}")
_TYPE: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_FAMILY: Final = re.compile(r"[A-Za-z0-9_.:@/-]{1,256}")


def parse_model_facts(tree: Tree) -> tuple[tuple[ModelRule, ...], list[Problem]]:
    """Return the rules of the list, in order, and everything that is wrong with it."""
    problems: list[Problem] = []
    items = tree.items or ()
    if not items or len(items) > _MOST_RULES:
        expected = (
            f"expected a list of 1 to {_MOST_RULES} rules, such as `- {{models: [claude-next*], max_output: 64000}}`"
        )
        return (), [Problem("model_facts", "", expected, where=tree.where)]
    rules = []
    for item in items:
        if item.fields is None:
            expected = "expected fields such as `models: [claude-next*]`"
            problems.append(Problem("a rule of `model_facts`", "", expected, where=item.where))
            continue
        rules.append(_rule(Section(item, "a rule of `model_facts`", FIELDS, problems)))
    return tuple(rules), problems


def _rule(section: Section) -> ModelRule:
    section.needs(models="[claude-next*]")
    patterns = section.many("models", parse.model_pattern, shown=False)
    facts: list[tuple[str, Fact]] = []
    for name in _KINDS:
        if name in section and (value := _fact(section, name)) is not None:
            facts.append((name, value))
    if not any(name in section for name in _KINDS):
        section.lacks("expected a fact, such as `max_output: 64000`")
    providers = section.many("providers", _provider)
    return ModelRule(tuple(pattern.lower() for pattern in patterns), tuple(facts), providers, section.where)


def _fact(section: Section, name: str) -> Fact | None:
    """Return a fact as its field in ModelFacts has it; None: it is wrong, which is told."""
    if name == "renamed":
        pairs = [(old, new) for old, new, _ in section.pairs(name, "seed: random_seed")]
        if all(_FIELD.fullmatch(text) for pair in pairs for text in pair):
            return tuple(pairs)
        section.refuse(name, "expected names of fields, such as `renamed: {seed: random_seed}`")
        return None
    if name == "beta_fields":
        fields = [(field, said) for field, said, _ in section.pairs(name, "shine: shiny-2027-01-01")]
        if all(_FIELD.fullmatch(field) and _is_said(said) for field, said in fields):
            return tuple(fields)
        section.refuse(
            name,
            "expected fields, each with `taken`, `refused`, the names of betas that it needs, or `by` and one beta",
        )
        return None
    if name in _LISTS:
        return section.many(name, _field)
    if name == "betas":
        return section.many(name, _beta)
    if name in ("tool_types", "item_types"):
        return section.many(name, _type)
    if name == "efforts":
        return section.many(name, parse.one_of(*EFFORTS))
    kind = _KINDS[name]
    read: Callable[[str], Fact]
    if kind is bool:
        read = parse.switch
    elif kind is int:
        read = parse.integer(1, _MOST_OUTPUT)
    elif name == "family":
        read = _family
    else:
        read = parse.one_of(*_WORDS[name]) if name in _WORDS else _field_or_none
    found: Fact | None = section.one(name, read, None)
    return found


def _provider(text: str) -> str:
    if text not in PROVIDERS:
        raise ValueError(unknown("provider", text, PROVIDERS))
    return text


def _field(text: str) -> str:
    if not _FIELD.fullmatch(text):
        raise ValueError("expected names of fields, such as logit_bias")
    return text


def _beta(text: str) -> str:
    if not _BETA.fullmatch(text):
        raise ValueError("expected names of anthropic-beta, such as context-1m-2025-08-07, or patterns of them")
    return text


def _type(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise ValueError("expected types of tools or items, such as function, or patterns of them")
    return text


def _is_said(text: str) -> bool:
    """Tell whether a text is what a service may say to a field of a beta (ModelFacts.beta_fields)."""
    names = text.removeprefix(BY).split(" ")
    return all(_NAME.fullmatch(name) for name in names) and (len(names) == 1 or not text.startswith(BY))


def _family(text: str) -> str:
    if not _FAMILY.fullmatch(text):
        raise ValueError("expected the name of a model as its provider has it, such as anthropic.claude-opus-4-8")
    return text


def _field_or_none(text: str) -> str:
    return _field(text) if text else ""
