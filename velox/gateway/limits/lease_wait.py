"""Waiting for permits that another process must be asked for: what a request waits for, and for how long.

Knows: that a quota or a budget may say NOT_YET, and that nobody waits for longer than one bound, however often it is
said. Does not know: who is asked (velox.runtime.leases.lease_client), or what a limit is (limiter.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from velox.errors import Reason, VeloxError
from velox.policy.limits.quota import Quota
from velox.shm.budget_table import SharedBudget

__all__ = ["LeaseWait", "NotYetError", "Want", "unavailable", "wait_for_permits"]

# A quota or a budget, and how many permits of it.
Want: TypeAlias = tuple[Quota | SharedBudget, int]


class NotYetError(Exception):
    """Nothing was taken: permits must be asked for first. wants: which.

    patience_s: the request may wait for so long, if that is longer than others may.
    """

    def __init__(self, wants: Sequence[Want], patience_s: float = 0.0) -> None:
        super().__init__("permits must be asked for")
        self.wants: Final = tuple(wants)
        self.patience_s: Final = patience_s


class LeaseWait(Protocol):
    """One worker's way to who has the permits."""

    @property
    def timeout_s(self) -> float:
        """For how long a request may wait, in all."""

    async def wait_for_lease(self, wants: Sequence[Want], until_s: float) -> bool:
        """Ask for permits and wait for an answer; False: there was none until then, by the loop's clock."""


async def wait_for_permits(
    gate: Callable[[int], None], leases: LeaseWait | None, loop: asyncio.AbstractEventLoop
) -> None:
    """Pass a gate that may raise NotYetError. Raises what it raises else, and VeloxError when time is over.

    When nobody answers, the quotas are asked once more: who was to answer counts as gone by then, and they say so.
    """
    began_s, is_last = loop.time(), False
    while True:
        try:
            gate(time.monotonic_ns())
            return
        except NotYetError as not_yet:
            wants, patience_s = not_yet.wants, not_yet.patience_s
        assert leases is not None, "only a quota with somebody to ask says NOT_YET"
        if is_last:
            raise unavailable()
        is_last = not await leases.wait_for_lease(wants, began_s + max(leases.timeout_s, patience_s))


def unavailable() -> VeloxError:
    """Return the 503 for a request of which nobody can say whether a limit has room for it."""
    message = "whether a limit has room for this request can't be found out: Redis did not answer (VELOX_REDIS_URL)"
    return VeloxError(Reason.LIMITS_UNAVAILABLE, message, retry_after_s=1.0)
