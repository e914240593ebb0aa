"""Documents of text for models that take only texts: the title and the context that Anthropic's clients give go first.

Knows: the order. Does not know: any dialect.
"""

from __future__ import annotations

from velox.dialects.canonical.model import Document, JsonText, MediaKind
from velox.dialects.json_text.text import is_blank, joined, quoted
from velox.dialects.media.file_types import file_text

__all__ = ["data_text", "document_text"]


def document_text(document: Document) -> JsonText:
    """Return a document whose source is text as one text."""
    return _whole(document, document.source.value)


def data_text(document: Document) -> JsonText | None:
    """Return a document whose source is data of a text as one text; None: it can't be read as one."""
    text = file_text(document.source) if document.source.kind is MediaKind.DATA else None
    return None if text is None else _whole(document, text)


def _whole(document: Document, text: str) -> JsonText:
    title = [quoted(document.name)] if document.name else []
    context = [document.context] if document.context is not None and not is_blank(document.context) else []
    return joined([*title, *context, quoted(text)])
