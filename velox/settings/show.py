"""The settings as people read them: the lines of `velox check`, and the table of docs/settings.md.

Knows: how each kind of value is written, every rule, upstream and route, and where each was written. Does not know: who
prints them. No secret is shown, no value of a header that is set, and no name of a key that no key has: either may be a
secret by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Final

from velox.policy.budgets.budget import period_text, usd_text
from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.limit_rules import LimitRule, called
from velox.policy.routes.entries import HeaderRules, Match, RouteEntry, Target, UpstreamEntry
from velox.policy.routes.proxies import proxy_of
from velox.providers.provider import Keyless
from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.providers.target import apis_of, origin_of
from velox.settings.model import VARIABLES, Settings
from velox.settings.problems import on_one_line
from velox.settings.routing.header_rules import CREDENTIALS
from velox.settings.routing.provider_fields import api_names
from velox.settings.variable import Variable
from velox.types import NO_RATES, ApiKind, Budget, KeyEntry, Rates, Secret

__all__ = [
    "budget_lines",
    "budget_rule_lines",
    "by_proxies",
    "effective",
    "is_keyless",
    "limit_lines",
    "markdown",
    "match_text",
    "route_lines",
    "rule_lines",
    "shown_keys",
    "upstream_lines",
]

# What None means to these.
_OFF: Final = frozenset({"admin_listen", "memory_soft_bytes", "memory_hard_bytes"})
_AUTO: Final = frozenset({"pin_cpus"})
# More would push everything else out of sight.
_MOST_KEYS: Final = 20
_MOST_ROUTES: Final = 100
_KEYLESS: Final = MappingProxyType(
    {
        Keyless.CLIENT: "the client's own key",
        Keyless.AWS: "signed with AWS credentials",
        Keyless.GOOGLE: "a token of a Google account",
        Keyless.ENTRA: "a token of Microsoft Entra",
    }
)
# APIs that no client asks for.
_NOT_ASKED: Final = frozenset({ApiKind.CONVERSE, ApiKind.COUNT_CONVERSE, ApiKind.VECTORS})
_SCHEMES: Final = ("basic", "bearer")
_WIDEST: Final = 60  # a longer text moves what follows in its own line only


def effective(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (variable, value in use, where it came from) for each variable; secrets are hidden."""
    rows = []
    for variable in VARIABLES:
        origin = settings.origins[variable.name]
        if variable.field == "upstream_origins" and settings.upstreams[0].where:
            shown = "see below"
        elif variable.secret:
            # The field may come from a file: the row is about this variable only.
            shown = "none" if origin == "default" else "hidden"
        else:
            shown = _shown(variable.field, getattr(settings, variable.field))
        if shown == "none" and variable.shown_default:
            shown = variable.shown_default
        rows.append((variable.name, on_one_line(shown), origin))
    return rows


def markdown(variables: Iterable[Variable] = VARIABLES) -> str:
    """Return a table of variables in Markdown, ending with a line end. Links count from docs/."""
    lines = ["| variable | default | reload | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{v.name}` | {v.shown_default or v.default or 'none'} | {'yes' if v.is_live else 'restart'}"
        f" | {v.meaning.replace('](docs/', '](')} |"
        for v in variables
    ]
    return "\n".join(lines) + "\n"


def limit_lines(settings: Settings) -> list[str]:
    """Return a line for each limit: name, scope and filter, amounts, and where it was written."""
    rows = _rule_rows(settings, settings.limit_rules)
    own = [key for key in settings.api_keys if key.terms.rates != NO_RATES or key.terms.priority is not None]
    rows += [(f"key {key.caller_name}", "its own", _own(key), key.where) for key in own[:_MOST_KEYS]]
    lines = _aligned(rows)
    if len(own) > _MOST_KEYS:
        lines.append(f"limit: and {len(own) - _MOST_KEYS} more keys that have their own")
    return lines or ["limit: none"]


def budget_lines(settings: Settings) -> list[str]:
    """Return a line for each budget, and for those of keys."""
    rows = _budget_rows(settings, settings.budgets)
    own = [key for key in settings.api_keys if key.terms.budgets]
    for key in own[:_MOST_KEYS]:
        rows.append((f"key {key.caller_name}", "its own", ", ".join(map(_amount, key.terms.budgets)), key.where))
    lines = _lines("budget", rows) if rows else []
    if len(own) > _MOST_KEYS:
        lines.append(f"budget: and {len(own) - _MOST_KEYS} more keys that have their own")
    if settings.redis_url is not None and settings.ledger is not None and (rows or settings.managed_keys):
        lines.append(_while_redis_is_away(settings))
    return lines


def _while_redis_is_away(settings: Settings) -> str:
    what = "a strict budget spends what this gateway was granted, then its requests get 503"
    if settings.redis_fallback == "refuse":
        return f"budget: while Redis can't be asked, {what.replace('a strict', 'each')} (VELOX_REDIS_FALLBACK=refuse)"
    return (
        f"budget: while Redis can't be asked, {what}; any other spends its share besides, of which a part can be"
        " spent twice (VELOX_REDIS_FALLBACK=local)"
    )


def budget_rule_lines(settings: Settings, rules: Iterable[BudgetRule]) -> list[str]:
    """Return lines for these rules, none if there is none."""
    rows = _budget_rows(settings, rules)
    return _lines("budget", rows) if rows else []


def _budget_rows(settings: Settings, rules: Iterable[BudgetRule]) -> list[tuple[str, str, str, str]]:
    names = {key.caller_name for key in settings.api_keys}
    return [
        (rule.name, f"per {rule.scope}{_budget_filter(rule, names)}", _amount(rule.budget), rule.where)
        for rule in rules
    ]


def _budget_filter(rule: BudgetRule, known: Collection[str]) -> str:
    keys = tuple(name if name in known else "(a key that is not there)" for name in rule.keys)
    filters = {"keys": keys, "teams": rule.teams, "users": rule.users, "tags": rule.tags, "models": rule.models}
    return "".join(f", {name} {' '.join(names)}" for name, names in filters.items() if names)


def _amount(budget: Budget) -> str:
    amount = f"{budget.limit} tokens" if budget.is_tokens else f"${usd_text(budget.limit)}"
    zone = f" of {budget.zone}" if isinstance(budget.window, str) and budget.window != "total" else ""
    return f"{amount} per {period_text(budget)}{zone}{', strict' if budget.strict else ''}"


def rule_lines(settings: Settings, rules: Iterable[LimitRule]) -> list[str]:
    """Return a line for each of these rules."""
    return _aligned(_rule_rows(settings, rules))


def _rule_rows(settings: Settings, rules: Iterable[LimitRule]) -> list[tuple[str, str, str, str]]:
    names = {key.caller_name for key in settings.api_keys}
    return [
        (_rule_name(rule), f"per {rule.per}{_filter(rule, names)}", _amounts(rule.rates), _rule_origin(settings, rule))
        for rule in rules
        if rule.rates != NO_RATES
    ]


def _aligned(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    return [
        on_one_line(f"limit: {name:{widths[0]}}  {whom:{widths[1]}}  {amounts:{widths[2]}}  {origin}")
        for name, whom, amounts, origin in rows
    ]


def upstream_lines(settings: Settings) -> list[str]:
    """Return lines for each upstream: its name, where it is, where it was written; what is said of it; its APIs."""
    origin = settings.origins["VELOX_UPSTREAM_ORIGIN"]
    said = [
        _listed(_of_upstream(entry, requires_keys=settings.requires_keys), _by_proxy(entry, settings))
        for entry in settings.upstreams
    ]
    rows = [
        (entry.name, ", ".join(map(str, entry.origins)), text, entry.where or origin)
        for entry, text in zip(settings.upstreams, said, strict=True)
    ]
    lines = iter(_lines("upstream", rows))
    return [line for entry in settings.upstreams for line in (next(lines), next(lines), *_apis(entry))]


def route_lines(settings: Settings) -> list[str]:
    """Return two lines for each route: its name, what it is for, where it was written; where it leads."""
    names = {key.caller_name for key in settings.api_keys}
    shown = settings.routes[:_MOST_ROUTES]
    rows = [(route.name, match_text(route.match, names), _of_route(route), route.where or "default") for route in shown]
    lines = _lines("route", rows)
    if len(settings.routes) > len(shown):
        lines.append(f"route: and {len(settings.routes) - len(shown)} more")
    return lines


def match_text(match: Match, names: Collection[str]) -> str:
    """Describe the requests that match. names: of all keys."""
    headers = ", ".join(f"{name}: {value}" for name, value in match.headers)
    found = _listed(
        f"models {', '.join(match.models)}" if match.models else "",
        f"paths {', '.join(match.paths)}" if match.paths else "",
        f"headers {headers}" if headers else "",
        f"keys {shown_keys(match.keys, names)}" if match.keys else "",
        f"tags {', '.join(match.tags)}" if match.tags else "",
    )
    return found or "everything"


def shown_keys(keys: Iterable[str], names: Collection[str]) -> str:
    """Return the names of keys that there are, and how many there are not."""
    given = list(keys)
    known = [name for name in given if name in names]
    n_unknown = len(given) - len(known)
    return ", ".join([*known, *([f"{n_unknown} that no key has now"] if n_unknown else [])])


def _shown(field: str, value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case None:
            return "off" if field in _OFF else "auto" if field in _AUTO else "none"
        case Secret():
            return "hidden"
        case tuple() if field in ("limits", "budgets") and value:
            return f"{len(value)}, see below"
        case tuple() if value == ("/",):
            return "*"
        case tuple():
            return ",".join(map(str, value)) or "none"
        case frozenset():
            return ",".join(map(str, sorted(value))) or "none"
        case float() if field.endswith("_percent"):
            return f"{value:g}%"
        case float():
            return f"{value:g}s" if value >= 1 or value == 0 else f"{value * 1000:g}ms"
        case int() if field == "upstream_concurrency":
            return str(value or "off")
        case int() if field == "listen_mode":
            return f"{value:04o}"
        case int() if field.endswith("_bytes"):
            return _shown_size(value)
    return str(value)


def _shown_size(n_bytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if n_bytes else ():
        if n_bytes % 2**power == 0:
            return f"{n_bytes >> power}{unit}"
    return str(n_bytes)


def _rule_name(rule: LimitRule) -> str:
    """Return the rule's name; of those of variables the first one that limits something."""
    if rule.where:
        return rule.name
    return next(called(rule, each.name) for each in fields(Rates) if getattr(rule.rates, each.name))


def _filter(rule: LimitRule, names: Collection[str]) -> str:
    """Say which requests a rule counts."""
    found = _listed(
        f"keys {shown_keys(rule.keys, names)}" if rule.keys else "",
        f"models {', '.join(rule.models)}" if rule.models else "",
    )
    return f": {found}" if found else ""


def _amounts(rates: Rates) -> str:
    return _listed(
        f"{rates.rpm:,} requests a minute, {rates.burst:,} at once" if rates.rpm else "",
        f"{rates.tpm:,} tokens a minute, {rates.tpm_burst:,} at once" if rates.tpm else "",
        f"{rates.concurrency:,} running" if rates.concurrency else "",
    )


def _own(key: KeyEntry) -> str:
    priority = key.terms.priority
    return _listed(_amounts(key.terms.rates), f"priority {priority.name.lower()}" if priority is not None else "")


def _rule_origin(settings: Settings, rule: LimitRule) -> str:
    if rule.where:
        return rule.where
    origins = {settings.origins[called(rule, each.name)] for each in fields(Rates)}
    return ", ".join(sorted(origins - {"default"})) or "default"


def _of_upstream(entry: UpstreamEntry, *, requires_keys: bool) -> str:
    probe = entry.probe
    return _listed(
        _provider(entry),
        _credential(entry, requires_keys=requires_keys),
        f"http2 {entry.http2}",
        f"weight {entry.weight}" if entry.weight != 1 else "",
        f"concurrency {entry.concurrency}" if entry.concurrency else "",
        f"models {', '.join(entry.models)}" if entry.models else "",
        f"sets {_names(name for name, _ in entry.headers)}" if entry.headers else "",
        f"asks with {', '.join(name for name, _ in entry.query)}" if entry.query else "",
        f"load {entry.load}" if entry.load != "off" else "",
        f"probe {probe.path} every {probe.every_s:g}s" if probe is not None else "",
        f"ca {entry.ca_file}" if entry.ca_file is not None else "",
        f"certificate {entry.cert_file}" if entry.cert_file is not None else "",
    )


def _by_proxy(entry: UpstreamEntry, settings: Settings) -> str:
    """Return by which proxies its origins are asked, "" for none."""
    found = by_proxies(entry, settings)
    shown = dict.fromkeys(each for each in found if each is not None)
    if not shown:
        return ""
    some = f", {found.count(None)} of its origins directly" if None in found else ""
    return f"by proxy {', '.join(shown)}{some}"


def by_proxies(entry: UpstreamEntry, settings: Settings) -> list[str | None]:
    """Return the proxy before each origin of an upstream, None for none."""
    found = [proxy_of(entry.proxy, origin, settings.proxies) for origin in entry.origins]
    return [None if each is None else f"{each} ({each.where})" if each.where else str(each) for each in found]


def _provider(entry: UpstreamEntry) -> str:
    """Return its provider, and what its templates got; "" for one that says nothing of it."""
    row = PROVIDERS[entry.provider]
    origin = origin_of(row, dict(entry.parameters))
    has_own = bool(origin) and [str(each) for each in entry.origins] == [origin]
    names = [f"{name} {value}" for name, value in entry.parameters]
    shown = f"provider {row.name}" + (f" ({', '.join(names)})" if names else "")
    return "" if row is COMPATIBLE else shown if has_own or not origin else f"{shown} at an origin of its own"


def is_keyless(entry: UpstreamEntry) -> bool:
    """True for an upstream that no credential of its own goes to: the client's does, or none."""
    has_header = any(name.decode("ascii") in CREDENTIALS for name, _ in entry.headers)
    return not entry.keys and not has_header and PROVIDERS[entry.provider].keyless is Keyless.CLIENT


def _credential(entry: UpstreamEntry, *, requires_keys: bool) -> str:
    if entry.keys:
        how = "" if not entry.auth else f" as {entry.auth}" if entry.auth in _SCHEMES else f" in {entry.auth}"
        return f"keys {', '.join(map(str, entry.keys))}{how}"
    if requires_keys and is_keyless(entry):
        return "no credential"  # clients present keys of Velox, which go nowhere
    return _KEYLESS[PROVIDERS[entry.provider].keyless]


def _apis(entry: UpstreamEntry) -> Iterator[str]:
    """Yield a line for each family of models: the APIs that pass to it, and what other requests become."""
    is_split = False
    for models, native, translated in apis_of(PROVIDERS[entry.provider], dict(entry.parameters), entry.apis):
        asked = [api for api in native if api not in _NOT_ASKED]
        parts = [f"{api_names(asked)} as sent"] if asked else []
        if ApiKind.VECTORS in native:
            parts.append("embeddings translated")
        if translated is not None:
            parts.append(f"{'others' if asked else 'all'} translated to {api_names([translated])}")
        whom = f"models {', '.join(models)}" if models else "other models" if is_split else "all models"
        is_split = True
        yield f"    {whom}: {', '.join(parts)}"


def _of_route(route: RouteEntry) -> str:
    hedge, canary, mirror = route.hedge, route.canary, route.mirror
    return _listed(
        f"to {_targets(route.to)}" + (f" by {route.balance}" if len(route.to) > 1 else ""),
        f"hash on {route.hash_on}" if route.hash_on is not None else "",
        f"then {_targets(route.fallback)}" if route.fallback else "",
        f"hedge after {hedge.after}, at most {hedge.at_most_percent:g}%" if hedge is not None else "",
        f"canary {canary.percent:g}% to {canary.to}" if canary is not None else "",
        f"mirror {mirror.percent:g}% to {mirror.to}" if mirror is not None else "",
        "strict" if route.strict else "",
        f"cache {route.cache}" if route.cache is not None else "",
        f"join {route.join}" if route.join is not None else "",
        f"request {_rules(route.request_headers)}" if route.request_headers else "",
        f"response {_rules(route.response_headers)}" if route.response_headers else "",
    )


def _rules(rules: HeaderRules) -> str:
    return ", ".join(
        f"{what} {_names(names)}"
        for what, names in (("sets", [name for name, _ in rules.set]), ("removes", rules.remove))
        if names
    )


def _listed(*parts: str) -> str:
    """Return the parts that say something."""
    return "; ".join(part for part in parts if part)


def _targets(targets: Iterable[Target]) -> str:
    return ", ".join(map(str, targets))


def _names(names: Iterable[bytes]) -> str:
    return ", ".join(name.decode("ascii") for name in names)


def _lines(kind: str, rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return two lines for each row: its name, its first text and its place; then the longer text."""
    widths = [min(_WIDEST, max(len(row[at]) for row in rows)) for at in range(2)]
    lines = []
    for name, first, more, where in rows:
        lines += [f"{kind}: {name:{widths[0]}}  {first:{widths[1]}}  {where}", f"    {more}"]
    return [on_one_line(line) for line in lines]
