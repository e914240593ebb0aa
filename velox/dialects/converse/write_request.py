"""Writes requests of Converse from the canonical model.

    system messages at the start   system[]
    later ones                     text of the user: none is moved, as caches go by what stands before
    turns of one role              one message; results of tools first
    cache marks                    a cachePoint after the block, the result or the tool

The service is strict: each call has one result in the next turn, no text is blank, the user begins (but for Claude),
documents stand beside a text, a history with calls has tools. What can be made so is; the rest is refused here with
the place of the fault.

Knows: how the request is said. Does not know: any model's name (facts).
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias, assert_never

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Audio,
    Block,
    CacheMark,
    Choice,
    Document,
    Image,
    JsonText,
    JsonValue,
    Message,
    Reasoning,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
)
from velox.dialects.canonical.names import FittedNames, UniqueIds
from velox.dialects.converse.media import DocumentNames, audio_block, document_block, image_block, is_film
from velox.dialects.facts.efforts import effort_of, taken_effort
from velox.dialects.facts.limits import taken_max_tokens, taken_stops
from velox.dialects.facts.model_facts import ALWAYS_THINKING, ModelFacts
from velox.dialects.json_text.text import is_blank, quoted
from velox.dialects.tools.claude_schema import are_strict_taken, fitted_schema
from velox.dialects.tools.json_note import json_note
from velox.dialects.tools.open_calls import OpenCalls
from velox.dialects.tools.tool_schema import object_schema
from velox.protocol.slices import from_base64

__all__ = ["ANTHROPIC", "BEDROCK", "FORMAT_TOOL", "ConverseRequestWriter", "is_claude"]

ANTHROPIC: Final = "anthropic"
BEDROCK: Final = "bedrock"  # whose reasoning is sealed by another model of the service
# Where the model's API has no schemas: a tool that must be called, whose arguments are the answer.
FORMAT_TOOL: Final = "json_answer"

# Looking a member of an enum up takes longer than all else that is done with it.
_SYSTEM: Final = Role.SYSTEM
_USER: Final = Role.USER
_ASSISTANT: Final = Role.ASSISTANT
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_SCHEMA_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_MOST_NAME: Final = 64
_LOOKED_AT: Final = 4096  # of a name: runs become one character
# A turn needs something that is not blank.
_FILLER: Final = b'{"text":"."}'
_USER_TURN: Final = b'{"role":"user","content":[%b]}'
_ASSISTANT_TURN: Final = b'{"role":"assistant","content":[%b]}'
_AFTER_RESULTS: Final = _ASSISTANT_TURN % b'{"text":"I have the results."}'
_REASONING: Final = b'{"reasoningContent":'
_ANY_OBJECT: Final = b'{"type":"object"}'
_STRICT: Final = "tools.strict"  # among the facts' `refused`
_MOST_MARKS: Final = 4  # Claude's, and Nova's
_MARK: Final = b'{"cachePoint"'

_TIERS: Final = {"default": b"default", "flex": b"flex", "priority": b"priority"}
_BUDGETS: Final = {"minimal": 1024, "low": 1024, "medium": 2048, "high": 4096, "xhigh": 8192, "max": 16384}
_LEAST_BUDGET: Final = 1024
_LEAST_TOP_P: Final = 0.95
_OF_CLAUDE: Final = frozenset({"adaptive", "budget", *ALWAYS_THINKING})  # ways to think
_NOVA_EFFORT: Final = b'"reasoningConfig":{"type":"enabled","maxReasoningEffort":%b}'


def is_claude(facts: ModelFacts) -> bool:
    """True for models that reason as Anthropic's do: only they sign."""
    return facts.thinking in _OF_CLAUDE


# The numbers of a message and of its block, for errors.
_Place: TypeAlias = tuple[int, int]


def _path(place: _Place) -> str:
    return f"messages[{place[0]}].content[{place[1]}]"


class _Turn(msgspec.Struct, gc=False):
    """A message of the service: turns of one role that follow each other.

    first: number of the request's message. results: with their marks. calls: id as written, name as the client calls
    it. marked: its last part is a mark.
    """

    role: Role
    first: int
    results: list[bytes] = []
    parts: list[bytes] = []
    calls: list[tuple[str, str]] = []
    has_text: bool = False
    has_document: bool = False
    marked: bool = False

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.marked = False


class ConverseRequestWriter:
    """Writes one request. facts: of the model. is_openais: OpenAI made it. After write(): names, ids, unwrapped."""

    __slots__ = (
        *("_calls", "_documents", "_dropped", "_facts", "_is_claude", "_is_openais", "_max_tokens", "_n_marks"),
        *("_open", "_request", "_system", "_turns", "_used", "ids", "names", "unwrapped"),
    )

    def __init__(
        self, request: Request, facts: ModelFacts, dropped: DroppedFields, *, is_openais: bool = False
    ) -> None:
        self._request: Final = request
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._is_claude: Final = is_claude(facts)
        self._is_openais: Final = is_openais
        self.names: Final = FittedNames(_NAME, _MOST_NAME)
        self.ids: Final = FittedNames(_ID, _MOST_NAME)
        self.unwrapped: str | None = None  # the tool whose arguments are the answer
        self._documents: Final = DocumentNames()
        self._turns: list[_Turn] = []
        self._system: list[bytes] = []
        self._used: dict[str, None] = {}  # names of tools in the history, as written
        self._calls: Final = UniqueIds()
        # Calls of the last turn that have no result yet: id as written, and name; by the client's ids, made to fit.
        self._open: Final[OpenCalls[tuple[str, str]]] = OpenCalls()
        self._n_marks = 0
        self._max_tokens: Final = taken_max_tokens(request.max_tokens, facts, dropped)

    def write(self) -> bytes:
        """Return the request. Raises BadRequestError."""
        request, dropped = self._request, self._dropped
        if request.seed is not None:
            dropped.drop("seed")
        if request.presence_penalty:
            dropped.drop("presence_penalty")
        if request.frequency_penalty:
            dropped.drop("frequency_penalty")
        if request.user is not None:
            dropped.drop("user")
        if request.cache_key is not None:
            dropped.drop("prompt_cache_key")
        if request.verbosity is not None:
            dropped.drop("verbosity")
        if request.parallel_tools is False:
            dropped.drop("parallel_tool_calls")
        self._messages()
        self._check_end()
        more, is_thinking = self._reasoning()
        limits = self._limits(more, is_thinking=is_thinking)
        output, format_tool = self._format(is_thinking=is_thinking)
        self._mark_all()
        tools = self._tools(format_tool, is_thinking=is_thinking)
        self._drop_first_marks([])

        fields = [b'"messages":[' + b",".join([self._written(turn) for turn in self._turns]) + b"]"]
        if self._system:
            fields.append(b'"system":[' + b",".join(self._system) + b"]")
        if limits:
            fields.append(b'"inferenceConfig":{' + b",".join(limits) + b"}")
        if tools:
            fields.append(b'"toolConfig":{' + tools + b"}")
        if output:
            fields.append(b'"outputConfig":{' + output + b"}")
        if more:
            fields.append(b'"additionalModelRequestFields":{' + b",".join(more) + b"}")
        if request.stop and self._is_claude:
            fields.append(b'"additionalModelResponseFieldPaths":["/stop_sequence"]')
        if request.tier is not None and request.tier != "auto":
            tier = _TIERS.get(request.tier)
            if tier is None:
                dropped.drop("service_tier")
            else:
                fields.append(b'"serviceTier":{"type":"' + tier + b'"}')
        return b"{" + b",".join(fields) + b"}"

    # -- settings ---------------------------------------------------------------------------------------

    def _limits(self, more: list[bytes], *, is_thinking: bool) -> list[bytes]:
        request, dropped, refused = self._request, self._dropped, self._facts.refused
        fields: list[bytes] = []
        most, temperature, top_p = self._max_tokens, request.temperature, request.top_p
        if _NOVA_EFFORT % b'"high"' in more:
            # Nova refuses all three then.
            for name, value in (("max_tokens", most), ("temperature", temperature), ("top_p", top_p)):
                if value is not None:
                    dropped.drop(name)
            most = temperature = top_p = None
        if most is not None:
            if most < 1:
                dropped.drop("max_tokens")  # to warm a cache: the least there is
            fields.append(b'"maxTokens":%d' % max(most, 1))
        is_taken = self._facts.sampling
        # Claude refuses these while it thinks, but for a high top_p, and newer ones both in one request. 1 is what they
        # are anyway.
        bars = is_thinking and self._is_claude
        has_temperature = temperature is not None and temperature != 1.0
        if temperature is not None:
            if not is_taken or bars or "temperature" in refused:
                if has_temperature:
                    dropped.drop("temperature")
            elif has_temperature or top_p is None or not self._is_claude:
                if temperature > 1.0:
                    dropped.drop("temperature")
                fields.append(b'"temperature":' + msgspec.json.encode(min(temperature, 1.0)))
        if top_p is not None:
            is_second = self._is_claude and has_temperature
            if not is_taken or is_second or "top_p" in refused or (bars and top_p < _LEAST_TOP_P):
                if top_p != 1.0:
                    dropped.drop("top_p")
            else:
                fields.append(b'"topP":' + msgspec.json.encode(top_p))
        if request.top_k is not None:
            if not is_taken or bars or "top_k" in refused:
                dropped.drop("top_k")
            else:
                more.append(b'"top_k":%d' % request.top_k)
        if request.stop:
            stops = [] if "stop" in refused else [stop for stop in request.stop if stop.strip()]
            if len(stops) < len(request.stop):
                dropped.drop("stop")
            if stops:
                taken = taken_stops(stops, self._facts)
                fields.append(b'"stopSequences":[' + b",".join(map(quoted, taken)) + b"]")
        return fields

    def _reasoning(self) -> tuple[list[bytes], bool]:
        """Return the model's own fields, and whether it thinks."""
        asked = self._request.reasoning
        if asked is None:
            return [], self._facts.thinking in ALWAYS_THINKING
        is_off = asked.enabled is False or asked.effort == "none" or asked.budget_tokens == 0
        match self._facts.thinking:
            case "always" if is_off:
                self._dropped.drop("reasoning_effort")
                return [], True
            case "between_tools" if is_off:
                return [b'"thinking":{"type":"between_tools"}'], True
            case "adaptive" | "always" | "between_tools":
                return self._adaptive(asked, is_off=is_off)
            case "budget":
                return self._budget(asked, is_off=is_off)
            case "reasoning_effort":
                field = b'"reasoning_effort":%b'
            case "reasoning_config":
                field = b'"reasoning_config":%b'
            case "nova":
                field = _NOVA_EFFORT
            case _:
                if not is_off:
                    self._dropped.drop("reasoning_effort")
                return [], False
        if is_off:
            return [], False
        if asked.effort is None:
            self._dropped.drop("reasoning_effort")
            return [], False
        return [field % self._effort(asked.effort)], True

    def _effort(self, effort: str) -> bytes:
        return quoted(taken_effort(effort, self._facts.efforts, self._dropped, "reasoning_effort"))

    def _adaptive(self, asked: Reasoning, *, is_off: bool) -> tuple[list[bytes], bool]:
        if is_off:
            return [b'"thinking":{"type":"disabled"}'], False
        shown = b""
        if asked.summary is not None:
            shown = b',"display":"omitted"' if asked.summary == "omitted" else b',"display":"summarized"'
        fields = [b'"thinking":{"type":"adaptive"%b}' % shown]
        # The models that adapt refuse a budget.
        if asked.effort is not None or asked.budget_tokens is not None:
            fields.append(b'"output_config":{"effort":%b}' % self._effort(effort_of(asked)))
        return fields, True

    def _budget(self, asked: Reasoning, *, is_off: bool) -> tuple[list[bytes], bool]:
        if is_off:
            return [], False
        budget = asked.budget_tokens or _BUDGETS.get(asked.effort or "medium", _BUDGETS["medium"])
        most = self._max_tokens
        if (most is not None and most <= _LEAST_BUDGET) or self._lacks_thinking():
            self._dropped.drop("reasoning_effort")
            return [], False
        budget = max(budget, _LEAST_BUDGET)
        if most is not None:
            budget = min(budget, most - 1)
        return [b'"thinking":{"type":"enabled","budget_tokens":%d}' % budget], True

    def _lacks_thinking(self) -> bool:
        """True where calls that are answered now were made without signed reasoning: a 400 if Claude thinks."""
        if len(self._turns) < 2 or not self._turns[-1].results:
            return False
        return not self._turns[-2].parts[0].startswith(_REASONING)

    def _format(self, *, is_thinking: bool) -> tuple[bytes, bytes]:
        """Return outputConfig's inside, and a tool to be called in its place."""
        wanted = self._request.format
        if wanted is None:
            return b"", b""
        if wanted.schema is not None and self._facts.json_schema:
            name = _SCHEMA_NAME.sub("_", (wanted.name or "answer")[:_LOOKED_AT])[:_MOST_NAME] or "answer"
            # What other models take is not known.
            schema = fitted_schema(wanted.schema) if self._is_claude else wanted.schema
            inside = b'"schema":%b,"name":%b' % (quoted(schema.decode("utf-8", "replace")), quoted(name))
            if wanted.description is not None and not is_blank(wanted.description):
                inside += b',"description":' + wanted.description
            return b'"textFormat":{"type":"json_schema","structure":{"jsonSchema":{%b}}}' % inside, b""
        if self._request.tools or self._used or (is_thinking and not self._facts.forced_choice):
            self._dropped.drop("response_format")
            self._system.append(b'{"text":%b}' % json_note(wanted.schema))
            return b"", b""
        self.unwrapped = FORMAT_TOOL
        description = b'"The answer."'
        if wanted.description is not None and not is_blank(wanted.description):
            description = wanted.description
        return b"", _tool(quoted(FORMAT_TOOL), description, wanted.schema)

    # -- tools ------------------------------------------------------------------------------------------

    def _tools(self, format_tool: bytes, *, is_thinking: bool) -> bytes:
        """Return toolConfig's inside, b"" for none."""
        if format_tool:
            return b'"tools":[%b],"toolChoice":{"tool":{"name":"%b"}}' % (format_tool, FORMAT_TOOL.encode())
        request, choice = self._request, self._request.tool_choice
        is_none = choice is not None and choice.choice is Choice.NONE
        if is_none and not self._used:
            return b""
        written: list[bytes] = []
        tools = request.tools
        if choice is not None and choice.allowed:
            allowed = set(choice.allowed)
            tools = [tool for tool in tools if tool.name in allowed]
        takes_strict: bool | None = None  # asked for once, where a tool is strict
        for tool in tools:
            description = None if tool.description is None or is_blank(tool.description) else tool.description
            schema, strict = tool.parameters, tool.strict
            if strict and takes_strict is None:
                takes_strict = self._takes_strict(tools)
            if strict and not takes_strict:
                self._dropped.drop("strict", "tools")
                strict = False
            elif strict and self._is_claude:
                schema = fitted_schema(object_schema(schema), "tools")
            written.append(_tool(quoted(self.names.fit(tool.name)), description, schema, is_strict=strict is True))
            if tool.cache is not None:
                written += self._mark(tool.cache, "tools")
        if not written:
            # A history with calls needs some declared; no other dialect does.
            written = [_tool(quoted(name), None, None) for name in self._used]
        if not written:
            return b""
        self._drop_first_marks(written)
        inside = b'"tools":[' + b",".join(written) + b"]"
        if choice is None:
            return inside
        if choice.choice is Choice.NONE:
            self._dropped.drop("tool_choice")
            return inside
        is_forced = choice.choice is not Choice.AUTO
        if is_forced and ("tool_choice" in self._facts.refused or (is_thinking and not self._facts.forced_choice)):
            self._dropped.drop("tool_choice")
            is_forced = False
        if not is_forced:
            return inside + b',"toolChoice":{"auto":{}}'
        if choice.choice is Choice.REQUIRED:
            return inside + b',"toolChoice":{"any":{}}'
        return inside + b',"toolChoice":{"tool":{"name":%b}}' % quoted(self.names.fit(choice.name or ""))

    def _takes_strict(self, tools: list[Tool]) -> bool:
        """Tell whether the model takes the tools that are strict as such; only Claude's limits are known."""
        if not self._facts.json_schema or _STRICT in self._facts.refused:
            return False
        strict = [object_schema(tool.parameters) for tool in tools if tool.strict] if self._is_claude else []
        wanted = self._request.format
        return not strict or are_strict_taken(strict, wanted.schema if wanted is not None else None)

    # -- messages ---------------------------------------------------------------------------------------

    def _messages(self) -> None:
        is_leading = True
        turn: _Turn | None = None
        for n, message in enumerate(self._request.messages):
            if message.name is not None:
                self._dropped.drop("name")
            if message.role is _SYSTEM and is_leading:
                self._lead(message)
                continue
            is_leading = False
            role = _ASSISTANT if message.role is _ASSISTANT else _USER
            if turn is None or turn.role is not role:
                if role is _ASSISTANT and self._open:
                    self._check_answered()
                turn = _Turn(role, n)
                self._turns.append(turn)
            if message.plain is not None:
                turn.has_text, turn.marked = True, False
                turn.parts.append(b'{"text":%b}' % message.plain)
                continue
            for at, block in enumerate(message.blocks):
                self._add(turn, block, (n, at))
            if not turn.parts and not turn.results:
                self._turns.pop()  # nothing of it is left
                turn = self._turns[-1] if self._turns else None
        # Claude may begin, others may not.
        if not self._turns or (self._turns[0].role is not _USER and not self._is_claude):
            turn = _Turn(_USER, 0)
            turn.add(_FILLER)
            self._turns.insert(0, turn)

    def _check_answered(self) -> None:
        first = self._open.first()
        if first is not None:
            _, name = first
            number = next(turn.first for turn in reversed(self._turns) if turn.calls)
            raise BadRequestError(
                f"the call of the tool {name!r} has no result in the next message; add one", f"messages[{number}]"
            )

    def _check_end(self) -> None:
        self._check_answered()
        last = self._turns[-1]
        if last.role is _ASSISTANT and not self._facts.prefill:
            raise BadRequestError(
                "this model can't continue a message of the assistant; let the last one be the user's",
                f"messages[{last.first}]",
            )

    def _lead(self, message: Message) -> None:
        for block in message.blocks:
            if isinstance(block, Text):
                if not is_blank(block.text):
                    self._system.append(b'{"text":' + block.text + b"}")
                if block.cache is not None and self._system:
                    self._system += self._mark(block.cache)
            else:
                self._dropped.drop("system")

    def _add(self, turn: _Turn, block: Block, place: _Place) -> None:
        # The usual ones by isinstance(): half the time of a match.
        if isinstance(block, Text):
            if block.cache is None and block.citations is None and not is_blank(block.text):
                turn.has_text = True
                turn.add(b'{"text":%b}' % block.text)
            else:
                self._add_text(turn, block)
        elif isinstance(block, ToolUse):
            self._add_call(turn, block, place)
        elif isinstance(block, ToolResult):
            self._add_result(turn, block, place)
        else:
            self._add_other(turn, block, place)

    def _add_other(self, turn: _Turn, block: Thinking | Image | Document | Audio | Refusal, place: _Place) -> None:
        match block:
            case Thinking():
                self._add_thinking(turn, block)
            case Image():
                if block.detail not in (None, "auto"):
                    self._dropped.drop("detail")
                turn.add(image_block(block, _path(place)))
                self._mark_part(turn, block.cache)
            case Document():
                turn.has_document = turn.has_document or not is_film(block)
                turn.add(document_block(block, self._documents, _path(place)))
                self._mark_part(turn, block.cache)
            case Audio():
                turn.add(audio_block(block, _path(place)))
            case Refusal():
                self._add_text(turn, Text(block.text))
            case _:
                assert_never(block)

    def _add_text(self, turn: _Turn, block: Text) -> None:
        if block.citations is not None:
            self._dropped.drop("citations")
        if not is_blank(block.text):
            turn.has_text = True
            turn.add(b'{"text":' + block.text + b"}")
        self._mark_part(turn, block.cache)

    def _add_call(self, turn: _Turn, block: ToolUse, place: _Place) -> None:
        if turn.role is not _ASSISTANT:
            raise BadRequestError("only the assistant calls tools", _path(place))
        name = self.names.fit(block.name)
        self._used[name] = None
        # Some dialects have no ids: then calls and results go by their order.
        given = self.ids.fit(block.id) if block.id else f"call_{turn.first}_{len(turn.calls)}"
        call = self.ids.fit(self._calls.unique(given))
        turn.calls.append((call, block.name))
        self._open.add(given, block.name, (call, block.name))
        inside = b'"toolUseId":%b,"name":%b,"input":%b' % (quoted(call), quoted(name), block.arguments or b"{}")
        turn.add(b'{"toolUse":{%b}}' % inside)
        self._mark_part(turn, block.cache, "tool_calls")

    def _add_result(self, turn: _Turn, block: ToolResult, place: _Place) -> None:
        if turn.role is not _USER:
            raise BadRequestError("the assistant has no results of tools", _path(place))
        call = self._answered(block, place)
        parts: list[bytes] = []
        cache = block.cache
        for part in block.parts:
            cache = part.cache or cache
            if isinstance(part, Text):
                if not is_blank(part.text):
                    parts.append(b'{"text":' + part.text + b"}")
            elif isinstance(part, Document):
                parts.append(document_block(part, self._documents, _path(place)))
            elif self._facts.images_in_results:
                parts.append(image_block(part, _path(place)))
            else:
                turn.add(image_block(part, _path(place)))  # after the results
        inside = b'"toolUseId":%b,"content":[%b]' % (quoted(call), b",".join(parts or [_FILLER]))
        if block.is_error:
            inside += b',"status":"error"'
        turn.results.append(b'{"toolResult":{%b}}' % inside)
        if cache is not None:
            turn.results += self._mark(cache, "tool_results")

    def _answered(self, block: ToolResult, place: _Place) -> str:
        """Return the id of the call, which has its result now. Raises BadRequestError."""
        found = self._open.take(self.ids.fit(block.id)) if block.id else self._open.take_named(block.name)
        if found is not None:
            return found[0]
        which = f"the id {block.id!r}" if block.id else f"the name {block.name!r}"
        raise BadRequestError(f"no call in the message before has {which}, or it has a result already", _path(place))

    def _add_thinking(self, turn: _Turn, block: Thinking) -> None:
        signature = block.signature
        is_usable = signature is not None and (
            (signature.provider == ANTHROPIC and self._is_claude)
            # Sealed reasoning of OpenAI's models is one value, which they want back (vercel/ai#19062).
            or (signature.provider == BEDROCK and self._is_openais and block.is_redacted)
        )
        if signature is None or not is_usable or (block.is_redacted and not _is_base64(signature.value)):
            self._dropped.drop("reasoning_signature")
        elif block.is_redacted:
            turn.add(_REASONING + b'{"redactedContent":%b}}' % quoted(signature.value))
        else:
            inside = b'"text":%b,"signature":%b' % (block.text, quoted(signature.value))
            turn.add(_REASONING + b'{"reasoningText":{%b}}}' % inside)

    # -- cache marks ------------------------------------------------------------------------------------

    def _mark(self, cache: CacheMark, place: str = "") -> list[bytes]:
        """Return the mark. place: a kind of block behind which some models refuse it."""
        if not self._facts.cache_marks or (place and f"{place}.cache_control" in self._facts.refused):
            self._dropped.drop("cache_control")
            return []
        self._n_marks += 1
        ttl = b"" if cache.ttl is None else b',"ttl":' + quoted(cache.ttl)
        return [b'{"cachePoint":{"type":"default"%b}}' % ttl]

    def _mark_part(self, turn: _Turn, cache: CacheMark | None, place: str = "") -> None:
        if cache is not None and turn.parts and not turn.marked:
            turn.parts += self._mark(cache, place)
            turn.marked = True

    def _drop_first_marks(self, tools: list[bytes]) -> None:
        """Take the first marks off where there are too many. A prompt begins with the tools, then the system."""
        n_over = self._n_marks - _MOST_MARKS
        if n_over <= 0:
            return
        self._dropped.drop("cache_control")
        self._n_marks = _MOST_MARKS
        turns = [part for turn in self._turns for part in (turn.results, turn.parts)]
        for place in (tools, self._system, *turns):
            kept = []
            for part in place:
                if n_over and part.startswith(_MARK):
                    n_over -= 1
                else:
                    kept.append(part)
            place[:] = kept

    def _mark_all(self) -> None:
        """Put the mark on all of the request on its last block: the service has none for all."""
        cache = self._request.cache
        if cache is None:
            return
        last = self._turns[-1]
        if last.parts:
            self._mark_part(last, cache)
        elif not last.results[-1].startswith(_MARK):
            last.results += self._mark(cache, "tool_results")

    def _written(self, turn: _Turn) -> bytes:
        form = _ASSISTANT_TURN if turn.role is _ASSISTANT else _USER_TURN
        parts = [*turn.results, *turn.parts] if turn.results else turn.parts
        if turn.has_document and not turn.has_text:
            parts.append(_FILLER)
        if turn.results and turn.parts and not self._facts.user_after_results:
            behind = parts[len(turn.results) :]
            return b",".join((_USER_TURN % b",".join(turn.results), _AFTER_RESULTS, _USER_TURN % b",".join(behind)))
        return form % (parts[0] if len(parts) == 1 else b",".join(parts))


def _is_base64(text: str) -> bool:
    try:
        return bool(from_base64(text))
    except ValueError:
        return False


def _tool(name: JsonText, description: JsonText | None, schema: JsonValue | None, *, is_strict: bool = False) -> bytes:
    inside = b'"name":%b,"inputSchema":{"json":%b}' % (name, _ANY_OBJECT if schema is None else object_schema(schema))
    if description is not None:
        inside += b',"description":' + description
    if is_strict:  # false is what it is anyway, and many models answer 400 to the field
        inside += b',"strict":true'
    return b'{"toolSpec":{%b}}' % inside
