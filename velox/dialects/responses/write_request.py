"""Writes requests of OpenAI Responses for the models that have this API.

Nothing is kept at the provider: reasoning travels encrypted in the conversation.

Knows: the request's JSON, and where servers differ, by ModelFacts. Does not know: HTTP, any model's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
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
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    WebSearch,
    Written,
)
from velox.dialects.canonical.names import FittedNames, short_key
from velox.dialects.facts.efforts import taken_effort
from velox.dialects.facts.limits import checked_tools, taken_max_tokens
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.openai_values import taken_detail
from velox.dialects.json_text.text import EMPTY, NEWLINES, is_blank, joined, quoted
from velox.dialects.media.file_types import data_text, document_text, is_text
from velox.dialects.responses.sources import SOURCES
from velox.dialects.responses.words import THOUGHT
from velox.dialects.tools.hosted import taken_search, without_pictures
from velox.dialects.tools.json_note import json_note
from velox.dialects.tools.open_calls import OpenCalls
from velox.dialects.tools.strict_schema import strict_field, taken_strict
from velox.dialects.tools.tool_fit import fit_tools
from velox.dialects.tools.tool_schema import listed_schema
from velox.protocol.slices import concatenated

__all__ = ["ResponsesRequestWriter"]

_MARK: Final = "prompt_cache_breakpoint"
_FILES_FOLLOW: Final = b'"The files of this result are in the next message."'
_LIFETIMES: Final = {"1h": "12h"}  # the canonical model's -> OpenAI's; its default is 30 minutes
_PLAIN: Final = b'{"type":"message","role":"%b","content":%b}'
_ROLES: Final = {Role.SYSTEM: b"system", Role.USER: b"user", Role.ASSISTANT: b"assistant"}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_CALL_ID: Final = re.compile(r"[\x21-\x7e]+")
_MOST_NAME: Final = 64
_MOST_ID: Final = 64
_LEAST_TOKENS: Final = 16  # fewer are refused
_OBJECT: Final = b'{"type":"json_object"}'
_DEFAULT_FORMAT_NAME: Final = "answer"
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")
_CHOICES: Final = {Choice.AUTO: b'"auto"', Choice.NONE: b'"none"', Choice.REQUIRED: b'"required"'}
# The least tokens for reasoning that are a certain effort.
_EFFORTS: Final = ((16_384, "high"), (4096, "medium"), (0, "low"))
_SUMMARIES: Final = {"auto": "auto", "concise": "concise", "detailed": "detailed", "summarized": "auto"}


class ResponsesRequestWriter:
    """Writes one request.

    provider: whose signatures it takes back. lists_sources: it can be asked for the sources of a search of the web.
    """

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, provider: str, *, lists_sources: bool) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._lists_sources: Final = lists_sources
        self._is_format_outside: Final = ("text.format", "response_format") in facts.renamed
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self._ids: Final = FittedNames(_CALL_ID, _MOST_ID)
        self._included: Final[list[str]] = []  # what is asked for beside the answer

    def write(self, request: Request, model: str) -> Written:
        """Return what is sent. Raises BadRequestError."""
        if request.stop:
            message = "the model of this route takes no stop strings; leave them out"
            raise BadRequestError(message, "stop")
        without_pictures(request, self._dropped)
        keys = fit_tools(request, self._facts.schemas_refuse)
        items = _ItemWriter(self._facts, self._dropped, self._provider, self._names, self._ids)
        instructions, written = items.write(request.messages)
        wanted = request.format
        if wanted is not None and wanted.schema is None and "json_object" in self._facts.refused:
            written = b'{"type":"message","role":"system","content":%b},%b' % (json_note(None), written)
            wanted = None
        fields: list[bytes] = [b'{"model":', quoted(model)]
        if instructions is not None:
            fields += [b',"instructions":', instructions]
        fields += [b',"input":[', written, b"]"]
        if request.stream:
            fields.append(b',"stream":true')
        search = None if request.web_search is None else taken_search(request, self._facts, self._dropped)
        if request.tools or search is not None:
            tools = [self._tool(tool) for tool in checked_tools(self._sent(request), self._facts)]
            if search is not None:
                tools.append(self._search(search))
                if self._lists_sources:
                    self._included.append(SOURCES)
            fields += [b',"tools":[', b",".join(tools), b"]"]
            if search is not None and search.most is not None:
                self._add(fields, "max_tool_calls", b"%d" % search.most)  # of those that OpenAI runs, which is this one
            if search is not None and search.is_forced:
                self._add(fields, "tool_choice", b'{"type":%b}' % quoted(self._facts.web_search))
            elif request.tool_choice is not None:
                self._add(fields, "tool_choice", self._tool_choice(request.tool_choice))
            if request.parallel_tools is not None:
                self._add(fields, "parallel_tool_calls", b"true" if request.parallel_tools else b"false")
        self._limits(fields, request)
        self._text(fields, wanted, request.verbosity)
        if self._facts.thinking != "none" and "include" not in self._facts.refused:
            self._included.insert(0, "reasoning.encrypted_content")
        if self._included:
            fields += [b',"include":', msgspec.json.encode(self._included)]
        self._reasoning(fields, request.reasoning)
        if request.user is not None:
            self._add(fields, "user", quoted(short_key(request.user)))
        if request.tier is not None:
            self._add(fields, "service_tier", quoted(request.tier))
        if request.cache_key is not None:
            self._add(fields, "prompt_cache_key", quoted(short_key(request.cache_key)))
        if request.cache is not None:
            self._dropped.drop("cache")
        if "store" not in self._facts.refused:
            fields.append(b',"store":false')
        fields.append(b"}")
        return Written(concatenated(fields), self._names.originals, self._ids.originals, keys)

    def _add(self, fields: list[bytes], name: str, value: bytes) -> None:
        if name in self._facts.refused:
            self._dropped.drop(name)
        else:
            fields.append(b',"%b":%b' % (name.encode(), value))

    def _text(self, fields: list[bytes], wanted: Format | None, verbosity: str | None) -> None:
        parts = []
        if wanted is not None and self._is_format_outside:
            fields += [b',"response_format":', _chat_format(wanted, self._dropped)]
        elif wanted is not None:
            parts.append(b'"format":' + _format(wanted, self._dropped))
        if verbosity is not None:
            if self._facts.verbosity:
                parts.append(b'"verbosity":' + quoted(verbosity))
            else:
                self._dropped.drop("verbosity")
        if parts:
            self._add(fields, "text", b"{%b}" % b",".join(parts))

    def _limits(self, fields: list[bytes], request: Request) -> None:
        asked = request.max_tokens
        if asked is None and self._facts.needs_max_tokens:
            asked = self._facts.max_output
        most = taken_max_tokens(asked, self._facts, self._dropped)
        if most is not None:
            if most < _LEAST_TOKENS:
                self._dropped.drop("max_tokens")
            self._add(fields, "max_output_tokens", b"%d" % max(most, _LEAST_TOKENS))
        for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
            if value is not None and self._facts.sampling:
                self._add(fields, name, msgspec.json.encode(value))
            elif value is not None:
                self._dropped.drop(name)
        for name, other in (
            ("top_k", request.top_k),
            ("seed", request.seed),
            ("presence_penalty", request.presence_penalty),
            ("frequency_penalty", request.frequency_penalty),
        ):
            if other is not None:
                self._dropped.drop(name)

    def _reasoning(self, fields: list[bytes], reasoning: Reasoning | None) -> None:
        if self._facts.thinking == "none":
            if reasoning is not None and reasoning.enabled is not False and reasoning.effort != "none":
                self._dropped.drop("reasoning")
            return
        if reasoning is None:
            return
        effort = reasoning.effort
        if effort is None and reasoning.budget_tokens is not None:
            effort = next(word for least, word in _EFFORTS if reasoning.budget_tokens >= least)
        if effort is None and reasoning.enabled is False:
            # Many models reason as they like, and refuse the effort "none".
            self._dropped.drop("reasoning")
        if effort is not None:
            effort = taken_effort(effort, self._facts.efforts, self._dropped)
        summary = _SUMMARIES.get(reasoning.summary or "")
        if summary is not None and "reasoning.summary" in self._facts.refused:
            self._dropped.drop("reasoning")
            summary = None
        values = [
            b'"%b":%b' % (name, quoted(value))
            for name, value in ((b"effort", effort), (b"summary", summary))
            if value is not None
        ]
        if values:
            self._add(fields, "reasoning", b"{" + b",".join(values) + b"}")

    def _sent(self, request: Request) -> list[Tool]:
        """Return the tools: where the choice is among some, and the API has no way to say so, those alone."""
        choice = request.tool_choice
        if choice is None or not choice.allowed or "allowed_tools" not in self._facts.refused:
            return request.tools
        tools = [tool for tool in request.tools if tool.name in choice.allowed]
        if not tools:
            raise BadRequestError("the tools that may be called are not among the tools", "tool_choice")
        return tools

    def _tool(self, tool: Tool) -> bytes:
        if tool.cache is not None:
            self._dropped.drop("cache")
        description = b"" if tool.description is None else b',"description":' + tool.description
        # Absent means true here, which refuses many schemas, and false in other dialects.
        schema, strict = taken_strict(listed_schema(tool.parameters), tool.strict, self._dropped, "tools")
        return b'{"type":"function","name":%b%b,"parameters":%b,"strict":%b}' % (
            quoted(self._names.fit(tool.name)),
            description,
            schema,
            b"true" if strict else b"false",
        )

    def _search(self, search: WebSearch) -> bytes:
        fields = [b'{"type":', quoted(self._facts.web_search)]
        if search.allowed_domains:
            fields += [b',"filters":{"allowed_domains":', msgspec.json.encode(search.allowed_domains), b"}"]
        if search.location is not None:
            fields += [b',"user_location":', search.location]
        if search.blocked_domains:
            self._dropped.drop("web_search.blocked_domains", "tools")
        return b"".join([*fields, b"}"])

    def _tool_choice(self, choice: ToolChoice) -> bytes:
        form = b'{"type":"function","name":%b}'
        if choice.choice is Choice.TOOL:
            return form % quoted(self._names.fit(choice.name or ""))
        if choice.allowed and "allowed_tools" not in self._facts.refused:
            tools = b",".join([form % quoted(self._names.fit(name)) for name in choice.allowed])
            return b'{"type":"allowed_tools","mode":%b,"tools":[%b]}' % (_CHOICES[choice.choice], tools)
        return _CHOICES[choice.choice]


def _format(wanted: Format, dropped: DroppedFields) -> bytes:
    return _OBJECT if wanted.schema is None else b'{"type":"json_schema",%b}' % _schema(wanted, wanted.schema, dropped)


def _chat_format(wanted: Format, dropped: DroppedFields) -> bytes:
    """Write a format as Chat Completions has it."""
    if wanted.schema is None:
        return _OBJECT
    return b'{"type":"json_schema","json_schema":{%b}}' % _schema(wanted, wanted.schema, dropped)


def _schema(wanted: Format, given: JsonValue, dropped: DroppedFields) -> bytes:
    name = _OTHER.sub("_", (wanted.name or _DEFAULT_FORMAT_NAME)[:_MOST_NAME])
    description = b"" if wanted.description is None else b',"description":' + wanted.description
    schema, strict = taken_strict(given, wanted.strict, dropped, "response_format")
    return b'"name":%b%b,"schema":%b%b' % (quoted(name), description, schema, strict_field(strict))


class _ItemWriter:
    """Writes the items of one request."""

    def __init__(
        self, facts: ModelFacts, dropped: DroppedFields, provider: str, names: FittedNames, ids: FittedNames
    ) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._names: Final = names
        self._ids: Final = ids
        self._has_marks: Final = facts.cache_marks and _MARK in dict(facts.renamed)
        self._unanswered: Final[OpenCalls[str]] = OpenCalls()  # ids of calls that the client gave none
        self._n_without_id = 0

    def write(self, messages: Sequence[Message]) -> tuple[JsonText | None, bytes]:
        """Return the instructions, and the items."""
        instructions: JsonText | None = None
        written: list[bytes] = []
        for n, message in enumerate(messages):
            blocks = message.blocks
            if message.name is not None:
                self._dropped.drop("name", f"messages[{n}].name")
            only = blocks[0] if len(blocks) == 1 else None
            if type(only) is not Text or message.role is Role.ASSISTANT or (only.cache is not None and self._has_marks):
                self._message(message, f"messages[{n}]", written)
                continue
            if only.cache is not None:
                self._dropped.drop("cache")
            if n == 0 and message.role is Role.SYSTEM and len(messages) > 1:
                instructions = only.text
            else:
                written.append(_PLAIN % (_ROLES[message.role], only.text))
        return instructions, b",".join(written)

    def _message(self, message: Message, path: str, written: list[bytes]) -> None:
        """Write a message: the parts between calls, results and reasoning are one item each time."""
        role = message.role
        parts: list[Block] = []
        moved: list[Block] = []
        blocks = message.blocks
        if blocks and isinstance(blocks[-1], Thinking):
            blocks = self._without_last_thoughts(blocks)
        for k, block in enumerate(blocks):
            match block:
                case ToolUse():
                    self._said(role, parts, path, written)
                    written.append(self._call(block))
                case ToolResult():
                    self._said(role, parts, path, written)
                    written.append(self._result(block, f"{path}.content[{k}]", moved))
                case Thinking():
                    self._said(role, parts, path, written)
                    self._think(block, written)
                case _:
                    parts.append(block)
        self._said(role, [*moved, *parts], path, written)

    def _without_last_thoughts(self, blocks: list[Block]) -> list[Block]:
        """Leave reasoning out that led to nothing: OpenAI refuses it."""
        end = len(blocks)
        while end and isinstance(blocks[end - 1], Thinking):
            end -= 1
        self._dropped.drop("reasoning_signature")
        return blocks[:end]

    def _said(self, role: Role, blocks: list[Block], path: str, written: list[bytes]) -> None:
        """Write the parts that are waiting."""
        if not blocks:
            return
        if role is Role.ASSISTANT:
            if any(isinstance(block, Text) and block.signature is not None for block in blocks):
                self._dropped.drop("reasoning_signature")
            blocks[:] = [block for block in blocks if not isinstance(block, Text) or block.text != EMPTY]
        if not blocks:
            return
        only = blocks[0]
        if len(blocks) == 1 and isinstance(only, Text) and (only.cache is None or not self._has_marks):
            self._marks(only.cache)
            content = only.text
        elif not self._facts.text_parts and all(isinstance(block, Text | Refusal) for block in blocks):
            content = self._joined(blocks, b"" if role is Role.ASSISTANT else NEWLINES)
        else:
            parts = [self._part(block, role, f"{path}.content[{k}]") for k, block in enumerate(blocks)]
            content = b"[" + b",".join(parts) + b"]"
        written.append(_PLAIN % (_ROLES[role], content))
        blocks.clear()

    def _joined(self, blocks: Sequence[Block], between: bytes) -> JsonText:
        texts = [block for block in blocks if isinstance(block, Text | Refusal)]
        for block in texts:
            if isinstance(block, Text):
                self._marks(block.cache)
        return joined([block.text for block in texts], between)

    def _part(self, block: Block, role: Role, path: str) -> bytes:
        match block:
            case Text() if role is Role.ASSISTANT:
                if block.cache is not None:
                    self._dropped.drop("cache")
                return b'{"type":"output_text","text":%b}' % block.text
            case Text():
                return b'{"type":"input_text","text":%b%b}' % (block.text, self._marks(block.cache))
            case Refusal():
                return b'{"type":"refusal","refusal":%b}' % block.text
            case Image():
                taken = taken_detail(block.detail, self._facts, self._dropped, path)
                detail = b"" if taken is None else b',"detail":' + quoted(taken)
                form = b'{"type":"input_image","image_url":%b%b%b}'
                return form % (quoted(_image_url(block.source, path)), detail, self._marks(block.cache))
            case Document():
                return self._document(block, path)
            case Audio():
                raise BadRequestError("the model of this route takes no audio", path)
        raise BadRequestError("this part can't be in a message", path)

    def _document(self, document: Document, path: str) -> bytes:
        if document.citations:
            self._dropped.drop("citations", path)
        context = document.context
        before = b"" if context is None or is_blank(context) else b'{"type":"input_text","text":%b},' % context
        source, mark = document.source, self._marks(document.cache)
        match source.kind:
            case MediaKind.TEXT:
                return b'{"type":"input_text","text":%b%b}' % (document_text(document), mark)
            case _ if "file" in self._facts.refused:
                if is_text(source.type) and (said := data_text(document)) is not None:
                    return b'{"type":"input_text","text":%b%b}' % (said, mark)
                raise BadRequestError("the model of this route takes no files; send their text", path)
            case MediaKind.URL if source.value.startswith(("http:", "https:")):
                return b'%b{"type":"input_file","file_url":%b%b}' % (before, quoted(source.value), mark)
            case MediaKind.DATA:
                kind = source.type or "application/pdf"
                name = document.name or "file." + kind.rpartition("/")[2]
                data = f"data:{kind};base64,{source.value}"
                form = b'%b{"type":"input_file","filename":%b,"file_data":%b%b}'
                return form % (before, quoted(name), quoted(data), mark)
        raise BadRequestError("the model of this route takes files as base64 data or http(s) URLs", path)

    def _marks(self, mark: CacheMark | None) -> bytes:
        if mark is None:
            return b""
        if not self._has_marks:
            self._dropped.drop("cache")
            return b""
        ttl = b',"ttl":' + quoted(_LIFETIMES[mark.ttl]) if mark.ttl in _LIFETIMES else b""
        return b',"prompt_cache_breakpoint":{"mode":"explicit"%b}' % ttl

    # -- reasoning, calls and results -------------------------------------------------------------------

    def _think(self, block: Thinking, written: list[bytes]) -> None:
        signature = block.signature
        is_own = signature is not None and signature.provider == self._provider and ":" not in signature.value
        if signature is None or not is_own or block.is_redacted:
            self._dropped.drop("reasoning_signature")  # a value with a colon is of the provider's Chat Completions
            return
        # Without its id: with it and `store: false` OpenAI wants the very item that followed, "provided without its
        # required following item" (openai/openai-node#1567, vercel/ai#12687). Codex keeps none, either.
        summary = b"" if block.text == EMPTY else b'{"type":"summary_text","text":%b}' % block.text
        form = b'{"type":"reasoning","summary":[%b],"encrypted_content":%b}'
        written.append(form % (summary, quoted(signature.value)))

    def _call(self, call: ToolUse) -> bytes:
        signature, thought = call.signature, b""
        if signature is not None and signature.provider == self._provider and signature.value.startswith(THOUGHT):
            thought = b',"thought_signature":' + quoted(signature.value.removeprefix(THOUGHT))
        elif signature is not None:
            self._dropped.drop("reasoning_signature")
        if call.cache is not None:
            self._dropped.drop("cache")
        return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b%b}' % (
            quoted(self._call_id(call)),
            quoted(self._names.fit(call.name)),
            quoted(call.arguments.decode("utf-8", "surrogatepass")),
            thought,
        )

    def _result(self, result: ToolResult, path: str, moved: list[Block]) -> bytes:
        """Write the result of a tool. moved: files that go into the next message, where results are texts."""
        if result.is_error:
            self._dropped.drop("is_error")
        if result.cache is not None:
            self._dropped.drop("cache")
        parts = result.parts
        only = parts[0] if len(parts) == 1 else None
        if not parts:
            output = EMPTY
        elif isinstance(only, Text) and (only.cache is None or not self._has_marks):
            self._marks(only.cache)
            output = only.text
        elif not self._facts.text_parts:
            moved += [part for part in parts if not isinstance(part, Text)]
            texts = [part for part in parts if isinstance(part, Text)]
            output = self._joined(texts, b"\\n") if texts else _FILES_FOLLOW
        else:
            written = [self._part(part, Role.USER, f"{path}[{k}]") for k, part in enumerate(parts)]
            output = b"[" + b",".join(written) + b"]"
        call_id = quoted(self._result_id(result))
        return b'{"type":"function_call_output","call_id":%b,"output":%b}' % (call_id, output)

    def _call_id(self, call: ToolUse) -> str:
        if call.id:
            return self._ids.fit(call.id)
        made = f"call_{self._n_without_id}"
        self._n_without_id += 1
        self._unanswered.add("", call.name, made)
        return made

    def _result_id(self, result: ToolResult) -> str:
        """Return the id of the call that this is the result of; without one, the first of that name."""
        if result.id:
            return self._ids.fit(result.id)
        found = self._unanswered.take_named(result.name) or self._unanswered.take_named(None)
        return found or f"call_{self._names.fit(result.name or 'x')}"


def _image_url(source: Media, path: str) -> str:
    if source.kind is MediaKind.DATA:
        return f"data:{source.type or 'image/png'};base64,{source.value}"
    if source.kind is MediaKind.URL and source.value.startswith(("http:", "https:")):
        return source.value
    raise BadRequestError("the model of this route takes pictures as base64 data or http(s) URLs", path)
