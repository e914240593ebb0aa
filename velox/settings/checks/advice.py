"""What may be a mistake in settings that can be used: `velox check` warns of it, and the log at a start and a reload.

Knows: where requests would go, and which names keys and models have. Does not know: what can't be used (loading.py),
prices (runtime/priced.py), or the machine (runtime/commands/check.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from velox.policy.budgets.rules import BudgetRule
from velox.policy.patterns import overlap
from velox.policy.routes.model_rule import told_family
from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.settings.model import Settings

__all__ = ["advice"]

_MOST_NAMED: Final = 5
_BEDROCK: Final = "bedrock"
# ARNs with an id of the account's own, where others have the model's name.
_OPAQUE: Final = re.compile(
    r"arn:aws[a-z0-9-]*:bedrock:[^/]*:"
    r"(?:application-inference-profile|provisioned-model|custom-model-deployment|custom-model|imported-model"
    r"|default-prompt-router|prompt-router)/.+",
    re.DOTALL,
)


def advice(settings: Settings, *, sim: bool = False) -> Iterator[str]:
    """Yield a line for each. sim: the built-in simulator is in place of the first upstream."""
    if settings.unusable_variables:
        yield f"set, but not as Velox could use it: {', '.join(settings.unusable_variables)}"
    if not sim:
        yield from settings.unused_variables
    for text in settings.missing_keys:
        yield f"`velox serve` would not start, and nothing else needs it: {text}"
    for name, default in settings.empty_variables:
        if sim and name == "OPENAI_API_KEY":
            continue
        yield f"{name} is set, but empty, so the default is used: {default}"
    if not sim:
        yield from _doubled_bases(settings)
        yield from _opaque_models(settings)
    yield from _budgets(settings)


def _doubled_bases(settings: Settings) -> Iterator[str]:
    """Tell of an origin that ends with what clients' paths begin with. Who has clients without it warms up so, too."""
    path = settings.upstream_warmup_path
    first, slash, rest = path.lstrip("/").partition("/")
    for entry in settings.upstreams:
        for origin in entry.origins:
            if PROVIDERS[entry.provider] is COMPATIBLE and slash and origin.base_path.endswith(f"/{first}"):
                yield (
                    f"upstream {entry.name} gets {path} as {origin}{path}: take /{first} off the origin; or, where"
                    f" clients leave it out, set VELOX_UPSTREAM_WARMUP_PATH=/{rest}, and VELOX_UPSTREAM_REQUEST_PATH"
                    f" without /{first}, too"
                )
                return


def _opaque_models(settings: Settings) -> Iterator[str]:
    """Tell of models at Bedrock whose ARN does not say what they are: then nothing is known of what they take."""
    for entry in settings.upstreams:
        if entry.provider != _BEDROCK:
            continue
        targets = [target for route in settings.routes for target in (*route.to, *route.fallback)]
        named = [target.model for target in targets if target.upstream == entry.name and target.model]
        named += [each for route in settings.routes for each in route.match.models]
        for model in dict.fromkeys([*named, *entry.models]):
            if _OPAQUE.fullmatch(model) and not told_family(entry.provider, model, entry.model_facts):
                yield (
                    f"upstream {entry.name}: the name of {model} does not tell which model it is, so it is asked by"
                    " Converse, as one without cache marks and reasoning, whose tokens have no price; say it:"
                    f' `model_facts: [{{models: ["{model}"], family: anthropic.claude-opus-4-8}}]`, with its own model'
                )


def _budgets(settings: Settings) -> Iterator[str]:
    """Warn of budgets that count no request, or not those of all keys, because of a name that nobody has."""
    keys = settings.api_keys
    if settings.managed_keys and not any(key.is_managed for key in keys):
        return  # those that were made are not known here before the gateway has run
    every_budget = (*(rule.budget for rule in settings.budgets), *(each for key in keys for each in key.terms.budgets))
    if settings.alert_webhook is not None and not settings.managed_keys and not any(b.soft for b in every_budget):
        yield "nothing is ever sent to VELOX_ALERT_WEBHOOK: no budget has a threshold (`soft`)"
    if not settings.budgets:
        return
    names = {
        "teams": {key.terms.team for key in keys},
        "users": {key.terms.user for key in keys},
        "tags": {tag for key in keys for tag in key.terms.tags},
    }
    callers = {key.caller_name for key in keys}
    models = _model_patterns(settings)
    for rule in settings.budgets:
        for n, name in enumerate(rule.keys, 1):
            if name not in callers:  # not by its name: it may be the key itself
                yield _of(rule, f"name {n} of its `keys` is no key's")
        for field, known in names.items():
            missing = [name for name in getattr(rule, field) if name not in known]
            if missing:
                yield _of(rule, f"no key has one of its `{field}`: {_some(missing)}")
        if models is not None:
            missing = [each for each in rule.models if not any(overlap(each, other) for other in models)]
            if missing:
                yield _of(rule, f"no route takes one of its `models`: {_some(missing)}")
        yield from _nobodys(settings, rule)


def _nobodys(settings: Settings, rule: BudgetRule) -> Iterator[str]:
    """Warn of keys whose requests a budget per team, user or tag can't count: they have none."""
    if rule.scope not in ("team", "user", "tag") or rule.keys or rule.teams or rule.users or rule.tags:
        return
    field = "tags" if rule.scope == "tag" else rule.scope
    without = [key.caller_name for key in settings.api_keys if not getattr(key.terms, field)]
    if len(without) == len(settings.api_keys):
        yield _of(rule, f"it counts no request: no key has `{field}`")
    elif without and rule.scope != "tag":
        n = len(without)
        yield _of(rule, f"it counts no request of {n} key{'s' * (n > 1)} without `{field}`: {_some(without)}")


def _of(rule: BudgetRule, text: str) -> str:
    return f"{rule.name} per {rule.scope} ({rule.where}): {text}"


def _some(names: Collection[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join([*names][:_MOST_NAMED]) + more


def _model_patterns(settings: Settings) -> list[str] | None:
    """Return patterns of all models that clients can ask for; None: any."""
    entries = {entry.name: entry for entry in settings.upstreams}
    found: list[str] = []
    for route in settings.routes:
        if route.match.models:
            found += route.match.models
            continue
        for target in (*route.to, *route.fallback):
            models = entries[target.upstream].models
            if target.naming is not None or not models:
                return None
            found += models
    return found
