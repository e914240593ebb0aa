"""OpenAI Responses as models speak it: asked, and their answers read.

Nothing is kept at the provider: reasoning travels encrypted in the conversation.

Knows: the request's JSON, and where servers differ, by ModelFacts. Does not know: HTTP, any model's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    Choice,
    Format,
    JsonValue,
    Reasoning,
    Request,
    StreamReader,
    Tool,
    ToolChoice,
    WebSearch,
    Written,
)
from velox.dialects.canonical.names import FittedNames, short_key
from velox.dialects.facts.counts import checked_tools
from velox.dialects.facts.efforts import taken_effort
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.facts.output_limit import taken_max_tokens
from velox.dialects.json_text.decoding import decoded_reply, reply_text
from velox.dialects.json_text.surrogates import keeping_surrogates
from velox.dialects.json_text.text import quoted
from velox.dialects.openai_errors import read_error
from velox.dialects.responses import wire
from velox.dialects.responses.read_stream import EventReader
from velox.dialects.responses.sources import SOURCES
from velox.dialects.responses.words import answer_of
from velox.dialects.responses.write_request import ItemWriter
from velox.dialects.tools.hosted import taken_search, without_pictures
from velox.dialects.tools.json_note import json_note
from velox.dialects.tools.strict_schema import strict_field, taken_strict
from velox.dialects.tools.tool_fit import fit_tools
from velox.dialects.tools.tool_schema import listed_schema
from velox.protocol.slices import concatenated

__all__ = ["ResponsesModel"]

_REPLY: Final = msgspec.json.Decoder(wire.Reply)
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


class ResponsesModel:
    """One attempt at a model; see ModelSide.

    provider: whose signatures it takes back. lists_sources: it can be asked for the sources of a search of the web.
    """

    def __init__(
        self, facts: ModelFacts, dropped: DroppedFields, provider: str = "openai", *, lists_sources: bool = False
    ) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._provider: Final = provider
        self._lists_sources: Final = lists_sources
        self._is_format_outside: Final = ("text.format", "response_format") in facts.renamed
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self._ids: Final = FittedNames(_CALL_ID, _MOST_ID)
        self._included: Final[list[str]] = []  # what is asked for beside the answer

    def __repr__(self) -> str:
        return f"<ResponsesModel {self._provider}>"

    # -- requests -------------------------------------------------------------------------------------

    def write(self, request: Request, model: str) -> Written:
        """See ModelSide."""
        if request.stop:
            message = "the model of this route takes no stop strings; leave them out"
            raise BadRequestError(message, "stop")
        without_pictures(request, self._dropped)
        keys = fit_tools(request, self._facts.schemas_refuse)
        items = ItemWriter(self._facts, self._dropped, self._provider, self._names, self._ids)
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

    # -- answers ----------------------------------------------------------------------------------------

    def answer(self, body: bytes) -> Answer:
        """See ModelSide."""
        return keeping_surrogates(self._answer, reply_text(body))

    def _answer(self, body: bytes) -> Answer:
        return answer_of(decoded_reply(_REPLY, body), self._provider)

    def stream(self) -> StreamReader:
        """See ModelSide."""
        return EventReader(self._provider)

    def error(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
        """See ModelSide."""
        return read_error(status, body)


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
