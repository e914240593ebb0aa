"""Leaves out or refuses fields of Claude's Messages that a service lacks, in bodies that go up as sent.

Claude is served by Anthropic, by clouds, and its API by servers of others. Each has its own betas, and answers 400 to a
field whose beta it does not know, as to a beta that it does not know. So both go together: what the service has passes,
with the beta that it asks for there; what it has not comes off with its beta, and is named as dropped; and what would
change the answer by coming off is refused here, before anything is sent.

    tools.defer_loading      a field of a tool
    tools.web_search         a type of tool, with its versions: `web_search_20250305`
    messages.system          a message of the role `system`: its words go to the user's message before it
    source.file              a picture or document by the id of a file
    context_management.clear an edit whose type begins so
    output_config.task_budget, thinking.block_binding, speed    fields of the body

Knows: where the fields are, and their betas at Anthropic. Does not know: which service has which (ModelFacts).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from velox.dialects.as_sent.claude_thinking import MOST_DIGITS, fit_thinking
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.facts.limits import taken_max_tokens
from velox.dialects.facts.model_facts import BY, REFUSED, TAKEN, ModelFacts
from velox.dialects.json_text.text import is_blank, quoted
from velox.dialects.messages.client_tools import client_tool
from velox.dialects.messages.read_request import needed
from velox.policy.patterns import matches

__all__ = ["BETAS_OF", "FittedBody", "fitted", "marked_last", "names_of", "object_of"]

_Fields: TypeAlias = dict[str, Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[_Fields])
_EMPTY: Final = (b"", b"null", b"[]", b"{}", b'""', b"false")
_NO_RAW: Final = Raw(b"")

# The betas of Anthropic's own API by which each came, or comes: the types of its SDK, and its page "Beta headers".
BETAS_OF: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "billing_policy": ("user-profiles-billing-*",),
        "compaction": ("compact-2026-09-04",),
        "context_management": ("context-management-*", "compact-2026-01-12"),
        "context_management.clear": ("context-management-*",),
        "context_management.compact": ("compact-2026-01-12",),
        "container": ("skills-*",),
        "diagnostics": ("cache-diagnosis-*",),
        "fallback_credit_token": ("fallback-credit-*",),
        "fallbacks": ("server-side-fallback-*",),
        "mcp_servers": ("mcp-client-*",),
        "messages.system": ("mid-conversation-*", "inline-tools-*"),
        "output_config.effort": ("effort-*",),
        "output_config.task_budget": ("task-budgets-*",),
        "output_format": ("structured-outputs-*",),
        "source.file": ("files-api-*",),
        "speed": ("fast-mode-*",),
        "thinking.block_binding": ("thinking-binding-controls-*",),
        "thread": ("message-threads-*",),
        "tools.advisor": ("advisor-tool-*",),
        "tools.allowed_callers": ("advanced-tool-use-*",),
        "tools.code_execution": ("code-execution-*",),
        "tools.defer_loading": ("advanced-tool-use-*", "tool-search-tool-*"),
        "tools.eager_input_streaming": ("fine-grained-tool-streaming-*",),
        "tools.input_examples": ("advanced-tool-use-*", "tool-examples-*"),
        "tools.strict": ("structured-outputs-*",),
        "tools.tool_search_tool": ("advanced-tool-use-*", "tool-search-tool-*"),
        "tools.web_fetch": ("web-fetch-*",),
        "tools.web_search": ("web-search-*",),
        "user_profile_id": ("user-profiles-20*",),
    }
)
# By what a name begins with: the patterns above end with what is any date.
_STARTS: Final = tuple((beta.removesuffix("*"), path) for path, betas in BETAS_OF.items() for beta in betas)
# In the body, below a field of its own.
_TOOLS, _MESSAGES, _EDITS = "tools.", "messages.", "context_management."
_ELSEWHERE: Final = (_TOOLS, _MESSAGES, _EDITS, "source.")
_TOOL_FIELDS: Final = ("defer_loading", "allowed_callers", "input_examples", "eager_input_streaming", "strict")
_SERVER_TOOLS: Final = "server_tools"  # the dropped field, as in a translation
# Of the messages: without any of these texts nothing in them is looked at.
_SYSTEM: Final = b'"system"'
_IN_BLOCKS: Final = (
    *(b"_tool_", b"container_upload", b'"compaction"', b'"fallback"', b"tool_reference"),  # `_tool_` of servers' tools
    b'"source"',
)
# What belongs to which feature: blocks of the history.
_BLOCKS: Final = MappingProxyType(
    {
        "mcp_tool_use": "mcp_servers",
        "mcp_tool_result": "mcp_servers",
        "mcp_tool_listing": "mcp_servers",
        "fallback": "fallbacks",
        "web_search_tool_result": "tools.web_search",
        "web_fetch_tool_result": "tools.web_fetch",
        "advisor_tool_result": "tools.advisor",
        "tool_search_tool_result": "tools.tool_search_tool",
    }
)
_CODE: Final = ("code_execution", "bash_code_execution", "text_editor_code_execution")
# In a text its quotes would be escaped; a schema's property of that name is no mark.
_MARK: Final = re.compile(rb'"cache_control"\s*+:\s*+\{[^{}]*+\}')
_EPHEMERAL: Final = b'"ephemeral"'
_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")
# What has no cache mark.
_UNMARKED: Final = (b'"thinking"', b'"redacted_thinking"')


class FittedBody(NamedTuple):
    """A request as a service takes it: its body, and the betas that go with it."""

    body: bytes | bytearray
    betas: tuple[str, ...]


def names_of(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the betas of a client, each once. headers: the values of anthropic-beta: it may send several."""
    return tuple(dict.fromkeys(name for value in headers for part in value.split(",") if (name := part.strip())))


def fitted(
    body: bytes | bytearray,
    given: tuple[str, ...],
    facts: ModelFacts,
    dropped: DroppedFields,
    *,
    is_renamed: bool = False,
) -> FittedBody:
    """Return what goes up. given: the client's betas. What can't be read goes up as it is.

    is_renamed: a route asks for another model than the client named, which may have other ways to think. Raises
    BadRequestError for what the service has not and the answer needs, or where the route is strict.
    """
    service = _Service(facts, given)
    try:
        fields: _Fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return FittedBody(body, service.betas(dropped))
    try:
        is_changed = is_renamed and fit_thinking(fields, facts, dropped)
        is_changed |= _Fit(fields, service, facts, dropped).fit()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        is_changed = False  # a field of another type than it should have: its provider says so
    return FittedBody(object_of(fields) if is_changed else body, service.betas(dropped))


class _Service:
    """What a service has, and the betas of one request there."""

    def __init__(self, facts: ModelFacts, given: tuple[str, ...]) -> None:
        self._said: Final = dict(facts.beta_fields)
        self._known: Final = facts.betas
        self._given: Final = given
        self._added: Final[dict[str, None]] = {}
        self._lost: Final[set[str]] = set()
        self.paths: Final = tuple(self._said)

    def takes(self, path: str) -> bool:
        """Tell whether a field that is there goes up; note the beta that it needs, or has in its place."""
        said = self._said.get(path, TAKEN)
        if said == TAKEN:
            return True
        if said == REFUSED:
            return False
        if said.startswith(BY):
            self._added[said.removeprefix(BY)] = None
            return False
        names = said.split()
        if not any(name in self._given or name in self._added for name in names):
            self._added[names[0]] = None
        return True

    def has(self, path: str) -> bool:
        """Tell whether it takes a field as Anthropic does: nothing has to be looked at."""
        return self._said.get(path, TAKEN) == TAKEN

    def is_by_beta(self, path: str) -> bool:
        """Tell whether a field has a beta in its place."""
        return self._said.get(path, TAKEN).startswith(BY)

    def lose(self, path: str) -> None:
        """Note that a field came off: its beta is dropped as well."""
        self._lost.add(path)

    def of_type(self, start: str, kind: str) -> str:
        """Return the path that says something of a type, with its versions; "" for none."""
        while kind:
            if start + kind in self._said:
                return start + kind
            kind = kind.rpartition("_")[0]
        return ""

    def betas(self, dropped: DroppedFields) -> tuple[str, ...]:
        """Return those that go up. Raises BadRequestError: one does not, and the route is strict."""
        sent: dict[str, None] = {}
        is_lost = False
        for name in self._given:
            of = [path for start, path in _STARTS if name.startswith(start)]
            if self._known:
                is_taken = any(matches(pattern, name) for pattern in self._known)
            else:
                is_taken = not of or any(self._said.get(path, TAKEN) != REFUSED for path in of)
            if is_taken:
                sent[name] = None
            elif not of or not self._lost.isdisjoint(of):
                is_lost = True
        if is_lost:
            dropped.drop("anthropic-beta")
        return (*sent, *(name for name in self._added if name not in sent))


class _Fit:
    """One body."""

    def __init__(self, fields: _Fields, service: _Service, facts: ModelFacts, dropped: DroppedFields) -> None:
        self._fields: Final = fields
        self._service: Final = service
        self._facts: Final = facts
        self._dropped: Final = dropped

    def fit(self) -> bool:
        """Change the fields; return whether any is another one now."""
        fields = self._fields
        steps: tuple[Callable[[], bool], ...] = (
            self._top,
            self._nested,
            self._edits,
            self._tools,
            self._messages,
            self._limit,
            self._marks,
        )
        is_changed = False
        for step in steps:
            is_changed |= step()
        mark = fields.get("cache_control")
        if mark is not None and not self._service.takes("cache_control"):
            del fields["cache_control"]
            is_changed = True
            if bytes(mark) != b"null":
                marked_last(fields, bytes(mark))
        return is_changed

    def _lose(self, path: str, name: str, param: str = "") -> None:
        """Name a field as dropped, unless it has a beta in its place. Raises BadRequestError: the route is strict."""
        if not self._service.is_by_beta(path):
            self._service.lose(path)
            self._dropped.drop(name, param)

    def _top(self) -> bool:
        fields, is_changed = self._fields, False
        for name in tuple(fields):
            if name == "cache_control" or name not in self._service.paths:
                continue
            value = bytes(fields[name])
            if value in _EMPTY:
                # As good as none, for which no beta need be asked.
                is_changed |= not self._service.has(name)
                if not self._service.has(name):
                    del fields[name]
            elif not self._service.takes(name):
                self._leave_out(name, value)
                is_changed = True
        return is_changed

    def _leave_out(self, name: str, value: bytes) -> None:
        refusal = needed(name)
        if refusal is not None:
            raise refusal
        del self._fields[name]
        if name == "output_format":
            # Its name before it was released. The schema makes the answer what it is.
            config = _FIELDS.decode(self._fields.get("output_config", b"{}"))
            config.setdefault("format", Raw(value))
            self._fields["output_config"] = Raw(object_of(config))
        else:
            self._lose(name, name)

    def _nested(self) -> bool:
        """Look at fields of objects: of `output_config` and the like."""
        is_changed = False
        for path in self._service.paths:
            outer, _, inner = path.partition(".")
            if not inner or path.startswith(_ELSEWHERE) or outer not in self._fields:
                continue
            found = bytes(self._fields[outer])
            if found[:1] != b"{":
                continue
            within = _FIELDS.decode(found)
            if inner not in within or self._service.has(path):
                continue
            if bytes(within[inner]) not in _EMPTY:
                if self._service.takes(path):
                    continue
                self._lose(path, path)
            del within[inner]
            if within:
                self._fields[outer] = Raw(object_of(within))
            else:
                del self._fields[outer]
            is_changed = True
        return is_changed

    def _edits(self) -> bool:
        """Look at the edits of context_management."""
        found = self._fields.get("context_management")
        if found is None or not any(path.startswith(_EDITS) for path in self._service.paths):
            return False
        management = _FIELDS.decode(found)
        edits = _LIST.decode(management.get("edits", b"[]"))
        kept = [edit for edit in edits if self._takes_edit(edit)]
        if len(kept) == len(edits):
            return False
        if kept:
            management["edits"] = _list(kept)
            self._fields["context_management"] = Raw(object_of(management))
        else:
            del self._fields["context_management"]
        return True

    def _takes_edit(self, edit: Raw) -> bool:
        path = self._service.of_type(_EDITS, _text_of(_FIELDS.decode(edit), "type"))
        if not path or self._service.takes(path):
            return True
        self._lose(path, "context_management")
        return False

    def _tools(self) -> bool:
        raw = bytes(self._fields.get("tools", _NO_RAW))
        if raw[:1] != b"[":
            return False
        tools: list[Raw] = []
        gone: set[str] = set()
        is_changed = False
        for tool in _LIST.decode(raw):
            found = _FIELDS.decode(tool)
            path = self._service.of_type(_TOOLS, _text_of(found, "type"))
            if path and not self._service.takes(path):
                is_changed = True
                known = client_tool(_text_of(found, "type"))
                if known is not None:
                    tools.append(Raw(object_of(_function(found, *known))))
                    continue
                self._lose(path, _SERVER_TOOLS, "tools")
                gone.add(_text_of(found, "name"))
            elif self._fit_tool(found):
                tools.append(Raw(object_of(found)))
                is_changed = True
            else:
                tools.append(tool)
        if is_changed:
            if gone:
                self._check_choice(gone, n_left=len(tools))
            if tools:
                self._fields["tools"] = _list(tools)
            else:
                del self._fields["tools"]
                self._fields.pop("tool_choice", None)
        return is_changed

    def _fit_tool(self, tool: _Fields) -> bool:
        is_changed = False
        for name in _TOOL_FIELDS:
            value = tool.get(name)
            if value is None:
                continue
            path = _TOOLS + name
            if self._service.has(path):
                continue
            if bytes(value) not in _EMPTY:
                if self._service.takes(path):
                    continue
                self._lose(path, name, "tools")
            del tool[name]
            is_changed = True
        return is_changed

    def _check_choice(self, gone: set[str], *, n_left: int) -> None:
        """Raise BadRequestError where a tool has to be called that is not there."""
        choice = bytes(self._fields.get("tool_choice", _NO_RAW))
        if choice[:1] != b"{":
            return
        found = _FIELDS.decode(choice)
        kind = _text_of(found, "type")
        if (kind == "tool" and _text_of(found, "name") in gone) or (kind == "any" and not n_left):
            message = "the tool that must be called is run by Anthropic, and the model of this route is not there"
            raise BadRequestError(message, "tool_choice")

    def _limit(self) -> bool:
        raw = bytes(self._fields.get("max_tokens", _NO_RAW))
        if not self._facts.most_output or not raw.isdigit() or len(raw) > MOST_DIGITS:
            return False
        taken = taken_max_tokens(int(raw), self._facts, self._dropped)
        if taken is None or taken == int(raw):
            return False
        self._fields["max_tokens"] = Raw(b"%d" % taken)
        return True

    def _marks(self) -> bool:
        """Take all cache marks off where the model has no cache."""
        if self._facts.cache_marks:
            return False
        is_changed = self._fields.pop("cache_control", None) is not None
        for name in ("tools", "system", "messages"):
            raw = bytes(self._fields.get(name, _NO_RAW))
            if b'"cache_control"' in raw:
                self._fields[name] = Raw(_without_marks(raw))
                is_changed = True
        if is_changed:
            self._dropped.drop("cache_control")
        return is_changed

    # -- messages -------------------------------------------------------------------------------------

    def _messages(self) -> bool:
        raw = bytes(self._fields.get("messages", _NO_RAW))
        has_system = _SYSTEM in raw and _MESSAGES + "system" in self._service.paths
        has_blocks = any(text in raw for text in _IN_BLOCKS)
        if not has_system and not has_blocks:
            return False
        messages = _OBJECTS.decode(raw)
        is_changed = has_blocks and self._fit_messages(messages)
        has_system = has_system and any(bytes(message.get("role", _NO_RAW)) == _SYSTEM for message in messages)
        if has_system and not self._service.takes(_MESSAGES + "system"):
            messages = self._without_system(messages)
            is_changed = True
        if is_changed:
            self._fields["messages"] = Raw(b"[" + b",".join(map(object_of, messages)) + b"]")
        return is_changed

    def _fit_messages(self, messages: list[_Fields]) -> bool:
        is_changed = False
        for at in range(len(messages) - 1, -1, -1):
            message = messages[at]
            content = bytes(message.get("content", _NO_RAW))
            if content[:1] != b"[" or not any(text in content for text in _IN_BLOCKS):
                continue
            kept = self._fit_blocks(content, f"messages[{at}].content")
            if kept is None:
                continue
            is_changed = True
            message["content"] = _list(kept)
            if not kept:
                del messages[at]
        return is_changed

    def _fit_blocks(self, content: bytes, place: str) -> list[Raw] | None:
        """Return the blocks that go up; None: all, as they are. Raises BadRequestError."""
        kept: list[Raw] = []
        is_changed = False
        for at, raw in enumerate(_LIST.decode(content)):
            block = _FIELDS.decode(raw)
            kind = _text_of(block, "type")
            if kind in ("image", "document"):
                self._check_source(block, f"{place}[{at}].source")
            elif kind == "tool_result":
                inner = bytes(block.get("content", _NO_RAW))
                within = self._fit_blocks(inner, f"{place}[{at}].content") if inner[:1] == b"[" else None
                if within is not None:
                    block["content"] = _list(within)
                    raw, is_changed = Raw(object_of(block)), True
            elif kind == "tool_reference":
                if not self._service.takes(_TOOLS + "defer_loading"):
                    # The model has all of the tools: the name says which one was found.
                    name = _text_of(block, "tool_name") or _text_of(block, "name")
                    raw, is_changed = Raw(b'{"type":"text","text":%b}' % quoted(name)), True
            elif kind != "text":
                path = self._feature_of(kind, block)
                if path and not self._service.takes(path):
                    self._check_block(kind)
                    self._lose(path, _SERVER_TOOLS, "messages")
                    is_changed = True
                    continue
            kept.append(raw)
        return kept if is_changed else None

    def _feature_of(self, kind: str, block: _Fields) -> str:
        """Return what a block of the history belongs to; "" for what each service has."""
        if kind == "compaction":
            return "compaction" if self._service.of_type(_EDITS, "compact") == "" else _EDITS + "compact"
        if kind == "container_upload":
            return "container"
        name = _text_of(block, "name") if kind == "server_tool_use" else ""
        if kind.endswith("code_execution_tool_result") or name in _CODE:
            return _TOOLS + "code_execution"
        return self._service.of_type(_TOOLS, name) if name else _BLOCKS.get(kind, "")

    def _check_block(self, kind: str) -> None:
        if kind == "compaction":
            raise BadRequestError("a compacted conversation can be read by Anthropic only", "messages")
        if kind == "container_upload":
            raise BadRequestError("a file in a container of Anthropic's can't be read elsewhere", "messages")

    def _check_source(self, block: _Fields, place: str) -> None:
        source = bytes(block.get("source", _NO_RAW))
        if source[:1] != b"{":
            return
        kind = _text_of(_FIELDS.decode(source), "type")
        if kind == "url" and not self._facts.fetches_urls:
            message = "this model's provider reads no URLs; send the data in base64"
            raise BadRequestError(message, place)
        if kind == "file" and not self._service.takes("source.file"):
            raise BadRequestError("a file that Anthropic keeps can't be read there; send the data in base64", place)

    def _without_system(self, messages: list[_Fields]) -> list[_Fields]:
        """Return the messages, with the words of the system as the user's, in their place.

        They go into the user's message before them, behind its results of tools, so that turns still alternate.
        """
        found: list[_Fields] = []
        waiting: list[bytes] = []  # for the user's next message
        for message in messages:
            role = bytes(message.get("role", _NO_RAW))
            if role == _SYSTEM:
                words = self._words(bytes(message.get("content", _NO_RAW)))
                if found and bytes(found[-1].get("role", _NO_RAW)) == b'"user"' and not waiting:
                    found[-1]["content"] = _list([*_blocks_of(found[-1]), *map(Raw, words)])
                else:
                    waiting += words
                continue
            if waiting:
                if role == b'"user"':
                    message["content"] = _after_results(_blocks_of(message), waiting)
                else:
                    found.append(_user(waiting))
                waiting = []
            found.append(message)
        if waiting:
            found.append(_user(waiting))
        return found

    def _words(self, content: bytes) -> list[bytes]:
        """Return the texts of a message of the system, as blocks."""
        if content[:1] != b"[":
            return [] if content[:1] != b'"' or is_blank(content) else [b'{"type":"text","text":%b}' % content]
        words: list[bytes] = []
        for raw in _LIST.decode(content):
            kind = _text_of(_FIELDS.decode(raw), "type")
            if kind == "text":
                words.append(bytes(raw))
            else:
                self._dropped.drop("defer_loading", "messages")  # tools that come and go: the model has all of them
        return words


def marked_last(fields: _Fields, mark: bytes) -> None:
    """Put a cache mark on the last block of the messages that can have one: what a mark on all of them says."""
    raw = bytes(fields.get("messages", _NO_RAW))
    messages = _LIST.decode(raw) if raw[:1] == b"[" else []
    if not messages:
        return
    message = _FIELDS.decode(messages[-1])
    blocks = [bytes(block) for block in _blocks_of(message)]
    for at in range(len(blocks) - 1, -1, -1):
        block = _FIELDS.decode(blocks[at])
        if bytes(block.get("type", _NO_RAW)) in _UNMARKED:
            continue
        if "cache_control" not in block:
            blocks[at] = blocks[at][:-1] + b',"cache_control":%b}' % mark
        break
    message["content"] = Raw(b"[" + b",".join(blocks) + b"]")
    messages[-1] = Raw(object_of(message))
    fields["messages"] = _list(messages)


def object_of(fields: Mapping[str, Raw]) -> bytes:
    """Return an object of JSON."""
    return b"{" + b",".join(quoted(name) + b":" + bytes(value) for name, value in fields.items()) + b"}"


def _list(items: Iterable[Raw]) -> Raw:
    return Raw(b"[" + b",".join(map(bytes, items)) + b"]")


def _function(tool: _Fields, description: bytes, schema: bytes) -> _Fields:
    """Return a tool that Anthropic defines and the client runs as one of the client's own."""
    kept: _Fields = {name: value for name, value in tool.items() if name in ("name", "cache_control")}
    return {**kept, "description": Raw(description), "input_schema": Raw(schema)}


def _text_of(fields: _Fields, name: str) -> str:
    """Return a field that is a string; "" where it is none."""
    value = bytes(fields.get(name, _NO_RAW))
    return msgspec.json.decode(value, type=str) if value[:1] == b'"' else ""


def _blocks_of(message: _Fields) -> list[Raw]:
    """Return the content of a message as blocks."""
    content = bytes(message.get("content", _NO_RAW))
    if content[:1] == b'"':
        return [] if is_blank(content) else [Raw(b'{"type":"text","text":%b}' % content)]
    return _LIST.decode(content) if content[:1] == b"[" else []


def _after_results(blocks: list[Raw], words: list[bytes]) -> Raw:
    """Return blocks with words behind the results of tools, which stand first, and before all others."""
    at = 0
    while at < len(blocks) and _text_of(_FIELDS.decode(blocks[at]), "type") == "tool_result":
        at += 1
    return _list([*blocks[:at], *map(Raw, words), *blocks[at:]])


def _without_marks(text: bytes) -> bytes:
    """Return JSON without the cache marks in it, each with a comma beside it."""
    parts: list[bytes] = []
    at = 0
    for mark in _MARK.finditer(text):
        if _EPHEMERAL not in mark[0]:
            continue
        before, end = text[at : mark.start()], mark.end()
        while text[end] in _SPACE:
            end += 1
        if text[end] == _COMMA:
            at = end + 1
        else:
            before, at = before.rstrip(_SPACE).removesuffix(b","), end
        parts.append(before)
    return b"".join(parts) + text[at:]


def _user(words: list[bytes]) -> _Fields:
    return {"role": Raw(b'"user"'), "content": Raw(b"[" + b",".join(words) + b"]")}
