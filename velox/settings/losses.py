"""What a reload must not take away unasked: a file that was emptied or cut off is good YAML, and means something else.

Knows: how a configuration that lost its contents differs from the active one. Does not know: who reads it, when, or
who may force it.

    not even forced   requests would go to the built-in default upstream, though the active one named others
    unless forced     the end mark `end: true` is gone, or the last line has no end, where the active one had it
                      every upstream that had requests is gone
                      `routes` is gone, or every route whose upstreams had requests
                      an upstream has no keys any more: the clients' own would go up
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from velox.policy.routes.entries import RouteEntry, UpstreamEntry
from velox.settings.model import Settings

__all__ = ["Loss", "losses"]

_SHOWN_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class Loss:
    """One reason to refuse. is_final: it is one even if the reload is forced."""

    text: str
    is_final: bool = False

    def __str__(self) -> str:
        return self.text if self.is_final else f"{self.text}; `velox reload --force` takes it all the same"


def losses(running: Settings, found: Settings, used: Collection[str]) -> Iterator[Loss]:
    """Yield what a new configuration lost. used: names of the upstreams that had requests since the start."""
    path = found.config_file or "the configuration"
    before, now = running.file_end, found.file_end
    if before.has_mark and not now.has_mark:
        yield Loss(f"{path}: its last field `end: true` is gone, which the active file has: it looks cut off")
    elif before.is_line and not now.is_line:
        yield Loss(f"{path}: its last line has no end, unlike the active file: it looks cut off")
    if _is_default(found) and _origins(found) != _origins(running):
        origins = ", ".join(map(str, found.upstream_origins))
        text = f"{path}: it names no upstream, and requests would go to the default, {origins}; expected"
        yield Loss(f"{text} `upstreams`, or `upstream_origin: {origins}` if that is meant", is_final=True)
        return
    yield from _lost_upstreams(path, running.upstreams, found.upstreams, used)
    yield from _lost_routes(path, running.routes, found.routes, used)


def _lost_upstreams(
    path: str, before: Collection[UpstreamEntry], now: Collection[UpstreamEntry], used: Collection[str]
) -> Iterator[Loss]:
    names = {entry.name: entry for entry in now}
    origins = {origin for entry in now for origin in entry.origins}
    served = [entry for entry in before if entry.name in used]
    gone = [entry.name for entry in served if entry.name not in names and not origins.intersection(entry.origins)]
    if gone and len(gone) == len(served):
        yield Loss(f"{path}: every upstream that had requests would be gone: {_listed(gone)}")
    for entry in before:
        same = names.get(entry.name)
        if entry.keys and same is not None and not same.keys:
            text = f"{same.where or path}: the upstream {entry.name} has no keys any more"
            yield Loss(f"{text}: the credentials of clients would go up instead")


def _lost_routes(
    path: str, before: Collection[RouteEntry], now: Collection[RouteEntry], used: Collection[str]
) -> Iterator[Loss]:
    written = [route for route in before if route.where]
    if written and not any(route.where for route in now):
        yield Loss(f"{path}: `routes` is gone: all requests would go to any of the upstreams")
        return
    names = {route.name for route in now}
    served = [route for route in written if any(target.upstream in used for target in route.targets)]
    gone = [route.name for route in served if route.name not in names and not any(_is_alike(route, x) for x in now)]
    if gone and len(gone) == len(served):
        yield Loss(f"{path}: every route whose upstreams had requests would be gone: {_listed(gone)}")


def _is_alike(route: RouteEntry, other: RouteEntry) -> bool:
    """True for a route that has only another name: it is for the same requests, or leads to the same upstreams."""
    return route.match == other.match or {each.upstream for each in route.to} == {each.upstream for each in other.to}


def _is_default(settings: Settings) -> bool:
    """True if nothing names an upstream."""
    return not settings.upstreams[0].where and settings.origins["VELOX_UPSTREAM_ORIGIN"] == "default"


def _origins(settings: Settings) -> set[str]:
    return {str(origin) for entry in settings.upstreams for origin in entry.origins}


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"
