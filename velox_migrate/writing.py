"""A Velox file as text, with comments that say where each part came from.

Knows: how upstreams, routes and limits are written, and names for them. Does not know: where they came from.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from velox.policy.spellings import MOST_RPM, MOST_TPM
from velox.providers.rows import PROVIDERS as ROWS
from velox.settings.problems import on_one_line
from velox_migrate.deployments import Destination
from velox_migrate.groups import Limit, Route, Target
from velox_migrate.notes import Notes

__all__ = ["Setting", "write"]

Setting = tuple[str, str, str]  # the field, its value, where it came from
_PLAIN: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9._/+-]*|[0-9]{1,10}(?:\.[0-9]+)?s?|(?:env:|https?://)[A-Za-z0-9._/:\[\]-]+"
)
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_NAME_CHARS: Final = 56
_LINE_CHARS: Final = 120


def write(settings: Iterable[Setting], routes: Sequence[Route], limits: Sequence[Limit], notes: Notes) -> str:
    """Return the file. Its head is the report, so that it stays with the file."""
    upstreams = _upstream_names(routes)
    lines = [
        f"# Made from {on_one_line(notes.path)} by `velox import litellm`.",
        "#",
    ]
    for line in notes.lines():
        lines += [f"# {part}" for part in _wrap(line)]
    lines.append("")
    for key, value, where in settings:
        lines += [on_one_line(f"# {where}"), f"{key}: {_scalar(value)}"]
    lines += ["upstreams:"] if lines[-1] == "" else ["", "upstreams:"]
    for destination, name in upstreams.items():
        lines += _upstream(destination, name)
    lines += ["", "routes:"]
    lines += _routes(routes, upstreams)
    if limits:
        lines += ["", "limits:"]
        lines += _limits(limits)
    return "\n".join(lines) + "\n"


def _wrap(line: str) -> list[str]:
    wide = _LINE_CHARS - 2
    return textwrap.wrap(line, wide, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False)


def _upstream_names(routes: Iterable[Route]) -> dict[Destination, str]:
    """Return each destination that a route names, once, with a name that no other has."""
    found: dict[Destination, str] = {}
    for route in routes:
        for target in (*route.to, *route.fallback):
            if target.to not in found:
                found[target.to] = _free(target.to.base, set(found.values()))
    return found


def _free(text: str, taken: set[str]) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:_NAME_CHARS] or "any"
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}"
    return name


def _upstream(destination: Destination, name: str) -> Iterator[str]:
    yield f"  - name: {_scalar(name)}"
    if destination.provider:
        yield f"    provider: {_scalar(destination.provider)}"
    for key, value in destination.parameters:
        yield f"    {key}: {_scalar(value)}"
    if destination.origin:
        yield f"    origin: {_scalar(destination.origin)}"
    if destination.key:
        yield f"    keys: [{_scalar(destination.key)}]"
    elif (
        destination.provider and ROWS[destination.provider].key_variables and not ROWS[destination.provider].aws_service
    ):
        yield "    key: none"  # or Velox would look into the provider's variable
    if destination.timeouts:
        pairs = ", ".join(f"{key}: {_scalar(f'{seconds:.12g}s')}" for key, seconds in destination.timeouts)
        yield f"    timeouts: {{{pairs}}}"
    if (destination.weight or 1) > 1:
        yield f"    weight: {destination.weight}"
    if destination.concurrency:
        yield f"    concurrency: {destination.concurrency}"
    if destination.headers:
        pairs = ", ".join(f"{_scalar(key)}: {_scalar(value)}" for key, value in destination.headers)
        yield f"    headers: {{{pairs}}}"


def _routes(routes: Sequence[Route], upstreams: dict[Destination, str]) -> Iterator[str]:
    taken: set[str] = set()
    for route in routes:
        words = "any" if route.name == "*" else route.name
        name = _free(f"{words}-{route.tag}" if route.tag else words, taken)
        taken.add(name)
        yield f"  # {_places(route.wheres)}"
        yield f"  - name: {_scalar(name)}"
        tags = f", tags: [{_scalar(route.tag)}]" if route.tag else ""
        yield f"    match: {{models: [{', '.join(map(_scalar, route.models))}]{tags}}}"
        # A model is named where it is not the one that clients ask for.
        own = route.models[0] if len(route.models) == 1 else None
        yield from _targets("to", [_target(target, upstreams, own) for target in route.to])
        if len(route.to) > 1 and route.balance != "round_robin":
            yield f"    balance: {route.balance}"
        if route.fallback:
            yield from _targets("fallback", [_target(target, upstreams, None) for target in route.fallback])


def _targets(field: str, targets: Sequence[str]) -> Iterator[str]:
    line = f"    {field}: [{', '.join(targets)}]"
    if len(line) <= _LINE_CHARS:
        yield line
        return
    yield f"    {field}:"
    yield from (f"      - {target}" for target in targets)


def _places(wheres: Sequence[str]) -> str:
    """Return several places in one file: "config.yaml:3, 12"."""
    path = wheres[0].rpartition(":")[0]
    return on_one_line(f"{path}:{', '.join(where.rpartition(':')[2] for where in wheres)}")


def _target(target: Target, upstreams: dict[Destination, str], own: str | None) -> str:
    name = _scalar(upstreams[target.to])
    model = "" if target.model is None or target.model == own else f", model: {_scalar(target.model)}"
    model += f", strip: {_scalar(target.strip)}" if target.strip else ""
    reason = "" if target.refusal is None else f", for: [{target.refusal}]"
    return f"{{upstream: {name}{model}{reason}}}" if model or reason else name


def _limits(limits: Iterable[Limit]) -> Iterator[str]:
    for limit in limits:
        yield on_one_line(f"  # {limit.where}")
        # Several names, or any name, share what the deployments have together.
        alone = len(limit.models) == 1 and "*" not in limit.models[0]
        yield f"  - per: {'model' if alone else 'gateway'}"
        yield f"    models: [{', '.join(map(_scalar, limit.models))}]"
        if limit.rpm:
            yield f"    rpm: {min(limit.rpm, MOST_RPM)}"
        if limit.tpm:
            yield f"    tpm: {min(limit.tpm, MOST_TPM)}"


def _scalar(text: str) -> str:
    """Return a text so that YAML, and Velox, read it as it is. JSON's strings are YAML's, too."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text)
