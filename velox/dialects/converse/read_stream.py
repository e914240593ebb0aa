"""Reads a stream of Converse: its frames become canonical events.

    messageStart | contentBlockStart? contentBlockDelta* contentBlockStop | ... | messageStop | metadata

Only tools have a contentBlockStart; text and reasoning begin with their first delta. The stream is whole when
messageStop and metadata are there. An exception may come at any time instead.

Knows: the order and the meaning of events. Does not know: frames (frames.py).
"""

from __future__ import annotations

from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
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
    Sign,
    Signature,
    Start,
    Used,
    settled,
)
from velox.dialects.converse.frames import EventFrame, Frames
from velox.dialects.converse.wire import BLOCK_DELTA, BLOCK_START, BLOCK_STOP, MESSAGE_STOP, METADATA
from velox.dialects.converse.words import api_error, broken_stop, lost, message_of, stop_of, text_of, usage_of
from velox.dialects.json_text.surrogates import reply_keeping_surrogates
from velox.dialects.json_text.text import EMPTY
from velox.protocol.slices import as_base64, concatenated, from_base64

__all__ = ["ConverseStreamReader"]

# Looking a member of an enum up takes longer than what is done with it.
_TEXT: Final = Kind.TEXT
_TOOL: Final = Kind.TOOL
_THINKING: Final = Kind.THINKING
_REDACTED: Final = Kind.REDACTED
_MOST_OPEN: Final = 128
# Of one block's signature, in characters. Claude's grow with the reasoning, and have some kilobytes.
_MOST_SIGNATURE: Final = 1024 * 1024


class _Block:
    """A block that is open. n: its number in the canonical model; None: it is left out."""

    __slots__ = ("kind", "n", "n_signed", "signed")

    def __init__(self, n: int | None, kind: Kind) -> None:
        self.n: Final = n
        self.kind: Final = kind
        self.signed: list[str] = []  # of the signature, or of what is redacted
        self.n_signed = 0


class ConverseStreamReader:
    """Reads one stream.

    provider: whose signatures these are. unwrapped: a tool whose arguments are the answer (write_request.py). stops:
    the stop sequences of the request.
    """

    __slots__ = (
        "_frames",
        "_has_calls",
        "_has_ended",
        "_has_stopped",
        "_has_usage",
        "_n",
        "_open",
        "_provider",
        "_stops",
        "_unwrapped",
    )

    def __init__(self, provider: str, unwrapped: str | None, stops: list[str]) -> None:
        self._provider: Final = provider
        self._unwrapped: Final = unwrapped
        self._stops: Final = stops
        self._frames: Final = Frames()
        self._open: Final[dict[int, _Block]] = {}  # by Converse's index
        self._n = 0  # the number of the next block
        self._has_calls = False
        self._has_stopped = False
        self._has_usage = False
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<ConverseStreamReader {self._n} blocks, {len(self._open)} open>"

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return self._frames.n_held

    def feed(self, data: bytes) -> list[Event]:
        """Take what came, cut anywhere. Raises BrokenReplyError."""
        events: list[Event] = []
        for frame in self._frames.feed(data):
            if self._has_ended:
                break
            if frame.kind == b"event":
                self._read(frame, events)
            else:
                self._has_ended = True
                events.append(_failed(frame))
        return events

    def end(self) -> list[Event]:
        """Nothing more comes: what was not ended is cut."""
        return []

    def _read(self, frame: EventFrame, events: list[Event]) -> None:
        match frame.name:
            case b"contentBlockDelta":
                self._on_delta(frame.payload, events)
            case b"contentBlockStart":
                self._on_start(frame.payload, events)
            case b"contentBlockStop":
                self._close(reply_keeping_surrogates(BLOCK_STOP, frame.payload).content_block_index, events)
            case b"messageStart":
                events.append(Start("", ""))
            case b"messageStop":
                self._on_stop(frame.payload, events)
            case b"metadata":
                metadata = reply_keeping_surrogates(METADATA, frame.payload)
                tier = metadata.service_tier.type if metadata.service_tier is not None else None
                self._has_usage = True
                events.append(Used(usage_of(metadata.usage, tier)))
                self._end_if_whole(events)
            case _:
                pass  # a newer one

    def _on_start(self, payload: bytes, events: list[Event]) -> None:
        found = reply_keeping_surrogates(BLOCK_START, payload)
        index, tool = found.content_block_index, found.start.tool_use
        self._close(index, events)
        if tool is None or tool.type == "server_tool_use":
            # Results of the service's own tools, pictures, and what is newer.
            name = lost(found.start)
            if name is not None:
                events.append(Lost(name))
            self._remember(index, _Block(None, _TEXT))
        elif tool.name == self._unwrapped:
            self._begin(index, _TEXT, events)
        else:
            self._has_calls = True
            self._begin(index, _TOOL, events, tool.tool_use_id, tool.name)

    def _on_delta(self, payload: bytes, events: list[Event]) -> None:
        found = reply_keeping_surrogates(BLOCK_DELTA, payload)
        index, delta = found.content_block_index, found.delta
        block = self._open.get(index)
        if block is not None and block.n is None:
            return
        text = text_of(delta.text)
        if text is not None:
            self._add(index, block, _TEXT, text, events)
        elif delta.tool_use is not None:
            text = text_of(delta.tool_use.input)
            if block is None or block.kind not in (_TOOL, _TEXT):
                raise BrokenReplyError("arguments of a tool came before its start")
            self._add(index, block, block.kind, text or EMPTY, events)
        elif delta.reasoning_content is not None:
            reasoning = delta.reasoning_content
            text = text_of(reasoning.text)
            if text is not None:
                self._add(index, block, _THINKING, text, events)
            elif reasoning.signature is not None:
                self._sign(index, block, _THINKING, reasoning.signature, events)
            elif reasoning.redacted_content is not None:
                self._sign(index, block, _REDACTED, reasoning.redacted_content, events)
        elif delta.citation:
            events.append(Lost("answer.citations"))

    def _add(self, index: int, block: _Block | None, kind: Kind, text: JsonText, events: list[Event]) -> None:
        if block is None or block.kind is not kind:
            block = self._begin(index, kind, events)
        assert block.n is not None, "those that are left out have no text"
        if text != EMPTY:
            events.append(Delta(block.n, text))

    def _sign(self, index: int, block: _Block | None, kind: Kind, value: str, events: list[Event]) -> None:
        if block is None or block.kind is not kind:
            block = self._begin(index, kind, events)
        block.n_signed += len(value)
        if block.n_signed > _MOST_SIGNATURE:
            raise BrokenReplyError(f"a signature of the upstream's stream is over {_MOST_SIGNATURE} characters")
        block.signed.append(value)

    def _begin(self, index: int, kind: Kind, events: list[Event], tool_id: str = "", name: str = "") -> _Block:
        self._close(index, events)
        block = _Block(self._n, kind)
        events.append(Open(self._n, kind, tool_id, name))
        self._n += 1
        self._remember(index, block)
        return block

    def _remember(self, index: int, block: _Block) -> None:
        if self._has_stopped:
            raise BrokenReplyError("a block came after the message's stop")
        if len(self._open) >= _MOST_OPEN:
            raise BrokenReplyError(f"more than {_MOST_OPEN} blocks of the upstream's stream are open")
        self._open[index] = block

    def _close(self, index: int, events: list[Event]) -> None:
        """Close a block, where one is open: one without text has no delta either."""
        block = self._open.pop(index, None)
        if block is None or block.n is None:
            return
        if block.signed:
            value = _joined_base64(block.signed) if block.kind is _REDACTED else "".join(block.signed)
            events.append(Sign(block.n, Signature(self._provider, value)))
        events.append(Close(block.n))

    def _on_stop(self, payload: bytes, events: list[Event]) -> None:
        if self._has_stopped:
            raise BrokenReplyError("a message stopped twice")
        found = reply_keeping_surrogates(MESSAGE_STOP, payload)
        error = broken_stop(found.stop_reason)
        if error is not None:
            self._has_ended = True
            events.append(Failed(error))
            return
        for index in list(self._open):
            self._close(index, events)
        self._has_stopped = True
        stop = stop_of(found.stop_reason, found.additional_model_response_fields, self._stops)
        events.append(Finish(settled(stop, has_calls=self._has_calls)))
        self._end_if_whole(events)

    def _end_if_whole(self, events: list[Event]) -> None:
        if self._has_stopped and self._has_usage:
            self._has_ended = True
            events.append(End())


def _failed(frame: EventFrame) -> Failed:
    name = frame.name.decode("utf-8", "replace")
    said = frame.message.decode("utf-8", "replace")
    message, _ = (said, "") if said else message_of(frame.payload, f"the upstream's stream failed: {name}")
    return Failed(api_error(name, 500, message))


def _joined_base64(parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    try:
        return as_base64(concatenated(map(from_base64, parts)))
    except ValueError:
        raise BrokenReplyError("redacted reasoning of the upstream's stream is no base64") from None
