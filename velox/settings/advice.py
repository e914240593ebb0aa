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


def _doubled_bases(settings: Settings) -> Iterator[str]:
    """Tell of an origin that ends with what clients' paths begin with. Who has clients without it warms up so, too."""
    path = settings.upstream_warmup_path
    first, slash, rest = path.lstrip("/").partition("/")
    for entry in settings.upstreams:
        for origin in entry.origins:
            if PROVIDERS[entry.provider] is COMPATIBLE and slash and origin.base_path.endswith(f"/{first}"):
                yield (
                    f"upstream {entry.name} gets {path} as {origin}{path}: take /{first} off the origin; or, where"
                    f" clients leave it out, set VELOX_UPSTREAM_WARMUP_PATH=/{rest}, and VELOX_UPSTREAM_REQUEST_PATH"
                    f" without /{first}, too"
                )
                return
