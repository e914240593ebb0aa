"""Waiting for permits that another process must be asked for: what a request waits for, and for how long.

Knows: that a quota or a budget may say NOT_YET, and that nobody waits for longer than one bound, however often it is
said. Does not know: who is asked (velox.runtime.leases.lease_client), or what a limit is (limiter.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from velox.errors import Reason, VeloxError
from velox.policy.limits.quota import Quota
from velox.shm.budget_table import SharedBudget

__all__ = ["LeaseWait", "NotYet", "Want", "unavailable", "wait_for_permits"]

# A quota or a budget, and how many permits of it.
Want: TypeAlias = tuple[Quota | SharedBudget, int]


class NotYet(NamedTuple):
    """The answer to a request whose permits must be asked for first. wants: which.

    patience_s: the request may wait for so long, if that is longer than others may.
    """

    wants: Sequence[Want]
    patience_s: float = 0.0


class LeaseWait(Protocol):
    """One worker's way to who has the permits."""

    @property
    def timeout_s(self) -> float:
        """For how long a request may wait, in all."""

    async def wait_for_lease(self, wants: Sequence[Want], until_s: float) -> bool:
        """Ask for permits and wait for an answer; False: there was none until then, by the loop's clock."""


async def wait_for_permits(
    reserve: Callable[[int], object], leases: LeaseWait | None, loop: asyncio.AbstractEventLoop
) -> None:
    """Reserve what could not be reserved at once: until that is no NotYet. Raises VeloxError when time is over.

    When nobody answers, the quotas are asked once more: who was to answer counts as gone by then, and they say so.
    """
    began_s, is_last = loop.time(), False
    while True:
        not_yet = reserve(time.monotonic_ns())
        if not isinstance(not_yet, NotYet):
            return
        assert leases is not None, "only a quota with somebody to ask says NOT_YET"
        if is_last:
            raise unavailable()
        is_last = not await leases.wait_for_lease(not_yet.wants, began_s + max(leases.timeout_s, not_yet.patience_s))


def unavailable() -> VeloxError:
    """Return the 503 for a request of which nobody can say whether a limit has room for it."""
    message = "whether a limit has room for this request can't be found out: Redis did not answer (VELOX_REDIS_URL)"
    return VeloxError(Reason.LIMITS_UNAVAILABLE, message, retry_after_s=1.0)
