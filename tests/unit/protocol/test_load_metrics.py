"""What the metrics pages of model servers say of their load, whatever else is on them."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.protocol.load_metrics import ModelLoad, read_load
from velox_sim import load

Kind = Literal["vllm", "sglang"]

VLLM: bytes = b"""\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="zai-org/GLM-4.5"} 23.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="zai-org/GLM-4.5"} 4.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="zai-org/GLM-4.5",reason="capacity"} 4.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="zai-org/GLM-4.5"} 9.75010481363281e-02
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="zai-org/GLM-4.5"} 32.0
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="zai-org/GLM-4.5"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="zai-org/GLM-4.5"} 8.0
"""
VLLM_0_6: bytes = b"""\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="unsloth/Llama-3.2-1B-Instruct"} 5.0
# HELP vllm:num_requests_swapped Number of requests swapped to CPU.
# TYPE vllm:num_requests_swapped gauge
vllm:num_requests_swapped{model_name="unsloth/Llama-3.2-1B-Instruct"} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="unsloth/Llama-3.2-1B-Instruct"} 0.0
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="unsloth/Llama-3.2-1B-Instruct"} 0.734
# HELP vllm:cpu_cache_usage_perc CPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:cpu_cache_usage_perc gauge
vllm:cpu_cache_usage_perc{model_name="unsloth/Llama-3.2-1B-Instruct"} 0.99
"""
SGLANG: bytes = b"""\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
# HELP sglang:num_used_tokens The number of used tokens
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 123859.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""


@pytest.mark.parametrize(
    ("kind", "page", "expected"),
    [
        ("vllm", VLLM, ModelLoad(23.0, 4.0, 9.75010481363281e-02)),
        ("vllm", VLLM.replace(b"\n", b"\r\n"), ModelLoad(23.0, 4.0, 9.75010481363281e-02)),
        ("vllm", VLLM_0_6, ModelLoad(5.0, 0.0, 0.734)),
        ("sglang", SGLANG, ModelLoad(162.0, 2826.0, 0.28)),
    ],
)
def test_page_as_servers_write_it_is_read(kind: Kind, page: bytes, expected: ModelLoad) -> None:
    """Of each server and its older version; names that only begin alike don't count."""
    assert read_load(kind, page) == expected


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("shown", ["alone", "both"])
def test_page_of_the_simulator_is_read(kind: Kind, shown: str) -> None:
    """With a model whose name has to be escaped."""
    page = load.page(kind if shown == "alone" else "both", 'a"b\\c\nd', load.Load(3, 2, 0.25, 100, 50))

    assert read_load(kind, page) == ModelLoad(3.0, 2.0, 0.25)


def test_engines_and_models_add_up_and_the_fullest_cache_counts() -> None:
    """vLLM with --data-parallel-size has a series for each engine."""
    page = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.2
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9
"""
    assert read_load("vllm", page) == ModelLoad(7.0, 2.0, 0.9)


def test_priorities_and_ranks_of_one_engine_are_counted_once() -> None:
    """SGLang with priority scheduling, and with metrics of all schedulers: the same requests stand there repeatedly."""
    page = b"""\
sglang:num_running_reqs{dp_rank="0",engine_type="unified",priority="",tp_rank="0"} 6.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",priority="10",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",priority="None",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",priority="",tp_rank="1"} 6.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",priority="",tp_rank="2"} 1.0
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",priority="",tp_rank="0"} 3.0
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",priority="",tp_rank="1"} 2.0
"""
    assert read_load("sglang", page) == ModelLoad(7.0, 3.0, 0.0)


@pytest.mark.parametrize(
    ("line", "running"),
    [
        (b"vllm:num_requests_running 5", 5.0),
        (b"vllm:num_requests_running\t5\t1700000000000", 5.0),
        (b"vllm:num_requests_running{} 5", 5.0),
        (b'vllm:num_requests_running { a="b" } 5', None),
        (b'vllm:num_requests_running{ a = "b" , c="d", } 5', 5.0),
        (b'vllm:num_requests_running{model_name="a\\"} 9\\\\"} 5', 5.0),
        (b'vllm:num_requests_running{model_name="a} 9"} 5 # {x="y"} 1', 5.0),
        (b"vllm:num_requests_running 5e0", 5.0),
        (b"vllm:num_requests_running NaN", None),
        (b"vllm:num_requests_running +Inf", None),
        (b"vllm:num_requests_running -1", None),
        (b"vllm:num_requests_running five", None),
        (b"vllm:num_requests_running", None),
        (b"vllm:num_requests_running{", None),
        (b'vllm:num_requests_running{a="b', None),
        (b'vllm:num_requests_running{a="b"', None),
        (b'vllm:num_requests_running{a="b"}', None),
        (b'vllm:num_requests_running{a="' + b"x" * 5000 + b'"} 5', None),
        (b"vllm:num_requests_running_total 5", None),
        (b" vllm:num_requests_running 5", None),
        (b"# vllm:num_requests_running 5", None),
        (b"x\xff\x00vllm:num_requests_running 5", None),
    ],
)
def test_line_that_can_not_be_read_counts_for_nothing(line: bytes, running: float | None) -> None:
    """Alone, and beside a series that can."""
    alone = read_load("vllm", line)
    beside = read_load("vllm", b'vllm:num_requests_running{model_name="other"} 1\n' + line)

    assert alone == (None if running is None else ModelLoad(running, 0.0, 0.0))
    assert beside == ModelLoad(1.0 + (running or 0.0), 0.0, 0.0)


@pytest.mark.parametrize("page", [b"", b"\n\n", b"<html>404</html>", SGLANG, b"vllm:kv_cache_usage_perc 0.5\n"])
def test_page_that_says_nothing_of_requests_is_none(page: bytes) -> None:
    """Another server's, or no metrics at all: that is no idle server."""
    assert read_load("vllm", page) is None


def test_cache_is_never_fuller_than_full() -> None:
    """Whatever a server says."""
    assert read_load("vllm", b"vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 87.5\n") == ModelLoad(0, 0, 1.0)


def test_no_more_series_are_read_than_a_server_has() -> None:
    """A page that consists of nothing else costs as little."""
    page = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % n for n in range(10_000))
    assert read_load("vllm", page) == ModelLoad(256.0, 0.0, 0.0)


@given(st.lists(st.sampled_from([*VLLM.splitlines(True), b"{", b"}", b'"', b"\\", b" ", b"\n", b"\xff", b"1"])))
def test_no_page_is_too_much(pieces: list[bytes]) -> None:
    """Anything is read as something, or as nothing."""
    found = read_load("vllm", b"".join(pieces))
    assert found is None or (found.running >= 0.0 and found.waiting >= 0.0 and 0.0 <= found.cache_usage <= 1.0)
