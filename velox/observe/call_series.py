"""What is counted of requests at an upstream, by kind of endpoint, route, upstream and model: the numbers of a series.

Knows: where each number lies in its row. Does not know: how a number is written (velox.observe.metrics) or shown
(velox.admin.call_metrics), or where rows lie (velox.shm.series_table).
"""

from __future__ import annotations

from typing import Final

from velox.observe import genai
from velox.shm.series_table import SeriesTable

__all__ = [
    "COST_NANO",
    "DURATION",
    "FIRST_TOKEN",
    "INPUT_TOKENS",
    "KINDS",
    "KIND_TOKENS",
    "OTHER",
    "OUTPUT_TOKEN",
    "OUTPUT_TOKENS",
    "ROW_CELLS",
    "UNPRICED",
    "series_table",
]

OTHER: Final = "other"

# Where the numbers of a series begin. A histogram is its buckets, +Inf last, and its sum.
DURATION: Final = 0
FIRST_TOKEN: Final = DURATION + len(genai.DURATION_NS) + 2
OUTPUT_TOKEN: Final = FIRST_TOKEN + len(genai.TTFT_NS) + 2
INPUT_TOKENS: Final = OUTPUT_TOKEN + len(genai.TPOT_NS) + 2
OUTPUT_TOKENS: Final = INPUT_TOKENS + len(genai.TOKEN_BOUNDS) + 2
KIND_TOKENS: Final = OUTPUT_TOKENS + len(genai.TOKEN_BOUNDS) + 2
KINDS: Final = ("input", "output", "cached", "cache_written", "reasoning")
COST_NANO: Final = KIND_TOKENS + len(KINDS)
UNPRICED: Final = COST_NANO + 1
ROW_CELLS: Final = UNPRICED + 1

_MOST_ROWS: Final = 2048  # of a process


def series_table(blocks: int) -> SeriesTable:
    """Return the memory for the series of so many processes."""
    return SeriesTable(blocks, ROW_CELLS, _MOST_ROWS)
