"""Changes a field of a JSON body in its bytes: nothing else of it is written anew.

Knows: where strings begin and end, how deep in the document a place is, where a model is named and how the usage is
asked for. Does not know: which model it shall be, or why. The documents are such as BodyReader has read: objects,
whole, and with no two fields of a name. A form (multipart/form-data) is not read, so it is not changed either.

simdjson does not tell where a value stands, and a walk through the bytes takes 5 ms for each MB in Python's regular
expressions. So the key is searched for as it is mostly written, at the speed of memchr. Outside strings there is no
backslash, and inside them each quote stands behind one: `"model"` with none before it is a string of its own, and with
a colon behind it a key. It is the document's own if there is one bracket open before it: those on its shorter side are
counted. Where a document hides the key, by escapes or among many others of that name, it is walked through, if it is
short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable
from typing import Final
from urllib.parse import quote, unquote_plus

import orjson

from velox.errors import Reason, VeloxError
from velox.protocol.json.blanks import blanks_end
from velox.protocol.json.outline import Outline
from velox.protocol.json.value_count import brackets_open
from velox.protocol.json.value_end import ValueEnd
from velox.protocol.slices import finished
from velox.types import BodyFields

__all__ = [
    "STRING",
    "Field",
    "adding_model",
    "ask_for_usage",
    "instead_of_model",
    "naming_model",
    "spliced",
    "with_model",
    "with_model_in_steps",
    "with_query_model",
]

STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_COLON: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_BACKSLASH: Final = ord("\\")

# Most often the key is among the first, and no other end of the document is looked for.
_NEAR_BYTES: Final = 1024
# Each costs 1 µs or two: a document full of them must not hold the loop.
_MOST_KEYS: Final = 4096
# To count the brackets of so many takes 2 to 6 ms, in which no other request moves.
_NEAR_ENDS_BYTES: Final = 1024 * 1024
# Of work at one go: a millisecond at most.
_SLICE_BYTES: Final = 256 * 1024
_ESCAPE_BYTES: Final = 5  # of \\uXXXX, but for the first
# A walk takes 0.14 µs a byte at worst, in which no other request moves.
_WALKED_BYTES: Final = 512 * 1024


class Field:
    """A field by its name, of letters, digits and underscores, in the document itself and not in an object inside."""

    __slots__ = ("_escaped", "_key", "_name")

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._key: Final = b'"%b"' % name.encode("ascii")
        # One of its characters, as it may be hidden.
        escapes = "|".join(f"{ord(char):04x}" for char in sorted(set(name)))
        self._escaped: Final = re.compile(rf"\\u(?:{escapes})".encode("ascii"), re.IGNORECASE)

    def __repr__(self) -> str:
        return f"<Field {self._name}>"

    def find(self, body: bytes | bytearray) -> int:
        """Return where the value begins; -1 if there is no such field.

        Raises VeloxError(BAD_REQUEST) if the document is over 512 KiB long and hides the key.
        """
        near = self._near_begin(body)
        return near if near >= 0 else finished(self._far(body))

    def find_in_steps(self, body: bytes | bytearray) -> Generator[None, None, int]:
        """Do what find() does; yields between slices of the work."""
        near = self._near_begin(body)
        return near if near >= 0 else (yield from self._far(body))

    def find_near_ends(self, body: bytes | bytearray) -> int:
        """Do what find() does, but look no further than 1 MiB from the begin and from the end: for one that is there.

        Raises VeloxError(BAD_REQUEST) as find() does, and if it is further away: others would wait too long.
        """
        n = len(body)
        if n <= 2 * _NEAR_ENDS_BYTES:
            return self.find(body)
        at, _ = finished(self._search(body, _NEAR_ENDS_BYTES))
        if at < 0:
            last = body.rfind(self._key, n - _NEAR_ENDS_BYTES)
            at, _ = finished(self._search_back(body, last, n - _NEAR_ENDS_BYTES))
        if at < 0:
            message = f"{self._name} is not found at the begin or the end of this body of over 2 MiB; write it first"
            raise VeloxError(Reason.BAD_REQUEST, message, param=self._name)
        return at

    # -- the usual spelling -------------------------------------------------------------------------

    def _near_begin(self, body: bytes | bytearray) -> int:
        """Return where the value begins, if the key is among the first."""
        first = body.find(self._key, 0, _NEAR_BYTES)
        if first >= 0 and self._is_string(body, first) and finished(_depth(body, 0, first)) == 1:
            colon = _COLON.match(body, first + len(self._key), first + len(self._key) + _NEAR_BYTES)
            if colon is not None and colon.end() < first + len(self._key) + _NEAR_BYTES:
                return colon.end()
        return -1

    def _far(self, body: bytes | bytearray) -> Generator[None, None, int]:
        last = yield from _rfind(body, self._key, 0, len(body))
        at, is_sure = -1, True
        if last >= 0:
            search = self._search_back(body, last) if 2 * last > len(body) else self._search(body, len(body))
            at, is_sure = yield from search
        if at >= 0:
            return at
        if is_sure and not (yield from self._may_be_hidden(body)):
            return -1
        return self._walk(body)

    def _search(self, body: bytes | bytearray, end: int) -> Generator[None, None, tuple[int, bool]]:
        """Return where the value begins, -1 if it was not found; and whether all that looks like it was looked at."""
        depth, begin = 0, 0
        at = yield from _find(body, self._key, 0, end)
        for _ in range(_MOST_KEYS):
            if at < 0:
                return -1, True
            value = yield from self._value(body, at)
            if value >= 0:
                depth += yield from _depth(body, begin, at)
                if depth == 1:
                    return value, True
                begin = at
            at = yield from _find(body, self._key, at + 1, end)
        return -1, False

    def _search_back(self, body: bytes | bytearray, at: int, begin: int = 0) -> Generator[None, None, tuple[int, bool]]:
        """Do what `_search` does, from the last place that looks like the key, which is `at`."""
        depth, end = 0, len(body)
        for _ in range(_MOST_KEYS):
            if at < 0:
                return -1, True
            value = yield from self._value(body, at)
            if value >= 0:
                depth -= yield from _depth(body, at, end)
                if depth == 1:
                    return value, True
                end = at
            at = yield from _rfind(body, self._key, begin, at)
        return -1, False

    def _may_be_hidden(self, body: bytes | bytearray) -> Generator[None, None, bool]:
        for at in range(0, len(body), _SLICE_BYTES):
            if self._escaped.search(body, at, at + _SLICE_BYTES + _ESCAPE_BYTES) is not None:
                return True
            yield
        return False

    def _is_string(self, body: bytes | bytearray, at: int) -> bool:
        """False for the end of a string with quotes in it."""
        return body[at - 1] != _BACKSLASH

    def _value(self, body: bytes | bytearray, at: int) -> Generator[None, None, int]:
        """Return where the value begins whose key this is; -1: it is none, but the end of a string, or a value."""
        if not self._is_string(body, at):
            return -1
        colon = yield from blanks_end(body, at + len(self._key))
        if body[colon : colon + 1] != b":":
            return -1
        return (yield from blanks_end(body, colon + 1))

    # -- any spelling -------------------------------------------------------------------------------

    def _walk(self, body: bytes | bytearray) -> int:
        """Look at every string that stands in no object inside."""
        if len(body) > _WALKED_BYTES:
            message = f"{self._name} is not found in this body of over 512 KiB; write it first, and without escapes"
            raise VeloxError(Reason.BAD_REQUEST, message, param=self._name)
        outline = Outline(self._name)
        if outline.feed(bytes(body)):
            return outline.value_at
        if outline.is_broken:
            raise VeloxError(
                Reason.BAD_REQUEST, f"{self._name} is not found in this body; write it first", param=self._name
            )
        return -1


def _find(body: bytes | bytearray, key: bytes, begin: int, end: int) -> Generator[None, None, int]:
    """Do what body.find() does, a slice at a time."""
    while begin < end:
        found = body.find(key, begin, min(end, begin + _SLICE_BYTES + len(key) - 1))
        if found >= 0:
            return found
        begin += _SLICE_BYTES
        yield
    return -1


def _rfind(body: bytes | bytearray, key: bytes, begin: int, end: int) -> Generator[None, None, int]:
    """Do what body.rfind() does, a slice at a time."""
    last = end
    while last > begin:
        found = body.rfind(key, max(begin, last - _SLICE_BYTES), min(end, last + len(key) - 1))
        if found >= 0:
            return found
        last -= _SLICE_BYTES
        yield
    return -1


def _depth(body: bytes | bytearray, begin: int, end: int) -> Generator[None, None, int]:
    """Return how many more brackets are opened there than closed. It begins and ends outside strings."""
    depth = 0
    for n in brackets_open(body, begin, end):
        depth += n
        if end - begin > _SLICE_BYTES:
            yield
    return depth


_MODEL: Final = Field("model")
_STRING: Final = re.compile(STRING, re.DOTALL)
# From here on a body is copied in slices.
_LARGE_BYTES: Final = 64 * 1024
_ASKING: Final = b'"stream_options":{"include_usage":true}'
_OPTIONS: Final = Field("stream_options")
_NULL: Final = b"null"
# Those of OpenAI have some 60 bytes. What is longer is not read, and refused.
_OPTIONS_BYTES: Final = 4096


def with_model(body: bytes | bytearray, model: str) -> bytes | bytearray:
    """Return `body` with another model; itself if it names that one already, or none.

    body: one that BodyReader has read. It is not changed: another attempt may still be sending it. What is returned can
    be given to this function again. Raises VeloxError(BAD_REQUEST) for one of over 512 KiB that hides its
    model.
    """
    return finished(with_model_in_steps(body, model))


def with_model_in_steps(body: bytes | bytearray, model: str) -> Generator[None, None, bytes | bytearray]:
    """Do what with_model() does; yields between slices of the work."""
    begin = yield from _MODEL.find_in_steps(body)
    value = None if begin < 0 else _STRING.match(body, begin)
    if value is None:
        return body
    text, end = orjson.dumps(model), value.end()
    if value[0] == text:
        return body
    if len(body) < _LARGE_BYTES:
        return body[:begin] + text + body[end:]
    return (yield from spliced(body, begin, end, text))


def spliced(body: bytes | bytearray, begin: int, end: int, text: bytes) -> Generator[None, None, bytearray]:
    """Return `body` with a text in the place of what stands there; yields between slices of the work."""
    made = bytearray()
    with memoryview(body) as view:
        for start, stop in ((0, begin), (end, len(body))):
            for at in range(start, stop, _SLICE_BYTES):
                made += view[at : min(stop, at + _SLICE_BYTES)]
                yield
            if not start:
                made += text
    return made


def naming_model(body: bytes | bytearray, model: str) -> bytes | bytearray:
    """Return `body` with this model, whether it names one or not; otherwise as with_model()."""
    return with_model(body, model) if _MODEL.find(body) >= 0 else adding_model(body, model)


def adding_model(body: bytes | bytearray, model: str) -> bytes | bytearray:
    """Return `body`, which names no model, with this one."""
    begin = body.find(b"{") + 1
    rest = body[begin:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b"".join((body[:begin], b'"model":', orjson.dumps(model), comma, rest))


def instead_of_model(body: bytes | bytearray, fields: Iterable[tuple[str, str]]) -> bytes | bytearray:
    """Return `body` with other fields, which it must not have, where its model stood; otherwise as with_model()."""
    begin = _MODEL.find(body)
    value = None if begin < 0 else _STRING.match(body, begin)
    if value is None:
        return body
    colon = body.rindex(b":", 0, begin)
    key = body.rindex(b'"', 0, body.rindex(b'"', 0, colon))  # a key has no quote in it
    with memoryview(body) as view:
        return b"".join((view[:key], orjson.dumps(dict(fields))[1:-1], view[value.end() :]))


def with_query_model(query: bytes, model: str) -> bytes:
    """Return `query` with another model; itself if it names none.

    query: one that gateway/websocket/tunnel.py has read: without the "?", of ASCII, and with one model at most.
    """
    fields = query.split(b"&")
    for n, field in enumerate(fields):
        name, _, value = field.partition(b"=")
        if unquote_plus(name.decode("ascii")) == "model":
            if unquote_plus(value.decode("ascii")) == model:
                break
            fields[n] = b"%b=%b" % (name, quote(model, safe="").encode("ascii"))
            return b"&".join(fields)
    return query


def ask_for_usage(body: bytes | bytearray, fields: BodyFields) -> bytes | bytearray | None:
    """Return `body` with stream_options that ask for the usage; None: it is no stream, or asks already.

    body: one that BodyReader has read, of a streamed chat or text completion; a bytearray is changed in place and
    returned. fields: what was read of it. Nothing but the options is written anew, and no key is there twice.

    Raises VeloxError(BAD_REQUEST) for options that can't be made to ask: no object, over 4 KiB long, hidden by escapes
    in a body of over 512 KiB, or over 1 MiB away from both ends of one. To pass them as they are would let a client
    choose that nobody counts its tokens.
    """
    if not fields.stream or fields.include_usage:
        return None
    if fields.include_usage is not None:
        return _change_options(body)
    # The last brace is the document's, which has a member: `stream`. A large body, a bytearray, is not copied so.
    end = body.rindex(b"}")
    if isinstance(body, bytearray):
        body[end:] = b"," + _ASKING + b"}"
        return body
    return b"%b,%b}" % (body[:end], _ASKING)


def _change_options(body: bytes | bytearray) -> bytes | bytearray:
    """Put include_usage into the options that `body` has. Raises as ask_for_usage()."""
    begin = _OPTIONS.find_near_ends(body)
    assert begin >= 0, "there are options in what was read"
    end = begin + len(_NULL)
    text = b"{}"
    if body[begin:end] != _NULL:
        text = _object_at(body, begin)
        end = begin + len(text)
    try:
        # Not by orjson, which refuses lone surrogates and integers of over 64 bits.
        options = {**json.loads(text), "include_usage": True}
        changed = json.dumps(options, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (ValueError, RecursionError):
        raise _bad_options("can't be read") from None
    if isinstance(body, bytearray):
        body[begin:end] = changed
        return body
    return body[:begin] + changed + body[end:]


def _object_at(body: bytes | bytearray, begin: int) -> bytes:
    """Return the object that begins there, of a document that is JSON."""
    text = bytes(body[begin : begin + _OPTIONS_BYTES])
    if not text.startswith(b"{"):
        raise _bad_options("must be an object or null")
    value = ValueEnd()
    value.take(text)
    value.begin(text[0])
    end = value.find(1)
    if end < 0:
        raise _bad_options(f"must have at most {_OPTIONS_BYTES} bytes")
    return text[:end]


def _bad_options(rule: str) -> VeloxError:
    return VeloxError(Reason.BAD_REQUEST, f"stream_options {rule}", param="stream_options")
