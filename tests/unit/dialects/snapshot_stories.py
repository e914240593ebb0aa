"""What the snapshots cross: one rich request of each client's dialect, and answers of each API of models.

Small enough to read, with everything that translations differ in: a system prompt, a picture, reasoning, two calls and
their results, a forced tool, limits, sampling, stop strings; an answer of text, one of reasoning and two calls, errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.bedrock_frames import frame
from velox.types import ApiKind

__all__ = ["ANSWERS", "ERRORS", "REQUESTS", "STREAMS", "TARGETS", "Target"]

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CITY: Final = {"type": "object", "properties": {"city": {"type": "string", "minLength": 1}}, "required": ["city"]}


@dataclass(frozen=True)
class Target:
    """An API of models, at a provider, with a model of it."""

    api: ApiKind
    provider: str
    model: str


TARGETS: Final = (
    Target(ApiKind.CHAT, "vllm", "qwen3-32b"),
    Target(ApiKind.RESPONSES, "openai", "gpt-5.2"),
    Target(ApiKind.MESSAGES, "anthropic", "claude-sonnet-4-5"),
    Target(ApiKind.GENERATE, "gemini", "gemini-2.5-pro"),
    Target(ApiKind.CONVERSE, "bedrock", "amazon.nova-pro-v1:0"),
)

# -- what clients ask -------------------------------------------------------------------------------------

_CHAT: Final[dict[str, Any]] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Where is this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
                {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "sun"},
        {"role": "user", "content": "And in Paris?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": CITY}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "temperature": 0.5,
    "max_completion_tokens": 500,
    "stop": ["END"],
    "reasoning_effort": "low",
}
_MESSAGES: Final[dict[str, Any]] = {
    "model": "m",
    "max_tokens": 2000,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Where is this?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "c2lnbmF0dXJl"},
                {"type": "text", "text": "I look it up."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
                {"type": "text", "text": "And in Paris?"},
            ],
        },
    ],
    "tools": [{"name": "weather", "description": "Weather of a city", "input_schema": CITY}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u-1"},
}
_RESPONSES: Final[dict[str, Any]] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Where is this?"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
            ],
        },
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_2", "output": "sun"},
        {"role": "user", "content": "And in Paris?"},
    ],
    "tools": [{"type": "function", "name": "weather", "description": "Weather of a city", "parameters": CITY}],
    "tool_choice": "required",
    "reasoning": {"effort": "low", "summary": "auto"},
    "max_output_tokens": 500,
    "store": False,
}
_GENERATE: Final[dict[str, Any]] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {
            "role": "user",
            "parts": [{"text": "Where is this?"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}],
        },
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}},
                {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "weather", "response": {"result": "rain"}}},
                {"functionResponse": {"name": "weather", "response": {"result": "sun"}}},
                {"text": "And in Paris?"},
            ],
        },
    ],
    "tools": [
        {
            "functionDeclarations": [
                {"name": "weather", "description": "Weather of a city", "parametersJsonSchema": CITY}
            ]
        }
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}},
    "generationConfig": {
        "temperature": 0.5,
        "maxOutputTokens": 500,
        "stopSequences": ["END"],
        "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True},
    },
}
REQUESTS: Final = {
    ApiKind.CHAT: _CHAT,
    ApiKind.MESSAGES: _MESSAGES,
    ApiKind.RESPONSES: _RESPONSES,
    ApiKind.GENERATE: _GENERATE,
}

# -- what models answer: name of the answer to body -------------------------------------------------------


def _chat(message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "qwen3-32b",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 64},
        },
    }


def _response(output: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": status,
        "model": "gpt-5.2",
        "output": output,
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 64},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 8},
            "total_tokens": 120,
        },
    }


def _message(content: list[dict[str, Any]], stop: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 36, "cache_read_input_tokens": 64, "output_tokens": 20},
    }


def _generated(parts: list[dict[str, Any]], finish: str) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 64,
            "candidatesTokenCount": 12,
            "thoughtsTokenCount": 8,
            "totalTokenCount": 120,
        },
        "modelVersion": "gemini-2.5-pro",
        "responseId": "r1",
    }


def _conversed(content: list[dict[str, Any]], stop: str) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop,
        "usage": {"inputTokens": 36, "cacheReadInputTokens": 64, "outputTokens": 20, "totalTokens": 120},
        "metrics": {"latencyMs": 5},
    }


_TWO: Final = (("1", '{"city":"Paris"}'), ("2", '{"city":"Nice"}'))
ANSWERS: Final[dict[ApiKind, dict[str, dict[str, Any]]]] = {
    ApiKind.CHAT: {
        "text": _chat({"content": "It is Oslo."}, "stop"),
        "calls": _chat(
            {
                "reasoning_content": "Two cities.",
                "content": None,
                "tool_calls": [
                    {"id": f"call_{n}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
                    for n, arguments in _TWO
                ],
            },
            "tool_calls",
        ),
        "cut": _chat({"content": "It is"}, "length"),
    },
    ApiKind.RESPONSES: {
        "text": _response(
            [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "It is Oslo.", "annotations": []}],
                }
            ]
        ),
        "calls": _response(
            [
                {
                    "id": "rs_1",
                    "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": "Two cities."}],
                    "encrypted_content": "gAAAA1",
                },
                *(
                    {
                        "id": f"fc_{n}",
                        "type": "function_call",
                        "call_id": f"call_{n}",
                        "name": "weather",
                        "arguments": arguments,
                        "status": "completed",
                    }
                    for n, arguments in _TWO
                ),
            ]
        ),
        "cut": {
            **_response(
                [
                    {
                        "id": "msg_1",
                        "type": "message",
                        "role": "assistant",
                        "status": "incomplete",
                        "content": [{"type": "output_text", "text": "It is", "annotations": []}],
                    }
                ],
                "incomplete",
            ),
            "incomplete_details": {"reason": "max_output_tokens"},
        },
    },
    ApiKind.MESSAGES: {
        "text": _message([{"type": "text", "text": "It is Oslo."}], "end_turn"),
        "calls": _message(
            [
                {"type": "thinking", "thinking": "Two cities.", "signature": "c2lnMQ=="},
                *(
                    {"type": "tool_use", "id": f"toolu_{n}", "name": "weather", "input": json.loads(arguments)}
                    for n, arguments in _TWO
                ),
            ],
            "tool_use",
        ),
        "cut": _message([{"type": "text", "text": "It is"}], "max_tokens"),
    },
    ApiKind.GENERATE: {
        "text": _generated([{"text": "It is Oslo."}], "STOP"),
        "calls": _generated(
            [
                {"text": "Two cities.", "thought": True},
                {"functionCall": {"name": "weather", "args": {"city": "Paris"}}, "thoughtSignature": "c2lnMQ=="},
                {"functionCall": {"name": "weather", "args": {"city": "Nice"}}},
            ],
            "STOP",
        ),
        "cut": _generated([{"text": "It is"}], "MAX_TOKENS"),
    },
    ApiKind.CONVERSE: {
        "text": _conversed([{"text": "It is Oslo."}], "end_turn"),
        "calls": _conversed(
            [
                {"reasoningContent": {"reasoningText": {"text": "Two cities.", "signature": "c2lnMQ=="}}},
                *(
                    {"toolUse": {"toolUseId": f"tooluse_{n}", "name": "weather", "input": json.loads(arguments)}}
                    for n, arguments in _TWO
                ),
            ],
            "tool_use",
        ),
        "cut": _conversed([{"text": "It is"}], "max_tokens"),
    },
}

# -- the same as streams ----------------------------------------------------------------------------------


def _datas(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def _named(*events: dict[str, Any]) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "".join(lines).encode()


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "qwen3-32b",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _chat_usage() -> dict[str, Any]:
    whole = ANSWERS[ApiKind.CHAT]["text"]
    return {**_chunk({}), "choices": [], "usage": whole["usage"]}


def _chat_call(n: int, *, arguments: str, **first: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": first["name"]} if first else {})}
    more = {"id": first["id"], "type": "function"} if first else {}
    return _chunk({"tool_calls": [{"index": n, **more, "function": function}]})


def _chat_streams() -> dict[str, bytes]:
    done = b"data: [DONE]\n\n"
    return {
        "text": _datas(
            _chunk({"role": "assistant", "content": ""}),
            _chunk({"content": "It is "}),
            _chunk({"content": "Oslo."}),
            _chunk({}, "stop"),
            _chat_usage(),
        )
        + done,
        "calls": _datas(
            _chunk({"role": "assistant", "content": None, "reasoning_content": "Two "}),
            _chunk({"reasoning_content": "cities."}),
            _chat_call(0, id="call_1", name="weather", arguments=""),
            _chat_call(0, arguments='{"city":'),
            _chat_call(0, arguments='"Paris"}'),
            _chat_call(1, id="call_2", name="weather", arguments='{"city":"Nice"}'),
            _chunk({}, "tool_calls"),
            _chat_usage(),
        )
        + done,
    }


def _responses_stream(name: str) -> bytes:
    """Write an answer's items one after the other, as OpenAI does: added, its deltas, done."""
    whole = ANSWERS[ApiKind.RESPONSES][name]
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for n, item in enumerate(whole["output"]):
        at = {"output_index": n}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            inside = {**at, "item_id": item["id"], "content_index": 0}
            empty = {"type": "output_text", "text": "", "annotations": []}
            events += [
                {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", "content": []}},
                {"type": "response.content_part.added", **inside, "part": empty},
                {"type": "response.output_text.delta", **inside, "delta": text[:6]},
                {"type": "response.output_text.delta", **inside, "delta": text[6:]},
                {"type": "response.output_text.done", **inside, "text": text},
                {"type": "response.content_part.done", **inside, "part": item["content"][0]},
            ]
        elif item["type"] == "reasoning":
            inside = {**at, "item_id": item["id"], "summary_index": 0}
            text = item["summary"][0]["text"]
            events += [
                {
                    "type": "response.output_item.added",
                    **at,
                    "item": {"id": item["id"], "type": "reasoning", "summary": []},
                },
                {
                    "type": "response.reasoning_summary_part.added",
                    **inside,
                    "part": {"type": "summary_text", "text": ""},
                },
                {"type": "response.reasoning_summary_text.delta", **inside, "delta": text},
                {"type": "response.reasoning_summary_text.done", **inside, "text": text},
                {"type": "response.reasoning_summary_part.done", **inside, "part": item["summary"][0]},
            ]
        else:
            inside = {**at, "item_id": item["id"]}
            arguments = item["arguments"]
            events += [
                {
                    "type": "response.output_item.added",
                    **at,
                    "item": {**item, "status": "in_progress", "arguments": ""},
                },
                {"type": "response.function_call_arguments.delta", **inside, "delta": arguments[:8]},
                {"type": "response.function_call_arguments.delta", **inside, "delta": arguments[8:]},
                {"type": "response.function_call_arguments.done", **inside, "arguments": arguments},
            ]
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return _named(*({**event, "sequence_number": n} for n, event in enumerate(events)))


def _messages_stream(name: str) -> bytes:
    whole = ANSWERS[ApiKind.MESSAGES][name]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for n, block in enumerate(whole["content"]):
        at = {"index": n}
        if block["type"] == "text":
            first: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in (block["text"][:6], block["text"][6:])]
        elif block["type"] == "thinking":
            first = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        else:
            first = {**block, "input": {}}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", text[:8], text[8:])]
        events.append({"type": "content_block_start", **at, "content_block": first})
        events += [{"type": "content_block_delta", **at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", **at})
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 20}}, {"type": "message_stop"}]
    return _named(*events)


def _generate_streams() -> dict[str, bytes]:
    text, calls = ANSWERS[ApiKind.GENERATE]["text"], ANSWERS[ApiKind.GENERATE]["calls"]

    def part(whole: dict[str, Any], parts: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if is_last:
            candidate["finishReason"] = "STOP"
        return {**whole, "candidates": [candidate]}

    of_calls = calls["candidates"][0]["content"]["parts"]
    return {
        "text": _datas(
            part(text, [{"text": "It is "}], is_last=False),
            part(text, [{"text": "Oslo."}], is_last=True),
        ),
        "calls": _datas(*(part(calls, [each], is_last=each is of_calls[-1]) for each in of_calls)),
    }


def _converse_stream(name: str) -> bytes:
    whole = ANSWERS[ApiKind.CONVERSE][name]
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
    for n, block in enumerate(whole["output"]["message"]["content"]):
        at = {"contentBlockIndex": n}
        if "text" in block:
            deltas: list[dict[str, Any]] = [{"text": part} for part in (block["text"][:6], block["text"][6:])]
        elif "reasoningContent" in block:
            deltas = [
                {"reasoningContent": {key: value}} for key, value in block["reasoningContent"]["reasoningText"].items()
            ]
        else:
            call = block["toolUse"]
            start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
            events.append(("contentBlockStart", {**at, "start": start}))
            text = json.dumps(call["input"])
            deltas = [{"toolUse": {"input": part}} for part in (text[:8], text[8:])]
        events += [("contentBlockDelta", {**at, "delta": delta}) for delta in deltas]
        events.append(("contentBlockStop", at))
    events += [
        ("messageStop", {"stopReason": whole["stopReason"]}),
        ("metadata", {"usage": whole["usage"], "metrics": whole["metrics"]}),
    ]
    return b"".join(frame("event", kind, json.dumps(payload).encode()) for kind, payload in events)


STREAMS: Final[dict[ApiKind, dict[str, bytes]]] = {
    ApiKind.CHAT: _chat_streams(),
    ApiKind.RESPONSES: {name: _responses_stream(name) for name in ("text", "calls")},
    ApiKind.MESSAGES: {name: _messages_stream(name) for name in ("text", "calls")},
    ApiKind.GENERATE: _generate_streams(),
    ApiKind.CONVERSE: {name: _converse_stream(name) for name in ("text", "calls")},
}

# -- errors, as each API words them: status, body ---------------------------------------------------------

ERRORS: Final[dict[ApiKind, list[tuple[int, dict[str, Any]]]]] = {
    ApiKind.CHAT: [
        (
            400,
            {
                "error": {
                    "message": "temperature must be >= 0",
                    "type": "BadRequestError",
                    "param": "temperature",
                    "code": 400,
                }
            },
        ),
        (429, {"error": {"message": "Too many requests", "type": "rate_limit_error", "param": None, "code": None}}),
    ],
    ApiKind.RESPONSES: [
        (
            400,
            {
                "error": {
                    "message": "Your input exceeds the context window of this model.",
                    "type": "invalid_request_error",
                    "param": "input",
                    "code": "context_length_exceeded",
                }
            },
        ),
        (
            429,
            {
                "error": {
                    "message": "You exceeded your current quota",
                    "type": "insufficient_quota",
                    "param": None,
                    "code": "insufficient_quota",
                }
            },
        ),
    ],
    ApiKind.MESSAGES: [
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens > 200000 maximum",
                },
            },
        ),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}),
    ],
    ApiKind.GENERATE: [
        (400, {"error": {"code": 400, "message": "Invalid value at 'contents'", "status": "INVALID_ARGUMENT"}}),
        (503, {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}),
    ],
    ApiKind.CONVERSE: [
        (400, {"message": "The model returned the following errors: stop sequences are too long"}),
        (429, {"message": "Too many requests, please wait before trying again."}),
    ],
}
