"""Writes the events of an answer as Anthropic streams them.

    message_start, (content_block_start, content_block_delta ..., content_block_stop) ..., message_delta, message_stop

Blocks stand strictly one after the other: those that overlap wait (in_turn.py). message_delta needs the last counts: it
is written with the end.

No block of reasoning that is a signature only stands behind a text or a call at the end: Anthropic writes none there,
and clients take the last block for the answer (musistudio/claude-code-router#1275). Such a block waits for what
follows, and is left out if that is the end: Google asks for the signatures of calls, which stand before these, and not
for those of texts (https://ai.google.dev/gemini-api/docs/thought-signatures).

Knows: events and their order. Does not know: who answers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from velox.dialects.canonical.model import (
    Cite,
    ClientCall,
    Close,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Kind,
    Open,
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
from velox.dialects.canonical.signatures import tagged
from velox.dialects.json_text.text import quoted
from velox.dialects.messages.sources import citation, search_blocks
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.messages.words import error_type, shown_id, stop_word, written_usage
from velox.dialects.streams.in_turn import BlockEvent, InTurn

__all__ = ["MessagesStreamWriter", "error_body", "signed", "stop_fields"]

# Looking a member of an enum up costs more than most of what is done with it.
_REDACTED: Final = Kind.REDACTED
_STOP: Final = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_OPEN: Final = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b%b}}\n\n'
_TEXT: Final = b'{"type":"text","text":""}'
_THINKING: Final = b'{"type":"thinking","thinking":"","signature":""}'
_TEXT_DELTA: Final = b'{"type":"text_delta","text":'
_THINKING_DELTA: Final = b'{"type":"thinking_delta","thinking":'
_SIGNATURE_DELTA: Final = b'{"type":"signature_delta","signature":'
_CITATIONS_DELTA: Final = b'{"type":"citations_delta","citation":'
_INPUT_DELTA: Final = b'{"type":"input_json_delta","partial_json":'
_DELTAS: Final = MappingProxyType(
    {
        Kind.TEXT: _TEXT_DELTA,
        Kind.REFUSAL: _TEXT_DELTA,
        Kind.THINKING: _THINKING_DELTA,
        Kind.REDACTED: _THINKING_DELTA,
        Kind.TOOL: _INPUT_DELTA,
    }
)
_MESSAGE_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


class MessagesStreamWriter:
    """Of one stream. model: as the client named it, where the upstream does not say."""

    __slots__ = (
        "_call",
        "_delta",
        "_has_begun",
        "_has_refused",
        "_has_said",
        "_id",
        "_in_turn",
        "_index",
        "_is_cited",
        "_is_open",
        "_is_over",
        "_late",
        "_model",
        "_opened",
        "_searches",
        "_stop",
        "_unsaid",
        "_usage",
    )

    def __init__(self, call: ClientCall, model: str) -> None:
        self._call: Final = call
        self._id = ""
        self._model = model
        self._has_begun = False
        self._opened: Open | None = None  # the block that is written now
        self._is_open = False  # its content_block_start is
        self._is_cited = False  # all of what it has said is
        self._searches: Final[list[Search]] = []  # that wait for the end of a block
        self._delta = b""  # how its deltas begin
        self._late: Signature | None = None  # of the open block; it follows as one of its own
        self._index = 0  # of it, or of the next one
        self._in_turn: Final = InTurn()
        self._has_said = False  # there is a text or a call
        self._unsaid: list[tuple[Signature, bool]] = []  # behind those: signatures, and whether of redacted reasoning
        self._usage = Usage()
        self._stop: Stop | None = None
        self._has_refused = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<MessagesStreamWriter block {self._index}, {self._in_turn!r}>"

    def write(self, event: Event) -> bytes:
        """Return what the client gets. Raises BrokenReplyError: too much has to wait."""
        if self._is_over:
            return b""
        match event:
            case Delta() if event.n == self._in_turn.current:
                return self._add_text(event)
            case Delta() | Sign() | Close() | Open() | Cite():
                return self._add(event)
            case Searched():
                self._searches.append(event.search)
                return self._searched() if self._in_turn.current is None else b""
            case Start():
                self._id = event.id
                self._model = event.model or self._model
            case Used():
                self._usage = event.usage.over(self._usage)
            case Finish():
                self._stop = event.stop
            case End():
                self._is_over = True
                return self._end()
            case Failed():
                self._is_over = True
                return b"event: error\ndata: %b\n\n" % error_body(event.error.kind, event.error.message)
        return b""

    def _begin(self) -> bytes:
        """Return the first event, with the counts of the prompt that are known: once.

        Not those of the answer, of which Anthropic's first event has a token at most.
        """
        if self._has_begun:
            return b""
        self._has_begun = True
        answer_id = self._id if self._id.startswith("msg_") else f"msg_{self._call.id}"
        return (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":%b,"type":"message",'
            b'"role":"assistant","model":%b,"content":[],"stop_reason":null,"stop_sequence":null,"usage":%b}}\n\n'
            % (quoted(answer_id), quoted(self._model), written_usage(replace(self._usage, output=None, reasoning=None)))
        )

    def _add(self, event: BlockEvent) -> bytes:
        """Write an event of a block, and those that have waited for it."""
        due = self._in_turn.take(event)
        return self._write_block(due[0]) if len(due) == 1 else b"".join(map(self._write_block, due))

    def _write_block(self, event: BlockEvent) -> bytes:
        if isinstance(event, Open):
            return self._begin() + self._take(event)
        if isinstance(event, Delta):
            return self._add_text(event)
        opened = self._opened
        assert opened is not None, "events of blocks come in turn"
        if isinstance(event, Cite):
            return self._cite(opened, event)
        if isinstance(event, Sign):
            return self._sign(opened, event.signature)
        closed = self._close(opened)
        return closed + self._searched() if self._searches else closed

    def _searched(self) -> bytes:
        """Write the searches that no block holds up any more."""
        written = self._begin() + self._said()
        for search in self._searches:
            index = self._index
            call, given, found = search_blocks(search, self._call.id, index)
            written += (
                _OPEN % (index, call)
                + _DELTA % (index, _INPUT_DELTA, quoted(given.decode("utf-8", "surrogatepass")))
                + _STOP % index
                + _OPEN % (index + 1, found)
                + _STOP % (index + 1)
            )
            self._index += 2
        self._searches.clear()
        return written

    def _cite(self, opened: Open, event: Cite) -> bytes:
        """Write a citation of what the block has said so far: more of the text goes into another block."""
        if opened.kind is not Kind.TEXT:
            return b""
        written = b"" if self._is_open else self._open_block(opened)
        self._is_cited = event.citation.end is not None  # else it is of all of the block
        return written + _DELTA % (self._index, _CITATIONS_DELTA, citation(event.citation))

    def _take(self, opened: Open) -> bytes:
        """Make this block the open one.

        Its start waits for what comes next: a signature of a call goes before it; one of a text may be all there is.
        """
        self._opened = opened
        self._is_open = False
        self._delta = _DELTAS[opened.kind]
        if opened.kind is Kind.REFUSAL:
            self._has_refused = True
        return self._open_block(opened) if opened.kind is Kind.THINKING and not self._has_said else b""

    def _open_block(self, opened: Open) -> bytes:
        self._is_open = True
        kind = opened.kind
        before = self._said()
        self._has_said = self._has_said or kind is not Kind.THINKING
        if kind is Kind.TOOL:
            block = b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (
                quoted(shown_id(self._tool_id(opened), self._call.id)),
                quoted(opened.name),
            )
        else:
            block = _THINKING if kind is Kind.THINKING else _TEXT
        return before + _OPEN % (self._index, block)

    def _said(self) -> bytes:
        """Return the signatures that stand behind a text: something follows."""
        if not self._unsaid:
            return b""
        unsaid, self._unsaid = self._unsaid, []
        return b"".join([self._own_block(signature, is_redacted=redacted) for signature, redacted in unsaid])

    def _tool_id(self, opened: Open) -> str:
        return opened.id or f"toolu_{self._call.id}{opened.n}"

    def _add_text(self, event: Delta) -> bytes:
        opened = self._opened
        assert opened is not None, "events of blocks come in turn"
        if opened.kind is _REDACTED:
            return b""
        if self._is_open and not self._is_cited:
            return _DELTA % (self._index, self._delta, event.text)
        if self._is_cited:
            self._is_cited, self._is_open = False, False
            ended, self._index = _STOP % self._index, self._index + 1
            return ended + self._open_block(opened) + _DELTA % (self._index, self._delta, event.text)
        return self._open_block(opened) + _DELTA % (self._index, self._delta, event.text)

    def _close(self, opened: Open) -> bytes:
        """Write the end of the open block."""
        self._opened = None
        self._is_cited = False
        late, self._late = self._late, None
        written = b""
        if not self._is_open and opened.kind is Kind.TOOL:
            written = self._open_block(opened)
        if self._is_open:  # else it is a signature only, or nothing at all
            written += _STOP % self._index
            self._index += 1
        if late is None:
            return written
        if opened.kind is Kind.TOOL or not self._has_said:
            return written + self._own_block(late)
        self._unsaid.append((late, False))
        return written

    def _sign(self, opened: Open, signature: Signature) -> bytes:
        """Write a signature: in its block, or as one of its own where it is of a call or a text."""
        match opened.kind:
            case Kind.THINKING if self._is_open:
                return _DELTA % (self._index, _SIGNATURE_DELTA, quoted(signed(signature)))
            case Kind.THINKING:
                self._unsaid.append((signature, False))
            case Kind.REDACTED:
                if self._has_said:
                    self._unsaid.append((signature, True))
                elif not self._is_open:
                    self._is_open = True
                    return _OPEN % (self._index, _redacted(signature))
            case Kind.TOOL:
                bound = Signature(signature.provider, signature.value, self._tool_id(opened))
                if not self._is_open:
                    before = self._said()
                    return before + self._own_block(bound) + self._open_block(opened)
                self._late = bound
            case _:
                self._late = signature
        return b""

    def _own_block(self, signature: Signature, *, is_redacted: bool = False) -> bytes:
        """Write a block of reasoning that is a signature only."""
        index, self._index = self._index, self._index + 1
        if is_redacted:
            return _OPEN % (index, _redacted(signature)) + _STOP % index
        text = _DELTA % (index, _SIGNATURE_DELTA, quoted(signed(signature)))
        return _OPEN % (index, _THINKING) + text + _STOP % index

    def _end(self) -> bytes:
        written = self._begin() + b"".join(map(self._write_block, self._in_turn.finish()))
        stop = self._stop or Stop(StopReason.END, unknown="null")
        return (
            written
            + b'event: message_delta\ndata: {"type":"message_delta","delta":{%b},"usage":%b}\n\n'
            % (stop_fields(stop, has_refused=self._has_refused), written_usage(self._usage))
            + _MESSAGE_STOP
        )


def _redacted(signature: Signature) -> bytes:
    data = signature.value if signature.provider == PROVIDER else tagged(signature, is_redacted=True)
    return b'{"type":"redacted_thinking","data":%b}' % quoted(data)


def signed(signature: Signature) -> str:
    """Return a signature as this dialect has it: another provider's with its name."""
    return signature.value if signature.provider == PROVIDER else tagged(signature)


def stop_fields(stop: Stop, *, has_refused: bool) -> bytes:
    """Write why the model stopped. has_refused: the answer is a refusal in the model's own words."""
    word = "refusal" if has_refused and stop.reason is StopReason.END else stop_word(stop)
    fields = b'"stop_reason":"%b","stop_sequence":%b' % (
        word.encode("ascii"),
        b"null" if stop.sequence is None else quoted(stop.sequence),
    )
    if word != "refusal" or stop.explanation is None:
        return fields
    return fields + b',"stop_details":{"type":"refusal","category":null,"explanation":%b}' % stop.explanation


def error_body(kind: ErrorKind, message: str) -> bytes:
    """Write an error."""
    return b'{"type":"error","error":{"type":"%b","message":%b}}' % (
        error_type(kind).encode("ascii"),
        quoted(message),
    )
