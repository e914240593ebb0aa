"""Which answers may be given again: those that are whole, and that the model itself has ended.

An answer whose end is not known to be a good one is not kept: one that was filtered or refused, that failed inside a
reply of status 200, or of which the end is missing.

Knows: how answers of each API end. Does not know: who asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from velox.types import ApiKind

__all__ = ["is_good_answer", "is_good_stream"]

_OPENAI_ENDS: Final = frozenset({"stop", "length", "tool_calls", "function_call"})
_MESSAGES_ENDS: Final = frozenset({"end_turn", "max_tokens", "stop_sequence", "tool_use"})
_GENERATE_ENDS: Final = frozenset({"STOP", "MAX_TOKENS"})
_DONE: Final = b"[DONE]"
_DATA: Final = b"data:"


def is_good_answer(api: ApiKind | None, body: bytes) -> bool:
    """Say whether an answer that came as one JSON may be kept. api: None: Completions."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(found, dict) or found.get("error"):
        return False
    if api is ApiKind.CHAT or api is None:
        return _ended(found.get("choices"), "finish_reason", _OPENAI_ENDS)
    if api is ApiKind.MESSAGES:
        return found.get("stop_reason") in _MESSAGES_ENDS
    if api is ApiKind.GENERATE:
        return _ended(found.get("candidates"), "finishReason", _GENERATE_ENDS)
    if api is ApiKind.RESPONSES:
        return found.get("status") == "completed" and not _has_refusal(found)
    return bool(found.get("data") or found.get("embeddings") or found.get("embedding"))


def is_good_stream(api: ApiKind | None, body: bytes) -> bool:
    """Say whether an answer that came as events may be kept: nothing of it may be missing."""
    if not body.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return False
    is_done, last = False, None
    ends: dict[object, object] = {}  # how each of several answers ends
    for data in _events(body):
        if data == _DONE:
            is_done = True
            continue
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(event, dict) or event.get("error") or event.get("type") == "error":
            return False
        last = event
        if api is ApiKind.CHAT or api is None:
            _note(ends, event.get("choices"), "finish_reason")
        elif api is ApiKind.GENERATE:
            _note(ends, event.get("candidates"), "finishReason")
        elif api is ApiKind.MESSAGES and event.get("type") == "message_delta":
            delta = event.get("delta")
            ends[0] = delta.get("stop_reason") if isinstance(delta, dict) else None
    if last is None:
        return False
    if api is ApiKind.CHAT or api is None:
        return is_done and _all_good(ends, _OPENAI_ENDS)
    if api is ApiKind.MESSAGES:
        return last.get("type") == "message_stop" and _all_good(ends, _MESSAGES_ENDS)
    if api is ApiKind.GENERATE:
        return _all_good(ends, _GENERATE_ENDS)
    if api is ApiKind.RESPONSES:
        response = last.get("response")
        return last.get("type") == "response.completed" and isinstance(response, dict) and not _has_refusal(response)
    return False


def _events(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event; an event of several lines of data is none of these APIs'."""
    for line in body.splitlines():
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()


def _ended(answers: object, field: str, good: frozenset[str]) -> bool:
    """Say whether each of several answers has ended well."""
    if not isinstance(answers, list) or not answers:
        return False
    return all(isinstance(each, dict) and each.get(field) in good and not _refuses(each) for each in answers)


def _refuses(answer: dict[str, object]) -> bool:
    message = answer.get("message")
    return isinstance(message, dict) and bool(message.get("refusal"))


def _note(ends: dict[object, object], answers: object, field: str) -> None:
    if not isinstance(answers, list):
        return
    for each in answers:
        if isinstance(each, dict):
            index = each.get("index", 0)
            index = index if isinstance(index, int) else 0
            delta = each.get("delta")
            if isinstance(delta, dict) and delta.get("refusal"):
                ends[index, "refusal"] = "refused"
            ends[index] = each.get(field) or ends.get(index)


def _all_good(ends: dict[object, object], good: frozenset[str]) -> bool:
    return bool(ends) and all(end in good for end in ends.values())


def _has_refusal(response: dict[str, object]) -> bool:
    """Say whether a part of an answer in Responses is a refusal."""
    output = response.get("output")
    for item in output if isinstance(output, list) else ():
        content = item.get("content") if isinstance(item, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "refusal":
                return True
    return False
