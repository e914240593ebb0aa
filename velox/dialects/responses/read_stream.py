"""Reads a streamed answer of a model that speaks Responses into canonical events.

Items and their parts are blocks. A part of a summary is no block of its own: it goes on after a blank line. Only
`response.completed` and `response.incomplete` end a stream.

Knows: the events. Does not know: HTTP.
"""

from __future__ import annotations

from typing import Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    ApiError,
    Cite,
    Close,
    Delta,
    End,
    Event,
    Failed,
    Finish,
    Image,
    JsonText,
    Kind,
    Lost,
    Open,
    Pictured,
    Refusal,
    Searched,
    Sign,
    Start,
    Text,
    Used,
    Work,
)
from velox.dialects.json_text.decoding import decode, decoded_reply, is_given, reply_text
from velox.dialects.json_text.surrogates import masked, unmasked
from velox.dialects.json_text.text import EMPTY, NEWLINES, raw_text
from velox.dialects.openai_errors import api_error
from velox.dialects.responses import wire
from velox.dialects.responses.sources import citation_of, citations_of, search_of
from velox.dialects.responses.words import answer_of, blocks_of, lost, reasoning_of, signature_of, stop_of, usage_of
from velox.dialects.streams.events import events_of
from velox.protocol.sse_events import SseEvents

__all__ = ["ResponsesStreamReader"]

_MOST_OPEN: Final = 128
_EVENT: Final = msgspec.json.Decoder(wire.Event)
_ITEM: Final = msgspec.json.Decoder(wire.OutputItem)
_PART: Final = msgspec.json.Decoder(wire.ReplyPart)
_REPLY: Final = msgspec.json.Decoder(wire.ResponsesReply)
_DONE: Final = b"[DONE]"
_BREAK: Final = b'"' + NEWLINES + b'"'
_REASONING: Final = -1  # in place of a part's number


class _Block:
    """One open block. part: of the summary, or of the reasoning's text, that came last."""

    __slots__ = ("has_cited", "has_text", "kind", "n", "part")

    def __init__(self, n: int, kind: Kind) -> None:
        self.n: Final = n
        self.kind: Final = kind
        self.has_text = False
        self.has_cited = False
        self.part: tuple[str, int] | None = None


class ResponsesStreamReader:
    """Reads one stream. provider: whose signatures these are."""

    def __init__(self, provider: str) -> None:
        self._provider: Final = provider
        self._events: Final = SseEvents()
        self._blocks: Final[dict[tuple[int, int], _Block]] = {}  # by output_index, content_index
        self._spoken: Final[set[int]] = set()  # items, not done yet, of which a part is whole
        self._n_blocks = 0
        self._held: Final[set[int]] = set()  # items that are calls, whose arguments came with their beginning
        self._has_begun = False
        self._has_calls = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<ResponsesStreamReader {self._n_blocks} blocks{', over' if self._is_over else ''}>"

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return self._events.n_held

    def feed(self, data: bytes) -> list[Event]:
        """See StreamReader."""
        found: list[Event] = []
        if not self._is_over:
            for name, text in self._events.feed(data):
                self._read(name, text, found)
        return found

    def end(self) -> list[Event]:
        """See StreamReader. The last event may come without the blank line after it."""
        found: list[Event] = []
        if self._is_over:
            return found
        try:
            for name, text in self._events.end():
                self._read(name, text, found)
        except BrokenReplyError:
            return []  # the last event is cut
        return found

    def _read(self, name: bytes, text: bytes, found: list[Event]) -> None:
        if self._is_over or text == _DONE:
            return
        text = reply_text(text)
        try:
            event = decode(_EVENT, text)
        except (msgspec.DecodeError, RecursionError):
            half = masked(text)
            if half is None:
                decoded_reply(_EVENT, text)
            else:
                events: list[Event] = []
                self._event(decoded_reply(_EVENT, half), name, half, events)
                found += unmasked(events)
            return
        self._event(event, name, text, found)

    def _event(self, event: wire.Event, name: bytes, text: bytes, found: list[Event]) -> None:
        match event.type or name.decode("latin-1"):
            case "response.output_text.delta":
                self._delta(event, Kind.TEXT, event.content_index, found)
            case "response.function_call_arguments.delta":
                self._delta(event, Kind.TOOL, 0, found)
            case "response.reasoning_summary_text.delta":
                self._think(event, ("summary", event.summary_index), found)
            case "response.reasoning_text.delta":
                self._think(event, ("content", event.content_index), found)
            case "response.refusal.delta":
                self._delta(event, Kind.REFUSAL, event.content_index, found)
            case "response.created":
                self._start(event, found)
            case "response.output_item.added":
                self._added(event, found)
            case "response.output_text.annotation.added":
                self._cite(event, found)
            case "response.content_part.done":
                self._part_done(event, found)
            case "response.output_item.done":
                self._done(event, found)
            case "response.failed" if is_given(event.error) and not is_given(event.response):
                self._fail(api_error(event.error), found)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._stop(event, found)
            case "error" | "response.error":
                self._fail(api_error(event.error if is_given(event.error) else text), found)
            case "" if is_given(event.error):
                self._fail(api_error(event.error), found)
            case _:
                pass  # of tools that the upstream runs itself, or newer than this

    # -- blocks -----------------------------------------------------------------------------------------

    def _start(self, event: wire.Event, found: list[Event]) -> None:
        if not self._has_begun:
            self._has_begun = True
            reply = decoded_reply(_REPLY, event.response)
            found.append(Start(reply.id or "", reply.model or ""))

    def _open(self, key: tuple[int, int], kind: Kind, found: list[Event], call_id: str = "", name: str = "") -> _Block:
        if len(self._blocks) >= _MOST_OPEN:
            raise BrokenReplyError(f"the upstream's stream has more than {_MOST_OPEN} blocks open")
        if not self._has_begun:
            self._has_begun = True
            found.append(Start("", ""))
        block = _Block(self._n_blocks, kind)
        self._n_blocks += 1
        self._blocks[key] = block
        found.append(Open(block.n, kind, call_id, name))
        return block

    def _close(self, block: _Block | None, found: list[Event]) -> None:
        if block is not None:
            found.append(Close(block.n))

    def _delta(self, event: wire.Event, kind: Kind, part: int, found: list[Event]) -> None:
        text = raw_text(event.delta) or EMPTY
        if text == EMPTY:
            return
        key = (event.output_index, part)
        block = self._blocks.get(key)
        if block is None or block.kind is not kind:
            if kind is Kind.TOOL or block is not None:
                return  # of a tool that is none of the client's
            block = self._open(key, kind, found)
        block.has_text = True
        found.append(Delta(block.n, text))

    def _think(self, event: wire.Event, part: tuple[str, int], found: list[Event]) -> None:
        text = raw_text(event.delta) or EMPTY
        if text == EMPTY:
            return
        key = (event.output_index, _REASONING)
        block = self._blocks.get(key) or self._open(key, Kind.THINKING, found)
        if block.part is not None and block.part != part:
            if block.part[0] != part[0]:
                return  # the text beside its summary: one of them is enough
            found.append(Delta(block.n, _BREAK))
        block.part = part
        block.has_text = True
        found.append(Delta(block.n, text))

    def _added(self, event: wire.Event, found: list[Event]) -> None:
        """Open a call. One that is whole at once may be of a tool that the upstream runs itself: its end says that."""
        if not self._n_blocks:
            found.append(Work())
        item = decoded_reply(_ITEM, event.item)
        if item.type != "function_call" or (event.output_index, 0) in self._blocks:
            return
        if (raw_text(item.arguments) or EMPTY) != EMPTY:
            if len(self._held) >= _MOST_OPEN:
                raise BrokenReplyError(f"the upstream's stream has more than {_MOST_OPEN} calls open")
            self._held.add(event.output_index)
        else:
            self._has_calls = True
            self._open((event.output_index, 0), Kind.TOOL, found, item.call_id or "", item.name or "")

    def _cite(self, event: wire.Event, found: list[Event]) -> None:
        block = self._blocks.get((event.output_index, event.content_index))
        if block is None or block.kind is not Kind.TEXT:
            return
        cited = citation_of(event.annotation)
        if cited is not None:  # others are counted at the end of their item
            block.has_cited = True
            found.append(Cite(block.n, cited))

    def _part_done(self, event: wire.Event, found: list[Event]) -> None:
        block = self._blocks.pop((event.output_index, event.content_index), None)
        if block is not None:
            if block.kind is Kind.TEXT and not block.has_cited and is_given(event.part):
                # Of a server that has no event for each.
                annotations = decoded_reply(_PART, event.part).annotations
                found += [Cite(block.n, each) for each in citations_of(annotations)]
            if len(self._spoken) >= _MOST_OPEN:
                raise BrokenReplyError(f"the upstream's stream has more than {_MOST_OPEN} items open")
            self._spoken.add(event.output_index)
            self._close(block, found)

    def _done(self, event: wire.Event, found: list[Event]) -> None:
        """Close an item. Where a server left deltas out, the whole of it is here."""
        item = decoded_reply(_ITEM, event.item)
        index = event.output_index
        match item.type:
            case "function_call":
                call = self._blocks.get((index, 0))
                if call is None and index not in self._held:
                    return
                if call is None:
                    self._has_calls = True
                    call = self._open((index, 0), Kind.TOOL, found, item.call_id or "", item.name or "")
                self._whole(call, raw_text(item.arguments) or EMPTY, found)
                signature = signature_of(item, self._provider)
                if signature is not None:
                    found.append(Sign(call.n, signature))
                if not call.has_text:
                    return  # the last event may have them (OpenRouter's: OpenRouterTeam/ai-sdk-provider#336)
            case "message":
                if index not in self._spoken and all(key[0] != index for key in self._blocks):
                    self._message(index, item, found)
            case "reasoning":
                text, signature = reasoning_of(item), signature_of(item, self._provider)
                block = self._blocks.get((index, _REASONING))
                if block is None and (text != EMPTY or signature is not None):
                    block = self._open((index, _REASONING), Kind.THINKING, found)
                if block is not None:
                    self._whole(block, text, found)
                    if signature is not None:
                        found.append(Sign(block.n, signature))
            case "image_generation_call":
                found += [Pictured(each) for each in blocks_of([item], self._provider) if isinstance(each, Image)]
            case "web_search_call":
                search = search_of(item.action)
                if search is not None:
                    found.append(Searched(search))
        self._spoken.discard(index)
        self._held.discard(index)
        found += map(Lost, lost(item))
        for key in [key for key in self._blocks if key[0] == index]:
            self._close(self._blocks.pop(key), found)

    def _message(self, index: int, item: wire.OutputItem, found: list[Event]) -> None:
        for part, block in enumerate(blocks_of([item], self._provider)):
            if isinstance(block, Text | Refusal) and block.text != EMPTY:
                kind = Kind.TEXT if isinstance(block, Text) else Kind.REFUSAL
                opened = self._open((index, part), kind, found)
                self._whole(opened, block.text, found)
                if isinstance(block, Text):
                    found += [Cite(opened.n, each) for each in block.cited]

    def _whole(self, block: _Block, text: JsonText, found: list[Event]) -> None:
        if not block.has_text and text != EMPTY:
            block.has_text = True
            found.append(Delta(block.n, text))

    # -- end --------------------------------------------------------------------------------------------

    def _stop(self, event: wire.Event, found: list[Event]) -> None:
        reply = decoded_reply(_REPLY, event.response)
        if event.type == "response.failed" and not is_given(reply.error):
            reply.status = "failed"
        try:
            if not self._n_blocks and reply.output:
                # A server that sends no other events.
                events = events_of(answer_of(reply, self._provider))
                found += events[1:] if self._has_begun else events
            else:
                stop = stop_of(reply, has_calls=self._has_calls)
                if not self._has_begun:
                    found.append(Start(reply.id or "", reply.model or ""))
                self._end_calls(reply.output, found)
                found += [Close(block.n) for block in self._blocks.values()]
                self._blocks.clear()
                found += [Used(usage_of(reply)), Finish(stop), End()]
        except ReplyError as exc:
            found.append(Failed(exc.error))
        self._has_begun = self._is_over = True

    def _end_calls(self, output: list[wire.OutputItem] | None, found: list[Event]) -> None:
        """Give calls their arguments that no event before the last one had."""
        for (index, _), block in self._blocks.items():
            if block.kind is Kind.TOOL and not block.has_text and output and index < len(output):
                self._whole(block, raw_text(output[index].arguments) or EMPTY, found)

    def _fail(self, error: ApiError, found: list[Event]) -> None:
        self._is_over = True
        found.append(Failed(error))
