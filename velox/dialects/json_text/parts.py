"""A JSON text of very many values is decoded part by part: no call makes all of them.

To decode is one call of C, which holds the interpreter's lock: 10 to 20 ms for 60,000 small objects. Here a long list
is decoded some elements at a time, and what stands around it with `[]` in its place; each part is decoded by the type
that it has there. So a text that is no JSON, or does not fit the type, is refused as at one go.

Knows: the types that msgspec decodes into, and where elements and members end. Does not know: any dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Raw

from velox.protocol.json.value_end import OPENS, QUOTE, ValueEnd

__all__ = ["PART_BYTES", "decode_parts"]

_T = TypeVar("_T")
# To make the smallest objects of so many bytes takes 4 ms.
PART_BYTES: Final = 64 * 1024
# A part is cut again, shorter, where an element of it is longer than a part; this short, elements are taken singly.
_FEW_BYTES: Final = 64
_SHORTER: Final = 8
# Lists in elements of lists in elements: an answer has three. What is deeper is decoded at one go.
_MOST_LEVELS: Final = 5
_MOST_MEMBERS: Final = 10_000  # of one object; behind them no list is looked for
_ARRAY: Final = ord("[")
_OBJECT: Final = ord("{")
_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")
_COLON: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_WORD: Final = re.compile(rb'[^ \t\r\n,:"{}\[\]]*+')
_OFFSET: Final = re.compile(r" \(byte \d+\)")
_PLACE: Final = " - at `$"
_VALUE: Final = "[...]"  # of a dict
_INDEX: Final = re.compile(r"( - at `\$\[)(\d+)")
_NAME: Final = msgspec.json.Decoder(str)


def decode_parts(
    decoder: msgspec.json.Decoder[_T],
    text: bytes,
    part_bytes: int = PART_BYTES,
    make: Callable[..., msgspec.json.Decoder[Any]] = msgspec.json.Decoder,
) -> _T:
    """Do as decoder.decode() does, and raise as that, but for the error's byte.

    part_bytes: what is shorter is decoded at one go. make: makes the decoders of parts.
    """
    if len(text) <= part_bytes:
        return decoder.decode(text)
    parts = _Parts(text, part_bytes, partial(make, strict=decoder.strict))
    try:
        return cast(_T, parts.decoded(decoder.type, 0, len(text), 0))
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as exc:
        raise msgspec.DecodeError(_OFFSET.sub("", str(exc))) from None


class _Member:
    """A long list of an object, or an object in it that has some. begin, end: of the value. inner: () of a list.

    is_last: no other member of this name follows, which would count.
    """

    __slots__ = ("begin", "end", "inner", "is_last", "name")

    def __init__(self, name: str, begin: int, end: int, inner: Sequence[_Member]) -> None:
        self.name: Final = name
        self.begin: Final = begin
        self.end: Final = end
        self.inner: Final = inner
        self.is_last = True


class _Parts:
    """One text. Its methods raise as msgspec does."""

    def __init__(self, text: bytes, part_bytes: int, make: Callable[..., msgspec.json.Decoder[Any]]) -> None:
        self._text: Final = text
        self._part_bytes: Final = part_bytes
        self._make: Final = make
        self._decoders: Final[dict[object, msgspec.json.Decoder[Any]]] = {}

    def decoded(self, kind: object, begin: int, end: int, level: int) -> object:
        """Decode a value. kind: its type. level: how many lists it is in."""
        if end - begin > self._part_bytes and level < _MOST_LEVELS:
            at = _after_blanks(self._text, begin, end)
            first = self._text[at] if at < end else 0
            element = _element_of(kind) if first == _ARRAY else None
            if element is not None:
                found: object = self._list(kind, element, at, end, level)
            elif first == _OBJECT:
                found = self._object(kind, at, end, level)
            else:
                return self._decode(kind, self._text[begin:end])
            return self._raw(begin, end) if kind is Raw else found
        return self._decode(kind, self._text[begin:end])

    def _decode(self, kind: object, data: bytes) -> object:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = self._make(kind)
        return decoder.decode(data)

    def _raw(self, begin: int, end: int) -> Raw:
        return Raw(memoryview(self._text)[begin:end])

    # -- lists ----------------------------------------------------------------------------------------

    def _list(self, kind: object, element: object, at: int, end: int, level: int) -> list[object]:
        """Decode a list. at: its bracket. Of a raw one nothing is returned."""
        found: list[object] = []
        begin, n_parts, n_empty, is_last = at + 1, 0, 0, False
        while not is_last:
            stop, is_last = self._part_end(begin, end, self._part_bytes)
            size = self._part_bytes
            while stop < 0 and size > _FEW_BYTES:
                size //= _SHORTER
                stop, is_last = self._part_end(begin, end, size)
            if stop < 0:
                at = _after_blanks(self._text, begin, end)
                stop, is_last = self._comma(at, self._value_end(at, end), end)
                one = self._inside(f"[{len(found)}]", element, at, stop, level + 1)
                if kind is not Raw:
                    found.append(one)
            else:
                some = self._some(kind, begin, stop, len(found))
                if isinstance(some, list):
                    found += some
                n_empty += _after_blanks(self._text, begin, stop) == stop
            n_parts += 1
            begin = stop + 1
        if n_empty and n_parts > 1:
            raise _malformed()
        if _after_blanks(self._text, begin, end) != end:
            raise _malformed()
        return found

    def _some(self, kind: object, begin: int, end: int, n_before: int) -> object:
        """Decode elements of a list. n_before: of it."""
        try:
            return self._decode(kind, b"[%b]" % self._text[begin:end])
        except msgspec.ValidationError as exc:
            told = _INDEX.sub(lambda found: f"{found[1]}{int(found[2]) + n_before}", str(exc), 1)
            raise msgspec.ValidationError(told) from None

    def _inside(self, place: str, kind: object, begin: int, end: int, level: int) -> object:
        """Decode a value that stands in another one. place: as errors name it."""
        try:
            return self.decoded(kind, begin, end, level)
        except msgspec.ValidationError as exc:
            message, _, rest = str(exc).partition(_PLACE)
            raise msgspec.ValidationError(f"{message}{_PLACE}{place}{rest or '`'}") from None

    def _part_end(self, begin: int, end: int, size: int) -> tuple[int, bool]:
        """Return where elements of so many bytes at least end: at a comma, or at the list's bracket, and whether it is
        that. -1: one of them is longer than a part.
        """
        text, stop = self._text, min(begin + size, end)
        value = ValueEnd()
        value.begin(_ARRAY)
        value.take(text[begin:stop])
        found = value.find(0)
        if found >= 0:
            return begin + found - 1, True
        _check(value)
        at = stop
        if not value.is_between:
            value.rise()
            at = self._find(value, stop, end, begin + 2 * self._part_bytes)
            return (-1, False) if at < 0 else self._comma(begin, at, end)
        at = _after_blanks(text, stop, end)
        before = text[begin:stop].rstrip()
        if before.endswith(b","):
            return begin + len(before) - 1, False
        if not before and text[at : at + 1] in (b'"', b"{", b"["):
            return -1, False
        return self._comma(begin, at, end)

    def _comma(self, begin: int, at: int, end: int) -> tuple[int, bool]:
        """Return where the comma or bracket stands behind an element; and whether it is a bracket."""
        word = _WORD.match(self._text, at, end)
        assert word is not None, "it may be empty"
        at = _after_blanks(self._text, word.end(), end)
        mark = self._text[at : min(at + 1, end)]
        if mark not in (b",", b"]"):
            raise _malformed()
        return at, mark == b"]"

    def _value_end(self, at: int, end: int) -> int:
        """Return where a value ends that begins there."""
        first = self._text[at] if at < end else 0
        if first == QUOTE or first in OPENS:
            value = ValueEnd()
            value.begin(first)
            return self._find(value, at + 1, end, end)
        word = _WORD.match(self._text, at, end)
        assert word is not None, "it may be empty"
        return word.end()

    def _find(self, value: ValueEnd, at: int, end: int, most: int) -> int:
        """Return where a value ends that is open; -1: behind `most`, or so."""
        while at < min(end, most):
            stop = min(at + self._part_bytes, end)
            value.take(self._text[at:stop])
            found = value.find(0)
            if found >= 0:
                return at + found
            _check(value)
            at = stop
        if at < end:
            return -1
        raise _malformed()

    # -- objects --------------------------------------------------------------------------------------

    def _object(self, kind: object, begin: int, end: int, level: int) -> object:
        """Decode an object without its long lists, and those by themselves."""
        members = self._members(begin, end, level)
        pieces: list[bytes] = []
        at = begin
        for each in _lists(members):
            pieces += (self._text[at : each.begin], b"[]")
            at = each.end
        found = self._decode(kind, b"".join((*pieces, self._text[at:end])))
        self._put(found, kind, members, level)
        return found

    def _members(self, begin: int, end: int, level: int) -> Sequence[_Member]:
        """Return the members of an object that are long lists, or have some. begin: its bracket."""
        found: list[_Member] = []
        last: dict[str, _Member] = {}  # by name
        at = begin + 1
        for _ in range(_MOST_MEMBERS):
            opening = _after_blanks(self._text, at, end)
            if self._text[opening : min(opening + 1, end)] != b'"':
                break
            closing = self._value_end(opening, end)
            colon = _COLON.match(self._text, closing, end)
            if colon is None:
                break
            value = colon.end()
            at = self._value_end(value, end)
            name = _NAME.decode(self._text[opening:closing])
            if name in last:
                last[name].is_last = False
            if at - value > self._part_bytes and (first := self._text[value]) in OPENS and level < _MOST_LEVELS:
                inner = self._members(value, at, level + 1) if first == _OBJECT else ()
                if inner or first == _ARRAY:
                    last[name] = _Member(name, value, at, inner)
                    found.append(last[name])
            at = _after_blanks(self._text, at, end)
            if self._text[at : min(at + 1, end)] != b",":
                break
            at += 1
        return found

    def _put(self, value: object, kind: object, members: Sequence[_Member], level: int) -> None:
        """Decode long lists, and put them into what was decoded without them."""
        fields = {}
        if isinstance(value, msgspec.Struct):
            fields = {each.encode_name: each for each in msgspec.structs.fields(type(value))}
        for each in members:
            name, place = each.name, f".{each.name}"
            kept: object = None
            kept_kind: object = Raw
            if isinstance(value, dict):
                place = _VALUE
                if each.is_last:
                    kept, kept_kind = value.get(name), _value_of(kind)
            elif each.is_last and name in fields:
                kept, kept_kind = getattr(value, fields[name].name), fields[name].type
            if isinstance(kept, msgspec.Struct | dict) and each.inner:
                self._put(kept, kept_kind, each.inner, level)
                continue
            if kept is None or isinstance(kept, Raw):
                kept_kind = Raw  # nobody reads it, or as it is
            found = self._inside(place, kept_kind, each.begin, each.end, level)
            if kept is None:
                continue
            if isinstance(value, dict):
                value[name] = found
            else:
                msgspec.structs.force_setattr(cast(msgspec.Struct, value), fields[name].name, found)


def _lists(members: Sequence[_Member]) -> Iterator[_Member]:
    for each in members:
        if each.inner:
            yield from _lists(each.inner)
        else:
            yield each


def _kinds(kind: object) -> tuple[object, ...]:
    """Return the types that a value may have."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _element_of(kind: object) -> object | None:
    """Return the type of a list's elements; None: no list fits."""
    for each in _kinds(kind):
        if each is Raw or each is Any:
            return each
        if get_origin(each) is list:
            return cast(object, get_args(each)[0])
    return None


def _value_of(kind: object) -> object:
    """Return the type of a dict's values."""
    for each in _kinds(kind):
        if get_origin(each) is dict:
            return cast(object, get_args(each)[1])
    return Any


def _after_blanks(text: bytes, at: int, end: int) -> int:
    found = _BLANKS.match(text, at, end)
    return at if found is None else found.end()


def _check(value: ValueEnd) -> None:
    if value.is_broken:
        raise _malformed()


def _malformed() -> msgspec.DecodeError:
    return msgspec.DecodeError("JSON is malformed: a string, a list or an object is not closed, or closed twice")
