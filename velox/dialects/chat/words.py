"""What the words of Chat Completions mean, both ways: usage, finish reasons, reasoning, pictures, ids.

Whole answers and streams share them, as all of these servers have them. OpenAI's own API has no place for a picture:
`images` of a message is OpenRouter's, which LiteLLM and the clients that show pictures read
(https://openrouter.ai/docs/features/multimodal/image-generation, BerriAI/litellm#14160).

Knows: words and fields. Does not know: the order of chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.model import (
    ApiError,
    ClientCall,
    ErrorKind,
    Image,
    JsonText,
    Modalities,
    Signature,
    Stop,
    StopReason,
    Thinking,
    Usage,
    settled,
)
from velox.dialects.chat import wire
from velox.dialects.chat.sources import NOTHING, citations_of, n_annotations
from velox.dialects.json_text.decoding import bill_in, is_given
from velox.dialects.json_text.text import EMPTY, joined, quoted, raw_text
from velox.protocol.usage.tokens import beside_prompt

__all__ = ["EXTRA_CONTENT", "lost", "picture", "read_content", "read_reasoning", "read_usage", "signed", "stop_of"]

# The format of a signature that came in `extra_content`, in its value before the colon; see signed().
EXTRA_CONTENT: Final = "extra_content"

_USAGE: Final = msgspec.json.Decoder(wire.ChatUsage)
_PARTS: Final = msgspec.json.Decoder(list[wire.Part])
_NO_USAGE: Final = Usage()
_NO_INPUTS: Final = wire.PromptDetails()
_NO_OUTPUTS: Final = wire.CompletionDetails()
_NOT_GIVEN: Final = (None, None, None)
_NO_SECONDS: Final = (wire.ABSENT, Raw(b"null"), Raw(b"0"))
# Parts of a content that are none of a text, by what they are (Lost).
_LOST_PARTS: Final = {
    "image": "answer.image",
    "image_url": "answer.image",
    "output_image": "answer.image",
    "audio": "answer.audio",
    "output_audio": "answer.audio",
    "file": "answer.file",
    "reference": "answer.citations",  # Mistral's
}

_STOPS: Final = {
    "stop": StopReason.END,
    "eos": StopReason.END,
    "eos_token": StopReason.END,
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.STOP_STRING,
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.CONTEXT,
    "model_context_window_exceeded": StopReason.CONTEXT,
    "tool_calls": StopReason.TOOLS,
    "function_call": StopReason.TOOLS,
    "tool_use": StopReason.TOOLS,
    "content_filter": StopReason.FILTER,
    "sensitive": StopReason.FILTER,
}
# Finish reasons that say that the model failed, with the error's kind.
_FAILURES: Final = {
    "error": ErrorKind.API,
    "network_error": ErrorKind.UNAVAILABLE,
    "insufficient_system_resource": ErrorKind.UNAVAILABLE,
    "abort": ErrorKind.UNAVAILABLE,
}


# -- usage and stop ---------------------------------------------------------------------------------


def read_usage(raw: Raw, tier: str | None = None) -> Usage:
    """Read the usage; what can't be read is left out. tier: what stands beside it.

    Where the total is more than its parts, reasoning is not counted in completion_tokens (xAI, Google's server).
    """
    if not is_given(raw):
        return _NO_USAGE
    try:
        given = _USAGE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_USAGE
    prompt, completion, total = given.prompt_tokens, given.completion_tokens, given.total_tokens
    inputs, outputs = given.prompt_tokens_details or _NO_INPUTS, given.completion_tokens_details or _NO_OUTPUTS
    reasoning, cached = outputs.reasoning_tokens, inputs.cached_tokens
    if cached is None:
        others = (given.prompt_cache_hit_tokens, given.num_cached_tokens, given.cached_tokens)
        if others != _NOT_GIVEN:
            cached = next(other for other in others if other is not None)
    modalities = None if inputs is _NO_INPUTS and outputs is _NO_OUTPUTS else _modalities(inputs, outputs)
    if prompt is not None and completion is not None and total is not None:
        has_seconds = given.prompt_audio_seconds not in _NO_SECONDS
        if has_seconds or inputs.cached_tokens or inputs.audio_tokens:  # else nothing can be beside it
            beside = beside_prompt(
                prompt,
                cached=inputs.cached_tokens or 0,
                sound=inputs.audio_tokens or 0,
                more=max(0, total - prompt - completion),
                reasoning=reasoning or 0,
                has_seconds=has_seconds,
            )
            prompt += beside
            if has_seconds and beside and modalities is None:
                modalities = Modalities(beside)
        if total > prompt + completion:
            reasoning = reasoning or total - prompt - completion
            completion = total - prompt
    written = inputs.cache_write_tokens
    return Usage(prompt, completion, cached, written, None, reasoning, modalities, tier, bill_in(raw))


def _modalities(inputs: wire.PromptDetails, outputs: wire.CompletionDetails) -> Modalities | None:
    if not (inputs.audio_tokens or inputs.image_tokens or outputs.audio_tokens or outputs.image_tokens):
        return None
    return Modalities(inputs.audio_tokens, None, outputs.audio_tokens, inputs.image_tokens, outputs.image_tokens)


def stop_of(word: str, stop_reason: str | int | None, *, has_calls: bool) -> Stop | ApiError:
    """Return what a finish reason says. has_calls: a tool is called (canonical/model.py)."""
    reason = _STOPS.get(word)
    if reason is None:
        kind = _FAILURES.get(word)
        if kind is not None:
            return ApiError(kind, kind.value, f"the model failed: its finish reason is {word}")
        stop = Stop(StopReason.END, unknown=word[:64])
    elif reason is StopReason.END and isinstance(stop_reason, str):
        stop = Stop(StopReason.STOP_STRING, sequence=stop_reason)
    else:
        stop = Stop(reason)
    return settled(stop, has_calls=has_calls)


# -- texts and reasoning ----------------------------------------------------------------------------


def read_content(raw: Raw) -> tuple[JsonText, JsonText]:
    """Return the text of a message or a delta, and the reasoning that Mistral puts beside it; EMPTY for none."""
    text = raw_text(raw)
    if text is not None:
        return text, EMPTY
    if not is_given(raw):
        return EMPTY, EMPTY
    try:
        parts = _PARTS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EMPTY, EMPTY
    texts: list[JsonText] = []
    thoughts: list[JsonText] = []
    for part in parts:
        if part.type == "thinking":
            thoughts += _texts(part.thinking)
        elif part.type == "text":
            texts.append(raw_text(part.text) or EMPTY)
    return joined(texts, b""), joined(thoughts, b"")


def lost(message: wire.ReplyMessage | wire.Delta) -> list[str]:
    """Return what of a message or a delta the canonical model has no place for (Lost)."""
    has_parts = (b"" + message.content).startswith(b"[")
    if not (has_parts or message.audio or message.images or message.annotations not in NOTHING):
        return []  # nearly all of them
    fields = (("audio", message.audio), ("image", message.images))
    found = [f"answer.{name}" for name, raw in fields if raw not in NOTHING]
    if message.annotations and n_annotations(message.annotations) > len(citations_of(message.annotations)):
        found.append("answer.citations")
    if has_parts:
        try:
            parts = _PARTS.decode(message.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return found
        found += [_LOST_PARTS[part.type] for part in parts if part.type in _LOST_PARTS]
    return found


def _texts(raw: Raw) -> list[JsonText]:
    """Return the texts of a list of parts, or a text."""
    text = raw_text(raw)
    if text is not None:
        return [text]
    try:
        return [text for part in _PARTS.decode(raw) if (text := raw_text(part.text)) is not None]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def signed(provider: str, form: str | None, value: str, item_id: str | None = None) -> Signature:
    """Return a signature that only this provider takes back; its value says in which form."""
    return Signature(provider, f"{form or ''}:{value}", item_id)


def read_reasoning(details: Sequence[wire.ReasoningDetail], provider: str) -> list[Thinking]:
    """Read OpenRouter's entries of a whole answer."""
    blocks: list[Thinking] = []
    for each in details:
        text = raw_text(each.text) or raw_text(each.summary)
        value = each.signature if each.signature is not None else each.data
        signature = None if value is None else signed(provider, each.format, value, each.id)
        if text is not None:
            blocks.append(Thinking(text, signature))
        elif signature is not None and blocks and blocks[-1].signature is None:
            blocks[-1].signature = signature
        elif signature is not None:
            blocks.append(Thinking(EMPTY, signature, is_redacted=True))
    return blocks


# -- as clients read it ---------------------------------------------------------------------------

_FINISHES: Final = {
    StopReason.END: b"stop",
    StopReason.STOP_STRING: b"stop",
    StopReason.LENGTH: b"length",
    StopReason.CONTEXT: b"length",
    StopReason.TOOLS: b"tool_calls",
    StopReason.FILTER: b"content_filter",
    StopReason.PAUSE: b"stop",
}


def answer_id(theirs: str, call: ClientCall) -> str:
    """Return the id of an answer: the upstream's where it is one of this dialect."""
    return theirs if theirs.startswith("chatcmpl-") else f"chatcmpl-{call.id}"


def finish_word(stop: Stop, *, is_old: bool = False) -> bytes:
    """Return the finish reason. is_old: of an answer that calls functions, and no tools."""
    if is_old and stop.reason is StopReason.TOOLS:
        return b"function_call"
    return _FINISHES[stop.reason]


def usage_json(usage: Usage) -> bytes:
    """Write the usage."""
    prompt, completion = usage.input or 0, usage.output or 0
    written = b"" if usage.cache_written is None else b',"cache_write_tokens":%d' % usage.cache_written
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d%b},'
        b'"completion_tokens_details":{"reasoning_tokens":%d}}'
        % (prompt, completion, prompt + completion, usage.cached or 0, written, usage.reasoning or 0)
    )


def picture(image: Image, index: int) -> bytes:
    """Write a picture, which is data. index: its number in the answer."""
    source = image.source
    form = b'{"type":"image_url","image_url":{"url":%b},"index":%d}'
    return form % (quoted(f"data:{source.type or 'image/png'};base64,{source.value}"), index)
