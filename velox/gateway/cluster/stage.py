"""A stage of a route: one of its groups, for requests that name one model.

Knows: which members have a model. Does not know: which of them a request gets (group.py), or what comes after it
(routing.py).
"""

from __future__ import annotations

from typing import NamedTuple

from velox.gateway.cluster.group import Group
from velox.policy.routes.entries import asked_model

__all__ = ["Stage", "stage_of"]


class Stage(NamedTuple):
    """A group, and those of its members that don't have the model."""

    group: Group
    closed: frozenset[int]

    @property
    def is_open(self) -> bool:
        """True if one of them has it."""
        return len(self.closed) < len(self.group.members)


def stage_of(group: Group, model: str | None) -> Stage:
    """Return the stage of requests that name a model; None: they name none."""
    closed = frozenset(
        n
        for n, member in enumerate(group.members)
        if (asked := asked_model(group.models[n], model)) is not None and not member.entry.has_model(asked)
    )
    return Stage(group, closed)
