"""Requests, answers and chunks of Chat Completions as they stand on the wire, with the fields that others add.

Texts, arguments and schemas are raw JSON. What a request must not have wrong is typed; of a reply only what is needed
to read it.

Knows: fields and their types. Does not know: what they mean.
Source: openai 3.54 (types/chat); recorded exchanges with the compatible servers.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Raw

__all__ = [
    "ABSENT",
    "AllowedTools",
    "CacheControl",
    "ChatUsage",
    "Choice",
    "Chunk",
    "ChunkChoice",
    "Completion",
    "CompletionDetails",
    "Delta",
    "ExtraContent",
    "Function",
    "FunctionCall",
    "FunctionName",
    "LenientRequest",
    "Message",
    "Part",
    "PromptDetails",
    "ReasoningDetail",
    "ReplyMessage",
    "RequestBody",
    "ResponseFormat",
    "ThinkingBlock",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
]

# A raw field that is not there: the same object, so that asking for it costs nothing.
ABSENT: Final = Raw()


# -- requests -------------------------------------------------------------------------------------


class CacheControl(msgspec.Struct, gc=False):
    """A cache mark: Anthropic's `cache_control` (type), or OpenAI's `prompt_cache_breakpoint` (mode)."""

    type: str | None = None
    mode: str | None = None
    ttl: str | None = None


class _GoogleContent(msgspec.Struct, gc=False):
    thought_signature: str | None = None


class ExtraContent(msgspec.Struct, gc=False):
    """Google's way to say what Chat Completions has no field for."""

    google: _GoogleContent | None = None


class FunctionCall(msgspec.Struct, gc=False):
    """The called function; input: of a custom tool."""

    name: str = ""
    arguments: Raw = ABSENT
    input: Raw = ABSENT


class ToolCall(msgspec.Struct, gc=False):
    """A call in a message."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: FunctionCall | None = None
    extra_content: ExtraContent | None = None
    cache_control: CacheControl | None = None


class ReasoningDetail(msgspec.Struct, gc=False):
    """One of OpenRouter's `reasoning_details`. length: ours, see reasoning.py."""

    type: str = ""
    text: Raw = ABSENT
    summary: Raw = ABSENT
    data: str | None = None
    signature: str | None = None
    format: str | None = None
    id: str | None = None
    index: int | None = None
    length: int | None = None


class ThinkingBlock(msgspec.Struct, gc=False):
    """One of LiteLLM's `thinking_blocks`: Anthropic's."""

    type: str = ""
    thinking: Raw = ABSENT
    signature: str | None = None
    data: str | None = None


class Message(msgspec.Struct, gc=False):
    """A message of a request, of any role."""

    role: str
    content: Raw = ABSENT
    name: str | None = None
    tool_call_id: str | None = None
    cache_control: CacheControl | None = None
    # What only the assistant's have beside their content:
    tool_calls: list[ToolCall] | None = None
    refusal: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_details: list[ReasoningDetail] | None = None
    thinking_blocks: list[ThinkingBlock] | None = None
    extra_content: ExtraContent | None = None
    function_call: Raw = ABSENT
    audio: Raw = ABSENT
    images: Raw = ABSENT
    prefix: Raw = ABSENT  # Mistral's, DeepSeek's: the answer goes on with this text


class _ImageUrl(msgspec.Struct, gc=False):
    url: str
    detail: str | None = None


class _InputAudio(msgspec.Struct, gc=False):
    data: str
    format: str | None = None


class _File(msgspec.Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class Part(msgspec.Struct, gc=False):
    """A part of a message's content. Mistral's: thinking, a list of texts; document_url; image_url as a text."""

    type: str
    text: Raw = ABSENT
    refusal: Raw = ABSENT
    image_url: _ImageUrl | str | None = None
    document_url: str | None = None
    document_name: str | None = None
    input_audio: _InputAudio | None = None
    file: _File | None = None
    thinking: Raw = ABSENT
    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheControl | None = None


class Function(msgspec.Struct, gc=False):
    """A function that the model may call."""

    name: str
    description: Raw = ABSENT
    parameters: Raw = ABSENT
    strict: bool | None = None
    cache_control: CacheControl | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool that the model may call. type: may be left out (Mistral)."""

    type: str = "function"
    function: Function | None = None
    custom: Function | None = None
    cache_control: CacheControl | None = None


class FunctionName(msgspec.Struct, gc=False):
    """Names a function."""

    name: str


class ToolChoice(msgspec.Struct, gc=False):
    """A choice that is more than a word."""

    type: str
    function: FunctionName | None = None
    custom: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class _AllowedTool(msgspec.Struct, gc=False):
    type: str | None = None
    function: FunctionName | None = None
    custom: FunctionName | None = None


class AllowedTools(msgspec.Struct, gc=False):
    """The tools among which the model may choose. mode: "auto", "required"."""

    mode: str
    tools: list[_AllowedTool]


class _JsonSchema(msgspec.Struct, gc=False):
    name: str | None = None
    description: Raw = ABSENT
    schema: Raw = ABSENT
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, gc=False):
    """The form of the answer."""

    type: str
    json_schema: _JsonSchema | None = None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Reasoning(msgspec.Struct, gc=False):
    """OpenRouter's `reasoning`."""

    effort: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: str | None = None


class _Thinking(msgspec.Struct, gc=False):
    """`thinking` of DeepSeek, Z.ai and others."""

    type: str | None = None
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class RequestBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request. The raw fields are those of which only the presence counts, or that have several types."""

    messages: list[Message]
    model: str = ""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    reasoning: _Reasoning | None = None
    thinking: _Thinking | None = None
    tools: list[Tool] | None = None
    tool_choice: Raw = ABSENT
    parallel_tool_calls: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    verbosity: str | None = None
    cache_control: CacheControl | None = None
    modalities: list[str] | None = None
    store: bool | None = None
    # Old names of tools and tool_choice:
    functions: Raw = ABSENT
    function_call: Raw = ABSENT
    # Refused:
    audio: Raw = ABSENT
    web_search_options: Raw = ABSENT
    moderation: Raw = ABSENT
    # Dropped:
    logit_bias: Raw = ABSENT
    prediction: Raw = ABSENT
    metadata: Raw = ABSENT
    prompt_cache_options: Raw = ABSENT
    prompt_cache_retention: Raw = ABSENT


class LenientRequest(RequestBody, forbid_unknown_fields=False):
    """The same, with fields that nobody knows."""


# -- answers and chunks -----------------------------------------------------------------------------


class PromptDetails(msgspec.Struct, gc=False):
    """What of a prompt is not plain text."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """What of an answer is not plain text."""

    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


class ChatUsage(msgspec.Struct, gc=False):
    """Tokens, as all these servers count them. prompt_cache_hit_tokens: DeepSeek's. Mistral's: num_cached_tokens, and
    prompt_audio_seconds.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    num_cached_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_audio_seconds: Raw = ABSENT


class ReplyMessage(msgspec.Struct, gc=False):
    """The message of an answer. images: OpenRouter's. annotations: where its text is from."""

    audio: Raw = ABSENT
    images: Raw = ABSENT
    annotations: Raw = ABSENT
    content: Raw = ABSENT
    refusal: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_details: list[ReasoningDetail] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    extra_content: ExtraContent | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an answer. stop_reason: vLLM's: the string that it stopped at. error: OpenRouter's."""

    message: ReplyMessage | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int | None = None
    error: Raw = ABSENT


class Completion(msgspec.Struct, gc=False):
    """An answer, or an error in its place."""

    id: str | int | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Raw = ABSENT
    service_tier: str | None = None
    error: Raw = ABSENT


class _FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Raw = ABSENT


class ToolCallDelta(msgspec.Struct, gc=False):
    """A part of a call."""

    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None
    extra_content: ExtraContent | None = None


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to the message. audio, images, annotations: as in ReplyMessage."""

    audio: Raw = ABSENT
    images: Raw = ABSENT
    annotations: Raw = ABSENT
    content: Raw = ABSENT
    refusal: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_details: list[ReasoningDetail] | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: _FunctionDelta | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    """One choice of a chunk. message: of servers that write their answer at once, in place of a delta."""

    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    index: int | None = None
    error: Raw = ABSENT
    message: Raw = ABSENT


class _GroqUsage(msgspec.Struct, gc=False):
    usage: Raw = ABSENT


class Chunk(msgspec.Struct, gc=False):
    """An event of a stream."""

    id: str | int | None = None
    model: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: Raw = ABSENT
    service_tier: Raw = ABSENT
    x_groq: _GroqUsage | None = None
    error: Raw = ABSENT
