"""JSON strings that are never decoded: how they are looked at, joined, made and read where that is needed after all.

Knows: RFC 8259 §7. Does not know: what a text is for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import msgspec
import orjson

from velox.dialects.canonical.model import JsonText
from velox.protocol.slices import SLICE_BYTES, concatenated, copied, json_slices, text_slices

__all__ = ["EMPTY", "NEWLINES", "decoded", "is_blank", "joined", "quoted", "raw_text"]

EMPTY: Final[JsonText] = b'""'
# Between two texts that become one.
NEWLINES: Final = b"\\n\\n"
_QUOTE: Final = ord('"')
# It writes the same bytes as orjson, in half the time for texts of a few letters.
_ENCODED: Final = msgspec.json.Encoder().encode
# What JSON writes white space with: a space, or one of the escapes.
_BLANK_LETTERS: Final = b' "\\nrtfu029aAdD'
_BLANKS: Final = " \n\r\t\f\u00a0"
_LOOKED_AT: Final = 64
_LONGEST_BLANK: Final = 64 * 1024
_LONG: Final = SLICE_BYTES + len(EMPTY)


def quoted(text: str) -> JsonText:
    """Write a text as a JSON string. A lone surrogate is escaped, as JSON allows it and UTF-8 does not."""
    if len(text) > SLICE_BYTES:
        return concatenated([b'"', *(quoted(piece)[1:-1] for piece in text_slices(text)), b'"'])
    try:
        return _ENCODED(text)
    except (TypeError, UnicodeEncodeError):
        return json.dumps(text).encode("ascii")


def decoded(text: JsonText) -> str:
    """Read a JSON string. Lone surrogates stay what they are. Raises ValueError if it is none."""
    if len(text) > _LONG and text[0] == text[-1] == _QUOTE:
        return "".join([decoded(b'"%b"' % piece) for piece in json_slices(text[1:-1])])
    try:
        found: object = orjson.loads(text)
    except ValueError:
        found = json.loads(text)
    if not isinstance(found, str):
        raise ValueError("not a JSON string")
    return found


def is_blank(text: JsonText) -> bool:
    """Say whether a text is empty, or has only white space. One of over 64 KiB is not looked through: it has more."""
    # Most texts begin with a letter. No pattern: its engine would keep 128 bytes for each space.
    if text[1] not in _BLANK_LETTERS or len(text) > _LONGEST_BLANK or text[:_LOOKED_AT].strip(_BLANK_LETTERS):
        return False
    return not decoded(text).strip(_BLANKS)


def joined(texts: Iterable[JsonText], between: bytes = NEWLINES) -> JsonText:
    """Make one text of several. between: as it stands inside a JSON string."""
    texts = list(texts)
    return texts[0] if len(texts) == 1 else concatenated([b'"', between.join([text[1:-1] for text in texts]), b'"'])


def raw_text(raw: msgspec.Raw) -> JsonText | None:
    """Return a field of a struct that is a JSON string; None: it is something else."""
    if not raw:
        return None
    text = b"" + raw if len(raw) <= SLICE_BYTES else copied(raw)  # half the time of bytes(raw)
    return text if text[0] == _QUOTE else None  # an index takes half the time of startswith()
