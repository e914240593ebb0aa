"""OpenAI's conversation objects, where no provider has them: a name for the last answer of a chain (kept.py).

    POST   /conversations                 {items, metadata} -> a conversation
    GET, POST, DELETE /conversations/ID   the object, new metadata, its end
    GET, POST /conversations/ID/items     what was said, and more of it
    GET, DELETE /conversations/ID/items/ITEM
    POST   /responses {conversation: ID}  the input is what was said; both go into it when the answer is whole

A conversation is kept like an answer: `previous` is the last node of its chain, `input` has the ids of items that were
taken out. A node is an answer, or items that the client has put in.

Knows: these objects. Does not know: where they are kept, or whose they are.
Source: openai 3.54 (types/conversations, resources/conversations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.json_text.text import quoted
from velox.dialects.responses.kept import KeptAnswer, name_of, page_of, removed, with_id

__all__ = [
    "conversation_items",
    "items_page",
    "more_items",
    "new_conversation",
    "with_metadata",
    "without_item",
]

_MOST_ITEMS: Final = 20
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


class _Given(msgspec.Struct):
    items: list[Raw] | None = None
    metadata: dict[str, str] | None = None


_GIVEN: Final = msgspec.json.Decoder(_Given)


def _given(body: bytes | bytearray) -> _Given:
    try:
        given = _GIVEN.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise BadRequestError("a conversation has items, a list, and metadata, an object of strings") from exc
    if given.items is not None and len(given.items) > _MOST_ITEMS:
        raise BadRequestError(f"items are {_MOST_ITEMS} at most in one request", "items")
    return given


def new_conversation(owner: str, name: str, now_s: int, body: bytes | bytearray) -> list[KeptAnswer]:
    """Return a conversation, and the node of its first items before it. name: of letters and digits."""
    given = _given(body)
    conversation_id = f"conv_{name}"
    fields = {"id": conversation_id, "object": "conversation", "created_at": now_s, "metadata": given.metadata or {}}
    node = None if not given.items else _node(owner, name, given.items, None)
    previous = None if node is None else node.id
    found = KeptAnswer(conversation_id, owner, previous, b"", msgspec.json.encode(fields))
    return [found] if node is None else [node, found]


def _node(owner: str, name: str, items: Sequence[Raw], previous: str | None) -> KeptAnswer:
    node_id = f"node_{name}"
    texts = [with_id(item, name, n)[1] for n, item in enumerate(items)]
    return KeptAnswer(node_id, owner, previous, b",".join(texts), b'{"id":%b,"output":[]}' % quoted(node_id))


def more_items(conversation: KeptAnswer, name: str, body: bytes | bytearray) -> tuple[list[KeptAnswer], bytes]:
    """Return the node of more items and the conversation with it, and the list that the client gets."""
    given = _given(body)
    if not given.items:
        raise BadRequestError("items are a list of 1 or more", "items")
    node = _node(conversation.owner, name, given.items, conversation.previous)
    items = [with_id(item, name, n) for n, item in enumerate(node.asked)]
    return [node, msgspec.structs.replace(conversation, previous=node.id)], page_of(items, {"order": "asc"})


def with_metadata(conversation: KeptAnswer, body: bytes | bytearray) -> KeptAnswer:
    """Return a conversation with other metadata."""
    given = _given(body)
    fields = _FIELDS.decode(conversation.response)
    fields["metadata"] = Raw(msgspec.json.encode(given.metadata or {}))
    return msgspec.structs.replace(conversation, response=msgspec.json.encode(fields))


def without_item(conversation: KeptAnswer, item_id: str) -> KeptAnswer:
    """Return a conversation that an item was taken out of."""
    ids = msgspec.json.encode([*sorted(removed(conversation)), item_id])[1:-1]
    return msgspec.structs.replace(conversation, input=ids)


def conversation_items(conversation: KeptAnswer, nodes: Sequence[KeptAnswer]) -> list[tuple[str, bytes]]:
    """Return all that was said, each with its id. nodes: of its chain, the first one first."""
    gone = removed(conversation)
    found: list[tuple[str, bytes]] = []
    for node in nodes:
        found += [with_id(item, name_of(node), n) for n, item in enumerate((*node.asked, *node.output))]
    return [each for each in found if each[0] not in gone]


def items_page(items: list[tuple[str, bytes]], query: Mapping[str, str]) -> bytes:
    """Return a page of a conversation. Raises BadRequestError."""
    return page_of(items, query)
