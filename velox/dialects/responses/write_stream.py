"""Writes a streamed answer in Responses: the events that a client gets.

    created, in_progress
    for each item: item.added -> part.added -> deltas -> text.done -> part.done -> item.done
    completed | incomplete | failed, with the whole answer

An item ends before the next is added, as OpenAI's do: those that overlap wait (in_turn.py), for clients keep one
current item. The last event repeats all of their texts, so these are kept, up to a bound. An item that has ended is
told with the next event: only then is it known whether the model ended it or had no room for more, and the item says
which (`status`).

Knows: the order of events, and what each has. Does not know: requests, HTTP; whether the events go as SSE.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    Cite,
    ClientCall,
    Close,
    Delta,
    End,
    Event,
    Failed,
    Finish,
    Image,
    JsonText,
    JsonValue,
    Kind,
    Open,
    Pictured,
    Search,
    Searched,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Usage,
    Used,
)
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted
from velox.dialects.responses import wire
from velox.dialects.responses.sources import SEARCH_PREFIX, SOURCES, annotation, search_item
from velox.dialects.responses.tools import ClientTools, ToolKind, ToolOrigin
from velox.dialects.responses.words import (
    COMPLETED,
    IN_PROGRESS,
    PICTURE_PREFIX,
    ResponseObject,
    call_item,
    call_prefix,
    ended_status,
    message_item,
    picture_item,
    reasoning_item,
    refusal_part,
    sealed,
    text_part,
)
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES, BlockEvent, InTurn
from velox.dialects.tools.arguments import custom_input, read_arguments

__all__ = ["Events", "ResponsesStreamWriter", "SseWriter"]

# Looking a member of an enum up costs more than most of what is done with it.
_THINKING: Final = Kind.THINKING
_PICTURE_STEPS: Final = (b"in_progress", b"generating", b"completed")
# Of the pictures of one answer, all of which its last event repeats.
_MOST_PICTURE_BYTES: Final = 16 * 1024 * 1024
_SEARCH_STEPS: Final = (b"in_progress", b"searching", b"completed")
_NO_LOGPROBS: Final = b',"logprobs":[]'
_END: Final = Stop(StopReason.END)


class _Block:
    """One open block: an item. lead: of its deltas, up to the sequence number; tail: after their text."""

    __slots__ = (
        "annotations",
        "call_id",
        "deltas",
        "index",
        "item_id",
        "kind",
        "lead",
        "name",
        "origin",
        "signature",
        "tail",
    )

    def __init__(self, kind: Kind, index: int, item_id: str) -> None:
        self.kind: Final = kind
        self.index: Final = index
        self.item_id: Final = item_id
        self.deltas: list[JsonText] = []
        self.lead = b""
        self.tail = b"}"
        self.call_id = ""
        self.name = b""  # as JSON
        self.origin: ToolOrigin | None = None
        self.signature: Signature | None = None
        self.annotations: Final[list[bytes]] = []


class Events(Protocol):
    """What writes one stream as JSON objects."""

    def write(self, event: Event) -> list[bytes]:
        """Return the events that the client gets."""


class ResponsesStreamWriter:
    """Writes one stream as JSON objects, one an event. model: as the client asked for it. given, body: its request."""

    def __init__(self, call: ClientCall, model: str, given: wire.RequestBody, body: bytes, tools: ClientTools) -> None:
        self._call: Final = call
        self._model: Final = model
        self._given: Final = given
        self._body: Final = body
        self._tools: Final = tools
        self._object: ResponseObject | None = None
        self._number = 0
        self._in_turn: Final = InTurn()
        self._block: _Block | None = None  # that is open, or has ended and is not told yet
        self._n_items = 0
        self._between: Final[list[Search | Image]] = []  # that wait for the end of a block
        self._items: Final[list[bytes]] = []  # those that are whole
        self._kept_bytes = 0
        self._picture_bytes = 0
        self._usage = Usage()
        self._includes_sources: Final = SOURCES in (given.include or ())
        self._stop = _END
        self._has_ended = False  # the block has
        self._is_over = False

    def __repr__(self) -> str:
        return f"<ResponsesStreamWriter {self._number} events, {self._in_turn!r}>"

    def write(self, event: Event) -> list[bytes]:
        """Return the events that the client gets."""
        if self._is_over:
            return []
        match event:
            case Delta() if event.n == self._in_turn.current:
                return self._delta(event)
            case Delta() | Open() | Sign() | Close() | Cite():
                return self._add(self._in_turn.take(event))
            case Searched():
                return self._stand_between(event.search)
            case Pictured():
                return self._stand_between(event.image)
            case Used():
                self._usage = event.usage.over(self._usage)
                return []
            case Start():
                return self._start(event.id, event.model)
            case Finish():
                self._stop = event.stop
                return [*self._start("", ""), *self._finish(event.stop)]
            case End():
                return [*self._start("", ""), *self._end()]
            case Failed():
                return [*self._start("", ""), *self._close_ended(COMPLETED), *self._fail(event)]
        return []

    def keep(self, n_bytes: int) -> None:
        """Count what is kept of the answer, for its last event. Raises BrokenReplyError: it is too much."""
        self._kept_bytes += n_bytes
        if self._kept_bytes > MOST_WAITING_BYTES:
            raise BrokenReplyError(f"the answer is over {MOST_WAITING_BYTES} bytes, the most that can be repeated")

    def whole(self, prefix: str, fields: bytes) -> list[bytes]:
        """Return the events of an item that is whole as it comes. fields: those after its id, and its last brace."""
        block = _Block(Kind.TEXT, self._n_items, f"{prefix}{self._call.id}{self._n_items}")
        self._n_items += 1
        item = b'{"id":%b,%b' % (quoted(block.item_id), fields)
        self._items.append(item)
        done = b'"output_index":%d,"item":%b' % (block.index, item)
        return [*self._start("", ""), self._added(block, item), self._event(b"response.output_item.done", done)]

    def _add(self, due: list[BlockEvent]) -> list[bytes]:
        """Write events of blocks that come in turn."""
        events: list[bytes] = []
        for event in due:
            match event:
                case Delta():
                    events += self._delta(event)
                case Cite():
                    events += self._cite(event)
                case Open():
                    events += self._close_ended(COMPLETED)
                    events += self._stood_between()
                    events += self._start("", "")
                    events += self._open(event)
                case Sign():
                    events += self._sign(event)
                case Close():
                    self._has_ended = True
        return events

    def _stand_between(self, block: Search | Image) -> list[bytes]:
        self._between.append(block)
        return [*self._close_ended(COMPLETED), *self._stood_between()] if self._in_turn.current is None else []

    def _stood_between(self) -> list[bytes]:
        """Write the searches and pictures that no block holds up any more."""
        if not self._between:
            return []
        events = self._start("", "")
        for each in self._between:
            prefix = PICTURE_PREFIX if isinstance(each, Image) else SEARCH_PREFIX
            block = _Block(Kind.TEXT, self._n_items, f"{prefix}{self._call.id}{self._n_items}")
            self._n_items += 1
            if isinstance(each, Image):
                item_id, name, steps = quoted(block.item_id), b"response.image_generation_call.", _PICTURE_STEPS
                begun, item = picture_item(item_id, None), picture_item(item_id, each)
                self._keep_picture(len(item))
            else:
                name, steps = b"response.web_search_call.", _SEARCH_STEPS
                begun = search_item(block.item_id, Search(each.queries), IN_PROGRESS, has_sources=False)
                item = search_item(block.item_id, each, COMPLETED, has_sources=self._includes_sources)
                self.keep(len(item))
            self._items.append(item)
            events.append(self._added(block, begun))
            events += [self._event(name + word, _at(block)) for word in steps]
            done = b'"output_index":%d,"item":%b' % (block.index, item)
            events.append(self._event(b"response.output_item.done", done))
        self._between.clear()
        return events

    def _keep_picture(self, n_bytes: int) -> None:
        self._picture_bytes += n_bytes
        if self._picture_bytes > _MOST_PICTURE_BYTES:
            raise BrokenReplyError(f"the pictures are over {_MOST_PICTURE_BYTES} bytes, the most that can be repeated")

    def _cite(self, event: Cite) -> list[bytes]:
        block = self._block
        if block is None or block.kind is not Kind.TEXT:
            return []
        written = annotation(event.citation, event.span)
        self.keep(len(written))
        fields = b'%b,"content_index":0,"annotation_index":%d,"annotation":%b'
        block.annotations.append(written)
        number = len(block.annotations) - 1
        return [self._event(b"response.output_text.annotation.added", fields % (_at(block), number, written))]

    def _close_ended(self, status: bytes) -> list[bytes]:
        """Write the end of the block that has ended, if it is not told yet."""
        block = self._block
        if block is None or not self._has_ended:
            return []
        self._block, self._has_ended = None, False
        return self._close(block, status)

    # -- beginning ------------------------------------------------------------------------------------

    def _start(self, theirs: str, model: str) -> list[bytes]:
        if self._object is not None:
            return []
        self._object = ResponseObject(theirs, model or self._model, self._call, self._given, self._body)
        answer = self._object.in_progress()
        return [
            self._event(b"response.created", b'"response":' + answer),
            self._event(b"response.in_progress", b'"response":' + answer),
        ]

    def _event(self, name: bytes, fields: bytes) -> bytes:
        number = self._number
        self._number += 1
        return b'{"type":"%b","sequence_number":%d,%b}' % (name, number, fields)

    # -- blocks ---------------------------------------------------------------------------------------

    def _open(self, event: Open) -> list[bytes]:
        index = self._n_items
        self._n_items += 1
        match event.kind:
            case Kind.TOOL:
                return self._open_call(event, index)
            case Kind.THINKING | Kind.REDACTED:
                self._block = block = _Block(event.kind, index, f"rs_{self._call.id}{index}")
                return [self._added(block, reasoning_item(quoted(block.item_id), EMPTY, None))]
            case _:
                self._block = block = _Block(event.kind, index, f"msg_{self._call.id}{index}")
                is_text = event.kind is Kind.TEXT
                name = b"response.output_text.delta" if is_text else b"response.refusal.delta"
                block.tail = _NO_LOGPROBS + b"}" if is_text else b"}"
                self._lead(block, name, b',"content_index":0')
                part = text_part(EMPTY) if is_text else refusal_part(EMPTY)
                return [
                    self._added(block, message_item(quoted(block.item_id), IN_PROGRESS, b"")),
                    self._event(b"response.content_part.added", _at(block) + b',"content_index":0,"part":' + part),
                ]

    def _open_call(self, event: Open, index: int) -> list[bytes]:
        origin = self._tools.origin(event.name)
        self._block = block = _Block(Kind.TOOL, index, f"{call_prefix(origin)}{self._call.id}{index}")
        block.call_id = event.id or f"call_{self._call.id}{index}"
        block.origin = origin
        block.name = quoted(origin.name)
        if origin.kind is ToolKind.FUNCTION:
            self._lead(block, b"response.function_call_arguments.delta", b"")
        return [self._added(block, self._call_item(block, origin, b"", IN_PROGRESS))]

    def _call_item(self, block: _Block, origin: ToolOrigin, arguments: JsonValue, status: bytes) -> bytes:
        return call_item(quoted(block.item_id), quoted(block.call_id), origin, arguments, status)

    def _added(self, block: _Block, item: bytes) -> bytes:
        return self._event(b"response.output_item.added", b'"output_index":%d,"item":%b' % (block.index, item))

    def _lead(self, block: _Block, name: bytes, place: bytes) -> None:
        form = b'{"type":"%b",%b%b,"sequence_number":'
        block.lead = form % (name, _at(block), place)

    def _delta(self, event: Delta) -> list[bytes]:
        block, text = self._block, event.text
        if block is None or text == EMPTY:
            return []
        self.keep(len(text))
        before = []
        if block.kind is _THINKING and not block.deltas:
            self._lead(block, b"response.reasoning_summary_text.delta", b',"summary_index":0')
            fields = _at(block) + b',"summary_index":0,"part":{"type":"summary_text","text":""}'
            before.append(self._event(b"response.reasoning_summary_part.added", fields))
        block.deltas.append(text)
        if not block.lead:
            return before  # another kind of tool: its input is in the arguments, and known when these are whole
        number = self._number
        self._number += 1
        written = b'%b%d,"delta":%b%b' % (block.lead, number, text, block.tail)
        return [*before, written] if before else [written]

    def _sign(self, event: Sign) -> list[bytes]:
        if self._block is not None:
            self._block.signature = event.signature  # one of a call or a text has an item of its own, behind theirs
        return []

    def _own_item(self, signature: Signature, call_id: str | None) -> list[bytes]:
        """Write an item for the signature of a call or a text."""
        block = _Block(Kind.THINKING, self._n_items, f"rs_{self._call.id}{self._n_items}")
        self._n_items += 1
        block.signature = Signature(signature.provider, signature.value, call_id)
        return [self._added(block, reasoning_item(quoted(block.item_id), EMPTY, None)), *self._close(block, COMPLETED)]

    def _close(self, block: _Block, status: bytes) -> list[bytes]:
        text = joined(block.deltas, b"") if block.deltas else EMPTY
        block.deltas = []
        item_id = quoted(block.item_id)
        events: list[bytes] = []
        match block.kind:
            case Kind.TOOL:
                item = self._close_call(block, text, events, status)
            case Kind.THINKING | Kind.REDACTED:
                if text != EMPTY:
                    place = _at(block) + b',"summary_index":0'
                    part = b'{"type":"summary_text","text":%b}' % text
                    events += [
                        self._event(b"response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text)),
                        self._event(b"response.reasoning_summary_part.done", b'%b,"part":%b' % (place, part)),
                    ]
                signature, is_redacted = block.signature, block.kind is Kind.REDACTED
                encrypted = None if signature is None else sealed(signature, block.item_id, is_redacted=is_redacted)
                item = reasoning_item(item_id, text, encrypted)
            case _:
                is_text = block.kind is Kind.TEXT
                place = _at(block) + b',"content_index":0'
                part = text_part(text, block.annotations) if is_text else refusal_part(text)
                if is_text:
                    done = self._event(b"response.output_text.done", b'%b,"text":%b%b' % (place, text, _NO_LOGPROBS))
                else:
                    done = self._event(b"response.refusal.done", b'%b,"refusal":%b' % (place, text))
                events += [done, self._event(b"response.content_part.done", b'%b,"part":%b' % (place, part))]
                item = message_item(item_id, status, part)
        self._items.append(item)
        fields = b'"output_index":%d,"item":%b' % (block.index, item)
        events.append(self._event(b"response.output_item.done", fields))
        if block.signature is not None and block.kind not in (Kind.THINKING, Kind.REDACTED):
            events += self._own_item(block.signature, block.call_id or None)
        return events

    def _close_call(self, block: _Block, text: JsonText, events: list[bytes], status: bytes) -> bytes:
        origin = block.origin
        assert origin is not None, "every call has one"
        arguments = decoded(text).encode("utf-8", "backslashreplace")
        match origin.kind:
            case ToolKind.FUNCTION:
                if not arguments:
                    arguments, text = b"{}", b'"{}"'
                    events += [b'%b%d,"delta":%b}' % (block.lead, self._number, text)]
                    self._number += 1
                fields = b'%b,"name":%b,"arguments":%b' % (_at(block), block.name, text)
                events.append(self._event(b"response.function_call_arguments.done", fields))
            case ToolKind.CUSTOM:
                value = custom_input(arguments) if arguments else EMPTY
                delta = b'%b,"delta":%b' % (_at(block), value)
                done = b'%b,"input":%b' % (_at(block), value)
                events += [
                    self._event(b"response.custom_tool_call_input.delta", delta),
                    self._event(b"response.custom_tool_call_input.done", done),
                ]
            case _:
                arguments = read_arguments(text)  # they stand in the item as JSON, whatever the model wrote
        return self._call_item(block, origin, arguments, status)

    # -- end --------------------------------------------------------------------------------------------

    def _output(self) -> bytes:
        return b",".join(self._items)

    def _finish(self, stop: Stop) -> list[bytes]:
        events = self._add(self._in_turn.finish())
        events += self._close_ended(ended_status(stop))  # the last block, which the model wrote last
        events += self._stood_between()
        if stop.reason is StopReason.FILTER and stop.explanation is not None and stop.explanation != EMPTY:
            events += self._add([Open(-1, Kind.REFUSAL), Delta(-1, stop.explanation), Close(-1)])
            events += self._close_ended(COMPLETED)
        return events

    def _end(self) -> list[bytes]:
        response_object = self._object
        assert response_object is not None, "the stream has begun"
        events = self._finish(_END)  # what an upstream opened after its end
        answer = response_object.stopped(self._stop, self._output(), self._usage)
        incomplete = self._stop.reason in (StopReason.LENGTH, StopReason.CONTEXT, StopReason.FILTER)
        name = b"response.incomplete" if incomplete else b"response.completed"
        events.append(self._event(name, b'"response":' + answer))
        self._is_over = True
        return events

    def _fail(self, event: Failed) -> list[bytes]:
        response_object = self._object
        assert response_object is not None, "the stream has begun"
        self._is_over = True
        answer = response_object.failed(event.error, self._output())
        return [self._event(b"response.failed", b'"response":' + answer)]


def _at(block: _Block) -> bytes:
    return b'"item_id":"%b","output_index":%d' % (block.item_id.encode(), block.index)


class SseWriter:
    """Writes one stream as server-sent events; see StreamWriter."""

    def __init__(self, events: Events) -> None:
        self._events: Final = events

    def __repr__(self) -> str:
        return f"<SseWriter {self._events!r}>"

    def write(self, event: Event) -> bytes:
        """See StreamWriter."""
        written = self._events.write(event)
        if not written:
            return b""
        return _sse(written[0]) if len(written) == 1 else b"".join(map(_sse, written))


def _sse(text: bytes) -> bytes:
    """Return an event, which begins with {"type":"NAME", with its name before the data, too."""
    if b"\n" in text or b"\r" in text:
        # Line ends are between its values only: what was asked is repeated as it came.
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: %b\ndata: %b\n\n" % (text[9 : text.index(b'"', 9)], text)
