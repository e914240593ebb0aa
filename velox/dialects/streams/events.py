"""A whole answer as the events of a stream, and the events of a stream as a whole answer.

Knows: which events a block is told by. Does not know: any dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.dialects.canonical.errors import BrokenReplyError, ReplyError
from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    Citation,
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
    Search,
    Searched,
    Sign,
    Signature,
    Span,
    Start,
    Stop,
    StopReason,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Used,
    Work,
)
from velox.dialects.json_text.text import EMPTY, decoded, joined, quoted
from velox.dialects.streams.citations import spans_of

__all__ = ["answer_of", "events_of"]


def events_of(answer: Answer) -> list[Event]:
    """Return the events of a stream that tells the same: for a client that asked a server that does not stream."""
    events: list[Event] = [Start(answer.id, answer.model)]
    for n, (block, spans) in enumerate(zip(answer.blocks, spans_of(answer.blocks), strict=True)):
        events += _of_block(n, block, spans)
    events += map(Lost, answer.lost)
    return [*events, Used(answer.usage), Finish(answer.stop), End()]


def _of_block(n: int, block: AnswerBlock, spans: Sequence[Span]) -> list[Event]:
    match block:
        case Text(text):
            cited = [Cite(n, each, span) for each, span in zip(block.cited, spans, strict=True)]
            return _texts(n, Kind.TEXT, text, block.signature, cited)
        case Search():
            return [Searched(block)]
        case Image():
            return [Pictured(block)]
        case Refusal(text):
            return _texts(n, Kind.REFUSAL, text, None)
        case Thinking(text):
            return _texts(n, Kind.REDACTED if block.is_redacted else Kind.THINKING, text, block.signature)
        case ToolUse():
            opened = Open(n, Kind.TOOL, block.id, block.name)
            delta = Delta(n, quoted(block.arguments.decode("utf-8", "surrogatepass")))
            signed = [] if block.signature is None else [Sign(n, block.signature)]
            return [opened, *signed, delta, Close(n)]
        case _:
            return []  # a model says nothing else


def _texts(n: int, kind: Kind, text: JsonText, signature: Signature | None, cited: Sequence[Cite] = ()) -> list[Event]:
    delta = [] if text == EMPTY else [Delta(n, text)]
    signed = [] if signature is None else [Sign(n, signature)]
    return [Open(n, kind), *delta, *cited, *signed, Close(n)]


def answer_of(events: list[Event]) -> Answer:
    """Return the answer that a whole stream tells. Raises BrokenReplyError: it is not whole; ReplyError: it failed."""
    answer = Answer("", "", [], Stop(StopReason.END))
    opened: list[Open | Search | Image] = []
    cited: dict[int, list[Citation]] = {}
    texts: dict[int, list[JsonText]] = {}
    signatures: dict[int, Signature] = {}
    usage, is_whole = Usage(), False
    for event in events:
        match event:
            case Start():
                answer.id, answer.model = event.id, event.model
            case Open():
                opened.append(event)
                texts[event.n] = []
            case Delta():
                texts[event.n].append(event.text)
            case Sign():
                signatures[event.n] = event.signature
            case Cite():
                cited.setdefault(event.n, []).append(event.citation)
            case Searched():
                opened.append(event.search)
            case Pictured():
                opened.append(event.image)
            case Used():
                usage = event.usage.over(usage)
            case Finish():
                answer.stop = event.stop
            case Failed():
                raise ReplyError(event.error)
            case End():
                is_whole = True
            case Lost():
                answer.lost = tuple(dict.fromkeys((*answer.lost, event.field)))
            case Close() | Work():
                pass
    if not is_whole:
        raise BrokenReplyError("the stream was cut")
    for each in opened:
        if isinstance(each, Search | Image):
            answer.blocks.append(each)
            continue
        block = _block(each, joined(texts[each.n], b""), signatures.get(each.n))
        if isinstance(block, Text):
            block.cited = tuple(cited.get(each.n, ()))
        answer.blocks.append(block)
    answer.usage = usage
    return answer


def _block(opened: Open, text: JsonText, signature: Signature | None) -> AnswerBlock:
    match opened.kind:
        case Kind.TEXT:
            return Text(text, signature=signature)
        case Kind.REFUSAL:
            return Refusal(text)
        case Kind.THINKING | Kind.REDACTED:
            return Thinking(text, signature, opened.kind is Kind.REDACTED)
        case Kind.TOOL:
            arguments = decoded(text).encode("utf-8", "surrogatepass") or b"{}"
            return ToolUse(opened.id, opened.name, arguments, signature)
