"""What the simulator says of itself: its load, its health, its name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from prometheus_client.parser import text_string_to_metric_families

from tests.sim.harness import FAST, Peer, wait_until, with_sdk, with_sim
from tests.untrusting import NO_TRUST
from velox_sim.options import SimOptions
from velox_sim.server import SimServer


async def load(client: httpx.AsyncClient) -> dict[str, float]:
    """Return the values of GET /metrics by name."""
    reply = await client.get("/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(reply.text)
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("options", "usage"),
    [
        (replace(FAST, capacity=2), 1.0),
        (replace(FAST, capacity=4, batch_slowdown=True), 0.75),
        (replace(FAST, capacity=2, prefix_cache=64), 2 * (1 + 3) / 64),
        (FAST, 0.0),
    ],
)
def test_metrics_tell_who_runs_and_who_waits(options: SimOptions, usage: float) -> None:
    """Three are asked for; what does not run waits; the memory is of those that run. Afterwards all is 0 again."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        for _ in range(3):
            peer.ask()
        n_running = 2 if options.capacity == 2 else 3
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            await wait_until(lambda: sim.statistics().n_requests == 3)
            found = await load(client)

            assert found["vllm:num_requests_running"] == found["sglang:num_running_reqs"] == n_running
            assert found["vllm:num_requests_waiting"] == found["sglang:num_queue_reqs"] == 3 - n_running
            assert found["vllm:kv_cache_usage_perc"] == found["vllm:gpu_cache_usage_perc"] == usage
            assert found["sglang:token_usage"] == usage

            peer.close()
            await wait_until(lambda: sim.statistics().n_connections == 1)
            found = await load(client)
            assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
            assert found["vllm:kv_cache_usage_perc"] == 0

    with_sim(replace(options, token_rate=0.01), talk)


def test_metrics_count_the_tokens_looked_for_and_found() -> None:
    """As vLLM does: of all prompts, in tokens."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            for _ in range(3):
                await client.post("/v1/completions", json={"model": "m", "prompt": "x" * 65})
            found = await load(client)

        assert found["vllm:prefix_cache_queries_total"] == 3 * 17
        assert found["vllm:prefix_cache_hits_total"] == 2 * 16
        assert found["sglang:cache_hit_rate"] == 32 / 51

    with_sim(replace(FAST, prefix_cache=64), talk)


def test_metrics_have_the_names_of_one_server_where_it_was_chosen() -> None:
    """A client that reads the other's names finds none."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            assert {name.partition(":")[0] for name in await load(client)} == {"sglang"}

    with_sim(replace(FAST, load_metrics="sglang"), talk)


def test_health_is_asked_with_get() -> None:
    """200 without a body, as vLLM has it, also when all work fails; no other method, no other path."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            health = await client.get("/health")
            assert (health.status_code, health.content) == (200, b"")
            assert (await client.head("/metrics")).content == b""
            refused = await client.post("/health")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
            assert (await client.get("/v1/health")).status_code == 404

    with_sim(replace(FAST, error_rate=1.0), talk)


def test_path_may_have_more_before_its_v1() -> None:
    """As some providers have it; what comes behind it is what counts."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            ask = {"model": "m", "prompt": ""}
            for path in ("/completions", "/v1/completions", "/openai/v1/completions", "/a/b/v1/completions?x=/v1/"):
                assert (await client.post(path, json=ask)).status_code == 200
            for path in ("/openai/completions", "/v1/a/completions", "/v1x/completions"):
                assert (await client.post(path, json=ask)).status_code == 404
            assert (await client.get("/v1/models/v1")).json()["id"] == "v1"

    with_sim(replace(FAST, models=("v1",)), talk)


def test_name_is_in_every_reply() -> None:
    """A test that asks several simulators sees which one answered; without a name there is no header."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            replies = await asyncio.gather(
                client.get("/health"),
                client.get("/nothing"),
                client.post("/v1/completions", json={"model": "m", "prompt": "", "stream": True}),
                client.get("/" + "x" * 40_000),
            )
        assert [reply.status_code for reply in replies] == [200, 404, 200, 414]
        assert {reply.headers["x-sim-name"] for reply in replies} == {"left.1"}

    async def talk_without(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            assert "x-sim-name" not in (await client.get("/health")).headers

    with_sim(replace(FAST, name="left.1"), talk)
    with_sim(FAST, talk_without)


def test_model_asked_for_is_the_one_that_answers() -> None:
    """A model by any name: each answer says the one of its request."""
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "x"}]

    async def talk(client: openai.AsyncOpenAI) -> None:
        assert (await client.chat.completions.create(model="org/a b", messages=messages)).model == "org/a b"
        stream = await client.chat.completions.create(model="ä", messages=messages, stream=True)
        assert {chunk.model async for chunk in stream} == {"ä"}
        assert (await client.completions.create(model="c", prompt="x")).model == "c"
        assert (await client.responses.create(model="d", input="x")).model == "d"
        assert (await client.embeddings.create(model="e", input="x")).model == "e"

    with_sdk(FAST, talk)
