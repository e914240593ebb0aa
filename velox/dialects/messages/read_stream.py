"""Reads the events of an answer as Anthropic streams it.

    message_start, (content_block_start, content_block_delta ..., content_block_stop) ..., message_delta, message_stop

Only message_delta says why the model stopped. A message_stop without one is no end: some relays write it after a cut.
`ping` may come anywhere, `error` too: then nothing follows. Blocks, deltas and events that are not known are skipped.

Knows: events and their order. Does not know: where they came from.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    Cite,
    Close,
    Delta,
    End,
    Event,
    Failed,
    Finish,
    JsonText,
    Kind,
    Lost,
    Open,
    Search,
    Searched,
    Sign,
    Signature,
    Start,
    Used,
    settled,
)
from velox.dialects.json_text.decoding import decoded_reply, reply_text
from velox.dialects.json_text.surrogates import masked, unmasked
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted, raw_text
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.messages.wire import EVENT, BlockOut, DeltaOut, EventOut, UsageOut
from velox.dialects.messages.words import (
    RESULTS,
    SEARCH,
    cited_pages,
    error_of,
    latest,
    lost,
    query_of,
    read_citation,
    search_of,
    stop_of,
    usage_of,
)
from velox.dialects.streams.delta_shape import DeltaShape
from velox.protocol.sse_events import SseEvents

__all__ = ["MessagesStreamReader"]

_MOST_OPEN: Final = 128
_MOST_QUERY_PARTS: Final = 1024
_NO_INPUT: Final = (b"", b"{}", b"null")
_KINDS: Final = MappingProxyType(
    {"text": Kind.TEXT, "thinking": Kind.THINKING, "redacted_thinking": Kind.REDACTED, "tool_use": Kind.TOOL}
)
_DELTAS: Final = MappingProxyType(
    {
        Kind.TEXT: "text_delta",
        Kind.THINKING: "thinking_delta",
        Kind.TOOL: "input_json_delta",
        Kind.REDACTED: "",
    }
)
_DELTA_TYPES: Final = frozenset({"text_delta", "thinking_delta", "input_json_delta"})


class _Opened:
    """A block that is open. n: its number; None: it is none of ours. delta: the type of its deltas.

    held: input that came whole with its start, and counts where no delta follows.
    """

    __slots__ = ("delta", "held", "n")

    def __init__(self, n: int | None, delta: str = "", held: bytes = b"") -> None:
        self.n: Final = n
        self.delta: Final = delta
        self.held = held


class MessagesStreamReader:
    """Of one stream. json_tool: a tool whose input is the text of the answer."""

    __slots__ = (
        *("_events", "_has_calls", "_has_delta", "_has_finished", "_is_over", "_json_tool", "_n_blocks", "_opened"),
        *("_queries", "_query_parts", "_search"),
        "_shape",
        "_usage",
    )

    def __init__(self, json_tool: str | None = None) -> None:
        self._json_tool: Final = json_tool
        self._events: Final = SseEvents()
        self._shape: Final = DeltaShape()
        self._opened: Final[dict[int, _Opened]] = {}
        self._n_blocks = 0
        self._queries: Final[dict[str, str]] = {}  # of searches whose results are not there yet
        self._search = ""  # the id of the one that is open
        self._query_parts: list[JsonText] | None = None  # of its arguments
        self._has_calls = False
        self._usage = UsageOut()
        self._has_delta = False
        self._has_finished = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<MessagesStreamReader {self._n_blocks} blocks, {len(self._opened)} open>"

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return self._events.n_held

    def feed(self, data: bytes) -> list[Event]:
        """Take what came. Raises BrokenReplyError."""
        delta = self._shape.same(data)
        if delta is not None:
            return [delta]
        found: list[Event] = []
        for _, text in self._events.feed(data):
            self._read(text, found)
        if self._events.is_whole:
            self._shape.keep(data, found)
        else:
            self._shape.forget()
        return found

    def end(self) -> list[Event]:
        """Nothing more comes."""
        found: list[Event] = []
        for _, text in self._events.end():
            try:
                self._read(text, found)
            except BrokenReplyError:
                return found  # it was cut there
        return found

    def _read(self, text: bytes, found: list[Event]) -> None:
        if self._is_over or not text.startswith(b"{"):
            return  # `[DONE]`, of servers that speak another dialect, too
        text = reply_text(text)
        try:
            event = EVENT.decode(text)
        except (msgspec.DecodeError, RecursionError):
            half = masked(text)
            if half is None:
                decoded_reply(EVENT, text)
            else:
                events: list[Event] = []
                self._take(decoded_reply(EVENT, half), events)
                found += unmasked(events)
            return
        self._take(event, found)

    def _take(self, event: EventOut, found: list[Event]) -> None:
        match event.type:
            case "content_block_delta":
                if event.index is not None and event.delta is not None:
                    self._add(event.index, event.delta, found)
            case "content_block_start":
                if event.index is not None and event.content_block is not None:
                    self._open(event.index, event.content_block, found)
            case "content_block_stop":
                if event.index is not None:
                    self._close(event.index, found)
            case "message_start":
                if event.message is not None:
                    found.append(Start(event.message.id, event.message.model))
                    usage = event.message.usage
                    if usage is not None:
                        usage.output_tokens = None  # a first token or none: how long it is only its end tells
                    self._count(usage, found)
            case "message_delta":
                self._has_delta = True
                self._count(event.usage, found)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._finish(event.delta, found)
            case "message_stop":
                self._is_over = True
                if self._has_delta:
                    self._finish(DeltaOut(), found)
                    found.append(End())
            case _:
                if event.error is not None:
                    found.append(Failed(error_of(event.error)))
                    self._is_over = True

    def _open(self, index: int, block: BlockOut, found: list[Event]) -> None:
        if index in self._opened:
            raise BrokenReplyError("the upstream's stream begins a block that is open")
        if self._has_finished:
            raise BrokenReplyError("the upstream's stream begins a block after its end")
        if len(self._opened) >= _MOST_OPEN:
            raise BrokenReplyError(f"the upstream's stream has over {_MOST_OPEN} blocks open")
        kind = _KINDS.get(block.type)
        name = lost(block)
        if name is not None:
            found.append(Lost(name))
        if kind is None:
            self._opened[index] = _Opened(None)
            if block.type == "server_tool_use" and block.name == SEARCH:
                self._search, self._query_parts = block.id or "", []
                self._queries[self._search] = query_of(bytes(block.input))
                if len(self._queries) > _MOST_OPEN:
                    raise BrokenReplyError(f"the upstream's stream has over {_MOST_OPEN} searches without results")
            elif block.type == RESULTS:
                found.append(Searched(search_of(block, self._queries.pop(block.tool_use_id or "", ""))))
            return
        n, self._n_blocks = self._n_blocks, self._n_blocks + 1
        self._opened[index] = _Opened(n, _DELTAS[kind], bytes(block.input))
        if kind is Kind.TOOL:
            if self._json_tool is not None and block.name == self._json_tool:
                found.append(Open(n, Kind.TEXT))
                return
            self._has_calls = True
            found.append(Open(n, Kind.TOOL, block.id or "", block.name or ""))
            return
        found.append(Open(n, kind))
        _say(n, block.text if kind is Kind.TEXT else block.thinking, found)
        if kind is Kind.TEXT:
            found += [Cite(n, each) for each in cited_pages(block)]
        signature = block.data if kind is Kind.REDACTED else block.signature
        if signature:
            found.append(Sign(n, Signature(PROVIDER, signature)))

    def _add(self, index: int, delta: DeltaOut, found: list[Event]) -> None:
        opened = self._opened.get(index)
        if opened is None:
            raise BrokenReplyError("the upstream's stream adds to a block that is not open")
        n = opened.n
        kind = delta.type
        if n is None:
            part = raw_text(delta.partial_json)
            if part is not None and self._query_parts is not None and len(self._query_parts) < _MOST_QUERY_PARTS:
                self._query_parts.append(part)
            return
        if kind == opened.delta:
            opened.held = b""
            _say(n, delta.text or delta.partial_json or delta.thinking, found)
        elif kind == "signature_delta":
            if delta.signature:
                found.append(Sign(n, Signature(PROVIDER, delta.signature)))
        elif kind == "citations_delta":
            cited = read_citation(delta.citation)
            found.append(Lost("answer.citations") if cited is None else Cite(n, cited))
        elif kind in _DELTA_TYPES:
            raise BrokenReplyError(f"the upstream's stream adds a {kind} to a block of another type")

    def _close(self, index: int, found: list[Event]) -> None:
        opened = self._opened.pop(index, None)
        if opened is None or opened.n is None:
            if self._query_parts:
                arguments = decoded(joined(self._query_parts, b"")).encode("utf-8", "replace")
                self._queries[self._search] = query_of(arguments)
            self._query_parts = None
            return
        if opened.held not in _NO_INPUT:
            found.append(Delta(opened.n, quoted(opened.held.decode("utf-8", "surrogatepass"))))
        found.append(Close(opened.n))

    def _count(self, usage: UsageOut | None, found: list[Event]) -> None:
        if usage is not None:
            self._usage = latest(usage, self._usage)
            found.append(Used(usage_of(self._usage)))

    def _finish(self, delta: DeltaOut, found: list[Event]) -> None:
        if self._has_finished:
            return
        self._has_finished = True
        for index in list(self._opened):
            self._close(index, found)
        found += [Searched(Search((query,))) for query in self._queries.values() if query]
        stop = stop_of(delta.stop_reason, delta.stop_sequence, delta.stop_details)
        found.append(Finish(settled(stop, has_calls=self._has_calls)))


def _say(n: int, raw: msgspec.Raw, found: list[Event]) -> None:
    text: JsonText | None = raw_text(raw)
    if text is not None and text != EMPTY:
        found.append(Delta(n, text))
