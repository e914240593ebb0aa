"""The members that a configuration names: what the supervisor enrolls, and what each worker makes its fleet of.

Knows: where the built-in simulator takes the place of an upstream. Does not know: what a member is in a worker.
"""

from __future__ import annotations

from dataclasses import replace

from velox.policy.routes import UpstreamEntry
from velox.settings import Settings
from velox.settings.parse import origin as parse_origin
from velox.shm.upstream_table import Label

__all__ = ["labels_of", "prefix_groups", "upstreams_of"]


def upstreams_of(settings: Settings, sim_origin: str | None) -> tuple[UpstreamEntry, ...]:
    """Return the upstreams; with the built-in simulator the first of them is where it listens."""
    if sim_origin is None:
        return settings.upstreams
    first, *others = settings.upstreams
    return (replace(first, origins=(parse_origin(sim_origin),)), *others)


def labels_of(upstreams: tuple[UpstreamEntry, ...]) -> list[Label]:
    """Return the members of the upstreams, by the labels of their rows in the table that all workers share."""
    return [(upstream.name, str(origin)) for upstream in upstreams for origin in upstream.origins]


def prefix_groups(settings: Settings) -> list[str]:
    """Return the routes that choose by prompts: they have a table of them in that memory."""
    return [route.name for route in settings.routes if route.balance == "prefix"]
