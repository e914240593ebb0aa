"""Chat Completions as OpenAI's models and those of every compatible server speak it: asked, and their answers read.

Knows: the request's JSON, and where servers differ, by ModelFacts. Does not know: HTTP, any model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    Choice,
    Format,
    JsonText,
    JsonValue,
    Reasoning,
    Refusal,
    Request,
    Signature,
    StreamReader,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolUse,
    Written,
)
from velox.dialects.canonical.names import FittedNames, short_key
from velox.dialects.chat import wire
from velox.dialects.chat.read_stream import ChunkReader
from velox.dialects.chat.sources import citations_of
from velox.dialects.chat.words import (
    EXTRA_CONTENT,
    lost,
    read_content,
    read_reasoning,
    read_usage,
    signed,
    stop_of,
)
from velox.dialects.chat.write_request import MessageWriter
from velox.dialects.facts.counts import checked_tools, taken_stops
from velox.dialects.facts.efforts import effort_of, taken_effort
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.output_limit import taken_max_tokens
from velox.dialects.json_text.decoding import decoded_reply, is_given, reply_text
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import EMPTY, quoted, raw_text
from velox.dialects.openai_errors import api_error, read_error
from velox.dialects.tools.arguments import read_arguments
from velox.dialects.tools.hosted import taken_search, without_pictures
from velox.dialects.tools.strict_schema import strict_field, taken_strict
from velox.dialects.tools.tool_fit import fit_tools
from velox.dialects.tools.tool_schema import listed_schema
from velox.protocol.slices import concatenated

__all__ = ["ChatModel"]

_COMPLETION: Final = msgspec.json.Decoder(wire.Completion)
_FILTERED: Final = "content_filter"
_NO_MESSAGE: Final = wire.ReplyMessage()
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_NAME: Final = 64
_OBJECT: Final = b'{"type":"json_object"}'
_DEFAULT_FORMAT_NAME: Final = "answer"
_FORMAT_NAME_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")
_CHOICES: Final = {Choice.AUTO: b'"auto"', Choice.NONE: b'"none"', Choice.REQUIRED: b'"required"'}
# For servers that know no schemas.
_SCHEMA_NOTE: Final = "Answer with a JSON object and nothing else. It must fit this JSON schema: "


class ChatModel:
    """One attempt at a model; see ModelSide. provider: the name of its row, whose signatures only it takes back."""

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, provider: str = "openai") -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._renamed: Final = dict(facts.renamed)
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self._tools: Final[set[str]] = set()  # their names, as they are sent

    def __repr__(self) -> str:
        return f"<ChatModel {self._provider}>"

    # -- requests -------------------------------------------------------------------------------------

    def write(self, request: Request, model: str) -> Written:
        """See ModelSide."""
        facts, dropped = self._facts, self._dropped
        without_pictures(request, self._dropped)
        keys = fit_tools(request, facts.schemas_refuse)
        if request.web_search is not None:
            taken_search(request, None, dropped)
        messages = MessageWriter(facts, dropped, self._provider, self._names)
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

    def _tool(self, tool: Tool, messages: MessageWriter) -> bytes:
        description = b"" if tool.description is None else b',"description":' + tool.description
        schema, strict = taken_strict(listed_schema(tool.parameters), tool.strict, self._dropped, "tools")
        name = self._names.fit(tool.name)
        self._tools.add(name)
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

    # -- answers ----------------------------------------------------------------------------------------

    def answer(self, body: bytes) -> Answer:
        """See ModelSide."""
        return keeping_surrogates(self._answer, reply_text(body))

    def _answer(self, body: bytes) -> Answer:
        given = decoded_reply(_COMPLETION, body)
        if is_given(given.error):
            raise ReplyError(api_error(given.error))
        choice = next((each for each in given.choices or () if not each.index), None)
        if choice is not None and is_given(choice.error):
            raise ReplyError(api_error(choice.error))
        message = None if choice is None else choice.message
        if choice is not None and message is None and choice.finish_reason == _FILTERED:
            message = _NO_MESSAGE  # Azure's, where its filter took all of it
        if choice is None or message is None:
            raise BrokenReplyError("the upstream's answer has no message")
        blocks = self._blocks(message)
        has_calls = any(isinstance(block, ToolUse) for block in blocks)
        stop = stop_of(choice.finish_reason or "stop", choice.stop_reason, has_calls=has_calls)
        if isinstance(stop, ApiError):
            raise ReplyError(stop)
        return Answer(
            str(given.id or ""),
            given.model or "",
            blocks,
            stop,
            read_usage(given.usage, given.service_tier),
            given.service_tier,
            tuple(dict.fromkeys(lost(message))),
        )

    def _blocks(self, message: wire.ReplyMessage) -> list[AnswerBlock]:
        text, thought = read_content(message.content)
        blocks: list[AnswerBlock] = []
        if message.reasoning_details:
            blocks += read_reasoning(message.reasoning_details, self._provider)
        else:
            for reasoning in (raw_text(message.reasoning_content), raw_text(message.reasoning), thought):
                if reasoning is not None and reasoning != EMPTY:
                    blocks.append(Thinking(reasoning))
                    break
        if text != EMPTY:
            blocks.append(Text(text, cited=citations_of(message.annotations)))
        refusal = raw_text(message.refusal)
        if refusal is not None and refusal != EMPTY:
            blocks.append(Refusal(refusal))
        for call in message.tool_calls or ():
            if call.function is not None:
                blocks.append(
                    ToolUse(
                        call.id or "",
                        call.function.name,
                        read_arguments(bytes(call.function.arguments)),
                        self._google(call.extra_content),
                    )
                )
        old = message.function_call
        if old is not None and not message.tool_calls:
            blocks.append(ToolUse("", old.name, read_arguments(bytes(old.arguments))))
        return blocks

    def _google(self, extra: wire.ExtraContent | None) -> Signature | None:
        if extra is None or extra.google is None or not extra.google.thought_signature:
            return None
        return signed(self._provider, EXTRA_CONTENT, extra.google.thought_signature)

    def stream(self) -> StreamReader:
        """See ModelSide."""
        return ChunkReader(self._provider, self._tools)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """See ModelSide."""
        return read_error(status, body)


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
