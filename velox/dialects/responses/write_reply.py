"""Writes whole answers and errors in OpenAI Responses for clients.

Knows: the answer's JSON. Does not know: HTTP, upstreams.
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    ApiError,
    ClientCall,
    Image,
    Refusal,
    Request,
    Search,
    Signature,
    Span,
    StopReason,
    StreamWriter,
    Text,
    Thinking,
    ToolUse,
)
from velox.dialects.canonical.own_paths import RESPONSES_NAMES, own_path
from velox.dialects.json_text.text import EMPTY, quoted
from velox.dialects.openai_errors import error_json
from velox.dialects.responses.compaction import PREFIX, CompactionWriter, compaction_item, summary_of
from velox.dialects.responses.read_request import ResponsesRequestReader
from velox.dialects.responses.sources import SEARCH_PREFIX, SOURCES, annotation, search_item
from velox.dialects.responses.words import (
    COMPLETED,
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
from velox.dialects.responses.write_stream import Events, ResponsesStreamWriter, SseWriter
from velox.dialects.streams.citations import spans_of

__all__ = ["ResponsesClient"]


class ResponsesClient:
    """One request of a client, and what it gets back; see ClientSide."""

    def __init__(self, call: ClientCall, dropped: DroppedFields, *, compacts: bool = False) -> None:
        """compacts: see ResponsesRequestReader."""
        self.call: Final = call
        self.reader: Final = ResponsesRequestReader(dropped, compacts=compacts, keeps=call.keeper is not None)
        self._model = call.model

    def __repr__(self) -> str:
        return f"<ResponsesClient {self.call.id}>"

    def read(self, body: bytes | bytearray) -> Request:
        """See ClientSide."""
        request = self.reader.read(body)
        self._model = request.model or self._model
        return request

    @property
    def takes_pictures(self) -> bool:
        """See ClientSide."""
        return not self.reader.compacts

    def own_path(self, path: str) -> str:
        """See ClientSide."""
        return own_path(path, RESPONSES_NAMES)  # several items become one message

    def stream(self) -> StreamWriter:
        """See ClientSide."""
        return SseWriter(self.events())

    def events(self) -> Events:
        """Return what writes a streamed answer as JSON objects, for a WebSocket."""
        reader = self.reader
        events = ResponsesStreamWriter(self.call, self._model, reader.given, reader.body, reader.tools)
        return CompactionWriter(events) if reader.compacts else events

    def error(self, error: ApiError) -> bytes:
        """See ClientSide."""
        return error_json(error)

    def answer(self, answer: Answer) -> bytes:
        """See ClientSide."""
        reader, stop = self.reader, answer.stop
        items: list[bytes] = []
        blocks = self._summarized(answer, items) if reader.compacts else answer.blocks
        spans: list[list[Span]] = []
        for n, block in enumerate(blocks, 1):
            status = ended_status(stop) if n == len(blocks) else COMPLETED
            match block:
                case Text():
                    if block.cited and not spans:
                        spans = spans_of(blocks)
                    if block.text != EMPTY or block.signature is None:
                        part = text_part(block.text, map(annotation, block.cited, spans[n - 1]) if block.cited else ())
                        items.append(message_item(self._id("msg_", items), status, part))
                    if block.signature is not None:
                        self._own_item(items, block.signature, None)
                case Refusal():
                    items.append(message_item(self._id("msg_", items), status, refusal_part(block.text)))
                case Search():
                    item_id = f"{SEARCH_PREFIX}{self.call.id}{len(items)}"
                    items.append(
                        search_item(item_id, block, COMPLETED, has_sources=SOURCES in (reader.given.include or ()))
                    )
                case Thinking():
                    self._think(items, block.text, block.signature, is_redacted=block.is_redacted)
                case ToolUse():
                    self._use(items, block, status)
                case Image():
                    items.append(picture_item(self._id(PICTURE_PREFIX, items), block))
                case _:
                    pass
        if stop.reason is StopReason.FILTER and stop.explanation is not None and stop.explanation != EMPTY:
            items.append(message_item(self._id("msg_", items), COMPLETED, refusal_part(stop.explanation)))
        response_object = ResponseObject(answer.id, answer.model or self._model, self.call, reader.given, reader.body)
        return response_object.stopped(stop, b",".join(items), answer.usage)

    def _summarized(self, answer: Answer, items: list[bytes]) -> list[AnswerBlock]:
        """Write a summary, no block of which becomes an item of its own."""
        items.append(b'{"id":%b,%b' % (self._id(PREFIX, items), compaction_item(summary_of(answer.blocks))))
        return []

    def _id(self, prefix: str, items: list[bytes]) -> bytes:
        """Return the id of the next item, as JSON: no letter of ours is escaped there."""
        return f'"{prefix}{self.call.id}{len(items)}"'.encode("ascii")

    def _think(self, items: list[bytes], text: bytes, signature: Signature | None, *, is_redacted: bool) -> None:
        item_id = f"rs_{self.call.id}{len(items)}"
        if signature is not None and signature.provider == "openai" and signature.item_id:
            item_id = signature.item_id
        encrypted = None if signature is None else sealed(signature, item_id, is_redacted=is_redacted)
        items.append(reasoning_item(quoted(item_id), text, encrypted))

    def _own_item(self, items: list[bytes], signature: Signature, call_id: str | None) -> None:
        """Write an item for the signature of a call or a text."""
        own = Signature(signature.provider, signature.value, call_id)
        self._think(items, EMPTY, own, is_redacted=False)

    def _use(self, items: list[bytes], block: ToolUse, status: bytes) -> None:
        origin = self.reader.tools.origin(block.name)
        call_id = block.id or f"call_{self.call.id}{len(items)}"
        item_id = self._id(call_prefix(origin), items)
        items.append(call_item(item_id, quoted(call_id), origin, block.arguments, status))
        if block.signature is not None:
            self._own_item(items, block.signature, call_id)
