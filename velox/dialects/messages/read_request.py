"""Reads a client's request in Anthropic's Messages, as Claude Code and Anthropic's SDKs send it.

Knows: fields, and which of them no other dialect has: those are dropped or refused. Does not know: who will answer.
"""

from __future__ import annotations

from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Block,
    Choice,
    Document,
    Format,
    Image,
    JsonText,
    Media,
    MediaKind,
    Message,
    Reasoning,
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
from velox.dialects.canonical.signatures import is_redacted, untagged
from velox.dialects.json_text.decoding import checked_text, decode, decoded_request
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, decoded, is_blank, joined, quoted
from velox.dialects.media.file_types import pictured, typed
from velox.dialects.messages.client_tools import client_tool
from velox.dialects.messages.sources import OWN_SEARCH, SEALED
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.messages.wire import (
    BILLING,
    BLOCKS,
    CITATIONS,
    REQUEST,
    SOURCE,
    STRICT_REQUEST,
    STRING,
    BlockIn,
    RequestIn,
    SourceIn,
    ToolChoiceIn,
    ToolIn,
)
from velox.dialects.messages.words import given_id
from velox.dialects.tools.hosted import HostedTools
from velox.protocol.slices import let_go

__all__ = ["needed", "read_request"]

_T = TypeVar("_T")
_NOTHING: Final = (b"", b"null")
_EMPTY: Final = (b"", b"null", b"[]", b"{}", b'""')
_ROLES: Final = MappingProxyType({"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM})
_CHOICES: Final = MappingProxyType(
    {"auto": Choice.AUTO, "any": Choice.REQUIRED, "tool": Choice.TOOL, "none": Choice.NONE}
)
_TIERS: Final = MappingProxyType({"auto": "auto", "standard_only": "default"})
# They change what is answered (needed()).
_REFUSED: Final = ("container", "thread", "compaction")
_DROPPED: Final = (
    "mcp_servers",
    "context_management",
    "speed",
    "inference_geo",
    "diagnostics",
    "fallbacks",
    "fallback_credit_token",
    "billing_policy",
)
# The fields of both, asked for in one call: few requests have any of them.
_RARE: Final = attrgetter(*_REFUSED, *_DROPPED)
_NO_RARE: Final = _RARE(RequestIn("", []))
_WEB_SEARCH: Final = "web_search_"
_OF_SERVER_TOOLS: Final = "server_tools"
# Blocks of tools that Anthropic runs, or that Claude alone is trained for.
_SERVER_TOOLS: Final = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_listing", "browser_state"})
# Who signs calls and texts.
_GOOGLE: Final = "google"


def read_request(body: bytes | bytearray, dropped: DroppedFields) -> Request:
    """Read a request to generate, or one to count, which has no max_tokens. Raises BadRequestError."""
    return keeping_surrogates(lambda text: _request(text, dropped), checked_text(body))


def _request(body: bytes, dropped: DroppedFields) -> Request:
    found = _decoded(body, dropped)
    if _RARE(found) != _NO_RARE:
        _check_rare(found, dropped)
    messages = _messages(found, dropped)
    tools, hosted = _tools(found.tools or [], dropped)
    choice, is_parallel = _choice(found.tool_choice, tools, found.tools or [], hosted)
    tier = None
    if found.service_tier is not None:
        tier = _TIERS.get(found.service_tier)
        if tier is None:
            dropped.drop("tier", "service_tier")
    request = Request(
        found.model,
        messages,
        stream=bool(found.stream),
        tools=tools,
        tool_choice=choice,
        parallel_tools=is_parallel,
        max_tokens=found.max_tokens,
        temperature=found.temperature,
        top_p=found.top_p,
        top_k=found.top_k,
        stop=found.stop_sequences or [],
        format=_format(found),
        reasoning=_reasoning(found, dropped),
        user=found.metadata.user_id if found.metadata is not None else None,
        tier=tier,
        cache=found.cache_control,
    )
    if hosted is not None:
        hosted.settle(request, "tool_choice")
    let_go(found.messages)
    return request


def _check_rare(found: RequestIn, dropped: DroppedFields) -> None:
    for name in _REFUSED:
        value = getattr(found, name)
        refusal = needed(name) if value and bytes(value) not in _EMPTY else None
        if refusal is not None:
            raise refusal
    for name in _DROPPED:
        value = getattr(found, name)
        if value and bytes(value) not in _EMPTY:
            dropped.drop(name)


def _decoded(body: bytes, dropped: DroppedFields) -> RequestIn:
    try:
        return decode(STRICT_REQUEST, body)
    except (msgspec.DecodeError, RecursionError):
        pass  # also where only a field is not known
    found = decoded_request(REQUEST, body)
    dropped.drop("unknown")
    return found


def _within(exc: BadRequestError, place: str) -> BadRequestError:
    """Return the error with its place inside another one: paths are put together only where they are needed."""
    param = exc.param
    return BadRequestError(exc.message, place + param if not param or param[0] == "[" else f"{place}.{param}")


def _text(raw: Raw, name: str) -> JsonText:
    text = bytes(raw)
    if text[:1] != b'"':
        raise BadRequestError("a text is missing, or is no string", name)
    return text


def _needed(value: _T | None, name: str) -> _T:
    if value is None:
        raise BadRequestError("the field is missing", name)
    return value


# -- messages -----------------------------------------------------------------------------------------


def _messages(found: RequestIn, dropped: DroppedFields) -> list[Message]:
    messages: list[Message] = []
    system = b"" + found.system
    if system[:1] == b'"':
        messages.append(Message(Role.SYSTEM, [Text(system)], None, None if is_blank(system) else system))
    elif system not in _NOTHING:
        blocks = _blocks_of(found.system, "system", dropped)
        blocks = [block for block in blocks if not (isinstance(block, Text) and block.text.startswith(BILLING))]
        if blocks:
            messages.append(Message(Role.SYSTEM, blocks))
    for at, message in enumerate(found.messages):
        try:
            role = _ROLES.get(message.role)
            if role is None:
                raise BadRequestError("the role must be user, assistant or system", "role")
            text = b"" + message.content  # half the time of bytes()
            if text[:1] == b'"':
                messages.append(Message(role, [Text(text)], None, None if is_blank(text) else text))
            else:
                messages.append(Message(role, _blocks_of(message.content, "content", dropped)))
        except BadRequestError as exc:
            raise _within(exc, f"messages[{at}]") from None
    return messages


def _blocks_of(raw: Raw, name: str, dropped: DroppedFields) -> list[Block]:
    """Read a list of blocks. name: of the field."""
    try:
        return _blocks(raw, dropped)
    except BadRequestError as exc:
        raise _within(exc, name) from None


def _blocks(raw: Raw, dropped: DroppedFields) -> list[Block]:
    blocks: list[Block] = []
    signed: dict[str, Signature] = {}  # calls, by their ids
    found = decoded_request(BLOCKS, raw)
    for at, each in enumerate(found):
        try:
            kind = each.type
            if kind == "text":
                text = Text(_text(each.text, "text"), each.cache_control)
                if each.citations and bytes(each.citations) not in _EMPTY and SEALED not in bytes(each.citations):
                    text.citations = bytes(each.citations)
                blocks.append(text)
            elif kind == "tool_use":
                blocks.append(_tool_use(each))
            elif kind == "tool_result":
                blocks.append(_tool_result(each, dropped))
            elif kind in ("thinking", "redacted_thinking"):
                _add_thinking(each, blocks, signed)
            else:
                _add_other(each, blocks, dropped)
        except BadRequestError as exc:
            raise _within(exc, f"[{at}]") from None
    for block in blocks if signed else ():
        if isinstance(block, ToolUse):
            block.signature = signed.get(block.id)
    return blocks


def _add_thinking(block: BlockIn, blocks: list[Block], signed: dict[str, Signature]) -> None:
    """Add reasoning, or give its signature to what it belongs to.

    Google signs calls and texts, for which there is no field here: the signature of a call is a block of its own
    without text, which names the call; that of a text is one, too.
    """
    if block.type == "redacted_thinking":
        blocks.append(Thinking(EMPTY, untagged(_needed(block.data, "data"), PROVIDER), is_redacted=True))
        return
    text = _text(block.thinking, "thinking")
    if not block.signature:
        blocks.append(Thinking(text))
        return
    signature = untagged(block.signature, PROVIDER)
    if signature.provider != _GOOGLE or text != EMPTY:
        blocks.append(Thinking(text, signature, is_redacted(block.signature)))
    elif signature.item_id is not None:
        signed[signature.item_id] = Signature(_GOOGLE, signature.value)
    else:
        blocks.append(Text(EMPTY, signature=signature))


def _tool_use(block: BlockIn) -> ToolUse:
    arguments = bytes(block.input)
    if arguments[:1] != b"{":
        if arguments not in _NOTHING:
            raise BadRequestError("the input of a tool must be an object", "input")
        arguments = b"{}"
    if block.id is None or block.name is None:
        raise BadRequestError("the field is missing", "id" if block.id is None else "name")
    return ToolUse(given_id(block.id), block.name, arguments, None, block.cache_control)


def _tool_result(block: BlockIn, dropped: DroppedFields) -> ToolResult:
    text = bytes(block.content)
    parts: list[Text | Image | Document] = []
    if text[:1] == b'"':
        parts.append(Text(text))
    elif text not in _NOTHING:
        for found in _blocks_of(block.content, "content", dropped):
            if not isinstance(found, Text | Image | Document):
                raise BadRequestError("a tool's result has texts, images and documents only", "content")
            parts.append(found)
    return ToolResult(
        given_id(_needed(block.tool_use_id, "tool_use_id")),
        parts,
        is_error=bool(block.is_error),
        cache=block.cache_control,
    )


def _add_other(block: BlockIn, blocks: list[Block], dropped: DroppedFields) -> None:
    match block.type:
        case "image":
            blocks.append(pictured(_media(block.source, dropped), cache=block.cache_control))
        case "document":
            blocks.append(_document(block, dropped))
        case "search_result":
            # What a client's own search found: its texts say the same to every model.
            found = _blocks_of(block.content, "content", dropped)
            if block.cache_control is not None and found and isinstance(found[-1], Text):
                found[-1].cache = block.cache_control
            texts = [quoted(block.title)] if block.title else []
            texts += [bytes(block.source)] if bytes(block.source)[:1] == b'"' else []
            if texts:
                blocks.append(Text(joined(texts)))  # what was found, and where
            blocks += found
        case "tool_reference":
            # A client's own search among its tools, all of which the model has: the name says which was found.
            blocks.append(Text(quoted(_needed(block.tool_name or block.name, "tool_name"))))
        case "tool_addition" | "tool_removal":
            dropped.drop("defer_loading", "type")  # the model has all of the tools all the time
        case "container_upload":
            raise BadRequestError("a file in a container of Anthropic's can't be read elsewhere", "type")
        case kind if kind.endswith("_tool_result") or kind in _SERVER_TOOLS:
            if not (block.id or block.tool_use_id or "").startswith(OWN_SEARCH):  # else no model has ever read it
                dropped.drop(_OF_SERVER_TOOLS, "type")
        case "fallback":
            pass  # it says which model spoke from here on, and no model reads it
        case "compaction":
            raise BadRequestError("a compacted conversation can be read by Anthropic only", "type")
        case _:
            raise BadRequestError("blocks of this type can't be sent to the model of this route", "type")


def _media(raw: Raw, dropped: DroppedFields) -> Media:
    """Read the field `source`."""
    try:
        return _source(decoded_request(SOURCE, raw), dropped)
    except BadRequestError as exc:
        raise _within(exc, "source") from None


def _source(found: SourceIn, dropped: DroppedFields) -> Media:
    match found.type:
        case "base64":
            return Media(MediaKind.DATA, _needed(found.data, "data"), found.media_type)
        case "url":
            return Media(MediaKind.URL, _needed(found.url, "url"))
        case "file":
            return Media(MediaKind.ID, _needed(found.file_id, "file_id"))
        case "text":
            return Media(MediaKind.TEXT, _needed(found.data, "data"), found.media_type)
        case "content":
            return Media(MediaKind.TEXT, _joined(found.content, dropped), "text/plain")
        case _:
            raise BadRequestError("the type must be base64, url, file, text or content", "type")


def _joined(raw: Raw, dropped: DroppedFields) -> str:
    """Return the texts of a document that is made of blocks."""
    if bytes(raw)[:1] == b'"':
        return decoded_request(STRING, raw, "content")
    texts = []
    for block in _blocks_of(raw, "content", dropped):
        if not isinstance(block, Text):
            raise BadRequestError("a document that has images can't be sent to the model of this route", "content")
        texts.append(block.text)
    return decoded(joined(texts))


def _document(block: BlockIn, dropped: DroppedFields) -> Document:
    context, citations = bytes(block.context), None
    if bytes(block.citations) not in _NOTHING:
        citations = decoded_request(CITATIONS, block.citations, "citations").enabled
    return Document(
        typed(_media(block.source, dropped), block.title),
        block.title,
        context if context[:1] == b'"' else None,
        citations,
        block.cache_control,
    )


# -- tools --------------------------------------------------------------------------------------------


def _tools(found: list[ToolIn], dropped: DroppedFields) -> tuple[list[Tool], HostedTools | None]:
    """Return the client's own tools, and those that Anthropic runs; None: there are none."""
    tools: list[Tool] = []
    hosted: HostedTools | None = None
    for at, tool in enumerate(found):
        schema, description = b"" + tool.input_schema, b"" + tool.description
        if tool.type not in (None, "custom"):
            known = client_tool(tool.type)
            if known is None:
                hosted = hosted or HostedTools(dropped, _OF_SERVER_TOOLS)
                if tool.type.startswith(_WEB_SEARCH):
                    hosted.add_search(_search(tool), f"tools[{at}]")
                else:
                    hosted.add_other(f"tools[{at}]")
                continue
            description, schema = known
        if not tool.name:
            raise BadRequestError("the field is missing", f"tools[{at}].name")
        if schema[:1] != b"{":
            raise BadRequestError("a tool's schema must be an object", f"tools[{at}].input_schema")
        if tool.defer_loading:
            dropped.drop("defer_loading", f"tools[{at}]")
        if tool.input_examples and bytes(tool.input_examples) not in _EMPTY:
            dropped.drop("input_examples", f"tools[{at}]")
        text = description if description[:1] == b'"' else None
        tools.append(Tool(tool.name, text, schema, tool.strict, tool.cache_control))
    return tools, hosted


def _search(tool: ToolIn) -> WebSearch:
    location = bytes(tool.user_location)
    return WebSearch(
        allowed_domains=tuple(tool.allowed_domains or ()),
        blocked_domains=tuple(tool.blocked_domains or ()),
        most=tool.max_uses,
        location=location if location[:1] == b"{" else None,
        lost=_OF_SERVER_TOOLS,
    )


def _choice(
    found: ToolChoiceIn | None, tools: list[Tool], given: list[ToolIn], hosted: HostedTools | None
) -> tuple[ToolChoice | None, bool | None]:
    """Return the choice, and whether calls may be parallel. given: all tools, also those that Anthropic runs."""
    if found is None:
        return None, None
    choice = _CHOICES.get(found.type)
    if choice is None:
        raise BadRequestError("the type must be auto, any, tool or none", "tool_choice.type")
    is_parallel = None if found.disable_parallel_tool_use is None else not found.disable_parallel_tool_use
    name = None
    if choice is Choice.TOOL:
        name = _needed(found.name, "tool_choice.name")
        if name not in {tool.name for tool in tools}:
            kind = next((tool.type or "" for tool in given if tool.name == name), None)
            if kind is None or hosted is None:
                raise BadRequestError("the tool that must be called is not among the tools", "tool_choice.name")
            hosted.must_call(name, is_search=kind.startswith(_WEB_SEARCH))
            return None, is_parallel
    if not tools and not given:
        return None, None
    return ToolChoice(choice, name), is_parallel


# -- options ------------------------------------------------------------------------------------------


def _format(found: RequestIn) -> Format | None:
    config = found.output_config
    form = config.format if config is not None and config.format is not None else found.output_format
    if form is None:
        return None
    if form.type != "json_schema" or bytes(form.schema)[:1] != b"{":
        raise BadRequestError('the form of an answer has the type "json_schema" and a schema', "output_config.format")
    return Format(bytes(form.schema), strict=True)


def _reasoning(found: RequestIn, dropped: DroppedFields) -> Reasoning | None:
    config, thinking = found.output_config, found.thinking
    effort = config.effort if config is not None else None
    if config is not None and bytes(config.task_budget) not in _EMPTY:
        dropped.drop("task_budget", "output_config.task_budget")
    if thinking is None:
        return Reasoning(effort) if effort is not None else None
    match thinking.type:
        case "disabled" | "between_tools":  # the latter is off, too, but for progress updates
            return Reasoning(effort, enabled=False)
        case "adaptive":
            return Reasoning(effort, enabled=True, summary=thinking.display)
        case "enabled":
            budget = _needed(thinking.budget_tokens, "thinking.budget_tokens")
            return Reasoning(effort, budget, summary=thinking.display)
        case _:
            raise BadRequestError("the type must be enabled, adaptive, disabled or between_tools", "thinking.type")


# -- fields that are needed --------------------------------------------------------------------------
# Without them the answer would be another one: state of a conversation that Anthropic keeps, and an answer of another
# kind. Refused on a translated model, and where a request goes up as sent to another service (claude_fields.py).

_NEEDED: Final = MappingProxyType(
    {
        "container": "container is kept by Anthropic, and the model of this route is not there",
        "compaction": "a compaction can't be asked for at this model's provider; leave the field out",
        "thread": "thread is kept by Anthropic, and the model of this route is not there; send the whole conversation",
    }
)
# `error.details` by which Anthropic's SDK learns to go on without a thread: its tool runner makes one by default, and
# sends the whole conversation then (the SDK's ThreadUnsupportedRequestErrorDetails).
_DETAILS: Final = MappingProxyType({"thread": b'{"error_code":"thread_unsupported_request","unsupported":["thread"]}'})


def needed(name: str) -> BadRequestError | None:
    """Return the refusal of a field without which the answer is another one; None: of any other field."""
    message = _NEEDED.get(name)
    return None if message is None else BadRequestError(message, name, _DETAILS.get(name, b""))
