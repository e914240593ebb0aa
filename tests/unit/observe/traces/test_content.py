"""Messages of all dialects become the same parts; nothing that a stranger writes breaks it, and no picture is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.observe.traces.content import content_attributes
from velox.observe.traces.redaction import Redaction

CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": '{"at":"x"}'}
RESULT = {"type": "tool_call_response", "id": "c1", "response": "seen"}
PICTURE = "aGVsbG8" * 100


def content(
    asked: object, answered: object = b"", *, most: int = 1000, is_stream: bool = False, is_cut: bool = False
) -> dict[str, Any]:
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in (asked, answered)]
    found = content_attributes(*bodies, is_stream=is_stream, is_cut=is_cut, most=most, redact=Redaction().of)
    return {name.removeprefix("gen_ai."): json.loads(value) for name, value in found.items()}


def said(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


CHAT = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": PICTURE}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
}
MESSAGES = {
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image", "source": {"data": PICTURE}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "seen"}]},
    ],
}
RESPONSES = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "url": PICTURE}]},
        {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "look", "arguments": '{"at":"x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ],
}
GOOGLE = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"data": PICTURE}}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {"at": "x"}}}]},
    ],
}


@pytest.mark.parametrize("asked", [CHAT, MESSAGES, RESPONSES, GOOGLE], ids=["chat", "messages", "responses", "google"])
def test_request_of_each_dialect_is_read(asked: object) -> None:
    found = content(asked)
    assert PICTURE not in str(found)
    messages = found["input.messages"]
    if asked is CHAT:
        assert messages.pop(0) == {"role": "system", "parts": [said("be brief")]}
    else:
        assert found["system_instructions"] == [said("be brief")]
    user, assistant, *results = messages
    assert user["role"] == "user" and user["parts"][0] == said("hi") and len(user["parts"]) == 2
    assert "content" not in user["parts"][1]
    assert assistant == {"role": "assistant", "parts": [CALL]}
    assert [each["parts"] for each in results] == ([] if asked is GOOGLE else [[RESULT]])


@pytest.mark.parametrize(
    "answered",
    [
        {"choices": [{"message": {"content": "yes", "tool_calls": CHAT["messages"][2]["tool_calls"]}}]},  # type: ignore[index]
        {"content": [{"type": "text", "text": "yes"}, *MESSAGES["messages"][1]["content"]]},  # type: ignore[index]
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "yes"}]}, RESPONSES["input"][1]]},
        {"candidates": [{"content": {"parts": [{"text": "yes"}, GOOGLE["contents"][1]["parts"][0]]}}]},  # type: ignore[index]
    ],
    ids=["chat", "messages", "responses", "google"],
)
def test_answer_of_each_dialect_is_read(answered: object) -> None:
    assert content(CHAT, answered)["output.messages"] == [{"role": "assistant", "parts": [said("yes"), CALL]}]


STREAMS = {
    "chat": [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "ye"}}]},
        {"choices": [{"delta": {"content": "s"}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": ""}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"at":'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '"x"}'}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
    ],
    "messages": [
        {"type": "message_start", "message": {"content": []}},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ye"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "s"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "c1", "name": "look", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"at":'}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '"x"}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_calls"}},
    ],
    "responses": [
        {"type": "response.output_text.delta", "delta": "ye"},
        {"type": "response.output_text.delta", "delta": "s"},
        {"type": "response.output_item.added", "item": {**RESPONSES["input"][1], "arguments": ""}},  # type: ignore[dict-item]
        {"type": "response.function_call_arguments.delta", "delta": '{"at":'},
        {"type": "response.function_call_arguments.delta", "delta": '"x"}'},
        {"type": "response.completed", "response": {}},
    ],
    "google": [
        {"candidates": [{"content": {"parts": [{"text": "ye"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "s"}]}}]},
        {"candidates": [{"content": GOOGLE["contents"][1], "finishReason": "tool_calls"}]},
    ],
}


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_stream_of_each_dialect_is_put_together(dialect: str, end: str) -> None:
    events = "".join(f"event: x{end}data: {json.dumps(each)}{end}{end}" for each in STREAMS[dialect])
    body = f"{events}data: [DONE]{end}{end}data: {{cut".encode()
    (message,) = content(CHAT, body, is_stream=True)["output.messages"]
    reason = "completed" if dialect == "responses" else "tool_calls"
    assert message == {"role": "assistant", "parts": [said("yes"), CALL], "finish_reason": reason}


def test_last_messages_have_the_room() -> None:
    """What is longer is cut between words; what stands beside the messages has room of its own."""
    messages = [{"role": "user", "content": f"word{n} " * 10} for n in range(50)]
    found = content({"system": "long " * 1000, "messages": messages}, most=200)
    texts = [message["parts"][0]["content"] for message in found["input.messages"]]
    assert texts[-1] == "word49 " * 10 and sum(map(len, texts)) <= 201 and texts[0].endswith("…")
    assert len(found["system_instructions"][0]["content"]) <= 51


def test_secret_is_in_no_part_however_it_is_written() -> None:
    """Also one behind JSON's escapes, one at the end of what was cut, and one inside a call."""
    secret = "sk-proj-abcdefghijklmnop0123"
    escaped = json.dumps(CHAT | {"messages": [{"role": "user", "content": secret}]}).replace("sk-", "\\u0073k-")
    call = {"type": "function_call", "name": "x", "arguments": json.dumps({"key": secret})}
    cut = f'{{"messages": [{{"content": "it is {secret[:12]}'.encode()
    for asked in (escaped.encode(), {"input": [call]}, f"no JSON {secret}".encode()):
        assert "abcdef" not in str(content(asked, asked)) and "[redacted]" in str(content(asked, asked))
    assert "abc" not in str(content(cut, cut, is_cut=True))


KEY = "sk-proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": KEY, "content": "hi"}]},
        {"messages": [{"role": f"{'x' * 250} {KEY}", "content": "hi"}]},
        {"messages": [{"role": "tool", "tool_call_id": KEY, "content": "hi"}]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": KEY, "function": {"name": KEY, "arguments": "{}"}}]}
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": KEY}, {"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": KEY, "content": "hi"}]}]},
        {"input": [{"type": "function_call", "call_id": f"{'x' * 230} {KEY}", "name": KEY, "arguments": "{}"}]},
        {"contents": [{"role": KEY, "parts": [{"functionCall": {"name": KEY, "args": {}}}]}]},
    ],
)
def test_secret_is_in_no_name_role_or_id(asked: object) -> None:
    """Of messages, calls and results: they are words of the client's as its texts are."""
    answered = {
        "choices": [{"message": {"tool_calls": [{"id": KEY, "function": {"name": KEY}}]}, "finish_reason": KEY}]
    }
    found = content_attributes(
        json.dumps(asked).encode(),
        json.dumps(answered).encode(),
        is_stream=False,
        is_cut=False,
        most=4096,
        redact=Redaction().of,
    )
    shown = str(found)
    assert "[redacted]" in found["gen_ai.output.messages"] and len(found["gen_ai.input.messages"]) < 1000
    assert "sk-proj" not in shown and KEY[-8:] not in shown


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b"[1]",
        {"messages": 5, "input": {}},
        {"messages": [5, None, [[]], {"role": 5, "content": {"type": {}, "text": 7}}, {"tool_calls": [7, {}]}]},
        {"choices": [{"message": {"tool_calls": [{"function": 5}]}}, 5, {"text": {}}]},
        {"output": {"message": 5}, "content": [{"type": "tool_use", "input": [1]}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": 5}}]}}]},
        {"type": "content_block_start", "content_block": {"type": []}},
    ],
)
def test_nothing_that_is_written_breaks_it(body: object) -> None:
    content(body, body)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    content(data, b"data: " + data + b"\n\n", is_stream=True)
