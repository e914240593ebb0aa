"""The supervisor's side of the keeper of leases: when it is started, and what its death means.

Knows: that there is one where VELOX_REDIS_URL is set, and never two. Does not know: what it does (lease_keeper.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import Final, Self

from velox.runtime.lease_pipes import LeasePipes
from velox.runtime.listeners import Listeners
from velox.settings import Settings
from velox.shm.quota_memory import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink

__all__ = ["LeaseProcess"]

_AGAIN_S: Final = 0.1


class LeaseProcess:
    """The keeper of one gateway, whichever process it is. pid: 0: none runs."""

    def __init__(self, settings: Settings, segment: Segment, quotas: QuotaMemory, logger: logging.Logger) -> None:
        self._settings: Final = settings
        self._segment: Final = segment
        self._quotas: Final = quotas
        self._logger: Final = logger
        self._status: Final = GatewayStatus(segment)
        # Until the keeper has tried, requests wait for it instead of going on without.
        self._status.redis = RedisLink.UP
        self._start_at_s = 0.0
        self.pipes: Final = LeasePipes(segment.blocks)
        self.pid = 0

    def __repr__(self) -> str:
        return f"<LeaseProcess pid={self.pid}>"

    @classmethod
    def of(cls, settings: Settings, segment: Segment, quotas: QuotaMemory, logger: logging.Logger) -> Self | None:
        """Return the keeper of a gateway; None: it needs none."""
        return None if settings.redis_url is None else cls(settings, segment, quotas, logger)

    def is_due(self, now_s: float) -> bool:
        """True if one is to be started."""
        return not self.pid and now_s >= self._start_at_s

    def run(self, listeners: Listeners) -> int:
        """Be the keeper, in a process of its own, until SIGTERM."""
        listeners.close_others(None)
        # Here, not above: the package redis is an extra.
        from velox.runtime.lease_keeper import run_keeper

        return run_keeper(self._settings, self._segment, self._quotas, self.pipes)

    def started(self, pid: int) -> None:
        """Note its process."""
        self.pid = self._status.keeper_pid = pid

    def hurry(self) -> None:
        """End it at once if it has nobody to give anything back to: it may be in the middle of a slow look-up."""
        if self.pid and not self._status.redis_is_up:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def died(self, how: str, now_s: float, *, expected: bool) -> None:
        """Note that it was reaped; the next one may start."""
        self.pid = self._status.keeper_pid = 0
        self._start_at_s = now_s + _AGAIN_S
        if not expected:
            self._logger.error("the keeper of leases died (%s); the next one starts in %g s", how, _AGAIN_S)
