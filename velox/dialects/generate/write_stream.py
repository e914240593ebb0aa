"""Writes streams for Gemini's clients: server-sent events, each a whole answer with the parts that are new; or, where
they did not ask for events, the same as the items of one JSON array.

Calls come whole in this dialect: their arguments wait until they are complete. The reason for the end and the counts
come last, together, once the upstream's stream is known to be whole.

Knows: the order of chunks. Does not know: what an upstream sent.
"""

from __future__ import annotations

from typing import Final

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
    JsonText,
    Kind,
    Open,
    Pictured,
    Search,
    Searched,
    Sign,
    Signature,
    Source,
    Start,
    Stop,
    Usage,
    Used,
)
from velox.dialects.generate.sources import CitedPlace, grounding_field
from velox.dialects.generate.wire import as_object
from velox.dialects.generate.words import (
    EMPTY_PART,
    call_part,
    ending,
    error_body,
    picture_part,
    signed,
    text_part,
    usage_metadata,
)
from velox.dialects.json_text.surrogates import without_half, without_halves
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES

__all__ = ["GenerateArrayWriter", "GenerateStreamWriter", "arguments_of"]

_MOST_OPEN: Final = 128
# Looking a member of an enum up costs more than most of what is done with it.
_TOOL: Final = Kind.TOOL
_REFUSAL: Final = Kind.REFUSAL
_THINKING: Final = Kind.THINKING
_BEGIN: Final = b'data: {"candidates":[{"content":{"parts":['
_MIDDLE: Final = b'],"role":"model"},"index":0'
_DATA: Final = b"data: "
_BLANK_LINE: Final = b"\r\n\r\n"


class _Opened:
    """A block that is open. texts: of a call's arguments; of others half a character waits, at most."""

    __slots__ = ("begun", "half", "signature", "texts")

    def __init__(self, begun: Open) -> None:
        self.begun: Final = begun
        self.texts: Final[list[JsonText]] = []
        self.signature: Signature | None = None
        self.half = b""


class GenerateStreamWriter:
    """One stream."""

    __slots__ = (
        *("_call", "_end", "_has_calls", "_opened", "_places", "_refusal", "_searches", "_stop", "_unplaced", "_usage"),
        "_waiting_bytes",
    )

    def __init__(self, call: ClientCall) -> None:
        self._call: Final = call
        self._end = b""  # of each chunk, after its parts
        self._opened: Final[dict[int, _Opened]] = {}
        self._waiting_bytes = 0
        self._refusal: list[JsonText] = []
        self._usage = Usage()
        self._searches: Final[list[Search]] = []
        self._places: Final[list[CitedPlace]] = []
        self._unplaced: Final[list[Source]] = []  # cited, nobody knows where
        self._stop: Stop | None = None
        self._has_calls = False
        self._start(Start("", ""))

    def __repr__(self) -> str:
        return f"<GenerateStreamWriter {len(self._opened)} open, {self._waiting_bytes} bytes waiting>"

    def write(self, event: Event) -> bytes:
        """Return what the client gets. Raises BrokenReplyError: a call is over a bound."""
        if isinstance(event, Delta):
            return self._delta(event)
        if isinstance(event, Open):
            self._open(event)
        elif isinstance(event, Sign):
            self._opened[event.n].signature = event.signature
        elif isinstance(event, Close):
            return self._close(self._opened.pop(event.n))
        elif isinstance(event, Start):
            self._start(event)
        elif isinstance(event, Used):
            self._usage = event.usage.over(self._usage)
        elif isinstance(event, Finish):
            self._stop = event.stop
        elif isinstance(event, Cite):
            source, span = event.citation.source, event.span
            if span is None:
                self._unplaced.append(source)
            else:
                self._places.append(CitedPlace(source, span.first_byte, span.last_byte, span.words))
        elif isinstance(event, Searched):
            self._searches.append(event.search)
        elif isinstance(event, Pictured):
            return self._chunk(picture_part(event.image))
        elif isinstance(event, End):
            return self._last()
        elif isinstance(event, Failed):
            return _DATA + error_body(event.error) + _BLANK_LINE
        return b""

    def _start(self, event: Start) -> None:
        model = quoted(event.model or self._call.model)
        answer_id = quoted(event.id or self._call.id)
        self._end = b',"modelVersion":' + model + b',"responseId":' + answer_id + b"}" + _BLANK_LINE

    def _open(self, event: Open) -> None:
        if len(self._opened) == _MOST_OPEN:
            raise BrokenReplyError(f"the upstream's stream has over {_MOST_OPEN} blocks open at once")
        self._opened[event.n] = _Opened(event)

    def _delta(self, event: Delta) -> bytes:
        opened = self._opened[event.n]
        kind = opened.begun.kind
        if kind is _TOOL:
            opened.texts.append(event.text)
            self._waiting_bytes += len(event.text)
            if self._waiting_bytes > MOST_WAITING_BYTES:
                raise BrokenReplyError(f"the arguments of the upstream's calls are over {MOST_WAITING_BYTES} bytes")
            return b""
        if kind is _REFUSAL:
            self._refuse(event.text)
        text = event.text
        if opened.half or b"\\u" in text:
            text, opened.half = without_half(text, opened.half)
        if text == EMPTY:
            return b""
        return self._chunk(text_part(text, is_thought=kind is _THINKING))

    def _refuse(self, text: JsonText) -> None:
        self._refusal.append(text)
        self._waiting_bytes += len(text)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            raise BrokenReplyError(f"the upstream's refusal is over {MOST_WAITING_BYTES} bytes")

    def _close(self, opened: _Opened) -> bytes:
        begun, signature = opened.begun, opened.signature
        if begun.kind is _TOOL:
            self._waiting_bytes -= sum(map(len, opened.texts))
            call_id = begun.id or f"call_{self._call.id}{begun.n}"
            # Line ends are between the values only, and would end the event's line.
            arguments = arguments_of(joined(opened.texts, b"")).replace(b"\n", b" ").replace(b"\r", b" ")
            is_first, self._has_calls = not self._has_calls, True
            return self._chunk(call_part(call_id, begun.name, arguments, signature, is_first=is_first))
        rest = b'"' + opened.half + b'"'
        if signature is None and rest == EMPTY:
            return b""
        is_redacted = begun.kind is Kind.REDACTED
        field = signed(signature, is_redacted=is_redacted)
        return self._chunk(text_part(rest, is_thought=is_redacted or begun.kind is _THINKING, signature=field))

    def _chunk(self, part: bytes) -> bytes:
        return _BEGIN + part + _MIDDLE + b"}]" + self._end

    def _last(self) -> bytes:
        if self._stop is None:
            return b""
        refusal = joined(self._refusal, b"") if self._refusal else None
        sources = grounding_field(self._searches, self._places, self._unplaced)
        usage = b',"usageMetadata":' + usage_metadata(self._usage)
        return _BEGIN + EMPTY_PART + _MIDDLE + b"," + ending(self._stop, refusal) + sources + b"}]" + usage + self._end


class GenerateArrayWriter(GenerateStreamWriter):
    """One stream as an array. Only the end of a whole answer closes it: after an error it is no JSON."""

    __slots__ = ("_has_items",)

    def __init__(self, call: ClientCall) -> None:
        super().__init__(call)
        self._has_items = False

    def write(self, event: Event) -> bytes:
        """Return what the client gets. Raises BrokenReplyError."""
        text = super().write(event)
        if not text:
            return b""
        item = text.removeprefix(_DATA).removesuffix(_BLANK_LINE)
        lead = b",\r\n" if self._has_items else b"["
        self._has_items = True
        return lead + item + (b"]" if isinstance(event, End) else b"")


def arguments_of(text: JsonText) -> bytes:
    """Return the arguments of a call as an object, whatever the model wrote."""
    value = without_halves(decoded(text).encode("utf-8", "backslashreplace")).decode()
    if not value.strip():
        return b"{}"
    return as_object(value) or b'{"_invalid_arguments":' + without_halves(text) + b"}"
