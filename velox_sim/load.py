"""The load of the simulated server, as vLLM and SGLang tell it: GET /metrics.

Knows: the names, the text format of Prometheus. Does not know: what runs, HTTP.

Sources: docs.vllm.ai "Production Metrics", docs.sglang.io "Production Metrics". vLLM named the use of its cache
gpu_cache_usage_perc until 0.9; a page of today's has the new name only, this one has both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Load", "page"]

_VLLM: Final = Path(__file__).with_name("metrics_vllm.txt").read_text("utf-8")
_SGLANG: Final = Path(__file__).with_name("metrics_sglang.txt").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Load:
    """n_asked, n_hit: tokens of prompts since the start, those looked for in the cache and those found there.

    usage: of the memory for keys and values, by the answers that run, 0 to 1.
    """

    n_running: int
    n_waiting: int
    usage: float
    n_asked: int
    n_hit: int


def page(kind: str, model: str, load: Load) -> bytes:
    """Return the page. kind: SimOptions.load_metrics."""
    text = _VLLM if kind == "vllm" else _SGLANG if kind == "sglang" else _VLLM + _SGLANG
    return text.format(
        model=model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"),
        running=load.n_running,
        waiting=load.n_waiting,
        usage=load.usage,
        asked=load.n_asked,
        hit=load.n_hit,
        rate=load.n_hit / load.n_asked if load.n_asked else 0.0,
    ).encode()
