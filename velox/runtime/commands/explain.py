"""`velox check --model ... --key ...`: what the gateway would do with such a request, and why.

    caller     whose key it is, and the models that the key may use
    endpoint   what the path is for
    route      the first that is for the request; its upstreams in their order, with weights
    limit      each that counts the request
    result     forwarded, or refused with this status and reason

Knows: the settings, and what a request is given by on the command line. The answers are those of the gateway's own
parts. Does not know: which upstream works now, has room, or how much of a limit is used: nothing is asked of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.access.access import check_model
from velox.gateway.access.endpoints import PathFacts, Routes
from velox.gateway.access.plan import runs_model
from velox.gateway.auth import caller_of
from velox.heads import Headers, RequestHead
from velox.policy.budgets.rules import own_rules, spender_of, subjects
from velox.policy.limits.limit_rules import rules_of
from velox.policy.patterns import matches
from velox.policy.routes.entries import RouteEntry, Target
from velox.policy.routes.match import Explanation, Passed, RouteTable
from velox.providers.rows import PROVIDERS, takes_path
from velox.settings import Settings
from velox.settings.callers.keys import parse_key
from velox.settings.parse import header_name, header_value
from velox.settings.problems import on_one_line
from velox.settings.show import budget_rule_lines, rule_lines, shown_keys
from velox.types import ANYONE, NO_RATES, Caller, KeyEntry

__all__ = ["ExplainedRequest", "entry_of_key", "entry_of_name", "explain", "read_headers"]

_CHAT: Final = "/v1/chat/completions"

_MOST_PASSED: Final = 20
_HOW: Final = {
    "round_robin": "in turn, by weight",
    "least_inflight": "the one with the fewest requests running",
    "peak_ewma": "the faster and less busy one of two",
    "prefix": "the one that has seen the prompt's beginning",
    "session": "the one that has the agent's session",
}


def read_headers(texts: Iterable[str]) -> Headers:
    """Return the headers that are given as `NAME: VALUE`. Raises ValueError."""
    found: Headers = []
    for text in texts:
        name, _, value = text.partition(":")
        found.append((header_name(name.strip()).encode("ascii"), header_value(value.strip()).encode("ascii")))
    return found


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """A request to be explained. model: None: it names none. key: that it comes with; None: any that may be used.

    now_s: Unix time: a key that has expired by then lets nobody in.
    """

    model: str | None = None
    path: str = _CHAT
    headers: Headers = field(default_factory=list)
    key: KeyEntry | None = None
    now_s: int = 0


def entry_of_name(settings: Settings, name: str) -> KeyEntry | None:
    """Return the key that has a name; one without a name is called by the start of its digest. None: there is none."""
    return next((entry for entry in settings.api_keys if entry.caller_name == name), None)


def entry_of_key(settings: Settings, key: str) -> KeyEntry | None:
    """Return what is known of a key itself; None: it is unknown. Raises ValueError if it can be no key."""
    digest = parse_key(key).digest
    return next((entry for entry in settings.api_keys if entry.digest == digest), None)


def explain(settings: Settings, asked: ExplainedRequest) -> tuple[bool, list[str]]:
    """Return whether a request would be forwarded, and the lines that say so."""
    caller = ANYONE if asked.key is None else caller_of(asked.key)
    path = asked.path.encode("utf-8", "surrogateescape")
    facts = Routes(settings.paths).facts(path)
    method = "POST" if asked.model is not None or facts.reads_body else "GET"
    head = RequestHead.of(method.encode(), path, asked.headers)
    model = _model(facts, asked.model) if method == "POST" else asked.model
    found = RouteTable(settings.routes, is_litellms=settings.litellm_headers).explain(
        *(model, path, asked.headers, caller.name), upstreams=settings.upstreams
    )
    weights = {entry.name: entry.weight for entry in settings.upstreams}
    names = {entry.caller_name for entry in settings.api_keys}
    lines = [_caller_line(settings, asked.key), f"endpoint {facts.endpoint.name.lower()}: {method} {asked.path}"]
    if asked.model is not None and model is None:
        lines.append("model: none is read from requests of this path, and routes by `models` are not for it")
    if model is None and facts.row is not None and facts.row.fills and found.route is not None:
        model = found.route.model_of_unnamed
        if model is not None:
            lines.append(f"model {model}: that of the route, as the request names none")
    error = _expired(asked) or _refused_at_once(settings, caller, head, asked.model)
    if error is None:
        lines += [*_passed(found.passed, names), *_taken(found, weights)]
        error = _without_way(found, model) or _without_api(settings, found, facts, head.path)
    if error is None:
        lines += _limits(settings, caller, asked.key, model)
        if method == "POST" and runs_model(facts):
            lines += _budgets(settings, caller, asked.key, model)
    lines.append("forwarded" if error is None else f"refused with {error.status} {error.reason.code}: {error.message}")
    return error is None, [on_one_line(line) for line in lines]


def _model(facts: PathFacts, asked: str | None) -> str | None:
    """Return the model that the gateway reads from a request whose body names `asked`; None: it reads none."""
    if facts.path_model is not None:
        return facts.path_model
    if facts.named is not None:
        return facts.named.model
    return asked if facts.reads_body or facts.upgrades else None


def _caller_line(settings: Settings, key: KeyEntry | None) -> str:
    if key is None:
        return "caller: any with a key" if settings.requires_keys else "caller: anyone, no key is required"
    place = f" ({key.where})" if key.where else ""
    models = f": models {', '.join(key.terms.models)}" if key.terms.models else ""
    return f"caller {key.caller_name}{place}{models}"


def _expired(asked: ExplainedRequest) -> VeloxError | None:
    if asked.key is None or not asked.key.has_expired(asked.now_s):
        return None
    return VeloxError(Reason.AUTH_INVALID, "the key has expired")


def _refused_at_once(settings: Settings, caller: Caller, head: RequestHead, model: str | None) -> VeloxError | None:
    """Return how the gateway would refuse the request before it looks for a route."""
    try:
        Routes(settings.paths).check(head)
        check_model(caller, head, model)
    except VeloxError as error:
        return error
    return None


def _without_way(found: Explanation, model: str | None) -> VeloxError | None:
    if found.route is None:
        reason = Reason.UNKNOWN_ROUTE if model is None else Reason.UNKNOWN_MODEL
        return VeloxError(reason, "no route is for this request")
    if not found.targets and not found.fallbacks:
        return VeloxError(Reason.UNKNOWN_MODEL, "no upstream of this route has the model")
    return None


def _without_api(settings: Settings, found: Explanation, facts: PathFacts, path: bytes) -> VeloxError | None:
    """Return the refusal of a path that no provider of the route has, of those that pass as they came."""
    if facts.client_api is not None:
        return None  # what can be translated depends on the model
    entries = {entry.name: entry for entry in settings.upstreams}
    rows = {entries[target.upstream].provider for target in (*found.targets, *found.fallbacks)}
    if any(takes_path(PROVIDERS[name], facts.endpoint, path) for name in rows):
        return None
    return VeloxError(Reason.UNKNOWN_ROUTE, "the provider of this upstream has no API for this path")


def _limits(settings: Settings, caller: Caller, key: KeyEntry | None, model: str | None) -> list[str]:
    found = []
    for rule in rules_of(caller, settings.limit_rules):
        if rule.of_key and key is not None and key.terms.rates != NO_RATES:
            rule = replace(rule, name=f"key {key.caller_name}", where=key.where or "VELOX_API_KEYS")
        if not rule.models or (model is not None and any(matches(pattern, model) for pattern in rule.models)):
            found.append(rule)
    return rule_lines(settings, found) or ["limit: none"]


def _budgets(settings: Settings, caller: Caller, key: KeyEntry | None, model: str | None) -> list[str]:
    """Say which budgets count the request. What is left of them is known only where it is spent."""
    own = [rule if key is None else replace(rule, where=key.where) for rule in own_rules(caller)]
    spender = spender_of(caller, model or "")
    return budget_rule_lines(settings, [rule for rule in (*settings.budgets, *own) if subjects(rule, spender)])


def _passed(passed: Sequence[Passed], names: set[str]) -> Iterator[str]:
    for each in passed[:_MOST_PASSED]:
        wanted = shown_keys(each.route.match.keys, names) if each.field == "keys" else each.wanted
        yield f"not {_called(each.route)}: it is for {each.field} {wanted}; here {each.was}"
    if len(passed) > _MOST_PASSED:
        yield f"not {len(passed) - _MOST_PASSED} more"


def _taken(found: Explanation, weights: Mapping[str, int]) -> Iterator[str]:
    route = found.route
    if route is None:
        return
    yield f"route {_called(route)}: the first that is for this request"
    shares = [f"{route.canary.percent:g}% to {route.canary.to}"] if route.canary is not None else []
    if found.targets:
        how = f", {_how(route)}" if len(found.targets) > 1 else ""
        yield f"  first {_weighed(found.targets, weights)}{how}"
    for target in found.fallbacks:
        yield f"  then {target}"
    for share in shares:
        yield f"  but {share}"
    if route.mirror is not None:
        yield f"  and a copy of {route.mirror.percent:g}% to {route.mirror.to}"
    if found.unusable:
        yield f"  never {_targets(found.unusable)}: not among its models"


def _how(route: RouteEntry) -> str:
    return f"always the same one for the same {route.hash_on}" if route.balance == "hash" else _HOW[route.balance]


def _called(route: RouteEntry) -> str:
    return f"{route.name} ({route.where})" if route.where else route.name


def _weighed(targets: Iterable[Target], weights: Mapping[str, int]) -> str:
    """Return targets with their weights, where these are not all alike."""
    found = list(targets)
    if len({weights[target.upstream] for target in found}) < 2:
        return _targets(found)
    return ", ".join(f"{target} weight {weights[target.upstream]}" for target in found)


def _targets(targets: Iterable[Target]) -> str:
    return ", ".join(map(str, targets))
