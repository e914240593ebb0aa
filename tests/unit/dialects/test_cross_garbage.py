"""Recorded requests with parts replaced, sent across: what can't be read or said is the client's error, never ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.dialects.test_matrix import PLAIN
from tests.unit.dialects.test_matrix_requests import REQUESTS, TABLE
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.gateway.translation.translators import GenerationTranslator
from velox.types import ApiKind

_FACTS = (UNKNOWN_MODEL, ModelFacts(max_output=8000, json_schema=False, call_ids="mistral", text_parts=False))
_BODIES = [(client, each.body) for client, each in REQUESTS if len(each.body) < 15_000]
_REPLIES = {api: each.reply for _, api, each in PLAIN}
_VALUES: list[Any] = [
    *(None, True, 0, -1, 10**30, 1e308, "", "\ud800", "\x00", "x" * 70, "auto", "none", "required", [], {}, [[]]),
    *([None], [{}], {"": 1}, {"type": None}, {"type": "object"}, {"type": "text"}, {"type": "image_url"}),
    *({"type": "tool_use"}, {"type": "json_schema"}, {"anyOf": []}, {"format": {}}, {"$ref": "#"}, "data:;base64,"),
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each list or object of a JSON value, with each place in it."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in list(children) for found in [(value, key), *places(each)]]


@st.composite
def changed(draw: st.DrawFn) -> tuple[ApiKind, bytes]:
    """A request with up to three values replaced, left out or renamed, or with a piece of its text cut out."""
    client, body = draw(st.sampled_from(_BODIES))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(body)))
        piece = draw(st.sampled_from([b"", b"\\ud800", b"null", b"\xff", b"{}", b'"', b"1e999"]))
        return client, body[:at] + piece + body[at + draw(st.integers(0, 20)) :]
    value = json.loads(body)
    for _ in range(draw(st.integers(1, 3))):
        node, key = draw(st.sampled_from(places(value) or [({"": 0}, "")]))
        match draw(st.sampled_from(["replaced", "replaced", "left out", "renamed"])):
            case "replaced":
                node[key] = json.loads(json.dumps(draw(st.sampled_from(_VALUES))))
            case "left out":
                del node[key]
            case _ if isinstance(node, dict):
                node[draw(st.sampled_from(["\ud800", "type", "content", "x"]))] = node.pop(key)
    return client, json.dumps(value).encode()


def translator_of(client: ApiKind, api: ApiKind, facts: ModelFacts) -> GenerationTranslator:
    dropped = DroppedFields()
    call = ClientCall("0a1b2c", 1_790_000_000, "gemini-2.5-pro" if client is ApiKind.GENERATE else "")
    return GenerationTranslator(
        TABLE.clients[client](call, dropped), TABLE.models[api](facts, dropped, "openai"), dropped
    )


def crossed(client: ApiKind, api: ApiKind, facts: ModelFacts, body: bytes) -> bytes:
    return translator_of(client, api, facts).request(body, "the-model")


@given(changed(), st.sampled_from(_FACTS))
@settings(max_examples=300, deadline=None)
def test_request_is_translated_and_answered_or_refused(request: tuple[ApiKind, bytes], facts: ModelFacts) -> None:
    client, body = request
    for api in TABLE.models:
        translator = translator_of(client, api, facts)
        try:
            json.loads(translator.request(body, "the-model"))
        except BadRequestError as exc:
            assert exc.message
        else:
            json.loads(translator.answer(_REPLIES[api]))  # which repeats the request, for some clients


@pytest.mark.parametrize("api", sorted(TABLE.models), ids=lambda api: api.name.lower())
@pytest.mark.parametrize(
    ("client", "fields", "param"),
    [
        (ApiKind.MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        (ApiKind.CHAT, {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        (ApiKind.CHAT, {"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
    ],
)
def test_budget_below_zero_is_refused(client: ApiKind, fields: dict[str, Any], param: str, api: ApiKind) -> None:
    """Some APIs take a number below zero for as much as the model likes."""
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}

    with pytest.raises(BadRequestError) as refused:
        crossed(client, api, UNKNOWN_MODEL, json.dumps(body).encode())

    assert refused.value.param == param


def test_half_character_in_the_tools_that_an_answer_repeats_stands() -> None:
    tool = {"type": "function", "name": "a", "description": "\ud83d"}
    translator = translator_of(ApiKind.RESPONSES, ApiKind.CHAT, UNKNOWN_MODEL)
    translator.request(json.dumps({"model": "m", "input": "hi", "tools": [tool]}).encode(), "m")

    assert json.loads(translator.answer(_REPLIES[ApiKind.CHAT]))["tools"][0]["description"] == "\ud83d"


def test_schema_with_a_format_that_is_no_word_is_sent_as_words() -> None:
    schema = {"type": "string", "format": {"a": 1}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }

    sent = json.loads(crossed(ApiKind.CHAT, ApiKind.MESSAGES, ModelFacts(), json.dumps(body).encode()))

    assert sent["output_config"]["format"]["schema"] == {"type": "string", "description": '{format: {"a":1}}'}


@pytest.mark.parametrize(
    ("client", "fields"),
    [
        (
            ApiKind.MESSAGES,
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
        ),
        (
            ApiKind.GENERATE,
            {"contents": [{"role": "model", "parts": [{"functionResponse": {"name": "a", "response": {}}}]}]},
        ),
    ],
)
def test_tool_result_of_the_assistant_is_not_lost(client: ApiKind, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "max_tokens": 9, **fields}).encode()

    with pytest.raises(BadRequestError) as refused:
        crossed(client, ApiKind.MESSAGES, UNKNOWN_MODEL, body)

    assert "of the assistant, not of the user" in refused.value.message


def test_field_of_a_request_with_half_a_character_is_named() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "\ud83d"}, picture]}
    body = json.dumps({"model": "m", "max_tokens": 9, "system": "a", "messages": [turn]}).encode()

    with pytest.raises(BadRequestError) as refused:
        crossed(ApiKind.MESSAGES, ApiKind.CONVERSE, UNKNOWN_MODEL, body)

    assert refused.value.param == "messages[0]"
