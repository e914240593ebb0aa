"""The pages of the web that an answer names, in Chat Completions: annotations of a message.

    {"type":"url_citation","url_citation":{"start_index":..,"end_index":..,"url":..,"title":..}}

The indexes are in characters of the message's content. Some servers have 0 for both, where they don't know the place.

Knows: the JSON, read and written. Does not know: streams.
Source: https://developers.openai.com/api/docs/guides/tools-web-search; https://openrouter.ai/docs/features/web-search
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from velox.dialects.canonical.model import Citation, Source, Span
from velox.dialects.json_text.text import quoted

__all__ = ["NOTHING", "annotation", "citations_of", "n_annotations"]

# What says that a field is not there.
NOTHING: Final = (Raw(), Raw(b"null"), Raw(b"[]"), Raw(b"{}"))


class _Page(msgspec.Struct, gc=False):
    url: str = ""
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _Annotation(msgspec.Struct, gc=False):
    type: str = ""
    url_citation: _Page | None = None


_LIST: Final = msgspec.json.Decoder(list[Raw])
_ANNOTATION: Final = msgspec.json.Decoder(_Annotation)


def n_annotations(raw: Raw) -> int:
    """Return how many annotations a message has, of any kind."""
    return len(_list(raw))


def citations_of(raw: Raw) -> tuple[Citation, ...]:
    """Return those of a message's annotations that name pages of the web."""
    found = []
    for each in _list(raw):
        try:
            page = _ANNOTATION.decode(each).url_citation
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if page is not None and page.url:
            found.append(Citation(Source(page.url, page.title or ""), page.start_index, page.end_index))
    return tuple(found)


def annotation(citation: Citation, span: Span | None, index: int | None = None) -> bytes:
    """Write a citation. span: where it stands; None: nobody has counted.

    index: its number, in a stream: OpenAI's SDKs put the lists of chunks together by it, and fail without one.
    """
    start, end = citation.start or 0, citation.end or 0
    if span is not None:
        start, end = span.before + span.start, span.before + span.end
    source = citation.source
    page = b'{"start_index":%d,"end_index":%d,"url":%b,"title":%b}'
    number = b"" if index is None else b'"index":%d,' % index
    return b'{%b"type":"url_citation","url_citation":%b}' % (
        number,
        page % (start, end, quoted(source.url), quoted(source.title or source.url)),
    )


def _list(raw: Raw) -> list[Raw]:
    if raw in NOTHING:
        return []
    try:
        return _LIST.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [raw]
