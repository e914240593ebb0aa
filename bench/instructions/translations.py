"""What is counted of translation: a request, a whole answer, or an event of a stream, put from one API into another.

Requests and events are those of bench/translation.py; requests also with a picture or a search of the web, answers
with a call of a tool, or a search and what they cite.

Knows: bodies. Does not know: any dialect, or how a count is taken.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import orjson

from bench.instructions.kinds import Kind
from bench.translation import event_work, request_body, request_work, translator_of
from velox.types import ApiKind

__all__ = ["work_of"]

_PNG: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8).decode()
_URL: Final = "https://weather.example/paris"
_TEXT: Final = "It is sunny in Paris, with a light wind from the west. " * 4
_CHAT, _RESPONSES, _MESSAGES, _GENERATE = ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE
_PICTURES: Final[Mapping[ApiKind, dict[str, Any]]] = MappingProxyType(
    {
        _CHAT: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}"}},
        _MESSAGES: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}},
    }
)
_SEARCHES: Final[Mapping[ApiKind, dict[str, Any]]] = MappingProxyType(
    {_CHAT: {"type": "web_search"}, _MESSAGES: {"type": "web_search_20250305", "name": "web_search"}}
)
_CALL: Final = {"city": "Paris", "unit": "c"}
_MESSAGES_USAGE: Final = {"input_tokens": 300, "output_tokens": 60}
# A plain answer with a call of a tool.
_ANSWERS: Final[Mapping[ApiKind, dict[str, Any]]] = MappingProxyType(
    {
        _CHAT: {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1790000000,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": _TEXT,
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "get_0", "arguments": orjson.dumps(_CALL).decode()},
                            }
                        ],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 300, "completion_tokens": 60, "total_tokens": 360},
        },
        _MESSAGES: {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "text", "text": _TEXT},
                {"type": "tool_use", "id": "toolu_1", "name": "get_0", "input": _CALL},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": _MESSAGES_USAGE,
        },
        _GENERATE: {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [{"text": _TEXT}, {"functionCall": {"name": "get_0", "args": _CALL}}],
                    },
                    "finishReason": "STOP",
                    "index": 0,
                }
            ],
            "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 60, "totalTokenCount": 360},
            "modelVersion": "m",
            "responseId": "r",
        },
    }
)
# An answer that has searched the web and cites what it has found.
_CITED: Final[Mapping[ApiKind, dict[str, Any]]] = MappingProxyType(
    {
        _MESSAGES: {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Paris"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": [
                        {"type": "web_search_result", "url": _URL, "title": "Paris", "encrypted_content": "E" * 200}
                    ],
                },
                {
                    "type": "text",
                    "text": _TEXT,
                    "citations": [
                        {
                            "type": "web_search_result_location",
                            "url": _URL,
                            "title": "Paris",
                            "cited_text": "sunny",
                            "encrypted_index": "E" * 40,
                        }
                    ],
                },
            ],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {**_MESSAGES_USAGE, "server_tool_use": {"web_search_requests": 1}},
        },
        _GENERATE: {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [{"text": _TEXT}]},
                    "finishReason": "STOP",
                    "index": 0,
                    "groundingMetadata": {
                        "webSearchQueries": ["Paris"],
                        "groundingChunks": [{"web": {"uri": _URL, "title": "Paris"}}],
                        "groundingSupports": [
                            {
                                "segment": {"startIndex": 0, "endIndex": 54, "text": _TEXT[:54]},
                                "groundingChunkIndices": [0],
                            }
                        ],
                    },
                }
            ],
            "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 60, "totalTokenCount": 360},
            "modelVersion": "m",
            "responseId": "r",
        },
    }
)
_APIS: Final[Mapping[str, ApiKind]] = MappingProxyType(
    {"Chat": _CHAT, "Responses": _RESPONSES, "Messages": _MESSAGES, "Gemini": _GENERATE, "Converse": ApiKind.CONVERSE}
)


def _with_picture(client: ApiKind) -> bytes:
    """Return the request whose last turn shows a picture."""
    request = orjson.loads(request_body(client))
    request["messages"][-1]["content"] = [{"type": "text", "text": "And this?"}, _PICTURES[client]]
    return orjson.dumps(request)


def _with_search(client: ApiKind) -> bytes:
    """Return the request with a search of the web for its one tool."""
    return orjson.dumps({**orjson.loads(request_body(client)), "tools": [_SEARCHES[client]]})


def _answer_work(client: ApiKind, model: ApiKind, answer: dict[str, Any], request: bytes) -> Callable[[], object]:
    """Return the way of one answer, to the request that is given."""
    body, translator = orjson.dumps(answer), translator_of(client, model)
    translator.request(request, "m")
    return partial(translator.answer, body)


def work_of(kind: Kind) -> Callable[[], object]:
    """Return the work of one unit of a kind that translates."""
    source, target = (_APIS[name] for name in kind.from_to)
    match kind.translation:
        case "request":
            return request_work(source, target, request_body(source))
        case "request with a picture":
            return request_work(source, target, _with_picture(source))
        case "request with a search":
            return request_work(source, target, _with_search(source))
        case "answer":
            return _answer_work(target, source, _ANSWERS[source], _ask(target))
        case "answer with citations":
            return _answer_work(target, source, _CITED[source], _with_search(target))
    return event_work(target, source)


def _ask(client: ApiKind) -> bytes:
    """Return a short request."""
    if client is _RESPONSES:
        return b'{"model":"m","input":"hi"}'
    return b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
