"""Writes requests for Gemini from the canonical model.

A request is written as pieces of JSON between constants, so that texts, arguments and schemas stay the bytes that
they were. The order of fields is always the same: what was cached is found again.

    systemInstruction   the system messages before all others; later ones stay in place, as the user's words
    contents            turns of "user" and "model"; the results of calls stand alone in one, in the order of the calls
    functionCall        the first of each turn has its signature, or the value that says that there is none any more

Knows: what Gemini takes. Does not know: what a model can do (facts/model_facts.py), or where requests go.
Source: REST reference of v1beta; "Thought signatures", "Thinking", "Function calling" of ai.google.dev.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.media_paths import media_path
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
    Refusal,
    Request,
    Role,
    Signature,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    Written,
)
from velox.dialects.canonical.names import FittedNames
from velox.dialects.facts.limits import taken_max_tokens, taken_stops
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.generate.schema import Inlining, SchemaError, SubsetSchemas
from velox.dialects.generate.wire import as_object
from velox.dialects.generate.words import GOOGLE
from velox.dialects.json_text.text import decoded, is_blank, joined, quoted
from velox.dialects.media.file_types import EXTENSIONS, document_text
from velox.dialects.tools.hosted import taken_search
from velox.dialects.tools.json_note import json_note
from velox.dialects.tools.tool_schema import object_schema

__all__ = ["CHECKING", "UNCHECKED", "GenerateRequestWriter"]

# Looking a member of an enum up costs more than most of what is done with it.
_SYSTEM: Final = Role.SYSTEM
_ASSISTANT: Final = Role.ASSISTANT
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*")
_MOST_NAME: Final = 64
# In place of a signature that is lost: the model then does not check. Documented for calls that other models made.
UNCHECKED: Final = b'"skip_thought_signature_validator"'
_SPACE: Final = b'{"text":" "}'
_USER_TEXT: Final = b'{"role":"user","parts":[{"text":%b}]}'
_MODEL_TEXT: Final = b'{"role":"model","parts":[{"text":%b}]}'
# Facts.thinking of models that check signatures; a model that nobody knows is a current one.
CHECKING: Final = frozenset({"level", "effort"})

# What Google's own Chat Completions API makes of reasoning_effort, for models that take a budget.
_BUDGETS: Final = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_MOST_BUDGET: Final = 24576  # of the smallest model
_LEAST_BUDGET: Final = 128  # of models that always think
_LEVELS: Final = ("minimal", "low", "medium", "high")
_EFFORTS: Final = {"none": "minimal", "xhigh": "high", "max": "high"}  # others are levels of the same name

# Names of fields, Gemini's name, whether it is for models that let one choose how they sample.
_NUMBERS: Final = (
    ("temperature", b"temperature", True),
    ("top_p", b"topP", True),
    ("top_k", b"topK", True),
    ("seed", b"seed", False),
    ("presence_penalty", b"presencePenalty", False),
    ("frequency_penalty", b"frequencyPenalty", False),
)
_TIERS: Final = {"default": b'"standard"', "flex": b'"flex"', "priority": b'"priority"'}
_SUFFIX: Final = re.compile(r"\.([a-zA-Z0-9]{2,4})(?:[?#].*)?$")
# What these are called by clients -> by Google.
_SAME_TYPES: Final = {"image/jpg": "image/jpeg"}


class GenerateRequestWriter:
    """Writes one request. schemas: what remembers rewritten schemas."""

    __slots__ = ("_dropped", "_facts", "_inlining", "_messages", "_names", "_schemas", "_step", "_tools")

    def __init__(self, facts: ModelFacts, dropped: DroppedFields, schemas: SubsetSchemas) -> None:
        self._facts: Final = facts
        self._dropped: Final = dropped
        self._schemas: Final = schemas
        self._inlining: Final = Inlining()
        self._names: Final = FittedNames(_NAME, _MOST_NAME)
        self._tools: Final[dict[str, str]] = {}  # the calls so far: id -> name
        self._messages: list[Message] = []  # of the request, for the places of parts
        self._step: list[str] = []  # the calls of the last turn of the model, which have no result yet

    def write(self, request: Request) -> Written:
        """Write it. Raises BadRequestError."""
        self._messages = request.messages
        n_system = 0
        for message in request.messages:
            if message.role is not _SYSTEM:
                break
            n_system += 1
        fields = []
        system = [part for each in request.messages[:n_system] for part in self._parts(each.blocks)]
        form = request.format
        if form is not None and request.tools and not self._facts.json_with_tools:
            self._dropped.drop("response_format")
            system.append(b'{"text":' + json_note(form.schema) + b"}")
            form = None
        if system:
            fields.append(b'"systemInstruction":{"parts":[' + b",".join(system) + b"]}")
        if request.tools:
            tools = b",".join([self._declaration(tool) for tool in request.tools])
            fields.append(b'"tools":[{"functionDeclarations":[' + tools + b"]}]")
        if request.web_search is not None:
            fields += self._search(request)
        fields.append(b'"contents":[' + b",".join(self._contents(request.messages[n_system:])) + b"]")
        if request.tool_choice is not None or request.parallel_tools is False:
            fields += self._tool_config(request)
        config = b",".join(self._config(request, form))
        if config:
            fields.append(b'"generationConfig":{' + config + b"}")
        fields += self._others(request)
        return Written(b"{" + b",".join(fields) + b"}", self._names.originals)

    # -- contents ----------------------------------------------------------------------------------

    def _contents(self, messages: list[Message]) -> list[bytes]:
        """Write the turns. The first is the user's, as Gemini wants it."""
        written = []
        if not messages or messages[0].role is _ASSISTANT:
            written.append(_content(b"user", [_SPACE]))
        if messages and messages[-1].role is _ASSISTANT and not self._facts.prefill:
            raise BadRequestError("this model can't continue an assistant's message; end with a user's", "messages")
        merged: list[Block] | None = None  # the blocks of a turn of several messages, so far
        for message, following in zip_longest(messages, messages[1:]):
            is_model = message.role is _ASSISTANT
            if message.name is not None:
                self._dropped.drop("name", "messages")
            if merged is not None:
                merged += message.blocks
            if following is not None and (following.role is _ASSISTANT) is is_model:
                merged = [*message.blocks] if merged is None else merged
                continue
            if merged is None and message.plain is not None and not self._step:
                written.append((_MODEL_TEXT if is_model else _USER_TEXT) % message.plain)
                continue
            blocks, merged = message.blocks if merged is None else merged, None
            if is_model:
                written.append(_content(b"model", self._model_parts(blocks) or [_SPACE]))
            else:
                written += self._user_contents(blocks)
        return written

    def _user_contents(self, blocks: list[Block]) -> Iterator[bytes]:
        """Write a turn of the user: first the results, alone; then all else."""
        results: list[ToolResult] = []
        others: list[Block] = []
        for block in blocks:
            if type(block) is ToolResult:
                results.append(block)
            else:
                others.append(block)
        if results or self._step:
            parts, pictures = self._results(results)
            if parts:
                yield _content(b"user", parts)
            others = [*pictures, *others]
        if others or not results:
            yield _content(b"user", self._parts(others) or [_SPACE])

    def _model_parts(self, blocks: list[Block]) -> list[bytes]:
        parts = []
        is_first = self._facts.thinking in CHECKING
        self._step = []
        for block in blocks:
            if isinstance(block, ToolUse):
                parts.append(self._call(block, is_first))
                is_first = False
                self._tools[block.id] = block.name
                self._step.append(block.id)
            elif isinstance(block, Thinking):
                # Thoughts without a signature are for people: the model does not read them.
                signature = self._signature(block.signature)
                if signature:
                    parts.append(b'{"text":' + block.text + b',"thought":true' + signature + b"}")
            else:
                parts += self._parts([block])
        return parts

    def _call(self, block: ToolUse, is_first: bool) -> bytes:
        signature = self._signature(block.signature)
        if is_first and not signature:
            signature = b',"thoughtSignature":' + UNCHECKED
        name = quoted(self._names.fit(block.name))
        arguments = block.arguments
        return b'{"functionCall":{%b"name":%b,"args":%b}%b}' % (self._id(block.id), name, arguments, signature)

    def _signature(self, signature: Signature | None) -> bytes:
        """Write a signature of Google's; those of others can't be used."""
        if signature is None:
            return b""
        if signature.provider != GOOGLE:
            self._dropped.drop("reasoning_signature")
            return b""
        return b',"thoughtSignature":' + quoted(signature.value)

    def _id(self, call_id: str) -> bytes:
        return b'"id":' + quoted(call_id) + b"," if call_id and self._facts.call_ids != "none" else b""

    def _results(self, results: list[ToolResult]) -> tuple[list[bytes], list[Block]]:
        """Write results in the order of their calls; return also the pictures that can't stand in them."""
        n_calls = Counter(self._step)
        by_id: dict[str, deque[ToolResult]] = {}  # of more results than calls, the last ones count
        for result in results:
            if result.cache is not None:
                self._dropped.drop("cache")
            if result.id not in self._tools and result.name is None:
                raise BadRequestError("a tool result has the id of a call that no message before it made", "messages")
            by_id.setdefault(result.id, deque(maxlen=n_calls.get(result.id, 1))).append(result)
        if any(len(by_id.get(each, ())) < n for each, n in n_calls.items()):
            raise BadRequestError("a tool call has no result in the message after it; send one for each", "messages")
        ordered = [by_id[each].popleft() for each in self._step]
        self._step = []
        parts, pictures = [], list[Block]()
        for result in chain(ordered, *by_id.values()):
            part, moved = self._result(result)
            parts.append(part)
            pictures += moved
        return parts, pictures

    def _result(self, result: ToolResult) -> tuple[bytes, list[Block]]:
        name = self._names.fit(self._tools.get(result.id) or result.name or "")
        texts: list[bytes] = []
        media: list[Block] = []
        for block in result.parts:
            if isinstance(block, Text):
                texts.append(block.text)
            elif isinstance(block, Document) and block.source.kind is MediaKind.TEXT:
                texts.append(quoted(block.source.value))
            else:
                media.append(block)
        response = _response(texts[0] if len(texts) == 1 else joined(texts), result.is_error)
        inside = b""
        if media and self._facts.images_in_results:
            inside = b',"parts":[' + b",".join(self._parts(media)) + b"]"
            media = []
        written = (self._id(result.id), quoted(name), response, inside)
        return b'{"functionResponse":{%b"name":%b,"response":%b%b}}' % written, media

    # -- parts -------------------------------------------------------------------------------------

    def _parts(self, blocks: list[Block]) -> list[bytes]:
        """Write blocks that are no calls, results or thoughts. Empty texts are left out."""
        parts = []
        for block in blocks:
            if type(block) is Text:
                if block.cache is not None:
                    self._dropped.drop("cache")
                signature = self._signature(block.signature) if block.signature is not None else b""
                if block.text != b'""' or signature:
                    parts.append(b'{"text":' + block.text + signature + b"}")
            elif isinstance(block, Refusal):
                parts.append(b'{"text":' + block.text + b"}")
            elif isinstance(block, Image):
                if block.cache is not None:
                    self._dropped.drop("cache")
                if block.detail not in (None, "auto"):
                    self._dropped.drop("detail", self._path(block.source) if self._dropped.is_strict else "")
                parts.append(self._media(block.source, "image/jpeg"))
            elif isinstance(block, Audio):
                parts.append(self._media(block.source, f"audio/{block.format or 'wav'}"))
            elif isinstance(block, Document):
                if block.cache is not None:
                    self._dropped.drop("cache")
                parts += self._document(block)
        return parts

    def _document(self, block: Document) -> list[bytes]:
        if block.citations:
            self._dropped.drop("citations", self._path(block.source) if self._dropped.is_strict else "")
        if block.source.kind is MediaKind.TEXT:
            return [b'{"text":' + document_text(block) + b"}"]
        parts = []
        if block.context is not None and not is_blank(block.context):
            parts.append(b'{"text":' + block.context + b"}")
        default = EXTENSIONS.get(block.name.rpartition(".")[2].lower()) if block.name else None
        parts.append(self._media(block.source, default))
        return parts

    def _media(self, source: Media, default: str | None) -> bytes:
        """Write a picture, a sound or a file. default: its type, where neither it nor its address says one."""
        value = source.value
        kind = source.type
        if kind is None and source.kind is MediaKind.URL:
            suffix = _SUFFIX.search(value)
            kind = EXTENSIONS.get(suffix[1].lower()) if suffix is not None else None
        kind = kind or default
        if kind is None:
            message = "Gemini needs the media type of a file, which neither it nor its name says"
            raise BadRequestError(message, self._path(source))
        written = quoted(_SAME_TYPES.get(kind, kind))
        if source.kind is MediaKind.DATA:
            return b'{"inlineData":{"mimeType":%b,"data":%b}}' % (written, quoted(value))
        if value.startswith("https:") or (source.kind is MediaKind.URL and not value.startswith("s3:")):
            return b'{"fileData":{"mimeType":%b,"fileUri":%b}}' % (written, quoted(value))
        what = "an s3: address" if source.kind is MediaKind.URL else "the id of a file at another provider"
        message = f"Gemini can't read {what}; send the data, or a gs: or https: address"
        raise BadRequestError(message, self._path(source))

    def _path(self, source: Media) -> str:
        """Return the place of a part, for an error."""
        return media_path(self._messages, source)

    # -- tools -------------------------------------------------------------------------------------

    def _declaration(self, tool: Tool) -> bytes:
        if tool.cache is not None:
            self._dropped.drop("cache")
        if tool.strict:
            self._dropped.drop("strict", "tools")
        name = quoted(self._names.fit(tool.name))
        description = b"" if tool.description is None else b',"description":' + tool.description
        if tool.parameters is not None and self._facts.schema_keywords:
            schema = object_schema(tool.parameters)
            return b'{"name":%b%b,"parametersJsonSchema":%b}' % (name, description, schema)
        subset = None if tool.parameters is None else self._subset(tool.parameters, "tools")
        return b'{"name":%b%b%b}' % (name, description, b"" if subset is None else b',"parameters":' + subset)

    def _search(self, request: Request) -> list[bytes]:
        """Write a search of the web, which can't be forced, and can't stand beside functions."""
        search = taken_search(request, None if request.tools else self._facts, self._dropped)
        if search is None:
            return []
        if search.is_forced:
            self._dropped.drop("tool_choice", problem="a search of the web can't be forced at this model")
        for name, value in (
            ("allowed_domains", search.allowed_domains),
            ("blocked_domains", search.blocked_domains),
            ("max_uses", search.most),
            ("user_location", search.location),
        ):
            if value:
                self._dropped.drop(f"web_search.{name}", "tools")
        return [b'"tools":[{"%b":{}}]' % self._facts.web_search.encode()]

    def _subset(self, schema: JsonValue, param: str) -> JsonValue | None:
        try:
            return self._schemas.subset(schema, self._inlining)
        except SchemaError as exc:
            raise BadRequestError(str(exc), param) from exc

    def _tool_config(self, request: Request) -> list[bytes]:
        if request.parallel_tools is False and request.tools:
            self._dropped.drop("parallel_tool_calls")
        choice = request.tool_choice
        if choice is None or not request.tools:
            return []
        allowed = (choice.name,) if choice.choice is Choice.TOOL and choice.name else choice.allowed
        mode = b"AUTO"
        if choice.choice is Choice.NONE:
            mode, allowed = b"NONE", ()
        elif choice.choice is not Choice.AUTO and self._facts.forced_choice:
            mode = b"ANY"
        else:
            if choice.choice is not Choice.AUTO:
                self._dropped.drop("tool_choice")
            mode = b"VALIDATED" if allowed else b"AUTO"  # AUTO takes no names
        names = b",".join([quoted(self._names.fit(name)) for name in allowed])
        only = b',"allowedFunctionNames":[' + names + b"]" if names else b""
        return [b'"toolConfig":{"functionCallingConfig":{"mode":"' + mode + b'"' + only + b"}}"]

    # -- the rest ----------------------------------------------------------------------------------

    def _config(self, request: Request, form: Format | None) -> Iterator[bytes]:
        if request.wants_pictures:
            yield b'"responseModalities":["TEXT","IMAGE"]'
        most = taken_max_tokens(request.max_tokens, self._facts, self._dropped)
        if most is not None:
            yield b'"maxOutputTokens":%d' % most
        for name, field, is_sampling in _NUMBERS:
            number = getattr(request, name)
            if number is None:
                continue
            if name in self._facts.refused or (is_sampling and not self._facts.sampling):
                self._dropped.drop(name)
            else:
                yield b'"%b":%b' % (field, repr(number).encode())
        if request.stop and (stops := taken_stops([each for each in request.stop if each], self._facts)):
            yield b'"stopSequences":[' + b",".join([quoted(each) for each in stops]) + b"]"
        if form is not None:
            yield from self._format(form)
        if request.reasoning is not None:
            thinking = self._thinking(request.reasoning)
            if thinking:
                yield b'"thinkingConfig":{' + thinking + b"}"

    def _format(self, form: Format) -> Iterator[bytes]:
        yield b'"responseMimeType":"application/json"'
        if form.schema is None:
            return
        if not self._facts.json_schema:
            self._dropped.drop("response_format")
        elif self._facts.schema_keywords:
            yield b'"responseJsonSchema":' + form.schema
        else:
            schema = self._subset(form.schema, "response_format")
            if schema is not None:
                yield b'"responseSchema":' + schema

    def _thinking(self, reasoning: Reasoning) -> bytes:
        """Write how much the model thinks; b"" for nothing."""
        kind = self._facts.thinking
        effort = "none" if reasoning.enabled is False else reasoning.effort
        if kind == "none":
            if effort != "none":
                self._dropped.drop("reasoning")
            return b""
        is_off = effort == "none" or reasoning.budget_tokens == 0
        shown = b'"includeThoughts":' + (b"false" if is_off or reasoning.summary == "omitted" else b"true")
        if kind == "thinking_budget":
            budget = self._budget(reasoning, effort)
            return shown if budget is None else shown + b',"thinkingBudget":%d' % budget
        level = self._level(reasoning, effort)
        return shown if level is None else shown + b',"thinkingLevel":"' + level.upper().encode() + b'"'

    def _budget(self, reasoning: Reasoning, effort: str | None) -> int | None:
        if effort == "none" or reasoning.budget_tokens == 0:
            if "thinking_budget.0" not in self._facts.refused:
                return 0
            self._dropped.drop("reasoning")
            return _LEAST_BUDGET
        if reasoning.budget_tokens is not None:
            return min(max(reasoning.budget_tokens, _LEAST_BUDGET), _MOST_BUDGET)
        if effort is not None:
            return _BUDGETS.get(effort)
        return -1 if reasoning.enabled else None

    def _level(self, reasoning: Reasoning, effort: str | None) -> str | None:
        """Return the level. A model that does not know it takes the next one that it knows."""
        if effort == "none" or reasoning.budget_tokens == 0:
            self._dropped.drop("reasoning")  # these models always think
        elif reasoning.budget_tokens is not None:
            budget = reasoning.budget_tokens
            effort = "low" if budget <= _BUDGETS["low"] else "medium" if budget <= _BUDGETS["medium"] else "high"
        if effort is None:
            return "minimal" if reasoning.budget_tokens == 0 else None
        level = _EFFORTS.get(effort, effort)
        if level not in _LEVELS:
            return None
        at = _LEVELS.index(level)
        for each in (*_LEVELS[at:], *reversed(_LEVELS[:at])):
            if f"thinking_level.{each}" not in self._facts.refused:
                return each
        return None

    def _others(self, request: Request) -> list[bytes]:
        if request.user is not None:
            self._dropped.drop("user")
        if request.cache_key is not None:
            self._dropped.drop("prompt_cache_key")
        if request.verbosity is not None:
            self._dropped.drop("verbosity")
        if request.cache is not None:
            self._dropped.drop("cache")
        if request.tier is None or request.tier == "auto":
            return []
        tier = _TIERS.get(request.tier)
        if tier is None or "tier" in self._facts.refused:
            if request.tier != "default":
                self._dropped.drop("tier")
            return []
        return [b'"serviceTier":' + tier]


def _content(role: bytes, parts: list[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (role, b",".join(parts))


def _response(text: JsonText, is_error: bool) -> bytes:
    """Write what a function returned: an object as it is; any other text as Google's documentation wants it."""
    value = text
    if text.startswith(b'"{') and text.endswith(b'}"'):
        value = as_object(decoded(text)) or text
    if is_error:
        return b'{"error":' + value + b"}"
    return value if value is not text else b'{"output":' + text + b"}"
