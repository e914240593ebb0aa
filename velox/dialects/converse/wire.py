"""What Converse answers: whole answers, events, errors. Text and arguments stay as they stood.

Knows: names and shapes of fields, as botocore's model of the service has them (1.44). Does not know: what they mean.
Members of `p` (padding) and fields that nobody needs are skipped.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "ANSWER",
    "BLOCK_DELTA",
    "BLOCK_START",
    "BLOCK_STOP",
    "ERROR",
    "MESSAGE_STOP",
    "METADATA",
    "MORE_FIELDS",
    "CacheDetail",
    "Content",
    "ConverseUsage",
    "Reasoning",
    "ToolUseBlock",
]


# In a union with None a raw value would be decoded.
ABSENT: Final = msgspec.Raw()


class ReasoningText(msgspec.Struct, gc=False):
    """Reasoning with its signature; models other than Claude don't sign."""

    text: msgspec.Raw
    signature: str | None = None


class Reasoning(msgspec.Struct, rename="camel", gc=False):
    """One of both."""

    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class ToolUseBlock(msgspec.Struct, rename="camel", gc=False):
    """A call. type: "server_tool_use" for a tool that the service runs itself."""

    tool_use_id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")
    type: str | None = None


class CitedText(msgspec.Struct, gc=False):
    """A part of a text with citations."""

    text: msgspec.Raw = ABSENT


class CitationsContent(msgspec.Struct, gc=False):
    """A text with citations."""

    content: list[CitedText] | None = None


class Content(msgspec.Struct, rename="camel", gc=False):
    """One block of an answer: one of these. Of the last ones it is only known that they are there."""

    text: msgspec.Raw = ABSENT
    tool_use: ToolUseBlock | None = None
    reasoning_content: Reasoning | None = None
    citations_content: CitationsContent | None = None
    image: msgspec.Raw = ABSENT
    audio: msgspec.Raw = ABSENT
    video: msgspec.Raw = ABSENT
    document: msgspec.Raw = ABSENT
    tool_result: msgspec.Raw = ABSENT
    search_result: msgspec.Raw = ABSENT


class _Message(msgspec.Struct, gc=False):
    content: list[Content] = []


class _Output(msgspec.Struct, gc=False):
    message: _Message | None = None


class CacheDetail(msgspec.Struct, rename="camel", gc=False):
    """Of the tokens that were written to the cache, those for one time."""

    ttl: str = ""
    input_tokens: int = 0


class ConverseUsage(msgspec.Struct, rename="camel", gc=False):
    """Tokens; input_tokens without those of the cache, unless the total says otherwise (words.py)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    cache_details: list[CacheDetail] | None = None


class _Tier(msgspec.Struct, gc=False):
    type: str = ""


class _MoreFields(msgspec.Struct, gc=False):
    """What was asked for by additionalModelResponseFieldPaths."""

    stop_sequence: str | None = None


class _Answer(msgspec.Struct, rename="camel", gc=False):
    output: _Output
    stop_reason: str
    usage: ConverseUsage | None = None
    additional_model_response_fields: msgspec.Raw = ABSENT
    service_tier: _Tier | None = None


class _ToolUseStart(msgspec.Struct, rename="camel", gc=False):
    tool_use_id: str
    name: str
    type: str | None = None


class BlockBegin(msgspec.Struct, rename="camel", gc=False):
    """Of a block: a call, or one of those that are not carried over."""

    tool_use: _ToolUseStart | None = None
    image: msgspec.Raw = ABSENT
    tool_result: msgspec.Raw = ABSENT


class _BlockStart(msgspec.Struct, rename="camel", gc=False):
    content_block_index: int
    start: BlockBegin


class _ToolUseDelta(msgspec.Struct, gc=False):
    input: msgspec.Raw


class _ReasoningDelta(msgspec.Struct, rename="camel", gc=False):
    text: msgspec.Raw = ABSENT
    signature: str | None = None
    redacted_content: str | None = None


class _Delta(msgspec.Struct, rename="camel", gc=False):
    text: msgspec.Raw = ABSENT
    tool_use: _ToolUseDelta | None = None
    reasoning_content: _ReasoningDelta | None = None
    citation: msgspec.Raw = ABSENT


class _BlockDelta(msgspec.Struct, rename="camel", gc=False):
    content_block_index: int
    delta: _Delta


class _BlockStop(msgspec.Struct, rename="camel", gc=False):
    content_block_index: int


class _MessageStop(msgspec.Struct, rename="camel", gc=False):
    stop_reason: str
    additional_model_response_fields: msgspec.Raw = ABSENT


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    usage: ConverseUsage | None = None
    service_tier: _Tier | None = None


class _Error(msgspec.Struct, gc=False):
    """message: the service's own; Message: of what stands before it (signatures, tokens)."""

    message: str | None = None
    capital: str | None = msgspec.field(default=None, name="Message")
    type: str | None = msgspec.field(default=None, name="__type")


ANSWER: Final = msgspec.json.Decoder(_Answer)
MORE_FIELDS: Final = msgspec.json.Decoder(_MoreFields)
BLOCK_START: Final = msgspec.json.Decoder(_BlockStart)
BLOCK_DELTA: Final = msgspec.json.Decoder(_BlockDelta)
BLOCK_STOP: Final = msgspec.json.Decoder(_BlockStop)
MESSAGE_STOP: Final = msgspec.json.Decoder(_MessageStop)
METADATA: Final = msgspec.json.Decoder(_Metadata)
ERROR: Final = msgspec.json.Decoder(_Error)
