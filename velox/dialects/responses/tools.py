"""The tools of one request: those that other dialects don't have become functions, and are restored in the answer.

    function             itself
    namespace            its functions, each called NAMESPACE__NAME
    custom               a function with one text
    local_shell, shell   a function with a command, or several
    apply_patch          a function with one change of a file
    tool_search          a function, where the client searches itself; what it found are tools from then on
    others               none: OpenAI runs them

Knows: which function stands for which tool. Does not know: messages.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import JsonText, JsonValue, Tool, WebSearch
from velox.dialects.json_text.decoding import is_given
from velox.dialects.json_text.text import joined, quoted, raw_text
from velox.dialects.responses import wire
from velox.dialects.tools.arguments import CUSTOM_SCHEMA
from velox.dialects.tools.hosted import HostedTools

__all__ = ["APPLY_PATCH", "LOCAL_SHELL", "SHELL", "TOOL_SEARCH", "ClientTools", "ToolKind", "ToolOrigin"]

LOCAL_SHELL: Final = "local_shell"
SHELL: Final = "shell"
APPLY_PATCH: Final = "apply_patch"
TOOL_SEARCH: Final = "tool_search"
# How the types of its searches begin: "web_search", "web_search_preview", with dates.
WEB_SEARCH: Final = "web_search"
_BETWEEN: Final = "__"
_SHELL_DESCRIPTION: Final = quoted("Runs a command in the user's shell and returns its output.")
_SHELL_SCHEMA: Final = (
    b'{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}},'
    b'"timeout_ms":{"type":"integer"},"working_directory":{"type":"string"}},"required":["command"]}'
)
_COMMANDS_DESCRIPTION: Final = quoted(
    "Runs commands in the user's shell, one after the other, and returns their output."
)
_COMMANDS_SCHEMA: Final = (
    b'{"type":"object","properties":{"commands":{"type":"array","items":{"type":"string"}},'
    b'"timeout_ms":{"type":"integer"},"max_output_length":{"type":"integer"}},"required":["commands"]}'
)
_PATCH_DESCRIPTION: Final = quoted(
    "Creates, changes or deletes one file. diff: in the V4A format; of a new file all lines, each with + before it."
)
_PATCH_SCHEMA: Final = (
    b'{"type":"object","properties":{"type":{"type":"string","enum":["create_file","update_file","delete_file"]},'
    b'"path":{"type":"string"},"diff":{"type":"string"}},"required":["type","path"]}'
)
# Where a shell runs that is the client's; others are containers of OpenAI's.
_LOCAL: Final = "local"
_SEARCH_DESCRIPTION: Final = quoted("Searches for more tools.")
_SEARCH_SCHEMA: Final = b'{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}'
_INPUT_NOTE: Final = quoted("The whole text goes into the field input.")


class ToolKind(enum.Enum):
    """What a function stands for."""

    FUNCTION = "function"
    CUSTOM = "custom"
    LOCAL_SHELL = LOCAL_SHELL
    SHELL = SHELL
    APPLY_PATCH = APPLY_PATCH
    TOOL_SEARCH = TOOL_SEARCH


_CALLED_BY_NAME: Final = frozenset({ToolKind.FUNCTION, ToolKind.CUSTOM})


class ToolOrigin(msgspec.Struct, frozen=True):
    """The tool that a function stands for, as the client calls it."""

    kind: ToolKind
    name: str
    namespace: str | None = None


class ClientTools:
    """The tools of one request."""

    __slots__ = ("_dropped", "_functions", "_named", "_origins", "_plain", "_taken", "hosted", "tools")

    def __init__(self, dropped: DroppedFields) -> None:
        self._dropped: Final = dropped
        self.hosted: Final = HostedTools(dropped, "tools.hosted")
        self.tools: Final[list[Tool]] = []
        self._origins: Final[dict[str, ToolOrigin]] = {}  # of those that are more than a function without a namespace
        self._plain: Final[set[str]] = set()  # functions that stand for themselves
        self._functions: Final[dict[tuple[str | None, str], str]] = {}  # of the others: namespace, name -> function
        self._taken: Final[set[str]] = set()
        # By the name that a tool has in its namespace: its function; None: there are several.
        self._named: Final[dict[str, str | None]] = {}

    def __repr__(self) -> str:
        return f"<ClientTools {len(self.tools)} tools, {len(self._origins)} others>"

    def origin(self, function: str) -> ToolOrigin:
        """Return what a function stands for that the model calls."""
        if not self._origins:
            return ToolOrigin(ToolKind.FUNCTION, function)
        origin = self._origins.get(function)
        if origin is None and function not in self._plain and (only := self._named.get(function)) is not None:
            origin = self._origins.get(only)  # models leave the namespace off
        return origin or ToolOrigin(ToolKind.FUNCTION, function)

    def function(self, name: str, namespace: str | None = None, kind: ToolKind = ToolKind.FUNCTION) -> str:
        """Return the function that stands for a tool, which need not be among those of this request any more.

        Of a name without a namespace that no tool has: the one function that is so called, or the one tool that has the
        name in its namespace.
        """
        if not namespace:
            if name in self._plain:
                return name
            namespace = None
        known = self._functions.get((namespace, name))
        if known is not None:
            return known
        if namespace is None and kind in _CALLED_BY_NAME:
            if name in self._origins:
                return name
            only = self._named.get(name)
            if only is not None:
                return only
        function = name
        if namespace is not None:
            function = namespace + name if namespace.endswith(_BETWEEN) else namespace + _BETWEEN + name
        while function in self._taken:
            function += "_"
        self._taken.add(function)
        if kind is ToolKind.FUNCTION and function == name:
            self._plain.add(name)
        else:
            self._functions[namespace, name] = function
            self._origins[function] = ToolOrigin(kind, name, namespace)
            if namespace is not None:
                self._named[name] = None if name in self._named else function
        return function

    def declare(self, tools: Iterable[wire.Tool], path: str) -> None:
        """Add the tools of a list. Of two with one name the first counts."""
        for n, tool in enumerate(tools):
            name = tool.name
            if tool.type == "function" and name and name not in self._taken and (None, name) not in self._functions:
                self._plain.add(name)
                self._taken.add(name)
                self.tools.append(Tool(name, raw_text(tool.description), _schema(tool.parameters), tool.strict))
            else:
                self._declare(tool, None, f"{path}[{n}]")

    def _declare(self, tool: wire.Tool, namespace: str | None, path: str) -> None:
        match tool.type:
            case "function":
                description = raw_text(tool.description)
                self._add(ToolKind.FUNCTION, tool, namespace, path, description, _schema(tool.parameters))
            case "custom":
                self._add(ToolKind.CUSTOM, tool, namespace, path, _custom_description(tool), CUSTOM_SCHEMA)
            case "namespace" if namespace is None and tool.name:
                if is_given(tool.description):
                    self._dropped.drop("tools.namespace.description", f"{path}.description")
                for n, each in enumerate(tool.tools or ()):
                    self._declare(each, tool.name, f"{path}.tools[{n}]")
            case "namespace":
                raise BadRequestError("a tool of type namespace has a name, and stands in no other", path)
            case "local_shell":
                shell = wire.Tool(tool.type, LOCAL_SHELL)
                self._add(ToolKind.LOCAL_SHELL, shell, None, path, _SHELL_DESCRIPTION, _SHELL_SCHEMA)
            case "shell" if tool.environment is None or tool.environment.type == _LOCAL:
                shell = wire.Tool(tool.type, SHELL)
                self._add(ToolKind.SHELL, shell, None, path, _COMMANDS_DESCRIPTION, _COMMANDS_SCHEMA)
            case "apply_patch":
                patch = wire.Tool(tool.type, APPLY_PATCH)
                self._add(ToolKind.APPLY_PATCH, patch, None, path, _PATCH_DESCRIPTION, _PATCH_SCHEMA)
            case "tool_search" if tool.execution == "client":
                search = wire.Tool(tool.type, TOOL_SEARCH)
                description = raw_text(tool.description) or _SEARCH_DESCRIPTION
                schema = _schema(tool.parameters) or _SEARCH_SCHEMA
                self._add(ToolKind.TOOL_SEARCH, search, None, path, description, schema)
            case kind if kind.startswith(WEB_SEARCH) and tool.external_web_access is not False:
                self.hosted.add_search(_web_search(tool), path)
            case _:
                self.hosted.add_other(path)  # a search of what OpenAI has kept is none of the web

    def _add(
        self,
        kind: ToolKind,
        tool: wire.Tool,
        namespace: str | None,
        path: str,
        description: JsonText | None,
        parameters: JsonValue | None,
    ) -> None:
        if not tool.name:
            raise BadRequestError(f"a tool of type {tool.type} has a name", f"{path}.name")
        is_known = namespace is None and tool.name in self._plain
        if not is_known and (namespace, tool.name) not in self._functions:
            function = self.function(tool.name, namespace, kind)
            self.tools.append(Tool(function, description, parameters, tool.strict))


def _schema(raw: msgspec.Raw) -> JsonValue | None:
    parameters = bytes(raw)
    return parameters if parameters[:1] == b"{" else None


def _web_search(tool: wire.Tool) -> WebSearch:
    filters, location = tool.filters, bytes(tool.user_location)
    return WebSearch(
        allowed_domains=() if filters is None else tuple(filters.allowed_domains or ()),
        blocked_domains=() if filters is None else tuple(filters.blocked_domains or ()),
        location=location if location[:1] == b"{" else None,
    )


def _custom_description(tool: wire.Tool) -> JsonText:
    """Describe a custom tool: with the grammar of its text, which no other dialect has a field for."""
    texts = [text for text in (raw_text(tool.description),) if text is not None]
    texts.append(_INPUT_NOTE)
    grammar = None if tool.format is None else raw_text(tool.format.definition)
    if tool.format is not None and grammar is not None:
        texts += [quoted(f"The text follows this grammar ({tool.format.syntax or 'lark'}):"), grammar]
    return joined(texts)
