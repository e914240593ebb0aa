"""From the environment and the file to Settings, or to the list of everything that is wrong.

Knows: which source beats which, unknown names, and settings that contradict each other. Does not know: what a
single value looks like (see `parse`), or what the process does with a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from velox.settings.certificate import certificate_problems
from velox.settings.cores import available_cores
from velox.settings.doors import add_key_file, add_token_file, open_doors
from velox.settings.file import Item, read_file
from velox.settings.limit_checks import limit_problems, redis_problem
from velox.settings.memory import container_memory, hard_default, soft_default
from velox.settings.model import Settings
from velox.settings.problems import Problem, SettingsError, quoted, unknown
from velox.settings.routing import NESTED, add_routing
from velox.settings.tls_files import ca_problem, certificate_problem
from velox.settings.tree import Tree
from velox.settings.variable import CORES, MEMORY_HARD, MEMORY_SOFT, Variable
from velox.settings.variables import VARIABLES

__all__ = ["load"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
# Kubernetes gives every pod these for a Service called velox.
_KUBERNETES: Final = re.compile(r"VELOX_(?:PORT|SERVICE_).*")
# A burst is part of a rate. Where the rate is switched off by a 0, its burst may stay.
_RATE_OF: Final = {
    "VELOX_RATE_LIMIT_TPM_BURST": "VELOX_RATE_LIMIT_TPM",
    "VELOX_KEY_BURST": "VELOX_KEY_RPM",
    "VELOX_KEY_TPM_BURST": "VELOX_KEY_TPM",
}
_EMPTY: Final[Mapping[str, object]] = {"api_keys": (), "admin_hosts": frozenset(), "limits": ()}


@dataclass(frozen=True, slots=True)
class _Given:
    """A text somebody wrote: name and where are how a problem calls it."""

    text: str
    origin: str
    name: str
    where: str = ""
    items: tuple[Item, ...] = ()


@dataclass(slots=True)
class _Reading:
    """What has been found so far. values: by field, only those that are right. trees: the file's fields of NESTED."""

    given: dict[str, _Given] = field(default_factory=dict)
    trees: dict[str, Tree] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def load(
    environ: Mapping[str, str],
    overrides: Mapping[str, str] = _NOTHING,
    *,
    cores: int | None = None,
    memory_bytes: int | None = None,
) -> Settings:
    """Return the settings. Command line (`overrides`) beats environment beats file beats default.

    overrides: variable -> text, as in the environment.  cores, memory_bytes: what to count on (None: ask the system);
    no memory_bytes, 0, is no limit. A variable that is empty counts as not set. Raises SettingsError with every
    problem found.
    """
    reading = _Reading()
    _read_names(reading, environ, "environment")
    _read_names(reading, overrides, "command line")
    if "VELOX_CONFIG" in reading.given:
        _read_config(reading, reading.given["VELOX_CONFIG"].text)
    n_cores = available_cores() if cores is None else cores
    n_bytes = container_memory() if memory_bytes is None else memory_bytes
    for variable in VARIABLES:
        _read_value(reading, variable, _default(variable, reading, n_cores, n_bytes))
    reading.problems += add_key_file(reading.values)
    reading.problems += add_token_file(reading.values)
    reading.problems += _unusable_ca_file(reading)
    reading.problems += _unusable_certificate(reading)
    reading.problems += certificate_problems(reading.values)
    reading.problems += _without_unix_socket(reading)
    reading.problems += _bursts_without_rates(reading)
    reading.problems += limit_problems(reading.values)
    reading.problems += redis_problem(reading.values)
    reading.problems += _contradictions(reading.values)
    reading.problems += add_routing(reading.values, reading.trees, environ)
    reading.problems += _two_upstreams(reading)
    if reading.problems:
        raise SettingsError(reading.problems)
    origins = {variable.name: "default" for variable in VARIABLES}
    origins.update((name, given.origin) for name, given in reading.given.items())
    # The table names each field once (a test holds it to that); its parsers give what the field declares.
    values: dict[str, Any] = reading.values
    return Settings(**values, origins=MappingProxyType(origins))


def _read_names(reading: _Reading, source: Mapping[str, str], origin: str) -> None:
    known = {variable.name for variable in VARIABLES}
    for name, text in source.items():
        if name in known:
            if text:
                reading.given[name] = _Given(text, origin, name)
        elif name.startswith("VELOX_") and not _KUBERNETES.fullmatch(name):
            reading.problems.append(Problem(name, "", unknown("variable", name, known)))


def _read_config(reading: _Reading, path: str) -> None:
    fields, problems = read_file(path, NESTED)
    reading.problems += problems
    by_key = {variable.key: variable for variable in VARIABLES if variable.name != "VELOX_CONFIG"}
    for item in fields:
        variable = by_key.get(item.key)
        if item.key in NESTED:
            if item.tree is not None and item.tree.text != "":
                reading.trees[item.key] = replace(item.tree, where=item.where)
        elif variable is None:
            problem = Problem(item.key, "", unknown("field", item.key, (*by_key, *NESTED)), where=item.where)
            reading.problems.append(problem)
        elif item.is_list and not variable.plural:
            reading.problems.append(Problem(item.key, "", "expected one value, not a list", where=item.where))
        elif item.items and variable.parse_items is None:
            reading.problems.append(Problem(item.key, "", "expected a list of values without commas", where=item.where))
        elif item.text or item.items:
            given = _Given(item.text, "file", item.key, item.where, item.items)
            reading.given.setdefault(variable.name, given)


def _default(variable: Variable, reading: _Reading, n_cores: int, memory_bytes: int) -> str:
    """Return the text that stands for a variable that nobody gave. The workers stand before what is shared by them."""
    if variable.default == CORES:
        return str(n_cores)
    if variable.default in (MEMORY_SOFT, MEMORY_HARD):
        workers = reading.values.get("workers")
        part = soft_default if variable.default == MEMORY_SOFT else hard_default
        return part(memory_bytes, workers) if isinstance(workers, int) else "off"
    return variable.default


def _read_value(reading: _Reading, variable: Variable, default: str) -> None:
    given = reading.given.get(variable.name)
    text = given.text if given else default
    if given is not None and given.items and variable.parse_items is not None:
        value, problems = variable.parse_items(given.items)
        reading.problems += problems
        if not problems:
            reading.values[variable.field] = value
        return
    if not text:
        reading.values[variable.field] = _EMPTY.get(variable.field)
        return
    try:
        reading.values[variable.field] = variable.parse(text)
    except ValueError as exc:
        # Only what somebody wrote can be wrong: a test parses every default.
        name, where = (given.name, given.where) if given else (variable.name, "")
        shown = quoted(text, secret=variable.secret)
        reading.problems.append(Problem(name, shown, str(exc), where=where))


def _unusable_ca_file(reading: _Reading) -> Iterable[Problem]:
    path = reading.values.get("upstream_ca_file")
    if isinstance(path, str) and (expected := ca_problem(path)):
        yield Problem("VELOX_UPSTREAM_CA_FILE", quoted(path), expected)


def _unusable_certificate(reading: _Reading) -> Iterable[Problem]:
    """Check the client certificate before a handshake does: it and its key are read, belong together, and are used."""
    cert, key = reading.values.get("upstream_cert_file"), reading.values.get("upstream_key_file")
    if not isinstance(cert, str):
        if isinstance(key, str):
            expected = "expected VELOX_UPSTREAM_CERT_FILE with it: the certificate that the key belongs to"
            yield Problem("VELOX_UPSTREAM_KEY_FILE", quoted(key), expected)
        return
    which, expected = certificate_problem(cert, key if isinstance(key, str) else None)
    if which:
        yield Problem(f"VELOX_UPSTREAM_{which.upper()}_FILE", quoted(cert if which == "cert" else str(key)), expected)
        return
    origins = reading.values.get("upstream_origins")
    if isinstance(origins, tuple) and all(origin.scheme != "https" for origin in origins):
        expected = "expected an https origin in VELOX_UPSTREAM_ORIGIN: no other one is shown a certificate"
        yield Problem("VELOX_UPSTREAM_CERT_FILE", quoted(cert), expected)


def _two_upstreams(reading: _Reading) -> Iterable[Problem]:
    """Say which variables make an upstream, or are of one only, beside the file's list of upstreams."""
    if "upstreams" not in reading.trees:
        return
    for name, instead in (("ORIGIN", "origin"), ("CERT_FILE", "cert_file"), ("KEY_FILE", "key_file")):
        given = reading.given.get(f"VELOX_UPSTREAM_{name}")
        if given is not None:
            place = reading.trees["upstreams"].where
            expected = f"expected this or `upstreams` ({place}), not both: remove it, and give `{instead}` there"
            yield Problem(given.name, quoted(given.text), expected, where=given.where)


def _without_unix_socket(reading: _Reading) -> Iterable[Problem]:
    listen = reading.values.get("listen")
    if isinstance(listen, tuple) and all(address.kind == "tcp" for address in listen):
        for name in ("VELOX_LISTEN_MODE", "VELOX_LISTEN_OWNER"):
            given = reading.given.get(name)
            if given is not None:
                expected = "expected unix:PATH in VELOX_LISTEN: only a unix socket has a mode and an owner"
                yield Problem(given.name, quoted(given.text), expected, where=given.where)


def _bursts_without_rates(reading: _Reading) -> Iterable[Problem]:
    for name, rate in _RATE_OF.items():
        given = reading.given.get(name)
        if given is not None and rate not in reading.given:
            expected = f"expected {rate} with it: a burst is how much of a rate may come at once"
            yield Problem(given.name, quoted(given.text), expected, where=given.where)


def _contradictions(values: Mapping[str, Any]) -> Iterable[Problem]:
    """Say which settings, each right by itself, can't hold together. `values` lacks the wrong ones."""
    budget, body = values.get("body_budget_bytes"), values.get("max_body_bytes")
    if budget is not None and body is not None and budget < body:
        expected = f"expected at least VELOX_MAX_BODY, {body} bytes: such a body would never be taken"
        yield Problem("VELOX_BODY_BUDGET", str(budget), expected)
    soft, hard = values.get("memory_soft_bytes"), values.get("memory_hard_bytes")
    if soft is not None and hard is not None and hard < soft:
        expected = f"expected at least VELOX_MEMORY_SOFT, {soft} bytes: refusing comes before replacing"
        yield Problem("VELOX_MEMORY_HARD", str(hard), expected)
    workers = values.get("workers")
    for name, key in (
        ("VELOX_QUEUE_DEPTH", "queue_depth"),
        ("VELOX_MAX_INFLIGHT", "max_inflight"),
        ("VELOX_MAX_CONNECTIONS", "max_connections"),
        ("VELOX_MAX_TUNNELS", "max_tunnels"),
    ):
        share = values.get(key)
        if workers is not None and share is not None and share < workers:
            yield Problem(name, str(share), f"expected at least VELOX_WORKERS, {workers}: each worker gets a share")
    listen, admin = values.get("listen"), values.get("admin_listen")
    if listen is not None and admin is not None and admin in listen and (admin.kind == "unix" or admin.port):
        yield Problem("VELOX_ADMIN_LISTEN", str(admin), "expected another address than VELOX_LISTEN")
    yield from open_doors(values)
