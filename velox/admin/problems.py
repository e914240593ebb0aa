"""What is wrong with a gateway that serves all the same, for the page that people look at.

Knows: what shared memory tells of upstreams, Redis and the file of keys. Does not know: whether the gateway is ready
(health.py), which does not depend on these.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.policy.health.member import State
from velox.shm.budget_table import BudgetMemory
from velox.shm.status import GatewayStatus, RedisLink
from velox.shm.upstream_table import KEYS_OUT, STATES, RowTotals

__all__ = ["problems"]


def problems(status: GatewayStatus, members: Sequence[RowTotals], budgets: BudgetMemory | None = None) -> list[str]:
    """Return a line for each. members: of all upstreams; of one that has just been removed no worker has a state."""
    found = []
    if status.key_file_is_bad:
        found.append("VELOX_API_KEYS_FILE can't be used, the keys stay as they were")
    if status.redis is not RedisLink.NONE and not status.redis_is_up:
        found.append("Redis does not answer: what VELOX_REDIS_FALLBACK says of limits holds")
    if budgets is not None and budgets.away_ns:
        found.append("Redis does not answer for budgets: of strict ones only what was granted before is spent")
    states: dict[str, list[int]] = {}
    for member in members:
        own = states.setdefault(member.upstream, [0] * len(State))
        for state in State:
            own[state] += member.cells[STATES + state]
    for name, n_workers in states.items():
        if any(n_workers) and not n_workers[State.IN]:
            what = "ejected" if not n_workers[State.RESTING] else "resting" if not n_workers[State.OUT] else "out"
            found.append(f"the upstream {name} is {what}, with all its origins and in all workers")
    refusing = dict.fromkeys(member.upstream for member in members if member.cells[KEYS_OUT])
    return found + [f"the upstream {name} refuses a key that the configuration has for it" for name in refusing]
