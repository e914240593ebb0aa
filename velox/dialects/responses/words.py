"""What answers of Responses and the last events of their streams have in common: items, usage, why it stopped.

Knows: their words and fields. Does not know: the order of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from velox.dialects.canonical.endings import settled
from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    Image,
    JsonText,
    Media,
    MediaKind,
    Refusal,
    Signature,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
)
from velox.dialects.json_text.decoding import bill_in, is_given, object_in
from velox.dialects.json_text.text import EMPTY, joined, raw_text
from velox.dialects.openai_errors import api_error
from velox.dialects.responses import wire
from velox.dialects.responses.sources import SEARCH_CALL, citations_of, n_annotations, search_of
from velox.dialects.tools.arguments import custom_arguments, read_arguments
from velox.protocol.usage.tokens import TokenUsage, openai_searches, with_tools

__all__ = ["THOUGHT", "answer_of", "blocks_of", "lost", "reasoning_of", "signature_of", "stop_of", "usage_of"]

# How the value of a call's signature begins, which is not one of reasoning. Perplexity passes Google's on.
THOUGHT: Final = "thought_signature:"

_USAGE: Final = msgspec.json.Decoder(wire.Usage)
_STOPS: Final = {
    "max_output_tokens": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "content_filter": StopReason.FILTER,
}
_FAILED: Final = ("failed", "cancelled")
_WHOLE: Final = ("completed", "complete", "incomplete", None)  # as other servers call it, or leave it out
_KEPT: Final = ("reasoning", "function_call", "custom_tool_call")
_LOST_PARTS: Final = {"output_audio": "answer.audio", "output_image": "answer.image"}
_NO_USAGE: Final = Usage()


def _calls(reply: wire.Reply) -> Iterator[dict[str, object]]:
    """Yield the items of an answer as far as they say whether they are searches."""
    for item in reply.output or ():
        if item.type == SEARCH_CALL:
            yield {"type": item.type, "action": object_in(item.action)}


def usage_of(reply: wire.Reply) -> Usage:
    """Read the usage, with what stands beside it of tier and tools; what can't be read is left out."""
    raw = reply.usage
    if not is_given(raw):
        return _NO_USAGE
    try:
        given = _USAGE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_USAGE
    inputs, outputs = given.input_tokens_details, given.output_tokens_details
    written = None
    if inputs is not None:
        written = inputs.cache_write_tokens
        written = inputs.cache_creation_input_tokens if written is None else written
    ran = with_tools(TokenUsage(), object_in(reply.tool_usage))
    return Usage(
        given.input_tokens,
        given.output_tokens,
        None if inputs is None else inputs.cached_tokens,
        written,
        None,
        None if outputs is None else outputs.reasoning_tokens,
        tier=reply.service_tier,
        bill=bill_in(raw),
        web_searches=ran.web_searches or openai_searches(_calls(reply)) or None,
        has_others=ran.has_others,
    )


def stop_of(reply: wire.Reply, *, has_calls: bool) -> Stop:
    """Return why the model stopped. Raises ReplyError: it failed; BrokenReplyError: it has not stopped."""
    if is_given(reply.error) or reply.status in _FAILED:
        raise ReplyError(api_error(reply.error if is_given(reply.error) else b'{"message":"the answer failed"}'))
    if reply.status not in _WHOLE:
        raise BrokenReplyError(f"the upstream's answer is not whole: its status is {reply.status}")
    if reply.status == "incomplete":
        word = (reply.incomplete_details.reason if reply.incomplete_details is not None else None) or "incomplete"
        reason = _STOPS.get(word)
        # It is cut, whatever the reason, also where none is told: never whole.
        return Stop(StopReason.LENGTH, unknown=word[:64]) if reason is None else Stop(reason)
    return settled(Stop(StopReason.END), has_calls=has_calls)


def reasoning_of(item: wire.OutputItem) -> JsonText:
    """Return the text of reasoning: its summary, or all of it where a server shows that."""
    for parts in (item.summary, item.content):
        texts = [text for part in parts or () if (text := raw_text(part.text)) is not None]
        if texts:
            return joined(texts)
    return EMPTY


def signature_of(item: wire.OutputItem, provider: str) -> Signature | None:
    """Return the signature of reasoning, which is bound to the item's id; or of a call."""
    if item.thought_signature:
        return Signature(provider, THOUGHT + item.thought_signature)
    return Signature(provider, item.encrypted_content, item.id) if item.encrypted_content else None


def blocks_of(output: Sequence[wire.OutputItem], provider: str) -> list[AnswerBlock]:
    """Read the items of an answer. Of tools that the upstream runs itself, its search of the web is one."""
    blocks: list[AnswerBlock] = []
    for item in output:
        match item.type:
            case "message":
                for part in item.content or ():
                    if part.type == "output_text":
                        blocks.append(Text(raw_text(part.text) or EMPTY, cited=citations_of(part.annotations)))
                    elif part.type == "refusal":
                        blocks.append(Refusal(raw_text(part.refusal) or EMPTY))
            case "reasoning":
                text, signature = reasoning_of(item), signature_of(item, provider)
                if text != EMPTY or signature is not None:
                    blocks.append(Thinking(text, signature))
            case "function_call":
                arguments = read_arguments(bytes(item.arguments))
                blocks.append(ToolUse(item.call_id or "", item.name or "", arguments, signature_of(item, provider)))
            case "image_generation_call" if item.result:
                blocks.append(Image(Media(MediaKind.DATA, item.result, f"image/{item.output_format or 'png'}")))
            case "web_search_call":
                search = search_of(item.action)
                if search is not None:
                    blocks.append(search)
            case "custom_tool_call":
                arguments = custom_arguments(raw_text(item.input) or EMPTY)
                blocks.append(ToolUse(item.call_id or "", item.name or "", arguments))
    return blocks


def lost(item: wire.OutputItem) -> list[str]:
    """Return what of an item the form has no place for (form.Lost)."""
    if item.type == "image_generation_call":
        return [] if item.result else ["answer.image"]
    if item.type == SEARCH_CALL:
        return [] if search_of(item.action) is not None else ["answer.tools.hosted"]
    if item.type != "message":
        return [] if item.type in _KEPT else ["answer.tools.hosted"]
    parts = item.content or ()
    found = [name for part in parts if (name := _LOST_PARTS.get(part.type or "")) is not None]
    if any(n_annotations(part.annotations) > len(citations_of(part.annotations)) for part in parts):
        found.append("answer.citations")
    return found


def answer_of(reply: wire.Reply, provider: str) -> Answer:
    """Read a whole answer. Raises ReplyError, BrokenReplyError."""
    blocks = blocks_of(reply.output or (), provider)
    has_calls = any(isinstance(block, ToolUse) for block in blocks)
    stop = stop_of(reply, has_calls=has_calls)
    if reply.output is None:
        raise BrokenReplyError("the upstream's answer has no output")
    names = tuple(dict.fromkeys(name for item in reply.output for name in lost(item)))
    tier = reply.service_tier
    return Answer(reply.id or "", reply.model or "", blocks, stop, usage_of(reply), tier, names)
