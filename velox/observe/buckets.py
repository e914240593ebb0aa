"""The buckets of histograms of times: upper bounds in nanoseconds, inclusive, without +Inf.

Knows: which bounds are worth having. Does not know: which families there are (series.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DURATION_NS", "OVERHEAD_NS"]


def _ns(*seconds: float) -> tuple[int, ...]:
    return tuple(round(s * 1e9) for s in seconds)


# Those of gen_ai.server.request.duration in OpenTelemetry's conventions. Those of its time_to_first_token are in
# velox.shm.upstream_memory, where the first bytes of each upstream are counted in them, too.
DURATION_NS: Final = _ns(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
# What Velox adds is tens of microseconds when all is well, and seconds in a full queue.
OVERHEAD_NS: Final = _ns(
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1, 2.5, 5)
)
