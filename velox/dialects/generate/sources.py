"""The pages of the web that Gemini's answers rest on: `groundingMetadata` and `citationMetadata` of a candidate.

    {"webSearchQueries": [..], "groundingChunks": [{"web": {"uri", "title"}}],
     "groundingSupports": [{"segment": {"startIndex", "endIndex", "text"}, "groundingChunkIndices": [0]}]}
    {"citationSources": [{"startIndex", "endIndex", "uri"}]}        Vertex AI: "citations", with "title"

Indexes are in bytes of UTF-8, the end is exclusive, and 0 is left out. Google counts from the beginning of a part, and
in streams from that of the whole text. A segment's own text is looked for where the bytes say another.

Knows: the JSON, read and written. Does not know: streams.
Source: https://ai.google.dev/api/generate-content (GroundingMetadata, Segment, CitationMetadata).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from velox.dialects.canonical.model import Citation, Search, Source
from velox.dialects.generate.wire import Candidate, is_absent
from velox.dialects.json_text.text import quoted
from velox.dialects.streams.citations import bytes_to_characters, n_bytes

__all__ = ["CitedPlace", "Grounding", "grounding_field", "has_sources", "part_place"]


class _Page(msgspec.Struct, gc=False):
    uri: str | None = None
    title: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    web: _Page | None = None


class _Segment(msgspec.Struct, rename="camel", gc=False):
    start_index: int | None = None
    end_index: int | None = None
    text: str | None = None


class _Support(msgspec.Struct, rename="camel", gc=False):
    segment: _Segment | None = None
    grounding_chunk_indices: list[int] | None = None


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    web_search_queries: list[str] | None = None
    grounding_chunks: list[_Chunk] | None = None
    grounding_supports: list[_Support] | None = None


class _Recited(msgspec.Struct, rename="camel", gc=False):
    start_index: int | None = None
    end_index: int | None = None
    uri: str | None = None
    title: str | None = None


class _Citations(msgspec.Struct, rename="camel", gc=False):
    citation_sources: list[_Recited] | None = None
    citations: list[_Recited] | None = None


_METADATA: Final = msgspec.json.Decoder(_Metadata)
_CITATIONS: Final = msgspec.json.Decoder(_Citations)
_NO_SEGMENT: Final = _Segment()


class Grounding:
    """What an answer rests on, as far as it has been told. is_partial: something of it can't be carried over."""

    __slots__ = ("_found", "_queries", "_sources", "is_partial")

    def __init__(self) -> None:
        self._queries: Final[dict[str, None]] = {}
        self._sources: Final[dict[Source, None]] = {}
        self._found: Final[dict[tuple[Source, int, int, str], None]] = {}
        self.is_partial = False

    def __repr__(self) -> str:
        return f"<Grounding {len(self._sources)} pages, {len(self._found)} citations>"

    def add(self, candidate: Candidate) -> None:
        """Take what a candidate says. Events of a stream may say the same again."""
        try:
            if not is_absent(candidate.grounding_metadata):
                self._add_metadata(_METADATA.decode(candidate.grounding_metadata))
            if not is_absent(candidate.citation_metadata):
                found = _CITATIONS.decode(candidate.citation_metadata)
                for each in found.citation_sources or found.citations or ():
                    if each.uri is None:
                        self.is_partial = True
                    else:
                        self._note(Source(each.uri, each.title or ""), _Segment(each.start_index, each.end_index))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.is_partial = True

    def _add_metadata(self, metadata: _Metadata) -> None:
        self._queries.update(dict.fromkeys(metadata.web_search_queries or ()))
        pages: list[Source | None] = []
        for chunk in metadata.grounding_chunks or ():
            page = chunk.web
            source = None if page is None or page.uri is None else Source(page.uri, page.title or "")
            self.is_partial |= source is None  # a file or a place of a map
            pages.append(source)
        self._sources.update((page, None) for page in pages if page is not None)
        for support in metadata.grounding_supports or ():
            for index in support.grounding_chunk_indices or ():
                source = pages[index] if 0 <= index < len(pages) else None
                if source is not None:
                    self._note(source, support.segment or _NO_SEGMENT)

    def _note(self, source: Source, segment: _Segment) -> None:
        self._found[source, segment.start_index or 0, segment.end_index or 0, segment.text or ""] = None

    @property
    def search(self) -> Search | None:
        """The search, if there was one."""
        if not (self._queries or self._sources):
            return None
        return Search(tuple(self._queries), tuple(self._sources))

    def citations(self, texts: Sequence[str]) -> list[list[Citation]]:
        """Return the citations of each of an answer's texts, in their order."""
        whole = "".join(texts)
        data = whole.encode("utf-8", "surrogatepass")
        cited: list[list[Citation]] = [[] for _ in texts]
        for source, first, last, words in self._found:
            start, end = bytes_to_characters(whole, first), bytes_to_characters(whole, last)
            if words and data[first:last] != words.encode("utf-8", "surrogatepass"):
                at = whole.find(words)
                if at >= 0:
                    start, end = at, at + len(words)
            before = 0
            for n, text in enumerate(texts):
                if end <= before + len(text) or n == len(texts) - 1:
                    cited[n].append(Citation(source, max(start - before, 0), max(end - before, 0)))
                    break
                before += len(text)
        return cited


def has_sources(candidate: Candidate) -> bool:
    """Return True if an answer says what it rests on."""
    return not (is_absent(candidate.grounding_metadata) and is_absent(candidate.citation_metadata))


class CitedPlace(NamedTuple):
    """A citation as it is written. first, last: bytes; words: that are cited; part: its number, None: not said."""

    source: Source
    first: int
    last: int
    words: str
    part: int | None = None


def grounding_field(searches: Iterable[Search], places: Iterable[CitedPlace], others: Iterable[Source] = ()) -> bytes:
    """Write the field, b"" for nothing to say. others: pages that are cited nobody knows where."""
    queries: dict[str, None] = {}
    numbers: dict[str, int] = {}
    pages: list[bytes] = []

    def number(source: Source) -> int:
        found = numbers.get(source.url)
        if found is None:
            found = numbers[source.url] = len(pages)
            pages.append(b'{"web":{"uri":%b,"title":%b}}' % (quoted(source.url), quoted(source.title or source.url)))
        return found

    for search in searches:
        queries.update(dict.fromkeys(search.queries))
        for source in search.sources:
            number(source)
    supports: dict[tuple[int | None, int, int, str], dict[int, None]] = {}
    for place in places:
        supports.setdefault((place.part, place.first, place.last, place.words), {})[number(place.source)] = None
    for source in others:
        number(source)
    if not (queries or pages):
        return b""
    written = [
        b'{"segment":{%b"startIndex":%d,"endIndex":%d,"text":%b},"groundingChunkIndices":%b}'
        % (
            b'"partIndex":%d,' % part if part else b"",
            first,
            last,
            quoted(words),
            msgspec.json.encode(list(indices)),
        )
        for (part, first, last, words), indices in supports.items()
    ]
    return b',"groundingMetadata":{"webSearchQueries":%b,"groundingChunks":[%b],"groundingSupports":[%b]}' % (
        msgspec.json.encode(list(queries)),
        b",".join(pages),
        b",".join(written),
    )


def part_place(text: str, start: int, end: int, source: Source, part: int) -> CitedPlace:
    """Return where a citation stands within its part. start, end: in characters."""
    first = n_bytes(text[:start])
    words = text[start:end]
    return CitedPlace(source, first, first + n_bytes(words), words, part)
