"""Reads streams of Gemini: server-sent events, or a JSON array where nobody asked for events.

Each event is a whole answer of its own, with the parts that are new. Nothing says that the stream is over: it is if a
reason for the end was seen and the connection ended. So `Finish` waits for the end of the stream: calls and counts may
follow the reason, and an error too, which is bare JSON and no event.

Knows: how a stream is cut into answers, and parts become blocks. Does not know: clients.
Source: REST reference of v1beta; recorded streams.
"""

from __future__ import annotations

from typing import Final

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
    Pictured,
    Searched,
    Sign,
    Signature,
    Start,
    Stop,
    Usage,
    Used,
    settled,
)
from velox.dialects.generate.json_items import JsonItems
from velox.dialects.generate.partial_args import PartialArgs
from velox.dialects.generate.sources import Grounding, has_sources
from velox.dialects.generate.wire import Candidate, ReplyCall, ReplyPart, is_absent
from velox.dialects.generate.words import GOOGLE, blocked, first, lost, picture, read_reply, status_error, stop, usage
from velox.dialects.json_text.decoding import BOM
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted, raw_text
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES
from velox.protocol.sse_events import MOST_REPLY_BYTES, SseEvents
from velox.protocol.usage.tokens import google_searches

__all__ = ["GenerateStreamReader"]

_MOST_CALLS: Final = 128
# Looking a member of an enum up costs more than most of what is done with it.
_TEXT: Final = Kind.TEXT
_THINKING: Final = Kind.THINKING
_DONE: Final = b"[DONE]"  # some relays send it


class GenerateStreamReader:
    """One stream."""

    __slots__ = ("_events", "_head", "_parts")

    def __init__(self, *, searches: bool = False) -> None:
        """searches: the model may search the web: its texts are kept, as what they rest on comes behind them."""
        self._events: SseEvents | JsonItems | None = None  # once the first byte has come
        self._head = b""
        self._parts: Final = _Parts(searches=searches)

    def __repr__(self) -> str:
        return f"<GenerateStreamReader {self._parts!r}>"

    @property
    def n_held(self) -> int:
        """See StreamReader."""
        return 0 if self._events is None else self._events.n_held

    def feed(self, data: bytes) -> list[Event]:
        """Take what came, cut anywhere. Raises BrokenReplyError."""
        if self._events is None:
            data = self._head + data
            if len(data) < len(BOM) and BOM.startswith(data):
                self._head = data
                return []
            data = data.removeprefix(BOM)
            start = data.lstrip()
            if not start:
                self._head = data[-16:]  # white space
                return []
            self._events = JsonItems(MOST_REPLY_BYTES) if start[:1] in (b"[", b"{") else SseEvents()
        events: list[Event] = []
        if isinstance(self._events, JsonItems):
            for text in self._events.feed(data):
                self._parts.add(text, events)
        else:
            for _, text in self._events.feed(data):
                self._parts.add(text, events)
        return events

    def end(self) -> list[Event]:
        """Nothing more comes."""
        events: list[Event] = []
        try:
            is_whole = self._last(events)
        except BrokenReplyError:
            is_whole = False  # its last event was cut
        if is_whole:
            self._parts.end(events)
        return events

    def _last(self, events: list[Event]) -> bool:
        """Read what has no end mark of its own; return whether nothing of it was cut. Raises BrokenReplyError."""
        if self._events is None:
            return False
        if isinstance(self._events, JsonItems):
            return self._events.is_whole
        rest = self._events.rest.strip()
        texts = [text for _, text in self._events.end()]
        stray = self._events.stray.strip()
        if stray.startswith((b"{", b"[")):
            texts.append(stray.removeprefix(b"[").removesuffix(b"]"))
        for text in texts:
            self._parts.add(text, events)
        return not rest or bool(texts) or rest.startswith(b":")


class _Parts:
    """The answers of a stream, put together."""

    __slots__ = (
        "_call",
        "_call_n",
        "_grounding",
        "_has_tools",
        "_is_over",
        "_kind",
        "_model",
        "_n",
        "_n_calls",
        "_n_kept",
        "_signature",
        "_started",
        "_stop",
        "_texts",
    )

    def __init__(self, *, searches: bool) -> None:
        self._texts: Final[dict[int, list[JsonText]] | None] = {} if searches else None  # by block
        self._n_kept = 0
        self._grounding: Final = Grounding()
        self._model = ""
        self._started = False
        self._n = -1  # the number of the last block
        self._kind: Kind | None = None  # of the one that is open
        self._call: PartialArgs | None = None  # arguments that come in parts
        self._call_n = -1
        self._signature: str | None = None  # of the last call
        self._n_calls = 0
        self._has_tools = False
        self._stop: Stop | None = None
        self._is_over = False  # failed

    def __repr__(self) -> str:
        return f"<_Parts {self._n + 1} blocks, {self._stop}>"

    def add(self, text: bytes, events: list[Event]) -> None:
        """Read one answer; add what it says."""
        if self._is_over or text == _DONE or not text:
            return
        reply = read_reply(text)
        if not is_absent(reply.error):
            self._fail(status_error(reply.error), events)
            return
        if not self._started:
            self._started = True
            self._model = reply.model_version or ""
            events.append(Start(reply.response_id or "", self._model))
        if reply.usage_metadata is not None:
            found = usage(reply.usage_metadata)
            if found.input is not None or found.output is not None:
                events.append(Used(found))  # first: a client may be told how long its prompt was before it gets a text
        candidate = first(reply)
        if candidate is not None:
            if has_sources(candidate):
                self._add_sources(candidate, events)
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                self._part(part, events)
        found_stop = stop(candidate, self._has_tools) if candidate is not None else blocked(reply.prompt_feedback)
        if isinstance(found_stop, ApiError):
            self._fail(found_stop, events)
        elif found_stop is not None:
            self._stop = found_stop

    def end(self, events: list[Event]) -> None:
        """Add the end, if the stream is whole."""
        if self._is_over or self._stop is None:
            return
        if self._call is not None:
            return  # a call that was not finished
        self._cite(events)
        self._close(events)
        search = self._grounding.search
        if search is not None:
            n_searches = google_searches(search.queries, self._model)
            events += (Used(Usage(web_searches=n_searches)), Searched(search))
        events += (Finish(settled(self._stop, has_calls=self._has_tools)), End())  # a call may come after the reason

    def _fail(self, error: ApiError, events: list[Event]) -> None:
        self._is_over = True
        events.append(Failed(error))

    def _part(self, part: ReplyPart, events: list[Event]) -> None:
        if part.function_call is not None:
            self._function_call(part.function_call, part.thought_signature, events)
            return
        text = raw_text(part.text)
        if text is None:
            image = picture(part)
            if image is not None:
                events.append(Pictured(image))
                return
            name = lost(part)  # code that was run
            if name is not None:
                events.append(Lost(name))
            return
        signature = part.thought_signature
        if text == EMPTY and not signature:
            return
        kind = _THINKING if part.thought else _TEXT
        if self._kind is not kind:
            self._open(kind, events)
        if text != EMPTY:
            events.append(Delta(self._n, text))
            if self._texts is not None and kind is _TEXT:
                self._keep(text)
        if signature:
            events.append(Sign(self._n, Signature(GOOGLE, signature)))
            if self._texts is None or kind is not _TEXT:
                self._close(events)  # else what is cited of it comes later

    def _keep(self, text: JsonText) -> None:
        assert self._texts is not None, "asked before"
        self._n_kept += len(text)
        if self._n_kept > MOST_WAITING_BYTES:
            raise BrokenReplyError(f"the answer is over {MOST_WAITING_BYTES} bytes, the most that can be cited")
        self._texts.setdefault(self._n, []).append(text)

    def _add_sources(self, candidate: Candidate, events: list[Event]) -> None:
        if self._texts is None:
            events.append(Lost("answer.citations"))  # nobody asked for a search
        else:
            self._grounding.add(candidate)

    def _cite(self, events: list[Event]) -> None:
        """Add the citations of the text that is open; those of others come too late."""
        if self._texts is None:
            return
        texts = [decoded(joined(texts, b"")) for texts in self._texts.values()]
        is_lost = self._grounding.is_partial
        for n, cited in zip(self._texts, self._grounding.citations(texts), strict=True):
            if n == self._n and self._kind is _TEXT:
                events += [Cite(n, each) for each in cited]
            else:
                is_lost = is_lost or bool(cited)
        if is_lost:
            events.append(Lost("answer.citations"))

    def _function_call(self, call: ReplyCall, signature: str | None, events: list[Event]) -> None:
        """Read a call. One with partial arguments goes on over several parts, of which only the first has a name."""
        if self._call is None:
            if not call.name:
                return
            self._n_calls += 1
            if self._n_calls > _MOST_CALLS:
                raise BrokenReplyError(f"the answer calls over {_MOST_CALLS} tools")
            self._has_tools = True
            self._open(Kind.TOOL, events, call.id or "", call.name)
            self._kind = None  # it is closed here
            self._signature = signature
            if call.partial_args is None and not call.will_continue:
                arguments = b"{}" if is_absent(call.args) else bytes(call.args)
                self._end_call(self._n, arguments, events)
                return
            self._call, self._call_n = PartialArgs(), self._n
        for part in call.partial_args or ():
            self._call.add(part)
        if not call.will_continue:
            arguments, self._call = self._call.whole(), None
            self._end_call(self._call_n, arguments, events)

    def _end_call(self, n: int, arguments: bytes, events: list[Event]) -> None:
        if self._signature:
            events.append(Sign(n, Signature(GOOGLE, self._signature)))  # first: others say it before the call
        events.append(Delta(n, quoted(arguments.decode())))
        events.append(Close(n))

    def _open(self, kind: Kind, events: list[Event], call_id: str = "", name: str = "") -> None:
        self._close(events)
        self._n += 1
        self._kind = kind
        events.append(Open(self._n, kind, call_id, name))

    def _close(self, events: list[Event]) -> None:
        if self._kind is not None:
            events.append(Close(self._n))
            self._kind = None
