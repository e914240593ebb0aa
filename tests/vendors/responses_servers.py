"""Servers with OpenAI's Responses that are not OpenAI's: each takes some types of tools and items, and refuses others.

Sources: xAI: maximhq/bifrost#5428. OpenRouter: OpenRouterTeam/ai-sdk-provider#482, openai/codex#18307. Amazon Bedrock's
Mantle: openai/codex#25034. Groq: console.groq.com/docs/responses-api. The others are modelled: functions alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from tests.vendors.vendor import SSE, Reply, Vendor, VendorRequest

__all__ = ["STATELESS", "TOOLS", "VENDORS"]

TOOLS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "xai": ("function", "web_search", "x_search", "code_interpreter", "file_search", "mcp"),
        "groq": ("function", "code_interpreter", "browser_search", "mcp"),
        "deepseek": ("function",),
        "openrouter": ("function", "openrouter:web_search", "openrouter:datetime"),
        "bedrock-mantle": ("function", "mcp"),
        "vllm": ("function",),
        "openai-compatible": ("function",),
    }
)
# console.groq.com/docs/responses-api, openrouter.ai/docs/api/reference/responses; vLLM unless its store is switched on.
STATELESS: Final = ("groq", "openrouter", "vllm")
_ITEMS: Final = ("message", "function_call", "function_call_output", "reasoning")
_PATHS: Final = ("/v1/responses", "/responses", "/openai/v1/responses", "/api/v1/responses")


def refuse(row: str, request: VendorRequest) -> Reply | None:
    """Return the refusal of one of them; None: it answers."""
    if not request.path.endswith(_PATHS):
        return None if request.path.endswith("/chat/completions") else _error("no such path", 404)
    body = request.json
    if row in STATELESS and body.get("previous_response_id") is not None:
        return _error("previous_response_id is not supported: this API is stateless", 400)
    for n, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") not in TOOLS[row]:
            return _error(f"tools[{n}].type: unknown variant `{tool.get('type')}`, expected one of `function`", 422)
    items = body.get("input")
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if item.get("type", "message") not in _ITEMS:
            return _error(f"input[{n}].type: unknown variant `{item.get('type')}`", 422)
    return None


def answer(request: VendorRequest) -> Reply:
    """Answer with a short text, in the API that was asked."""
    text: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    if request.path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": "Hello"}
        text["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        text["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    else:
        part = {"type": "output_text", "text": "Hello", "annotations": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        text = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [message]}
        text["usage"] = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        if request.json.get("stream"):
            event = {"type": "response.completed", "sequence_number": 0, "response": text}
            return Reply(200, f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode(), SSE)
    return Reply(200, json.dumps(text).encode())


def _error(message: str, status: int) -> Reply:
    return Reply(status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode())


VENDORS: Final[Mapping[str, Vendor]] = MappingProxyType(
    {row: Vendor(row, partial(refuse, row), answer) for row in TOOLS}
)
