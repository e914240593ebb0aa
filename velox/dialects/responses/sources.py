"""What a search of the web has found, in Responses: items `web_search_call`, and annotations of a text.

    {"type":"web_search_call","action":{"type":"search","query":..,"queries":[..],"sources":[{"type":"url","url":..}]}}
    {"type":"url_citation","start_index":..,"end_index":..,"url":..,"title":..}      characters of the part's text

Knows: the JSON of both, read and written. Does not know: streams.
Source: https://developers.openai.com/api/docs/guides/tools-web-search
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.model import Citation, Search, Source, Span
from velox.dialects.json_text.text import quoted

__all__ = [
    "OWN_SEARCH",
    "SEARCH_CALL",
    "SEARCH_PREFIX",
    "SOURCES",
    "annotation",
    "citation_of",
    "citations_of",
    "n_annotations",
    "search_item",
    "search_of",
]

SEARCH_CALL: Final = "web_search_call"
# How the ids of searches begin that are written here: OpenAI's own have digits of hexadecimal numbers only.
SEARCH_PREFIX: Final = "ws_"
OWN_SEARCH: Final = f"{SEARCH_PREFIX}vx"
# What a request includes to get the pages of a search.
SOURCES: Final = "web_search_call.action.sources"
_NOTHING: Final = (b"", b"null", b"[]")


class _Annotation(msgspec.Struct, gc=False):
    type: str = ""
    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _Page(msgspec.Struct, gc=False):
    url: str | None = None


class _Action(msgspec.Struct, gc=False):
    type: str = ""
    query: str | None = None
    queries: list[str] | None = None
    sources: list[_Page] | None = None


_ANNOTATION: Final = msgspec.json.Decoder(_Annotation)
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_ACTION: Final = msgspec.json.Decoder(_Action)


def n_annotations(raw: Raw) -> int:
    """Return how many annotations a text has, of any kind."""
    return len(_list(raw))


def citations_of(raw: Raw) -> tuple[Citation, ...]:
    """Return those of a text's annotations that name pages of the web."""
    return tuple(found for each in _list(raw) if (found := citation_of(each)) is not None)


def citation_of(raw: Raw) -> Citation | None:
    """Return the citation of one annotation; None: it is of a file, or can't be read."""
    try:
        found = _ANNOTATION.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.type != "url_citation" or not found.url:
        return None
    return Citation(Source(found.url, found.title or ""), found.start_index, found.end_index)


def search_of(action: Raw) -> Search | None:
    """Return the search of an item; None: it opens a page, or can't be read."""
    try:
        found = _ACTION.decode(action)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.type != "search":
        return None
    queries = found.queries or ([found.query] if found.query else [])
    return Search(tuple(queries), tuple(Source(page.url) for page in found.sources or () if page.url))


def annotation(citation: Citation, span: Span | None) -> bytes:
    """Write a citation. span: where it stands; None: nobody has counted."""
    start, end = (citation.start or 0, citation.end or 0) if span is None else (span.start, span.end)
    source = citation.source
    return b'{"type":"url_citation","start_index":%d,"end_index":%d,"url":%b,"title":%b}' % (
        start,
        end,
        quoted(source.url),
        quoted(source.title or source.url),
    )


def search_item(item_id: str, search: Search, status: bytes, *, has_sources: bool) -> bytes:
    """Write a search. has_sources: the client asks for its pages."""
    pages = b""
    if has_sources:
        pages = b',"sources":[%b]' % b",".join(
            [b'{"type":"url","url":%b}' % quoted(each.url) for each in search.sources]
        )
    queries = search.queries or ("",)
    return b'{"id":%b,"type":"web_search_call","status":"%b","action":{"type":"search","query":%b,"queries":%b%b}}' % (
        quoted(item_id),
        status,
        quoted(queries[0]),
        msgspec.json.encode(search.queries),
        pages,
    )


def _list(raw: Raw) -> list[Raw]:
    if bytes(raw) in _NOTHING:
        return []
    try:
        return _RAWS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [raw]
