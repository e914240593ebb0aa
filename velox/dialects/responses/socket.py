"""Responses over a WebSocket: a client's messages as requests, and events as messages.

    {"type":"response.create", ...}  ->  the body of a usual request  ->  ResponsesClient.read()
    ResponsesClient.events()         ->  events                       ->  messages

A client sends only what is new, and names the answer before it (`previous_response_id`). So the conversation of each
answer is kept as long as the connection, up to a bound; an answer that is not known is refused, and the client sends
all of it. `generate: false` prepares a conversation without asking a model (prepared()). A client may have several
lanes (`stream_id`) on one connection; each event says its lane.

Knows: messages, and which conversation led to which answer. Does not know: frames of WebSockets, time, models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, UnknownPreviousError
from velox.dialects.canonical.model import (
    ApiError,
    ClientCall,
    End,
    ErrorKind,
    Finish,
    Start,
    Stop,
    StopReason,
    Usage,
    Used,
)
from velox.dialects.json_text.decoding import checked_text, decoded_request, is_given
from velox.dialects.openai_errors import error_json
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.responses.write_stream import Events
from velox.errors import untraced
from velox.protocol.json.value_count import MOST_VALUES, has_over
from velox.protocol.slices import SLICE_BYTES, concatenated, copied

__all__ = [
    "MessageHead",
    "ParsedMessage",
    "SocketMessages",
    "SocketRequest",
    "check_prepared",
    "head_of",
    "is_last",
    "parsed_message",
    "prepared",
    "prepared_messages",
    "type_of",
]

_T = TypeVar("_T")

_MOST_KEPT_BYTES: Final = 8 * 1024 * 1024
_CREATE: Final = "response.create"
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_WHOLE: Final = frozenset({"response.completed", "response.incomplete"})
_LAST_TYPES: Final = _WHOLE | {"response.failed", "error"}
_BEFORE_ITEMS: Final = b'{"stream":true,"input":['
_NOT_FOUND: Final = "previous_response_not_found"
_PREVIOUS: Final = "previous_response_id"


class _Message(msgspec.Struct):
    """A message, of whose input no more is read than where it ends. others: what is sent on as it is."""

    type: str
    stream_id: str | None
    generate: bool | None
    previous_response_id: str | None
    input: Raw
    others: dict[str, Raw]


class _Answer(msgspec.Struct):
    id: str
    output: Raw


class _Last(msgspec.Struct):
    response: _Answer


class _Typed(msgspec.Struct):
    type: str = ""


_TEXT: Final = msgspec.json.Decoder(str)
_TEXT_OR_NULL: Final = msgspec.json.Decoder(str | None)
_FLAG_OR_NULL: Final = msgspec.json.Decoder(bool | None)
_NO_FIELD: Final = Raw(b"null")
_NO_TYPE: Final = Raw(b'""')
_LAST: Final = msgspec.json.Decoder(_Last)
_TYPED: Final = msgspec.json.Decoder(_Typed)


class SocketRequest(msgspec.Struct, frozen=True):
    """A request of a WebSocket. body: as it would be sent by HTTP, streamed.

    n_items_bytes: of its whole input, without brackets.
    is_whole: False where its conversation is not known on this connection: whoever keeps answers may know it.
    """

    body: bytes
    n_items_bytes: int
    stream_id: str | None = None
    generate: bool = True
    is_whole: bool = True

    @property
    def items(self) -> bytes:
        """The items of its whole input, as they stand in a list: a conversation may be megabytes, and is held once."""
        return self.body[len(_BEFORE_ITEMS) : len(_BEFORE_ITEMS) + self.n_items_bytes]


class MessageHead(msgspec.Struct, frozen=True):
    """What a message says of itself. before: the answer that it goes on with."""

    stream_id: str | None = None
    before: str | None = None


class ParsedMessage(msgspec.Struct, frozen=True):
    """What a message asks for, or why it can't be asked."""

    head: MessageHead
    asked: SocketRequest | None = None
    problem: BadRequestError | None = None


class SocketMessages:
    """The messages of one connection. most_kept_bytes: of the conversations that can be gone on with.

    passes_unknown: an answer that is not known here may be kept elsewhere.
    """

    def __init__(self, most_kept_bytes: int = _MOST_KEPT_BYTES, *, passes_unknown: bool = False) -> None:
        self._passes_unknown: Final = passes_unknown
        self._most_kept_bytes: Final = most_kept_bytes
        self._kept: Final[dict[str, bytes]] = {}  # by the answer's id: the items up to it, and its own
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<SocketMessages {len(self._kept)} conversations, {self._kept_bytes} bytes>"

    @property
    def kept_bytes(self) -> int:
        """Of all conversations."""
        return self._kept_bytes

    def n_kept_before(self, head: MessageHead) -> int | None:
        """Return the bytes of the conversation that a message goes on with; None: it is not known."""
        if head.before is None:
            return 0
        kept = self._kept.get(head.before)
        return None if kept is None else len(kept)

    def asked(self, message: bytes | bytearray) -> SocketRequest:
        """Read a client's message. Raises BadRequestError. May be called in another thread than the other methods."""
        _check_size(message)
        return self._asked(_read(message))

    def _asked(self, given: _Message) -> SocketRequest:
        if given.type != _CREATE:
            raise BadRequestError(f"messages here are of type {_CREATE}", "type")
        items, is_whole = _items(given.input), True
        if given.previous_response_id is not None:
            before = self._kept.get(given.previous_response_id)
            is_whole = before is not None
            if before is None and not (self._passes_unknown and given.generate is not False):
                told = "this answer is not known on this connection; send the whole conversation as input"
                raise UnknownPreviousError(told)
            if before:
                items = concatenated([before, b",", items]) if items else before
        pieces = [_BEFORE_ITEMS, items, b"]"]
        for name, value in given.others.items():
            if not (is_whole and name == _PREVIOUS):
                pieces += [b",%b:" % msgspec.json.encode(name), _bytes_of(value)]
        body = concatenated([*pieces, b"}"])
        return SocketRequest(body, len(items), given.stream_id, given.generate is not False, is_whole)

    def messages(self, asked: SocketRequest, events: Sequence[bytes]) -> list[bytes]:
        """Return the messages for the events of an answer, and keep its conversation when it is whole."""
        if asked.is_whole and events and type_of(events[-1]) in _WHOLE:
            self._keep(asked, events[-1])
        if asked.stream_id is None:
            return list(events)
        lane = b'{"stream_id":%b,' % msgspec.json.encode(asked.stream_id)
        return [lane + event[1:] for event in events]

    def error(self, error: ApiError, stream_id: str | None = None) -> bytes:
        """Return the message for a request that was refused, or that failed before its answer began."""
        lane = b"" if stream_id is None else b',"stream_id":%b' % msgspec.json.encode(stream_id)
        return b'{"type":"error","status":%d,%b%b}' % (error.status, error_json(error)[1:-1], lane)

    def refusal(self, error: BadRequestError) -> ApiError:
        """Return what the client reads of a message that was refused: an unknown answer has a code of its own."""
        code = _NOT_FOUND if isinstance(error, UnknownPreviousError) else "bad_request"
        return ApiError(ErrorKind.INVALID, ErrorKind.INVALID.value, error.message, code, error.param or None)

    def told(self, error: ApiError) -> ApiError:
        """Return what the client reads of a request that was refused: the same code for an unknown answer."""
        return msgspec.structs.replace(error, code=_NOT_FOUND) if error.param == _PREVIOUS else error

    def forget(self) -> None:
        """Keep no conversation any more."""
        self._kept.clear()
        self._kept_bytes = 0

    def _keep(self, asked: SocketRequest, event: bytes) -> None:
        try:
            answer = _LAST.decode(event).response
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # an upstream's own, which says too little to go on with it
        if asked.n_items_bytes > self._most_kept_bytes:
            return
        items = b",".join([each for each in (asked.items, _items(answer.output)) if each])
        if len(items) > self._most_kept_bytes:
            return
        self._kept_bytes += len(items) - len(self._kept.pop(answer.id, b""))
        self._kept[answer.id] = items
        while self._kept_bytes > self._most_kept_bytes:
            oldest = next(iter(self._kept))
            self._kept_bytes -= len(self._kept.pop(oldest))


def head_of(message: bytes | bytearray) -> MessageHead:
    """Return what a client's message says of itself. Raises BadRequestError."""
    return _head(_read(message))


def parsed_message(messages: SocketMessages, message: bytes | bytearray) -> ParsedMessage:
    """Read a client's message, in another thread than that of `messages`; also what is not to be answered is checked.

    Raises BadRequestError if it says nothing of itself.
    """
    given = _read(message)
    head = _head(given)
    try:
        _check_size(message)
        asked = messages._asked(given)
        if not asked.generate:
            check_prepared(asked)
    except BadRequestError as exc:
        return ParsedMessage(head, problem=untraced(exc))
    return ParsedMessage(head, asked)


def type_of(event: bytes) -> str:
    """Return the type of an event; "" where it has none."""
    try:
        return _TYPED.decode(event).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def is_last(event_type: str) -> bool:
    """Say whether an event of this type ends an answer."""
    return event_type in _LAST_TYPES


def check_prepared(asked: SocketRequest) -> None:
    """Look whether a request that is not to be answered could be. Raises BadRequestError."""
    _check_size(asked.body)  # of the whole conversation
    ResponsesClient(ClientCall("", 0, "", True), DroppedFields()).read(asked.body)


def prepared_messages(messages: SocketMessages, asked: SocketRequest, call: ClientCall) -> list[bytes]:
    """Return the messages for a request that is not to be answered, and keep its conversation."""
    return messages.messages(asked, prepared(ResponsesClient(call, DroppedFields()).events()))


def prepared(events: Events) -> list[bytes]:
    """Return the events of a request that is not to be answered."""
    written: list[bytes] = []
    for event in (Start("", ""), Used(Usage(0, 0)), Finish(Stop(StopReason.END)), End()):
        written += events.write(event)
    return written


def _read(message: bytes | bytearray) -> _Message:
    """Read a message, in one walk through it: each holds the interpreter's lock for as long as it takes."""
    fields = decoded_request(_FIELDS, checked_text(message))
    fields.pop("stream", None)
    return _Message(
        _field(_TEXT, fields.pop("type", _NO_TYPE), "type"),
        _field(_TEXT_OR_NULL, fields.pop("stream_id", _NO_FIELD), "stream_id"),
        _field(_FLAG_OR_NULL, fields.pop("generate", _NO_FIELD), "generate"),
        _field(_TEXT_OR_NULL, fields.get(_PREVIOUS, _NO_FIELD), _PREVIOUS),
        fields.pop("input", _NO_FIELD),
        fields,
    )


def _field(decoder: msgspec.json.Decoder[_T], raw: Raw, name: str) -> _T:
    return decoded_request(decoder, raw, name)


def _head(given: _Message) -> MessageHead:
    return MessageHead(given.stream_id, given.previous_response_id)


def _bytes_of(raw: Raw) -> bytes:
    return bytes(raw) if len(raw) <= SLICE_BYTES else copied(raw)


def _items(raw: Raw) -> bytes:
    """Return the items of an input, without the brackets around them."""
    if not is_given(raw):
        return b""
    text = _bytes_of(raw)
    if text[:1] == b'"':
        return concatenated([b'{"type":"message","role":"user","content":', text, b"}"])
    if text[:1] != b"[":
        raise BadRequestError("input is a string or a list of items", "input")
    with memoryview(text) as view:
        return copied(view[1:-1]).strip()


def _check_size(text: bytes | bytearray) -> None:
    if has_over(text, MOST_VALUES):
        raise BadRequestError(f"the message, or its conversation, has over {MOST_VALUES:,} fields and values")
