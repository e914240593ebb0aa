"""The fields of Anthropic's Messages that are read: requests, answers, events, errors. What is not here is skipped.

Blocks have one struct for all their types, and events too: a type that is not known is no error then. Texts, inputs
and schemas stay as they came (Raw).

Knows: names and types. Does not know: what they mean.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Raw, Struct

from velox.dialects.canonical.model import CacheMark

__all__ = [
    "ANSWER",
    "BILLING",
    "BLOCKS",
    "CITATION",
    "CITATIONS",
    "CITED",
    "ERROR",
    "EVENT",
    "FOUND",
    "NO_RAW",
    "REQUEST",
    "SEARCH_INPUT",
    "SOURCE",
    "STRICT_REQUEST",
    "STRING",
    "AnswerOut",
    "BlockIn",
    "BlockOut",
    "CitationOut",
    "DeltaOut",
    "ErrorBody",
    "ErrorOut",
    "EventOut",
    "KnownRequest",
    "MessageIn",
    "OutputConfig",
    "RequestIn",
    "SourceIn",
    "StopDetails",
    "Thinking",
    "ToolChoiceIn",
    "ToolIn",
    "UsageOut",
]

NO_RAW: Final = Raw(b"")
# How the first text of Claude Code's system prompt begins, as JSON: a note for Anthropic, another one in each request.
BILLING: Final = b'"x-anthropic-billing-header:'


# -- requests ---------------------------------------------------------------------------------------


class SourceIn(Struct, gc=False):
    """Where a picture or a document is. type: base64, url, file, text, content."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: Raw = NO_RAW


class Enabled(Struct, gc=False):
    """Of citations."""

    enabled: bool = False


class BlockIn(Struct, gc=False):
    """One block of a request, of any type. content: of a tool_result or search_result. citations: a list or object."""

    type: str
    text: Raw = NO_RAW
    cache_control: CacheMark | None = None
    citations: Raw = NO_RAW
    # tool_use
    id: str | None = None
    name: str | None = None
    input: Raw = NO_RAW
    # tool_result
    tool_use_id: str | None = None
    content: Raw = NO_RAW
    is_error: bool | None = None
    # thinking, redacted_thinking
    thinking: Raw = NO_RAW
    signature: str | None = None
    data: str | None = None
    # image, document; of a search_result a text
    source: Raw = NO_RAW
    title: str | None = None
    context: Raw = NO_RAW
    # tool_reference
    tool_name: str | None = None


class MessageIn(Struct, gc=False):
    """One message. content: a text or a list of blocks."""

    role: str
    content: Raw


class ToolIn(Struct, gc=False):
    """A tool. type: None or "custom" for a function of the client's; all others are Anthropic's.

    max_characters: of a text editor: the client cuts what it shows.
    """

    name: str = ""
    type: str | None = None
    description: Raw = NO_RAW
    input_schema: Raw = NO_RAW
    strict: bool | None = None
    cache_control: CacheMark | None = None
    defer_loading: bool | None = None
    input_examples: Raw = NO_RAW
    max_characters: Raw = NO_RAW
    # web_search
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    max_uses: int | None = None
    user_location: Raw = NO_RAW


class ToolChoiceIn(Struct, gc=False):
    """Which tools may or must be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, gc=False):
    """How the model is to reason. type: enabled, adaptive, disabled, between_tools."""

    type: str
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    display: str | None = None


class FormatIn(Struct, gc=False):
    """The form of the answer. type: "json_schema"."""

    type: str
    schema: Raw = NO_RAW


class OutputConfig(Struct, gc=False):
    """Effort and form."""

    effort: str | None = None
    format: FormatIn | None = None
    task_budget: Raw = NO_RAW


class Metadata(Struct, gc=False):
    """Of a request."""

    user_id: str | None = None


class RequestIn(Struct, gc=False):
    """A request to generate, or to count. Raw fields at the end: of Anthropic's own, which no other dialect has."""

    model: str
    messages: list[MessageIn]
    max_tokens: int | None = None
    system: Raw = NO_RAW
    stream: bool | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ToolChoiceIn | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: FormatIn | None = None
    metadata: Metadata | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    service_tier: str | None = None
    cache_control: CacheMark | None = None
    # refused where they have a value
    container: Raw = NO_RAW
    thread: Raw = NO_RAW
    # dropped where they have a value
    mcp_servers: Raw = NO_RAW
    context_management: Raw = NO_RAW
    compaction: Raw = NO_RAW
    speed: Raw = NO_RAW
    inference_geo: Raw = NO_RAW
    diagnostics: Raw = NO_RAW
    fallbacks: Raw = NO_RAW
    fallback_credit_token: Raw = NO_RAW
    billing_policy: Raw = NO_RAW
    # of the wire wrapper: betas and the version are headers elsewhere
    anthropic_version: Raw = NO_RAW
    anthropic_beta: Raw = NO_RAW
    betas: Raw = NO_RAW
    user_profile_id: Raw = NO_RAW
    workspace_id: Raw = NO_RAW


class KnownRequest(RequestIn, forbid_unknown_fields=True):
    """The same; a field that is not known is an error."""


STRICT_REQUEST: Final = msgspec.json.Decoder(KnownRequest)
REQUEST: Final = msgspec.json.Decoder(RequestIn)
BLOCKS: Final = msgspec.json.Decoder(list[BlockIn])
SOURCE: Final = msgspec.json.Decoder(SourceIn)
CITATIONS: Final = msgspec.json.Decoder(Enabled)
STRING: Final = msgspec.json.Decoder(str)


# -- answers and streams ----------------------------------------------------------------------------


class CacheCreation(Struct, gc=False):
    """Tokens written to the cache, by how long they stay."""

    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class OutputDetails(Struct, gc=False):
    """Of the tokens of the answer."""

    thinking_tokens: int | None = None


class UsageOut(Struct, gc=False):
    """input_tokens: without those that were read from the cache or written to it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    server_tool_use: Raw = NO_RAW


class BlockOut(Struct, gc=False):
    """One block of an answer, or what its event begins with."""

    type: str
    text: Raw = NO_RAW
    citations: Raw = NO_RAW
    id: str | None = None
    name: str | None = None
    input: Raw = NO_RAW
    thinking: Raw = NO_RAW
    signature: str | None = None
    data: str | None = None
    # web_search_tool_result
    content: Raw = NO_RAW
    tool_use_id: str | None = None


class CitationOut(Struct, gc=False):
    """Where a text of an answer has its words from. source: of a result of the client's own search."""

    type: str = ""
    url: str | None = None
    source: str | None = None
    title: str | None = None
    cited_text: Raw = NO_RAW


class FoundPage(Struct, gc=False):
    """A result of a search of the web, or its error."""

    type: str = ""
    url: str | None = None
    title: str | None = None


class SearchInput(Struct, gc=False):
    """What a search of the web looks for."""

    query: str = ""


class StopDetails(Struct, gc=False):
    """Why the model refused."""

    explanation: Raw = NO_RAW


class ErrorBody(Struct, gc=False):
    """What is wrong. type: of a closed list."""

    type: str = ""
    message: str = ""


class AnswerOut(Struct, gc=False):
    """A whole answer, or an error in its place."""

    type: str = "message"
    id: str = ""
    model: str = ""
    content: list[BlockOut] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None
    usage: UsageOut | None = None
    error: ErrorBody | None = None


class DeltaOut(Struct, gc=False):
    """What is new: of a block, or of the message."""

    type: str = ""
    text: Raw = NO_RAW
    partial_json: Raw = NO_RAW
    thinking: Raw = NO_RAW
    signature: str | None = None
    citation: Raw = NO_RAW
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class EventOut(Struct, gc=False):
    """One event of a stream, of any type."""

    type: str = ""
    index: int | None = None
    delta: DeltaOut | None = None
    content_block: BlockOut | None = None
    message: AnswerOut | None = None
    usage: UsageOut | None = None
    error: ErrorBody | None = None


class ErrorOut(Struct, gc=False):
    """An error's body."""

    error: ErrorBody | None = None


ANSWER: Final = msgspec.json.Decoder(AnswerOut)
EVENT: Final = msgspec.json.Decoder(EventOut)
ERROR: Final = msgspec.json.Decoder(ErrorOut)
CITATION: Final = msgspec.json.Decoder(CitationOut)
CITED: Final = msgspec.json.Decoder(list[CitationOut])
FOUND: Final = msgspec.json.Decoder(list[FoundPage])
SEARCH_INPUT: Final = msgspec.json.Decoder(SearchInput)
