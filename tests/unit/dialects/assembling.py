"""The events of a stream, put together as a whole answer, with what is wrong in their order."""

from __future__ import annotations

from collections.abc import Iterable

from velox.dialects.canonical.model import (
    Answer,
    AnswerBlock,
    Block,
    Citation,
    Cite,
    Close,
    Delta,
    End,
    Event,
    Failed,
    Finish,
    Image,
    Kind,
    Lost,
    Open,
    Pictured,
    Refusal,
    Search,
    Searched,
    Sign,
    Signature,
    Start,
    Stop,
    StreamReader,
    Text,
    Thinking,
    ToolUse,
    Usage,
    Used,
)
from velox.dialects.json_text.text import EMPTY, decoded, joined

__all__ = ["assembled", "events_of", "normal"]


def events_of(reader: StreamReader, data: bytes, sizes: Iterable[int] = ()) -> list[Event]:
    """Return the events of a stream that is fed in pieces of these sizes, the rest at once."""
    events: list[Event] = []
    at = 0
    for size in sizes:
        if at >= len(data):
            break
        events += reader.feed(data[at : at + size])
        at += size
    if at < len(data):
        events += reader.feed(data[at:])
    return events + reader.end()


def normal(events: Iterable[Event]) -> list[Event]:
    """Return the events with deltas of one block joined where nothing is between: cuts may change those only."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Delta) and isinstance(last, Delta) and last.n == event.n:
            found[-1] = Delta(event.n, joined([last.text, event.text], b""))
        else:
            found.append(event)
    return found


def assembled(events: Iterable[Event]) -> Answer:
    """Return the answer of a stream that ends well. Asserts that the events are in a legal order."""
    start: Start | None = None
    stop: Stop | None = None
    usage = Usage()
    opens: dict[int, Open] = {}
    order: list[Open | Search | Image] = []
    cited: dict[int, list[Citation]] = {}
    texts: dict[int, list[bytes]] = {}
    signatures: dict[int, Signature] = {}
    is_open: set[int] = set()
    lost: dict[str, None] = {}
    has_ended = False
    for event in events:
        assert not has_ended, f"nothing follows on the end, but {event} did"
        match event:
            case Start():
                assert start is None
                start = event
            case Open():
                assert start is not None
                assert event.n == len(opens), "blocks are numbered in turn"
                opens[event.n], texts[event.n] = event, []
                order.append(event)
                is_open.add(event.n)
            case Delta():
                assert event.n in is_open
                assert event.text != EMPTY
                texts[event.n].append(event.text)
            case Sign():
                assert event.n in is_open
                signatures[event.n] = event.signature
            case Cite():
                assert event.n in is_open
                assert opens[event.n].kind is Kind.TEXT
                cited.setdefault(event.n, []).append(event.citation)
            case Searched():
                assert not is_open, "a search stands between blocks"
                order.append(event.search)
            case Pictured():
                order.append(event.image)
            case Close():
                is_open.remove(event.n)
            case Used():
                usage = event.usage.over(usage)
            case Lost():
                lost[event.field] = None
            case Finish():
                assert stop is None
                assert not is_open, "all blocks are closed"
                stop = event.stop
            case End():
                has_ended = True
            case Failed():
                raise AssertionError(f"the stream failed: {event.error.message}")
    assert start is not None
    assert stop is not None
    assert has_ended
    blocks: list[AnswerBlock] = []
    for each in order:
        if isinstance(each, Search | Image):
            blocks.append(each)
            continue
        block = _block(each, joined(texts[each.n], b""), signatures.get(each.n))
        if isinstance(block, Text):
            block.cited = tuple(cited.get(each.n, ()))
        blocks.append(block)
    return Answer(start.id, start.model, blocks, stop, usage, lost=tuple(lost))


def _block(opened: Open, text: bytes, signature: Signature | None) -> Block:
    match opened.kind:
        case Kind.TEXT:
            return Text(text, signature=signature)
        case Kind.THINKING:
            return Thinking(text, signature)
        case Kind.REDACTED:
            return Thinking(EMPTY, signature, is_redacted=True)
        case Kind.REFUSAL:
            return Refusal(text)
        case Kind.TOOL:
            return ToolUse(opened.id, opened.name, decoded(text).encode() or b"{}", signature)
