"""Reads a client's request in Responses into the canonical model.

Items become messages: what the assistant said, thought and called one after the other is one message, and so are the
results of tools. Instructions are a system message before all others.

Knows: the fields of a request, and which of them no other dialect has. Does not know: answers.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, UnknownPreviousError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
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
    ToolChoice,
    ToolResult,
    ToolUse,
)
from velox.dialects.canonical.signatures import is_redacted, untagged
from velox.dialects.facts.openai_values import TIERS
from velox.dialects.json_text.decoding import checked_text, decode, decoded_request, is_given
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted, raw_text
from velox.dialects.media.data_urls import read_url
from velox.dialects.media.file_types import pictured, typed
from velox.dialects.responses import wire
from velox.dialects.responses.compaction import COMPACTED_TYPES, PROMPT, TRIGGER, summary_message
from velox.dialects.responses.sources import OWN_SEARCH, SEARCH_CALL, SOURCES
from velox.dialects.responses.tools import (
    APPLY_PATCH,
    LOCAL_SHELL,
    SHELL,
    TOOL_SEARCH,
    WEB_SEARCH,
    ClientTools,
    ToolKind,
)
from velox.dialects.tools.arguments import custom_arguments, read_arguments
from velox.protocol.slices import let_go

__all__ = ["ResponsesRequestReader"]

_REQUEST: Final = msgspec.json.Decoder(wire.RequestBody)
_LENIENT: Final = msgspec.json.Decoder(wire.LenientRequest)
_STRING: Final = msgspec.json.Decoder(wire.StringInput)
_PARTS: Final = msgspec.json.Decoder(list[wire.Part])
_TOOLS: Final = msgspec.json.Decoder(list[wire.Tool])
_CHOICE: Final = msgspec.json.Decoder(wire.ToolChoice)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_REASONING: Final = msgspec.json.Decoder(wire.ReasoningConfig)
_TEXT: Final = msgspec.json.Decoder(wire.TextConfig)
_UNKNOWN: Final = "Object contains unknown field"

_USER: Final = Role.USER  # an enum's member costs more to look up than a message to make
_ASSISTANT: Final = Role.ASSISTANT
_SYSTEM: Final = Role.SYSTEM
_ROLES: Final = {"user": _USER, "assistant": _ASSISTANT, "system": _SYSTEM, "developer": _SYSTEM}
_CHOICES: Final = {"auto": Choice.AUTO, "none": Choice.NONE, "required": Choice.REQUIRED}
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
# OpenAI's lifetimes of a cache mark -> the canonical model's; 30 minutes are its default.
_LIFETIMES: Final = {"12h": "1h", "30m": None}
_PREVIOUS: Final = "previous_response_id"
_REFUSED: Final = {
    _PREVIOUS: "this answer is not known here, or no longer; send the whole conversation as input, "
    "without previous_response_id",
    "conversation": "conversations are not kept here for the model of this route; go on by previous_response_id, or "
    "send the whole conversation as input",
    "prompt": "a stored prompt can't be read for the model of this route; send its text as instructions and input",
    "moderation": "the model of this route does not moderate by this field; leave moderation out",
}
_DROPPED: Final = (
    "access_programs",
    "background_options",
    "client_metadata",
    "context_management",
    "image",
    "max_tool_calls",
    "metadata",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream_id",
)
# Tools without a name of their own: one is forced by its type.
_CHOSEN_BY_TYPE: Final = frozenset({LOCAL_SHELL, SHELL, APPLY_PATCH})
# What tools left that OpenAI runs, and what it asked or told of itself: the answer that they led to is a message beside
# them.
_HOSTED: Final = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "tool_search_call", "program", "program_output"),
        *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    }
)
_ENCRYPTED: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = "message.output_text.logprobs"
_SEALED: Final = "this compacted conversation can be read by its provider only; send the conversation itself"
_REFERENCE: Final = "item_reference"
_NOT_KEPT: Final = (
    "this item is not known here, or no longer; send the item itself (in clients that keep nothing: `store: false`)"
)


class ResponsesRequestReader:
    """Reads one request. tools: what its functions stand for. given, body: the request as it came, after reading;
    the former without its input.

    compacts: the answer is to be a summary of the conversation (compaction.py). keeps: answers are kept here.
    """

    def __init__(self, dropped: DroppedFields, *, compacts: bool = False, keeps: bool = False) -> None:
        self.compacts = compacts
        self._keeps: Final = keeps
        self._dropped: Final = dropped
        self.tools: Final = ClientTools(dropped)
        self.given = wire.RequestBody()
        self.body = b"{}"
        self._messages: list[Message] = []
        self._has_made_pictures = False  # a message of the assistant has some
        self._signatures: dict[str, Thinking] = {}  # by id: some are of calls, which have items of their own for them
        # Blocks of a message, how many of them were looked at, and the last text of those.
        self._seen_texts: tuple[list[Block] | None, int, Text | None] = None, 0, None
        # As the input has changed them last; None: it has not.
        self._effort: str | None = None
        self._text: wire.TextConfig | None = None

    def read(self, body: bytes | bytearray) -> Request:
        """Read the request. Raises BadRequestError."""
        self.body = checked_text(body)
        request, self.given = keeping_surrogates(self._request, self.body)
        # The reader lives as long as the exchange: what is let go at its end may not grow with the request.
        if isinstance(self.given.input, list):
            let_go(self.given.input)
        self.given.input, self._messages = None, []
        self._seen_texts = None, 0, None
        return request

    def _request(self, text: bytes) -> tuple[Request, wire.RequestBody]:
        try:
            given: wire.RequestBody = decode(_REQUEST, text)
        except msgspec.ValidationError as exc:
            if not str(exc).startswith(_UNKNOWN):
                decoded_request(_REQUEST, text)
            given = self._lenient(text)
        except (msgspec.DecodeError, RecursionError):
            given = decoded_request(_REQUEST, text)
        self._refuse(given)
        self._drop(given)
        self._messages = []
        if given.tools is not None:
            self.tools.declare(given.tools, "tools")
        if given.instructions is not wire.ABSENT:
            self._instructions(given.instructions)
        if isinstance(given.input, str):
            string = bytes(decoded_request(_STRING, text).input)
            self._messages.append(Message(_USER, [Text(string)]))
        else:
            self._input(given.input)
        if self.compacts:
            self._messages.append(Message(_USER, [Text(PROMPT)]))
        request = Request(
            model=given.model,
            messages=self._messages,
            stream=given.stream is True,
            tools=self.tools.tools,
            tool_choice=self._choice(given.tool_choice),
            parallel_tools=given.parallel_tool_calls,
            max_tokens=given.max_output_tokens,
            temperature=given.temperature,
            top_p=given.top_p,
            format=None if self.compacts else _format(self._text or given.text),
            reasoning=_reasoning(given.reasoning, self._effort),
            user=given.safety_identifier if given.user is None else given.user,
            tier=TIERS.get(given.service_tier or "", given.service_tier),
            cache_key=given.prompt_cache_key,
            verbosity=None if given.text is None else given.text.verbosity,
        )
        request.has_made_pictures = self._has_made_pictures
        if not self.compacts and not self.tools.hosted.is_empty:
            self.tools.hosted.settle(request, "tool_choice")
        return request, given

    def _lenient(self, text: bytes) -> wire.RequestBody:
        """Read a request with unknown fields."""
        given = decoded_request(_LENIENT, text)
        for name in decoded_request(_FIELDS, text):
            if name not in wire.RequestBody.__struct_fields__:
                self._dropped.drop("unknown", name)
        return given

    def _refuse(self, given: wire.RequestBody) -> None:
        for name, message in _REFUSED.items():
            raw = getattr(given, name)
            if raw is not wire.ABSENT and is_given(raw):
                raise UnknownPreviousError(message) if name == _PREVIOUS else BadRequestError(message, name)
        if given.background and not self._keeps:
            message = "the model of this route does not answer in the background; leave background out"
            raise BadRequestError(message, "background")
        if given.top_logprobs or (given.include is not None and _LOGPROBS in given.include):
            message = f"the model of this route gives no log probabilities; leave top_logprobs and {_LOGPROBS} out"
            raise BadRequestError(message, "top_logprobs" if given.top_logprobs else "include")

    def _drop(self, given: wire.RequestBody) -> None:
        for name in _DROPPED:
            raw = getattr(given, name)
            if raw is not wire.ABSENT and is_given(raw) and not (name == "metadata" and self._is_kept(given)):
                self._dropped.drop(name)
        if given.store and not self._is_kept(given):
            self._dropped.drop("store")
        if given.truncation not in (None, "disabled"):
            self._dropped.drop("truncation")
        if given.include is not None and any(each not in (_ENCRYPTED, SOURCES) for each in given.include):
            self._dropped.drop("include")

    def _is_kept(self, given: wire.RequestBody) -> bool:
        return self._keeps and given.store is not False

    # -- items ----------------------------------------------------------------------------------------

    def _instructions(self, raw: Raw) -> None:
        text = raw_text(raw)
        if text is None:
            if is_given(raw):
                raise BadRequestError("instructions are a string", "instructions")
        elif text != EMPTY:
            self._messages.append(Message(_SYSTEM, [Text(text)]))

    def _input(self, items: list[wire.InputItem] | None) -> None:
        if items is None:
            if "messages" in decoded_request(_FIELDS, self.body):
                message = "this is a request of Chat Completions: send it to /v1/chat/completions"
                raise BadRequestError(message, "input")
            raise BadRequestError("a request has an input: a string or a list of items", "input")
        self._signatures = {}
        self._seen_texts = None, 0, None
        self._has_made_pictures = False
        self._effort = self._text = None
        said: set[str | None] | None = None  # ids of the items that are there themselves; known once one is referred to
        for n, item in enumerate(items):
            kind = item.type
            if kind == "message" or (kind is None and (item.role is not None or item.id is None)):
                self._message(item, n)
            elif kind == _REFERENCE or kind is None:
                # It is left out, if it is there: what else is kept stands in the input by now.
                if said is None:
                    said = {each.id for each in items if each.type not in (None, _REFERENCE)}
                if item.id not in said:
                    raise BadRequestError(_NOT_KEPT, f"input[{n}].id")
            elif kind == TRIGGER:
                if n != len(items) - 1:
                    raise BadRequestError("compaction_trigger is the last item of the input", f"input[{n}]")
                self.compacts = True
            else:
                self._item(item, kind, n)
        if self._signatures:
            self._sign_calls()

    def _message(self, item: wire.InputItem, n: int) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            message = "the role of a message is system, developer, user or assistant"
            raise BadRequestError(message, f"input[{n}].role")
        content = bytes(item.content)
        blocks: list[Block] = []
        if content[:1] == b'"':
            blocks.append(Text(content))
        elif content and content != b"null":
            path = f"input[{n}].content"
            parts = decoded_request(_PARTS, item.content, path)
            blocks += [_part(part, f"{path}[{k}]") for k, part in enumerate(parts)]
        else:
            raise BadRequestError("a message has a content", f"input[{n}].content")
        last = self._messages[-1] if self._messages else None
        if role is _ASSISTANT and last is not None and last.role is role and not _ends_with_text(last):
            last.blocks += blocks
        else:
            self._messages.append(Message(role, blocks))

    def _item(self, item: wire.InputItem, kind: str, n: int) -> None:
        path = f"input[{n}]"
        match kind:
            case "function_call":
                function = self.tools.function(_name(item, path), item.namespace)
                self._said(ToolUse(_call_id(item, path), function, read_arguments(bytes(item.arguments))))
            case "custom_tool_call":
                function = self.tools.function(_name(item, path), item.namespace, ToolKind.CUSTOM)
                text = raw_text(item.input) or EMPTY
                self._said(ToolUse(_call_id(item, path), function, custom_arguments(text)))
            case "function_call_output" | "custom_tool_call_output":
                self._result(ToolResult(_call_id(item, path), _output(item, path), item.name))
            case "reasoning":
                self._reason(item, path)
            case "local_shell_call" | "shell_call" | "apply_patch_call":
                name = kind.removesuffix("_call")
                action = bytes(item.operation if name == APPLY_PATCH else item.action)
                call_id = item.call_id or item.id or ""
                self._said(ToolUse(call_id, self.tools.function(name, kind=ToolKind(name)), read_arguments(action)))
            case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output":
                self._result(ToolResult(item.call_id or item.id or "", _output(item, path)))
            case "tool_search_call" if item.call_id is not None and item.execution != "server":
                function = self.tools.function(TOOL_SEARCH, kind=ToolKind.TOOL_SEARCH)
                self._said(ToolUse(item.call_id, function, read_arguments(bytes(item.arguments))))
            case "tool_search_output" | "additional_tools":
                self._found_tools(item, path)
            case "configuration_update":
                if is_given(item.reasoning):
                    self._effort = decoded_request(_REASONING, item.reasoning, f"{path}.reasoning").effort
                if is_given(item.text):
                    self._text = decoded_request(_TEXT, item.text, f"{path}.text")
            case "image_generation_call" if item.result:
                self._said(Image(Media(MediaKind.DATA, item.result, f"image/{item.output_format or 'png'}")))
                self._has_made_pictures = True
            case _ if kind in COMPACTED_TYPES:
                summary = summary_message(item.encrypted_content)
                if summary is None:
                    raise BadRequestError(_SEALED, path)
                self._messages.append(Message(_USER, [Text(summary)]))
            case _:
                if kind not in _HOSTED:
                    message = f"an item of type {kind!r} can't be put into the API of this route's model; leave it out"
                    raise BadRequestError(message, f"{path}.type")
                if not (kind == SEARCH_CALL and (item.id or "").startswith(OWN_SEARCH)):  # else no model has read it
                    self._dropped.drop("input.hosted", path)

    def _found_tools(self, item: wire.InputItem, path: str) -> None:
        """Read tools that came to be known within the conversation."""
        if is_given(item.tools):
            tools = decoded_request(_TOOLS, item.tools, f"{path}.tools")
            self.tools.declare(tools, f"{path}.tools")
        if item.type == "tool_search_output" and item.call_id is not None and item.execution != "server":
            found = quoted((bytes(item.tools) or b"[]").decode("utf-8", "surrogatepass"))
            self._result(ToolResult(item.call_id, [Text(found)]))

    def _said(self, block: Thinking | ToolUse | Image) -> None:
        """Add what the assistant did to its message."""
        messages = self._messages
        if not messages or messages[-1].role is not _ASSISTANT:
            messages.append(Message(_ASSISTANT, []))
        messages[-1].blocks.append(block)

    def _result(self, result: ToolResult) -> None:
        messages = self._messages
        last = messages[-1] if messages else None
        if last is not None and last.role is _USER and last.blocks and isinstance(last.blocks[-1], ToolResult):
            last.blocks.append(result)
        else:
            messages.append(Message(_USER, [result]))

    # -- reasoning --------------------------------------------------------------------------------------

    def _reason(self, item: wire.InputItem, path: str) -> None:
        texts = _texts(item.summary, f"{path}.summary") or _texts(item.content, f"{path}.content")
        text = joined(texts) if texts else EMPTY
        value = item.encrypted_content
        if not value:
            if text != EMPTY:
                self._said(Thinking(text))
            return  # OpenAI keeps what an id without content stands for
        signature = untagged(value, "openai")
        if signature.provider == "openai" and signature.item_id is None:
            signature = Signature("openai", value, item.id)
        if signature.provider == "google" and signature.item_id is None and text == EMPTY:
            self._sign_text(signature)
            return
        thinking = Thinking(text, signature, is_redacted(value))
        if text == EMPTY and signature.item_id is not None and signature.item_id != item.id:
            self._signatures[signature.item_id] = thinking
        self._said(thinking)

    def _sign_text(self, signature: Signature) -> None:
        """Give a signature to the text before it."""
        if not self._messages or self._messages[-1].role is not _ASSISTANT:
            self._messages.append(Message(_ASSISTANT, []))
        blocks = self._messages[-1].blocks
        seen, n_seen, text = self._seen_texts
        if seen is not blocks:
            n_seen, text = 0, None
        for n in range(n_seen, len(blocks)):
            block = blocks[n]
            if isinstance(block, Text):
                text = block
        if text is None:
            text = Text(EMPTY)
            blocks.append(text)
        text.signature = signature
        self._seen_texts = blocks, len(blocks), text

    def _sign_calls(self) -> None:
        """Give the calls their signatures; see outputs.py."""
        found: set[int] = set()
        for message in self._messages:
            for block in message.blocks:
                thinking = self._signatures.get(block.id) if isinstance(block, ToolUse) else None
                if thinking is not None and thinking.signature is not None and isinstance(block, ToolUse):
                    block.signature = Signature(thinking.signature.provider, thinking.signature.value)
                    found.add(id(thinking))
        for message in self._messages:
            message.blocks = [block for block in message.blocks if id(block) not in found]

    # -- choice -----------------------------------------------------------------------------------------

    def _choice(self, raw: Raw) -> ToolChoice | None:
        if self.compacts:
            return ToolChoice(Choice.NONE) if self.tools.tools else None
        return self._tool_choice(raw) if is_given(raw) else None

    def _tool_choice(self, raw: Raw) -> ToolChoice | None:
        word = raw_text(raw)
        if word is not None:
            choice = _CHOICES.get(decoded(word))
            if choice is None:
                raise BadRequestError("tool_choice is none, auto, required or an object", "tool_choice")
            return ToolChoice(choice)
        given = decoded_request(_CHOICE, raw, "tool_choice")
        if given.type in ("function", "custom"):
            if not given.name:
                raise BadRequestError("a tool_choice of this type has a name", "tool_choice.name")
            return ToolChoice(Choice.TOOL, self.tools.function(given.name, given.namespace))
        if given.type == "allowed_tools":
            choice = Choice.REQUIRED if given.mode == "required" else Choice.AUTO
            if given.tools and not any(each.name for each in given.tools):
                return self._only_hosted([each.type or "" for each in given.tools], choice)
            names = [self.tools.function(each.name, each.namespace) for each in given.tools or () if each.name]
            return ToolChoice(choice, allowed=tuple(names))
        if given.type in _CHOSEN_BY_TYPE:
            function = self.tools.function(given.type, kind=ToolKind(given.type))
            if any(tool.name == function for tool in self.tools.tools):
                return ToolChoice(Choice.TOOL, function)
        self.tools.hosted.must_call(given.type, is_search=given.type.startswith(WEB_SEARCH))
        return None

    def _only_hosted(self, kinds: list[str], choice: Choice) -> ToolChoice | None:
        """Read a choice among tools of the provider's own alone."""
        searches = [kind for kind in kinds if kind.startswith(WEB_SEARCH)]
        if choice is Choice.REQUIRED:
            self.tools.hosted.must_call((searches or kinds)[0], is_search=bool(searches))
            return None
        return ToolChoice(Choice.NONE) if self.tools.tools else None


# -- parts --------------------------------------------------------------------------------------------


def _ends_with_text(message: Message) -> bool:
    """Tell whether what follows is a message of its own. What the assistant thought or called belongs to a text."""
    return not message.blocks or isinstance(message.blocks[-1], Text | Refusal)


def _name(item: wire.InputItem, path: str) -> str:
    if not item.name:
        raise BadRequestError("a call has a name", f"{path}.name")
    return item.name


def _call_id(item: wire.InputItem, path: str) -> str:
    if item.call_id is None:
        raise BadRequestError("an item of this type has a call_id", f"{path}.call_id")
    return item.call_id


def _part(part: wire.Part, path: str) -> Text | Image | Audio | Document | Refusal:
    match part.type:
        case "input_text" | "output_text" | "text":
            text = raw_text(part.text)
            if text is None:
                raise BadRequestError("a part of this type has a text", f"{path}.text")
            return Text(text, _mark(part))
        case "input_image":
            return pictured(_image(part, path), part.detail, _mark(part))
        case "input_file":
            return Document(_file(part, path), part.filename, cache=_mark(part))
        case "input_audio" if part.input_audio is not None:
            sound = part.input_audio
            return Audio(Media(MediaKind.DATA, sound.data, f"audio/{sound.format or 'wav'}"), sound.format)
        case "refusal":
            return Refusal(raw_text(part.refusal) or EMPTY)
    message = "parts of a message are of type input_text, output_text, input_image, input_file, input_audio or refusal"
    raise BadRequestError(message, f"{path}.type")


def _mark(part: wire.Part) -> CacheMark | None:
    mark = part.prompt_cache_breakpoint
    if mark is None:
        return None
    return CacheMark(_LIFETIMES.get(mark.ttl or "", mark.ttl))


def _image(part: wire.Part, path: str) -> Media:
    if part.image_url is not None:
        return read_url(part.image_url)
    if part.file_id is not None:
        return Media(MediaKind.ID, part.file_id)
    raise BadRequestError("a picture has an image_url", f"{path}.image_url")


def _file(part: wire.Part, path: str) -> Media:
    if part.file_data is not None:
        media = read_url(part.file_data)
        if media.kind is MediaKind.URL:
            media = Media(MediaKind.DATA, part.file_data)  # base64 alone
        return typed(media, part.filename)
    if part.file_url is not None:
        return Media(MediaKind.URL, part.file_url)
    if part.file_id is not None:
        return Media(MediaKind.ID, part.file_id)
    raise BadRequestError("a file has a file_data, a file_url or a file_id", path)


def _output(item: wire.InputItem, path: str) -> list[Text | Image | Document]:
    """Read the result of a tool: a text, parts, or any JSON, which is shown as it is."""
    raw = bytes(item.output)
    if raw[:1] == b'"':
        return [Text(raw)]
    if not raw or raw == b"null":
        return [Text(EMPTY)]
    if raw[:1] != b"[" or item.type not in ("function_call_output", "custom_tool_call_output"):
        return [Text(quoted(raw.decode("utf-8", "surrogatepass")))]
    path = f"{path}.output"
    found: list[Text | Image | Document] = []
    parts = decoded_request(_PARTS, item.output, path)
    for k, part in enumerate(parts):
        block = _part(part, f"{path}[{k}]")
        if isinstance(block, Audio | Refusal):
            message = "the result of a tool is of type input_text, input_image or input_file"
            raise BadRequestError(message, f"{path}[{k}].type")
        found.append(block)
    return found


def _texts(raw: Raw, path: str) -> list[JsonText]:
    if not is_given(raw):
        return []
    return [text for part in decoded_request(_PARTS, raw, path) if (text := raw_text(part.text)) is not None]


def _format(text: wire.TextConfig | None) -> Format | None:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Format()
    if wanted.type != "json_schema":
        raise BadRequestError("text.format is of type text, json_object or json_schema", "text.format.type")
    schema = bytes(wanted.schema)
    if schema[:1] != b"{":
        raise BadRequestError("a format of type json_schema has a schema, an object", "text.format.schema")
    return Format(schema, wanted.name, raw_text(wanted.description), wanted.strict)


def _reasoning(wanted: wire.ReasoningConfig | None, changed: str | None) -> Reasoning | None:
    """Read how much is to be reasoned. changed: the effort, by the input."""
    if wanted is None:
        wanted = wire.ReasoningConfig()
    effort = wanted.effort if changed is None else changed
    if effort is not None and effort not in _EFFORTS:
        message = "reasoning.effort is none, minimal, low, medium, high, xhigh or max"
        raise BadRequestError(message, "reasoning.effort")
    summary = wanted.summary or wanted.generate_summary
    if effort is None and summary is None:
        return None
    return Reasoning(effort, summary=summary)
