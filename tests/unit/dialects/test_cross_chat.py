"""Chat Completions' clients with models of other dialects, and other dialects' clients with servers of this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.recorded import Exchange, recorded
from tests.unit.dialects.assembling import assembled, events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    ClientCall,
    ClientSide,
    Event,
    Failed,
    ModelSide,
    Text,
    Thinking,
    ToolUse,
)
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.dialects.responses.write_reply import ResponsesClient
from velox_sim.apis.message_wishes import message_wish

_CALL: Final = ClientCall("0123abcd", 1_700_000_000, "m")
_CLAUDE: Final = ModelFacts(thinking="budget", forced_choice=False, max_tokens_name="max_tokens")
_Model = Callable[[], ModelSide]
_MODELS: Final[dict[str, tuple[_Model, list[Exchange]]]] = {
    "messages": (lambda: MessagesModel(_CLAUDE, DroppedFields()), recorded("anthropic", "/messages")),
    "generate": (
        lambda: GenerateModel(UNKNOWN_MODEL, DroppedFields()),
        [*recorded("gemini", "enerateContent"), *recorded("vertex", "enerateContent")],
    ),
    "responses": (lambda: ResponsesModel(UNKNOWN_MODEL, DroppedFields()), recorded("openai", "/v1/responses")),
    "converse": (lambda: ConverseModel(_CLAUDE, DroppedFields()), recorded("bedrock", "/converse")),
}
_BAD: Final = ("count_tokens", "countTokens", "/compact", "/input_tokens")


def _replies(*, stream: bool) -> list[Any]:
    found = []
    for dialect, (_, exchanges) in _MODELS.items():
        for each in exchanges:
            if each.is_stream is stream and each.body and not each.path.endswith(_BAD):
                found.append(pytest.param(dialect, each, id=f"{dialect}:{each.name}"))
    return found


def _client() -> ChatClient:
    client = ChatClient(_CALL, DroppedFields())
    client.read(b'{"model":"m","messages":[],"stream_options":{"include_usage":true}}')
    return client


@pytest.mark.parametrize(("dialect", "each"), _replies(stream=False))
def test_answers_of_all_models_are_read_by_the_sdk(dialect: str, each: Exchange) -> None:
    """Strictly; and nothing that the model said is lost."""
    try:
        answer = _MODELS[dialect][0]().answer(each.reply)
    except ReplyError as exc:
        assert exc.error.message
        return
    except BrokenReplyError:
        assert b'"status": "queued"' in each.reply, "an answer in the background is not there yet"
        return

    whole = ChatCompletion.model_validate_json(_client().answer(answer), strict=True)

    _check(answer, json.loads(whole.model_dump_json()))


def _check(answer: Answer, whole: dict[str, Any]) -> None:
    message = whole["choices"][0]["message"]
    texts = "".join(json.loads(block.text) for block in answer.blocks if isinstance(block, Text))
    assert (message["content"] or "") == texts
    calls = [block for block in answer.blocks if isinstance(block, ToolUse)]
    found = message["tool_calls"] or []
    assert [json.loads(call["function"]["arguments"]) for call in found] == [
        json.loads(call.arguments) for call in calls
    ]
    assert [call["function"]["name"] for call in found] == [call.name for call in calls]
    thoughts = [json.loads(block.text) for block in answer.blocks if isinstance(block, Thinking)]
    assert (message.get("reasoning_content") or "") == "\n\n".join(filter(None, thoughts))
    back = ChatClient(_CALL, DroppedFields()).read(json.dumps({"messages": [message]}).encode()).messages[0].blocks
    given = [block.signature for block in answer.blocks if isinstance(block, Thinking)]
    assert [block.signature for block in back if isinstance(block, Thinking)] == given
    assert [block.signature for block in back if isinstance(block, ToolUse)] == [call.signature for call in calls]
    usage = whole["usage"]
    assert usage["prompt_tokens"] == (answer.usage.input or 0)
    assert usage["prompt_tokens"] >= usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("dialect", "each"), _replies(stream=True))
def test_streams_of_all_models_are_accumulated_by_the_sdk(dialect: str, each: Exchange) -> None:
    """What it makes of the chunks is what the plain answer would be."""
    events = events_of(_MODELS[dialect][0]().stream(), each.reply)
    if isinstance(events[-1], Failed):
        assert b"[DONE]" not in _written(events)
        return
    answer = assembled(events)

    whole = _accumulated(_written(events))

    _check(answer, whole)
    plain = json.loads(ChatCompletion.model_validate_json(_client().answer(answer), strict=True).model_dump_json())
    assert whole["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
    assert whole["usage"] == plain["usage"]


def _written(events: list[Event]) -> bytes:
    writer = _client().stream()
    return b"".join(writer.write(event) for event in events)


def _accumulated(data: bytes) -> dict[str, Any]:
    state = ChatCompletionStreamState()
    events = data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    for event in events[:-2]:
        state.handle_chunk(ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: "), strict=True))
    found = json.loads(state.current_completion_snapshot.model_dump_json())
    assert isinstance(found, dict)
    return found


# -- requests ---------------------------------------------------------------------------------------

_CHAT: Final = [
    each
    for provider in ("openai", "groq", "deepseek", "mistral", "openrouter", "zai", "cerebras", "ollama")
    for each in recorded(provider, "chat/completions")
]


@pytest.mark.parametrize("each", _CHAT, ids=str)
def test_requests_of_this_dialect_are_written_for_all_models(each: Exchange) -> None:
    """Anthropic's rules are those of the simulator, which knows nothing of the writers."""
    for model in (lambda: MessagesModel(_CLAUDE, DroppedFields()), *(made for made, _ in _MODELS.values())):
        try:
            request = ChatClient(_CALL, DroppedFields()).read(each.body)
            body = json.loads(model().write(request, "m").body)
        except BadRequestError as exc:
            assert exc.param
            continue
        if "max_tokens" in body:
            message_wish(body, lambda text: "")


_OTHERS: Final[tuple[tuple[str, Callable[[DroppedFields], ClientSide], list[Exchange]], ...]] = (
    ("messages", lambda dropped: MessagesClient(_CALL, dropped), recorded("anthropic", "/messages")),
    ("responses", lambda dropped: ResponsesClient(_CALL, dropped), recorded("openai", "/v1/responses")),
    ("generate", lambda dropped: GenerateClient(_CALL, dropped), recorded("gemini", "enerateContent")),
)


@pytest.mark.parametrize(
    ("client", "each"),
    [
        pytest.param(client, each, id=f"{dialect}:{each.name}")
        for dialect, client, exchanges in _OTHERS
        for each in exchanges
        if each.body and not each.path.endswith(_BAD)
    ],
)
def test_requests_of_other_clients_are_written_in_this_dialect(
    client: Callable[[DroppedFields], ClientSide], each: Exchange
) -> None:
    """In the order that OpenAI wants: each call is answered before anything else is said."""
    try:
        request = client(DroppedFields()).read(each.body)
        written = ChatModel(UNKNOWN_MODEL, DroppedFields()).write(request, "m")
    except BadRequestError as exc:
        assert exc.message
        return
    body = json.loads(written.body)
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"{waiting} have no results before {message}"
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert len(set(waiting)) == len(waiting)
        for call in message.get("tool_calls", []):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    again = ChatClient(_CALL, DroppedFields()).read(written.body)
    assert len(again.tools) == len(request.tools)
