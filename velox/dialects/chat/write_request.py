"""Writes requests of Chat Completions for OpenAI's models and those of every compatible server.

Knows: the request's JSON, and where servers differ, by ModelFacts. Does not know: HTTP, any model's name.
"""

from __future__ import annotations

import hashlib
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
    Written,
)
from velox.dialects.canonical.names import FittedNames, short_key
from velox.dialects.chat.words import (
    EXTRA_CONTENT,
)
from velox.dialects.facts.efforts import effort_of, taken_effort
from velox.dialects.facts.limits import checked_tools, taken_max_tokens, taken_stops
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.openai_values import taken_detail
from velox.dialects.json_text.text import EMPTY, is_blank, joined, quoted
from velox.dialects.media.file_types import data_text, document_text, is_text
from velox.dialects.tools.hosted import taken_search, without_pictures
from velox.dialects.tools.open_calls import OpenCalls
from velox.dialects.tools.strict_schema import strict_field, taken_strict
from velox.dialects.tools.tool_fit import fit_tools
from velox.dialects.tools.tool_schema import listed_schema
from velox.protocol.slices import concatenated

__all__ = ["ChatRequestWriter"]

# OpenAI refuses longer ids of calls.
_MOST_ID: Final = 40
_SYSTEM: Final = Role.SYSTEM
_ASSISTANT: Final = Role.ASSISTANT
_USER: Final = Role.USER
_PLAIN: Final = {
    Role.SYSTEM: b'{"role":"system","content":%b}',
    Role.USER: b'{"role":"user","content":%b}',
    Role.ASSISTANT: b'{"role":"assistant","content":%b}',
}
_N_MISTRAL: Final = 9
_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LIFETIMES: Final = {"1h": "12h"}  # the canonical model's -> OpenAI's; its default is 30 minutes
_AFTER_RESULTS: Final = b'{"role":"assistant","content":"I have the results."}'
_RESULT: Final = b'{"role":"tool"'
_OF_ASSISTANT: Final = b'{"role":"assistant"'
_PICTURES_FOLLOW: Final = b'"The files of this result are in the next message."'
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_NAME: Final = 64
_OBJECT: Final = b'{"type":"json_object"}'
_DEFAULT_FORMAT_NAME: Final = "answer"
_FORMAT_NAME_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")
_CHOICES: Final = {Choice.AUTO: b'"auto"', Choice.NONE: b'"none"', Choice.REQUIRED: b'"required"'}
# For servers that know no schemas.
_SCHEMA_NOTE: Final = "Answer with a JSON object and nothing else. It must fit this JSON schema: "


class ChatRequestWriter:
    """Writes one request for OpenAI and every compatible server.

    provider: the name of its row, whose signatures only it takes back. tools: the names of the request's, as sent.
    """

    __slots__ = ("_dropped", "_facts", "_names", "_provider", "_renamed", "tools")

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, provider: str) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._renamed: Final = dict(facts.renamed)
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self.tools: Final[set[str]] = set()

    def write(self, request: Request, model: str) -> Written:
        """Return what is sent. Raises BadRequestError."""
        facts, dropped = self._facts, self._dropped
        without_pictures(request, self._dropped)
        keys = fit_tools(request, facts.schemas_refuse)
        if request.web_search is not None:
            taken_search(request, None, dropped)
        messages = _MessageWriter(facts, dropped, self._provider, self._names)
        wanted = request.format
        note = None if wanted is None or wanted.schema is None or facts.json_schema else _note(wanted.schema)
        fields: list[bytes] = [
            b'{"model":',
            quoted(model),
            b',"messages":[',
            messages.write(request.messages, note),
            b"]",
        ]
        if request.stream:
            fields.append(b',"stream":true')
            if "stream_options" not in facts.refused:
                fields.append(b',"stream_options":{"include_usage":true}')
        if request.tools:
            tools = b",".join([self._tool(tool, messages) for tool in checked_tools(self._sent(request), facts)])
            fields += [b',"tools":[', tools, b"]"]
            if request.tool_choice is not None:
                self._add(fields, "tool_choice", self._tool_choice(request.tool_choice))
            if request.parallel_tools is not None:
                self._add(fields, "parallel_tool_calls", b"true" if request.parallel_tools else b"false")
        self._add_number(fields, facts.max_tokens_name, taken_max_tokens(request.max_tokens, facts, dropped))
        self._sampling(fields, request)
        if request.stop:
            self._add(fields, "stop", b"[%b]" % b",".join(map(quoted, taken_stops(request.stop, facts))))
        if wanted is not None:
            self._add(fields, "response_format", _OBJECT if note is not None else _format(wanted, dropped))
        if request.reasoning is not None:
            self._reasoning(fields, request.reasoning)
        if request.user is not None:
            self._add(fields, "user", quoted(short_key(request.user)))
        if request.tier is not None:
            tier = self._renamed.get(f"service_tier.{request.tier}", request.tier)
            self._add(fields, "service_tier", quoted(tier))
        if request.cache_key is not None:
            self._add(fields, "prompt_cache_key", quoted(short_key(request.cache_key)))
        if request.verbosity is not None:
            if facts.verbosity:
                self._add(fields, "verbosity", quoted(request.verbosity))
            else:
                dropped.drop("verbosity")
        fields += [messages.cache_control(request.cache), b"}"]
        return Written(concatenated(fields), self._names.originals, messages.ids, keys)

    def _add(self, fields: list[bytes], name: str, value: bytes) -> None:
        """Add a field as it is called there, if the model takes it."""
        if name in self._facts.refused:
            self._dropped.drop(name)
            return
        fields.append(b',"%b":%b' % (self._renamed.get(name, name).encode(), value))

    def _add_number(self, fields: list[bytes], name: str, value: float | None) -> None:
        if value is not None:
            self._add(fields, name, msgspec.json.encode(value))

    def _sampling(self, fields: list[bytes], request: Request) -> None:
        for name, value in (
            ("temperature", request.temperature),
            ("top_p", request.top_p),
            ("top_k", request.top_k),
        ):
            if value is not None and not self._facts.sampling:
                self._dropped.drop(name)
            else:
                self._add_number(fields, name, value)
        self._add_number(fields, "seed", request.seed)
        self._add_number(fields, "presence_penalty", request.presence_penalty)
        self._add_number(fields, "frequency_penalty", request.frequency_penalty)

    def _reasoning(self, fields: list[bytes], reasoning: Reasoning) -> None:
        if self._facts.thinking == "none":
            if reasoning.enabled is not False and reasoning.effort != "none":
                self._dropped.drop("reasoning")
            return
        effort = reasoning.effort
        if self._facts.thinking == "switch":
            is_on = effort_of(reasoning) != "none"
            if is_on and effort is not None:
                self._dropped.drop("reasoning", problem="the effort of reasoning can't be chosen for this model")
            self._add(fields, "reasoning_effort", b'"default"' if is_on else b'"none"')
            return
        if effort is None and (reasoning.budget_tokens is not None or reasoning.enabled is False):
            effort = effort_of(reasoning)
        is_off = effort == "none" and reasoning.effort is None
        if self._facts.thinking == "toggle" and (is_off or reasoning.enabled is not None):
            self._add(fields, "thinking", b'{"type":"disabled"}' if is_off else b'{"type":"enabled"}')
        elif is_off:
            # Many models reason as they like, and refuse the effort "none".
            self._dropped.drop("reasoning")
        if effort is not None and not is_off:
            self._add(fields, "reasoning_effort", quoted(taken_effort(effort, self._facts.efforts, self._dropped)))

    def _sent(self, request: Request) -> list[Tool]:
        """Return the tools: where the choice is among some, and the API has no way to say so, those alone."""
        choice = request.tool_choice
        if choice is None or not choice.allowed or self._facts.allowed_tools:
            return request.tools
        tools = [tool for tool in request.tools if tool.name in choice.allowed]
        if not tools:
            raise BadRequestError("the tools that may be called are not among the tools", "tool_choice")
        return tools

    def _tool(self, tool: Tool, messages: _MessageWriter) -> bytes:
        description = b"" if tool.description is None else b',"description":' + tool.description
        schema, strict = taken_strict(listed_schema(tool.parameters), tool.strict, self._dropped, "tools")
        name = self._names.fit(tool.name)
        self.tools.add(name)
        return b'{"type":"function","function":{"name":%b%b,"parameters":%b%b}%b}' % (
            quoted(name),
            description,
            schema,
            strict_field(strict),
            b"" if tool.cache is None else messages.cache_control(tool.cache),
        )

    def _tool_choice(self, choice: ToolChoice) -> bytes:
        if choice.choice is Choice.TOOL:
            return b'{"type":"function","function":{"name":%b}}' % quoted(self._names.fit(choice.name or ""))
        if choice.allowed and self._facts.allowed_tools:
            form = b'{"type":"function","function":{"name":%b}}'
            tools = b",".join(form % quoted(self._names.fit(name)) for name in choice.allowed)
            return b'{"type":"allowed_tools","allowed_tools":{"mode":%b,"tools":[%b]}}' % (
                _CHOICES[choice.choice],
                tools,
            )
        word = _CHOICES[choice.choice]
        renamed = self._renamed.get(f"tool_choice.{word[1:-1].decode()}")
        return word if renamed is None else quoted(renamed)


def _format(wanted: Format, dropped: DroppedFields) -> bytes:
    """Write a format that is not plain text."""
    if wanted.schema is None:
        return _OBJECT
    name = _FORMAT_NAME_OTHER.sub("_", (wanted.name or _DEFAULT_FORMAT_NAME)[:_MOST_NAME])
    description = b"" if wanted.description is None else b',"description":' + wanted.description
    schema, strict = taken_strict(wanted.schema, wanted.strict, dropped, "response_format")
    form = b'{"type":"json_schema","json_schema":{"name":%b%b,"schema":%b%b}}'
    return form % (quoted(name), description, schema, strict_field(strict))


def _note(schema: JsonValue) -> JsonText:
    """Return what tells a model the schema that its server can't be told."""
    return quoted(_SCHEMA_NOTE + schema.decode("utf-8", "replace"))


class _MessageWriter:
    """Writes the messages of one request. ids: those of calls that are others there -> as the client has them."""

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, provider: str, names: FittedNames) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._names: Final = names
        self._mark_name: Final = dict(facts.renamed).get("prompt_cache_breakpoint") if facts.cache_marks else None
        self.ids: Final[dict[str, str]] = {}
        self._unanswered: Final[OpenCalls[str]] = OpenCalls()  # ids of calls that the client gave none
        self._n_without_id = 0

    def write(self, messages: Sequence[Message], note: JsonText | None) -> bytes:
        """Write them. note: what else the model is told, after the leading system messages."""
        written: list[bytes] = []
        if not self._facts.later_system:
            messages, note = _with_one_system(messages, note), None
        for n, message in enumerate(_turns(messages)):
            role = message.role
            if note is not None and role is not _SYSTEM:
                written.append(b'{"role":"system","content":%b}' % note)
                note = None
            if message.plain is not None:
                written.append(_PLAIN[role] % message.plain)
            elif role is _ASSISTANT:
                written.append(self._assistant(message))
            elif role is _SYSTEM:
                written.append(self._said(b"system", message, message.blocks, n))
            else:
                written += self._user(message, n)
        if note is not None:
            written.append(b'{"role":"system","content":%b}' % note)
        if messages and messages[-1].role is _ASSISTANT and not self._facts.prefill:
            text = "the model of this route can't go on with a message of the assistant; end with the user's"
            raise BadRequestError(text, f"messages[{len(messages) - 1}]")
        if not self._facts.user_after_results:
            written = _answered(written)
        return b",".join(written)

    # -- user and system ------------------------------------------------------------------------------

    def _user(self, message: Message, n: int) -> list[bytes]:
        """Write the results of tools as messages of their own, first, and then what else there is."""
        written: list[bytes] = []
        others: list[Block] = []
        moved: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                written.append(self._result(block, moved))
            else:
                others.append(block)
        others = [*moved, *others]
        if others or not written:
            written.append(self._said(b"user", message, others, n))
        return written

    def _said(self, role: bytes, message: Message, blocks: Sequence[Block], n: int) -> bytes:
        name = b""
        if message.name is not None:
            if "name" in self._facts.refused:
                self._dropped.drop("name", f"messages[{n}].name")
            else:
                name = b',"name":' + quoted(message.name)
        return b'{"role":"%b","content":%b%b}' % (role, self._content(blocks, n), name)

    def _content(self, blocks: Sequence[Block], n: int) -> bytes:
        if len(blocks) == 1:
            block = blocks[0]
            if isinstance(block, Text) and block.cache is None:
                return block.text
        texts = [block.text for block in blocks if isinstance(block, Text)]
        if len(texts) == len(blocks):
            marks = [self._marks(block.cache) for block in blocks if isinstance(block, Text)]
            if not any(marks) and (len(texts) < 2 or not self._facts.text_parts):
                return joined(texts)
        parts = [self._part(block, f"messages[{n}].content[{k}]") for k, block in enumerate(blocks)]
        return b"[" + b",".join(parts) + b"]"

    def _part(self, block: Block, path: str) -> bytes:
        match block:
            case Text():
                return b'{"type":"text","text":%b%b}' % (block.text, self._marks(block.cache))
            case Image():
                return self._image(block, path)
            case Audio():
                if block.source.kind is not MediaKind.DATA:
                    raise BadRequestError("the model of this route takes audio as base64 data only", path)
                form = block.format or (block.source.type or "audio/wav").partition("/")[2]
                return b'{"type":"input_audio","input_audio":{"data":%b,"format":%b}}' % (
                    quoted(block.source.value),
                    quoted({"mpeg": "mp3", "x-wav": "wav"}.get(form, form)),
                )
            case Document():
                return self._document(block, path)
        raise BadRequestError("this part can't be in a message of the user", path)

    def _image(self, image: Image, path: str) -> bytes:
        source = image.source
        if source.kind is MediaKind.DATA:
            url = f"data:{source.type or 'image/png'};base64,{source.value}"
        elif source.kind is MediaKind.URL and source.value.startswith(("http:", "https:")):
            url = source.value
        else:
            raise BadRequestError("the model of this route takes pictures as base64 data or http(s) URLs", path)
        taken = taken_detail(image.detail, self._facts, self._dropped, path)
        detail = b"" if taken is None else b',"detail":' + quoted(taken)
        form = b'{"type":"image_url","image_url":{"url":%b%b}%b}'
        return form % (quoted(url), detail, self._marks(image.cache))

    def _document(self, document: Document, path: str) -> bytes:
        if document.citations:
            self._dropped.drop("citations", path)
        source, mark = document.source, self._marks(document.cache)
        if source.kind is MediaKind.TEXT:
            return b'{"type":"text","text":%b%b}' % (document_text(document), mark)
        if source.kind is not MediaKind.DATA:
            raise BadRequestError("the model of this route takes files as base64 data only", path)
        if is_text(source.type) and (said := data_text(document)) is not None:
            return b'{"type":"text","text":%b%b}' % (said, mark)
        if "file" in self._facts.refused:
            raise BadRequestError("the model of this route takes no files; send their text", path)
        name = document.name or "file." + (source.type or "application/pdf").rpartition("/")[2]
        data = f"data:{source.type or 'application/pdf'};base64,{source.value}"
        context = document.context
        before = b"" if context is None or is_blank(context) else b'{"type":"text","text":%b},' % context
        form = b'%b{"type":"file","file":{"filename":%b,"file_data":%b}%b}'
        return form % (before, quoted(name), quoted(data), mark)

    def _result(self, result: ToolResult, moved: list[Block]) -> bytes:
        """Write the result of a tool: text only; files move to the message that follows."""
        if result.is_error:
            self._dropped.drop("is_error")
        call_id = quoted(self._result_id(result))
        parts = result.parts
        if len(parts) == 1 and type(parts[0]) is Text and parts[0].cache is None and result.cache is None:
            return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (call_id, parts[0].text)
        texts = [part.text for part in parts if isinstance(part, Text)]
        files = [part for part in parts if not isinstance(part, Text)]
        moved += files
        marks = [mark for part in parts if isinstance(part, Text) and (mark := self._marks(part.cache))]
        mark = self._marks(result.cache) or (marks[-1] if marks else b"")
        content = joined(texts, b"\\n") if texts else _PICTURES_FOLLOW if files else EMPTY
        if mark:
            content = b'[{"type":"text","text":%b%b}]' % (content, mark)
        return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (call_id, content)

    # -- the assistant ----------------------------------------------------------------------------------

    def _assistant(self, message: Message) -> bytes:
        texts: list[JsonText] = []
        thoughts: list[JsonText] = []
        details: list[bytes] = []
        calls: list[bytes] = []
        refusals: list[JsonText] = []
        mark = b""
        for block in message.blocks:
            if isinstance(block, ToolUse):
                calls.append(self._call(block))
            elif isinstance(block, Text):
                texts.append(block.text)
                if block.cache is not None:
                    mark = self._marks(block.cache) or mark
                if block.signature is not None:
                    self._dropped.drop("reasoning_signature")
            elif isinstance(block, Thinking):
                self._thinking(block, thoughts, details)
            elif isinstance(block, Refusal):
                refusals.append(block.text)
            else:
                self._dropped.drop("media")
        content = self._assistant_content(texts, thoughts, mark, has_calls=bool(calls or refusals))
        fields = [b'{"role":"assistant","content":', content]
        if refusals:
            fields += [b',"refusal":', joined(refusals, b"")]
        if message.name is not None and "name" not in self._facts.refused:
            fields += [b',"name":', quoted(message.name)]
        if thoughts and self._facts.reasoning_field != "thinking":
            fields += [b',"%b":' % self._facts.reasoning_field.encode(), joined(thoughts)]
        if details:
            fields += [b',"reasoning_details":[', b",".join(details), b"]"]
        if calls:
            fields += [b',"tool_calls":[', b",".join(calls), b"]"]
        fields.append(b"}")
        return b"".join(fields)

    def _assistant_content(
        self, texts: Sequence[JsonText], thoughts: Sequence[JsonText], mark: bytes, *, has_calls: bool
    ) -> bytes:
        if not texts and not thoughts:
            return b"null" if has_calls else EMPTY
        text = joined(texts, b"")
        if thoughts and self._facts.reasoning_field == "thinking":
            thought = b'{"type":"thinking","thinking":[{"type":"text","text":%b}]}' % joined(thoughts)
            return b'[%b,{"type":"text","text":%b%b}]' % (thought, text, mark)
        if mark and texts:
            return b'[{"type":"text","text":%b%b}]' % (text, mark)
        return b"null" if has_calls and text == EMPTY else text

    def _thinking(self, block: Thinking, thoughts: list[JsonText], details: list[bytes]) -> None:
        """Write reasoning that is the model's own, or nobody's."""
        signature = block.signature
        if signature is None:
            if not self._facts.reasoning_field:
                self._dropped.drop("reasoning")
            elif block.text != EMPTY:
                thoughts.append(block.text)
            return
        if signature.provider != self._provider:
            self._dropped.drop("reasoning_signature")
            return
        form, colon, value = signature.value.partition(":")
        if not colon or not self._facts.reasoning_field:
            self._dropped.drop("reasoning_signature")  # of the provider's Responses, or of a model that takes none here
            return
        own_id = b"" if signature.item_id is None else b',"id":' + quoted(signature.item_id)
        if block.is_redacted:
            entry = b'{"type":"reasoning.encrypted","data":%b' % quoted(value)
        else:
            entry = b'{"type":"reasoning.text","text":%b,"signature":%b' % (block.text, quoted(value))
        details.append(b'%b,"format":%b,"index":%d%b}' % (entry, quoted(form), len(details), own_id))

    def _call(self, call: ToolUse) -> bytes:
        extra = b"" if call.signature is None else self._extra(call.signature)
        mark = b"" if call.cache is None else self._marks(call.cache)
        return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}%b%b}' % (
            quoted(self._call_id(call)),
            quoted(self._names.fit(call.name)),
            quoted(call.arguments.decode("utf-8", "replace")),
            extra,
            mark,
        )

    def _extra(self, signature: Signature) -> bytes:
        form, _, value = signature.value.partition(":")
        if signature.provider != self._provider or form != EXTRA_CONTENT:
            self._dropped.drop("reasoning_signature")
            return b""
        return b',"extra_content":{"google":{"thought_signature":%b}}' % quoted(value)

    # -- marks and ids ----------------------------------------------------------------------------------

    def cache_control(self, mark: CacheMark | None) -> bytes:
        """Return the field of a mark on a tool or on the request, where the server has one there.

        OpenAI has none: what stands before the messages is cached with them.
        """
        return self._marks(mark) if self._mark_name in (None, "cache_control") else b""

    def _marks(self, mark: CacheMark | None) -> bytes:
        if mark is None:
            return b""
        if self._mark_name is None:
            self._dropped.drop("cache")
            return b""
        if self._mark_name == "cache_control":
            ttl = b"" if mark.ttl is None else b',"ttl":' + quoted(mark.ttl)
            return b',"cache_control":{"type":"ephemeral"%b}' % ttl
        ttl = b',"ttl":' + quoted(_LIFETIMES[mark.ttl]) if mark.ttl in _LIFETIMES else b""
        return b',"prompt_cache_breakpoint":{"mode":"explicit"%b}' % ttl

    def _call_id(self, call: ToolUse) -> str:
        if call.id:
            return self._fit(call.id)
        made = self._fit(f"call_{self._n_without_id}")
        self._n_without_id += 1
        self._unanswered.add("", call.name, made)
        return made

    def _result_id(self, result: ToolResult) -> str:
        """Return the id of the call that this is the result of; without one, the first of that name."""
        if result.id:
            return self._fit(result.id)
        found = self._unanswered.take_named(result.name) or self._unanswered.take_named(None)
        return found or self._fit(f"call_{result.name or ''}")

    def _fit(self, call_id: str) -> str:
        is_mistral = self._facts.call_ids == "mistral"
        if is_mistral:
            fits = len(call_id) == _N_MISTRAL and call_id.isascii() and call_id.isalnum()
        else:
            fits = len(call_id) <= _MOST_ID
        if fits:
            return call_id
        digest = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:16], "big")
        letters = []
        for _ in range(_N_MISTRAL if is_mistral else 20):
            digest, digit = divmod(digest, len(_LETTERS))
            letters.append(_LETTERS[digit])
        fitted = "".join(letters) if is_mistral else "call_" + "".join(letters)
        self.ids[fitted] = call_id
        return fitted


def _with_one_system(messages: Sequence[Message], note: JsonText | None) -> list[Message]:
    """Return the messages with one of the system's at most, at the beginning; the user says what others there are.

    note: stands behind it.
    """
    n_leading = next((n for n, message in enumerate(messages) if message.role is not _SYSTEM), len(messages))
    leading = [*messages[:n_leading]]
    if note is not None:
        leading.append(Message(_SYSTEM, [Text(note)], None, note))
    if len(leading) > 1:
        leading = [Message(_SYSTEM, [block for message in leading for block in message.blocks])]
    others = [
        Message(_USER, message.blocks, message.name, message.plain) if message.role is _SYSTEM else message
        for message in messages[n_leading:]
    ]
    return leading + others


def _answered(messages: Sequence[bytes]) -> list[bytes]:
    """Return written messages, with one of the assistant's between results and what others say."""
    found: list[bytes] = []
    for message in messages:
        if found and found[-1].startswith(_RESULT) and not message.startswith((_RESULT, _OF_ASSISTANT)):
            found.append(_AFTER_RESULTS)
        found.append(message)
    return found


def _turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as OpenAI wants them: each call is followed by its results alone.

    Those of one turn are joined; a system message among calls and results comes after these.
    """
    turns = _Turns()
    held: list[Message] = []
    n_open = 0  # calls without a result, once a message is held
    for message in messages:
        if message.role is _SYSTEM and turns.found:
            if not held:
                n_open = _n_open(turns.found)
            if n_open > 0:
                held.append(message)
                continue
        elif held:
            n_open += _n_calls(message)
        if not turns.join(message):
            if held and message.role is _ASSISTANT:
                turns.add(*held)  # those calls have no results
                held = []
            turns.add(message)
        if held and n_open <= 0:
            turns.add(*held)
            held = []
    turns.add(*held)
    return turns.found


class _Turns:
    """The turns so far. Each message is looked at once: a turn may have thousands."""

    __slots__ = ("_are_open", "_own", "found")

    def __init__(self) -> None:
        self.found: Final[list[Message]] = []
        self._are_open: Final[list[bool]] = []  # of each: the next one of its role may belong to it
        self._own: Final[set[int]] = set()  # those that are no messages of the request

    def add(self, *messages: Message) -> None:
        """Add turns."""
        self.found.extend(messages)
        self._are_open.extend([_is_open(message) for message in messages])

    def join(self, message: Message) -> bool:
        """Put a message to the last turn, if it is a part of that; say whether."""
        found = self.found
        if not found or found[-1].role is not message.role or not self._are_open[-1]:
            return False
        if message.role is _ASSISTANT:
            self._put(message)
            return True
        if not any(isinstance(block, ToolResult) for block in message.blocks):
            return False
        self._put(message)
        # What the user said in several messages between a call and its result.
        while len(found) > 1 and found[-2].role is _USER and self._are_open[-2]:
            self._own.discard(len(found) - 1)
            self._are_open.pop()
            self._put(found.pop())
        return True

    def _put(self, message: Message) -> None:
        at = len(self.found) - 1
        last = self.found[at]
        if at not in self._own:
            last = self.found[at] = Message(last.role, [*last.blocks], last.name)
            self._own.add(at)
        last.blocks += message.blocks


def _is_open(message: Message) -> bool:
    """Tell whether the next message of its role may be a part of the turn: after calls, or after other than results."""
    if message.plain is not None:
        return message.role is _USER
    if message.role is _ASSISTANT:
        return any(isinstance(block, ToolUse) for block in message.blocks)
    return message.role is _USER and not all(isinstance(block, ToolResult) for block in message.blocks)


def _n_open(turns: Sequence[Message]) -> int:
    """Return how many calls of the last turn of the assistant have no result yet."""
    n_open = 0
    for turn in reversed(turns):
        if turn.role is _SYSTEM:
            return 0  # or it would be held
        n_open += _n_calls(turn)
        if turn.role is _ASSISTANT:
            break
    return n_open


def _n_calls(message: Message) -> int:
    """Return how many calls a message has, less its results."""
    return sum((type(block) is ToolUse) - (type(block) is ToolResult) for block in message.blocks)
