"""Which fields of an upstream's reply its client gets: found once for all heads that are alike.

Knows: which fields are dropped and why, what a route's rules change, which fields say how the body is to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, TypeAlias

from velox.gateway.reply.addresses import ADDRESS_FIELDS, AddressFilter, PublicOrigin, UpstreamAddresses
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import Place
from velox.gateway.reply.request_ids import REQUEST_ID
from velox.heads import Headers, ReplyHead, ReplyShape, RequestHead, ShapeField
from velox.memo import Memo
from velox.policy.routes.entries import HeaderRules
from velox.protocol.head_template import HeadTemplate
from velox.protocol.http1.write import field_lines
from velox.protocol.reply_body import is_coded, is_events

__all__ = [
    "DROPPED",
    "NO_ATTEMPTS",
    "OWN",
    "UNBUFFERED",
    "AttemptFields",
    "HeaderRuleFilter",
    "PassedFields",
    "ReplyFields",
    "changed",
]

# R-SEC-4: what an upstream may not tell our client. Hop-by-hop headers are gone before.
DROPPED: Final = frozenset(
    {
        b"set-cookie",
        b"server",
        b"alt-svc",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
    }
)
# How the names of Velox's own fields begin. An upstream's are dropped, too: it may be another Velox.
OWN: Final = b"x-velox-"

# nginx holds replies of a proxied server back to fill its buffers, and reads this field of theirs (its documentation,
# proxy_buffering): else a stream would come as one piece at its end.
UNBUFFERED: Final = (b"x-accel-buffering", b"no")
_KEPT_HEADS: Final = 512
_HTML: Final = b"text/html"
_JSON: Final = b"application/json"
_Asked: TypeAlias = tuple[ReplyShape, frozenset[bytes]]


class AttemptFields(NamedTuple):
    """The fields that tell a client of the attempts at its request, also as lines of HTTP/1.1."""

    headers: Headers
    lines: bytes

    @classmethod
    def of(cls, upstream: str, n_attempts: int, tried: Sequence[str] = ()) -> AttemptFields:
        """x-velox-upstream, x-velox-attempts; and x-velox-tried where there was more than one."""
        headers = [(b"x-velox-upstream", upstream.encode("ascii")), (b"x-velox-attempts", b"%d" % n_attempts)]
        if tried:
            headers.append((b"x-velox-tried", ", ".join(tried).encode("ascii")))
        return cls(headers, field_lines(headers))

    def beside(self, own: Headers) -> AttemptFields:
        """Return these, and other fields of Velox's own."""
        return AttemptFields([*self.headers, *own], self.lines + field_lines(own))

    def leaving_out(self, names: Sequence[str]) -> AttemptFields:
        """Return these, and what was left out of the request."""
        return self.beside([(b"x-velox-dropped", ",".join(names).encode("ascii"))])


NO_ATTEMPTS: Final = AttemptFields([], b"")


class PassedFields(NamedTuple):
    """What the client gets of all heads of a shape. is_plain: the body is not compressed. is_dated: there is a Date.

    has_id: there is an x-request-id. has_address: there is a field that may be an address of the upstream's. is_html,
    is_json: the body is a page, or JSON.
    """

    template: HeadTemplate
    is_sse: bool
    is_plain: bool
    is_dated: bool
    has_id: bool
    has_address: bool = False
    is_html: bool = False
    is_json: bool = False


class ReplyFields:
    """The heads of one worker's replies. public: how clients reach this gateway."""

    __slots__ = ("_known", "public")

    def __init__(self, public: PublicOrigin | None = None) -> None:
        self.public: Final = public or PublicOrigin()
        self._known: Final[Memo[_Asked, PassedFields]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<ReplyFields {self._known!r}>"

    def address_filter(self, head: RequestHead, upstream: UpstreamAddresses | None) -> AddressFilter:
        """Return what changes the addresses in a reply's fields. head: of its request."""
        found = AddressFilter(self.public.here(head))
        found.upstream = upstream
        return found

    def passed(self, shape: ReplyShape, dropped: frozenset[bytes]) -> PassedFields:
        """Return the fields of a shape without those that are dropped, and without x-velox-*."""
        if not shape.is_shared:
            return _passed(shape, dropped)
        asked = (shape, dropped)
        found = self._known.get(asked) or self._known.find(asked)
        return self._known.put(asked, _passed(shape, dropped)) if found is None else found


def _passed(shape: ReplyShape, dropped: frozenset[bytes]) -> PassedFields:
    is_sse, is_plain, is_dated, has_id, has_address, is_html, is_json = False, True, False, False, False, False, False
    chosen: list[ShapeField] = []
    for field in shape.fields:
        name, value = field
        if name not in dropped and not name.startswith(OWN):
            if name == b"content-type" and value is not None:
                is_sse = is_events(value)
                is_html = value.lower().startswith(_HTML)
                is_json = value.lower().startswith(_JSON)
            elif name == b"content-encoding" and value is not None:
                is_plain = is_plain and not is_coded(value)
            elif name == b"date":
                is_dated = True
            elif name == REQUEST_ID:
                has_id = True
            elif name in ADDRESS_FIELDS:
                has_address = True
            chosen.append(field)
    if is_sse and not any(name == UNBUFFERED[0] for name, _ in chosen):
        chosen.append(UNBUFFERED)
    template = HeadTemplate(chosen, shape.fields)
    return PassedFields(template, is_sse, is_plain, is_dated, has_id, has_address, is_html, is_json)


class HeaderRuleFilter(ReplyFilter):
    """Changes the fields of a reply as a route's rules say."""

    __slots__ = ("_rules",)
    place: ClassVar[int] = Place.HEADERS

    def __init__(self, rules: HeaderRules) -> None:
        super().__init__()
        self._rules: Final = rules
        self.reads_body = False

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Return the head with its fields changed."""
        return ReplyHead.of(head.status, changed(head.headers, self._rules), head.content_length)


def changed(headers: Headers, rules: HeaderRules) -> Headers:
    """Return the fields of a reply as a route's rules will have them."""
    replaced = rules.names
    return [*(field for field in headers if field[0] not in replaced), *rules.set]
