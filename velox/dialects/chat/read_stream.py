"""Reads a streamed answer of a server that speaks Chat Completions into canonical events.

The servers differ in what they leave out: ids, indexes, roles, the end mark. Nothing is finished before the end: after
a finish reason there may be more, and an error (OpenRouter), or the same reason again.

A call's name comes whole, whole again in each chunk, in pieces, or longer each time (continuedev/continue#5849,
NousResearch/hermes-agent#11984). So the block of a call opens when its name can change no more: with its first
arguments, with whatever follows it, or at once where the name is a tool's, and the beginning of no other tool's.

Knows: chunks. Does not know: HTTP.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    ApiError,
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
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Used,
)
from velox.dialects.chat import wire
from velox.dialects.chat.sources import citations_of
from velox.dialects.chat.words import (
    EXTRA_CONTENT,
    lost,
    read_content,
    read_usage,
    signed,
    stop_of,
)
from velox.dialects.json_text.decoding import decode, decoded_reply, is_given, reply_text
from velox.dialects.json_text.surrogates import masked, unmasked
from velox.dialects.json_text.text import EMPTY, decoded, quoted, raw_text
from velox.dialects.openai_errors import api_error
from velox.dialects.streams.delta_shape import DeltaShape
from velox.protocol.sse_events import SseEvents

__all__ = ["ChatStreamReader"]

_MOST_CALLS: Final = 128
_MOST_NAME: Final = 4096  # of a name that comes in pieces: APIs take some 64 to 512 characters
_DONE: Final = b"[DONE]"
_ERROR: Final = b"error"
_CHUNK: Final = msgspec.json.Decoder(wire.Chunk)
_DELTA: Final = msgspec.json.Decoder(wire.Delta)


class _Call:
    """One call. n: of its block; -1: not open yet. last: the end of its arguments so far."""

    __slots__ = ("id", "last", "n", "name", "signature")

    def __init__(self, call_id: str, name: str) -> None:
        self.n = -1
        self.id: Final = call_id
        self.name = name
        self.last = b""
        self.signature: Signature | None = None


class ChatStreamReader:
    """Reads one stream. provider: whose signatures these are. tools: the names of those that the model was given."""

    def __init__(self, provider: str, tools: Collection[str] = ()) -> None:
        self._provider: Final = provider
        self._tools: Final = tools
        self._events: Final = SseEvents()
        self._shape: Final = DeltaShape()
        self._n_blocks = 0
        self._text = -1  # numbers of the open blocks; -1: none
        self._thinking = -1
        self._refusal = -1
        self._calls: Final[dict[int, _Call]] = {}  # by index: the latest of each
        self._open_calls: Final[list[_Call]] = []
        self._n_calls = 0
        self._latest: _Call | None = None
        self._unopened: _Call | None = None  # the latest, while its name may go on
        self._has_begun = False
        self._stop: Stop | None = None
        self._is_over = False

    def __repr__(self) -> str:
        return f"<ChatStreamReader {self._n_blocks} blocks{', over' if self._is_over else ''}>"

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return self._events.n_held

    def feed(self, data: bytes) -> list[Event]:
        """See StreamReader."""
        delta = self._shape.same(data)
        if delta is not None:
            return [delta]
        found: list[Event] = []
        if self._is_over:
            return found
        for name, text in self._events.feed(data):
            self._read(name, text, found)
        self._keep(data, found)
        return found

    def _keep(self, data: bytes, found: list[Event]) -> None:
        """Keep the shape of an event with some text. That of a call is not kept: what it says goes by its name."""
        last = found[-1] if found and self._events.is_whole else None
        if type(last) is Delta and (last.n == self._text or last.n == self._thinking):
            self._shape.keep(data, found)
        else:
            self._shape.forget()

    def end(self) -> list[Event]:
        """See StreamReader. Many servers leave [DONE] out: a finish reason and a whole last event will do."""
        found: list[Event] = []
        if self._is_over:
            return found
        rest = bool(self._events.rest)
        try:
            for name, text in self._events.end():
                self._read(name, text, found)
        except BrokenReplyError:
            return found  # the last event is cut
        if found and isinstance(found[-1], End | Failed):
            return found
        stray = self._events.stray.lstrip()
        if stray[:1] in (b"{", b"[") and b'"error"' in stray:
            self._fail(api_error(stray), found)  # an error that stands outside of any event
        elif self._stop is not None and not rest:
            self._finish(found)
        return found

    def _read(self, name: bytes, text: bytes, found: list[Event]) -> None:
        if self._is_over:
            return
        if text == _DONE:
            self._done(found)
            return
        text = reply_text(text)
        if name == _ERROR:
            self._fail(api_error(text), found)
            return
        try:
            chunk = decode(_CHUNK, text)
        except (msgspec.DecodeError, RecursionError):
            half = masked(text)
            if half is None:
                decoded_reply(_CHUNK, text)
            else:
                events: list[Event] = []
                self._chunk(decoded_reply(_CHUNK, half), events)
                found += unmasked(events)
            return
        self._chunk(chunk, found)

    def _chunk(self, chunk: wire.Chunk, found: list[Event]) -> None:
        if chunk.error is not wire.ABSENT and is_given(chunk.error):
            self._fail(api_error(chunk.error), found)
            return
        choices = chunk.choices
        if choices and not self._has_begun:
            self._has_begun = True
            found.append(Start(str(chunk.id or ""), chunk.model or ""))
        if chunk.usage is not wire.ABSENT or chunk.x_groq is not None:
            self._use(chunk, found)  # before its text: a client may be told how long its prompt was
        for choice in choices or ():
            if not choice.index:  # of several answers the first
                self._choice(choice, found)

    def _use(self, chunk: wire.Chunk, found: list[Event]) -> None:
        tier = raw_text(chunk.service_tier)
        usage = read_usage(chunk.usage, None if tier is None else decoded(tier))
        if chunk.x_groq is not None:
            usage = usage.over(read_usage(chunk.x_groq.usage))
        if usage.input is not None or usage.output is not None:
            found.append(Used(usage))

    # -- the message ----------------------------------------------------------------------------------

    def _choice(self, choice: wire.ChunkChoice, found: list[Event]) -> None:
        if choice.error is not wire.ABSENT and is_given(choice.error):
            self._fail(api_error(choice.error), found)
            return
        delta = choice.delta
        if delta is not None:
            self._delta(delta, found)
        elif choice.message is not wire.ABSENT and is_given(choice.message) and not self._n_blocks:
            self._delta(decoded_reply(_DELTA, choice.message), found)  # the whole answer, in the only event
        word = choice.finish_reason
        if word:
            stop = stop_of(word, choice.stop_reason, has_calls=self._n_calls > 0)
            if isinstance(stop, ApiError):
                self._fail(stop, found)
                return
            self._stop = stop
            self._close_all(found)

    def _delta(self, delta: wire.Delta, found: list[Event]) -> None:
        if delta.reasoning_details:
            self._details(delta, delta.reasoning_details, found)
        elif delta.reasoning_content is not wire.ABSENT or delta.reasoning is not wire.ABSENT:
            text = raw_text(delta.reasoning_content) or raw_text(delta.reasoning) or EMPTY
            if text == EMPTY:
                text = raw_text(delta.reasoning) or EMPTY
            self._think(text, found)
        if delta.content is not wire.ABSENT:
            text = raw_text(delta.content) or EMPTY
            if text == EMPTY:
                text, thought = read_content(delta.content)
                self._think(thought, found)
            if text != EMPTY:
                if self._text < 0:
                    self._text = self._open(Kind.TEXT, found)
                found.append(Delta(self._text, text))
        if delta.refusal is not wire.ABSENT:
            text = raw_text(delta.refusal) or EMPTY
            if text != EMPTY:
                if self._refusal < 0:
                    self._refusal = self._open(Kind.REFUSAL, found)
                found.append(Delta(self._refusal, text))
        if delta.annotations:
            self._cite(delta.annotations, found)
        found += map(Lost, lost(delta))
        for each in delta.tool_calls or ():
            self._tool(each, found)
        if delta.function_call is not None:
            self._tool(wire.ToolCallDelta(0, function=delta.function_call), found)

    def _cite(self, annotations: msgspec.Raw, found: list[Event]) -> None:
        cited = citations_of(annotations)
        if cited and self._text < 0:
            found.append(Lost("answer.citations"))  # of no text, or of one that is whole
        else:
            found += [Cite(self._text, each) for each in cited]

    def _open(self, kind: Kind, found: list[Event]) -> int:
        """Open a block of text; those of other kinds are whole then, but for calls."""
        self._open_call(found)
        self._close_texts(found)
        n = self._n_blocks
        self._n_blocks += 1
        found.append(Open(n, kind))
        return n

    def _close_texts(self, found: list[Event]) -> None:
        found += [Close(n) for n in (self._thinking, self._text, self._refusal) if n >= 0]
        self._thinking = self._text = self._refusal = -1

    def _close_all(self, found: list[Event]) -> None:
        self._open_call(found)
        self._close_texts(found)
        found += [Close(call.n) for call in self._open_calls]
        self._open_calls.clear()
        self._calls.clear()
        self._latest = None

    # -- reasoning --------------------------------------------------------------------------------------

    def _think(self, text: JsonText, found: list[Event]) -> None:
        if text == EMPTY:
            return
        if self._thinking < 0:
            self._thinking = self._open(Kind.THINKING, found)
        found.append(Delta(self._thinking, text))

    def _details(self, delta: wire.Delta, details: list[wire.ReasoningDetail], found: list[Event]) -> None:
        """Read OpenRouter's entries; the text beside them is the same once more."""
        has_text = False
        for each in details:
            text = raw_text(each.text) or raw_text(each.summary)
            if text is not None:
                has_text = True
                self._think(text, found)
            value = each.signature if each.signature is not None else each.data
            if not value:
                continue
            if self._thinking < 0 and each.type == "reasoning.encrypted":
                n = self._open(Kind.REDACTED, found)
                found += [Sign(n, signed(self._provider, each.format, value, each.id)), Close(n)]
                continue
            if self._thinking < 0:
                self._thinking = self._open(Kind.THINKING, found)
            found.append(Sign(self._thinking, signed(self._provider, each.format, value, each.id)))
            self._close_texts(found)
        if not has_text:
            self._think(raw_text(delta.reasoning) or EMPTY, found)

    # -- calls ------------------------------------------------------------------------------------------

    def _tool(self, each: wire.ToolCallDelta, found: list[Event]) -> None:
        function = each.function
        name = "" if function is None else function.name or ""
        arguments = b"" if function is None else bytes(function.arguments)
        if arguments[:1] == b"{":
            arguments = quoted(arguments.decode("utf-8", "replace"))
        elif arguments[:1] != b'"' or arguments == EMPTY:
            arguments = b""
        call = self._latest if each.index is None else self._calls.get(each.index)
        if call is not None and name:
            named = self._named(call, each.id or "", name, arguments)
            if named is None:
                call = None
            else:
                call.name = named
        if call is None:
            if not name:
                if not arguments:
                    return  # nothing has been called yet
                raise BrokenReplyError("a tool call of the upstream's stream has no name")
            call = self._call(each, name, found)
        if call is self._unopened and (arguments or self._is_whole(call.name)):
            self._open_call(found)
        if arguments:
            call.last = arguments[-3:-1]
            found.append(Delta(call.n, arguments))

    def _named(self, call: _Call, call_id: str, name: str, arguments: bytes) -> str | None:
        """Return the name of a call, of which there is a piece more; None: another call with the same index begins.

        Some servers give all calls the index 0, some repeat id and name in every chunk, some make an id for each chunk
        (NousResearch/hermes-agent#106943). Without an id, the same name begins another call where one JSON object
        follows on another, which no JSON has within.
        """
        if call_id and call.id and call_id != call.id:
            return None
        if name == call.name:
            follows = not call_id and call.last.endswith(b"}") and arguments.startswith(b'"{')
            return None if follows else name
        if call.n >= 0:
            return None
        if not call_id and call.name in self._tools and name in self._tools:
            return None  # two tools, called without arguments
        if name.startswith(call.name):
            return name
        if len(call.name) > _MOST_NAME:
            raise BrokenReplyError("the name of a tool call of the upstream's stream does not end")
        return call.name + name

    def _is_whole(self, name: str) -> bool:
        """Tell whether nothing can follow on a name."""
        tools = self._tools
        return name in tools and not any(tool != name and tool.startswith(name) for tool in tools)

    def _call(self, each: wire.ToolCallDelta, name: str, found: list[Event]) -> _Call:
        if self._n_calls >= _MOST_CALLS:
            raise BrokenReplyError(f"the upstream's stream has more than {_MOST_CALLS} tool calls")
        self._open_call(found)
        self._close_texts(found)
        call = _Call(each.id or "", name)
        self._n_calls += 1
        self._latest = self._unopened = call
        if each.index is not None:
            self._calls[each.index] = call
        google = None if each.extra_content is None else each.extra_content.google
        if google is not None and google.thought_signature:
            call.signature = signed(self._provider, EXTRA_CONTENT, google.thought_signature)
        return call

    def _open_call(self, found: list[Event]) -> None:
        """Open the block of the call whose name has come last, if it is not yet."""
        call, self._unopened = self._unopened, None
        if call is None:
            return
        call.n = self._n_blocks
        self._n_blocks += 1
        self._open_calls.append(call)
        found.append(Open(call.n, Kind.TOOL, call.id, call.name))
        if call.signature is not None:
            found.append(Sign(call.n, call.signature))

    # -- end --------------------------------------------------------------------------------------------

    def _done(self, found: list[Event]) -> None:
        if self._stop is None:
            if not self._has_begun:
                raise BrokenReplyError("the upstream's stream ended without an answer")
            self._stop = Stop(StopReason.TOOLS if self._n_calls else StopReason.END)
        self._finish(found)

    def _finish(self, found: list[Event]) -> None:
        assert self._stop is not None, "only after a finish reason or the end mark"
        self._close_all(found)
        self._is_over = True
        found += [Finish(self._stop), End()]

    def _fail(self, error: ApiError, found: list[Event]) -> None:
        self._is_over = True
        found.append(Failed(error))
