"""The load of the simulated server, as vLLM and SGLang tell it: GET /metrics.

Knows: the names, the text format of Prometheus. Does not know: what runs, HTTP.

Sources: docs.vllm.ai "Production Metrics", docs.sglang.io "Production Metrics". vLLM named the use of its cache
gpu_cache_usage_perc until 0.9; a page of today's has the new name only, this one has both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Load", "page"]

_VLLM: Final = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running:.1f}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting:.1f}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {usage!r}
# HELP vllm:gpu_cache_usage_perc The older name of kv_cache_usage_perc.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{{engine="0",model_name="{model}"}} {usage!r}
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="{model}"}} {asked:.1f}
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="{model}"}} {hit:.1f}
"""
_SGLANG: Final = """\
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="{model}"}} {running:.1f}
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="{model}"}} {waiting:.1f}
# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{{model_name="{model}"}} {usage!r}
# HELP sglang:cache_hit_rate The cache hit rate
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{{model_name="{model}"}} {rate!r}
"""


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
