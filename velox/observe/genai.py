"""OpenTelemetry's names of metrics for generative AI, in Prometheus' spelling, with their buckets: one version of them.

Knows: names and bounds. Does not know: who counts. Source: the semantic conventions of OpenTelemetry, "Metrics of
generative AI", in the version that VERSION says, which backends read; a later one renames some of them.
"""

from __future__ import annotations

from typing import Final

from velox.shm.upstream_table import FIRST_BYTE_NS

__all__ = [
    "DURATION",
    "DURATION_NS",
    "TOKENS",
    "TOKEN_BOUNDS",
    "TPOT",
    "TPOT_NS",
    "TTFT",
    "TTFT_NS",
    "VERSION",
]

VERSION: Final = "1.37.0"


def _ns(*seconds: float) -> tuple[int, ...]:
    return tuple(round(s * 1e9) for s in seconds)


# gen_ai.server.request.duration. Its bounds end at 81.92 s; agents' requests take longer: up to 30 minutes are ours.
DURATION: Final = "gen_ai_server_request_duration_seconds"
DURATION_NS: Final[tuple[int, ...]] = (
    *_ns(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    *_ns(163.84, 327.68, 655.36, 1310.72, 1800),
)
# gen_ai.server.time_to_first_token: 1 ms to 10 s; the first bytes of each upstream are counted in these, too.
TTFT: Final = "gen_ai_server_time_to_first_token_seconds"
TTFT_NS: Final[tuple[int, ...]] = FIRST_BYTE_NS
# gen_ai.server.time_per_output_token
TPOT: Final = "gen_ai_server_time_per_output_token_seconds"
TPOT_NS: Final[tuple[int, ...]] = _ns(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# gen_ai.client.token.usage, of one call: powers of 4 up to 67,108,864.
TOKENS: Final = "gen_ai_client_token_usage"
TOKEN_BOUNDS: Final[tuple[int, ...]] = tuple(4**power for power in range(14))
