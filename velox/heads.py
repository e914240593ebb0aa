"""Heads of HTTP messages: what many have in common, and the values that are new in each.

Knows: shapes. Does not know: how a head was read or where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias, cast

__all__ = [
    "NO_BODY_STATUSES",
    "ExtraFields",
    "HeadShape",
    "Header",
    "Headers",
    "ReplyHead",
    "ReplyShape",
    "RequestHead",
    "ShapeField",
    "WebSocketOffer",
    "filled",
]

# Names are lower-case; order and duplicates are kept.
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = list[Header]

# A field of a shape; the value is None where each head has one of its own.
ShapeField: TypeAlias = tuple[bytes, bytes | None]

# RFC 9110 §6.4.1: these never carry content, whatever their headers say.
NO_BODY_STATUSES: Final = frozenset({204, 304})

_NAME_OF: Final = itemgetter(0)
_FIELD_LINE: Final = re.compile(rb"([^:]++): ([^\r]++)\r\n")


def filled(fields: Iterable[ShapeField], values: Sequence[bytes]) -> Headers:
    """Return the fields of a shape with the values of one head in their places."""
    if not values:
        return cast(Headers, [*fields])  # which have all of theirs
    left = iter(values)
    return [(name, next(left) if value is None else value) for name, value in fields]


@dataclass(frozen=True, slots=True)
class WebSocketOffer:
    """What a client that asks for a WebSocket offers, after every check of its handshake.

    key: as it came. protocols: a browser's may hold a key of the API. extensions: the field's value, b"" for none.
    """

    key: bytes
    protocols: tuple[bytes, ...] = field(repr=False)
    extensions: bytes


@dataclass(slots=True, eq=False)  # not frozen: that would triple the cost of making one
class HeadShape:
    """The part that many request heads share: all but the values that differ from head to head. Not to be modified.

    target: as it came; path: target up to the first "?"; query: what follows it, without the "?".
    fields: in their order; the value of a volatile field is None here and one of `RequestHead.values`.
    offer: this is the opening handshake of a WebSocket, whose own fields are then not among the fields.
    is_shared: other heads have this very object, so that what follows from it is worth keeping. Otherwise it belongs to
    one head, and no field is volatile. credential_at: the place of the credential among the values; -1: it is none of
    them, and the shape is of heads with the same one, or none. may_have_id: False where no field is an x-request-id.
    is_foreign_page: a browser's, and the name that was asked for can be a page's of elsewhere
    (protocol/heads/own_names.py). host: the name that was asked for, with its port if it was named; b"" if none was.
    """

    method: bytes
    target: bytes
    path: bytes
    query: bytes
    http_1_0: bool
    keep_alive: bool
    chunked: bool
    expect_continue: bool
    offer: WebSocketOffer | None
    fields: tuple[ShapeField, ...]
    is_shared: bool = False
    credential_at: int = -1
    may_have_id: bool = True
    is_foreign_page: bool = False
    host: bytes = b""


class ExtraFields:
    """Fields of one head beside those of its shape, each of another name.

    names: in lower case. lines: as HTTP/1.1 has them, each with its CRLF; values are visible ASCII with spaces inside.
    """

    __slots__ = ("lines", "names")

    def __init__(self, names: frozenset[bytes], lines: bytes) -> None:
        self.names: Final = names
        self.lines: Final = lines

    def __repr__(self) -> str:
        return f"<ExtraFields {len(self.names)}>"

    @property
    def headers(self) -> Headers:
        """A new list of them, in their order."""
        return _FIELD_LINE.findall(self.lines)


class RequestHead:
    """The head of a client's request, after every framing check.

    values: of the volatile fields of its shape, in their order.
    extras: fields that its shape does not have, of names that mean nothing to Velox; they stand behind the others.
    None: there are none.
    content_length: None when the body is chunked or absent (`chunked` tells which).
    keep_alive: another request may follow on this connection; its connection may change that.
    """

    __slots__ = ("content_length", "extras", "keep_alive", "shape", "values")

    def __init__(
        self,
        shape: HeadShape,
        values: tuple[bytes, ...],
        content_length: int | None,
        extras: ExtraFields | None = None,
    ) -> None:
        self.shape: Final = shape
        self.values: Final = values
        self.extras: Final = extras
        self.content_length = content_length
        self.keep_alive = shape.keep_alive

    @classmethod
    def of(
        cls,
        method: bytes,
        target: bytes,
        headers: Iterable[Header] = (),
        content_length: int | None = None,
        *,
        http_1_0: bool = False,
        keep_alive: bool = True,
        chunked: bool = False,
        expect_continue: bool = False,
        offer: WebSocketOffer | None = None,
        is_shared: bool = False,
        host: bytes = b"",
    ) -> RequestHead:
        """Return a head with a shape of its own."""
        path, _, query = target.partition(b"?")
        return cls(
            HeadShape(
                method,
                target,
                path,
                query,
                http_1_0,
                keep_alive,
                chunked,
                expect_continue,
                offer,
                fields=tuple(headers),
                is_shared=is_shared,
                host=host,
            ),
            (),
            content_length,
        )

    def __repr__(self) -> str:
        return f"<RequestHead {self.method!r} {self.path!r} length={self.content_length}>"

    def __eq__(self, other: object) -> bool:
        """Compare what two heads say, however they were read; fields of different names have no order."""
        return self._said() == other._said() if isinstance(other, RequestHead) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # keep_alive may change

    def _said(self) -> tuple[object, ...]:
        shape = self.shape
        line = (shape.method, shape.target, shape.path, shape.query, shape.http_1_0)
        framing = (self.keep_alive, self.content_length, shape.chunked, shape.expect_continue, shape.offer)
        return (*line, *framing, sorted(self.headers, key=itemgetter(0)))

    @property
    def method(self) -> bytes:
        return self.shape.method

    @property
    def target(self) -> bytes:
        return self.shape.target

    @property
    def path(self) -> bytes:
        return self.shape.path

    @property
    def query(self) -> bytes:
        return self.shape.query

    @property
    def http_1_0(self) -> bool:
        return self.shape.http_1_0

    @property
    def chunked(self) -> bool:
        return self.shape.chunked

    @property
    def expect_continue(self) -> bool:
        return self.shape.expect_continue

    @property
    def offer(self) -> WebSocketOffer | None:
        return self.shape.offer

    @property
    def headers(self) -> Headers:
        """A new list of all fields; those of one name in the order in which they came."""
        headers = filled(self.shape.fields, self.values)
        return headers if self.extras is None else headers + self.extras.headers

    @property
    def has_body(self) -> bool:
        """True when body bytes follow the head."""
        return self.shape.chunked or bool(self.content_length)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of `name` (lower-case), or None."""
        fields = self.shape.fields
        if name in map(_NAME_OF, fields):  # most that are asked for are not there
            n_values = 0
            for key, value in fields:
                if key == name:
                    return self.values[n_values] if value is None else value
                n_values += value is None
        if self.extras is None or name not in self.extras.names:
            return None
        return dict(self.extras.headers)[name]


@dataclass(slots=True, eq=False)
class ReplyShape:
    """The part that many heads of upstream replies share, as HeadShape is for requests. Not to be modified.

    until_close: only the end of the connection ends it (RFC 9112 §6.3, rule 8), so that it may as well have been cut.
    keep_alive: the upstream means to keep the connection open after it.
    """

    status: int
    fields: tuple[ShapeField, ...]
    until_close: bool = False
    keep_alive: bool = True
    is_shared: bool = False


class ReplyHead:
    """The head of an upstream's reply.

    values: of the volatile fields of its shape, in their order. content_length: None when the upstream stated none.
    """

    __slots__ = ("content_length", "shape", "values")

    def __init__(self, shape: ReplyShape, values: tuple[bytes, ...], content_length: int | None) -> None:
        self.shape: Final = shape
        self.values: Final = values
        self.content_length: Final = content_length

    @classmethod
    def of(
        cls, status: int, headers: Iterable[Header], content_length: int | None, until_close: bool = False
    ) -> ReplyHead:
        """Return a head with a shape of its own."""
        return cls(ReplyShape(status, tuple(headers), until_close), (), content_length)

    def __repr__(self) -> str:
        return f"<ReplyHead {self.status} length={self.content_length}>"

    def __eq__(self, other: object) -> bool:
        """Compare what two heads say, however they were read."""
        return self._said() == other._said() if isinstance(other, ReplyHead) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _said(self) -> tuple[object, ...]:
        return self.status, self.until_close, self.content_length, self.headers

    @property
    def status(self) -> int:
        return self.shape.status

    @property
    def until_close(self) -> bool:
        return self.shape.until_close

    @property
    def headers(self) -> Headers:
        """A new list of all fields, in the order in which they came."""
        return filled(self.shape.fields, self.values)
