"""Requests, answers and events of OpenAI Responses as they stand on the wire.

Texts, arguments and schemas are raw JSON. What a request must not have wrong is typed; of a reply only what is needed
to read it.

Knows: fields and their types. Does not know: what they mean.
Source: openai 3.54 (types/responses); recorded exchanges.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

__all__ = [
    "ABSENT",
    "AskedTools",
    "CacheControl",
    "Event",
    "InputItem",
    "LenientRequest",
    "OutputItem",
    "Part",
    "ReasoningConfig",
    "RequestBody",
    "ResponsesReply",
    "ResponsesUsage",
    "StringInput",
    "TextConfig",
    "TextFormat",
    "Tool",
    "ToolChoice",
]

# A raw field that is not there: the same object, so that asking for it costs nothing.
ABSENT: Final = Raw()


# -- requests -------------------------------------------------------------------------------------


class CacheControl(msgspec.Struct, gc=False):
    """OpenAI's `prompt_cache_breakpoint`."""

    mode: str | None = None
    ttl: str | None = None


class InputItem(msgspec.Struct, gc=False):
    """An item of the input: a message (type absent), a call, a result, reasoning, and what hosted tools left."""

    type: str | None = None
    role: str | None = None
    content: Raw = ABSENT
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = ABSENT
    input: Raw = ABSENT
    output: Raw = ABSENT
    summary: Raw = ABSENT
    encrypted_content: str | None = None
    action: Raw = ABSENT
    operation: Raw = ABSENT
    execution: str | None = None
    tools: Raw = ABSENT
    # image_generation_call
    result: str | None = None
    output_format: str | None = None
    # configuration_update
    reasoning: Raw = ABSENT
    text: Raw = ABSENT


class _InputAudio(msgspec.Struct, gc=False):
    data: str
    format: str | None = None


class Part(msgspec.Struct, gc=False):
    """A part of a message, of a result, or of reasoning."""

    type: str
    text: Raw = ABSENT
    refusal: Raw = ABSENT
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: _InputAudio | None = None
    prompt_cache_breakpoint: CacheControl | None = None


class _Grammar(msgspec.Struct, gc=False):
    type: str | None = None
    syntax: str | None = None
    definition: Raw = ABSENT


class _Environment(msgspec.Struct, gc=False):
    type: str | None = None


class _Filters(msgspec.Struct, gc=False):
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool. tools: of a namespace. format: of a custom tool. execution: of a tool search: "server", "client".

    environment: where a shell runs.
    """

    type: str
    name: str = ""
    description: Raw = ABSENT
    parameters: Raw = ABSENT
    strict: bool | None = None
    format: _Grammar | None = None
    tools: list[Tool] | None = None
    execution: str | None = None
    environment: _Environment | None = None
    # web_search
    filters: _Filters | None = None
    user_location: Raw = ABSENT
    external_web_access: bool | None = None


class _ChosenTool(msgspec.Struct, gc=False):
    type: str | None = None
    name: str | None = None
    namespace: str | None = None


class ToolChoice(msgspec.Struct, gc=False):
    """A choice that is more than a word."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[_ChosenTool] | None = None


class TextFormat(msgspec.Struct, gc=False):
    """The form of the answer."""

    type: str
    name: str | None = None
    description: Raw = ABSENT
    schema: Raw = ABSENT
    strict: bool | None = None


class TextConfig(msgspec.Struct, gc=False):
    """What the text of the answer is like."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, gc=False):
    """How much is to be reasoned, and shown of it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class RequestBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request. input: a string is read again, raw (StringInput). type: of a message over a WebSocket. The raw
    fields are those that have several types, or of which only the presence counts.
    """

    model: str = ""
    input: list[InputItem] | str | None = None
    instructions: Raw = ABSENT
    stream: bool | None = None
    stream_options: Raw = ABSENT
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: Raw = ABSENT
    parallel_tool_calls: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    type: str | None = None
    generate: bool | None = None
    # Refused:
    previous_response_id: Raw = ABSENT
    conversation: Raw = ABSENT
    prompt: Raw = ABSENT
    moderation: Raw = ABSENT
    # Dropped:
    access_programs: Raw = ABSENT
    background_options: Raw = ABSENT
    client_metadata: Raw = ABSENT
    context_management: Raw = ABSENT
    image: Raw = ABSENT
    max_tool_calls: Raw = ABSENT
    metadata: Raw = ABSENT
    prompt_cache_options: Raw = ABSENT
    prompt_cache_retention: Raw = ABSENT
    stream_id: Raw = ABSENT


class LenientRequest(RequestBody, forbid_unknown_fields=False):
    """The same, with fields that nobody knows."""


class StringInput(msgspec.Struct, gc=False):
    """The input where it is a string."""

    input: Raw = ABSENT


class AskedTools(msgspec.Struct, gc=False):
    """The tools as they came: an answer repeats them."""

    tools: list[Raw] | None = None


# -- answers and events -----------------------------------------------------------------------------


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class ResponsesUsage(msgspec.Struct, gc=False):
    """Tokens."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class ReplyPart(msgspec.Struct, gc=False):
    type: str | None = None
    text: Raw = ABSENT
    refusal: Raw = ABSENT
    annotations: Raw = ABSENT


class OutputItem(msgspec.Struct, gc=False):
    """An item of an answer."""

    type: str | None = None
    id: str | None = None
    content: list[ReplyPart] | None = None
    summary: list[ReplyPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Raw = ABSENT
    input: Raw = ABSENT
    thought_signature: str | None = None
    action: Raw = ABSENT
    result: str | None = None
    output_format: str | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class ResponsesReply(msgspec.Struct, gc=False):
    """An answer, as a body or at the end of a stream."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[OutputItem] | None = None
    usage: Raw = ABSENT
    tool_usage: Raw = ABSENT
    error: Raw = ABSENT
    incomplete_details: _Incomplete | None = None
    service_tier: str | None = None


class Event(msgspec.Struct, gc=False):
    """An event of a stream. part: what has been added to an item."""

    type: str | None = None
    delta: Raw = ABSENT
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    item: Raw = ABSENT
    part: Raw = ABSENT
    annotation: Raw = ABSENT
    response: Raw = ABSENT
    error: Raw = ABSENT
