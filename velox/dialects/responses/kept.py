"""Answers that are kept for a while, so that a client need not send again what it has: OpenAI's `store`.

    previous_response_id   the input and the output of the answers before it are the beginning of the input
    item_reference         one item of a kept answer
    GET /responses/ID      the answer, and its input

A kept answer has its own input alone, and names the one before it. Unfolding puts a request's whole input together;
who has kept the answers is asked for each (gateway/answers/answers.py).

Knows: what a request refers to, and what is told of a kept answer. Does not know: where answers are kept, or whose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.errors import BadRequestError, UnknownPreviousError
from velox.dialects.json_text.decoding import is_given
from velox.dialects.json_text.text import quoted

__all__ = [
    "KeptAnswer",
    "Unfolding",
    "answer_in",
    "input_items",
    "input_page",
    "is_answer",
    "name_of",
    "page_of",
    "refers",
    "removed",
    "response_ids",
    "wants_kept",
    "with_id",
]

_PREVIOUS: Final = "previous_response_id"
_CONVERSATION: Final = "conversation"
_MARKS: Final = (b"item_reference", b'"previous_response_id"', b'"conversation"')
# A reference need not say its type.
_UNTYPED: Final = re.compile(rb'\{\s*"id"\s*:\s*"[^"\\]{1,256}"\s*\}')
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_LIST: Final = msgspec.json.Decoder(list[Raw])
_MOST_LOOKED_UP: Final = 4096
_MOST_PAGE: Final = 100


class KeptAnswer(msgspec.Struct, array_like=True, gc=False):
    """One answer. owner: who may ask for it. previous: the one before it. input: of its own, as items stand in a list.

    response: the answer, as JSON. until_s: of one that is still made: when it is heard of again, Unix time.
    """

    id: str
    owner: str
    previous: str | None
    input: bytes
    response: bytes
    until_s: int = 0

    def encoded(self) -> bytes:
        """Return it as a text that is kept."""
        return _ENCODER.encode(self)

    @staticmethod
    def decoded(text: bytes | bytearray) -> KeptAnswer:
        """Read such a text. Raises msgspec.DecodeError."""
        return _KEPT.decode(text)

    @property
    def output(self) -> list[Raw]:
        """Return the items of the answer."""
        return _OUTPUT.decode(self.response).output

    @property
    def asked(self) -> list[Raw]:
        """Return the items of its own input."""
        return _LIST.decode(b"[%b]" % self.input)


class _Output(msgspec.Struct):
    id: str = ""
    output: list[Raw] = []


class _Item(msgspec.Struct):
    id: str | None = None
    type: str | None = None
    role: str | None = None


class _Ids(msgspec.Struct):
    id: str = ""
    status: str = ""
    output: list[_Item] = []


class _Body(msgspec.Struct):
    input: Raw = Raw()
    store: bool | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: Raw = Raw()


_ENCODER: Final = msgspec.msgpack.Encoder()
_KEPT: Final = msgspec.msgpack.Decoder(KeptAnswer)
_OUTPUT: Final = msgspec.json.Decoder(_Output)
_IDS: Final = msgspec.json.Decoder(_Ids)
_IDS_OF: Final = msgspec.json.Decoder(list[str])
_ITEM: Final = msgspec.json.Decoder(_Item)
_BODY: Final = msgspec.json.Decoder(_Body)
_EVENT: Final = msgspec.json.Decoder(_Event)
_WHOLE: Final = frozenset({"completed", "incomplete"})
_LAST: Final = frozenset({"response.completed", "response.incomplete"})


def refers(body: bytes | bytearray) -> bool:
    """Say whether a request may refer to kept answers or their items."""
    return any(mark in body for mark in _MARKS) or _UNTYPED.search(body) is not None


def response_ids(response: bytes) -> tuple[str, ...]:
    """Return the ids of an answer and of its items."""
    found = _IDS.decode(response)
    return (found.id, *(each.id for each in found.output if each.id))


def input_items(body: bytes | bytearray) -> bytes:
    """Return the items of a request's input, as they stand in a list. Raises msgspec.DecodeError."""
    return _items(_BODY.decode(body).input)


def wants_kept(body: bytes | bytearray) -> bool:
    """Say whether a client wants its answer kept: it says so, or nothing. What can't be read is not kept."""
    try:
        return _BODY.decode(body).store is not False
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def is_answer(body: bytes) -> bool:
    """Say whether a reply is an answer that is whole."""
    try:
        found = _IDS.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return bool(found.id) and found.status in _WHOLE


def answer_in(event: bytes) -> bytes | None:
    """Return the answer in the last event of a stream; None: it is another event."""
    if b'"response.completed"' not in event and b'"response.incomplete"' not in event:
        return None
    try:
        found = _EVENT.decode(event)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    answer = bytes(found.response)
    return answer if found.type in _LAST and is_answer(answer) else None


def _items(raw: Raw) -> bytes:
    text = bytes(raw).strip()
    if text[:1] == b'"':
        return b'{"type":"message","role":"user","content":%b}' % text
    return text[1:-1].strip() if text[:1] == b"[" else b""


class Unfolding:
    """The whole input of one request. Raises msgspec.DecodeError for one that can't be read.

    while missing := unfolding.missing():
        unfolding.know(...)
    body = unfolding.body()
    """

    def __init__(self, body: bytes | bytearray, most_bytes: int) -> None:
        """most_bytes: of the body that is made."""
        self._fields: Final = _FIELDS.decode(body)
        self._most_bytes: Final = most_bytes
        self._known: Final[dict[str, KeptAnswer | None]] = {}
        self.previous = _text(self._fields.get(_PREVIOUS))
        self._conversation: Final = _name(self._fields.get(_CONVERSATION))
        self.conversation: KeptAnswer | None = None  # once it is known
        self.own: Final = _items(self._fields.get("input", Raw()))  # the items that the client has sent
        self._items: Final = _LIST.decode(b"[%b]" % self.own)

    def missing(self) -> list[str]:
        """Return the ids whose answers are still to be looked for: of an answer, or of an item in it."""
        if len(self._known) > _MOST_LOOKED_UP:
            return []
        wanted = dict.fromkeys(_references(self._items))
        if self._conversation is not None and self.conversation is None:
            wanted[self._conversation] = None
        for kept in self._before():
            if isinstance(kept, str):
                wanted[kept] = None
            else:
                wanted.update(dict.fromkeys(_references(kept.asked)))
        return [each for each in wanted if each not in self._known]

    def know(self, object_id: str, kept: KeptAnswer | None) -> None:
        """Take what was found under an id; None: nothing."""
        self._known[object_id] = kept
        if object_id == self._conversation and kept is not None:
            if self.previous is not None:
                raise BadRequestError("a request has a previous_response_id or a conversation, not both", _PREVIOUS)
            self.conversation, self.previous = kept, kept.previous

    def body(self) -> bytes | None:
        """Return the request with its whole input; None: nothing that it refers to is kept. Raises BadRequestError."""
        has_previous = self.previous is not None and self._known.get(self.previous) is not None
        before = list(self._before()) if has_previous else []
        if any(isinstance(each, KeptAnswer) and each.until_s for each in before):
            raise BadRequestError("this answer is still being made in the background; wait for its end", _PREVIOUS)
        if any(isinstance(each, str) for each in before):
            message = "what was said before this answer is no longer kept; send the whole conversation as input"
            raise UnknownPreviousError(message)
        items: list[bytes] = []
        gone = frozenset[str]() if self.conversation is None else removed(self.conversation)
        for kept in reversed(before):
            assert isinstance(kept, KeptAnswer), "looked at above"
            asked, output = _left(kept, gone)
            items += [*self._resolved(asked), *map(bytes, output)]
        own = self._resolved(self._items)
        if not before and self.conversation is None and own == [bytes(item) for item in self._items]:
            return None
        items += own
        if sum(map(len, items)) > self._most_bytes:
            raise BadRequestError("with the conversation before it, the input is too long; send a part of it", "input")
        fields = {**self._fields, "input": Raw(b"[%b]" % b",".join(items))}
        if before:
            fields.pop(_PREVIOUS, None)
        if self.conversation is not None:
            del fields[_CONVERSATION]
        return msgspec.json.encode(fields)

    # -- inside -------------------------------------------------------------------------------------

    def _before(self) -> Iterator[KeptAnswer | str]:
        """Yield the answers before, the last one first; the id of one that is not known ends them."""
        wanted, seen = self.previous, set[str]()
        while wanted is not None and wanted not in seen:
            seen.add(wanted)
            kept = self._known.get(wanted)
            if kept is None:
                yield wanted
                return
            yield kept
            wanted = kept.previous

    def _resolved(self, items: Sequence[Raw]) -> list[bytes]:
        """Return items, with what is referred to in its place. What is not known stays as it is."""
        if next(_references(items), None) is None:
            return [bytes(item) for item in items]
        given = {item_id for item in items if _reference(item) is None and (item_id := _ITEM.decode(item).id)}
        found = []
        for item in items:
            wanted = _reference(item)
            kept = None if wanted is None or wanted in given else self._known.get(wanted)
            whole = None if kept is None else _item_of(kept, wanted)
            found.append(bytes(item) if whole is None else whole)
        return found


def removed(conversation: KeptAnswer) -> frozenset[str]:
    """Return the ids of items that were taken out of a conversation (conversations.py)."""
    return frozenset(_IDS_OF.decode(b"[%b]" % conversation.input))


def _left(kept: KeptAnswer, gone: frozenset[str]) -> tuple[list[Raw], list[Raw]]:
    """Return the items of an answer's input and output that were not taken out."""
    asked, output = kept.asked, kept.output
    if not gone:
        return asked, output
    name, n_asked = name_of(kept), len(asked)
    left = [(n < n_asked, item) for n, item in enumerate((*asked, *output)) if with_id(item, name, n)[0] not in gone]
    return [item for is_asked, item in left if is_asked], [item for is_asked, item in left if not is_asked]


def name_of(kept: KeptAnswer) -> str:
    """Return what stands in the ids of an answer's items that came without one."""
    return kept.id.partition("_")[2]


def _item_of(kept: KeptAnswer, wanted: str | None) -> bytes | None:
    return next((bytes(item) for item in kept.output if _ITEM.decode(item).id == wanted), None)


def _references(items: Sequence[Raw]) -> Iterator[str]:
    for item in items:
        wanted = _reference(item)
        if wanted is not None:
            yield wanted


def _reference(item: Raw) -> str | None:
    """Return the id that an item refers to; None: it is the item itself."""
    if not refers(bytes(item)):
        return None
    given = _ITEM.decode(item)
    is_one = given.type == "item_reference" or (given.type is None and given.role is None)
    return given.id if is_one else None


def _name(raw: Raw | None) -> str | None:
    """Return the id of a conversation, which is a string or stands in an object; None: there is none."""
    if raw is not None and bytes(raw)[:1] == b"{":
        return _ITEM.decode(raw).id
    return _text(raw)


def _text(raw: Raw | None) -> str | None:
    """Return a string; None for anything else."""
    if raw is None or not is_given(raw) or bytes(raw)[:1] != b'"':
        return None
    return msgspec.json.decode(raw, type=str)


def input_page(kept: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return a page of an answer's input, as `GET /responses/ID/input_items` has it. Raises BadRequestError."""
    name = name_of(kept)
    return page_of([with_id(item, name, n) for n, item in enumerate(kept.asked)], query)


def page_of(items: list[tuple[str, bytes]], query: Mapping[str, str]) -> bytes:
    """Return a page of items with their ids, in the order in which they were said. Raises BadRequestError.

    query: limit (20), order (desc), after.
    """
    try:
        limit = int(query.get("limit", "20"))
    except ValueError:
        limit = 0
    if not 1 <= limit <= _MOST_PAGE:
        raise BadRequestError(f"limit is 1 to {_MOST_PAGE}", "limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequestError("order is asc or desc", "order")
    if order == "desc":
        items = items[::-1]
    after = query.get("after")
    if after is not None:
        at = next((n for n, (item_id, _) in enumerate(items) if item_id == after), None)
        if at is None:
            raise BadRequestError("after is the id of an item of this list", "after")
        items = items[at + 1 :]
    page = items[:limit]
    first, last = (quoted(page[0][0]), quoted(page[-1][0])) if page else (b"null", b"null")
    return b'{"object":"list","data":[%b],"first_id":%b,"last_id":%b,"has_more":%b}' % (
        b",".join(text for _, text in page),
        first,
        last,
        b"true" if len(items) > limit else b"false",
    )


def with_id(item: Raw, name: str, n: int) -> tuple[str, bytes]:
    """Return an item's id, and the item with it: clients need not give one."""
    given = _ITEM.decode(item)
    if given.id:
        return given.id, bytes(item)
    made = f"item_{name}_{n}"
    fields = _FIELDS.decode(item)
    return made, msgspec.json.encode({"id": made, "type": Raw(b'"message"'), **fields})
