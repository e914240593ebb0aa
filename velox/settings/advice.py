"""What may be a mistake in settings that can be used: `velox check` warns of it, and the log at a start and a reload.

Knows: where requests would go. Does not know: what can't be used (loading.py), or the machine (runtime/check.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.settings.model import Settings

__all__ = ["advice"]


def advice(settings: Settings, *, sim: bool = False) -> Iterator[str]:
    """Yield a line for each. sim: the built-in simulator is in place of the first upstream."""
    if settings.unusable_variables:
        yield f"set, but not as Velox could use it: {', '.join(settings.unusable_variables)}"
    if not sim:
        yield from _doubled_bases(settings)
        yield from _strayed_keys(settings)


def _doubled_bases(settings: Settings) -> Iterator[str]:
    """Tell of an origin that ends with what clients' paths begin with. Who has clients without it warms up so, too."""
    path = settings.upstream_warmup_path
    first, slash, rest = path.lstrip("/").partition("/")
    for entry in settings.upstreams:
        for origin in entry.origins:
            if PROVIDERS[entry.provider] is COMPATIBLE and slash and origin.base_path.endswith(f"/{first}"):
                yield (
                    f"upstream {entry.name} gets {path} as {origin}{path}: take /{first} off the origin; or, where"
                    f" clients leave it out, set VELOX_UPSTREAM_WARMUP_PATH=/{rest}"
                )
                return


def _strayed_keys(settings: Settings) -> Iterator[str]:
    """Tell where clients' own keys go that may be meant for the providers of variables: an origin that nobody chose."""
    found, usual = settings.found_upstreams, settings.upstreams[0]
    is_chosen = settings.origins["VELOX_UPSTREAM_ORIGIN"] != "default"
    if found and not (usual.keys or is_chosen or settings.asks_for_keys):
        names = ", ".join(pattern for route in settings.routes for pattern in route.match.models)
        yield (
            f"models with other names than {names} go to {usual.origins[0]}, with the client's own key:"
            " a file with `upstreams` has only those that it names"
        )
