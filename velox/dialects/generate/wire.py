"""What bodies of generateContent look like.

Google writes names in camelCase and reads them in snake_case too: a field of a request that has such a name stands
here twice, the second time with a trailing underscore. Any field may be null, which means absent.

Knows: names and types of fields. Does not know: what they mean.
Source: google-genai 3.4 (types.py, models.py), the REST reference of v1beta, proto3's JSON mapping.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, field

__all__ = [
    "ABSENT",
    "Blob",
    "Candidate",
    "Content",
    "Declaration",
    "Feedback",
    "FileData",
    "FunctionCall",
    "FunctionCalling",
    "FunctionResponse",
    "GenerateReply",
    "GenerationConfig",
    "InlineData",
    "ModalityCount",
    "Part",
    "PartialArg",
    "ReplyCall",
    "ReplyContent",
    "ReplyPart",
    "ResponsePart",
    "Status",
    "StatusDetail",
    "Thinking",
    "ToolConfig",
    "UsageMetadata",
    "as_object",
    "is_absent",
]

ABSENT: Final = Raw(b"")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


def is_absent(raw: Raw) -> bool:
    """True for a field that is not there, or null."""
    return not raw or (len(raw) == 4 and bytes(raw) == b"null")


def as_object(text: str) -> bytes | None:
    """Return a text that is a JSON object as bytes; None: it is something else, or nested too deeply."""
    try:
        found = text.encode()
        _OBJECT.decode(found)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found


# -- replies ------------------------------------------------------------------------------------------


class PartialArg(msgspec.Struct, rename="camel", gc=False):
    """A part of a call's arguments (Vertex, where a client asked for it). json_path: RFC 9535: "$.city", "$.a[0]"."""

    json_path: str | None = None
    string_value: str | None = None
    number_value: float | None = None
    bool_value: bool | None = None
    null_value: str | None = None
    will_continue: bool | None = None


class ReplyCall(msgspec.Struct, rename="camel", gc=False):
    """A call in an answer. args: an object."""

    id: str | None = None
    name: str | None = None
    args: Raw = ABSENT
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class ReplyPart(msgspec.Struct, rename="camel", gc=False):
    """A part of an answer. Of media, and of tools that Google runs itself, it is only known that they are there."""

    text: Raw = ABSENT
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: ReplyCall | None = None
    inline_data: Raw = ABSENT
    file_data: Raw = ABSENT
    executable_code: Raw = ABSENT
    code_execution_result: Raw = ABSENT
    tool_call: Raw = ABSENT
    tool_response: Raw = ABSENT


class Blob(msgspec.Struct, rename="camel", gc=False):
    """What a model has made that is no text. data: base64."""

    mime_type: str = ""
    data: str = ""


class ReplyContent(msgspec.Struct, gc=False):
    """The content of an answer."""

    parts: list[ReplyPart] | None = None


class Candidate(msgspec.Struct, rename="camel", gc=False):
    """One of the answers; others than the first are never asked for."""

    content: ReplyContent | None = None
    finish_reason: str | None = None
    finish_message: Raw = ABSENT
    grounding_metadata: Raw = ABSENT
    citation_metadata: Raw = ABSENT
    index: int | None = None


class UsageMetadata(msgspec.Struct, rename="camel", gc=False):
    """Tokens so far."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None
    service_tier: str | None = None
    traffic_type: str | None = None
    prompt_tokens_details: Raw = ABSENT
    cache_tokens_details: Raw = ABSENT
    candidates_tokens_details: Raw = ABSENT


class ModalityCount(msgspec.Struct, rename="camel", gc=False):
    """Tokens of one modality."""

    modality: str = ""
    token_count: int = 0


class Feedback(msgspec.Struct, rename="camel", gc=False):
    """Why there is no candidate at all."""

    block_reason: str | None = None
    block_reason_message: Raw = ABSENT


class StatusDetail(msgspec.Struct, rename="camel", gc=False):
    """A detail of an error. reason: of an ErrorInfo. retry_delay: of a RetryInfo: "34s", "0.5s"."""

    type: str | None = field(default=None, name="@type")
    reason: str | None = None
    retry_delay: str | None = None


class Status(msgspec.Struct, gc=False):
    """An error: google.rpc.Status."""

    code: int | None = None
    message: str | None = None
    status: str | None = None
    details: list[StatusDetail] | None = None


class GenerateReply(msgspec.Struct, rename="camel", gc=False):
    """An answer, or a chunk of a streamed one, or an error."""

    candidates: list[Candidate] | None = None
    usage_metadata: UsageMetadata | None = None
    prompt_feedback: Feedback | None = None
    response_id: str | None = None
    model_version: str | None = None
    error: Raw = ABSENT


# -- requests -----------------------------------------------------------------------------------------


class InlineData(msgspec.Struct, rename="camel", gc=False):
    """Bytes, in base64 of either alphabet."""

    data: str | None = None
    mime_type: str | None = None
    mime_type_: str | None = field(default=None, name="mime_type")
    display_name: str | None = None
    display_name_: str | None = field(default=None, name="display_name")


class FileData(msgspec.Struct, rename="camel", gc=False):
    """A file elsewhere. file_uri: gs:, https:, or of Google's Files API."""

    file_uri: str | None = None
    file_uri_: str | None = field(default=None, name="file_uri")
    mime_type: str | None = None
    mime_type_: str | None = field(default=None, name="mime_type")
    display_name: str | None = None
    display_name_: str | None = field(default=None, name="display_name")


class FunctionCall(msgspec.Struct, gc=False):
    """A call in the history."""

    id: str | None = None
    name: str | None = None
    args: Raw = ABSENT


class ResponsePart(msgspec.Struct, rename="camel", gc=False):
    """A picture or a file that a function returned."""

    inline_data: InlineData | None = None
    inline_data_: InlineData | None = field(default=None, name="inline_data")
    file_data: FileData | None = None
    file_data_: FileData | None = field(default=None, name="file_data")


class FunctionResponse(msgspec.Struct, gc=False):
    """What a function returned. response: an object."""

    id: str | None = None
    name: str | None = None
    response: Raw = ABSENT
    parts: list[ResponsePart] | None = None


class Part(msgspec.Struct, rename="camel", gc=False):
    """A part of a message. Those of type Raw are of tools that Google runs itself, and of media."""

    text: Raw = ABSENT
    thought: bool | None = None
    thought_signature: str | None = None
    thought_signature_: str | None = field(default=None, name="thought_signature")
    function_call: FunctionCall | None = None
    function_call_: FunctionCall | None = field(default=None, name="function_call")
    function_response: FunctionResponse | None = None
    function_response_: FunctionResponse | None = field(default=None, name="function_response")
    inline_data: InlineData | None = None
    inline_data_: InlineData | None = field(default=None, name="inline_data")
    file_data: FileData | None = None
    file_data_: FileData | None = field(default=None, name="file_data")
    executable_code: Raw = ABSENT
    executable_code_: Raw = field(default=ABSENT, name="executable_code")
    code_execution_result: Raw = ABSENT
    code_execution_result_: Raw = field(default=ABSENT, name="code_execution_result")
    tool_call: Raw = ABSENT
    tool_call_: Raw = field(default=ABSENT, name="tool_call")
    tool_response: Raw = ABSENT
    tool_response_: Raw = field(default=ABSENT, name="tool_response")
    video_metadata: Raw = ABSENT
    video_metadata_: Raw = field(default=ABSENT, name="video_metadata")
    media_resolution: Raw = ABSENT
    media_resolution_: Raw = field(default=ABSENT, name="media_resolution")


class Content(msgspec.Struct, gc=False):
    """A message. role: "user", "model"; "function" is an old name for who says a function's response."""

    role: str | None = None
    parts: list[Part] | None = None


class Declaration(msgspec.Struct, rename="camel", gc=False):
    """A function. parameters: Google's own kind of schema; parameters_json_schema: any JSON schema."""

    name: str | None = None
    description: Raw = ABSENT
    parameters: Raw = ABSENT
    parameters_json_schema: Raw = ABSENT
    parameters_json_schema_: Raw = field(default=ABSENT, name="parameters_json_schema")


class FunctionCalling(msgspec.Struct, rename="camel", gc=False):
    """Which functions may or must be called."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None
    allowed_function_names_: list[str] | None = field(default=None, name="allowed_function_names")


class ToolConfig(msgspec.Struct, rename="camel", gc=False):
    """How tools are used."""

    function_calling_config: FunctionCalling | None = None
    function_calling_config_: FunctionCalling | None = field(default=None, name="function_calling_config")


class Thinking(msgspec.Struct, rename="camel", gc=False):
    """How much the model thinks. thinking_budget: -1: as it likes; 0: not at all."""

    include_thoughts: bool | None = None
    include_thoughts_: bool | None = field(default=None, name="include_thoughts")
    thinking_budget: int | None = None
    thinking_budget_: int | None = field(default=None, name="thinking_budget")
    thinking_level: str | None = None
    thinking_level_: str | None = field(default=None, name="thinking_level")


class GenerationConfig(msgspec.Struct, rename="camel", gc=False):
    """How the answer is generated. Its names are put into camelCase before it is read. Numbers may be strings."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    candidate_count: int | None = None
    response_mime_type: str | None = None
    response_schema: Raw = ABSENT
    response_json_schema: Raw = ABSENT
    response_modalities: list[str] | None = None
    response_logprobs: bool | None = None
    thinking_config: Thinking | None = None
