"""Documents of text for models that take only texts: the title and the context that Anthropic's clients give go first.

Knows: the order. Does not know: any dialect.
"""

from __future__ import annotations

from velox.dialects.form import Document, JsonText
from velox.dialects.text import is_blank, joined, quoted

__all__ = ["document_text"]


def document_text(document: Document) -> JsonText:
    """Return a document whose source is text as one text."""
    title = [quoted(document.name)] if document.name else []
    context = [document.context] if document.context is not None and not is_blank(document.context) else []
    return joined([*title, *context, quoted(document.source.value)])
