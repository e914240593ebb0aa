"""Reads a client's request in Chat Completions into the canonical model.

Knows: the fields of a request, and which of them no other dialect has. Does not know: answers.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
    Content,
    Document,
    Format,
    Image,
    JsonText,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Refusal,
    Request,
    Role,
    Signature,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    WebSearch,
)
from velox.dialects.chat import wire
from velox.dialects.chat.reasoning import THOUGHT, id_without_thought, read_blocks, read_details
from velox.dialects.facts.openai_values import TIERS
from velox.dialects.json_text.decoding import checked_text, decode, decoded_request, is_given
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, decoded, is_blank, raw_text
from velox.dialects.media.data_urls import read_url
from velox.dialects.media.file_types import pictured, typed
from velox.dialects.tools.arguments import CUSTOM_SCHEMA, custom_arguments, read_arguments
from velox.dialects.tools.hosted import HostedTools
from velox.protocol.slices import let_go

__all__ = ["ChatRequestReader"]

_REQUEST: Final = msgspec.json.Decoder(wire.RequestBody)
_LENIENT: Final = msgspec.json.Decoder(wire.LenientRequest)
_PARTS: Final = msgspec.json.Decoder(list[wire.Part])
_CHOICE: Final = msgspec.json.Decoder(wire.ToolChoice)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_UNKNOWN: Final = "Object contains unknown field"

_FUNCTIONS: Final = msgspec.json.Decoder(list[wire.Function])
_FUNCTION_CALL: Final = msgspec.json.Decoder(wire.FunctionCall)
_FUNCTION_NAME: Final = msgspec.json.Decoder(wire.FunctionName)
_FUNCTION: Final = "function"  # the role, before there were ids of calls
_OF_TOOLS: Final = frozenset({"tool", _FUNCTION})
_CHOICES: Final = {
    "auto": Choice.AUTO,
    "none": Choice.NONE,
    "required": Choice.REQUIRED,
    "any": Choice.REQUIRED,  # Mistral's word
}
_PICTURES: Final = "image"  # OpenRouter's name of the modality
_CARRIED: Final = frozenset({"text", _PICTURES})
_WEB_SEARCH: Final = "web_search"  # Mistral's, and others'
_USER: Final = Role.USER  # an enum's member costs more to look up than a message to make
_ASSISTANT: Final = Role.ASSISTANT
_ROLES: Final = {"user": Role.USER, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_AS_IT_LIKES: Final = "default"  # Groq's word
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_REFUSED: Final = {
    "audio": "the model of this route does not answer with audio; leave audio out",
    "web_search_options": "the model of this route has no web search of this kind; leave web_search_options out",
    "moderation": "the model of this route does not moderate by this field; leave moderation out",
}
_DROPPED: Final = (
    "logit_bias",
    "prediction",
    "metadata",
    "prompt_cache_options",
    "prompt_cache_retention",
)
# The fields of both, the last of the struct, asked for in one call: few requests have any of them.
_N_USUAL: Final = wire.RequestBody.__struct_fields__.index("functions")
_NO_RARE: Final = astuple(wire.RequestBody([]))[_N_USUAL:]
# So for what a message of the assistant may have beside its content.
_N_BEFORE: Final = wire.Message.__struct_fields__.index("tool_calls")
_NOTHING_BESIDE: Final = astuple(wire.Message("assistant"))[_N_BEFORE:]
_QUOTE: Final = ord('"')
_BRACE: Final = ord("{")
# OpenAI's lifetimes of a cache mark -> the canonical model's; 30 minutes are its default.
_LIFETIMES: Final = {"12h": "1h", "30m": None}


class ChatRequestReader:
    """Reads one request. custom: the names of its custom tools; include_usage: a stream is to say the usage.

    is_old: it has `functions`, as Chat Completions had before tools, and so has its answer.
    """

    __slots__ = ("_dropped", "_has_made_pictures", "_hosted", "custom", "include_usage", "is_old")

    def __init__(self, dropped: DroppedFields) -> None:
        self._dropped: Final = dropped
        self._hosted: HostedTools | None = None  # few requests have any
        self.custom: Final[set[str]] = set()
        self._has_made_pictures = False  # a message of the assistant has some
        self.include_usage = False
        self.is_old = False

    def read(self, body: bytes | bytearray) -> Request:
        """Read the request. Raises BadRequestError."""
        return keeping_surrogates(self._request, checked_text(body))

    def _request(self, text: bytes) -> Request:
        try:
            given: wire.RequestBody = decode(_REQUEST, text)
        except msgspec.ValidationError as exc:
            if not str(exc).startswith(_UNKNOWN):
                _refuse_responses(text)
                decoded_request(_REQUEST, text)
            given = self._lenient(text)
        except (msgspec.DecodeError, RecursionError):
            given = decoded_request(_REQUEST, text)
        has_rare = astuple(given)[_N_USUAL:] != _NO_RARE
        if has_rare:
            self._refuse_rare(given)
        self._refuse(given)
        if has_rare:
            self._drop_rare(given)
        if given.store:
            self._dropped.drop("store")
        if given.stream_options is not None:
            self.include_usage = given.stream_options.include_usage is True
        max_tokens = given.max_completion_tokens
        stop = given.stop
        # Field by field: so many by name in one call cost four times as much.
        request = Request(given.model, self._messages(given.messages), given.stream is True)
        request.has_made_pictures = self._has_made_pictures
        request.wants_pictures = given.modalities is not None and _PICTURES in given.modalities
        if given.tools:
            request.tools = [tool for n, each in enumerate(given.tools) if (tool := self._tool(each, n)) is not None]
        if has_rare and (is_given(given.functions) or is_given(given.function_call)):
            self._read_old(given, request)
        if given.tool_choice is not wire.ABSENT:
            request.tool_choice = self._tool_choice(given.tool_choice)
        if self._hosted is not None:
            self._hosted.settle(request, "tool_choice")
        if given.parallel_tool_calls is not None:
            request.parallel_tools = given.parallel_tool_calls
        request.max_tokens = given.max_tokens if max_tokens is None else max_tokens
        request.temperature = given.temperature
        request.top_p = given.top_p
        request.top_k = given.top_k
        if stop is not None:
            request.stop = [stop] if isinstance(stop, str) else stop
        request.seed = given.seed
        request.presence_penalty = given.presence_penalty
        request.frequency_penalty = given.frequency_penalty
        if given.response_format is not None:
            request.format = _format(given.response_format)
        request.reasoning = _reasoning(given)
        request.user = given.safety_identifier if given.user is None else given.user
        if given.service_tier is not None:
            request.tier = TIERS.get(given.service_tier, given.service_tier)
        if given.cache_control is not None:
            request.cache = _mark(given.cache_control)
        request.cache_key = given.prompt_cache_key
        request.verbosity = given.verbosity
        let_go(given.messages)
        return request

    def _lenient(self, text: bytes) -> wire.RequestBody:
        """Read a request with unknown fields."""
        try:
            given = decoded_request(_LENIENT, text)
        except BadRequestError:
            _refuse_responses(text)
            raise
        for name in decoded_request(_FIELDS, text):
            if name not in wire.RequestBody.__struct_fields__:
                self._dropped.drop("unknown", name)
        return given

    def _refuse_rare(self, given: wire.RequestBody) -> None:
        for name, message in _REFUSED.items():
            if is_given(getattr(given, name)):
                raise BadRequestError(message, name)

    def _refuse(self, given: wire.RequestBody) -> None:
        if given.n is not None and given.n != 1:
            raise BadRequestError("the model of this route gives one answer; leave n out or set it to 1", "n")
        if given.logprobs or given.top_logprobs:
            message = "the model of this route gives no log probabilities; leave logprobs and top_logprobs out"
            raise BadRequestError(message, "logprobs" if given.logprobs else "top_logprobs")
        if given.modalities and not _CARRIED.issuperset(given.modalities):
            message = (
                "Velox carries only text and pictures over from the API of this model; leave others out, or ask one"
            )
            raise BadRequestError(f"{message} that has Chat Completions", "modalities")

    def _drop_rare(self, given: wire.RequestBody) -> None:
        for name in _DROPPED:
            if is_given(getattr(given, name)):
                self._dropped.drop(name)

    # -- messages -------------------------------------------------------------------------------------

    def _messages(self, given: list[wire.Message]) -> list[Message]:
        messages = []
        for n, each in enumerate(given):
            word, content = each.role, b"" + each.content  # half the time of bytes()
            is_text = content[0] == _QUOTE if content else False
            blocks: list[Block]
            if word == "assistant":
                role = _ASSISTANT
                is_text = is_text and content != EMPTY and astuple(each)[_N_BEFORE:] == _NOTHING_BESIDE
                blocks = [Text(content)] if is_text else self._assistant(each, content, n)
            elif word == "user" or word not in _OF_TOOLS:
                role = _USER if word == "user" else self._role(word, n)
                blocks = [Text(content)] if is_text else [*self._content(each, n)]
            else:
                role, is_text = _USER, False
                blocks = [self._tool_result(each, content, n)]
            if is_text and each.cache_control is None and each.name is None:
                messages.append(Message(role, blocks, None, None if is_blank(content) else content))
                continue
            if each.cache_control is not None and blocks:
                _set_mark(blocks[-1], _mark(each.cache_control))
            messages.append(Message(role, blocks, None if word in _OF_TOOLS else each.name))
        return messages

    def _role(self, word: str, n: int) -> Role:
        role = _ROLES.get(word)
        if role is None:
            message = "the role of a message is system, developer, user, assistant or tool"
            raise BadRequestError(message, f"messages[{n}].role")
        return role

    def _content(self, message: wire.Message, n: int) -> list[Content]:
        """Read the content of a message that is not the assistant's, and not a string."""
        path = f"messages[{n}].content"
        if not is_given(message.content):
            raise BadRequestError("a message of this role has a content", path)
        parts = decoded_request(_PARTS, message.content, path)
        found = []
        for k, part in enumerate(parts):
            block = self._part(part, f"{path}[{k}]")
            if isinstance(block, Thinking | Refusal):
                raise BadRequestError("a part of this type is the assistant's", f"{path}[{k}].type")
            found.append(block)
        return found

    def _part(self, part: wire.Part, path: str) -> Content | Thinking | Refusal:
        cache = _mark(part.cache_control) or _mark(part.prompt_cache_breakpoint)
        match part.type:
            case "text" | "input_text" | "output_text":
                return Text(_text(part.text, f"{path}.text"), cache)
            case "image_url" if part.image_url is not None:
                if isinstance(part.image_url, str):
                    return pictured(read_url(part.image_url), cache=cache)
                return pictured(read_url(part.image_url.url), part.image_url.detail, cache)
            case "input_audio" if part.input_audio is not None:
                sound = part.input_audio
                return Audio(Media(MediaKind.DATA, sound.data, f"audio/{sound.format or 'wav'}"), sound.format)
            case "file" if part.file is not None:
                return Document(_file(part, path), part.file.filename, cache=cache)
            case "document_url" if part.document_url is not None:
                return Document(typed(read_url(part.document_url), part.document_name), part.document_name, cache=cache)
            case "refusal":
                return Refusal(_text(part.refusal, f"{path}.refusal"))
            case "thinking":
                return Thinking(_thinking_text(part.thinking, f"{path}.thinking"))
            case "image_url" | "input_audio" | "file" | "document_url":
                raise BadRequestError(f"a part of type {part.type} has a field {part.type}", f"{path}.{part.type}")
        message = "parts of a message are of type text, image_url, input_audio, file or refusal"
        raise BadRequestError(message, f"{path}.type")

    def _assistant(self, message: wire.Message, content: bytes, n: int) -> list[Block]:
        if message.audio is not wire.ABSENT and is_given(message.audio):
            text = "an earlier answer in audio can't be sent to the model of this route; send its text"
            raise BadRequestError(text, f"messages[{n}].audio")
        calls = [self._call(each, n, k) for k, each in enumerate(message.tool_calls)] if message.tool_calls else []
        if message.function_call is not wire.ABSENT and is_given(message.function_call):
            old = decoded_request(_FUNCTION_CALL, message.function_call, f"messages[{n}].function_call")
            calls.append(ToolUse("", old.name, read_arguments(bytes(old.arguments))))
        said: list[Block] = []
        if content[:1] == b'"':
            if content != EMPTY:
                said.append(Text(content))
        elif content and content != b"null":
            path = f"messages[{n}].content"
            parts = decoded_request(_PARTS, message.content, path)
            said += [self._part(part, f"{path}[{k}]") for k, part in enumerate(parts)]
        if message.images is not wire.ABSENT and is_given(message.images):
            path = f"messages[{n}].images"
            made = decoded_request(_PARTS, message.images, path)
            said += [self._part(part, f"{path}[{k}]") for k, part in enumerate(made)]
            self._has_made_pictures = True
        if message.prefix is not wire.ABSENT and bytes(message.prefix) == b"true":
            self._dropped.drop("prefix")
        thoughts, signature = _thoughts(message, calls)
        if signature is not None:
            _sign(signature, said, calls)
        if message.refusal is not wire.ABSENT:
            refusal = raw_text(message.refusal)
            if refusal is not None and refusal != EMPTY:
                said.append(Refusal(refusal))
        return [*thoughts, *said, *calls] if thoughts or said else [*calls]

    def _call(self, call: wire.ToolCall, n: int, k: int) -> ToolUse:
        call_id, signature = call.id or "", None
        if THOUGHT in call_id:
            call_id, signature = id_without_thought(call_id)
        function = call.function
        if call.custom is not None:
            function = call.custom
            self.custom.add(function.name)
            arguments = custom_arguments(raw_text(function.input) or EMPTY)
        elif function is not None:
            arguments = read_arguments(bytes(function.arguments))
        if function is None or not function.name:
            message = "a tool call has a function with a name"
            raise BadRequestError(message, f"messages[{n}].tool_calls[{k}].function")
        if call.extra_content is not None:
            signature = _google(call.extra_content) or signature
        return ToolUse(call_id, function.name, arguments, signature, _mark(call.cache_control))

    def _tool_result(self, message: wire.Message, content: bytes, n: int) -> ToolResult:
        if message.role == _FUNCTION:
            if not message.name:
                raise BadRequestError("a message of role function has a name", f"messages[{n}].name")
            text = content if content[:1] == b'"' else EMPTY
            return ToolResult("", [Text(text)], message.name)
        if message.tool_call_id is None:
            raise BadRequestError("a message of role tool has a tool_call_id", f"messages[{n}].tool_call_id")
        call_id = message.tool_call_id
        if THOUGHT in call_id:
            call_id, _ = id_without_thought(call_id)
        if content[:1] == b'"':
            return ToolResult(call_id, [Text(content)], message.name)
        parts: list[Text | Image | Document] = []
        for k, part in enumerate(self._content(message, n) if is_given(message.content) else ()):
            if isinstance(part, Audio):
                raise BadRequestError("the result of a tool is text or pictures", f"messages[{n}].content[{k}].type")
            parts.append(part)
        return ToolResult(call_id, parts, message.name)

    # -- tools ----------------------------------------------------------------------------------------

    def _tool(self, tool: wire.Tool, n: int) -> Tool | None:
        function = tool.function
        if tool.type == "function" and function is not None:
            parameters = b"" + function.parameters
            mark = tool.cache_control or function.cache_control
            return Tool(
                function.name,
                raw_text(function.description),
                parameters if parameters and parameters[0] == _BRACE else None,
                function.strict,
                None if mark is None else _mark(mark),
            )
        if tool.type == "custom" and tool.custom is not None:
            self.custom.add(tool.custom.name)
            return Tool(tool.custom.name, raw_text(tool.custom.description), CUSTOM_SCHEMA)
        if tool.type in ("function", "custom"):
            raise BadRequestError(f"a tool of type {tool.type} has a field {tool.type}", f"tools[{n}].{tool.type}")
        hosted = self._hosted_tools()
        if tool.type.startswith(_WEB_SEARCH):
            hosted.add_search(WebSearch(), f"tools[{n}]")
        else:
            hosted.add_other(f"tools[{n}]")
        return None

    def _hosted_tools(self) -> HostedTools:
        if self._hosted is None:
            self._hosted = HostedTools(self._dropped, "tools.hosted")
        return self._hosted

    def _read_old(self, given: wire.RequestBody, request: Request) -> None:
        """Read `functions` and `function_call`, of which a model could call one at a time."""
        self.is_old = True
        if is_given(given.functions):
            functions = decoded_request(_FUNCTIONS, given.functions, "functions")
            tools = [self._tool(wire.Tool(function=each), n) for n, each in enumerate(functions)]
            request.tools = [*request.tools, *(tool for tool in tools if tool is not None)]
        request.parallel_tools = False
        if not is_given(given.function_call):
            return
        word = raw_text(given.function_call)
        if word is None:
            name = decoded_request(_FUNCTION_NAME, given.function_call, "function_call").name
            request.tool_choice = ToolChoice(Choice.TOOL, name)
        else:
            choice = _CHOICES.get(decoded(word))
            if choice is None:
                raise BadRequestError("function_call is none, auto or an object with a name", "function_call")
            request.tool_choice = ToolChoice(choice)

    def _tool_choice(self, raw: Raw) -> ToolChoice | None:
        if not is_given(raw):
            return None
        word = raw_text(raw)
        if word is not None:
            choice = _CHOICES.get(decoded(word))
            if choice is None:
                raise BadRequestError("tool_choice is none, auto, required or an object", "tool_choice")
            return ToolChoice(choice)
        given = decoded_request(_CHOICE, raw, "tool_choice")
        named = given.function or given.custom
        if given.type in ("function", "custom") and named is not None:
            return ToolChoice(Choice.TOOL, named.name)
        if given.type.startswith(_WEB_SEARCH):
            self._hosted_tools().must_call(given.type, is_search=True)
            return None
        if given.type == "allowed_tools" and given.allowed_tools is not None:
            tools = given.allowed_tools
            names = tuple(each.name for tool in tools.tools if (each := tool.function or tool.custom) is not None)
            choice = Choice.REQUIRED if tools.mode == "required" else Choice.AUTO
            return ToolChoice(choice, allowed=names)
        raise BadRequestError(
            "tool_choice is of type function, custom or allowed_tools, with a field so", "tool_choice"
        )


def _refuse_responses(text: bytes) -> None:
    """Say which path a body belongs to that has `input` in place of `messages`: Cursor and others mix them up."""
    try:
        names = _FIELDS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if "messages" not in names and "input" in names:
        message = "this is a request of OpenAI's Responses: send it to /v1/responses, or messages in place of input"
        raise BadRequestError(message, "messages")


def _thoughts(message: wire.Message, calls: list[ToolUse]) -> tuple[list[Thinking], Signature | None]:
    """Read the reasoning of a message; return it, and the signature of the text. Those of calls are put there."""
    text = None
    for raw in (message.reasoning_content, message.reasoning):
        if text is None and raw is not wire.ABSENT:
            text = raw_text(raw)
    if text == EMPTY:
        text = None
    signature = None if message.extra_content is None else _google(message.extra_content)
    if message.reasoning_details:
        thoughts, signatures = read_details(message.reasoning_details, text, {call.id for call in calls})
        for call in calls:
            call.signature = call.signature or signatures.get(call.id)
        return thoughts, signatures.get("") or signature
    if message.thinking_blocks:
        return read_blocks(message.thinking_blocks), signature
    return ([] if text is None else [Thinking(text)]), signature


def _text(raw: Raw, path: str) -> JsonText:
    text = raw_text(raw)
    if text is None:
        raise BadRequestError("a part of this type has a text", path)
    return text


def _thinking_text(raw: Raw, path: str) -> JsonText:
    """Read Mistral's: a list of texts."""
    text = raw_text(raw)
    if text is not None:
        return text
    parts = decoded_request(_PARTS, raw, path) if is_given(raw) else []
    return b'"' + b"".join(part[1:-1] for each in parts if (part := raw_text(each.text)) is not None) + b'"'


def _file(part: wire.Part, path: str) -> Media:
    file = part.file
    assert file is not None, "asked for files only"
    if file.file_id is not None:
        return Media(MediaKind.ID, file.file_id)
    if file.file_data is None:
        raise BadRequestError("a file has a file_data or a file_id", f"{path}.file")
    if file.file_data.startswith(("http:", "https:", "gs:", "s3:")):
        return Media(MediaKind.URL, file.file_data)  # OpenRouter takes these
    media = read_url(file.file_data)
    if media.kind is MediaKind.URL:
        media = Media(MediaKind.DATA, file.file_data)  # base64 alone
    return typed(media, file.filename)


def _mark(mark: wire.CacheControl | None) -> CacheMark | None:
    if mark is None:
        return None
    return CacheMark(_LIFETIMES.get(mark.ttl or "", mark.ttl))


def _set_mark(block: Block, mark: CacheMark | None) -> None:
    if not isinstance(block, Audio | Thinking | Refusal):
        block.cache = mark


def _google(extra: wire.ExtraContent) -> Signature | None:
    if extra.google is None or not extra.google.thought_signature:
        return None
    return Signature("google", extra.google.thought_signature)


def _sign(signature: Signature, said: list[Block], calls: list[ToolUse]) -> None:
    """Give a message's signature to what it is of: the first call, or the last text."""
    if calls and not any(isinstance(each, Text) for each in said):
        calls[0].signature = calls[0].signature or signature
        return
    texts = [each for each in said if isinstance(each, Text)]
    if not texts:
        texts = [Text(EMPTY)]
        said.append(texts[0])
    texts[-1].signature = signature


def _format(wanted: wire.ResponseFormat) -> Format | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Format()
    form = wanted.json_schema
    if wanted.type != "json_schema" or form is None:
        message = "response_format is of type text, json_object or json_schema, the last with a field json_schema"
        raise BadRequestError(message, "response_format.type")
    schema = bytes(form.schema)
    if schema[:1] != b"{":
        raise BadRequestError("json_schema has a schema, an object", "response_format.json_schema.schema")
    return Format(schema, form.name, raw_text(form.description), form.strict)


def _reasoning(given: wire.RequestBody) -> Reasoning | None:
    """Read how much is to be reasoned, by whichever of the fields says it."""
    effort, own, thinking = given.reasoning_effort, given.reasoning, given.thinking
    if effort is not None and effort not in _EFFORTS:
        if effort != _AS_IT_LIKES:
            message = "reasoning_effort is none, minimal, low, medium, high, xhigh or max"
            raise BadRequestError(message, "reasoning_effort")
        effort = None
    if own is not None:
        effort = own.effort if effort is None else effort
        summary = "omitted" if own.exclude else own.summary
        return Reasoning(effort, own.max_tokens, own.enabled, summary)
    if thinking is not None and thinking.type in ("enabled", "adaptive", "disabled"):
        return Reasoning(effort, thinking.budget_tokens, thinking.type != "disabled")
    return None if effort is None else Reasoning(effort)
