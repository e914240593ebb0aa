"""A large JSON text is decoded without the contents of its long strings, which are put back into what was decoded.

Nor has it long runs of blanks then (protocol/json/blanks.py), and long lists are decoded part by part (parts.py).

To decode is one call of C, which holds the interpreter's lock: 10 to 25 ms for a text of 24 MiB, and as long for each
field of it that is decoded once more. Here it sees the kilobytes around the strings. Their contents are checked in
slices, by the same decoder; a raw value that had some becomes a view of the text again, without a copy, and a string is
decoded in slices.

Knows: what stands for a string, and where that is in values of msgspec. Does not know: any dialect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from velox.dialects.json_text.parts import PART_BYTES, decode_parts
from velox.protocol.json.blanks import without_long_blanks
from velox.protocol.json.skim import LONG_BYTES, skim
from velox.protocol.slices import SLICE_BYTES, concatenated, contains, copied, finished, joined_text, json_cut

__all__ = ["decode_large"]

_T = TypeVar("_T")
_STRING: Final = msgspec.json.Decoder(str)
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_HASHED_BYTES: Final = 64
_64_BITS: Final = (1 << 64) - 1
_DIGITS: Final = 8
_OFFSET: Final = re.compile(r" \(byte \d+\)")


def decode_large(
    decoder: msgspec.json.Decoder[_T],
    data: bytes | msgspec.Raw,
    long_bytes: int = LONG_BYTES,
    part_bytes: int = PART_BYTES,
) -> _T:
    """Do as decoder.decode() does, and raise as that, but for the error's byte.

    decoder: not of a type that has bytes, which it would decode from base64. long_bytes: strings that are longer are
    left out. part_bytes: see decode_parts().
    """
    text = without_long_blanks(copied(data) if isinstance(data, msgspec.Raw) else data)
    hollow = _HollowText(text, long_bytes)
    if not hollow.spans:
        return decode_parts(decoder, text, part_bytes)
    try:
        found = decode_parts(decoder, hollow.data, part_bytes)
    except msgspec.ValidationError as exc:
        raise msgspec.ValidationError(hollow.shown(exc)) from None
    except msgspec.DecodeError as exc:
        raise msgspec.DecodeError(hollow.shown(exc)) from None
    restored = hollow.restored(found)
    assert isinstance(restored, type(found)), "no type changes"
    return restored


def _string_in(text: bytes, begin: int, end: int) -> str:
    """Read a JSON string in slices. begin, end: of what stands between its quotes. Raises DecodeError."""
    return joined_text(_strings_in(text, begin, end))


def _strings_in(text: bytes, begin: int, end: int) -> Iterator[str]:
    while begin < end:
        stop = end if end - begin <= SLICE_BYTES else json_cut(text, begin, begin + SLICE_BYTES)
        yield _STRING.decode(b'"%b"' % text[begin:stop])
        begin = stop


class _HollowText:
    """A text without its long strings. data: it has a mark for each. spans: where they stand in the text."""

    def __init__(self, text: bytes, long_bytes: int) -> None:
        """Raise DecodeError where one of them is no string."""
        self._text: Final = text
        # Python's hash of bytes has a key of this process, so that nobody can write a text that has it.
        self._nonce: Final = b"%016x" % (hash(text[:_HASHED_BYTES]) & _64_BITS)
        self._mark_bytes: Final = len(self._nonce) + _DIGITS
        skimmed = finished(skim(text, _check, long_bytes))
        # By chance: the text is decoded as it is.
        is_taken = bool(skimmed.cuts) and contains(skimmed.data, self._nonce)
        pieces: list[bytes | bytearray | memoryview] = []
        self.spans: Final[list[tuple[int, int]]] = []
        at = before = 0
        for n, (cut, left_out) in enumerate(() if is_taken else skimmed.cuts):
            pieces += (skimmed.data[at:cut], b"%b%08d" % (self._nonce, n))
            self.spans.append((cut + before, cut + left_out))
            at, before = cut, left_out
        self.data: Final = concatenated([*pieces, memoryview(skimmed.data)[at:]]) if self.spans else text

    def shown(self, exc: msgspec.DecodeError) -> str:
        """Return what an error says, without marks, and without places in what was decoded."""
        return re.sub(f"{self._nonce.decode()}\\d+", "...", _OFFSET.sub("", str(exc)))

    def restored(self, value: object) -> object:
        """Return what was decoded as it would be with all strings. Structs and lists are changed where they are."""
        match value:
            case str():
                return self._string(value)
            case msgspec.Raw():
                return self._raw(value)
            case msgspec.Struct():
                for name in value.__struct_fields__:
                    found = getattr(value, name)
                    restored = self.restored(found)
                    if restored is not found:
                        msgspec.structs.force_setattr(value, name, restored)
            case list():
                for n, each in enumerate(value):
                    value[n] = self.restored(each)
            case dict():
                return {self.restored(name): self.restored(each) for name, each in value.items()}
            case tuple():
                return tuple(self.restored(each) for each in value)
        return value

    def _string(self, value: str) -> str:
        if len(value) != self._mark_bytes or not value.startswith(self._nonce.decode()):
            return value
        return _string_in(self._text, *self.spans[int(value[-_DIGITS:])])

    def _raw(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return the part of the text that a raw value was: as far before and behind the strings as in that."""
        data = b"" + raw
        first, last = data.find(self._nonce), data.rfind(self._nonce)
        if first < 0:
            return raw
        begin, _ = self.spans[self._number(data, first)]
        _, end = self.spans[self._number(data, last)]
        return msgspec.Raw(memoryview(self._text)[begin - first : end + len(data) - last - self._mark_bytes])

    def _number(self, data: bytes, at: int) -> int:
        return int(data[at + len(self._nonce) : at + self._mark_bytes])


def _check(content: bytes, _offset: int) -> None:
    _ANY.decode(b'"%b"' % content)
