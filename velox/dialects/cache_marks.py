"""Cache marks for Claude where a client of another dialect sends none.

Claude caches a prompt only up to a mark, and other dialects' clients know of none: theirs are cached by themselves. An
agent sends its whole conversation again with each turn, and without marks would pay all of it each time.

    the end of the system prompt   with the tools, which stand before it: alike for all conversations of an agent
    the user's last two messages   the conversation so far: what this turn writes, and where the last one ended

A mark costs a quarter more of what is written to the cache, once; what is read from it costs a tenth (Anthropic's page
"Prompt caching"). So by the rule "agents" only a request with tools gets any, and its messages only once the
conversation has begun: a single question with tools pays for the prefix alone, which the next one shares. A prompt that
is too short to be cached costs nothing more.

Knows: where the marks go. Does not know: which models take them (ModelFacts), or how they are written.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from velox.dialects.canonical.model import (
    CacheMark,
    Document,
    Image,
    Message,
    ModelSide,
    Request,
    Role,
    Text,
    ToolResult,
    ToolUse,
    WrappedModel,
    Written,
)
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.json_text.text import is_blank

__all__ = ["MarkingModel", "add_marks", "adds_marks"]

_NEVER: Final = "never"
_AGENTS: Final = "agents"
_MARKED_MESSAGES: Final = 2  # of the user
_Marked: TypeAlias = Text | Image | Document | ToolUse | ToolResult


def adds_marks(facts: ModelFacts) -> bool:
    """Tell whether a model may get any."""
    return facts.added_marks != _NEVER and facts.cache_marks


def add_marks(request: Request, facts: ModelFacts) -> None:
    """Add marks to a request that has none, where the rule says so."""
    if not adds_marks(facts) or _has_marks(request):
        return
    has_begun = any(message.role is Role.ASSISTANT for message in request.messages)
    if facts.added_marks == _AGENTS:
        if not request.tools:
            return
    else:
        has_begun = True
    system: Message | None = None
    for message in request.messages:
        if message.role is not Role.SYSTEM:
            break
        if any(isinstance(block, Text) and not is_blank(block.text) for block in message.blocks):
            system = message
    if system is not None:
        _mark(system)
    elif request.tools:
        request.tools[-1].cache = CacheMark()
    if not has_begun:
        return
    n_left = _MARKED_MESSAGES
    is_in_turn = False  # messages of one side are one turn there: its last one is marked
    for message in reversed(request.messages):
        if message is system or not n_left:
            break
        is_user = message.role is not Role.ASSISTANT
        if is_user and not is_in_turn:
            n_left -= _mark(message)
        is_in_turn = is_user


def _has_marks(request: Request) -> bool:
    if request.cache is not None or any(tool.cache is not None for tool in request.tools):
        return True
    return any(
        isinstance(block, _Marked)
        and (
            block.cache is not None
            or (isinstance(block, ToolResult) and any(part.cache is not None for part in block.parts))
        )
        for message in request.messages
        if message.plain is None
        for block in message.blocks
    )


def _mark(message: Message) -> bool:
    """Put a mark on the last block that can have one; return whether there is any."""
    for block in reversed(message.blocks):
        if isinstance(block, _Marked) and not (isinstance(block, Text) and is_blank(block.text)):
            block.cache = CacheMark()
            message.plain = None
            return True
    return False


class MarkingModel(WrappedModel):
    """One attempt at a model whose requests get marks. inner: what writes them."""

    __slots__ = ("_facts",)

    def __init__(self, inner: ModelSide, facts: ModelFacts) -> None:
        super().__init__(inner)
        self._facts: Final = facts

    def write(self, request: Request, model: str) -> Written:
        """Write the request. Raises BadRequestError."""
        add_marks(request, self._facts)
        return self._inner.write(request, model)
