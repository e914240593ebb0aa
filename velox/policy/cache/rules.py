"""What a route says of its cache, and whose answers a caller may be given.

Knows: the fields of a rule, and scopes. Does not know: how a rule is written (settings/routing/routes.py).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from velox.types import Caller

__all__ = ["CacheRule", "CacheScope", "key_partition", "partition_of"]

_ALL: Final = "all"


class CacheScope(enum.StrEnum):
    """Who shares answers: each key has its own, each team, or all callers together."""

    KEY = "key"
    TEAM = "team"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CacheRule:
    """ttl_s: how long an answer is given again. sampled: also to requests whose answers differ by chance."""

    ttl_s: float
    scope: CacheScope = CacheScope.KEY
    sampled: bool = False

    def __str__(self) -> str:
        return f"for {self.ttl_s:g}s by {self.scope}{', sampled too' if self.sampled else ''}"


def partition_of(scope: CacheScope, caller: Caller) -> str:
    """Return the name of the partition that a caller's answers are in. A key without a team has one of its own.

    Names of different kinds are never equal, and no text of a request is in one.
    """
    if scope is CacheScope.ALL:
        return _ALL
    if scope is CacheScope.TEAM and caller.terms.team:
        return f"team:{caller.terms.team}"
    return key_partition(caller.id)


def key_partition(caller_id: bytes) -> str:
    """Return the name of the partition that a key has for itself. caller_id: as Caller has it."""
    return f"key:{caller_id.hex()}"
