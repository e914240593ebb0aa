"""From the environment and the file to Settings, or to the list of everything that is wrong.

Knows: which source takes precedence, and which names are unknown. Does not know: what a single value looks like
(parse.py), which settings contradict each other (checks/), or what the process does with a problem.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from velox.settings.callers.prices import add_prices
from velox.settings.checks.certificates import collector_problems
from velox.settings.checks.contradictions import Given, add_key_file, add_token_file, contradictions
from velox.settings.checks.unused import unused_variables
from velox.settings.listening import PORT, listen_text
from velox.settings.machine import available_cores, container_memory, hard_default, soft_default
from velox.settings.model import VARIABLES, Settings
from velox.settings.problems import Problem, SettingsError, quoted, unknown
from velox.settings.routing.proxies import environment_proxies
from velox.settings.routing.routing import NESTED, add_routing
from velox.settings.routing.sdk_variables import OwnPlaces, base_url, ca_bundle
from velox.settings.telemetry import environment_traces, unknown_routes, unused_telemetry
from velox.settings.variable import CORES, MEMORY_HARD, MEMORY_SOFT, Variable
from velox.settings.yaml.file import read_file
from velox.settings.yaml.tree import Entry, Tree
from velox.types import Address, Secret

__all__ = ["AdminPlace", "admin_place", "given_texts", "load"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
# Kubernetes gives every pod these for each Service of its namespace that is called velox, or velox-something.
_KUBERNETES: Final = re.compile(
    r"VELOX_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)"
)
# This one of them somebody may have written for Velox, with a number.
_KUBERNETES_PORT: Final = re.compile(r"VELOX_(?:[A-Z0-9_]+_)?PORT=(?:tcp|udp|sctp)://.*")
_BY_NAME: Final = {variable.name: variable for variable in VARIABLES}
_BY_KEY: Final = {variable.key: variable for variable in VARIABLES if variable.name != "VELOX_CONFIG"}
_VARIABLE: Final = re.compile(r"\b(VELOX_[A-Z0-9_]+)\b(?:=(\w+))?")
# The default of each is what the other one is set to, if it is: who allows a longer wait means every one.
_FOLLOWS: Final = {
    "VELOX_UPSTREAM_STALL_TIMEOUT": "VELOX_UPSTREAM_IDLE_TIMEOUT",
    "VELOX_UPSTREAM_THINKING_TIMEOUT": "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT",
}
# What it means that one of these is empty, though its default is none: somebody meant it to be something.
_WITHOUT: Final = MappingProxyType(
    {
        **dict.fromkeys(("VELOX_API_KEYS", "VELOX_API_KEYS_FILE"), "none, so clients need no key"),
        "OPENAI_API_KEY": "none, so the upstream gets what clients send as theirs",
    }
)
_OPTIONS: Final = {
    "VELOX_CONFIG": "--config",
    "VELOX_LISTEN": "--listen",
    "VELOX_ADMIN_LISTEN": "--admin",
    "VELOX_LOG_FILE": "--log-file",
    "VELOX_PID_FILE": "--pid-file",
}
_CORS: Final = "cors"
_PLACES: Final = ("port", "host", "bind", "address", "server")
# What is expected instead of fields that people write by mistake.
_HINTS: Final = MappingProxyType(
    {
        **dict.fromkeys(_PLACES, "expected `listen`, such as `listen: 127.0.0.1:8080`"),
        **dict.fromkeys(
            ("clients", "keys", "client_keys", "users", "consumers", "tokens"),
            "expected `api_keys`, a list such as `- {name: web-shop, key: sha256:HEX}`",
        ),
        "model_list": "expected `upstreams` and `routes`; `velox import litellm` makes them of a LiteLLM file",
        **dict.fromkeys(
            ("upstream", "providers", "origins", "backends", "servers", "targets", "models"),
            "expected `upstreams`, a list such as `- {name: openai, origin: https://api.openai.com}`",
        ),
        "config": "expected no such field: a file names no other one",
    }
)
_ADMIN_PLACE: Final = (
    "VELOX_ADMIN_LISTEN",
    "VELOX_ADMIN_TOKEN",
    "VELOX_ADMIN_TOKEN_FILE",
    "VELOX_ADMIN_TLS_CERT",
)


class AdminPlace(NamedTuple):
    """Where the admin listener is. address: None if it is off. cert: file with its certificate; None: no TLS."""

    address: Address | None
    token: Secret | None
    cert: str | None
    problems: list[Problem]


def load(
    environ: Mapping[str, str],
    overrides: Mapping[str, str] = _NOTHING,
    *,
    cores: int | None = None,
    memory_bytes: int | None = None,
    sim: bool = False,
    needs_keys: bool = True,
) -> Settings:
    """Return the settings. Precedence: command line (`overrides`), environment, file, default.

    overrides: variable -> text, as in the environment; also HOST and PORT (listening.py). cores, memory_bytes: what to
    count on (None: ask the system); no memory_bytes, 0, is no limit. sim: the upstream will be the built-in simulator,
    and no provider's key in the environment makes another one. needs_keys: a provider's key that the file names must
    be here: not for who asks nothing of providers. A variable that is empty counts as not set. Raises SettingsError
    with every problem found.
    """
    reading = _Reading()
    reading.read_names(environ, "environment")
    reading.read_names(overrides, "command line")
    if "VELOX_CONFIG" in reading.given:
        reading.read_config(reading.given["VELOX_CONFIG"].text)
    reading.place_listeners(environ, overrides)
    n_cores = available_cores() if cores is None else cores
    n_bytes = container_memory() if memory_bytes is None else memory_bytes
    for variable in VARIABLES:
        reading.read_value(variable, n_cores, n_bytes)
    problems, values = reading.problems, reading.values
    values["unused_variables"] = () if sim else reading.read_sdk_variables(environ)
    problems += add_key_file(values)
    problems += add_token_file(values)
    problems += add_prices(values)
    problems += contradictions(values, reading.given)
    problems += add_routing(values, reading.trees, environ, finds_providers=not sim, needs_keys=needs_keys)
    problems += reading.conflicts_with_upstreams()
    values["empty_variables"] = reading.empty_variables()
    values["proxies"], useless = environment_proxies(environ)
    values["traces"], wrong = environment_traces(environ)
    problems += wrong
    if values["traces"] is not None and values["traces"].tls is not None:
        problems += collector_problems(values["traces"].tls)
    problems += unknown_routes(values)
    values["unused_variables"] += tuple(unused_variables(environ, values, reading.given, useless))
    values["unused_variables"] += tuple(unused_telemetry(environ))
    if problems:
        raise SettingsError([reading.placed(problem) for problem in problems])
    origins = {name: reading.given[name].origin if name in reading.given else "default" for name in _BY_NAME}
    # A test compares every value with its field's type.
    return Settings(**values, origins=MappingProxyType(origins))


def admin_place(environ: Mapping[str, str], overrides: Mapping[str, str]) -> AdminPlace:
    """Return where the admin listener is, and what is wrong with the settings that say so.

    Works even if the other settings are invalid. A file that is not YAML is ignored. One that the command line names
    and that is not there is a problem, unless the address is given besides: a gateway elsewhere would be meant.
    """
    named = overrides.get("VELOX_CONFIG")
    path = named or environ.get("VELOX_CONFIG")
    entries = read_file(path, NESTED).entries if path else ()
    fields = {entry.key: entry.value.text for entry in entries}
    values: dict[str, Any] = {}
    problems = []
    if named and "VELOX_ADMIN_LISTEN" not in overrides and not os.access(named, os.R_OK):
        problems.append(Problem(_OPTIONS["VELOX_CONFIG"], quoted(named), "expected a file that can be read"))
    for name in _ADMIN_PLACE:
        variable = _BY_NAME[name]
        text = overrides.get(name) or environ.get(name) or fields.get(variable.key) or variable.default
        try:
            values[variable.field] = variable.parse(text) if text else None
        except ValueError as exc:
            problems.append(Problem(name, quoted(text, secret=variable.secret), str(exc)))
    problems += add_token_file(values)
    return AdminPlace(
        values.get("admin_listen"), values.get("admin_token"), values.get("admin_tls_cert_file"), problems
    )


def given_texts(environ: Mapping[str, str], overrides: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return variables that are set, each as text, by the precedence of load(). Works as admin_place() does."""
    path = overrides.get("VELOX_CONFIG") or environ.get("VELOX_CONFIG")
    fields = {entry.key: entry.value.text for entry in read_file(path, NESTED).entries} if path else {}
    found = {name: overrides.get(name) or environ.get(name) or fields.get(_BY_NAME[name].key) for name in names}
    return {name: text for name, text in found.items() if text}


def _flattened(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the fields of a file, those of `cors:` by the names that they have as variables."""
    for entry in entries:
        if entry.key != _CORS or entry.value.fields is None:
            yield entry
            continue
        for inner in entry.value.fields:
            yield replace(inner, key=f"{_CORS}_{inner.key}")


def _usual_origin() -> str:
    return _BY_NAME["VELOX_UPSTREAM_ORIGIN"].default


def _is_of_kubernetes(name: str, text: str) -> bool:
    return bool(_KUBERNETES.fullmatch(name) or _KUBERNETES_PORT.fullmatch(f"{name}={text}"))


class _Reading:
    """What has been found so far.

    given: by variable. trees: the file's fields of NESTED. values: by field, only those that are right.
    empty: variables that are set to nothing, as they are called where they stand.
    """

    def __init__(self) -> None:
        self.given: Final[dict[str, Given]] = {}
        self.trees: Final[dict[str, Tree]] = {}
        self.empty: Final[dict[str, str]] = {}
        self.values: Final[dict[str, Any]] = {}
        self.problems: list[Problem] = []

    def read_names(self, source: Mapping[str, str], origin: str) -> None:
        """Read the variables of a source; they override those read before."""
        for name, text in source.items():
            if name in _BY_NAME:
                if text:
                    self.given[name] = Given(text, origin, name)
                else:
                    self.empty[name] = name
            elif name.startswith("VELOX_") and not _is_of_kubernetes(name, text):
                key = name.removeprefix("VELOX_").lower()
                expected = unknown("variable", name, _BY_NAME)
                if key in _PLACES:
                    expected = "expected VELOX_LISTEN, such as VELOX_LISTEN=127.0.0.1:8080"
                if key in NESTED:
                    expected = f"expected `{key}:` in the file that VELOX_CONFIG names: there is no such variable"
                self.problems.append(Problem(name, "", expected))

    def read_config(self, path: str) -> None:
        """Read the fields of the file; they override nothing."""
        found = read_file(path, (*NESTED, _CORS))
        self.problems += found.problems
        self.values["file_end"] = found.end
        for entry in _flattened(found.entries):
            key, value = entry.key, entry.value
            variable = _BY_KEY.get(key)
            has_fields = any(item.fields for item in value.items or ())
            empty = next((item for item in value.items or () if item.text == ""), None)
            expected, where = "", entry.where
            if key in NESTED:
                self.trees[key] = Tree(entry.where, value.text, value.items, value.fields)
            elif variable is None:
                expected = _HINTS.get(key) or unknown("field", key, (*_BY_KEY, *NESTED))
            elif value.fields is not None:
                expected = "expected one value, or a list of values without commas"
            elif value.items is not None and not variable.plural:
                expected = "expected one value, not a list"
            elif has_fields and variable.parse_items is None:
                expected = "expected a list of values without commas"
            elif empty is not None:
                # Else a list of keys with nothing in it would be none, and let everybody in.
                expected, where = "expected a value for each item of the list, and one is empty", empty.where
            elif has_fields or value.joined:
                items = value.items if has_fields and value.items else ()
                self.given.setdefault(variable.name, Given(value.joined, "file", key, entry.where, items))
            else:
                self.empty[variable.name] = f"{key} ({entry.where})"
            if expected:
                self.problems.append(Problem(key, "", expected, where=where))

    def place_listeners(self, environ: Mapping[str, str], overrides: Mapping[str, str]) -> None:
        """Let PORT and the options of the command line say where clients connect."""
        try:
            found = listen_text(self.given.get("VELOX_LISTEN"), environ, overrides)
        except ValueError as exc:
            self.problems.append(Problem("--port", overrides[PORT], str(exc)))
            return
        if found is not None:
            self.given["VELOX_LISTEN"] = found

    def read_sdk_variables(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Let variables of SDKs stand for settings that are not given. Returns lines on those that can't."""
        told = []
        if "VELOX_UPSTREAM_ORIGIN" not in self.given and "upstreams" not in self.trees:
            base = base_url("openai", environ, OwnPlaces.of(self.values))
            if base is not None and base.origin is not None:
                self.given["VELOX_UPSTREAM_ORIGIN"] = Given(str(base.origin), f"environment: {base.name}", base.name)
                self.values["upstream_origins"] = (base.origin,)
            elif base is not None and base.why:
                told.append(f"{base.name} is set and not used, so requests go to {_usual_origin()}: {base.why}")
        if "VELOX_UPSTREAM_CA_FILE" not in self.given:
            name, path, why = ca_bundle(environ)
            if path:
                self.given["VELOX_UPSTREAM_CA_FILE"] = Given(path, f"environment: {name}", name)
                self.values["upstream_ca_file"] = path
            elif why:
                told.append(f"{name} is set and not used: {why}")
        return tuple(told)

    def read_value(self, variable: Variable, n_cores: int, memory_bytes: int) -> None:
        """Add the value of a variable, or what is wrong with it."""
        given = self.given.get(variable.name)
        text = given.text if given else self._default(variable, n_cores, memory_bytes)
        if given is not None and given.items and variable.parse_items is not None:
            value, problems = variable.parse_items(given.items)
            self.problems += problems
            if not problems:
                self.values[variable.field] = value
            return
        try:
            self.values[variable.field] = variable.parse(text) if text else variable.empty
        except ValueError as exc:
            # Defaults are valid: a test parses each.
            name, where = (given.name, given.where) if given else (variable.name, "")
            self.problems.append(Problem(name, quoted(text, secret=variable.secret), str(exc), where=where))

    def empty_variables(self) -> tuple[tuple[str, str], ...]:
        """Return the variables that are set to nothing and so have a default, each with it."""
        found = []
        for name, called in self.empty.items():
            variable, is_replaced = _BY_NAME[name], name == "VELOX_UPSTREAM_ORIGIN" and "upstreams" in self.trees
            default = variable.shown_default or variable.default or self._without(name)
            if name == "VELOX_CONFIG":
                default = "no file"
            if default and name not in self.given and not is_replaced:
                found.append((called, default))
        return tuple(found)

    def _without(self, name: str) -> str:
        """Return what an empty variable means where its default is none, "" if nothing follows from that."""
        values, is_key = self.values, name.startswith("VELOX_API_KEYS")
        if is_key and (values.get("api_keys") or values.get("managed_keys") or values.get("auth") == "none"):
            return ""
        return "" if not is_key and "upstreams" in self.trees else _WITHOUT.get(name, "")

    def _default(self, variable: Variable, n_cores: int, memory_bytes: int) -> str:
        """Return the default as text. Fields that depend on the number of workers come after it."""
        if variable.default == CORES:
            return str(n_cores)
        if variable.default in (MEMORY_SOFT, MEMORY_HARD):
            workers = self.values.get("workers")
            part = soft_default if variable.default == MEMORY_SOFT else hard_default
            return self._beside_other(variable, part(memory_bytes, workers)) if isinstance(workers, int) else "off"
        followed = self.given.get(_FOLLOWS.get(variable.name, ""))
        return variable.default if followed is None else followed.text

    def _beside_other(self, variable: Variable, default: str) -> str:
        """Return the default of one limit of memory, as it can stand beside the other one if that is given."""
        is_soft = variable.default == MEMORY_SOFT
        other = self.given.get("VELOX_MEMORY_HARD" if is_soft else "VELOX_MEMORY_SOFT")
        try:
            found = None if other is None else variable.parse(other.text)
        except ValueError:
            return default  # it is told of
        if not isinstance(found, int) or default == "off":
            return default
        return str(min(int(default), found) if is_soft else max(int(default), found))

    def placed(self, problem: Problem) -> Problem:
        """Return a problem with a setting as it was given: by its field, with file and line, or by its option.

        What it asks for is then called as the file has it, unless that was given elsewhere.
        """
        given = self.given.get(problem.name)
        if given is not None and not problem.where:
            if given.origin == "command line":
                return replace(problem, name=_OPTIONS.get(problem.name, problem.name))
            if given.origin == "file":
                problem = replace(problem, name=given.name, where=given.where)
        file = self.given.get("VELOX_CONFIG")
        if file is None or not problem.where.startswith(f"{file.text}:"):
            return problem
        return replace(problem, expected=_VARIABLE.sub(self._as_in_file, problem.expected))

    def _as_in_file(self, match: re.Match[str]) -> str:
        variable, given = _BY_NAME.get(match[1]), self.given.get(match[1])
        if variable is None or (given is not None and given.origin != "file"):
            return match[0]
        return f"`{variable.key}: {match[2]}`" if match[2] else f"`{variable.key}`"

    def conflicts_with_upstreams(self) -> list[Problem]:
        """Report variables that define an upstream although the file has a list of upstreams."""
        if "upstreams" not in self.trees:
            return []
        found = []
        for name, instead in (("ORIGIN", "origin"), ("CERT_FILE", "cert_file"), ("KEY_FILE", "key_file")):
            given = self.given.get(f"VELOX_UPSTREAM_{name}")
            if given is not None:
                place = self.trees["upstreams"].where
                expected = f"expected this or `upstreams` ({place}), not both: remove it, and give `{instead}` there"
                found.append(given.problem(expected))
        return found
