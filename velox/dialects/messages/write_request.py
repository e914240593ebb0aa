"""Writes requests as Anthropic's Messages want them, for one attempt.

Texts, arguments and schemas are spliced. Cache marks stay where they were, the last four in the prompt's order: tools,
system, messages.

Knows: fields, their limits, and what a model takes, by ModelFacts. Does not know: HTTP, betas, any model's name.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.media_paths import media_path
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
    Document,
    Image,
    JsonValue,
    Media,
    MediaKind,
    Request,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    WebSearch,
    Written,
)
from velox.dialects.canonical.names import FittedNames
from velox.dialects.facts.efforts import budget_of, effort_of, taken_effort
from velox.dialects.facts.limits import taken_max_tokens, taken_stops, usual_max_tokens
from velox.dialects.facts.model_facts import ALWAYS_THINKING, REFUSED, ModelFacts
from velox.dialects.json_text.text import decoded, is_blank, joined, quoted
from velox.dialects.media.file_types import PDF, file_text, is_text
from velox.dialects.messages.turns import MessagesTurn, has_foreign, mark_last, system_texts, turns_of
from velox.dialects.tools.claude_schema import are_strict_taken, fitted_schema
from velox.dialects.tools.hosted import taken_search
from velox.dialects.tools.tool_fit import fitted_parameters
from velox.dialects.tools.tool_schema import object_schema
from velox.protocol.slices import concatenated

__all__ = ["MessagesRequestWriter"]

# Looking a member of an enum up costs more than most of what is done with it.
_AUTO: Final = Choice.AUTO
_NONE: Final = Choice.NONE
_REQUIRED: Final = Choice.REQUIRED
_TOOL: Final = Choice.TOOL
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_NAME: Final = 64
_MOST_ID: Final = 128
_MOST_MARKS: Final = 4
_MOST_USER: Final = 256
# Of a budget for reasoning: the API takes no less. What an answer should at least have beside it is arbitrary.
_LEAST_BUDGET: Final = 1024
_LEAST_ANSWER: Final = 1024
_TOP_P_WITH_THINKING: Final = 0.95
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_MARK: Final = b',"cache_control":{"type":"ephemeral"}'
_TTLS: Final = {
    "5m": b',"cache_control":{"type":"ephemeral","ttl":"5m"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}
_TIERS: Final = {"auto": b"auto", "default": b"standard_only"}
_CHOICES: Final = {Choice.AUTO: b'{"type":"auto"', Choice.NONE: b'{"type":"none"', Choice.REQUIRED: b'{"type":"any"'}
_FIRST_TEXT: Final = b'{"role":"user","content":[{"type":"text","text":%b}]}'
_USER_TEXT: Final = b"," + _FIRST_TEXT
_ASSISTANT_TEXT: Final = b',{"role":"assistant","content":[{"type":"text","text":%b}]}'
_ANY_OBJECT: Final = b'{"type":"object","additionalProperties":true}'
_FIRST_TOOL: Final = b'{"name":%b,"description":%b,"input_schema":%b}'
_NEXT_TOOL: Final = b"," + _FIRST_TOOL
_SEARCH: Final = "web_search"  # as Anthropic wants it to be called
_JSON_TOOL: Final = "json_answer"
_JSON_TOOL_TEXT: Final = b'"Give your whole answer as the input of this tool."'


class MessagesRequestWriter:
    """Of one request. json_tool: after write(), the tool by which the model gives an answer in JSON; None: in text."""

    __slots__ = (
        "_dropped",
        "_facts",
        "_ids",
        "_ids_written",
        "_marks",
        "_names",
        "_names_written",
        "_out",
        "_request",
        "json_tool",
    )

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, request: Request) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._request: Final = request
        self._out: Final[list[bytes]] = []
        self._marks: Final[list[int]] = []  # where they are in `_out`
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self._ids: Final = FittedNames(_NAME, _MOST_ID)
        self._ids_written: Final[dict[str, bytes]] = {}
        self._names_written: Final[dict[str, bytes]] = {}
        self.json_tool: str | None = None

    def write(self, model: str) -> Written:
        """Write it. Raises BadRequestError."""
        request, out = self._request, self._out
        system, rest = system_texts(request.messages)
        turns = turns_of(rest, self._dropped)
        if not turns and system:
            # A conversation needs a message: the last instruction is it.
            turns = [MessagesTurn(is_user=True, blocks=[system.pop()])]
        if not turns:
            raise BadRequestError("there is no message with any content; send one at least", "messages")
        if not turns[-1].is_user and not self._facts.prefill:
            message = "the model does not go on with a message of the assistant; let the last one be the user's"
            raise BadRequestError(message, "messages")
        whole = request.cache
        if whole is not None and ("cache_control", REFUSED) in self._facts.beta_fields:
            mark_last(turns[-1], whole)
            whole = None
        asked = taken_max_tokens(request.max_tokens, self._facts, self._dropped)
        max_tokens = asked if asked is not None else usual_max_tokens(self._facts)
        out.append(b'{"model":%b,"max_tokens":%d' % (quoted(model), max_tokens))
        is_reasoning = self._write_options(max_tokens, turns)
        self._write_tools(turns, is_reasoning=is_reasoning)
        if system:
            self._write_system(system)
        self._write_turns(turns)
        if whole is not None:
            self._mark(whole)
        out.append(b',"stream":true}' if request.stream else b"}")
        for at in self._marks[:-_MOST_MARKS]:
            out[at] = b""
            self._dropped.drop("cache_control")
        return Written(concatenated(out), self._names.originals, self._ids.originals)

    # -- options --------------------------------------------------------------------------------------

    def _write_options(self, max_tokens: int, turns: list[MessagesTurn]) -> bool:
        """Write what is no part of the prompt; return whether the model reasons."""
        request, dropped = self._request, self._dropped
        config: list[bytes] = []
        schema = self._schema()
        is_reasoning = False
        if request.reasoning is not None:
            is_reasoning = self._write_reasoning(max_tokens, turns, config)
        elif self._facts.thinking in ALWAYS_THINKING:
            is_reasoning = True
        if schema is not None:
            config.append(b'"format":{"type":"json_schema","schema":' + schema + b"}")
        if config:
            self._option("output_config", b"{" + b",".join(config) + b"}", "reasoning" if schema is None else "")
        self._write_sampling(is_reasoning=is_reasoning)
        if request.stop:
            self._write_stops(request.stop)
        if request.user is not None:
            if len(request.user) <= _MOST_USER:
                self._option("metadata", b'{"user_id":' + quoted(request.user) + b"}", "user")
            else:
                dropped.drop("user")
        if request.tier is not None:
            if request.tier in _TIERS:
                self._option("service_tier", b'"' + _TIERS[request.tier] + b'"', "tier")
            else:
                dropped.drop("tier")
        if request.cache_key is not None:
            dropped.drop("prompt_cache_key")
        if request.verbosity is not None:
            dropped.drop("verbosity")
        return is_reasoning

    def _write_stops(self, given: list[str]) -> None:
        stops = [stop for stop in given if stop.strip()]
        if len(stops) < len(given):
            self._dropped.drop("stop")
        if stops:
            taken = taken_stops(stops, self._facts)
            self._option("stop_sequences", b"[" + b",".join(map(quoted, taken)) + b"]", "stop")

    def _option(self, name: str, value: bytes, lost: str = "") -> bool:
        """Write a field as it is called there; return whether the model takes it. lost: its name when dropped."""
        facts = self._facts
        if name in facts.refused or lost in facts.refused:
            self._dropped.drop(lost or name)
            return False
        if facts.renamed:
            name = dict(facts.renamed).get(name, name)
        self._out.append(b',"%b":%b' % (name.encode("ascii"), value))
        return True

    def _schema(self) -> JsonValue | None:
        """Return the schema of the answer; None: there is none, or a tool takes the answer."""
        form = self._request.format
        if form is None:
            return None
        if form.description is not None:
            self._dropped.drop("response_format.description")
        if form.schema is not None and self._facts.json_schema:
            return fitted_schema(form.schema)
        names = {tool.name for tool in self._request.tools}
        self.json_tool = _JSON_TOOL
        while self.json_tool in names:
            self.json_tool += "_"
        return None

    def _write_reasoning(self, max_tokens: int, turns: list[MessagesTurn], config: list[bytes]) -> bool:
        reasoning, dropped = self._request.reasoning, self._dropped
        assert reasoning is not None, "the caller checks it"
        way = self._facts.thinking
        effort = effort_of(reasoning)
        if way == "none":
            if effort != "none":
                dropped.drop("reasoning")
            return False
        if effort == "none":
            if way == "always":
                dropped.drop("reasoning")
                return True
            if way == "between_tools":
                self._option("thinking", b'{"type":"between_tools"}', "reasoning")
                return True
            self._option("thinking", b'{"type":"disabled"}', "reasoning")
            return False
        if self._is_json_forced and way not in ALWAYS_THINKING:
            dropped.drop("reasoning")
            return False
        display = b""
        if reasoning.summary is not None:
            display = b',"display":"omitted"' if reasoning.summary == "omitted" else b',"display":"summarized"'
        if way == "adaptive" or way in ALWAYS_THINKING:
            is_taken = self._option("thinking", b'{"type":"adaptive"' + display + b"}", "reasoning")
            if reasoning.effort is not None or reasoning.budget_tokens is not None:
                config.append(b'"effort":' + quoted(taken_effort(effort, self._facts.efforts, dropped)))
            return is_taken or way != "adaptive"
        budget = self._budget(budget_of(reasoning), max_tokens, turns)
        if budget is None:
            dropped.drop("reasoning")
            return False
        if not self._option("thinking", b'{"type":"enabled","budget_tokens":%d%b}' % (budget, display), "reasoning"):
            return False
        if way != "budget":
            # Others that speak the dialect: they take no budget.
            config.append(b'"effort":' + quoted(taken_effort(effort, self._facts.efforts, dropped)))
        return True

    def _budget(self, budget: int, max_tokens: int, turns: list[MessagesTurn]) -> int | None:
        """Return a budget that leaves room for an answer; None: there can't be reasoning."""
        if max_tokens <= _LEAST_BUDGET or _is_in_loop_without_thinking(turns):
            return None
        if budget >= max_tokens:
            budget = max_tokens - _LEAST_ANSWER
        return max(_LEAST_BUDGET, budget)

    @property
    def _is_json_forced(self) -> bool:
        """True where a tool takes the answer, and no model forces tools while it reasons."""
        return self.json_tool is not None and not self._facts.forced_choice

    def _write_sampling(self, *, is_reasoning: bool) -> None:
        request, dropped = self._request, self._dropped
        if request.seed is not None:
            dropped.drop("seed")
        if request.presence_penalty:
            dropped.drop("presence_penalty")
        if request.frequency_penalty:
            dropped.drop("frequency_penalty")
        temperature, top_p, top_k = request.temperature, request.top_p, request.top_k
        is_taken = self._facts.sampling
        # 1 is what both are anyway. A model that takes both in one request is an old one: only one is written.
        if temperature is not None and temperature != 1:
            if not is_taken or is_reasoning:
                dropped.drop("temperature")
            else:
                if temperature > 1:
                    dropped.drop("temperature")
                self._option("temperature", msgspec.json.encode(min(temperature, 1.0)))
        elif temperature == 1 and is_taken and top_p in (None, 1):
            self._option("temperature", b"1.0")
        if top_p is not None and top_p != 1:
            if (
                not is_taken
                or (is_reasoning and top_p < _TOP_P_WITH_THINKING)
                or (temperature is not None and temperature != 1)
            ):
                dropped.drop("top_p")
            else:
                self._option("top_p", msgspec.json.encode(top_p))
        if top_k is not None:
            if not is_taken or is_reasoning:
                dropped.drop("top_k")
            else:
                self._option("top_k", b"%d" % top_k)

    # -- tools ----------------------------------------------------------------------------------------

    def _write_tools(self, turns: list[MessagesTurn], *, is_reasoning: bool) -> None:
        request, out = self._request, self._out
        choice = request.tool_choice or ToolChoice(_AUTO)
        tools = request.tools
        if choice.allowed:
            tools = [tool for tool in tools if tool.name in choice.allowed]
        search = None if request.web_search is None else taken_search(request, self._facts, self._dropped)
        if search is not None and any(self._names.fit(tool.name) == _SEARCH for tool in tools):
            raise BadRequestError(f"a tool of the name {_SEARCH} can't stand beside Anthropic's own", "tools")
        if not tools and self.json_tool is None and search is None:
            # A conversation with calls needs tools: those that it used, of which none may be called.
            names = {block.name: None for turn in turns for block in turn.blocks if isinstance(block, ToolUse)}
            tools = [Tool(name) for name in names]
            choice = ToolChoice(_NONE)
            if not tools:
                return
        takes_strict: bool | None = None  # asked for once, where a tool is strict
        out.append(b',"tools":[')
        for at, tool in enumerate(tools):
            description = tool.description
            if description is not None and not tool.strict and tool.cache is None and not is_blank(description):
                form = _NEXT_TOOL if at else _FIRST_TOOL  # nearly all tools
                name = quoted(self._names.fit(tool.name))
                out.append(form % (name, description, object_schema(tool.parameters)))
                continue
            out.append(b',{"name":' if at else b'{"name":')
            out.append(self._name(tool.name))
            if tool.strict and takes_strict is None:
                takes_strict = self._takes_strict(tools)
            self._write_tool(tool, takes_strict=takes_strict is True)
        if self.json_tool is not None:
            self._write_json_tool(is_first=not tools)
        if search is not None:
            self._write_search(search, is_first=not tools and self.json_tool is None)
        out.append(b"]")
        if search is not None and search.is_forced:
            choice = ToolChoice(_TOOL, _SEARCH)
        elif choice.choice is _TOOL and choice.name not in {tool.name for tool in tools}:
            raise BadRequestError("the tool that must be called is not among the tools", "tool_choice")
        self._write_choice(choice, n_tools=len(tools), is_reasoning=is_reasoning)

    def _takes_strict(self, tools: list[Tool]) -> bool:
        """Tell whether the model takes the tools that are strict as such."""
        if not self._facts.json_schema:
            return False
        strict = [object_schema(tool.parameters) for tool in tools if tool.strict]
        form = self._request.format
        return not strict or are_strict_taken(strict, form.schema if form is not None else None)

    def _write_tool(self, tool: Tool, *, takes_strict: bool) -> None:
        out = self._out
        if tool.description is not None and not is_blank(tool.description):
            out.append(b',"description":')
            out.append(tool.description)
        out.append(b',"input_schema":')
        schema = object_schema(tool.parameters)
        if tool.strict and takes_strict:
            out.append(fitted_schema(schema, "tools"))
            out.append(b',"strict":true')
        else:
            out.append(schema)
            if tool.strict:
                self._dropped.drop("strict", "tools")
        if tool.cache is not None:
            self._mark(tool.cache)
        out.append(b"}")

    def _write_search(self, search: WebSearch, *, is_first: bool) -> None:
        form = b'%b{"type":%b,"name":"%b"'
        self._out.append(form % (b"" if is_first else b",", quoted(self._facts.web_search), _SEARCH.encode()))
        if search.allowed_domains:
            self._out.append(b',"allowed_domains":' + msgspec.json.encode(search.allowed_domains))
        elif search.blocked_domains:  # either is taken, not both
            self._out.append(b',"blocked_domains":' + msgspec.json.encode(search.blocked_domains))
        if search.most is not None:
            self._out.append(b',"max_uses":%d' % search.most)
        if search.location is not None:
            self._out.append(b',"user_location":' + search.location)
        self._out.append(b"}")

    def _write_json_tool(self, *, is_first: bool) -> None:
        form = self._request.format
        schema = form.schema if form is not None and form.schema is not None else _ANY_OBJECT
        fitted = fitted_parameters(schema, self._facts.schemas_refuse, _JSON_TOOL, "response_format")
        if fitted.keys:
            name = next(iter(fitted.keys.values()))
            message = f"this model can't answer with a property of the name {name!r}"
            raise BadRequestError(message, "response_format")
        description = joined((_JSON_TOOL_TEXT, quoted(fitted.note))) if fitted.note else _JSON_TOOL_TEXT
        self._out.extend(
            (
                b"" if is_first else b",",
                b'{"name":',
                quoted(self.json_tool or _JSON_TOOL),
                b',"description":',
                description,
                b',"input_schema":',
                object_schema(fitted.schema),
                b"}",
            )
        )

    def _write_choice(self, choice: ToolChoice, *, n_tools: int, is_reasoning: bool) -> None:
        kind, name = choice.choice, choice.name
        if self.json_tool is not None and kind in (_AUTO, _NONE):
            # The model answers with that tool, or calls one of the client's.
            is_only = not n_tools or kind is _NONE
            kind, name = (_TOOL, self.json_tool) if is_only else (_REQUIRED, None)
        if kind in (_REQUIRED, _TOOL) and is_reasoning and not self._facts.forced_choice:
            self._dropped.drop("tool_choice" if self.json_tool is None else "response_format")
            kind = _AUTO
        is_single = self._request.parallel_tools is False and kind is not _NONE
        if kind is _AUTO and not is_single and self._request.tool_choice is None:
            return
        head = b'{"type":"tool","name":' + self._name(name) if kind is _TOOL and name is not None else _CHOICES[kind]
        single = b',"disable_parallel_tool_use":true' if is_single else b""
        self._option("tool_choice", head + single + b"}")

    # -- prompt ---------------------------------------------------------------------------------------

    def _mark(self, cache: CacheMark) -> None:
        """Write a cache mark as the next field."""
        if not self._facts.cache_marks:
            self._dropped.drop("cache_control")
            return
        self._marks.append(len(self._out))
        self._out.append(_TTLS.get(cache.ttl or "", _MARK))

    def _write_system(self, texts: list[Text]) -> None:
        out = self._out
        out.append(b',"system":[')
        for at, text in enumerate(texts):
            if at:
                out.append(b",")
            self._write_text(text)
        out.append(b"]")

    def _write_turns(self, turns: list[MessagesTurn]) -> None:
        out = self._out
        out.append(b',"messages":[')
        last = turns[-1]
        if not last.is_user and isinstance(last.blocks[-1], Text):
            last.blocks[-1].text = _without_space_at_end(last.blocks[-1].text)
            last.plain = None
        for at, turn in enumerate(turns):
            if turn.plain is not None:
                form = _ASSISTANT_TEXT if not turn.is_user else _USER_TEXT if at else _FIRST_TEXT
                out.append(form % turn.plain)
                continue
            if at:
                out.append(b",")
            out.append(b'{"role":"user","content":[' if turn.is_user else b'{"role":"assistant","content":[')
            separator = b""
            for block in turn.blocks:
                if separator:
                    out.append(separator)
                separator = b","
                self._write_block(block)
            out.append(b"]}")
        out.append(b"]")

    def _write_block(self, block: Block) -> None:
        if type(block) is Text:
            if block.cache is None and block.citations is None:
                self._out.extend((b'{"type":"text","text":', block.text, b"}"))
            else:
                self._write_text(block)
        elif type(block) is ToolUse:
            self._write_tool_use(block)
        elif type(block) is ToolResult:
            self._write_tool_result(block)
        elif type(block) is Thinking:
            self._write_thinking(block)
        elif type(block) is Image:
            self._write_image(block)
        elif type(block) is Document:
            self._write_document(block)
        elif type(block) is Audio:
            raise BadRequestError("the model takes no sound; send its text", self._path(block.source))

    def _write_text(self, block: Text) -> None:
        out = self._out
        out.append(b'{"type":"text","text":')
        out.append(block.text)
        if block.citations is not None:
            out.append(b',"citations":' + block.citations)
        if block.cache is not None:
            self._mark(block.cache)
        out.append(b"}")

    def _write_tool_use(self, block: ToolUse) -> None:
        if has_foreign(block.signature):
            self._dropped.drop("reasoning_signature", "messages")
        self._out.append(
            b'{"type":"tool_use","id":%b,"name":%b,"input":%b'
            % (self._id(block.id), self._name(block.name), block.arguments or b"{}")
        )
        if block.cache is not None:
            self._mark(block.cache)
        self._out.append(b"}")

    def _id(self, value: str) -> bytes:
        """Return the id of a call as it is written: twice, with its result."""
        found = self._ids_written.get(value)
        if found is None:
            found = self._ids_written[value] = quoted(self._ids.fit(value))
        return found

    def _name(self, value: str) -> bytes:
        """Return the name of a tool as it is written."""
        found = self._names_written.get(value)
        if found is None:
            found = self._names_written[value] = quoted(self._names.fit(value))
        return found

    def _write_tool_result(self, block: ToolResult) -> None:
        out = self._out
        out.append(b'{"type":"tool_result","tool_use_id":%b' % self._id(block.id))
        separator = b',"content":['
        for part in block.parts:
            if type(part) is Text and is_blank(part.text):
                continue
            out.append(separator)
            separator = b","
            self._write_block(part)
        if separator == b",":
            out.append(b"]")
        if block.is_error:
            out.append(b',"is_error":true')
        if block.cache is not None:
            self._mark(block.cache)
        out.append(b"}")

    def _write_thinking(self, block: Thinking) -> None:
        assert block.signature is not None, "turns_of() leaves out what is not signed"
        value = quoted(block.signature.value)
        if block.is_redacted:
            self._out.append(b'{"type":"redacted_thinking","data":%b}' % value)
        else:
            self._out.append(b'{"type":"thinking","thinking":%b,"signature":%b}' % (block.text, value))

    def _write_image(self, block: Image) -> None:
        if block.detail not in (None, "auto"):
            self._dropped.drop("detail", self._path(block.source) if self._dropped.is_strict else "")
        self._check_url(block.source)
        self._out.append(b'{"type":"image","source":')
        self._out.append(self._image_source(block.source))
        if block.cache is not None:
            self._mark(block.cache)
        self._out.append(b"}")

    def _check_url(self, source: Media) -> None:
        """Raise BadRequestError for a URL where the service reads none: another one of the route may."""
        if source.kind is MediaKind.URL and not self._facts.fetches_urls:
            message = "this model's provider reads no URLs; send the data in base64"
            raise BadRequestError(message, self._path(source))

    def _write_document(self, block: Document) -> None:
        out, source = self._out, block.source
        if source.kind is MediaKind.DATA and (source.type or "").startswith("image/"):
            self._write_image(Image(source, cache=block.cache))
            return
        self._check_url(source)
        out.append(b'{"type":"document","source":')
        out.append(self._document_source(source))
        if block.name is not None:
            out.append(b',"title":' + quoted(block.name))
        if block.context is not None:
            out.append(b',"context":' + block.context)
        if block.citations is not None:
            out.append(b',"citations":{"enabled":%b}' % (b"true" if block.citations else b"false"))
        if block.cache is not None:
            self._mark(block.cache)
        out.append(b"}")

    def _image_source(self, source: Media) -> bytes:
        if source.kind is MediaKind.DATA:
            kind = "image/jpeg" if source.type == "image/jpg" else source.type or ""
            if kind not in _IMAGES:
                raise BadRequestError(
                    f"a picture of type {kind!r} is not taken; send PNG, JPEG, GIF or WebP", self._path(source)
                )
            return b'{"type":"base64","media_type":%b,"data":%b}' % (quoted(kind), quoted(source.value))
        return self._other_source(source)

    def _document_source(self, source: Media) -> bytes:
        kind = (source.type or PDF).partition(";")[0].strip()
        if source.kind is MediaKind.TEXT:
            return b'{"type":"text","media_type":"text/plain","data":%b}' % quoted(source.value)
        if source.kind is not MediaKind.DATA:
            return self._other_source(source)
        if kind == PDF:
            return b'{"type":"base64","media_type":"application/pdf","data":%b}' % quoted(source.value)
        if is_text(kind):
            text = file_text(source)
            if text is None:
                raise BadRequestError("a document is not base64 of a text in UTF-8", self._path(source))
            return b'{"type":"text","media_type":"text/plain","data":%b}' % quoted(text)
        raise BadRequestError(f"a document of type {kind!r} is not taken; send PDF or text", self._path(source))

    def _other_source(self, source: Media) -> bytes:
        """Write a URL or a file of Anthropic's own."""
        if source.kind is MediaKind.URL and source.value.startswith(("https://", "http://")):
            return b'{"type":"url","url":%b}' % quoted(source.value)
        if source.kind is MediaKind.ID and source.value.startswith("file_"):
            return b'{"type":"file","file_id":%b}' % quoted(source.value)
        what = "a file of another provider" if source.kind is MediaKind.ID else "a URL that is not http or https"
        raise BadRequestError(f"{what} can't be read there; send the data, or an http URL", self._path(source))

    def _path(self, source: Media) -> str:
        """Return the place of a part, for an error."""
        return media_path(self._request.messages, source)


def _is_in_loop_without_thinking(turns: list[MessagesTurn]) -> bool:
    """True where the last results answer calls before which no reasoning of Anthropic's stands.

    With a budget the API wants that reasoning back, and refuses the request without it. It is not there after a
    fallback from another provider.
    """
    for turn in reversed(turns):
        if turn.is_user:
            if not isinstance(turn.blocks[0], ToolResult):
                return False
        else:
            return not isinstance(turn.blocks[0], Thinking)
    return False


def _without_space_at_end(text: bytes) -> bytes:
    """A message that the model goes on with may not end with space: the API refuses it."""
    return quoted(decoded(text).rstrip()) if text.endswith((b' "', b'\\n"', b'\\t"', b'\\r"')) else text
