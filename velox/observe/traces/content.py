"""What was asked and answered, as OpenTelemetry's GenAI attributes have it: lists of messages with their parts.

Knows: where the dialects have messages, texts and calls of tools, in plain bodies and in streams: a look, and no
translation. Does not know: whether content may be exported, or what must not be in it (redaction.py).

    gen_ai.system_instructions   [part, ...]
    gen_ai.input.messages        [{"role": ..., "parts": [part, ...]}, ...]: the last ones, as far as there is room
    gen_ai.output.messages       [{"role": "assistant", "parts": [...], "finish_reason": ...}]

A part is a text, a call of a tool, what a tool has said, or of another type, which is named and left out: pictures and
files are never exported. What can't be read is one text, as it came.
(https://github.com/open-telemetry/semantic-conventions/tree/v1.37.0/docs/gen-ai: gen-ai-input-messages.json)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from velox.observe.traces.redaction import whole_words

__all__ = ["content_attributes"]

# JSON of a stranger: each value is asked for its type before it is used.
Json: TypeAlias = Any
Part: TypeAlias = dict[str, Json]

_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning_text"})
_CALLS: Final = frozenset({"tool_use", "function_call", "function"})
_RESULTS: Final = frozenset({"tool_result", "function_call_output"})
_MOST_MESSAGES: Final = 200
# Characters of a role, a name or an id that are written; of a longer one so many are read, to find what it may be.
_MOST_WORD: Final = 256
_MOST_READ: Final = 1024
_ROLES: Final = {"model": "assistant"}


def content_attributes(
    asked: bytes, answered: bytes, *, is_stream: bool, is_cut: bool, most: int, redact: Callable[[str], str]
) -> dict[str, str]:
    """Return the attributes of a request and its reply.

    is_stream: what was answered is an event stream. is_cut: of one of them, or both, the end is missing. most:
    characters of the texts of each; a quarter of it for what stands beside the messages.
    """
    writer = _Writer(most, redact)
    found = {}
    request = _object(asked)
    if request is None:
        messages, system = writer.raw(asked, "user", is_cut=is_cut), []
    else:
        system = _Writer(most // 4, redact).parts(_system(request))
        messages = writer.last(_asked(request))
    if system:
        found["gen_ai.system_instructions"] = _written(system)
    if messages:
        found["gen_ai.input.messages"] = _written(messages)
    writer = _Writer(most, redact)
    if is_stream:
        parts, reason = _streamed(answered)
        answers = [_message("assistant", writer.parts(parts), writer.word(reason))]
    else:
        reply = _object(answered)
        if reply is None:
            answers = writer.raw(answered, "assistant", is_cut=is_cut)
        else:
            answers = [
                _message("assistant", writer.parts(parts), writer.word(reason)) for parts, reason in _answers(reply)
            ]
    answers = [each for each in answers if each["parts"]]
    if answers:
        found["gen_ai.output.messages"] = _written(answers)
    return found


class _Writer:
    """Writes texts, as long as there is room."""

    def __init__(self, room: int, redact: Callable[[str], str]) -> None:
        self._room = room
        self._redact: Final = redact

    def text(self, text: str) -> str:
        """Return what there is room for."""
        # One that is far too long is not read as a whole.
        is_long = len(text) > 2 * self._room
        text = self._redact(whole_words(text[: 2 * self._room]) if is_long else text)
        if len(text) > self._room:
            text = f"{whole_words(text[: self._room])}…"
        self._room = max(self._room - len(text), 0)
        return text

    def word(self, word: str) -> str:
        """Return a role, a name, an id or a kind, which may be anything that its client or its model has made up."""
        if word in _OWN:
            return word
        return self._redact(whole_words(word[:_MOST_READ]) if len(word) > _MOST_READ else word)[:_MOST_WORD]

    def parts(self, parts: Iterable[Part]) -> list[Part]:
        """Return the parts with their texts written."""
        found = []
        for each in parts:
            if self._room <= 0:
                break
            written = {name: self.text(value) if name in _WRITTEN else self.word(value) for name, value in each.items()}
            if written.get("content") != "":
                found.append(written)
        return found

    def last(self, messages: list[tuple[str, list[Part]]]) -> list[Json]:
        """Return the last messages, as far as there is room, in their order."""
        found: list[Json] = []
        for role, parts in reversed(messages[-_MOST_MESSAGES:]):
            if self._room <= 0:
                break
            written = self.parts(parts)
            if written:
                found.append(_message(self.word(role), written))
        return found[::-1]

    def raw(self, body: bytes, role: str, *, is_cut: bool) -> list[Json]:
        """Return what can't be read as one text."""
        text = body.decode("utf-8", "replace")
        text = self.text(whole_words(text) if is_cut else text)
        return [_message(role, [{"type": "text", "content": text}])] if text else []


_WRITTEN: Final = frozenset({"content", "arguments", "response"})
# What stands in parts and messages of all, and is no word of a stranger's.
_OWN: Final = frozenset(
    {
        "text",
        "reasoning",
        "tool_call",
        "tool_call_response",
        "other",
        "user",
        "assistant",
        "system",
        "developer",
        "tool",
    }
)


def _message(role: str, parts: list[Part], reason: str = "") -> Json:
    message: dict[str, Json] = {"role": role, "parts": parts}
    if reason:
        message["finish_reason"] = reason
    return message


def _written(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _object(body: bytes) -> Mapping[str, Json] | None:
    """Return a JSON object; None: it is none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# -- what was asked -------------------------------------------------------------------------------------


def _system(request: Mapping[str, Json]) -> list[Part]:
    """Return what stands beside the messages: Anthropic's system, Responses' instructions, Google's."""
    for name in ("system", "instructions", "systemInstruction", "system_instruction"):
        if request.get(name):
            return _parts(request[name])
    return []


def _asked(request: Mapping[str, Json]) -> list[tuple[str, list[Part]]]:
    for name in ("messages", "input", "contents", "prompt"):
        value = request.get(name)
        if isinstance(value, str):
            return [("user", [_text(value)])]
        if isinstance(value, list) and value:
            return [_asked_message(each) for each in value]
    return []


def _asked_message(message: Json) -> tuple[str, list[Part]]:
    if not isinstance(message, dict):
        return "user", _parts(message)
    kind, role = _word(message.get("type")), message.get("role")
    if kind in _CALLS or kind in _RESULTS or kind == "reasoning":  # an item of Responses
        return ("tool" if kind in _RESULTS else "assistant"), _parts([message])
    shown = _ROLES.get(role, role) if isinstance(role, str) else "user"
    if shown == "tool":
        result = {"type": "tool_call_response", "id": _word(message.get("tool_call_id"))}
        return "tool", [{**result, "response": _plain(message.get("content"))}]
    return shown, _parts_of_message(message)


def _parts_of_message(message: Mapping[str, Json]) -> list[Part]:
    """Return what a message says, and whom it calls (Chat Completions)."""
    calls = message.get("tool_calls")
    content = message.get("content", message.get("parts"))
    return [*_parts(content), *(_parts(calls) if isinstance(calls, list) else ())]


def _parts(content: Json) -> list[Part]:
    """Return the parts of a text, a block, Google's {"parts": [...]}, or a list of such."""
    if isinstance(content, str):
        return [_text(content)] if content else []
    if isinstance(content, list):
        return [part for each in content for part in _parts(each)]
    if not isinstance(content, dict):
        return []
    kind = _word(content.get("type"))
    inner = content.get("parts")
    if isinstance(inner, list):
        return _parts(inner)
    if kind in _CALLS or isinstance(content.get("functionCall"), dict) or isinstance(content.get("toolUse"), dict):
        return [_call(content)]
    if kind in _RESULTS:
        result = content.get("content", content.get("output"))
        id_ = content.get("tool_use_id", content.get("call_id"))
        return [{"type": "tool_call_response", "id": _word(id_), "response": _plain(result)}]
    for name in ("text", "thinking", "refusal"):
        if isinstance(content.get(name), str) and (not kind or kind in _TEXTS):
            return [{"type": "reasoning", "content": content[name]} if name == "thinking" else _text(content[name])]
    if kind == "reasoning":
        return [{"type": "reasoning", "content": _plain(content.get("summary"))}]
    return [{"type": kind or "other"}]


def _call(block: Mapping[str, Json]) -> Part:
    called = next((block[name] for name in ("function", "functionCall", "toolUse") if name in block), block)
    called = called if isinstance(called, dict) else block
    arguments = next((called[name] for name in ("arguments", "input", "args") if name in called), "")
    id_ = called.get("call_id") or called.get("toolUseId") or called.get("id") or block.get("id")
    return {"type": "tool_call", "id": _word(id_), "name": _word(called.get("name")), "arguments": _plain(arguments)}


def _text(text: str) -> Part:
    return {"type": "text", "content": text}


def _plain(value: Json) -> str:
    """Return a text as it is, the texts of a list of blocks, and anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(part["content"] for part in _parts(value) if "content" in part)
    return "" if value is None else _written(value)


def _word(value: Json) -> str:
    return value if isinstance(value, str) else ""


# -- what was answered ----------------------------------------------------------------------------------


def _answers(reply: Mapping[str, Json]) -> list[tuple[list[Part], str]]:
    """Return the parts of each answer, with why it ended."""
    for name in ("choices", "candidates"):
        found = reply.get(name)
        if isinstance(found, list):
            return [_choice(each) for each in found if isinstance(each, dict)]
    output = reply.get("output")
    if isinstance(output, list):  # Responses
        parts = []
        for item in output:
            parts += _asked_message(item)[1]
        return [(parts, _word(reply.get("status")))]
    if isinstance(output, dict):  # Converse
        return [(_asked_message(output.get("message"))[1], _word(reply.get("stopReason")))]
    if "content" in reply:
        return [(_parts(reply["content"]), _word(reply.get("stop_reason")))]
    return []


def _choice(choice: Mapping[str, Json]) -> tuple[list[Part], str]:
    reason = _word(choice.get("finish_reason")) or _word(choice.get("finishReason"))
    message = choice.get("message", choice.get("content"))
    if isinstance(message, dict):
        return _parts_of_message(message), reason
    return _parts(choice.get("text")), reason


def _streamed(body: bytes) -> tuple[list[Part], str]:
    """Put the events of a stream together; what is cut inside one ends before it."""
    said = _Streamed()
    for line in body.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            event = _object(line[5:].strip())
            if event is not None:
                said.add(event)
    return said.parts, said.reason


class _Streamed:
    """What the events of a stream have said so far: parts, those of the same kind that follow each other in one."""

    def __init__(self) -> None:
        self._parts: Final[list[Part]] = []
        self._pieces: Final[list[dict[str, list[str]]]] = []  # of the texts of each
        self.reason = ""

    @property
    def parts(self) -> list[Part]:
        """Return them, each with its whole texts."""
        return [
            {**part, **{name: "".join(texts) for name, texts in pieces.items()}}
            for part, pieces in zip(self._parts, self._pieces, strict=True)
        ]

    def add(self, event: Mapping[str, Json]) -> None:
        kind, delta = event.get("type"), event.get("delta")
        if isinstance(kind, str) and kind.startswith("response."):
            self._add_of_responses(kind, event)
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            block = event["content_block"]
            self._grow(_call({**block, "input": ""}) if block.get("type") == "tool_use" else _text(""), is_new=True)
        elif isinstance(delta, dict):
            self.reason = _word(delta.get("stop_reason")) or self.reason
            if isinstance(delta.get("partial_json"), str):
                self._grow({"type": "tool_call", "arguments": delta["partial_json"]})
            else:
                for part in _parts({name: delta[name] for name in ("text", "thinking") if name in delta} or []):
                    self._grow(part)
        else:
            for name in ("choices", "candidates"):
                found = event.get(name)
                for choice in found if isinstance(found, list) else ():
                    if isinstance(choice, dict):
                        self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Json]) -> None:
        delta = choice.get("delta")
        message = delta if isinstance(delta, dict) else choice.get("content", choice.get("text"))
        self.reason = _choice(choice)[1] or self.reason
        if not isinstance(message, dict):
            for part in _parts(message):
                self._grow(part)
            return
        for part in _parts(message.get("content", message.get("parts"))):
            self._grow(part, is_new=part["type"] == "tool_call")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                part = _call({"type": "function", "function": {}, **call})
                self._grow(part, is_new=bool(part["id"]))

    def _add_of_responses(self, kind: str, event: Mapping[str, Json]) -> None:
        delta, item = event.get("delta"), event.get("item")
        if kind == "response.output_text.delta" and isinstance(delta, str):
            self._grow(_text(delta))
        elif kind == "response.function_call_arguments.delta" and isinstance(delta, str):
            self._grow({"type": "tool_call", "arguments": delta})
        elif kind == "response.output_item.added" and isinstance(item, dict) and item.get("type") == "function_call":
            self._grow(_call(item), is_new=True)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self.reason = kind.removeprefix("response.")

    def _grow(self, part: Part, *, is_new: bool = False) -> None:
        """Add to the last part what is of its kind, else begin one."""
        if is_new or not self._parts or self._parts[-1]["type"] != part["type"]:
            self._parts.append(part)
            self._pieces.append({})
        for name in _WRITTEN & part.keys():
            self._pieces[-1].setdefault(name, []).append(part[name])
