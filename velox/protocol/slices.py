"""Long work in slices and steps, so that no call holds the interpreter's lock, or the event loop, for long.

A call of C gives the lock back when it returns, and one that copies 50 MB returns after 5 to 20 ms: most of them are
spent on getting memory. Between two slices other threads have their turn (gateway/cpu_work.py).

    concatenated(), drained(), joined_text()   one text of many pieces
    copied()                    one text of another kind of bytes
    text_slices()               a text in slices that each can be changed alone, if what is changed has one letter
    utf8_slices()               the same of UTF-8
    json_slices()               the same of JSON, if what is changed are escapes, also two that are one character
    json_cut()                  where such a slice ends
    utf8_fault()                whether a text is UTF-8
    is_ascii()                  whether it is ASCII
    as_base64(), from_base64()
    contains()                  whether a text stands in another one
    let_go()                    a list is emptied
    finished()                  all steps of a generator, where nothing else waits for a turn

Knows: memory, UTF-8, escapes of JSON, base64. Does not know: what is done to a slice.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

__all__ = [
    "SLICE_BYTES",
    "as_base64",
    "concatenated",
    "contains",
    "copied",
    "drained",
    "finished",
    "from_base64",
    "is_ascii",
    "joined_text",
    "json_cut",
    "json_slices",
    "let_go",
    "text_slices",
    "utf8_fault",
    "utf8_slices",
]

_T = TypeVar("_T")
# A copy takes a tenth of a millisecond, a pattern of some letters two milliseconds.
SLICE_BYTES: Final = 256 * 1024
_MOST_PIECES: Final = 4_096  # at one go
_MOST_FREED: Final = 4_096  # at one go: some objects each, in half a millisecond
_ESCAPE_BYTES: Final = len(rb"\u0041")
# Bytes of a character of UTF-8 behind its first one: how they begin, and how many there may be.
_BEHIND_FIRST: Final = 0b1000_0000
_IS_BEHIND_FIRST: Final = 0b1100_0000
_MOST_BEHIND_FIRST: Final = 3
_BACKSLASH: Final = b"\\"
_HIGH: Final = b"89abAB"
_LOW: Final = b"cdefCDEF"


def concatenated(pieces: Iterable[bytes | bytearray | memoryview], slice_bytes: int = SLICE_BYTES) -> bytes:
    """Return all of it as one text, made in slices."""
    if isinstance(pieces, list) and len(pieces) <= _MOST_PIECES and sum(map(len, pieces)) <= slice_bytes:
        return b"".join(pieces)
    out = io.BytesIO()  # grows where it is, or by moving pages, and is handed out without a copy
    pieces = iter(pieces)
    while some := list(islice(pieces, _MOST_PIECES)):
        if sum(map(len, some)) <= slice_bytes:
            out.write(b"".join(some))
            continue
        some.reverse()
        while some:
            with memoryview(some.pop()) as view:
                for at in range(0, len(view), slice_bytes):
                    out.write(view[at : at + slice_bytes])
    return out.getvalue()


def drained(pieces: list[bytes]) -> bytes:
    """Return all of it as one text, made in slices. Each piece is let go as it is copied: the list is empty then."""
    if len(pieces) == 1:
        return pieces.pop()
    pieces.reverse()
    return concatenated(pieces.pop() for _ in range(len(pieces)))


def joined_text(pieces: Iterable[str]) -> str:
    """Return all of it as one text. str.join() gets all the memory in one call, page by page.

    CPython lets a text that nobody else has grow where it is; its pages move as they are, if it is large. What has
    wider letters than all before is copied once.
    """
    text = ""
    for piece in pieces:
        text += piece
    return text


def copied(data: bytes | bytearray | memoryview) -> bytes:
    """Return the same as bytes."""
    return bytes(data) if len(data) <= SLICE_BYTES or isinstance(data, bytes) else concatenated((data,))


def text_slices(text: str, slice_letters: int = SLICE_BYTES, *, begin: int = 0) -> Iterator[str]:
    """Return a text from a letter on in slices."""
    if len(text) - begin <= slice_letters:
        return iter((text[begin:],))
    return (text[at : at + slice_letters] for at in range(begin, len(text), slice_letters))


def utf8_slices(data: bytes | bytearray, slice_bytes: int = SLICE_BYTES) -> Iterator[bytes | bytearray]:
    """Return UTF-8 in slices, no character of which is cut. slice_bytes: of each at most, and 4 at least."""
    at = 0
    while len(data) - at > slice_bytes:
        end = _end_of_letter(data, at + slice_bytes)
        yield data[at:end]
        at = end
    yield data[at:] if at else data


def is_ascii(data: bytes | bytearray, slice_bytes: int = SLICE_BYTES) -> bool:
    """Say whether all of it is ASCII."""
    if len(data) <= slice_bytes:
        return data.isascii()
    return all(data[at : at + slice_bytes].isascii() for at in range(0, len(data), slice_bytes))


def utf8_fault(data: bytes | bytearray, slice_bytes: int = SLICE_BYTES) -> int | None:
    """Return at which byte a text is not UTF-8; None: it is."""
    if is_ascii(data, slice_bytes):
        return None
    at = 0
    for piece in utf8_slices(data, slice_bytes):
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError as exc:
            return at + exc.start
        at += len(piece)
    return None


def contains(data: bytes | bytearray, text: bytes, slice_bytes: int = SLICE_BYTES) -> bool:
    """Say whether `text` stands in `data`."""
    return any(data.find(text, at, at + slice_bytes + len(text) - 1) >= 0 for at in range(0, len(data), slice_bytes))


def let_go(values: list[_T] | None) -> None:
    """Empty a list that nobody needs any more. All that it alone holds would be freed in one call."""
    while values is not None and len(values) > _MOST_FREED:
        del values[-_MOST_FREED:]


def as_base64(data: bytes, slice_bytes: int = SLICE_BYTES) -> str:
    """Return what base64.b64encode() returns, as a text."""
    step = slice_bytes // 3 * 3  # three bytes are four letters
    if len(data) <= step:
        return base64.b64encode(data).decode("ascii")
    with memoryview(data) as view:
        return concatenated(base64.b64encode(view[at : at + step]) for at in range(0, len(view), step)).decode("ascii")


def from_base64(text: str, slice_letters: int = SLICE_BYTES) -> bytes:
    """Return what base64.b64decode() with validate=True returns. Raises ValueError as that does."""
    step = slice_letters // 4 * 4
    if len(text) <= step:
        return base64.b64decode(text, validate=True)
    end = text.find("=")
    if end >= 0 and text[end : end + 3] not in ("=", "=="):
        raise ValueError("there is more behind the end of base64")
    if end >= 0 and end % 4 == 0:
        text = text[:end]  # a sign that is not needed is passed over there, too
    return concatenated(base64.b64decode(text[at : at + step], validate=True) for at in range(0, len(text), step))


def json_slices(data: bytes, slice_bytes: int = SLICE_BYTES) -> Iterator[bytes]:
    """Return JSON in slices. No escape, no pair of surrogates and no character of UTF-8 is cut.

    slice_bytes: of each at most, and 32 at least.
    """
    at = 0
    while len(data) - at > slice_bytes:
        end = json_cut(data, at, at + slice_bytes)
        yield data[at:end]
        at = end
    yield data[at:] if at else data


def json_cut(data: bytes | bytearray, begin: int, end: int) -> int:
    """Return where to cut JSON at the latest: at `end`, or before it. begin: where no escape is cut, and no pair."""
    return _end_of_escape(data, begin, _end_of_letter(data, end))


def _end_of_letter(data: bytes | bytearray, end: int) -> int:
    """Return where to cut UTF-8 at the latest."""
    for at in range(end, end - _MOST_BEHIND_FIRST, -1):
        if data[at] & _IS_BEHIND_FIRST != _BEHIND_FIRST:
            return at
    return end - _MOST_BEHIND_FIRST


def _end_of_escape(data: bytes | bytearray, begin: int, end: int) -> int:
    at = data.rfind(_BACKSLASH, end - _ESCAPE_BYTES, end)
    if at < 0 or not _begins_escape(data, begin, at):
        return end
    # Before it. If it may be the second half of a pair, before the first one.
    before = at - _ESCAPE_BYTES
    is_pair = _is_surrogate(data[at : at + _ESCAPE_BYTES], _LOW) and _is_surrogate(data[before:at], _HIGH)
    return before if is_pair and _begins_escape(data, begin, before) else at


def _begins_escape(data: bytes | bytearray, begin: int, at: int) -> bool:
    r"""Say whether a backslash is none that is itself escaped: an even number stand before it."""
    return (at - begin - len(data[begin:at].rstrip(_BACKSLASH))) % 2 == 0


def _is_surrogate(escape: bytes | bytearray, letters: bytes) -> bool:
    return escape[:3] in (rb"\ud", rb"\uD") and escape[3:4] in letters


def finished(steps: Generator[None, None, _T]) -> _T:
    """Take all steps of some work at once, where nothing waits for a turn; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
