"""The turns of a conversation as Anthropic wants them: user and assistant by turns, each call answered in the next one.

Messages of one role that follow each other are one turn, and a user's turn begins with the results of all tools. A
system message between others stays where it is, as the user's: moved to the front it would break the prompt's cache.
What can't be sent (blank texts, reasoning that Anthropic did not sign) is left out here, so that no turn is empty.

Knows: the order of turns and blocks. Does not know: how a block is written.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Block,
    CacheMark,
    Document,
    Image,
    JsonText,
    Message,
    Refusal,
    Role,
    Signature,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from velox.dialects.canonical.names import UniqueIds
from velox.dialects.json_text.text import is_blank, quoted
from velox.dialects.tools.open_calls import OpenCalls

__all__ = ["PROVIDER", "MessagesTurn", "has_foreign", "mark_last", "system_texts", "turns_of"]

PROVIDER: Final = "anthropic"
# Looking a member of an enum up costs more than most of what is done with it.
_SYSTEM: Final = Role.SYSTEM
_ASSISTANT: Final = Role.ASSISTANT
# What an assistant's turn answers where a conversation begins with it. It must not be blank.
_BEGINNING: Final = quoted(".")
_Marked: TypeAlias = Text | Image | Document | ToolUse | ToolResult


class MessagesTurn(msgspec.Struct, gc=False):
    """One turn. is_user: else the assistant's. plain: as in Message. calls: of the assistant, among its blocks."""

    is_user: bool
    blocks: list[Block]
    plain: JsonText | None = None
    calls: list[ToolUse] = []
    results: list[ToolResult] = []


def system_texts(messages: list[Message]) -> tuple[list[Text], list[Message]]:
    """Take the leading system messages off; return their texts, and the messages that follow."""
    texts: list[Text] = []
    for at, message in enumerate(messages):
        if message.role is not _SYSTEM:
            return texts, messages[at:]
        texts += [block for block in message.blocks if type(block) is Text and not is_blank(block.text)]
    return texts, []


def turns_of(messages: list[Message], dropped: DroppedFields) -> list[MessagesTurn]:
    """Return the turns. Raises BadRequestError: a call has no result, or a result no call."""
    turns: list[MessagesTurn] = []
    last: MessagesTurn | None = None
    has_calls = False  # or results
    for message in messages:
        if message.name is not None:
            dropped.drop("name", "messages")
        is_user = message.role is not _ASSISTANT
        is_new = last is None or last.is_user is not is_user
        if is_new and message.plain is not None:
            last = MessagesTurn(is_user, message.blocks, message.plain)
            turns.append(last)
            continue
        turn = MessagesTurn(is_user, []) if last is None or is_new else last
        turn.plain = None
        blocks = turn.blocks
        for block in message.blocks:
            if type(block) is ToolUse:
                has_calls = True
                turn.calls.append(block)
                blocks.append(block)
            elif type(block) is ToolResult:
                has_calls = True
                turn.results.append(block)
            elif type(block) is Text and block.signature is None and not is_blank(block.text):
                blocks.append(block)
            else:
                _add(blocks, block, dropped)
        if is_new and (blocks or turn.results):
            last = turn
            turns.append(turn)
    if turns and not turns[0].is_user:
        turns.insert(0, MessagesTurn(is_user=True, blocks=[Text(_BEGINNING)]))
    if has_calls:
        _pair(turns)
    return turns


def _add(to: list[Block], block: Block, dropped: DroppedFields) -> None:
    """Add a block if it can be sent. A mark on what can't goes to the block before."""
    match block:
        case Text(text):
            if block.signature is not None:
                dropped.drop("reasoning_signature", "messages")
            if not is_blank(text):
                to.append(block)
            elif block.cache is not None and to:
                _mark(to[-1], block.cache)
        case Thinking():
            if block.signature is not None and block.signature.provider == PROVIDER:
                to.append(block)
            else:
                dropped.drop("reasoning_signature", "messages")
        case Refusal(text):
            if not is_blank(text):
                to.append(Text(text))
        case _:
            to.append(block)


def mark_last(turn: MessagesTurn, cache: CacheMark) -> None:
    """Put a mark on the last block that can have one: what a mark on the whole request says."""
    for block in reversed(turn.blocks):
        if isinstance(block, _Marked):
            if block.cache is None:
                block.cache, turn.plain = cache, None
            return


def _mark(block: Block, cache: CacheMark) -> None:
    if isinstance(block, _Marked):
        block.cache = cache


def _pair(turns: list[MessagesTurn]) -> None:
    """Put results first, check that each call has one in the next turn, and see that no two calls have one id.

    Some dialects have no ids, and some servers give the same ones in each turn, which Anthropic refuses.
    """
    calls: list[ToolUse] = []
    ids = UniqueIds()
    given: dict[str, str] = {}  # ids that calls of the last turn got here -> as the client calls them
    n_made = 0
    for turn in turns:
        if turn.is_user:
            if calls or turn.results:
                _answer(calls, given, turn.results)
                turn.blocks[:0] = turn.results
            calls = []
            continue
        if turn.results:
            message = f"the tool result {turn.results[0].id!r} stands in a message of the assistant, not of the user"
            raise BadRequestError(message, "messages")
        calls, given = turn.calls, {}
        for call in calls:
            if not call.id:
                n_made += 1
                call.id = f"toolu_{n_made}"
            unique = ids.unique(call.id)
            if unique != call.id:
                given[unique], call.id = call.id, unique
    if calls:
        _fail(calls[0])


def _answer(calls: list[ToolUse], given: dict[str, str], results: list[ToolResult]) -> None:
    if len(calls) == 1 and len(results) == 1 and calls[0].id == results[0].id:
        return
    waiting: OpenCalls[ToolUse] = OpenCalls()
    for call in calls:
        waiting.add(given.get(call.id, call.id), call.name, call)
    for result in results:
        # Without ids, the first call of that name is meant: results come in the order of their calls.
        found = waiting.take(result.id) if result.id else waiting.take_named(result.name)
        if found is not None:
            result.id = found.id
        else:
            message = (
                f"the tool result {result.id!r} has no tool call in the assistant's message before it; keep both in"
                " the conversation, or leave both out"
            )
            raise BadRequestError(message, "messages")
    left = waiting.first()
    if left is not None:
        _fail(left)


def _fail(call: ToolUse) -> None:
    message = f"the tool call {call.id!r} has no result in the next message: send one for each call"
    raise BadRequestError(message, "messages")


def has_foreign(signature: Signature | None) -> bool:
    """True for a signature that Anthropic can't use."""
    return signature is not None and signature.provider != PROVIDER
