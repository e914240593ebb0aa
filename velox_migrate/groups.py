"""The groups of LiteLLM as routes: deployments of one model_name, aliases, tags, fallbacks, and names with `*`.

Knows: which deployments a name stands for, and what Velox can't say of it. Does not know: YAML, or what a route looks
like in a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from velox.outcomes import Refusal
from velox.policy.patterns import is_exact, matches
from velox.policy.routes.entries import Balance
from velox_migrate.deployments import Deployment, Destination, is_name
from velox_migrate.notes import Notes

__all__ = ["Balances", "Fallbacks", "Limit", "Route", "Routes", "Target", "with_weights"]

_SHARES: Final = ("weight", "rpm", "tpm")  # as in Deployment.share
_MOST_WEIGHT: Final = 1000
_MOST_TARGETS: Final = 64


@dataclass(frozen=True, slots=True)
class Target:
    """A destination and the model that it is asked for. None: the one that the client names.

    refusal: of a fallback that is asked only after this one of another's model. strip: what is taken off the beginning
    of the client's name.
    """

    to: Destination
    model: str | None
    refusal: Refusal | None = None
    strip: str = ""


@dataclass(slots=True)
class Route:
    """One route. name: as it begins. models: what clients ask for. wheres: what it was made from."""

    name: str
    models: list[str]
    to: list[Target]
    fallback: list[Target] = field(default_factory=list)
    tag: str = ""
    balance: Balance = "round_robin"
    wheres: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Limit:
    """What all deployments of a group may get together. None: not said of each of them."""

    models: tuple[str, ...]
    rpm: int | None
    tpm: int | None
    where: str


@dataclass(slots=True)
class Fallbacks:
    """What is asked instead: names, by the name that a client asks for; and those of a name without its own.

    wheres: by name. most: how many names deep, as a fallback has its own fallbacks. setting: where they stand.
    refusal: what they are for; None: any failure.
    """

    setting: str = "fallbacks"
    refusal: Refusal | None = None
    by_name: dict[str, list[str]] = field(default_factory=dict)
    of_others: list[str] = field(default_factory=list)
    wheres: dict[str, str] = field(default_factory=dict)
    others_where: str = ""
    most: int = 5  # LiteLLM's own (ROUTER_MAX_FALLBACKS)

    def of(self, name: str) -> list[str]:
        """Return the names to ask instead of one, in order, each with those to ask instead of it; each once."""
        return list(self._of(name, 0, {name}))

    def _of(self, name: str, depth: int, seen: set[str]) -> Iterator[str]:
        # As run_async_fallback() of LiteLLM counts: those before in the list are steps, too.
        for step, other in enumerate(self.by_name.get(name, self.of_others) if depth < self.most else (), 1):
            if other not in seen:
                seen.add(other)
                yield other
                yield from self._of(other, depth + step, seen)


@dataclass(frozen=True, slots=True)
class Balances:
    """How each group is balanced: as usual, or as its routing group says."""

    usual: Balance
    by_group: Mapping[str, Balance] = field(default_factory=dict)

    def of(self, group: str) -> Balance:
        """Return how a group is balanced."""
        return self.by_group.get(group, self.usual)


def with_weights(deployments: Sequence[Deployment], balances: Balances, notes: Notes) -> list[Deployment]:
    """Return the deployments with their weights, 1 to 1000, where a group has several.

    In turn means: by the first of weight, rpm and tpm that the group's first one has, as LiteLLM does. Else all are
    equal. One that has 0 of it gets 0, and no part of the requests; one that has none is asked after the others.
    """
    by_group: dict[str, list[Deployment]] = {}
    for each in deployments:
        by_group.setdefault(each.group, []).append(each)
    found = []
    for each in deployments:
        group = by_group[each.group]
        by_share = balances.of(each.group) == "round_robin"
        kind = next((n for n in range(3) if by_share and group[0].share[n] is not None), None)
        shares = [1.0 if kind is None else (other.share[kind] or 0.0) for other in group]
        if len(group) == 1:
            found.append(each)
        elif kind is not None and any(shares) and not each.share[kind]:
            found.append(_without_share(each, kind, notes))
        else:
            found.append(each.weighing(_weight(shares, group.index(each))))
    # One that is alone takes the weight that its destination has elsewhere: then they are one upstream.
    weights = {replace(each.to, weight=None): each.to.weight for each in reversed(found) if each.to.weight}
    return [each if each.to.weight is not None else each.weighing(weights.get(each.to) or 1) for each in found]


def _without_share(each: Deployment, kind: int, notes: Notes) -> Deployment:
    """Return a deployment that has no share beside others that have one as what it is then, and tell it."""
    name, share = f"model_name {_shown(each.group)}", _SHARES[kind]
    if each.share[kind] is None:
        text = f"it has no {share}: LiteLLM asks it only while the first one can't be asked, so it is a fallback"
        notes.changed(name, text, each.where)
        return replace(each, is_spare=True)
    text = f"its {share} is 0: LiteLLM never asks it beside the others, so no route leads there"
    notes.left_out(name, text, each.where)
    return each.weighing(0)


def _weight(shares: Sequence[float], n: int) -> int:
    if all(share.is_integer() for share in shares):
        divisor = math.gcd(*(int(share) for share in shares)) or 1
        shares = [share / divisor for share in shares]
    most = max(shares)
    if most > _MOST_WEIGHT or not all(share.is_integer() for share in shares):
        shares = [share * _MOST_WEIGHT / most for share in shares]
    return max(1, round(shares[n]))


class Routes:
    """Makes the routes. aliases: name to group, which counts before a group of that name. by_tag: tags choose.

    refused: names and ids of deployments that Velox can't ask. None of them leads where a group with `*` does: the same
    name at another provider is another model, or none.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        aliases: Mapping[str, tuple[str, str]],
        fallbacks: Sequence[Fallbacks],
        notes: Notes,
        *,
        by_tag: bool,
        balances: Balances,
        refused: Collection[str] = (),
    ) -> None:
        self._refused: Final = refused
        self._deployments: Final = tuple(deployments)
        self._groups: Final[dict[str, list[Deployment]]] = {}
        for each in self._deployments:
            if each.to.weight != 0:
                self._groups.setdefault(each.group, []).append(each)
        self._aliases: Final = aliases
        self._fallbacks: Final = fallbacks
        self._notes: Final = notes
        self._by_tag: Final = by_tag
        self._balances: Final = balances

    def make(self) -> list[Route]:
        """Return the routes in the order in which they are to stand."""
        routes = []
        for group, deployments in self._groups.items():
            if is_exact(group) and group not in self._aliases:
                routes += self._of_name(group, deployments[0].where)
        for name, (_, where) in self._aliases.items():
            self._join(routes, self._of_name(name, where))
        # Names that only a group with `*` has, and of which something is said.
        known = {*self._groups, *self._aliases}
        for name, where in (pair for each in self._fallbacks for pair in each.wheres.items()):
            if is_exact(name) and is_name(name) and name not in known:
                known.add(name)
                routes += self._of_name(name, where)
        patterns = sorted((group for group in self._groups if not is_exact(group)), key=_literal_chars, reverse=True)
        for group in patterns:
            routes += self._of_pattern(group)
        for fallbacks in self._fallbacks:
            for name, where in fallbacks.wheres.items():
                if name not in self._groups and not self._resolve(name):
                    self._notes.left_out(fallbacks.setting, "of a name that no deployment here is for", where)
        return routes

    def limits(self, routes: Sequence[Route]) -> list[Limit]:
        """Return what each group may get, where each of its deployments says so."""
        found = []
        for group, deployments in self._groups.items():
            models = tuple(
                dict.fromkeys(
                    name
                    for route in routes
                    for name in route.models
                    if name == group or self._aliases.get(name, ("", ""))[0] == group
                )
            )
            rpm, tpm = _sum(each.rpm for each in deployments), _sum(each.tpm for each in deployments)
            if models and (rpm or tpm):
                found.append(Limit(models, rpm, tpm, deployments[0].where))
        return found

    def _of_name(self, name: str, where: str) -> list[Route]:
        """Return the routes of one name: of each tag first, then the one for all other requests."""
        deployments = self._resolve(name)
        if not deployments:
            if name in self._aliases:
                self._notes.left_out("model_group_alias", "of a group that is not here any more", where)
            return []
        wheres = [each.where for each, _ in deployments]
        routes = []
        tags = dict.fromkeys(tag for each, _ in deployments for tag in each.tags) if self._by_tag else {}
        for tag in tags:
            if tag != "default":
                tagged = [pair for pair in deployments if tag in pair[0].tags]
                routes.append(self._route(name, tagged, tag, wheres))
        default = [pair for pair in deployments if self._by_tag and "default" in pair[0].tags]
        routes.append(self._route(name, default or deployments, "", wheres))
        return routes

    def _route(self, name: str, pairs: Sequence[tuple[Deployment, str]], tag: str, wheres: Sequence[str]) -> Route:
        first = min((_rank(each) for each, _ in pairs), default=(0.0, False))
        to = _unique(Target(each.to, model) for each, model in pairs if _rank(each) == first)
        later = sorted((pair for pair in pairs if _rank(pair[0]) > first), key=lambda pair: _rank(pair[0]))
        fallback = [Target(each.to, model) for each, model in later]
        fallback += self._fallbacks_of(name, wheres[0], to)
        return self._made(name, to, [each for each in _unique(fallback) if each not in to], wheres, tag)

    def _of_pattern(self, group: str) -> list[Route]:
        """Return the route of a name with `*`: the provider is asked for what the client asks for, or for one model."""
        pairs: list[tuple[Deployment, str | None, str]] = []
        for each in self._groups[group]:
            if each.model == group or is_exact(each.model):
                pairs.append((each, None if each.model == group else each.model, ""))
                continue
            if group.endswith(each.model) and group.count("*") == each.model.count("*") == 1:
                pairs.append((each, None, group.removesuffix(each.model)))
                continue
            self._notes.left_out(f"model_name {_shown(group)}", _manual_steps(each), each.where)
        if not pairs:
            return []
        wheres = [each.where for each, _, _ in pairs]
        targets = [(Target(each.to, model, strip=strip), each.is_spare) for each, model, strip in pairs]
        spares = [target for target, is_spare in targets if is_spare]
        to = _unique(target for target, is_spare in targets if not is_spare) or _unique(spares)
        others = _unique([*spares, *self._fallbacks_of(group, wheres[0], to)])
        return [self._made(group, to, [each for each in others if each not in to], wheres)]

    def _fallbacks_of(self, name: str, where: str, to: Collection[Target]) -> list[Target]:
        """Return what is asked instead of a name, those for one refusal last. What can't be is left out, and told."""
        targets: list[Target] = []
        for fallbacks in self._fallbacks:
            setting, refusal = fallbacks.setting, fallbacks.refusal
            place = fallbacks.wheres.get(name) or fallbacks.others_where or where
            for other in self._others(name, fallbacks):
                found = self._resolve(other)
                if not found:
                    self._notes.left_out(setting, f"{_shown(other)} is no model that is carried over", place)
                if refusal is not None and any(Target(each.to, model) in to for each, model in found):
                    text = f"a deployment of {_shown(other)} is one of {_shown(name)}, which refused the request"
                    self._notes.left_out(setting, text, place)
                    found = [(each, model) for each, model in found if Target(each.to, model) not in to]
                targets += [Target(each.to, model, refusal) for each, model in found]
        return targets

    def _made(self, name: str, to: list[Target], fallback: list[Target], wheres: Iterable[str], tag: str = "") -> Route:
        if len(to) > _MOST_TARGETS or len(fallback) > _MOST_TARGETS:
            text = f"a route has {_MOST_TARGETS} upstreams at most: those after them are left out"
            self._notes.left_out(_shown(name), text, next(iter(wheres)))
        places = list(dict.fromkeys(wheres))
        balance = self._balances.of(self._group_of(name))
        return Route(name, [name], to[:_MOST_TARGETS], fallback[:_MOST_TARGETS], tag, balance, places)

    def _group_of(self, name: str) -> str:
        """Return the group that a name stands for: its own, that of its alias, or the one whose `*` takes it."""
        name = self._aliases.get(name, (name, ""))[0]
        if name in self._groups:
            return name
        return max((group for group in self._groups if matches(group, name)), key=_literal_chars, default=name)

    def _resolve(self, name: str) -> list[tuple[Deployment, str]]:
        """Return the deployments that a name stands for, each with the model that it is asked for."""
        name = self._aliases.get(name, (name, ""))[0]
        if name in self._groups and is_exact(name):
            return [(each, each.model) for each in self._groups[name] if is_exact(each.model)]
        known = dict.fromkeys((*self._groups, *self._refused))
        patterns = [group for group in known if not is_exact(group) and matches(group, name)]
        called = self._called(name)
        if called or not patterns or not is_exact(name) or name in self._refused:
            return called
        pattern = max(patterns, key=_literal_chars)
        if pattern not in self._groups:
            return []
        before, _, after = pattern.partition("*")
        middle = name[len(before) : len(name) - len(after)]
        pairs = [(each, each.model.replace("*", middle, 1)) for each in self._groups[pattern]]
        return [pair for pair in pairs if is_exact(pair[1]) and is_name(pair[1])]

    def _called(self, number: str) -> list[tuple[Deployment, str]]:
        """Return the one deployment that has this as its id, which a fallback may name."""
        found = [each for each in self._deployments if number and each.id == number]
        return [(each, each.model) for each in found if is_exact(each.model)]

    def _others(self, name: str, fallbacks: Fallbacks) -> list[str]:
        """Return the names to ask instead of one. An alias of which nothing is said has those of its group."""
        group = self._aliases.get(name, (name, ""))[0]
        return fallbacks.of(name if name in fallbacks.by_name else group)

    def _join(self, routes: list[Route], found: Sequence[Route]) -> None:
        """Add the routes of an alias: its name joins a route that leads to the same."""
        for new in found:
            for route in routes:
                if (route.to, route.fallback, route.tag) == (new.to, new.fallback, new.tag):
                    route.models += new.models
                    break
            else:
                routes.append(new)


def _unique(targets: Iterable[Target]) -> list[Target]:
    return list(dict.fromkeys(targets))


def _sum(values: Iterable[float | None]) -> int | None:
    found = list(values)
    return None if not all(found) else max(1, round(sum(value or 0.0 for value in found)))


def _rank(deployment: Deployment) -> tuple[float, bool]:
    return math.inf if deployment.order is None else deployment.order, deployment.is_spare


def _manual_steps(each: Deployment) -> str:
    """Tell what to write for a group with `*` whose names the provider does not know."""
    keys = f", keys: [{each.to.key}]" if each.to.key else ""
    place = f"provider: {each.to.provider}" if each.to.provider else f"origin: {each.to.origin}"
    asked, known = each.group.replace("*", "NAME", 1), each.model.replace("*", "NAME", 1)
    return (
        "Velox can't add a part to a name: let clients use the provider's names,"
        " or write for each model"
        f" `- {{name: ROUTE, match: {{models: [{asked}]}}, to: {each.to.base}, model: {known}}}` under routes,"
        f" and `- {{name: {each.to.base}, {place}{keys}}}` under upstreams, if it is not there"
    )


def _literal_chars(pattern: str) -> int:
    return len(pattern) - pattern.count("*")


def _shown(name: str) -> str:
    """Return a model's name for a note; what can't be one is not shown."""
    return name if re.fullmatch(r"[!-~]{1,128}", name) else "one of the names"
