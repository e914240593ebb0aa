"""`velox check`: the settings in use, and what follows from them.

Knows: what a person wants to know before a start: what was set, where the gateway listens, whom it asks, who may come
in, which limits hold, how much memory it can need, and what may be a mistake. Does not know: who prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from velox.policy.api.table import Group
from velox.runtime.buckets import bucket_lines
from velox.runtime.capacity import (
    LEASE_MANAGER_BYTES,
    descriptors_of,
    memory_of,
    open_files_limit,
    raise_open_files,
    shortages,
)
from velox.runtime.ledger.folder import folder_problem
from velox.runtime.priced import check_price_lines
from velox.runtime.signing.sign_in import sign_in_lines
from velox.settings import Settings
from velox.settings.checks.advice import advice
from velox.settings.checks.certificates import ADMIN_NAMES, CLIENT_NAMES, CertificateError, read_certificate
from velox.settings.machine import container_memory
from velox.settings.show import (
    budget_lines,
    by_proxies,
    effective,
    is_keyless,
    limit_lines,
    match_text,
    route_lines,
    upstream_lines,
)

__all__ = ["check_lines", "check_report"]


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def check_lines(
    settings: Settings,
    environment: Mapping[str, str] = _NOTHING,
    *,
    shows_all: bool,
    now_s: int | None = None,
    memory_bytes: int | None = None,
) -> list[str]:
    """Return the lines.

    environment: where clouds' own variables stand. shows_all: with the settings that are as by default. now_s: Unix
    time, for the prices and for keys that have expired; None: not these. memory_bytes: of the container, 0: without a
    limit; None: ask the system.
    """
    container_bytes = container_memory() if memory_bytes is None else memory_bytes
    warnings = [*_tls_warnings(settings), *_warnings(settings, now_s, container_bytes)]
    n = len(warnings)
    return [
        f"valid, with {n} warning{'s' * (n > 1)}" if n else "valid",
        *(f"WARNING: {text}" for text in warnings),
        "",
        *_listening(settings),
        *_tls(settings),
        *upstream_lines(settings),
        *sign_in_lines(settings, environment),
        *route_lines(settings),
        *limit_lines(settings),
        *budget_lines(settings),
        *(check_price_lines(settings, now_s) if now_s is not None else ()),
        *_objects(settings),
        "",
        *_capacity(settings),
        "",
        *_setting_lines(settings, shows_all=shows_all),
        "",
        _access(settings),
    ]


def check_report(
    settings: Settings,
    environment: Mapping[str, str] = _NOTHING,
    *,
    now_s: int | None = None,
    memory_bytes: int | None = None,
) -> dict[str, object]:
    """Return the same for programs: what is a list there has its fields here, and each setting is there."""
    container_bytes = container_memory() if memory_bytes is None else memory_bytes
    return {
        "valid": True,
        "problems": [],
        "warnings": [*_tls_warnings(settings), *_warnings(settings, now_s, container_bytes)],
        "access": _access(settings),
        "listen": [str(each) for each in settings.listen],
        "admin_listen": None if settings.admin_listen is None else str(settings.admin_listen),
        "upstreams": [
            {
                "name": entry.name,
                "origins": [str(origin) for origin in entry.origins],
                "provider": entry.provider,
                "keys": [str(key) for key in entry.keys],
                "models": list(entry.models),
                "proxies": by_proxies(entry, settings),
                "where": entry.where or settings.origins["VELOX_UPSTREAM_ORIGIN"],
            }
            for entry in settings.upstreams
        ],
        "routes": [
            {
                "name": route.name,
                "match": match_text(route.match, {key.caller_name for key in settings.api_keys}),
                "to": [str(target) for target in route.to],
                "fallback": [str(target) for target in route.fallback],
                "where": route.where or "default",
            }
            for route in settings.routes
        ],
        "sign_in": [*sign_in_lines(settings, environment)],
        "limits": [*limit_lines(settings)],
        "budgets": budget_lines(settings),
        "prices": [*(check_price_lines(settings, now_s) if now_s is not None else ())],
        "tls": [*_tls(settings)],
        "objects": [*_objects(settings)],
        "capacity": [*_capacity(settings)],
        "settings": [{"name": name, "value": value, "origin": origin} for name, value, origin in effective(settings)],
    }


def _setting_lines(settings: Settings, *, shows_all: bool) -> list[str]:
    rows = effective(settings)
    shown = [row for row in rows if shows_all or row[2] != "default"]
    widths = [max((len(row[at]) for row in shown), default=0) for at in range(2)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}" for name, value, origin in shown]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} settings are as by default: `velox check --all` prints them")
    return lines


def _listening(settings: Settings) -> Iterator[str]:
    scheme = "http" if settings.tls_cert_file is None else "https"
    places = ", ".join(str(each) if each.kind == "unix" else f"{scheme}://{each}" for each in settings.listen)
    admin = settings.admin_listen
    scheme_of_admin = "http" if settings.admin_tls_cert_file is None else "https"
    place = "off" if admin is None else str(admin) if admin.kind == "unix" else f"{scheme_of_admin}://{admin}"
    yield f"listening: {places}; admin listener: {place}"


def _capacity(settings: Settings) -> Iterator[str]:
    raise_open_files()
    limit = open_files_limit()
    yield f"memory: {memory_of(settings, limit)}"
    if settings.redis_url is not None:
        yield f"memory: and {LEASE_MANAGER_BYTES >> 20} MiB for the lease manager (VELOX_REDIS_URL), one process"
    yield from bucket_lines(settings)
    plan = descriptors_of(settings, 0, limit)
    yield f"connections: a worker takes {plan.clients} of clients, of {limit} open files"


def _tls(settings: Settings) -> Iterator[str]:
    client = "" if settings.tls_client_ca_file is None else "; they must show one of their own"
    of_clients = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    of_admin = (settings.admin_tls_cert_file, settings.admin_tls_key_file, None)
    for names, (cert, key, authorities), who, more in (
        (CLIENT_NAMES, of_clients, "clients are shown", client),
        (ADMIN_NAMES, of_admin, "the admin listener shows", ""),
    ):
        if cert is None or key is None:
            continue
        try:
            found = read_certificate(cert, key, authorities, names)
        except CertificateError as exc:  # changed since the settings were checked
            yield str(exc)
            continue
        if not found.is_expired:
            yield f"{who} a certificate that is valid until {found.not_after}{more}"


def _tls_warnings(settings: Settings) -> Iterator[str]:
    of_clients = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    of_admin = (settings.admin_tls_cert_file, settings.admin_tls_key_file, None)
    for names, (cert, key, authorities) in ((CLIENT_NAMES, of_clients), (ADMIN_NAMES, of_admin)):
        if cert is None or key is None:
            continue
        try:
            found = read_certificate(cert, key, authorities, names)
        except CertificateError:  # it is told of beside the listeners
            continue
        if found.is_expired:
            yield f"the certificate in {names[0]} has expired on {found.not_after}: no client will accept it"


def _warnings(settings: Settings, now_s: int | None, container_bytes: int) -> Iterator[str]:
    yield from shortages(settings, open_files_limit(), container_bytes)
    is_open = not all(address.is_loopback for address in settings.listen)
    if is_open and settings.tls_cert_file is None and settings.requires_keys:
        yield "clients on other machines send their keys without TLS (VELOX_TLS_CERT)"
    yield from advice(settings)
    own = [entry.name for entry in settings.upstreams if is_keyless(entry)]
    if settings.requires_keys and own:
        yield f"no key of their own, so clients' requests go up without a credential: {', '.join(own[:5])}"
    for name, folder in (("VELOX_LEDGER", settings.ledger), ("VELOX_LEDGER_RINGS", settings.ledger_rings)):
        problem = "" if folder is None else folder_problem(folder)
        if problem:
            yield f"this user can't keep records in {name}: {problem}"
    # Managed keys expire all the time: `velox key list` shows when.
    over = [key for key in settings.api_keys if not key.is_managed and now_s is not None and key.has_expired(now_s)]
    if over:
        shown = ", ".join(f"{key.caller_name} ({key.where})" for key in over[:5])
        yield f"expired, so clients with it get 401: {len(over)} of the keys: {shown}"


def _access(settings: Settings) -> str:
    n = len(settings.api_keys)
    if settings.managed_keys:
        n_managed = sum(key.is_managed for key in settings.api_keys)
        return f"clients must present a key: {n_managed} that are managed (velox key), {n - n_managed} others"
    if n:
        n_limited = sum(bool(key.terms.models) for key in settings.api_keys)
        limited = f"; {n_limited} of them may use some models only" if n_limited else ""
        return (f"clients must present one of {n} keys" if n > 1 else "clients must present the one key") + limited
    if all(address.is_loopback for address in settings.listen):
        return "clients need no key: only this machine can connect"
    return "clients need no key and can come from other machines (VELOX_AUTH=none)"


def _objects(settings: Settings) -> Iterator[str]:
    """Say whose the files, responses and other objects of the upstreams' accounts are."""
    keys = settings.api_keys
    if not keys:
        if settings.unknown_objects == "refuse":
            yield "objects: clients need no key, so VELOX_UNKNOWN_OBJECTS has no effect"
        return
    names = {key.caller_name for key in keys}
    if len(names) == 1:
        yield "objects: all keys have one name, so each may use every file, response and other object (docs/keys.md)"
        return
    until = " until a restart" if settings.ledger is None else ""
    unknown = "is open to those who know its id" if settings.unknown_objects == "pass" else "gets 404"
    yield (
        f"objects: each of {len(names):,} names of keys sees the files, responses and others that it made;"
        f" {settings.object_rows:,} are remembered{until} (VELOX_OBJECT_ROWS), any other one {unknown}"
        " (VELOX_UNKNOWN_OBJECTS)"
    )
    every = sorted({key.caller_name for key in keys if Group.ORGANIZATION.value in key.terms.endpoints})
    if every:
        yield f"objects: of all names, because of `endpoints: [organization]`: {', '.join(every[:5])}"
