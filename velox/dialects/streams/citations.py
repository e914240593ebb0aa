"""Where the words stand that an answer cites a page of the web for: in characters, and in bytes.

    Anthropic   a citation is of all of its block: https://docs.claude.com/en/docs/build-with-claude/citations
    OpenAI      start_index and end_index in characters: of a part of Responses, of all of a message of Chat.
                They are those of a link that stands in the text, behind the words that it is the source of
    Google      startIndex and endIndex of a segment in bytes of UTF-8: https://ai.google.dev/api/generate-content

Readers give a citation in characters of its block, or for all of it. A whole answer has its texts at hand; a stream's
are kept only where the request asks for a search (CitedTexts): to count them costs more than all else that is done.

Knows: how to count. Does not know: how a dialect writes a citation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import (
    AnswerBlock,
    Citation,
    Cite,
    Close,
    Delta,
    Event,
    JsonText,
    Kind,
    Open,
    Span,
    Text,
)
from velox.dialects.json_text.text import decoded, joined
from velox.dialects.streams.in_turn import MOST_WAITING_BYTES

__all__ = ["CitedTexts", "bytes_to_characters", "cited_pieces", "n_bytes", "spans_of"]


def n_bytes(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def bytes_to_characters(text: str, offset: int) -> int:
    """Return the offset in characters of one in bytes of UTF-8.

    One within a character is that character's; none is over the end.
    """
    if text.isascii():
        return min(max(offset, 0), len(text))
    before = text.encode("utf-8", "surrogatepass")[: max(offset, 0)]
    return len(before.decode("utf-8", "ignore"))


def spans_of(blocks: Sequence[AnswerBlock]) -> list[list[Span]]:
    """Return for each block the spans of its citations, in their order."""
    if not any(isinstance(block, Text) and block.cited for block in blocks):
        return [[] for _ in blocks]  # nearly all answers: nothing to count
    found: list[list[Span]] = []
    counter = _Counter()
    for block in blocks:
        spans: list[Span] = []
        if isinstance(block, Text):
            if block.cited:
                text = decoded(block.text)
                spans = [counter.span(text, each) for each in block.cited]
            counter.add(block.text)
        found.append(spans)
    return found


def cited_pieces(text: str, cited: Iterable[Citation]) -> list[tuple[str, tuple[Citation, ...]]]:
    """Cut a text into pieces of which each has all of its citations, as Anthropic's blocks do.

    What stands before a citation's words has none, but where these are a link: it is the source of what is before it.
    """
    pieces: list[tuple[str, tuple[Citation, ...]]] = []
    at = 0
    bounds = [(*_bounds(text, each), each) for each in cited]
    for start, end, each in sorted(bounds, key=lambda bound: (bound[1], bound[0])):
        if end <= at and pieces:
            words, others = pieces[-1]
            pieces[-1] = (words, (*others, each))
            continue
        start = max(start, at)
        if start > at and not _is_link(text[start:end], each):
            pieces.append((text[at:start], ()))
            at = start
        pieces.append((text[at:end], (each,)))
        at = end
    if at < len(text) or not pieces:
        pieces.append((text[at:], ()))
    return pieces


def _bounds(text: str, citation: Citation) -> tuple[int, int]:
    """Return start and end of a citation's words. From 0 to 0: of all, as no place is known."""
    start = 0 if citation.start is None else min(max(citation.start, 0), len(text))
    end = len(text) if citation.end is None else min(max(citation.end, start), len(text))
    return (0, len(text)) if start == end == 0 else (start, end)


def _is_link(words: str, citation: Citation) -> bool:
    return citation.source.url.split("?")[0] in words


class _Counter:
    """Of the texts of one answer. Characters and bytes of those before the block that is asked about."""

    __slots__ = ("_bytes", "_characters")

    def __init__(self) -> None:
        self._bytes = 0
        self._characters = 0

    def add(self, text: JsonText) -> None:
        """Count a block that is whole."""
        said = decoded(text)
        self._characters += len(said)
        self._bytes += n_bytes(said)

    def span(self, text: str, citation: Citation) -> Span:
        """Return where a citation stands in a block with that text."""
        start, end = _bounds(text, citation)
        before, words = text[:start], text[start:end]
        first = self._bytes + n_bytes(before)
        return Span(start, end, self._characters, first, first + n_bytes(words), words)


class CitedTexts:
    """The texts of a stream, kept as they come: each citation gets its span."""

    __slots__ = ("_blocks", "_counter", "_n_kept")

    def __init__(self) -> None:
        self._counter: Final = _Counter()
        self._blocks: Final[dict[int, _Block]] = {}  # that are open
        self._n_kept = 0

    def __repr__(self) -> str:
        return f"<CitedTexts {self._n_kept} bytes>"

    def placed(self, events: list[Event]) -> list[Event]:
        """Return the events with the spans of their citations. Raises BrokenReplyError: the text is over a bound.

        A citation of all of its block waits for the block's end: Anthropic streams it before the words.
        """
        found: list[Event] = []
        for event in events:
            if isinstance(event, Open) and event.kind is Kind.TEXT:
                self._blocks[event.n] = _Block()
            elif isinstance(event, Delta | Cite | Close):
                block = self._blocks.get(event.n)
                if block is None:
                    pass  # not of a text
                elif isinstance(event, Delta):
                    self._n_kept += len(event.text)
                    if self._n_kept > MOST_WAITING_BYTES:
                        raise BrokenReplyError(f"over {MOST_WAITING_BYTES} bytes of an answer can't be cited")
                    block.texts.append(event.text)
                elif isinstance(event, Cite):
                    if event.citation.end is None:
                        block.waiting.append(event)
                        continue
                    event.span = self._counter.span(decoded(joined(block.texts, b"")), event.citation)
                else:
                    del self._blocks[event.n]
                    text = joined(block.texts, b"")
                    for each in block.waiting:
                        each.span = self._counter.span(decoded(text), each.citation)
                        found.append(each)
                    self._counter.add(text)
            found.append(event)
        return found


class _Block:
    """A text that is open. waiting: citations of all of it."""

    __slots__ = ("texts", "waiting")

    def __init__(self) -> None:
        self.texts: Final[list[JsonText]] = []
        self.waiting: Final[list[Cite]] = []
