"""Whether a provider's Responses API takes the types of tools and items that a request has.

Many servers have OpenAI's Responses, but only some of its types: they answer 400 or 422 to a `custom` or `namespace`
tool, and to the items that it leads to. Which types each takes are facts (ModelFacts.tool_types, item_types).

Knows: where a request names types. Does not know: any provider, or what becomes of a request that has another type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from velox.dialects.facts.model_facts import ModelFacts
from velox.policy.patterns import matches

__all__ = ["takes_types"]

_ALL: Final = ("*",)
_MESSAGE: Final = "message"
_REFERENCE: Final = "item_reference"


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    role: str | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None


class _Body(msgspec.Struct, gc=False):
    tools: list[_Tool] | None = None
    input: list[_Item] | str | None = None


_BODY: Final = msgspec.json.Decoder(_Body)


def takes_types(body: bytes | bytearray, facts: ModelFacts) -> bool:
    """Say whether a model's Responses API takes all types in a request. What can't be read is the provider's to say."""
    if facts.tool_types == _ALL and facts.item_types == _ALL:
        return True
    try:
        given = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return True
    tools = {tool.type for tool in given.tools or ()}
    items = {_kind(item) for item in given.input} if isinstance(given.input, list) else set()
    return _all_match(tools, facts.tool_types) and _all_match(items, facts.item_types)


def _kind(item: _Item) -> str | None:
    """Return the type of an item. One without: a message where it has a role, else a reference."""
    return item.type or (_REFERENCE if item.role is None else _MESSAGE)


def _all_match(types: set[str | None], patterns: Sequence[str]) -> bool:
    return patterns == _ALL or all(
        any(matches(pattern, each) for pattern in patterns) for each in types if each is not None
    )
