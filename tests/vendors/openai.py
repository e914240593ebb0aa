"""OpenAI's Chat Completions and Responses, as strict as they are with what others send.

Sources: OpenAI's API reference and its SDK's types (openai 3.54), and the issues named at each rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.vendors import schemas
from tests.vendors.vendor import Reply, Vendor, VendorRequest

__all__ = ["VENDOR", "problems", "refuse", "unpaired"]

_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"
_MOST_STOPS: Final = 4  # QwenLM/Qwen-Agent#228
_MOST_TOOLS: Final = 128
_TIERS: Final = ("auto", "default", "flex", "scale", "priority")
_DETAILS: Final = ("auto", "low", "high")
# Of a message of the assistant: the reference knows no more, but its guide "Function calling" sends an answer's message
# back as it is, with `annotations`.
_FIELDS: Final = frozenset(
    {"role", "content", "name", "refusal", "audio", "tool_calls", "function_call", "tool_call_id", "annotations"}
)


def problems(path: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a request: the field, and what OpenAI says of it."""
    tools = body.get("tools") or []
    if len(tools) > _MOST_TOOLS:
        yield "tools", f"Invalid 'tools': array too long. Expected an array with maximum length {_MOST_TOOLS}"
    for at, tool in enumerate(tools):
        if tool.get("type") == "function":
            function = tool["function"] if path == _CHAT else tool
            wrong = schemas.openai_problem(function.get("parameters", {"type": "object", "properties": {}}))
            if wrong is not None:
                yield f"tools[{at}]", f"Invalid schema for function '{function.get('name')}': {wrong}"
    if body.get("service_tier") not in (None, *_TIERS):
        yield "service_tier", f"Invalid value: '{body['service_tier']}'"
    yield from (_chat_problems if path == _CHAT else _responses_problems)(body)


def _chat_problems(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "messages" not in body:
        yield "messages", "Missing required parameter: 'messages'."
    stops = body.get("stop") or []
    if isinstance(stops, list) and len(stops) > _MOST_STOPS:
        yield "stop", f"Invalid 'stop': array too long. Expected an array with maximum length {_MOST_STOPS}"
    yield from _unanswered_calls(body.get("messages") or ())
    for at, message in enumerate(body.get("messages") or ()):
        for name in message.keys() - _FIELDS:
            yield f"messages[{at}].{name}", f"Unrecognized request argument supplied: {name}"
        for part in message.get("content") if isinstance(message.get("content"), list) else ():
            detail = (part.get("image_url") or {}).get("detail")
            if detail not in (None, *_DETAILS):
                yield f"messages[{at}].content", f"Invalid value: '{detail}'. Supported values are: {_DETAILS}"


def _unanswered_calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with calls and their results: each message with calls is followed by all its results."""
    wanted: list[str] = []
    for at, message in enumerate([*messages, {"role": ""}]):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in wanted:
                # miurla/morphic#136; microsoft/promptflow#3130 has the other, too.
                yield (
                    f"messages.[{at}].role",
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'.",
                )
            else:
                wanted.remove(message["tool_call_id"])
            continue
        if wanted:
            yield (
                f"messages.[{at}].role",
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(wanted)}",
            )
        wanted = [call["id"] for call in message.get("tool_calls") or ()]


def unpaired(items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with calls and results among items: those that ids name stand there, too."""
    calls = [item["call_id"] for item in items if str(item.get("type")).endswith("_call") and "call_id" in item]
    results = [item["call_id"] for item in items if str(item.get("type")).endswith("_call_output")]
    for call in calls:
        if call not in results:
            yield "input", f"No tool output found for function call {call}."  # symgraph/GhidrAssist#78
    for result in results:
        if result not in calls:
            # continuedev/continue#10092.
            yield "input", f"No tool call found for function call output with call_id {result}."


def _responses_problems(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "input" not in body:
        yield "input", "Missing required parameter: 'input'."
    if "stop" in body:
        yield "stop", "Unknown parameter: 'stop'."
    items = body.get("input") if isinstance(body.get("input"), list) else []
    is_whole = not any(body.get(name) for name in ("previous_response_id", "conversation", "prompt"))
    if is_whole and not any(item.get("type") == "item_reference" for item in items or ()):
        yield from unpaired(items or ())
    for at, item in enumerate(items or ()):
        if item.get("type") != "reasoning" or "id" not in item or body.get("store") is not False:
            continue
        # openai/openai-node#1567, vercel/ai#12687.
        following = items[at + 1] if items and at + 1 < len(items) else {}
        if "id" not in following:
            yield "input", f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."


def refuse(request: VendorRequest) -> Reply | None:
    """Return its refusal; None: it answers."""
    if request.path not in (_CHAT, _RESPONSES):
        return _error("", "Not found", 404)
    if not request.headers.get("authorization", "").startswith("Bearer "):
        return _error("", "You didn't provide an API key.", 401)
    found = next(problems(request.path, request.json), None)
    return None if found is None else _error(*found)


def _error(param: str, message: str, status: int = 400) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": param or None, "code": None}
    return Reply(status, json.dumps({"error": error}).encode())


def _answer(request: VendorRequest) -> Reply:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    message = {"role": "assistant", "content": "Hello!", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    said: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    said.update({"choices": [choice], "usage": usage})
    if request.path == _RESPONSES:
        part = {"type": "output_text", "text": "Hello!", "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        said = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [item]}
        said["usage"] = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    return Reply(200, json.dumps(said).encode())


VENDOR: Final = Vendor("openai", refuse, _answer)
