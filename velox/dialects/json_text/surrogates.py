r"""Texts with half a surrogate pair (`"\ud83d"`), which JSON allows, and the decoder refuses.

JavaScript cuts characters so. On the way in, a text that can't be decoded is read again with each lone half replaced by
the escape of a private character, and they are put back in what was read: the upstream, or the client, gets what the
other sent.
On the way out, for clients whose SDK refuses half a character, halves that meet are joined, and others are replaced.

Knows: RFC 8259 §7 and §8.2. Does not know: any dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.json_text.decoding import BOM, decode, decoded_reply, reply_text
from velox.protocol.slices import SLICE_BYTES, concatenated, joined_text, json_slices, text_slices

__all__ = [
    "first_document",
    "keeping_surrogates",
    "masked",
    "reply_keeping_surrogates",
    "unmasked",
    "without_half",
    "without_halves",
]

_T = TypeVar("_T")

# Stands for an escaped backslash, so that each other one begins an escape: no UTF-8 has these bytes.
_BACKSLASH: Final = b"\xff\xff"
_LONE: Final = re.compile(
    rb"\\u[dD](?:([89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])([c-fC-F][0-9a-fA-F]{2}))"
)
_MASK: Final = re.compile(rb"\\u[eE]([0-7][0-9a-fA-F]{2})")
# Each is replaced by a call. Cut texts have one at each cut.
_MOST_HALVES: Final = 10_000
_LOOKS_SO: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# U+E000 to U+E7FF, escaped and not: where a text has those, nothing could be put back.
_TAKEN: Final = re.compile(rb"\\u[eE][0-7]|\xee[\x80-\x9f]")
# A high half at the end of a JSON string: the other one may come with the next piece.
_OPEN_END: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')
_OPEN_END_BYTES: Final = 7
# The private characters in what was read: as many as there were masks, while a table asks for each letter of a text.
_PRIVATE: Final = re.compile("[\ue000-\ue7ff]")
_FROM_PRIVATE: Final = 0xE000 - 0xD800
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
# How msgspec says that something follows on a document, and at which byte, the first of which is 1.
_TRAILING: Final = re.compile(r"trailing characters \(byte ([0-9]+)\)")


def masked(data: bytes) -> bytes | None:
    """Return JSON without lone surrogates; None: it has none, too many, or there is no way."""
    found: list[bytes] = []
    n_halves = 0
    for piece in json_slices(data):
        if _TAKEN.search(piece) is not None:
            return None
        if _LOOKS_SO.search(piece) is not None:
            most = _MOST_HALVES + 1 - n_halves
            without, n = _LONE.subn(_to_mask, _with_plain_escapes(piece), most)
            n_halves += n
            if n == most:
                return None
            found.append(without.replace(_BACKSLASH, rb"\\"))
        else:
            found.append(piece)
    return concatenated(found) if n_halves else None


def _with_plain_escapes(data: bytes) -> bytes:
    """Return JSON in which each backslash begins an escape."""
    return data.replace(rb"\\", _BACKSLASH)


def _to_mask(match: re.Match[bytes]) -> bytes:
    half = match[1] or match[2]
    return b"\\ue%x%b" % (int(half[:1], 16) - 8, half[1:])


def _to_half(match: re.Match[bytes]) -> bytes:
    mask = match[1]
    return b"\\ud%x%b" % (int(mask[:1], 16) + 8, mask[1:])


def _to_letter(match: re.Match[str]) -> str:
    return chr(ord(match[0]) - _FROM_PRIVATE)


def _with_halves(data: bytes) -> bytes:
    return concatenated(
        _MASK.sub(_to_half, _with_plain_escapes(piece)).replace(_BACKSLASH, rb"\\") for piece in json_slices(data)
    )


def unmasked(value: _T) -> _T:
    """Return a struct, or a list of them, with the surrogates of a text that was masked."""
    found = _unmasked(value)
    assert isinstance(found, type(value)), "no type changes"
    return found


def _unmasked(value: object) -> object:
    match value:
        case bytes():
            return _with_halves(value)
        case str():
            return joined_text(_PRIVATE.sub(_to_letter, piece) for piece in text_slices(value))
        case msgspec.Raw():
            return msgspec.Raw(_with_halves(bytes(value)))
        case dict():
            return {_unmasked(name): _unmasked(each) for name, each in value.items()}
        case list():
            return [_unmasked(each) for each in value]
        case tuple():
            return tuple(_unmasked(each) for each in value)
        case msgspec.Struct():
            return type(value)(*(_unmasked(getattr(value, name)) for name in value.__struct_fields__))
    return value


def keeping_surrogates(read: Callable[[bytes], _T], data: bytes) -> _T:
    """Return what `read` makes of JSON, and read it again, masked, if it can't be read."""
    try:
        return read(data)
    except (BadRequestError, BrokenReplyError):
        text = masked(data)
        if text is None:
            raise
    return unmasked(read(text))


def first_document(body: bytes) -> bytes | None:
    """Return the JSON that a reply begins with; None: it begins with none, or nothing follows on it."""
    text = reply_text(body).removeprefix(BOM)
    end = _end_of_first(text)
    if end is None and (half := masked(text)) is not None:
        end = _end_of_first(half)  # a mask is as long as what it stands for
    return None if end is None else text[:end]


def _end_of_first(text: bytes) -> int | None:
    """Return where the JSON ends that a text begins with; None as above."""
    try:
        _ANY.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        found = _TRAILING.search(str(exc))
        return None if found is None else int(found[1]) - 1
    return None


def reply_keeping_surrogates(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Decode an upstream's reply, or an event of it, of which not all may be UTF-8. Raises BrokenReplyError."""
    data = reply_text(data)
    try:
        return decode(decoder, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return keeping_surrogates(lambda text: decoded_reply(decoder, text), data)


def without_halves(data: bytes) -> bytes:
    """Return JSON with the mark of a broken character (U+FFFD) in the place of each lone half."""
    if len(data) > SLICE_BYTES:
        return concatenated(map(_without_halves, json_slices(data)))
    return _without_halves(data)


def _without_halves(data: bytes) -> bytes:
    if b"\\u" not in data or _LOOKS_SO.search(data) is None:
        return data
    return _LONE.sub(rb"\\ufffd", _with_plain_escapes(data)).replace(_BACKSLASH, rb"\\")


def without_half(text: bytes, held: bytes) -> tuple[bytes, bytes]:
    """Return a piece of a text, a JSON string, with what was held of the last one; and what is held of this one."""
    text = b'"' + held + text[1:]
    at = max(len(text) - _OPEN_END_BYTES, 0)
    if _OPEN_END.fullmatch(text, at) is None or (at - len(text[:at].rstrip(b"\\"))) % 2:
        return text, b""
    return text[:at] + b'"', text[at:-1]
