"""One answer as each API of a model says it, plain and streamed, and as each client reads what it gets.

Knows: the shapes of five upstreams and four clients. Does not know: the code under test.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from tests.unit.dialects.test_converse_stream import event as frame
from velox.types import ApiKind

__all__ = ["CLIENTS", "MODELS", "SAID", "Part", "Read", "plain", "read_plain", "read_stream", "sse", "streamed"]

MODELS: Final = (ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE, ApiKind.CONVERSE)
CLIENTS: Final = (ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE)
# What each API says of an end, by what a test says: "end", "tools", "length", "filter".
SAID: Final[dict[ApiKind, dict[str, str]]] = {
    ApiKind.CHAT: {"end": "stop", "tools": "tool_calls", "length": "length", "filter": "content_filter"},
    ApiKind.MESSAGES: {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "filter": "refusal"},
    ApiKind.GENERATE: {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"},
    ApiKind.CONVERSE: {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "filter": "content_filtered"},
    ApiKind.RESPONSES: {"end": "completed", "tools": "completed", "length": "incomplete", "filter": "incomplete"},
}
_INCOMPLETE: Final = {"length": "max_output_tokens", "filter": "content_filter"}
_WORDS: Final = {
    "stop": "end",
    "tool_calls": "tools",
    "content_filter": "filter",
    "end_turn": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "refusal": "filter",
}
_USAGE: Final = (11, 7)


class Part(NamedTuple):
    """A block. kind: "text", "call". pieces: of its text, or of the JSON of its arguments. name, id: of a call."""

    kind: str
    pieces: tuple[str, ...]
    name: str = ""
    id: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Read(NamedTuple):
    """What a client understood: its blocks in their order, texts that follow each other joined, and the end."""

    blocks: list[tuple[str, ...]]
    stop: str
    usage: tuple[int, int]
    ids: list[str]


def sse(*events: object) -> bytes:
    found = []
    for each in events:
        name = each.get("type") if isinstance(each, dict) else None
        lead = f"event: {name}\n" if isinstance(name, str) else ""
        found.append(f"{lead}data: {each if isinstance(each, str) else json.dumps(each)}\n\n".encode())
    return b"".join(found)


# -- what an upstream says ----------------------------------------------------------------------------


def plain(api: ApiKind, parts: list[Part], end: str) -> bytes:
    word, (prompt, made) = SAID[api][end], _USAGE
    calls = [part for part in parts if part.kind == "call"]
    match api:
        case ApiKind.CHAT:
            message: dict[str, Any] = {"role": "assistant", "content": "".join(p.text for p in parts if p not in calls)}
            if calls:
                message["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}} for c in calls
                ]
            document: dict[str, Any] = {
                "id": "c",
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": word}],
                "usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made},
            }
        case ApiKind.RESPONSES:
            document = _response(parts, end)
        case ApiKind.MESSAGES:
            document = {
                "id": "msg_1",
                "model": "m",
                "content": [
                    {"type": "text", "text": p.text}
                    if p.kind == "text"
                    else {"type": "tool_use", "id": p.id, "name": p.name, "input": json.loads(p.text)}
                    for p in parts
                ],
                "stop_reason": word,
                "usage": {"input_tokens": prompt, "output_tokens": made},
            }
        case ApiKind.GENERATE:
            document = _gemini([_gemini_part(p, p.text) for p in parts], word)
        case _:
            content = [
                {"text": p.text}
                if p.kind == "text"
                else {"toolUse": {"toolUseId": p.id, "name": p.name, "input": json.loads(p.text)}}
                for p in parts
            ]
            document = {
                "output": {"message": {"role": "assistant", "content": content}},
                "stopReason": word,
                "usage": {"inputTokens": prompt, "outputTokens": made, "totalTokens": prompt + made},
            }
    return json.dumps(document).encode()


def _item(part: Part, n: int) -> dict[str, Any]:
    if part.kind == "text":
        content = [{"type": "output_text", "text": part.text, "annotations": []}]
        return {"type": "message", "id": f"m{n}", "role": "assistant", "status": "completed", "content": content}
    return {"type": "function_call", "id": f"f{n}", "call_id": part.id, "name": part.name, "arguments": part.text}


def _response(parts: list[Part], end: str) -> dict[str, Any]:
    reason = _INCOMPLETE.get(end)
    return {
        "id": "resp_1",
        "object": "response",
        "model": "m",
        "status": SAID[ApiKind.RESPONSES][end],
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": [_item(part, n) for n, part in enumerate(parts)],
        "usage": {"input_tokens": _USAGE[0], "output_tokens": _USAGE[1], "total_tokens": sum(_USAGE)},
    }


def _gemini_part(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "text":
        return {"text": text}
    return {"functionCall": {"id": part.id, "name": part.name, "args": json.loads(text)}}


def _gemini(parts: list[dict[str, Any]], word: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if word is not None:
        candidate["finishReason"] = word
    usage = {"promptTokenCount": _USAGE[0], "candidatesTokenCount": _USAGE[1], "totalTokenCount": sum(_USAGE)}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "g"}


def streamed(api: ApiKind, parts: list[Part], end: str, order: list[int]) -> bytes:
    """Return a stream. order: of Chat's calls, whose next piece comes: they may interleave."""
    word, (prompt, made) = SAID[api][end], _USAGE
    events: list[object] = []
    match api:
        case ApiKind.CHAT:
            return _chat_stream(parts, word, order)
        case ApiKind.RESPONSES:
            events.append({"type": "response.created", "response": {**_response([], "end"), "status": "in_progress"}})
            for n, part in enumerate(parts):
                item = _item(part, n)
                begun = {**item, "arguments": ""} if part.kind == "call" else {**item, "content": []}
                events.append({"type": "response.output_item.added", "output_index": n, "item": begun})
                name = "output_text" if part.kind == "text" else "function_call_arguments"
                events += [
                    {"type": f"response.{name}.delta", "output_index": n, "content_index": 0, "delta": piece}
                    for piece in part.pieces
                ]
                events.append({"type": "response.output_item.done", "output_index": n, "item": item})
            last = "response.incomplete" if word == "incomplete" else "response.completed"
            events.append({"type": last, "response": _response(parts, end)})
            return sse(*events)
        case ApiKind.MESSAGES:
            usage = {"input_tokens": prompt, "output_tokens": 1}
            events.append({"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": usage}})
            for n, part in enumerate(parts):
                block = {"type": "text", "text": ""}
                if part.kind == "call":
                    block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}  # type: ignore[dict-item]
                events.append({"type": "content_block_start", "index": n, "content_block": block})
                kind, field = ("text_delta", "text") if part.kind == "text" else ("input_json_delta", "partial_json")
                events += [
                    {"type": "content_block_delta", "index": n, "delta": {"type": kind, field: piece}}
                    for piece in part.pieces
                ]
                events.append({"type": "content_block_stop", "index": n})
            delta = {"stop_reason": word, "stop_sequence": None}
            events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": made}})
            events.append({"type": "message_stop"})
            return sse(*events)
        case ApiKind.GENERATE:
            for part in parts:
                pieces = part.pieces if part.kind == "text" else (part.text,)
                events += [_gemini([_gemini_part(part, piece)], None) for piece in pieces]
            return sse(*events, _gemini([{"text": ""}], word))
    frames = [frame("messageStart", {"role": "assistant"})]
    for n, part in enumerate(parts):
        at = {"contentBlockIndex": n}
        if part.kind == "call":
            frames.append(
                frame("contentBlockStart", {**at, "start": {"toolUse": {"toolUseId": part.id, "name": part.name}}})
            )
        for piece in part.pieces:
            said = {"text": piece} if part.kind == "text" else {"toolUse": {"input": piece}}
            frames.append(frame("contentBlockDelta", {**at, "delta": said}))
        frames.append(frame("contentBlockStop", at))
    usage = {"inputTokens": prompt, "outputTokens": made, "totalTokens": prompt + made}
    return b"".join([*frames, frame("messageStop", {"stopReason": word}), frame("metadata", {"usage": usage})])


def _chat_stream(parts: list[Part], word: str, order: list[int]) -> bytes:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for part in parts if part.kind == "text" for piece in part.pieces]
    calls = [part for part in parts if part.kind == "call"]
    left = [list(call.pieces) for call in calls]
    begun: set[int] = set()
    turns = [*order, *(n for n, call in enumerate(calls) for _ in range(len(call.pieces) + 1))]
    for n in turns:
        if n >= len(calls) or n > len(begun):
            continue  # they begin in their order
        if n not in begun:
            begun.add(n)
            function = {"name": calls[n].name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": n, "id": calls[n].id, "type": "function", "function": function}]})
        elif left[n]:
            deltas.append({"tool_calls": [{"index": n, "function": {"arguments": left[n].pop(0)}}]})
    chunks: list[object] = [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": word}]})
    usage = {"prompt_tokens": _USAGE[0], "completion_tokens": _USAGE[1], "total_tokens": sum(_USAGE)}
    return sse(*chunks, {"id": "c", "model": "m", "choices": [], "usage": usage}, "[DONE]")


# -- what a client reads ------------------------------------------------------------------------------


def _read(blocks: list[tuple[str, ...]], word: str, usage: tuple[int, int], ids: list[str]) -> Read:
    """Join texts that follow each other, and leave empty ones out."""
    found: list[tuple[str, ...]] = []
    for block in blocks:
        if block[0] == "text" and found and found[-1][0] == "text":
            found[-1] = ("text", found[-1][1] + block[1])
        elif block != ("text", ""):
            found.append(block)
    return Read(found, _WORDS.get(word, word), usage, ids)


def read_plain(client: ApiKind, body: bytes) -> Read:
    """Return what a client reads. Chat's texts stand before its calls, whatever the model's order was."""
    document = json.loads(body)
    blocks: list[tuple[str, ...]] = []
    ids: list[str] = []
    match client:
        case ApiKind.CHAT:
            choice, used = document["choices"][0], document["usage"]
            blocks.append(("text", choice["message"]["content"] or ""))
            for call in choice["message"].get("tool_calls", ()):
                blocks.append(("call", call["function"]["name"], call["function"]["arguments"]))
                ids.append(call["id"])
            return _read(blocks, choice["finish_reason"], (used["prompt_tokens"], used["completion_tokens"]), ids)
        case ApiKind.RESPONSES:
            return _read_response(document)
        case ApiKind.MESSAGES:
            for each in document["content"]:
                if each["type"] == "text":
                    blocks.append(("text", each["text"]))
                else:
                    blocks.append(("call", each["name"], json.dumps(each["input"])))
                    ids.append(each["id"])
            used = document["usage"]
            return _read(blocks, document["stop_reason"], (used["input_tokens"], used["output_tokens"]), ids)
        case _:
            return _read_gemini([document])


def _read_response(document: dict[str, Any]) -> Read:
    blocks: list[tuple[str, ...]] = []
    ids = []
    for item in document["output"]:
        if item["type"] == "message":
            blocks += [("text", part["text"]) for part in item["content"]]
        else:
            blocks.append(("call", item["name"], item["arguments"]))
            ids.append(item["call_id"])
    word = "end" if not ids else "tools"
    if document["status"] == "incomplete":
        word = {"max_output_tokens": "length", "content_filter": "filter"}[document["incomplete_details"]["reason"]]
    used = document["usage"]
    return _read(blocks, word, (used["input_tokens"], used["output_tokens"]), ids)


def _read_gemini(chunks: list[dict[str, Any]]) -> Read:
    blocks: list[tuple[str, ...]] = []
    ids = []
    for chunk in chunks:
        for part in chunk["candidates"][0]["content"]["parts"]:
            if "functionCall" in part:
                call = part["functionCall"]
                blocks.append(("call", call["name"], json.dumps(call["args"])))
                ids.append(call["id"])
            else:
                blocks.append(("text", part["text"]))
    word = chunks[-1]["candidates"][0]["finishReason"]
    used = chunks[-1]["usageMetadata"]
    stop = {"STOP": "tools" if ids else "end", "MAX_TOKENS": "length", "SAFETY": "filter"}[word]
    return _read(blocks, stop, (used["promptTokenCount"], used["candidatesTokenCount"]), ids)


def _documents(data: bytes) -> list[dict[str, Any]]:
    found = []
    for text in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
        if lines and lines != [b"[DONE]"]:
            found.append(json.loads(b"\n".join(lines)))
    return found


def read_stream(client: ApiKind, data: bytes) -> Read:
    """Return what a client reads that keeps one current block, as many do; asserts the order that each API promises."""
    documents = _documents(data)
    match client:
        case ApiKind.CHAT:
            return _read_chunks(documents)
        case ApiKind.RESPONSES:
            return _read_items(documents)
        case ApiKind.MESSAGES:
            return _read_blocks(documents)
        case _:
            return _read_gemini(documents)


def _read_chunks(chunks: list[dict[str, Any]]) -> Read:
    text, calls, word, usage = "", list[list[str]](), "", (0, 0)
    ids = []
    for chunk in chunks:
        if chunk.get("usage"):
            usage = (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"])
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                    ids.append(call["id"])
                calls[call["index"]][1] += call["function"].get("arguments", "")
            word = choice["finish_reason"] or word
    return _read([("text", text), *(("call", name, arguments) for name, arguments in calls)], word, usage, ids)


def _read_items(events: list[dict[str, Any]]) -> Read:
    current: int | None = None
    text = ""
    for number, each in enumerate(events):
        assert each["sequence_number"] == number
        match each["type"]:
            case "response.output_item.added":
                assert current is None, "an item ends before the next is added"
                current, text = each["output_index"], ""
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                assert current == each["output_index"]
                text += each["delta"]
            case "response.output_item.done":
                assert current == each["output_index"]
                item, current = each["item"], None
                assert text == (item["content"][0]["text"] if item["type"] == "message" else item["arguments"])
    last = events[-1]["response"]
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert last["output"] == done
    return _read_response(last)


def _read_blocks(events: list[dict[str, Any]]) -> Read:
    blocks: list[list[str]] = []
    ids: list[str] = []
    word, usage, current = "", (0, 0), None
    for each in events:
        match each["type"]:
            case "content_block_start":
                assert current is None, "a block ends before the next begins"
                current = each["index"]
                assert current == len(blocks)
                block = each["content_block"]
                if block["type"] == "text":
                    blocks.append(["text", ""])
                else:
                    blocks.append(["call", block["name"], ""])
                    ids.append(block["id"])
            case "content_block_delta":
                assert current == each["index"]
                blocks[-1][-1] += each["delta"].get("text") or each["delta"].get("partial_json") or ""
            case "content_block_stop":
                assert current == each["index"]
                current = None
            case "message_delta":
                word = each["delta"]["stop_reason"]
                usage = (each["usage"]["input_tokens"], each["usage"]["output_tokens"])
    return _read([tuple(block) for block in blocks], word, usage, ids)
