"""Signatures of reasoning, as they travel through a client whose dialect is another provider's.

    velox.PROVIDER.ITEM_ID.VALUE             item id: often empty; VALUE: the rest, as the provider wrote it
    velox.PROVIDER+redacted.ITEM_ID.VALUE    all that there is of a block of redacted reasoning
    velox.none..                             a call that nobody signed

A client keeps the signature as an opaque string and sends it back with its history. The tag says who can use it. Where
a dialect wants base64 (Gemini), the whole of it is encoded once more; `untagged` takes both.

Knows: the form of a tag. Does not know: where a dialect carries it, or who takes which.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from velox.dialects.canonical.model import Signature

__all__ = ["NOBODY", "TAG", "TAG_BASE64", "is_redacted", "is_tagged", "tagged", "tagged_base64", "untagged"]

# How every tagged one begins. It has six bytes, and so is the same in base64, whatever follows.
TAG: Final = "velox."
TAG_BASE64: Final = "dmVsb3gu"
# Who signed what has no signature, where that has to be said: Gemini refuses a call without one.
NOBODY: Final = "none"
_REDACTED: Final = "+redacted"
# "-" and "_" stand for "+" and "/" where a client has read and written it as bytes (google-genai does).
_STANDARD: Final = str.maketrans("-_", "+/")


def tagged(signature: Signature, *, is_redacted: bool = False) -> str:
    """Return the signature with its provider, for a client of another provider's dialect."""
    item_id = (signature.item_id or "").replace("%", "%25").replace(".", "%2E")
    return f"{TAG}{signature.provider}{_REDACTED if is_redacted else ''}.{item_id}.{signature.value}"


def tagged_base64(signature: Signature, *, is_redacted: bool = False) -> str:
    """Return the same in base64, for a dialect that wants that."""
    text = tagged(signature, is_redacted=is_redacted)
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def untagged(text: str, default_provider: str) -> Signature:
    """Read what a client sends. default_provider: who made it where it has no tag: the dialect's own provider."""
    parts = _parts(text)
    if parts is None:
        return Signature(default_provider, text)
    provider, item_id, value = parts
    item_id = item_id.replace("%2E", ".").replace("%25", "%")
    return Signature(provider.removesuffix(_REDACTED), value, item_id or None)


def is_tagged(text: str) -> bool:
    """True for a signature of another provider than the dialect's own."""
    return _parts(text) is not None


def is_redacted(text: str) -> bool:
    """True for a tagged signature of redacted reasoning: it is a block of its own, without a text."""
    parts = _parts(text)
    return parts is not None and parts[0].endswith(_REDACTED)


def _parts(text: str) -> tuple[str, str, str] | None:
    """Return provider, item id and value; None: it has no tag."""
    if text.startswith(TAG_BASE64):
        text = _plain(text)
    if not text.startswith(TAG):
        return None
    parts = text[len(TAG) :].split(".", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


def _plain(text: str) -> str:
    padded = text.translate(_STANDARD).rstrip("=")
    padded += "=" * (-len(padded) % 4)
    try:
        return base64.b64decode(padded, validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return text
