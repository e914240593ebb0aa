"""Where other gateways broke between Chat Completions and the dialects of models: one test each, by its number."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.unit.dialects.assembling import events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ClientCall, End, Failed, ModelSide
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.converse.read_reply import ConverseModel
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.read_reply import GenerateModel
from velox.dialects.messages.read_reply import MessagesModel

_CALL: Final = ClientCall("abc", 7, "m")
_CLAUDE: Final = ModelFacts(thinking="budget", forced_choice=False)
_ASKED: Final = {"role": "user", "content": "Hi"}
_TOOLS: Final = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


def _claude(facts: ModelFacts = _CLAUDE) -> ModelSide:
    return MessagesModel(facts, DroppedFields())


def _gemini() -> ModelSide:
    return GenerateModel(UNKNOWN_MODEL, DroppedFields())


def _bedrock() -> ModelSide:
    return ConverseModel(_CLAUDE, DroppedFields())


def _body(model: ModelSide, **fields: Any) -> Any:
    given = {"model": "m", "messages": [_ASKED], **fields}
    return json.loads(model.write(ChatClient(_CALL, DroppedFields()).read(json.dumps(given).encode()), "m").body)


def _calls(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a":1}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": each, "type": "function", "function": function} for each in ids],
    }


def _results(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": each, "content": "r"} for each in ids]


def test_pitfall_06_parallel_results_are_one_turn() -> None:
    """Anthropic, Gemini and Bedrock want all results in the turn after the calls."""
    messages = [_ASKED, _calls("c1", "c2"), *_results("c1", "c2")]
    claude = _body(_claude(), messages=messages, tools=_TOOLS)["messages"]
    assert [message["role"] for message in claude] == ["user", "assistant", "user"]
    assert [block["tool_use_id"] for block in claude[2]["content"]] == ["c1", "c2"]
    gemini = _body(_gemini(), messages=messages, tools=_TOOLS)["contents"]
    assert [part["functionResponse"]["name"] for part in gemini[2]["parts"]] == ["f", "f"]
    bedrock = _body(_bedrock(), messages=messages, tools=_TOOLS)["messages"]
    assert [block["toolResult"]["toolUseId"] for block in bedrock[2]["content"]] == ["c1", "c2"]


def test_pitfall_09_tools_are_in_the_models_own_form() -> None:
    """Names, descriptions and schemas; choices and parallel calls."""
    body = _body(_claude(), tools=_TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    gemini = _body(_gemini(), tools=_TOOLS, tool_choice="required")
    assert gemini["tools"][0]["functionDeclarations"][0]["name"] == "f"
    assert gemini["toolConfig"]["functionCallingConfig"]["mode"] == "ANY"


def test_pitfall_10_signed_thinking_goes_back_to_claude_first() -> None:
    """A client echoes the message that it got, streamed or plain: the block is what it was."""
    thinking = {"type": "thinking", "thinking": "Let me s\u00e9e.", "signature": "U0lH"}
    reply = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_reason": "tool_use",
        "content": [thinking, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}],
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }  # fmt: skip
    client = ChatClient(_CALL, DroppedFields())
    message = json.loads(client.answer(_claude().answer(json.dumps(reply).encode())))["choices"][0]["message"]

    body = _body(_claude(), messages=[_ASKED, message, *_results("toolu_1")], tools=_TOOLS)

    assert body["messages"][1]["content"] == reply["content"]


def test_pitfall_11_empty_thinking_with_a_signature_is_kept() -> None:
    """It is a valid block, and a 400 without."""
    content = [{"type": "thinking", "thinking": "", "signature": "U0lH"}, {"type": "text", "text": "x"}]
    reply = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    client = ChatClient(_CALL, DroppedFields())
    answer = _claude().answer(json.dumps({**reply, "model": "c", "usage": {}}).encode())
    message = json.loads(client.answer(answer))["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert _body(_claude(), messages=[_ASKED, message, _ASKED])["messages"][1]["content"] == content


def test_pitfall_13_geminis_signature_comes_back_by_the_id_alone() -> None:
    """Clients drop unknown fields, and echo ids; others than Gemini never see it."""
    parts = [
        {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "U0lH"},
        {"functionCall": {"name": "f"}},
    ]
    reply = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    client = ChatClient(_CALL, DroppedFields())
    message = json.loads(client.answer(_gemini().answer(json.dumps(reply).encode())))["choices"][0]["message"]
    del message["reasoning_details"]
    ids = [call["id"] for call in message["tool_calls"]]
    assert ids[0].endswith("__thought__U0lH") and "__thought__" not in ids[1]
    messages = [_ASKED, message, *_results(*ids)]

    gemini = _body(_gemini(), messages=messages, tools=_TOOLS)
    claude = _body(_claude(), messages=messages, tools=_TOOLS)

    assert [part.get("thoughtSignature") for part in gemini["contents"][1]["parts"]] == ["U0lH", None]
    assert "__thought__" not in json.dumps(claude) and "U0lH" not in json.dumps(claude)


def test_pitfall_17_usage_of_claude_counts_the_cache() -> None:
    """OpenAI's prompt tokens are all of the prompt."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 3}
    reply = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "stop_reason": "end_turn",
    }
    answer = _claude().answer(json.dumps({**reply, "usage": usage}).encode())
    found = json.loads(ChatClient(_CALL, DroppedFields()).answer(answer))["usage"]
    assert (found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]) == (125, 3, 128)
    assert found["prompt_tokens_details"] == {"cached_tokens": 100, "cache_write_tokens": 20}


def test_pitfall_19_cache_marks_reach_claude() -> None:
    """From parts and from beside a string."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    system = {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": mark}]}
    body = _body(_claude(), messages=[system, {**_ASKED, "cache_control": {"type": "ephemeral"}}])
    assert body["system"] == [{"type": "text", "text": "s", "cache_control": mark}]
    assert body["messages"][0]["content"][-1]["cache_control"] == {"type": "ephemeral"}


def test_pitfall_21_later_system_message_is_not_hoisted() -> None:
    """The prompt's start stays the same."""
    messages = [{"role": "system", "content": "first"}, _ASKED, {"role": "system", "content": "later"}]
    for model in (_claude(), _gemini(), _bedrock()):
        body = _body(model, messages=messages)
        start = json.dumps(body.get("system") or body.get("systemInstruction"))
        assert "first" in start and "later" not in start
        assert "later" in json.dumps(body)


@pytest.mark.parametrize("stop", ["", [" ", "x"]])
def test_pitfall_24_blank_stops_are_not_sent_to_claude(stop: Any) -> None:
    """It refuses them."""
    assert _body(_claude(), stop=stop).get("stop_sequences", []) == [each for each in stop if each.strip()]


def test_pitfall_25_max_tokens_is_there_and_above_the_budget() -> None:
    """Claude needs one, and more than it may reason."""
    assert _body(_claude())["max_tokens"] == _CLAUDE.max_output
    body = _body(_claude(), max_tokens=1000, reasoning_effort="high")
    assert body["max_tokens"] > body.get("thinking", {}).get("budget_tokens", 0)


def test_pitfall_26_sampling_is_left_out_where_it_is_refused() -> None:
    """Newer models of Anthropic answer 400 to it; above 1 it is brought down for the others."""
    dropped = DroppedFields()
    body = _body(MessagesModel(ModelFacts(sampling=False, thinking="adaptive"), dropped), temperature=0.5, top_p=0.9)
    assert "temperature" not in body and "top_p" not in body
    assert set(dropped.names) == {"temperature", "top_p"}
    assert _body(_claude(), temperature=1.7)["temperature"] == 1


def test_pitfall_27_image_urls_go_where_they_can_be_fetched() -> None:
    """Claude fetches them; Bedrock does not."""
    part = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    messages = [{"role": "user", "content": [part]}]
    assert _body(_claude(), messages=messages)["messages"][0]["content"][0]["source"] == {
        "type": "url",
        "url": "https://a.example/b.png",
    }
    with pytest.raises(BadRequestError):
        _body(_bedrock(), messages=messages)


def test_pitfall_36_error_of_claude_in_a_stream_is_one_here() -> None:
    """Never a finish."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"c","usage":{}}}\n\n'
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    events = events_of(_claude().stream(), start + error)
    assert isinstance(events[-1], Failed) and not any(isinstance(event, End) for event in events)
    writer = ChatClient(_CALL, DroppedFields()).stream()
    data = b"".join(writer.write(event) for event in events)
    assert json.loads(data.rstrip().split(b"data: ")[-1])["error"]["message"] == "busy"
    assert b'finish_reason":"' not in data and b"[DONE]" not in data


def test_pitfall_38_refusal_of_claude_is_a_content_filter() -> None:
    """With its words."""
    reply = {
        "id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "x", "explanation": "I can not."}, "usage": {},
    }  # fmt: skip
    choice = json.loads(ChatClient(_CALL, DroppedFields()).answer(_claude().answer(json.dumps(reply).encode())))[
        "choices"
    ][0]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["refusal"] == "I can not."
