"""Kept answers of two gateways with one Redis: the same for both, and what becomes of them when it hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.redis_server import RedisServer, redis_server
from tests.e2e.routed import routed
from tests.e2e.test_kept_answers import SAYS, model, sent


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=model) as running:
        yield running


@pytest.fixture(scope="module")
def gateways(redis: RedisServer, upstream: RecordingUpstream) -> Iterator[list[VeloxProcess]]:
    config = {"upstreams": [{"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url}]}
    with ExitStack() as running:
        more = {"redis_url": redis.url, "kept_for": "300s"}
        yield [running.enter_context(routed(config, **more)) for _ in range(2)]


def test_gateways_have_the_same_answers(
    gateways: list[VeloxProcess], upstream: RecordingUpstream, redis: RedisServer
) -> None:
    """Made by one, read, gone on with, referred to and deleted by the other; each key in Redis has an end."""
    one, other = (velox.openai() for velox in gateways)
    made = one.responses.create(model="m", input="Hi")
    with redis.client() as client:
        until(lambda: len(client.keys("*answer*")) >= 3, "the answer and its items are in Redis", 10.0)
        assert all(0 < client.ttl(key) <= 300 for key in client.keys("*answer*"))

    assert other.responses.retrieve(made.id).output_text == SAYS
    result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    other.responses.create(model="m", input=[result], previous_response_id=made.id)
    assert sent(upstream) == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]
    said: Any = {"role": "user", "content": "Hi"}
    call = made.output[1].model_dump(exclude_none=True)
    reference: Any = {"type": "item_reference", "id": made.output[0].id}
    other.responses.create(model="m", input=[said, reference, call, result])
    assert sent(upstream) == [("user", "Hi"), ("assistant", SAYS), ("tool", "42")]

    other.responses.delete(made.id)
    for client_of in (one, other):  # also where it was made, which has its own copy
        with pytest.raises(openai.NotFoundError):
            client_of.responses.retrieve(made.id)


@pytest.mark.more
def test_redis_that_hangs_holds_up_no_answer(gateways: list[VeloxProcess], redis: RedisServer) -> None:
    """The gateway that made an answer has it; the other one says that it can't look, and finds it again later."""
    one, other = (velox.openai() for velox in gateways)
    before = one.responses.create(model="m", input="Hi")

    def found() -> bool:
        reply = gateways[1].request("GET", f"/v1/responses/{before.id}")
        return reply.status == 200 and json.loads(reply.body)["id"] == before.id

    until(found, "the other gateway finds it", 10.0)
    redis.pause()
    try:
        made = one.responses.create(model="m", input="Hi")
        assert one.responses.retrieve(made.id).output_text == SAYS
        with pytest.raises(openai.InternalServerError) as info:
            other.responses.retrieve(before.id)
        assert (info.value.status_code, info.value.code) == (503, "answers_unavailable")
        with pytest.raises(openai.InternalServerError):
            other.responses.create(model="m", input="And?", previous_response_id=before.id)
        assert other.responses.create(model="m", input="Hi").output_text == SAYS
    finally:
        redis.resume()
    until(found, "the other gateway finds it again", 15.0)
