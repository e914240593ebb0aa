"""How JSON of a client or an upstream is decoded: what is wrong with it becomes an error of dialects' own.

Knows: msgspec's errors. Does not know: any dialect's fields.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.json_text.large import decode_large
from velox.dialects.json_text.parts import PART_BYTES
from velox.protocol.reply_body import BOM
from velox.protocol.slices import SLICE_BYTES, concatenated, copied, is_ascii, utf8_fault, utf8_slices
from velox.protocol.usage.token_usage import Bill
from velox.protocol.usage.tokens import bill_of

__all__ = [
    "BOM",
    "bill_in",
    "checked_text",
    "decode",
    "decoded_reply",
    "decoded_request",
    "is_given",
    "object_in",
    "reply_text",
]

_T = TypeVar("_T")
_MANY: Final = 8_000  # values, at most, take up to 2 ms
_NULL: Final = msgspec.Raw(b"null")
_PLACE: Final = " - at `$"


def checked_text(body: bytes | bytearray) -> bytes:
    """Return a request's body, without the byte order mark that some clients put before it (RFC 8259 §8.1).

    Raises BadRequestError where it is not UTF-8, which no decoder checks in raw values.
    """
    if len(body) <= SLICE_BYTES and body.isascii():
        return bytes(body)
    if not is_ascii(body):
        fault = utf8_fault(body)
        if fault is not None:
            raise BadRequestError(f"the body is not UTF-8: byte {fault} is wrong")
        if body.startswith(BOM):
            return bytes(body[len(BOM) :])
    return copied(body)


def decode(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw) -> _T:
    """Do as decoder.decode() does; of a large text no call has all of it. Raises as that."""
    if len(data) <= PART_BYTES or (len(data) <= SLICE_BYTES and bytes(data).count(b",") <= _MANY):
        return decoder.decode(data)
    return decode_large(decoder, data)


def decoded_request(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, path: str = "") -> _T:
    """Decode a request, or a raw field of it. path: of the field, "" for the whole body. Raises BadRequestError."""
    try:
        return decode(decoder, body)
    except msgspec.ValidationError as exc:
        message, _, place = str(exc).partition(_PLACE)
        param = path + place.removesuffix("`").replace("[...]", "")
        raise BadRequestError(message[:1].lower() + message[1:], param.removeprefix(".")) from None
    except msgspec.DecodeError as exc:
        raise BadRequestError(f"the body is not valid JSON: {exc}", path) from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply", path) from None


def decoded_reply(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw) -> _T:
    """Decode an upstream's reply, or an event or a raw field of it. Raises BrokenReplyError."""
    try:
        return decode(decoder, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BrokenReplyError(f"the upstream's reply can't be read: {exc}") from None


def reply_text(data: bytes) -> bytes:
    """Return a reply, or an event of it, as UTF-8: a server that cuts a character shows a mark in its place."""
    if (len(data) <= SLICE_BYTES and data.isascii()) or utf8_fault(data) is None:
        return data
    return concatenated(piece.decode("utf-8", "replace").encode() for piece in utf8_slices(data))


def is_given(raw: msgspec.Raw) -> bool:
    """Tell whether a raw field is there, and not null."""
    return bool(raw) and raw != _NULL


def bill_in(usage: msgspec.Raw) -> Bill | None:
    """Return what a usage says that its call is billed; None: it does not."""
    return bill_of(object_in(usage)) if bytes(usage).find(b'"cost') >= 0 else None


def object_in(raw: msgspec.Raw) -> dict[str, object]:
    """Return an object that is read only to count what it says; empty: it is none, or can't be read."""
    if not is_given(raw):
        return {}
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
