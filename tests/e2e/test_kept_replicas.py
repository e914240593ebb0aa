"""Kept answers of two gateways with one Redis or PostgreSQL: the same for both, and when it hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.shared_stores import STORES, SharedStore, shared_store
from tests.e2e.test_kept_answers import SAYS, model, sent
from tests.e2e.tools import covers


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with shared_store(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=model) as running:
        yield running


@pytest.fixture(scope="module")
def gateways(store: SharedStore, upstream: RecordingUpstream) -> Iterator[list[VeloxProcess]]:
    config = {"upstreams": [{"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url}]}
    with ExitStack() as running:
        made = [running.enter_context(routed(config, kept_for="300s", **store.settings())) for _ in range(2)]
        until(store.is_ready, "its tables are made")
        yield made


@covers("VELOX_KEPT_DATABASE_BYTES")
def test_gateways_have_the_same_answers(
    gateways: list[VeloxProcess], upstream: RecordingUpstream, store: SharedStore
) -> None:
    """Made by one, read, gone on with, referred to and deleted by the other; each row in the store has an end."""
    one, other = (velox.openai() for velox in gateways)
    made = one.responses.create(model="m", input="Hi")
    until(lambda: store.n_answers() >= 3, "the answer and its items are in the store")
    assert 0 < store.longest_s("answer") <= 300

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
def test_store_that_hangs_holds_up_no_answer(gateways: list[VeloxProcess], store: SharedStore) -> None:
    """The gateway that made an answer has it; the other one says that it can't look, and finds it again later."""
    one, other = (velox.openai() for velox in gateways)
    before = one.responses.create(model="m", input="Hi")

    def found() -> bool:
        reply = gateways[1].request("GET", f"/v1/responses/{before.id}")
        return reply.status == 200 and json.loads(reply.body)["id"] == before.id

    until(found, "the other gateway finds it", 10.0)
    store.pause()
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
        store.resume()
    until(found, "the other gateway finds it again", 15.0)


def test_turns_of_one_instant_are_all_in_the_conversation(gateways: list[VeloxProcess]) -> None:
    """K6: a conversation that both gateways go on with at once has each turn and each item, in one order for both."""
    clients = [velox.openai() for velox in gateways]
    made = clients[0].conversations.create()

    def is_known() -> bool:
        return gateways[1].request("GET", f"/v1/conversations/{made.id}").status == 200

    until(is_known, "the other gateway knows it")

    def turn(n: int) -> None:
        client = clients[n % 2]
        if n % 3:
            client.responses.create(model="m", input=f"turn {n}", conversation=made.id)
        else:
            item: Any = {"type": "message", "role": "user", "content": f"turn {n}"}
            client.conversations.items.create(made.id, items=[item])

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(turn, range(24)))

    def said(client: openai.OpenAI) -> list[str]:
        items = client.conversations.items.list(made.id, limit=100, order="asc").data
        return [text for item in items if item.type == "message" and (text := said_in(item)).startswith("turn")]

    until(lambda: sorted(said(clients[0])) == sorted(f"turn {n}" for n in range(24)), "each turn is there")
    assert said(clients[0]) == said(clients[1])


def said_in(item: Any) -> str:
    """Return the text of a message."""
    content = item.content
    return content if isinstance(content, str) else content[0].text
