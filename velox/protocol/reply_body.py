"""What the body of an upstream's reply is: its label is a hint, its bytes decide.

    label_of()      what the fields say: an event stream? compressed?
    BodyReader      the body without its coding, and what it is, once enough has come
    plain_reply()   the same of a reply that is there as a whole

Servers compress though they were asked not to (RFC 9110 §12.5.3 lets them), in flushes within a stream
(envoyproxy/ai-gateway#1927), without a label (Wei-Shaw/claude-relay-service#1039), or name a charset as the coding;
some answer with events to who asked for none, and the other way round.

Knows: content codings (RFC 9110 §8.4.1, RFC 8878) and how far one may expand; how events, JSON and HTML begin. Does not
know: any dialect, or what follows.
"""

from __future__ import annotations

import enum
import re
import zlib
from collections.abc import Iterable
from typing import Final

from velox.heads import Header, Headers
from velox.protocol.content_coding import Decoder, Inflater, zstd_decoder

__all__ = [
    "BOM",
    "BodyKind",
    "BodyReader",
    "BrokenReplyError",
    "CodingError",
    "begun_text",
    "is_coded",
    "is_events",
    "kind_of",
    "label_of",
    "plain_reply",
]

_EVENTS: Final = b"text/event-stream"
# https://www.iana.org/assignments/http-parameters, "HTTP Content Coding Registry"; what is none of these compresses
# nothing.
_CODINGS: Final = frozenset(
    {
        *(b"aes128gcm", b"br", b"compress", b"dcb", b"dcz", b"deflate", b"exi", b"gzip", b"pack200-gzip"),
        *(b"x-compress", b"x-gzip", b"zstd"),
    }
)
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LONGEST_MARK: Final = 4
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
# What a coding without a mark would hardly begin with.
_TEXT: Final = re.compile(rb"[\t\r\n\x20-\x7e]{1,64}")
BOM: Final = b"\xef\xbb\xbf"
_LOOKED_AT: Final = 1024
_BINARY: Final = b"\x00" * 256
_BLANKS: Final = b" \t\r\n"
# Streams of small events shrink to a twentieth; what is a hundred times as long was made to be so.
_MOST_RATIO: Final = 100
_FREE_BYTES: Final = 1024 * 1024


class BrokenReplyError(Exception):
    """An upstream's reply that is not what its dialect allows, or over a bound."""


class CodingError(Exception):
    """A body is compressed in a way that is not known, is not what its coding says, or expands too far."""


class BodyKind(enum.Enum):
    """What a body is, by what it begins with behind white space. OTHER: binary frames, a text, a lone value."""

    OBJECT = "object"
    ARRAY = "array"
    EVENTS = "events"
    HTML = "html"
    OTHER = "other"


_KINDS: Final = {b"{": BodyKind.OBJECT, b"[": BodyKind.ARRAY, b"<": BodyKind.HTML, b":": BodyKind.EVENTS}
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:")


def is_events(value: bytes) -> bool:
    """Say whether a content-type is that of an event stream."""
    return value.lower().startswith(_EVENTS)


def is_coded(value: bytes) -> bool:
    """Say whether a content-encoding names a coding that changes the body: `identity` and a charset don't."""
    return any(word.strip().lower() in _CODINGS for word in value.split(b","))


def label_of(headers: Iterable[Header]) -> tuple[bool, bool]:
    """Say whether a body is an event stream by its label, and whether it is not compressed."""
    is_sse, is_plain = False, True
    for name, value in headers:
        if name == b"content-type":
            is_sse = is_events(value)
        elif name == b"content-encoding" and is_coded(value):
            is_plain = False  # the field may come several times (RFC 9110 §5.3)
    return is_sse, is_plain


def kind_of(text: bytes) -> BodyKind | None:
    """Return what a body is that begins so; None: that can't be told yet."""
    begun = text.removeprefix(BOM).lstrip(_BLANKS)
    known = _KINDS.get(begun[:1])
    if known is not None:
        return known
    if begun.startswith(_FIELDS):
        return BodyKind.EVENTS
    return None if any(field.startswith(begun) for field in _FIELDS) else BodyKind.OTHER


class BodyReader:
    """Of one reply. kind: what it is; None: not known yet. decodes: feed() has something to do further on, too."""

    __slots__ = ("_decoder", "_has_begun", "_held", "_names", "decodes", "kind")

    def __init__(self, headers: Iterable[Header]) -> None:
        named = b",".join(value for name, value in headers if name == b"content-encoding")
        self._names: Final = frozenset(word.strip() for word in named.lower().split(b",")) & _CODINGS
        self._held = b""  # of the first bytes, or white space before them
        self._has_begun = False  # it is known how it is coded
        self._decoder: _Decoder | None = None
        self.decodes = False
        self.kind: BodyKind | None = None

    def __repr__(self) -> str:
        return f"<BodyReader {self.kind} {self._decoder!r}>"

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return what that says: nothing until the kind is known. Raises CodingError."""
        if not self._has_begun:
            data = self._held + data
            may_be_mark = bool(self._names) or _GZIP.startswith(data) or _ZSTD.startswith(data)
            if may_be_mark and len(data) < _LONGEST_MARK and not end:
                self._held = data
                return b""
            self._held, self._has_begun = b"", True
            coding = _coding(self._names, data)
            if coding:
                self._decoder, self.decodes = _Decoder(coding, data), True
        if self._decoder is not None:
            data = self._decoder.feed(data)
        return data if self.kind is not None else self._look(data, end)

    def _look(self, data: bytes, end: bool) -> bytes:
        """Find out what it is; white space before it, with which some keep a connection open, is nothing."""
        data = (self._held + data).lstrip(_BLANKS)
        kind = None if BOM.startswith(data) else kind_of(data)
        if kind is None and not end:
            self._held = data
            return b""
        self._held = b""
        if data.removeprefix(BOM):
            self.kind = kind or BodyKind.OTHER
        return b"" if self.kind is None else data


def begun_text(headers: Headers, data: bytes) -> bytes:
    """Return some text of what came first of a body; a mark of what is binary, where its coding can't be read."""
    try:
        return BodyReader(headers).feed(data[:_LOOKED_AT], False)
    except CodingError:
        return _BINARY


def plain_reply(headers: Headers, body: bytes) -> tuple[Headers, bytes]:
    """Return a whole reply without its coding, and its fields without what names that. Raises CodingError."""
    reader = BodyReader(headers)
    text = reader.feed(body, True)
    if not reader.decodes:
        return headers, body
    return [field for field in headers if field[0] not in (b"content-encoding", b"content-length")], text


def _coding(names: frozenset[bytes], first: bytes) -> bytes:
    """Return how a body is coded by its first bytes, b"" for not at all. Raises CodingError."""
    if first.startswith(_GZIP):
        return b"gzip"
    if first.startswith(_ZSTD):
        return b"zstd"
    if not names or not first or _TEXT.fullmatch(first[:64]) is not None:
        return b""
    if names == {b"deflate"}:
        return b"deflate"
    raise CodingError(f"its coding can't be read: {b', '.join(sorted(names)).decode('ascii')}")


class _Decoder:
    """One body. However it is cut, and of however many members it is, it says the same.

    What ends inside a member is no error here: whether something is missing is for who reads the text.
    """

    __slots__ = ("_coding", "_inner", "_is_over", "_n_in", "_n_out")

    def __init__(self, coding: bytes, first: bytes) -> None:
        self._coding: Final = coding
        self._n_in = 0
        self._n_out = 0
        self._is_over = False
        # RFC 9110 §8.4.1.2: in zlib's format, but some send it without (RFC 1950 §2.2 says how that begins).
        is_zlib = len(first) > 1 and first[0] & 0x0F == zlib.DEFLATED and int.from_bytes(first[:2], "big") % 31 == 0
        bits = _GZIP_BITS if coding == b"gzip" else zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
        self._inner: Decoder = zstd_decoder() if coding == b"zstd" else Inflater(bits)

    def __repr__(self) -> str:
        return f"<_Decoder {self._coding.decode('ascii')} {self._n_in} to {self._n_out} bytes>"

    def feed(self, data: bytes) -> bytes:
        """Take what came; return its text. Raises CodingError."""
        self._n_in += len(data)
        most = max(_FREE_BYTES, _MOST_RATIO * self._n_in)
        found: list[bytes] = []
        while data and not self._is_over:
            if self._inner.eof and not self._begins(data):
                break
            try:
                text = self._inner.decompress(data, most - self._n_out + 1)
            except Exception as exc:  # of zlib or zstd, whose classes have no common one
                raise CodingError(f"it is not whole {self._coding.decode('ascii')}") from exc
            self._n_out += len(text)
            if self._n_out > most:
                raise CodingError(f"it expands to over {_MOST_RATIO} times its length")
            found.append(text)
            data = self._inner.unused_data if self._inner.eof else b""
        return b"".join(found)

    def _begins(self, data: bytes) -> bool:
        """Begin the next member, if this is one: anything else is a tail, which says nothing."""
        mark = {b"gzip": _GZIP, b"zstd": _ZSTD}.get(self._coding, b"")
        self._is_over = not mark or data[:1] != mark[:1]
        if not self._is_over:
            self._inner = zstd_decoder() if self._coding == b"zstd" else Inflater(_GZIP_BITS)
        return not self._is_over
