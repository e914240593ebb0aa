"""TLS handshakes that failed, in the operations log: one line a minute at most, whatever clients do.

Knows: how many of each cause there were since the last line. Does not know: who they were: a flood of clients must not
fill a disk.
"""

from __future__ import annotations

import logging
from typing import Final

from velox.observe.metrics import WorkerMetrics
from velox.outcomes import TlsFailure

__all__ = ["HandshakeLog"]

_EVERY_S: Final = 60.0


class HandshakeLog:
    """Of one worker: counts into its metrics, and says now and then what there was."""

    def __init__(self, metrics: WorkerMetrics, logger: logging.Logger) -> None:
        self._metrics: Final = metrics
        self._logger: Final = logger
        self._counts = [0] * len(TlsFailure)
        self._next_s = 0.0

    def failed(self, cause: TlsFailure) -> None:
        """Count one."""
        self._metrics.count_tls_failure(cause)
        self._counts[cause] += 1

    def flush(self, now_s: float) -> None:
        """Write the line if there is something to say and it is time. now_s: monotonic."""
        if now_s < self._next_s or not any(self._counts):
            return
        self._next_s = now_s + _EVERY_S
        counts = ", ".join(f"{n} {cause.name.lower()}" for cause, n in zip(TlsFailure, self._counts, strict=True) if n)
        self._counts = [0] * len(TlsFailure)
        self._logger.warning(
            "TLS handshakes with clients failed: %(causes)s (next line in %(next_s)g s)",
            {"causes": counts, "next_s": _EVERY_S},
        )
