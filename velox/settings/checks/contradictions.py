"""Checks of settings against each other, and the keys and the token that are read from files.

Knows: all valid values and where they were given; who may reach the data listener and the admin listener.
Does not know: how a value is written; upstreams and routes (routing/). Invalid values are not among `values`.
"""

from __future__ import annotations

import codecs
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from velox.accounts.snapshot import MOST_SNAPSHOT_BYTES, changes_path, read_keys, snapshot_path
from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.limit_rules import LimitRule
from velox.settings import parse
from velox.settings.callers.keys import key_file_end, merged, parse_key_file, read_key_file, with_managed
from velox.settings.callers.weak import LEAST_CHARS, is_weak
from velox.settings.checks.certificates import ca_problem, certificate_problems, client_certificate_problem
from velox.settings.problems import Problem, quoted
from velox.settings.yaml.tree import Tree, read_regular_file
from velox.types import KeyEntry, Scope

__all__ = [
    "Given",
    "add_key_file",
    "add_token_file",
    "contradictions",
    "extra_problems",
    "log_file_problem",
    "managed_keys",
    "too_few",
    "uncounted",
    "unkept_budgets",
]

_TOKEN_BYTES: Final = 16 * 1024
# A burst is part of a rate. Where the rate is switched off by a 0, its burst may stay.
_RATE_OF: Final = {
    "VELOX_RATE_LIMIT_BURST": "VELOX_RATE_LIMIT_RPM",
    "VELOX_RATE_LIMIT_TPM_BURST": "VELOX_RATE_LIMIT_TPM",
    "VELOX_KEY_BURST": "VELOX_KEY_RPM",
    "VELOX_KEY_TPM_BURST": "VELOX_KEY_TPM",
}
_PER_KEY: Final = frozenset({Scope.KEY, Scope.KEY_MODEL, Scope.TEAM, Scope.USER})
_OF_KEYS: Final = ("key_rpm", "key_tpm", "key_concurrency")
_WITHOUT_KEYS: Final = "expected VELOX_API_KEYS or VELOX_API_KEYS_FILE with it: without keys all callers are one"


@dataclass(frozen=True, slots=True)
class Given:
    """A setting as it was given. name, where: for a problem. items: of a list that contains mappings."""

    text: str
    origin: str
    name: str
    where: str = ""
    items: tuple[Tree, ...] = ()

    def problem(self, expected: str) -> Problem:
        """Return what is wrong with it."""
        return Problem(self.name, quoted(self.text), expected, where=self.where)

    def with_text(self, text: str) -> Given:
        """Return the same with another text."""
        return replace(self, text=text)


def add_key_file(values: dict[str, Any]) -> list[Problem]:
    """Add the keys of VELOX_API_KEYS_FILE to those of VELOX_API_KEYS; return what is wrong with them."""
    path, entries = values.get("api_keys_file"), values.get("api_keys")
    if entries is None:
        return []
    problems: list[Problem] = []
    if path is not None:
        try:
            content = read_key_file(path)
            found, problems = parse_key_file(content, path)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            return [Problem("VELOX_API_KEYS_FILE", quoted(path), f"expected a file that can be read ({why})")]
        entries += found
        values["key_file_end"] = key_file_end(content)
    values["api_keys"], duplicates = merged(entries)
    if values.get("managed_keys") and values.get("ledger") is not None:
        values["api_keys"], doubtful = with_managed(values["api_keys"], managed_keys(values["ledger"]))
        duplicates += doubtful
    return problems + duplicates


def managed_keys(folder: str) -> tuple[KeyEntry, ...]:
    """Return the keys that were made while Velox ran, as they were last; those of now follow in a moment."""
    try:
        try:
            changes = read_regular_file(changes_path(folder), MOST_SNAPSHOT_BYTES)
        except OSError:
            changes = b""
        return read_keys(changes, read_regular_file(snapshot_path(folder), MOST_SNAPSHOT_BYTES))
    except (OSError, ValueError):
        return ()  # it is written anew


def add_token_file(values: dict[str, Any]) -> list[Problem]:
    """Take the admin listener's token from VELOX_ADMIN_TOKEN_FILE; return what is wrong with it."""
    path, name = values.get("admin_token_file"), "VELOX_ADMIN_TOKEN_FILE"
    if path is None:
        return []
    if values.get("admin_token") is not None:
        return [Problem(name, quoted(path), "expected this or VELOX_ADMIN_TOKEN, not both")]
    try:
        content = read_regular_file(path, _TOKEN_BYTES)[:_TOKEN_BYTES].removeprefix(codecs.BOM_UTF8)
        text = content.decode("ascii", "replace").strip()
    except OSError as exc:
        return [Problem(name, quoted(path), f"expected a file that can be read ({exc.strerror})")]
    try:
        values["admin_token"] = parse.secret(text)
    except ValueError as exc:
        return [Problem(name, quoted(path), f"in it, {exc}")]
    return []


def contradictions(values: Mapping[str, Any], given: Mapping[str, Given]) -> Iterator[Problem]:
    """Report settings that contradict each other. given: by variable, those that have no default."""
    yield from _upstream_files(values)
    yield from certificate_problems(values)
    yield from _without_unix_socket(values, given)
    for field in ("access_log_file", "log_file"):
        log_file = values.get(field)
        if log_file is not None and (expected := log_file_problem(log_file)):
            yield Problem(f"VELOX_{field.upper()}", quoted(log_file), expected)
    for name, rate in _RATE_OF.items():
        if name in given and rate not in given:
            yield given[name].problem(f"expected {rate} with it: a burst is how much of a rate may come at once")
    yield from uncounted(values)
    if values.get("ledger") is None:
        yield from _without_ledger(values, given)
    if values.get("kept_database_bytes") and values.get("ledger_database") is None:
        yield given["VELOX_KEPT_DATABASE_BYTES"].problem("expected VELOX_LEDGER_DATABASE with it: where they are kept")
    yield from _shares(values, "upstream_concurrency")
    yield from extra_problems(values)
    yield from _sizes(values)
    yield from _shares(values, "queue_depth", "max_inflight", "max_connections", "max_tunnels")
    yield from _unprotected_listeners(values)


def log_file_problem(path: str) -> str:
    """Return what is expected of a log's file that can't be opened, "" where it can. Makes nothing."""
    place = Path(path).absolute()
    if place.is_dir():
        return "expected a file, not a folder"
    if os.path.lexists(place):
        return "" if os.access(place, os.W_OK) else "expected a file that may be written to"
    if not place.parent.is_dir():
        return f"expected a file in a folder that is there: {place.parent} is none"
    return "" if os.access(place.parent, os.W_OK | os.X_OK) else "expected a file in a folder that may be written to"


def _without_ledger(values: Mapping[str, Any], given: Mapping[str, Given]) -> Iterator[Problem]:
    """Report what needs the folder of a ledger, where there is none."""
    expected = "expected VELOX_LEDGER with it: the folder "
    if values.get("managed_keys"):
        yield given["VELOX_MANAGED_KEYS"].problem(f"{expected}that such keys are kept in")
    if values.get("ledger_rings") is not None:
        yield given["VELOX_LEDGER_RINGS"].problem(f"{expected}that records end up in")
    if values.get("ledger_database") is not None:  # it holds a password
        yield Problem("VELOX_LEDGER_DATABASE", "", f"{expected}in which records wait for the database")


def uncounted(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report limits and budgets that nothing could count: those of keys where none is asked for, and without records.

    A reload asks again: keys and records may be there in the file only, until a restart.
    """
    yield from _limits_of_keys(values)
    yield from _budgets(values)


def unkept_budgets(ledger: str | None, rules: Sequence[BudgetRule], keys: Iterable[KeyEntry]) -> Iterator[Problem]:
    """Report budgets, of rules or of keys, where nothing is recorded that they could count."""
    if ledger is not None:
        return
    places = [*(rule.where for rule in rules), *(key.where for key in keys if key.terms.budgets)]
    if places:
        expected = "expected VELOX_LEDGER with it: a folder for what was spent, which a restart must not forget"
        yield Problem("budgets", "", expected, where=places[0])


def too_few(n: int, workers: int) -> str:
    """Return what is expected instead of `n` that the workers share; "" if each gets some, or it is switched off."""
    return f"expected at least VELOX_WORKERS, {workers}: each worker gets a share" if 0 < n < workers else ""


def extra_problems(
    values: Mapping[str, Any], find: Callable[[str], object] = importlib.util.find_spec
) -> Iterator[Problem]:
    """Report settings that need a package that is not installed. find: None for a module that is not there."""
    for name, module in (("redis_url", "redis"), ("ledger_database", "asyncpg")):
        if values.get(name) is not None and find(module) is None:
            expected = f"expected the package {module} with it: pip install -r requirements.lock"
            yield Problem(f"VELOX_{name.upper()}", "", expected)


def _upstream_files(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Check the files of TLS with the upstream before a handshake does: each is read, belongs together, and is used."""
    path = values.get("upstream_ca_file")
    if path is not None and (expected := ca_problem(path)):
        yield Problem("VELOX_UPSTREAM_CA_FILE", quoted(path), expected)
    cert, key = values.get("upstream_cert_file"), values.get("upstream_key_file")
    origins = values.get("upstream_origins")
    if cert is None:
        if key is not None:
            expected = "expected VELOX_UPSTREAM_CERT_FILE with it: the certificate that the key belongs to"
            yield Problem("VELOX_UPSTREAM_KEY_FILE", quoted(key), expected)
        return
    which, expected = client_certificate_problem(cert, key)
    if which:
        yield Problem(f"VELOX_UPSTREAM_{which.upper()}_FILE", quoted(cert if which == "cert" else str(key)), expected)
    elif origins is not None and all(origin.scheme != "https" for origin in origins):
        expected = "expected an https origin in VELOX_UPSTREAM_ORIGIN: no other one is shown a certificate"
        yield Problem("VELOX_UPSTREAM_CERT_FILE", quoted(cert), expected)


def _without_unix_socket(values: Mapping[str, Any], given: Mapping[str, Given]) -> Iterator[Problem]:
    listen = values.get("listen")
    if listen is None or any(address.kind == "unix" for address in listen):
        return
    for name in ("VELOX_LISTEN_MODE", "VELOX_LISTEN_OWNER"):
        if name in given:
            yield given[name].problem("expected unix:PATH in VELOX_LISTEN: only a unix socket has a mode and an owner")


def _limits_of_keys(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report limits of keys that do not exist."""
    if not {"api_keys", "api_keys_file", "limits", *_OF_KEYS} <= values.keys() or values["api_keys_file"] is not None:
        return  # the file may get a key of that name later
    if values.get("managed_keys"):
        return
    rules: tuple[LimitRule, ...] = values["limits"]
    if values["api_keys"]:
        names = {key.caller_name for key in values["api_keys"]}
        for rule in rules:
            for n, name in enumerate(rule.keys, 1):
                if name not in names:
                    # Not by its name: it may be the key itself.
                    expected = f"expected names of keys; name {n} of this limit is no key's"
                    yield Problem("keys", "", expected, where=rule.keys_where)
        return
    for field in _OF_KEYS:
        if values[field]:
            yield Problem(f"VELOX_{field.upper()}", str(values[field]), _WITHOUT_KEYS)
    for rule in rules:
        if rule.scope in _PER_KEY or rule.keys:
            yield Problem("a limit of keys", "", _WITHOUT_KEYS, where=rule.where)


def _budgets(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report budgets that nothing could count, and those of keys that do not exist."""
    if not {"budgets", "ledger", "api_keys", "api_keys_file"} <= values.keys():
        return
    rules: tuple[BudgetRule, ...] = values["budgets"]
    keys: tuple[KeyEntry, ...] = values["api_keys"]
    yield from unkept_budgets(values["ledger"], rules, keys)
    if values["api_keys_file"] is not None or values.get("managed_keys"):
        return  # a key of that name may come later, or have gone; advice.py warns
    names = {key.caller_name for key in keys}
    for rule in rules:
        for n, name in enumerate(rule.keys, 1):
            if name not in names:
                # Not by its name: it may be the key itself.
                yield Problem("keys", "", f"expected names of keys; name {n} of this budget is no key's", rule.where)


def _shares(values: Mapping[str, Any], *fields: str) -> Iterator[Problem]:
    workers = values.get("workers")
    for field in fields:
        n = values.get(field)
        if isinstance(n, int) and workers is not None and (expected := too_few(n, workers)):
            yield Problem(f"VELOX_{field.upper()}", str(n), expected)


def _sizes(values: Mapping[str, Any]) -> Iterator[Problem]:
    budget, body = values.get("body_budget_bytes"), values.get("max_body_bytes")
    if budget is not None and body is not None and budget < body:
        expected = f"expected at least VELOX_MAX_BODY, {body} bytes: such a body would never be taken"
        yield Problem("VELOX_BODY_BUDGET", str(budget), expected)
    soft, hard = values.get("memory_soft_bytes"), values.get("memory_hard_bytes")
    if soft is not None and hard is not None and hard < soft:
        expected = f"expected at least VELOX_MEMORY_SOFT, {soft} bytes: refusing comes before replacing"
        yield Problem("VELOX_MEMORY_HARD", str(hard), expected)


def _unprotected_listeners(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report two listeners at one address, and listeners that other machines can reach without a key."""
    listen, admin = values.get("listen"), values.get("admin_listen")
    if (
        listen is not None
        and admin is not None
        and any(each.includes(admin) or admin.includes(each) for each in listen)
    ):
        yield Problem("VELOX_ADMIN_LISTEN", str(admin), "expected another address than VELOX_LISTEN")
    # Clients on other machines need a key, unless VELOX_AUTH=none was set.
    if {"listen", "auth", "api_keys", "api_keys_file"} <= values.keys():
        has_keys = bool(values["api_keys"]) or values["api_keys_file"] is not None or values.get("managed_keys", False)
        if values["auth"] == "none":
            if has_keys:
                yield Problem(
                    "VELOX_AUTH",
                    "'none'",
                    "expected keys, or no VELOX_API_KEYS, VELOX_API_KEYS_FILE and VELOX_MANAGED_KEYS",
                )
        elif not has_keys and not all(address.is_loopback for address in values["listen"]):
            expected = (
                "expected VELOX_API_KEYS or VELOX_API_KEYS_FILE when clients can come from other machines"
                " (VELOX_AUTH=none lets everyone in)"
            )
            yield Problem("VELOX_LISTEN", quoted(",".join(map(str, values["listen"]))), expected)
        if not has_keys and "*" in values.get("cors_origins", ()):
            expected = "expected the origins themselves: without keys every web page could use this gateway's own"
            yield Problem("VELOX_CORS_ORIGINS", "'*'", expected)
        yield from _weak_keys(values)
    yield from _viewer(values)
    if admin is None or admin.is_loopback or not {"admin_token", "admin_token_file"} <= values.keys():
        return
    if values["admin_token"] is None and values["admin_token_file"] is None:
        expected = "expected VELOX_ADMIN_TOKEN or VELOX_ADMIN_TOKEN_FILE when other machines can connect"
        yield Problem("VELOX_ADMIN_LISTEN", quoted(str(admin)), expected)
    for name in ("admin_token", "admin_viewer_token"):
        token = values.get(name)
        if token is not None and is_weak(token.reveal()):
            expected = (
                f"expected at least {LEAST_CHARS} characters, and none of an example, when other machines can connect"
            )
            yield Problem(f"VELOX_{name.upper()}", "set", expected)


def _weak_keys(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report keys that anybody would try first, where other machines can try."""
    weak = [key for key in values["api_keys"] or () if key.is_weak]
    if not weak or all(address.is_loopback for address in values["listen"]):
        return
    more = f", and {len(weak) - 1} more," if len(weak) > 1 else ""
    expected = (
        f"expected keys of at least {LEAST_CHARS} characters that stand in no example, when clients can come from other"
        f" machines; `velox key new` makes one. This one{more} anybody would try first"
    )
    where = weak[0].where
    in_file = "" if where.startswith("VELOX_") else where
    yield Problem("a key" if in_file else "VELOX_API_KEYS", "", expected, where=in_file)


def _viewer(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report a token that may only read where everybody may do everything, or that may do everything."""
    token, admin = values.get("admin_viewer_token"), values.get("admin_token")
    if token is None:
        return
    if admin is None and values.get("admin_token_file") is None:
        expected = "expected VELOX_ADMIN_TOKEN with it: without one, everybody is let in"
        yield Problem("VELOX_ADMIN_VIEWER_TOKEN", "set", expected)
    elif admin is not None and token.reveal() == admin.reveal():
        yield Problem("VELOX_ADMIN_VIEWER_TOKEN", "set", "expected another token than VELOX_ADMIN_TOKEN")
