"""Writes a streamed answer in Chat Completions: the chunks that a client gets.

All chunks begin and end with the same bytes (id, time, model); what is between is spliced.

    role, content ""  ->  deltas  ->  finish reason, empty delta  ->  usage, if asked for  ->  [DONE]

Knows: the order of chunks, and what each has. Does not know: requests, HTTP.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from velox.dialects.canonical.dropped_fields import SEARCHES, DroppedFields
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
    Searched,
    Sign,
    Signature,
    Start,
    Stop,
    StopReason,
    Usage,
    Used,
)
from velox.dialects.chat.reasoning import BETWEEN, id_with_thought, signature_detail, thinking_detail
from velox.dialects.chat.sources import annotation
from velox.dialects.chat.words import answer_id, finish_word, picture, usage_json
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted
from velox.dialects.openai_errors import error_json
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES
from velox.dialects.tools.arguments import custom_input

__all__ = ["ChatStreamWriter"]

# Looking a member of an enum up costs more than most of what is done with it.
_TEXT: Final = Kind.TEXT
_TOOL: Final = Kind.TOOL
_DONE: Final = b"data: [DONE]\n\n"
_ROLE: Final = b'{"role":"assistant","content":""}'
_ARGUMENTS: Final = b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}'
_OLD_ARGUMENTS: Final = b'{"function_call":{"arguments":%b}}'
_BETWEEN: Final = quoted(BETWEEN)


class _Block:
    """One open block. index: of a call among the calls. id: of the call, as the client gets it."""

    __slots__ = ("has_arguments", "held", "id", "index", "kind", "n_characters", "name", "signature")

    def __init__(self, kind: Kind, index: int = -1, call_id: str = "", name: str = "") -> None:
        self.kind: Final = kind
        self.index: Final = index
        self.id = call_id
        self.name: Final = name
        self.has_arguments = False
        self.n_characters = 0
        self.held: list[JsonText] = []  # arguments that are sent whole
        self.signature: Signature | None = None  # of a call that is sent whole


class ChatStreamWriter:
    """Writes one stream. model: as the client asked for it. custom: the names of its custom tools.

    is_old: it calls functions, and no tools (ChatRequestReader).
    """

    def __init__(
        self,
        call: ClientCall,
        model: str,
        custom: Collection[str],
        dropped: DroppedFields,
        *,
        include_usage: bool,
        is_old: bool = False,
    ) -> None:
        self._dropped: Final = dropped
        self._is_old: Final = is_old
        self._call: Final = call
        self._model: Final = model
        self._custom: Final = custom
        self._include_usage: Final = include_usage
        self._lead = b""
        self._end: Final = b',"logprobs":null,"finish_reason":null}]%b}\n\n' % self._no_usage
        self._blocks: Final[dict[int, _Block]] = {}
        self._opening: _Block | None = None  # its chunk waits for the signature that may go with it
        self._n_calls = 0
        self._n_details = 0
        self._n_pictures = 0
        self._n_annotations = 0
        self._has_thoughts = False
        self._held_bytes = 0
        self._usage = Usage()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<ChatStreamWriter {len(self._blocks)} blocks open>"

    @property
    def _no_usage(self) -> bytes:
        return b',"usage":null' if self._include_usage else b""

    def write(self, event: Event) -> bytes:
        """See StreamWriter."""
        if type(event) is Delta:
            return self._delta(event)
        if self._is_over:
            return b""
        if type(event) is Used:
            self._usage = event.usage.over(self._usage)
            return b""
        match event:
            case Start():
                return self._start(event.id, event.model)
            case Open():
                return self._begun() + self._open(event)
            case Sign():
                return self._sign(event)
            case Cite():
                written = annotation(event.citation, event.span, self._n_annotations)
                self._n_annotations += 1
                return self._begun() + self._chunk(b'{"annotations":[%b]}' % written)
            case Pictured():
                written = picture(event.image, self._n_pictures)
                self._n_pictures += 1
                return self._begun() + self._opened() + self._chunk(b'{"images":[%b]}' % written)
            case Searched():
                self._dropped.lose(SEARCHES)
            case Close():
                return self._close(event.n)
            case Finish():
                return self._begun() + self._finish(event.stop)
            case End():
                self._is_over = True
                return self._begun() + self._last_usage() + _DONE
            case Failed():
                self._is_over = True
                return b"data: " + error_json(event.error) + b"\n\n"
        return b""

    # -- beginning ------------------------------------------------------------------------------------

    def _start(self, theirs: str, model: str) -> bytes:
        if self._lead:
            return b""
        self._lead = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            quoted(answer_id(theirs, self._call)),
            self._call.now_s,
            quoted(model or self._model),
        )
        return self._chunk(_ROLE)

    def _begun(self) -> bytes:
        """Return what has to come before anything else."""
        return b"" if self._lead else self._start("", "")

    def _chunk(self, delta: bytes) -> bytes:
        return b'%b{"index":0,"delta":%b%b' % (self._lead, delta, self._end)

    # -- blocks -----------------------------------------------------------------------------------------

    def _open(self, event: Open) -> bytes:
        before = self._opened()
        if event.kind is not Kind.TOOL:
            self._blocks[event.n] = _Block(event.kind)
            return before
        index = self._n_calls
        self._n_calls += 1
        block = _Block(Kind.TOOL, index, event.id or f"call_{self._call.id}{index}", event.name)
        self._blocks[event.n] = block
        if not self._is_whole(block):
            self._opening = block
        return before

    def _is_whole(self, block: _Block) -> bool:
        """Say whether a call is one chunk, when it is whole: its client reads no other."""
        return self._call.reads_whole_calls and not self._is_old and block.name not in self._custom

    def _opened(self, signature: Signature | None = None) -> bytes:
        """Return the first chunk of the call whose block was opened last, if it is still due."""
        block, self._opening = self._opening, None
        if block is None:
            return b""
        if self._is_old:
            form = b'{"function_call":{"name":%b,"arguments":""}}'
            return b"" if block.index else self._chunk(form % quoted(block.name))
        call_id = quoted(id_with_thought(block.id, signature))
        if block.name in self._custom:
            form = b'{"tool_calls":[{"index":%d,"id":%b,"type":"custom","custom":{"name":%b,"input":""}}]}'
        else:
            form = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}'
        return self._chunk(form % (block.index, call_id, quoted(block.name)))

    def _delta(self, event: Delta) -> bytes:
        block = self._blocks.get(event.n)
        if block is None or self._is_over:
            return b""
        before = b"" if self._opening is None else self._opened()
        text = event.text
        if text == EMPTY:
            return before
        kind = block.kind
        if kind is _TEXT:
            return b'%b%b{"index":0,"delta":{"content":%b}%b' % (before, self._lead, text, self._end)
        if kind is _TOOL:
            block.has_arguments = True
            if block.name in self._custom or self._is_whole(block):
                self._hold(block, text)
                return before
            return before + self._arguments(block, text)
        match kind:
            case Kind.THINKING:
                if not block.n_characters and self._has_thoughts:
                    before += self._chunk(b'{"reasoning_content":%b}' % _BETWEEN)
                self._has_thoughts = True
                block.n_characters += len(decoded(text))
                return before + self._chunk(b'{"reasoning_content":%b}' % text)
            case Kind.REFUSAL:
                return before + self._chunk(b'{"refusal":%b}' % text)
        return before

    def _arguments(self, block: _Block, text: JsonText) -> bytes:
        if self._is_old:
            return b"" if block.index else self._chunk(_OLD_ARGUMENTS % text)
        return self._chunk(_ARGUMENTS % (block.index, text))

    def _hold(self, block: _Block, text: JsonText) -> None:
        self._held_bytes += len(text)
        if self._held_bytes > MOST_WAITING_BYTES:
            raise BrokenReplyError(f"the calls that are sent whole are over {MOST_WAITING_BYTES} bytes")
        block.held.append(text)

    def _sign(self, event: Sign) -> bytes:
        block = self._blocks.get(event.n)
        if block is None:
            return b""
        signature = event.signature
        index = self._n_details
        self._n_details += 1
        if block.kind is Kind.TOOL:
            block.signature = signature
            before = self._opened(signature) if block is self._opening else b""
            detail = signature_detail(signature, index, block.id)
        else:
            before = self._opened()
            if block.kind is Kind.THINKING:
                detail = thinking_detail(signature, index, n_characters=block.n_characters)
            elif block.kind is Kind.REDACTED:
                detail = thinking_detail(signature, index, n_characters=None)
            else:
                detail = signature_detail(signature, index, None)
        return before + self._chunk(b'{"reasoning_details":[%b]}' % detail)

    def _close(self, n: int) -> bytes:
        block = self._blocks.pop(n, None)
        if block is None or block.kind is not Kind.TOOL:
            return b""
        if self._is_whole(block):
            return self._whole(block)
        before = self._opened() if block is self._opening else b""
        if block.held:
            text = custom_input(decoded(joined(block.held, b"")).encode("utf-8", "backslashreplace"))
            self._held_bytes -= sum(map(len, block.held))
            form = b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}'
            return before + self._chunk(form % (block.index, text))
        if not block.has_arguments and block.name not in self._custom:
            return before + self._arguments(block, b'"{}"')
        return before

    def _whole(self, block: _Block) -> bytes:
        self._held_bytes -= sum(map(len, block.held))
        call_id = quoted(id_with_thought(block.id, block.signature))
        arguments = joined(block.held, b"") if block.held else b'"{}"'
        form = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}]}'
        return self._chunk(form % (block.index, call_id, quoted(block.name), arguments))

    # -- end --------------------------------------------------------------------------------------------

    def _finish(self, stop: Stop) -> bytes:
        said = self._opened()
        if stop.reason is StopReason.FILTER and stop.explanation is not None and stop.explanation != EMPTY:
            said += self._chunk(b'{"refusal":%b}' % stop.explanation)
        last = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"%b"}]%b}\n\n'
        return said + self._lead + last % (finish_word(stop, is_old=self._is_old), self._no_usage)

    def _last_usage(self) -> bytes:
        if not self._include_usage:
            return b""
        return b'%b],"usage":%b}\n\n' % (self._lead, usage_json(self._usage))
