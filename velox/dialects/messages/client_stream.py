"""Writes the events of an answer as Anthropic streams them.

    message_start, (content_block_start, content_block_delta ..., content_block_stop) ..., message_delta, message_stop

Blocks stand strictly one after the other. Where an upstream's overlap (parallel calls), those that begin later wait
until the open one is whole, within a bound. message_delta needs the last counts: it is written with the end.

Knows: events and their order. Does not know: who answers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from velox.dialects.form import (
    Call,
    Close,
    Delta,
    End,
    ErrorKind,
    Event,
    Failed,
    Finish,
    Kind,
    Open,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Usage,
    Used,
)
from velox.dialects.losses import BrokenReplyError
from velox.dialects.messages.call_ids import shown_id
from velox.dialects.messages.meaning import error_type, stop_word, written_usage
from velox.dialects.messages.turns import PROVIDER
from velox.dialects.signatures import tagged
from velox.dialects.text import quoted

__all__ = ["MessagesWriter", "error_body", "signed", "stop_fields"]

# Looking a member of an enum up costs more than most of what is done with it.
_REDACTED: Final = Kind.REDACTED
_MOST_WAITING: Final = 128
_MOST_WAITING_BYTES: Final = 1024 * 1024
_STOP: Final = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_OPEN: Final = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b%b}}\n\n'
_TEXT: Final = b'{"type":"text","text":""}'
_THINKING: Final = b'{"type":"thinking","thinking":"","signature":""}'
_TEXT_DELTA: Final = b'{"type":"text_delta","text":'
_THINKING_DELTA: Final = b'{"type":"thinking_delta","thinking":'
_SIGNATURE_DELTA: Final = b'{"type":"signature_delta","signature":'
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


class _Waiting:
    """A block that waits, with what has come of it."""

    __slots__ = ("events", "opened")

    def __init__(self, opened: Open) -> None:
        self.opened: Final = opened
        self.events: Final[list[Delta | Sign | Close]] = []


class MessagesWriter:
    """Of one stream. model: as the client named it, where the upstream does not say."""

    __slots__ = (
        "_call",
        "_delta",
        "_has_begun",
        "_has_refused",
        "_id",
        "_index",
        "_is_over",
        "_is_told",
        "_late",
        "_model",
        "_opened",
        "_stop",
        "_usage",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, call: Call, model: str) -> None:
        self._call: Final = call
        self._id = ""
        self._model = model
        self._has_begun = False
        self._opened: Open | None = None  # the block that is written now
        self._is_told = False  # its content_block_start is
        self._delta = b""  # how its deltas begin
        self._late: Signature | None = None  # of the open block; it follows as one of its own
        self._index = 0  # of it, or of the next one
        self._waiting: Final[dict[int, _Waiting]] = {}
        self._waiting_bytes = 0
        self._usage = Usage()
        self._stop: Stop | None = None
        self._has_refused = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<MessagesWriter block {self._index}, {len(self._waiting)} waiting>"

    def write(self, event: Event) -> bytes:
        """Return what the client gets. Raises BrokenReplyError: too much has to wait."""
        if self._is_over:
            return b""
        match event:
            case Delta() | Sign() | Close():
                return self._add(event)
            case Open():
                return self._open(event)
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
        """Return the first event, with the counts that are known: once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        answer_id = self._id if self._id.startswith("msg_") else f"msg_{self._call.id}"
        return (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":%b,"type":"message",'
            b'"role":"assistant","model":%b,"content":[],"stop_reason":null,"stop_sequence":null,"usage":%b}}\n\n'
            % (quoted(answer_id), quoted(self._model), written_usage(self._usage))
        )

    def _open(self, opened: Open) -> bytes:
        if self._opened is not None:
            if len(self._waiting) >= _MOST_WAITING:
                raise BrokenReplyError(f"over {_MOST_WAITING} blocks of the upstream's stream overlap")
            self._waiting[opened.n] = _Waiting(opened)
            return b""
        return self._begin() + self._take(opened)

    def _take(self, opened: Open) -> bytes:
        """Make this block the open one.

        The start of a tool's call waits for what comes next: a signature of the call goes before it.
        """
        self._opened = opened
        self._is_told = False
        self._delta = _DELTAS[opened.kind]
        if opened.kind is Kind.REFUSAL:
            self._has_refused = True
        return b"" if opened.kind in (Kind.TOOL, Kind.REDACTED) else self._tell(opened)

    def _tell(self, opened: Open) -> bytes:
        self._is_told = True
        if opened.kind is Kind.TOOL:
            block = b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (
                quoted(shown_id(self._tool_id(opened), self._call.id)),
                quoted(opened.name),
            )
        else:
            block = _THINKING if opened.kind is Kind.THINKING else _TEXT
        return _OPEN % (self._index, block)

    def _tool_id(self, opened: Open) -> str:
        return opened.id or f"toolu_{self._call.id}{opened.n}"

    def _add(self, event: Delta | Sign | Close) -> bytes:
        opened = self._opened
        if opened is None or opened.n != event.n:
            self._let_wait(event)
            return b""
        if isinstance(event, Close):
            return self._close(opened) + self._next()
        return self._of_open(opened, event)

    def _let_wait(self, event: Delta | Sign | Close) -> None:
        waiting = self._waiting.get(event.n)
        if waiting is None or (waiting.events and isinstance(waiting.events[-1], Close)):
            return  # of a block that is closed
        waiting.events.append(event)
        if isinstance(event, Delta):
            self._waiting_bytes += len(event.text)
        elif isinstance(event, Sign):
            self._waiting_bytes += len(event.signature.value)
        if self._waiting_bytes > _MOST_WAITING_BYTES or len(waiting.events) > _MOST_WAITING_BYTES:
            raise BrokenReplyError(f"over {_MOST_WAITING_BYTES} bytes of overlapping blocks wait for the first one")

    def _of_open(self, opened: Open, event: Delta | Sign) -> bytes:
        if isinstance(event, Sign):
            return self._sign(opened, event.signature)
        if opened.kind is _REDACTED:
            return b""
        if self._is_told:
            return _DELTA % (self._index, self._delta, event.text)
        return self._tell(opened) + _DELTA % (self._index, self._delta, event.text)

    def _close(self, opened: Open) -> bytes:
        """Write the end of the open block."""
        self._opened = None
        if not self._is_told and opened.kind is Kind.REDACTED:
            return b""  # its data never came: there is nothing of it
        told = b"" if self._is_told else self._tell(opened)
        told += _STOP % self._index
        self._index += 1
        if self._late is not None:
            told += self._own_block(self._late)
            self._late = None
        return told

    def _sign(self, opened: Open, signature: Signature) -> bytes:
        """Write a signature: in its block, or as one of its own where it is of a call or a text."""
        match opened.kind:
            case Kind.THINKING:
                return _DELTA % (self._index, _SIGNATURE_DELTA, quoted(signed(signature)))
            case Kind.REDACTED:
                if self._is_told:
                    return b""
                self._is_told = True
                data = signature.value if signature.provider == PROVIDER else tagged(signature, is_redacted=True)
                return _OPEN % (self._index, b'{"type":"redacted_thinking","data":%b}' % quoted(data))
            case Kind.TOOL:
                bound = Signature(signature.provider, signature.value, self._tool_id(opened))
                if not self._is_told:
                    return self._own_block(bound) + self._tell(opened)
                self._late = bound
            case _:
                self._late = signature
        return b""

    def _own_block(self, signature: Signature) -> bytes:
        """Write a block of reasoning that is a signature only."""
        index, self._index = self._index, self._index + 1
        text = _DELTA % (index, _SIGNATURE_DELTA, quoted(signed(signature)))
        return _OPEN % (index, _THINKING) + text + _STOP % index

    def _next(self) -> bytes:
        """Go on with the block that has waited longest, and those after it, as far as they are whole."""
        told: list[bytes] = []
        while self._waiting and self._opened is None:
            waiting = self._waiting.pop(next(iter(self._waiting)))
            told.append(self._take(waiting.opened))
            for event in waiting.events:
                if isinstance(event, Delta):
                    self._waiting_bytes -= len(event.text)
                elif isinstance(event, Sign):
                    self._waiting_bytes -= len(event.signature.value)
                if isinstance(event, Close):
                    told.append(self._close(waiting.opened))
                else:
                    told.append(self._of_open(waiting.opened, event))
        return b"".join(told)

    def _end(self) -> bytes:
        told = self._begin()
        while self._opened is not None:
            told += self._close(self._opened) + self._next()
        stop = self._stop or Stop(StopReason.END, unknown="null")
        return (
            told
            + b'event: message_delta\ndata: {"type":"message_delta","delta":{%b},"usage":%b}\n\n'
            % (stop_fields(stop, has_refused=self._has_refused), written_usage(self._usage))
            + _MESSAGE_STOP
        )


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
