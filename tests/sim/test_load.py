"""The simulator's load, read by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from velox_sim.load import Load, page

LOAD = Load(n_running=3, n_waiting=2, usage=0.25, n_asked=400, n_hit=100)
VLLM = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:gpu_cache_usage_perc": 0.25,
    "vllm:prefix_cache_queries_total": 400,
    "vllm:prefix_cache_hits_total": 100,
}
SGLANG = {
    "sglang:num_running_reqs": 3,
    "sglang:num_queue_reqs": 2,
    "sglang:token_usage": 0.25,
    "sglang:cache_hit_rate": 0.25,
}


@pytest.mark.parametrize(("kind", "values"), [("vllm", VLLM), ("sglang", SGLANG), ("both", VLLM | SGLANG)])
def test_load_has_the_names_of_the_server(kind: str, values: dict[str, float]) -> None:
    """Each name with its value and the model's name; every family with its type and its help."""
    families = list(text_string_to_metric_families(page(kind, 'org/"m"', LOAD).decode()))
    samples = [sample for family in families for sample in family.samples]

    assert {sample.name: sample.value for sample in samples} == values
    assert {sample.labels["model_name"] for sample in samples} == {'org/"m"'}
    assert {family.type for family in families} <= {"gauge", "counter"} and all(f.documentation for f in families)


def test_load_without_a_question_has_a_hit_rate_of_none() -> None:
    """Nothing asked, nothing hit: 0, not a division by it."""
    assert b'sglang:cache_hit_rate{model_name="m"} 0.0\n' in page("sglang", "m", Load(0, 0, 0.0, 0, 0))
