"""How many connections the limit on open files leaves room for (R-PROC-6).

Knows: how descriptors are divided. Does not know: where the limit stands, or who opens what.

At the limit uvloop accepts what comes and closes it without a word, and a dial fails: neither a client nor an operator
is told why. So a worker takes fewer connections than it has descriptors for, and answers those beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DescriptorPlan", "plan_descriptors"]

# The loop, pipes, listeners, logs, a resolver's threads, and connections that are being refused.
_RESERVE: Final = 64


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """What one worker may open: connections of clients, and connections to an upstream."""

    clients: int
    upstream: int


def plan_descriptors(limit: int, clients: int, upstream: int) -> DescriptorPlan:
    """Divide `limit` open files. clients, upstream: what the settings ask for; neither gets more than that.

    An upstream connection counts twice: for a while there may be one that leaves beside one that comes. Where there
    is not room for all, the upstream side gets no more than half of it: a client without an upstream is of no use, nor
    an upstream without clients.
    """
    room = max(2, limit - _RESERVE)
    upstream = max(1, min(upstream, room // 4))
    return DescriptorPlan(clients=max(1, min(clients, room - 2 * upstream)), upstream=upstream)
