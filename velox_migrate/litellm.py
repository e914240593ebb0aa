"""`velox import litellm`: from the configuration of a LiteLLM proxy to a Velox file, and all that has no place in one.

Knows: the sections of the file, and what of them Velox has too. Does not know: files and the command line: text comes
in, text and notes go out. Every setting that is not taken is named.

Sources: LiteLLM's documentation, docs/proxy/configs, config_settings, load_balancing, reliability and tag_routing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from velox.outcomes import Refusal
from velox.policy.patterns import covers
from velox.policy.routes.entries import Balance
from velox.settings.problems import Problem
from velox.settings.yaml.nodes import compose, place, tree_of
from velox.settings.yaml.tree import Entry, Tree
from velox_migrate.deployments import Reader
from velox_migrate.groups import Balances, Fallbacks, Limit, Route, Routes, with_weights
from velox_migrate.meanings import section_setting
from velox_migrate.native import NATIVE
from velox_migrate.notes import Notes, shown_name
from velox_migrate.providers import PROVIDERS
from velox_migrate.source import Part, items_of, variable_of
from velox_migrate.writing import Setting, write

__all__ = ["Imported", "import_litellm"]

_STRATEGIES: Final[Mapping[str, Balance]] = {
    "simple-shuffle": "round_robin",
    "least-busy": "least_inflight",
    "latency-based-routing": "peak_ewma",
}
# Fallbacks that are asked after one refusal only.
_OF_REFUSALS: Final[Mapping[str, Refusal]] = {
    "context_window_fallbacks": Refusal.CONTEXT_LENGTH,
    "content_policy_fallbacks": Refusal.CONTENT_FILTER,
}
_MOST_RETRIES: Final = 5
_MOST_LIMITS: Final = 256
_MOST_UPSTREAMS: Final = 256
_LONGEST_S: Final = 86_400.0
_SHORTEST_S: Final = 0.001
_MOST_CONCURRENCY: Final = 10_000_000
_REFERENCES: Final = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of a file. text: the Velox file; None where nothing of it could be one, `problems` or notes say why."""

    text: str | None
    notes: Notes
    problems: tuple[Problem, ...] = ()


def import_litellm(content: bytes, path: str, environ: Mapping[str, str]) -> Imported:
    """Return the Velox file for a LiteLLM configuration. path: how notes call it.

    environ: where os.environ/NAME is looked up for what is no secret; a key is never looked up.
    """
    notes = Notes(path)
    root, problems = compose(content, path)
    if root is not None and not problems and not isinstance(root, yaml.MappingNode):
        problems = [Problem("the file", "", "expected `model_list` and other fields", where=place(path, root))]
    if problems or not isinstance(root, yaml.MappingNode):
        return Imported(None, notes, tuple(problems or [Problem("the file", "", "expected fields", where=path)]))
    entries = []
    for key, value in root.value:
        tree, found = tree_of(path, "a field", value)
        problems += found
        if tree is not None and isinstance(key, yaml.ScalarNode):
            entries.append(Entry(key.value, place(path, key), tree))
    if problems:
        return Imported(None, notes, tuple(problems))
    top = Tree(f"{path}:1", fields=tuple(entries))
    taken = set(_REFERENCES.findall(content.decode("utf-8", "replace")))
    taken |= {each.key for each in PROVIDERS.values()} | {each.key for each in NATIVE.values()}
    return Imported(_File(top, notes, environ).convert(taken), notes)


class _File:
    """One import."""

    def __init__(self, tree: Tree, notes: Notes, environ: Mapping[str, str]) -> None:
        self._notes: Final = notes
        self._environ = dict(environ)
        self._top: Final = Part(tree, "", notes, environ)
        self._settings: list[Setting] = []

    def convert(self, taken: set[str]) -> str | None:
        """Return the Velox file, None if there is no route in it. taken: names that no new variable may have."""
        self._variables()
        top, notes = self._top, self._notes
        router, library, server = (top.part(f"{name}_settings") for name in ("router", "litellm", "general"))
        parallel, _ = router.number("default_max_parallel_requests")
        credentials = top.take("credential_list")
        reader = Reader(notes, self._environ, credentials, taken, parallel=int(parallel or 0))
        items = items_of(top.take("model_list"))
        deployments = [found for item in items if (found := reader.read(item)) is not None]
        balances = self._balances(router)
        by_tag = self._by_tag(router)
        if not by_tag:
            self._note_unused_tags(items)
        fallbacks = Fallbacks()
        of_refusals = [Fallbacks(setting, refusal) for setting, refusal in _OF_REFUSALS.items()]
        most = self._first(router, library, "max_fallbacks", "max_fallbacks")
        for each in (fallbacks, *of_refusals):
            for part in (router, library):
                self._add_fallbacks(part, each)
            each.most = int(most[0]) if most else each.most
        weights = with_weights(deployments, balances, notes)
        self._add_default_fallbacks((router, library), fallbacks)
        for where in (*fallbacks.wheres.values(), fallbacks.others_where):
            if where:
                text = (
                    "they are asked after no connection, no answer in time, a 404 that says that the model is missing,"
                    " and the statuses of VELOX_RETRY_STATUSES; LiteLLM asks them after any error, 401 too: add such"
                    " statuses there if you want that"
                )
                notes.changed("fallbacks", text, where)
        aliases = self._aliases(router)
        refused = {*reader.refused, *reader.refused_ids} - {"", *(each.group for each in deployments)}
        every = (fallbacks, *of_refusals)
        maker = Routes(weights, aliases, every, notes, by_tag=by_tag, balances=balances, refused=refused)
        routes = maker.make()
        names = {name: where for name, (_, where) in aliases.items()}
        self._note_shadowed_names(
            {**names, **reader.refused, **{each.group: each.where for each in deployments}}, routes
        )
        upstreams = {each.to for route in routes for each in route.to + route.fallback}
        if len(upstreams) > _MOST_UPSTREAMS:
            text = f"{len(upstreams)} upstreams come of it, and Velox has {_MOST_UPSTREAMS} at most: leave some out"
            notes.changed("model_list", text, routes[0].wheres[0])
        limits = maker.limits(routes)
        self._note_limits(limits)
        notes.keep_variables(
            {each.to.key.removeprefix("env:") for route in routes for each in route.to + route.fallback}
        )
        self._retries(router, library, any(each.refusal is None for route in routes for each in route.fallback))
        self._timeouts(router, library)
        self._server(server)
        for part in (router, library, server, top):
            part.leave_rest(section_setting(part.name))
        return write(self._settings, routes, limits[:_MOST_LIMITS], notes) if routes else None

    def _note_limits(self, limits: Sequence[Limit]) -> None:
        """Tell what became of rpm and tpm."""
        for limit in limits:
            text = (
                "the sum of the group's is a limit of its models, counted before a fallback is thought of; LiteLLM's"
                " simple-shuffle takes it for a weight only. Remove it from `limits` if it was meant as that"
            )
            self._notes.changed("rpm, tpm", text, limit.where)
        if len(limits) > _MOST_LIMITS:
            most = f"Velox has {_MOST_LIMITS} limits at most"
            self._notes.left_out("rpm, tpm", most, limits[_MOST_LIMITS].where)

    def _note_shadowed_names(self, names: Mapping[str, str], routes: Sequence[Route]) -> None:
        """Tell which names have no route, and now lead to another provider, because one with `*` takes them, too."""
        models = [model for route in routes for model in route.models]
        for name, where in names.items():
            pattern = next((model for model in models if covers(model, name)), None)
            if name not in models and pattern is not None:
                text = (
                    f"requests for it now go where the route of {pattern} leads, unless you remove that or give it one"
                )
                self._notes.changed(f"model_name {name}", text, where)

    def _variables(self) -> None:
        """Take environment_variables: they stand for what is no secret; the others Velox needs in its own."""
        tree = self._top.take("environment_variables")
        for entry in (tree.fields or ()) if tree is not None else ():
            if entry.value.text and variable_of(entry.value.text) is None:
                self._environ.setdefault(entry.key, entry.value.text)
            text = "Velox sets no variables: if its file refers to this one, set it where Velox is started"
            self._notes.left_out(f"environment_variables.{shown_name(entry.key)}", text, entry.where)

    def _balances(self, router: Part) -> Balances:
        """Return the usual strategy, and those of routing_groups, each of which has several names of models."""
        usual = self._strategy(router)
        found: dict[str, Balance] = {}
        for item in items_of(router.take("routing_groups")):
            group = Part(item, "routing_groups", self._notes, self._environ)
            name, where = group.text("group_name")
            balance = self._strategy(group)
            for model in items_of(group.take("models")):
                found.setdefault(model.text or "", balance)
            group.leave_rest(section_setting("router_settings"))
            if name:
                group.leave("group_name", "nothing has its name in Velox: ask for the models themselves", where)
        return Balances(usual, found)

    def _strategy(self, part: Part) -> Balance:
        text, where = part.text("routing_strategy")
        if text and text not in _STRATEGIES:
            known = re.fullmatch(r"[a-z0-9-]{1,40}", text)
            subject = f"{part.name}.routing_strategy {text}" if known else f"{part.name}.routing_strategy"
            why = "Velox has no such balance; round_robin by weight replaces it (docs/routes.md has the others)"
            self._notes.changed(subject, why, where)
        return _STRATEGIES.get(text, "round_robin")

    def _by_tag(self, router: Part) -> bool:
        text, where = router.text("enable_tag_filtering")
        if not _is_on(text):
            return False
        why = (
            "clients name tags in the header x-velox-tag, not x-litellm-tags; Velox looks for none in a body or a key's"
            " metadata, and a tag that no deployment has leads where no tag does, instead of being refused"
        )
        self._notes.changed("router_settings.enable_tag_filtering", why, where)
        return True

    def _note_unused_tags(self, items: object) -> None:
        """Without tag filtering tags are for reports only."""
        for item in items if isinstance(items, tuple) else ():
            for entry in item.fields or ():
                for field in entry.value.fields or () if entry.key == "litellm_params" else ():
                    if field.key == "tags":
                        why = "without enable_tag_filtering they are for reports of spend: give `tags` to keys"
                        self._notes.left_out("litellm_params.tags", why, field.where)

    def _aliases(self, router: Part) -> dict[str, tuple[str, str]]:
        """Return each alias with its group, and where it stands."""
        found: dict[str, tuple[str, str]] = {}
        for entry in router.part("model_group_alias").rest():
            inner = Part(entry.value, "model_group_alias", self._notes, self._environ)
            name = entry.value.text or inner.text("model")[0]
            hidden, where = inner.text("hidden")
            if _is_on(hidden):
                why = "callers that may use a model see it in /v1/models; a key's `models` decide"
                inner.leave("hidden", why, where)
            inner.leave_rest(section_setting("router_settings"))
            if name and re.fullmatch(r"[!-+\--~]{1,256}", entry.key) and "*" not in entry.key:
                found[entry.key] = (name, entry.where)
            else:
                self._notes.left_out("model_group_alias", "it is no name of one model", entry.where)
        return found

    def _add_fallbacks(self, part: Part, fallbacks: Fallbacks) -> None:
        key = fallbacks.setting
        for item in items_of(part.take(key)):
            if item.fields is None:
                part.leave(key, "it is not NAME: [OTHER, ...]", item.where)
            for entry in item.fields or ():
                names = self._names(part, key, entry.value)
                if entry.key == "*" and fallbacks.refusal is not None:
                    part.leave(key, "those of `*` are not for every name here: name the models", entry.where)
                elif entry.key == "*" and not fallbacks.of_others:
                    fallbacks.of_others, fallbacks.others_where = names, entry.where
                elif entry.key == "*":
                    part.leave(key, "there are fallbacks of `*` already: those before count", entry.where)
                elif entry.key in fallbacks.by_name:
                    part.leave(key, "this name has fallbacks already: those before count", entry.where)
                    continue
                else:
                    fallbacks.by_name[entry.key] = names
                    fallbacks.wheres[entry.key] = entry.where

    def _add_default_fallbacks(self, parts: Sequence[Part], fallbacks: Fallbacks) -> None:
        """Take what is asked instead of a name without fallbacks. It counts before those of `*`."""
        given = [(part, tree) for part in parts if (tree := part.take("default_fallbacks")) is not None]
        for part, tree in given[1:]:
            part.leave("default_fallbacks", "those of router_settings count before it", tree.where)
        for part, tree in given[:1]:
            if fallbacks.of_others:
                part.leave("fallbacks", "default_fallbacks count before those of `*`", fallbacks.others_where)
            fallbacks.of_others = self._names(part, "default_fallbacks", tree)
            fallbacks.others_where = tree.where

    def _names(self, part: Part, key: str, tree: Tree) -> list[str]:
        names = []
        for item in items_of(tree):
            if item.text:
                names.append(item.text)
            else:
                part.leave(key, "a fallback is a model's name: what else is in it can't be changed for one", item.where)
        return names

    def _retries(self, router: Part, library: Part, with_fallbacks: bool) -> None:
        """Write how often is tried again. Each fallback is asked besides, but none with 0 retries."""
        given = self._first(router, library, "num_retries", "num_retries")
        if given is None:
            return
        wanted, where = int(given[0]), given[1]
        retries = min(wanted, _MOST_RETRIES)
        if wanted > retries:
            self._notes.changed("num_retries", f"Velox tries again {_MOST_RETRIES} times at most", where)
        if not wanted and with_fallbacks:
            retries = 1
            self._notes.changed("num_retries", "it is 1, as with 0 Velox would ask no fallback either", where)
        self._settings.append(("retries", str(retries), where))

    def _first(self, router: Part, library: Part, key: str, key_of_library: str) -> tuple[float, str] | None:
        """Return what router_settings say, or else litellm_settings; and where."""
        (number, where), (other, other_where) = router.number(key), library.number(key_of_library)
        if key == "timeout":
            number = _unless_zero(router, key, number, where)
            other = _unless_zero(library, key_of_library, other, other_where)
        if number is not None and other is not None:
            library.leave(key_of_library, f"router_settings.{key} counts before it", other_where)
        if number is not None:
            return number, where
        return None if other is None else (other, other_where)

    def _timeouts(self, router: Part, library: Part) -> None:
        given = self._first(router, library, "timeout", "request_timeout")
        if given is not None:
            seconds = f"{min(max(given[0], _SHORTEST_S), _LONGEST_S):.12g}s"
            # A reply that is no stream comes whole: its first byte may take as long as all of it.
            self._settings += [(f"upstream_{name}_timeout", seconds, given[1]) for name in ("first_byte", "total")]
        stream, where = router.number("stream_timeout")
        if stream:
            seconds = f"{min(max(stream, _SHORTEST_S), _LONGEST_S):.12g}s"
            self._settings.append(("upstream_idle_timeout", seconds, where))
            text = "it is the longest silence inside a reply; first_byte is one for streams and other replies"
            self._notes.changed("stream_timeout", text, where)

    def _server(self, server: Part) -> None:
        most, where = server.number("global_max_parallel_requests")
        if most:
            self._settings.append(("rate_limit_concurrency", str(min(int(most), _MOST_CONCURRENCY)), where))
        key = server.take("master_key")
        if key is not None:
            meaning = "keys that clients must present, with commas between, or sha256:HEX of them"
            self._notes.variables["VELOX_API_KEYS"] = f"{meaning}; master_key is one ({key.where})"
            text = "it opens the way to models only; what administers is VELOX_ADMIN_TOKEN"
            self._notes.changed("general_settings.master_key", text, key.where)


def _unless_zero(part: Part, key: str, number: float | None, where: str) -> float | None:
    """Return a time; None for 0, by which LiteLLM has its default: as a time it would let no request through."""
    if number == 0:
        part.leave(
            key, "0 is LiteLLM's default, 6,000 s; set upstream_first_byte_timeout and upstream_total_timeout", where
        )
        return None
    return number


def _is_on(text: str) -> bool:
    return text.lower() in ("true", "yes", "on", "1")
