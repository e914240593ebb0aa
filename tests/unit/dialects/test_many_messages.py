"""Requests of thousands of calls, results and messages: the work for each is the same, or one client stops all."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.cpu_bound import assert_cpu_below
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import UNKNOWN_MODEL
from velox.dialects.tools.open_calls import OpenCalls
from velox.gateway.translation.translators import GenerationTranslator
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
N = 8000
IDS = [f"t{n}" for n in range(N)]
HI: dict[str, Any] = {"role": "user", "content": "a"}
NOTE: dict[str, Any] = {"role": "user", "content": "n"}


def messages(*given: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [HI, *given]}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "r"}


def tool_call(call_id: str, name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def chat(ids: list[str]) -> dict[str, Any]:
    """Calls, each of another function, and their results from the last to the first."""
    calls = [tool_call(each, f"f{n}") for n, each in enumerate(ids)]
    results = [
        {"role": "tool", "tool_call_id": each, "name": f"f{n}", "content": "r"}
        for n, each in reversed([*enumerate(ids)])
    ]
    return {"model": "m", "messages": [HI, {"role": "assistant", "content": None, "tool_calls": calls}, *results]}


SIGNED = [
    each
    for n in IDS[: N // 2]
    for each in (
        {"type": "function_call", "call_id": n, "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": f"velox.google.{n}.AAAA"},
    )
]
OUTPUTS = [{"type": "function_call_output", "call_id": n, "output": "r"} for n in IDS[: N // 2]]
SIGNED_TEXTS = [
    each
    for n in IDS[: N // 2]
    for each in (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "velox.google.AAAA"},
        {"type": "function_call", "call_id": n, "name": "f", "arguments": "{}"},
    )
]
REFERENCES = [{"type": "item_reference", "id": "msg_1"}] * N
KEPT = {"type": "message", "id": "msg_1", "role": "assistant", "content": "a"}
DOCUMENT = {"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
REQUESTS = [
    (
        "calls in messages of their own",
        ApiKind.MESSAGES,
        messages(
            *({"role": "assistant", "content": [use(each)]} for each in IDS),
            {"role": "user", "content": [*map(result, IDS)]},
        ),
    ),
    (
        "notes between results",
        ApiKind.MESSAGES,
        messages(
            {"role": "assistant", "content": [*map(use, IDS)]},
            *(each for n in IDS for each in ({"role": "user", "content": [result(n)]}, NOTE)),
        ),
    ),
    ("documents of one name", ApiKind.MESSAGES, messages({"role": "user", "content": [DOCUMENT] * N})),
    ("messages of the user", ApiKind.CHAT, {"model": "m", "messages": [HI] * N}),
    ("results from the last", ApiKind.CHAT, chat(IDS)),
    ("calls without ids", ApiKind.CHAT, chat([""] * N)),
    ("signed calls", ApiKind.RESPONSES, {"model": "m", "input": [HI, *SIGNED, *OUTPUTS]}),
    ("signed texts", ApiKind.RESPONSES, {"model": "m", "input": [HI, KEPT, *SIGNED_TEXTS, *OUTPUTS]}),
    ("references to one item", ApiKind.RESPONSES, {"model": "m", "input": [HI, *REFERENCES, KEPT]}),
    (
        "functions by their names",
        ApiKind.GENERATE,
        {
            "contents": [
                {"role": "user", "parts": [{"text": "a"}]},
                {"role": "model", "parts": [{"functionCall": {"name": each}} for each in IDS]},
                {"role": "user", "parts": [{"functionResponse": {"name": each}} for each in reversed(IDS)]},
            ]
        },
    ),
    (
        "a text in pieces",
        ApiKind.GENERATE,
        {
            "contents": [
                {"role": "model", "parts": [{"text": "x" * 200}] * N * 2},
                {"role": "user", "parts": [{"text": "a"}]},
            ]
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("client", "body"), [request[1:] for request in REQUESTS], ids=[each[0] for each in REQUESTS])
def test_time_grows_with_the_size_alone(client: ApiKind, body: dict[str, Any]) -> None:
    """A request of a megabyte takes a fifth of a second, and took several seconds: with room for a busy machine."""
    text = json.dumps(body).encode()
    for api in TABLE.models:
        assert_cpu_below(0.6 * len(text) / 1e6 + 1.0, partial(_translate, client, api, text))


def _translate(client: ApiKind, api: ApiKind, text: bytes) -> None:
    dropped = DroppedFields()
    client_side = TABLE.clients[client](ClientCall("vx1", 1, "m"), dropped)
    GenerationTranslator(client_side, TABLE.models[api](UNKNOWN_MODEL, dropped, "x"), dropped).request(text, "m")


def test_calls_of_one_id_are_taken_in_their_order() -> None:
    calls = OpenCalls[int]()
    for n, (call_id, name) in enumerate([("a", "f"), ("a", "g"), ("b", "f")]):
        calls.add(call_id, name, n)

    assert (calls.first(), len(calls)) == (0, 3)
    assert (calls.take_named("g"), calls.take("a"), calls.take("a")) == (1, 0, None)
    assert (calls.first(), calls.take_named(None), calls.take_named(None), len(calls)) == (2, 2, None, 0)


def test_results_of_two_calls_with_one_id_both_go_to_gemini() -> None:
    body = chat(["c", "c"])
    client = TABLE.clients[ApiKind.CHAT](ClientCall("vx1", 1, "m"), DroppedFields())
    model = TABLE.models[ApiKind.GENERATE](UNKNOWN_MODEL, DroppedFields(), "gemini")

    written = json.loads(model.write(client.read(json.dumps(body).encode()), "m").body)
    assert len(written["contents"][2]["parts"]) == 2
