"""Reads requests of Gemini's clients into the canonical model.

Calls often have no ids: they get some by their place in the history, the same ones in every request of a conversation,
and a response without an id is that of the first open call of its name. A client that streams keeps each chunk as a
turn of its own: texts of the model that follow each other are one, and so are thoughts up to their signature.

Knows: what clients of generateContent send. Does not know: what a model takes.
Source: google-genai 3.4 (models.py, chats.py), REST reference of v1beta.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    Choice,
    Document,
    Format,
    Image,
    JsonText,
    JsonValue,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Request,
    Role,
    Signature,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    WebSearch,
)
from velox.dialects.canonical.model import Thinking as ThinkingBlock
from velox.dialects.canonical.signatures import NOBODY, is_redacted, untagged
from velox.dialects.generate.schema import SchemaError, json_schema
from velox.dialects.generate.wire import (
    Content,
    Declaration,
    FileData,
    FunctionCall,
    FunctionResponse,
    GenerationConfig,
    InlineData,
    Part,
    Thinking,
    ToolConfig,
    is_absent,
)
from velox.dialects.generate.words import GOOGLE
from velox.dialects.json_text.decoding import checked_text, decoded_request
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, joined, quoted, raw_text
from velox.dialects.media.file_types import typed
from velox.dialects.tools.hosted import HostedTools
from velox.dialects.tools.open_calls import OpenCalls
from velox.protocol.slices import let_go

__all__ = ["GenerateRequestReader", "camel"]

_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_CONTENTS: Final = msgspec.json.Decoder(list[Content] | None)
_SYSTEM: Final = msgspec.json.Decoder(Content | None)
_TOOLS: Final = msgspec.json.Decoder(list[dict[str, Raw]] | None)
_DECLARATIONS: Final = msgspec.json.Decoder(list[Declaration] | None)
_TOOL_CONFIG: Final = msgspec.json.Decoder(ToolConfig)
_CONFIG: Final = msgspec.json.Decoder(GenerationConfig, strict=False)
_STRING: Final = msgspec.json.Decoder(str)

# Signatures that say that there is none: as it is documented, and as SDKs send it, in base64.
_NO_SIGNATURE: Final = frozenset({"skip_thought_signature_validator", "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="})
_STANDARD_BASE64: Final = str.maketrans("-_", "+/")
# Google's Files API: what is there nobody else can read.
_FILES: Final = "https://generativelanguage.googleapis.com/"
_ROLES: Final = {
    None: Role.USER,
    "": Role.USER,
    "user": Role.USER,
    "function": Role.USER,
    "tool": Role.USER,
    "model": Role.ASSISTANT,
    "system": Role.SYSTEM,
}
_AUDIO: Final = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}
_TIERS: Final = {"standard": "default", "flex": "flex", "priority": "priority"}
_MODES: Final = {"AUTO": Choice.AUTO, "VALIDATED": Choice.AUTO, "ANY": Choice.REQUIRED, "NONE": Choice.NONE}

_SEARCH: Final = "googleSearch"
_MODE: Final = "toolConfig.functionCallingConfig.mode"
# Fields that only Gemini has. Those that an answer depends on are refused.
_DROPPED: Final = {
    "safetySettings": "safety_settings",
    "labels": "labels",
    "store": "store",
    "generationOutputConfig": "generation_output_config",
    "automaticContinuation": "automatic_continuation",
}
_REFUSED: Final = frozenset({"cachedContent", "modelArmorConfig", "continuationToken"})
_DROPPED_CONFIG: Final = {
    "logprobs": "logprobs",
    "mediaResolution": "media_resolution",
    "audioTimestamp": "audio_timestamp",
    "routingConfig": "routing_config",
    "modelSelectionConfig": "model_selection_config",
    "enableAffectiveDialog": "enable_affective_dialog",
    "enableEnhancedCivicAnswers": "enable_enhanced_civic_answers",
    "speechConfig": "speech_config",
    "imageConfig": "image_config",
    "audioTranscriptionConfig": "audio_transcription_config",
}
_REFUSED_CONFIG: Final = frozenset({"responseFormat", "translationConfig"})
_CONFIG_NAMES: Final = frozenset(field.encode_name for field in msgspec.structs.fields(GenerationConfig))


def camel(name: str) -> str:
    """Return a field's name in camelCase, as Google writes it."""
    if "_" not in name:
        return name
    first, *others = name.split("_")
    return first + "".join([each.capitalize() for each in others])


class GenerateRequestReader:
    """Reads one request. model, stream: of its path."""

    __slots__ = ("_dropped", "_grown", "_has_made_pictures", "_hosted", "_n_calls", "_open", "_pieces")

    def __init__(self, dropped: DroppedFields) -> None:
        self._dropped: Final = dropped
        self._hosted: HostedTools | None = None
        self._n_calls = 0
        self._open: Final[OpenCalls[str]] = OpenCalls()  # ids of calls without a response
        self._has_made_pictures = False  # a content of the model's has some
        self._grown: Text | ThinkingBlock | None = None  # a block whose text comes in pieces
        self._pieces: list[JsonText] = []

    def read(self, body: bytes | bytearray, model: str, stream: bool) -> Request:
        """Read the request. Raises BadRequestError."""

        def read(text: bytes) -> Request:
            self._hosted = None
            self._n_calls = 0
            self._open.clear()
            self._grown = None
            return self._request(text, model, stream)

        return keeping_surrogates(read, checked_text(body))

    def _request(self, body: bytes, model: str, stream: bool) -> Request:
        fields = {camel(name): value for name, value in decoded_request(_FIELDS, body).items()}
        request = Request(model, [], stream)
        for name, value in fields.items():
            if name == "contents" or is_absent(value):
                continue
            if name == "systemInstruction":
                request.messages = self._system(value)
            elif name == "tools":
                request.tools = self._tools(value)
            elif name == "toolConfig":
                request.tool_choice = self._choice(value)
            elif name == "generationConfig":
                self._config(value, request)
            elif name == "serviceTier":
                self._tier(value, request)
            elif name in _REFUSED:
                raise BadRequestError(f"{name} has no counterpart at this model's provider; leave it out", name)
            elif name != "model":
                self._dropped.drop(_DROPPED.get(name, "unknown"), name)
        if self._hosted is not None:
            self._hosted.settle(request, _MODE)
        if is_absent(fields.get("contents", Raw())):
            raise BadRequestError("contents is missing", "contents")
        messages = request.messages
        contents = decoded_request(_CONTENTS, fields["contents"], "contents") or []
        self._contents(contents, messages)
        let_go(contents)
        request.messages = [message for message in messages if message.blocks]
        request.has_made_pictures = self._has_made_pictures
        if not any(message.role is not Role.SYSTEM for message in request.messages):
            raise BadRequestError("contents has nothing that this model can read", "contents")
        return request

    # -- contents ----------------------------------------------------------------------------------

    def _system(self, raw: Raw) -> list[Message]:
        content = decoded_request(_SYSTEM, raw, "systemInstruction")
        blocks: list[Block] = []
        for n, part in enumerate((content.parts if content is not None else None) or ()):
            self._part(part, blocks, f"systemInstruction.parts[{n}]")
        return [Message(Role.SYSTEM, blocks)] if blocks else []

    def _contents(self, contents: list[Content], messages: list[Message]) -> None:
        for n, content in enumerate(contents):
            role = _ROLES.get(content.role)
            if role is None:
                raise BadRequestError('a role must be "user" or "model"', f"contents[{n}].role")
            is_model = role is Role.ASSISTANT
            if is_model and messages and messages[-1].role is role:
                blocks = messages[-1].blocks
            else:
                blocks = []
                messages.append(Message(role, blocks))
            for number, part in enumerate(content.parts or ()):
                if is_model and blocks and part.function_call is None and self._joins(part, blocks[-1]):
                    continue
                self._part(part, blocks, f"contents[{n}].parts[{number}]")
                if is_model and blocks and isinstance(blocks[-1], Image):
                    self._has_made_pictures = True
        self._join()

    def _joins(self, part: Part, last: Block) -> bool:
        """Put a part to the block before it, where both are one text or thought that came in pieces; say whether.

        Google wants a part with its signature back as it was: one is never joined to another.
        """
        text = raw_text(part.text)
        if text is None or not isinstance(last, Text | ThinkingBlock) or last.signature is not None:
            return False
        signature = _signature(part)
        if isinstance(last, Text):
            if part.thought or signature is not None:
                return False
        elif not part.thought or (signature is not None and signature.provider == GOOGLE):
            return False
        if self._grown is not last:
            self._join()
            self._grown, self._pieces = last, [last.text]
        self._pieces.append(text)
        last.signature = signature
        return True

    def _join(self) -> None:
        """Make one text of the pieces: all at once, as there may be thousands."""
        if self._grown is not None:
            self._grown.text, self._grown = joined(self._pieces, b""), None

    def _part(self, part: Part, blocks: list[Block], path: str) -> None:
        """Read a part into the blocks of a message. path: its place, for an error."""
        signature = _signature(part)
        text = raw_text(part.text)
        if text is not None:
            if part.thought:
                blocks.append(ThinkingBlock(text, signature, text == EMPTY and _is_redacted(part)))
            else:
                blocks.append(Text(text, signature=signature))
            return
        if not is_absent(part.text):
            raise BadRequestError("expected `str`", f"{path}.text")
        call = part.function_call or part.function_call_
        response = part.function_response or part.function_response_
        inline = part.inline_data or part.inline_data_
        file = part.file_data or part.file_data_
        if call is not None:
            blocks.append(self._call(call, signature, path))
        elif response is not None:
            blocks.append(self._response(response, path))
        elif inline is not None:
            blocks.append(_inline(inline, path))
        elif file is not None:
            blocks.append(_file(file, path))
        elif part.thought and signature is not None:
            blocks.append(ThinkingBlock(EMPTY, signature, _is_redacted(part)))
        else:
            self._lost_part(part, path)
        if part.video_metadata or part.video_metadata_:
            self._dropped.drop("video_metadata", path)
        if part.media_resolution or part.media_resolution_:
            self._dropped.drop("media_resolution", path)

    def _lost_part(self, part: Part, path: str) -> None:
        """Drop what tools that Google ran itself have said."""
        for raw, name in (
            (part.executable_code or part.executable_code_, "executable_code"),
            (part.code_execution_result or part.code_execution_result_, "code_execution_result"),
            (part.tool_call or part.tool_call_, "tool_call"),
            (part.tool_response or part.tool_response_, "tool_response"),
        ):
            if raw:
                self._dropped.drop(name, path)
                return
        if _signature(part) is None:
            self._dropped.drop("unknown", path)

    def _call(self, call: FunctionCall, signature: Signature | None, path: str) -> ToolUse:
        if not call.name:
            raise BadRequestError("a function call needs a name", f"{path}.functionCall.name")
        arguments = b"{}" if is_absent(call.args) else bytes(call.args)
        if not arguments.startswith(b"{"):
            raise BadRequestError("expected `object`", f"{path}.functionCall.args")
        self._n_calls += 1
        call_id = call.id or f"call_{self._n_calls}"
        self._open.add(call_id, call.name, call_id)
        return ToolUse(call_id, call.name, arguments, signature)

    def _response(self, response: FunctionResponse, path: str) -> ToolResult:
        text, is_error = _result(response.response, f"{path}.functionResponse.response")
        parts: list[Text | Image | Document] = [] if text is None else [Text(text)]
        for n, part in enumerate(response.parts or ()):
            inline, file = part.inline_data or part.inline_data_, part.file_data or part.file_data_
            place = f"{path}.functionResponse.parts[{n}]"
            block = _inline(inline, place) if inline is not None else _file(file, place) if file is not None else None
            if isinstance(block, Image | Document):
                parts.append(block)
            else:
                self._dropped.drop("unknown" if block is None else "audio", place)
        return ToolResult(self._call_id(response), parts, response.name, is_error)

    def _call_id(self, response: FunctionResponse) -> str:
        """Return the id of the call that a response is for."""
        found = self._open.take(response.id) if response.id else self._open.take_named(response.name or "")
        return found or response.id or f"call_{response.name}"

    # -- tools -------------------------------------------------------------------------------------

    def _tools(self, raw: Raw) -> list[Tool]:
        tools = []
        for n, each in enumerate(decoded_request(_TOOLS, _as_list(raw), "tools") or ()):
            for key, value in each.items():
                name = camel(key)
                if name == "functionDeclarations":
                    place = f"tools[{n}].functionDeclarations"
                    declarations = decoded_request(_DECLARATIONS, _as_list(value), place) or ()
                    tools += [_tool(found, f"{place}[{at}]") for at, found in enumerate(declarations)]
                elif not is_absent(value):
                    self._hosted = self._hosted or HostedTools(self._dropped, "tools.hosted")
                    if name == _SEARCH:
                        self._hosted.add_search(WebSearch(), f"tools[{n}].{name}")
                    else:
                        self._hosted.add_other(f"tools[{n}].{name}")
        return tools

    def _choice(self, raw: Raw) -> ToolChoice | None:
        config = decoded_request(_TOOL_CONFIG, raw, "toolConfig")
        calling = config.function_calling_config or config.function_calling_config_
        if calling is None or calling.mode is None or calling.mode.upper() == "MODE_UNSPECIFIED":
            return None
        choice = _MODES.get(calling.mode.upper())
        if choice is None:
            raise BadRequestError("expected AUTO, ANY, NONE or VALIDATED", _MODE)
        allowed = tuple(calling.allowed_function_names or calling.allowed_function_names_ or ())
        if choice is Choice.REQUIRED and len(allowed) == 1:
            return ToolChoice(Choice.TOOL, allowed[0])
        return ToolChoice(choice, allowed=() if choice is Choice.NONE else allowed)

    # -- the rest ----------------------------------------------------------------------------------

    def _config(self, raw: Raw, request: Request) -> None:
        fields = decoded_request(_FIELDS, raw, "generationConfig")
        names = {camel(name): value for name, value in fields.items()}
        for name, value in names.items():
            if name in _CONFIG_NAMES or is_absent(value):
                continue
            path = f"generationConfig.{name}"
            if name in _REFUSED_CONFIG:
                raise BadRequestError(f"{name} has no counterpart at this model's provider; leave it out", path)
            self._dropped.drop(_DROPPED_CONFIG.get(name, "unknown"), path)
        text = bytes(raw) if names.keys() == fields.keys() else msgspec.json.encode(names)
        config = decoded_request(_CONFIG, text, "generationConfig")
        request.max_tokens = config.max_output_tokens
        request.temperature = config.temperature
        request.top_p = config.top_p
        request.top_k = int(config.top_k) if config.top_k is not None else None
        request.stop = config.stop_sequences or []
        request.seed = config.seed
        request.presence_penalty = config.presence_penalty
        request.frequency_penalty = config.frequency_penalty
        self._refuse(config)
        request.format = _format(config)
        if config.thinking_config is not None:
            request.reasoning = _reasoning(config.thinking_config)

    def _refuse(self, config: GenerationConfig) -> None:
        """Refuse what would change the answer."""
        if config.candidate_count is not None and config.candidate_count > 1:
            raise BadRequestError("only one candidate can be had from this model", "generationConfig.candidateCount")
        if config.response_logprobs:
            raise BadRequestError("this model's provider has no logprobs", "generationConfig.responseLogprobs")
        for modality in config.response_modalities or ():
            if modality.upper() not in ("TEXT", "MODALITY_UNSPECIFIED"):
                message = "the model of this route is not asked for pictures or sound; ask for TEXT, or one of Gemini's"
                raise BadRequestError(message, "generationConfig.responseModalities")

    def _tier(self, raw: Raw, request: Request) -> None:
        name = decoded_request(_STRING, raw, "serviceTier").lower().removeprefix("service_tier_")
        if name not in ("unspecified", ""):
            request.tier = _TIERS.get(name)
            if request.tier is None:
                self._dropped.drop("tier", "serviceTier")


def _as_list(raw: Raw) -> Raw:
    """Return a list: Google takes its only item in its place."""
    return Raw(b"[%b]" % bytes(raw)) if bytes(raw).startswith(b"{") else raw


def _signature(part: Part) -> Signature | None:
    value = part.thought_signature or part.thought_signature_
    if not value or value in _NO_SIGNATURE:
        return None
    signature = untagged(value, GOOGLE)
    return None if signature.provider == NOBODY else signature


def _is_redacted(part: Part) -> bool:
    value = part.thought_signature or part.thought_signature_
    return bool(value) and is_redacted(value or "")


def _inline(inline: InlineData, path: str) -> Image | Audio | Document:
    kind = inline.mime_type or inline.mime_type_
    if not inline.data or not kind:
        raise BadRequestError("inline data needs data and a mimeType", f"{path}.inlineData")
    source = Media(MediaKind.DATA, inline.data.translate(_STANDARD_BASE64), kind)
    return _media(source, inline.display_name or inline.display_name_)


def _file(file: FileData, path: str) -> Image | Audio | Document:
    uri = file.file_uri or file.file_uri_
    if not uri:
        raise BadRequestError("a file needs its fileUri", f"{path}.fileData.fileUri")
    kind = MediaKind.ID if uri.startswith(_FILES) else MediaKind.URL
    return _media(Media(kind, uri, file.mime_type or file.mime_type_), file.display_name or file.display_name_)


def _media(source: Media, name: str | None) -> Image | Audio | Document:
    source = typed(source, name)
    kind = source.type or ""
    if kind.startswith("image/"):
        return Image(source)
    if kind.startswith("audio/"):
        return Audio(source, _AUDIO.get(kind, kind.removeprefix("audio/")))
    return Document(source, name)


def _result(raw: Raw, path: str) -> tuple[JsonText | None, bool]:
    """Return what a function returned as a text, and whether it is an error.

    Google's documentation wants results in `output` and errors in `error`; any other object is a text of its own.
    """
    if is_absent(raw):
        return None, False
    fields = decoded_request(_FIELDS, raw, path)
    if len(fields) == 1:
        for name in ("output", "error"):
            value = fields.get(name)
            if value is not None and (name == "error" or raw_text(value) is not None):
                return raw_text(value) or quoted(bytes(value).decode()), name == "error"
    return quoted(bytes(raw).decode()), False


def _tool(found: Declaration, path: str) -> Tool:
    if not found.name:
        raise BadRequestError("a function needs a name", f"{path}.name")
    description = raw_text(found.description)
    raw = found.parameters_json_schema or found.parameters_json_schema_
    if not is_absent(raw):
        return Tool(found.name, description, bytes(raw))
    if is_absent(found.parameters):
        return Tool(found.name, description)
    return Tool(found.name, description, _standard(found.parameters, f"{path}.parameters"))


def _standard(raw: Raw, path: str) -> JsonValue:
    try:
        return json_schema(bytes(raw))
    except SchemaError as exc:
        raise BadRequestError(str(exc), path) from exc


def _format(config: GenerationConfig) -> Format | None:
    kind = (config.response_mime_type or "").lower()
    if not is_absent(config.response_json_schema):
        return Format(bytes(config.response_json_schema))
    if not is_absent(config.response_schema):
        if kind not in ("", "application/json"):
            raise BadRequestError(
                "this model can't answer with a bare enum; ask for application/json",
                "generationConfig.responseMimeType",
            )
        return Format(_standard(config.response_schema, "generationConfig.responseSchema"))
    if kind in ("", "text/plain"):
        return None
    if kind != "application/json":
        raise BadRequestError("expected text/plain or application/json", "generationConfig.responseMimeType")
    return Format()


def _reasoning(thinking: Thinking) -> Reasoning | None:
    shown = thinking.include_thoughts if thinking.include_thoughts is not None else thinking.include_thoughts_
    budget = thinking.thinking_budget if thinking.thinking_budget is not None else thinking.thinking_budget_
    level = (thinking.thinking_level or thinking.thinking_level_ or "").lower()
    summary = None if shown is None else "auto" if shown else "omitted"
    if level and level != "thinking_level_unspecified":
        return Reasoning(effort=level, summary=summary)
    if budget is None:
        return Reasoning(summary=summary) if summary is not None else None
    if budget <= 0:
        return Reasoning(enabled=budget < 0, summary=summary)
    return Reasoning(budget_tokens=budget, summary=summary)
