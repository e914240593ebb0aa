"""The headers of a reply: which of an upstream's its client gets, and which Velox adds.

    ReplyFields    which fields pass, and which are added: found once for all heads that are alike
    AttemptFields  tell of the attempts at a request
    RateHeaders    tell a caller of its limits: on every reply how much is left, on a refusal exactly when to come back
    client_id()    the id that a client gave its request, where it may pass

Knows: which fields are dropped and why, what a route's rules change, which fields say how the body is to be read; the
x-ratelimit-* headers of the OpenAI API, which SDKs read, and that they tell of the quota that is nearest to its end,
for each unit. Does not know: which quotas a caller has, or Velox's own ids (observe/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, TypeAlias

from velox.gateway.reply.addresses import ADDRESS_FIELDS, AddressFilter, PublicOrigin, UpstreamAddresses
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Headers, ReplyHead, ReplyShape, RequestHead, ShapeField
from velox.memo import Memo
from velox.policy.limits.quota import Quota
from velox.policy.routes.entries import HeaderRules
from velox.protocol.head_template import HeadTemplate
from velox.protocol.http1.write import field_lines
from velox.protocol.reply_body import is_coded, is_events

__all__ = [
    "DROPPED",
    "ID_FORM",
    "NO_ATTEMPTS",
    "OWN",
    "REQUEST_ID",
    "UNBUFFERED",
    "AttemptFields",
    "HeaderRuleFilter",
    "PassedFields",
    "RateHeaders",
    "ReplyFields",
    "changed",
    "client_id",
    "duration_text",
    "is_id",
]

# What an upstream may not tell our client. Hop-by-hop headers are gone before.
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
REQUEST_ID: Final = b"x-request-id"
# What may pass as an id, up to the upstream and back to the client (B-26).
ID_FORM: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_NS_PER_MS: Final = 1_000_000


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

    def with_fields(self, own: Headers) -> AttemptFields:
        """Return these, and other fields of Velox's own."""
        return AttemptFields([*self.headers, *own], self.lines + field_lines(own))

    def with_dropped(self, names: Sequence[str]) -> AttemptFields:
        """Return these, and what was left out of the request."""
        return self.with_fields([(b"x-velox-dropped", ",".join(names).encode("ascii"))])


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

    __slots__ = ("_passed", "public")

    def __init__(self, public: PublicOrigin | None = None) -> None:
        self.public: Final = public or PublicOrigin()
        self._passed: Final[Memo[_Asked, PassedFields]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<ReplyFields {self._passed!r}>"

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
        found = self._passed.known.get(asked) or self._passed.find(asked)
        return self._passed.put(asked, _passed(shape, dropped)) if found is None else found


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
    order: ClassVar[int] = FilterOrder.HEADERS

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


class RateHeaders:
    """The headers of one caller and model.

    dropped: what an upstream's reply loses to them; its own tell of an account that is not the caller's. Of a unit that
    has no quota here they pass. headers, lines: return them as they are at a moment, as pairs and as lines of HTTP/1.1.
    also_dropped: what no reply keeps anyway.
    """

    __slots__ = ("_units", "dropped", "headers", "lines")

    def __init__(
        self, requests: Sequence[Quota], tokens: Sequence[Quota], also_dropped: frozenset[bytes] = frozenset()
    ) -> None:
        self._units: Final = tuple(
            _Unit(unit, quotas) for unit, quotas in ((b"requests", requests), (b"tokens", tokens)) if quotas
        )
        is_one = len(self._units) == 1
        self.headers: Final = self._units[0].headers if is_one else self._headers
        self.lines: Final = self._units[0].lines if is_one else self._lines
        self.dropped: Final = also_dropped.union(*(unit.names for unit in self._units))

    def _headers(self, now_ns: int) -> Headers:
        return [header for unit in self._units for header in unit.headers(now_ns)]

    def _lines(self, now_ns: int) -> bytes:
        requests, tokens = self._units
        return requests.lines(now_ns) + tokens.lines(now_ns)


class _Unit:
    """The three headers of one unit."""

    __slots__ = ("_before", "_between", "_first", "_form", "_full", "_limit", "_others", "names")

    def __init__(self, unit: bytes, quotas: Sequence[Quota]) -> None:
        self.names: Final = tuple(b"x-ratelimit-%b-%b" % (what, unit) for what in (b"limit", b"remaining", b"reset"))
        # What never changes is written once.
        self._form: Final = b"%b: %%b\r\n%b: %%d\r\n%b: %%b\r\n" % self.names
        limits = [b"%d" % quota.rate.burst for quota in quotas]
        self._first: Final = quotas[0]
        self._limit: Final = limits[0]
        self._others: Final = tuple(zip(quotas, limits, strict=True))[1:]
        self._full: Final = self._form % (limits[0], quotas[0].rate.burst, duration_text(0))
        # With one quota all but two numbers is constant. Text is put together in half the time that bytes take.
        limit, remaining, reset = (name.decode() for name in self.names)
        self._before: Final = f"{limit}: {limits[0].decode()}\r\n{remaining}: "
        self._between: Final = f"\r\n{reset}: "

    def headers(self, now_ns: int) -> Headers:
        """Return them as they are at this moment, as pairs."""
        limit, remaining, full_in_ns = self._state(now_ns)
        values = (limit, b"%d" % remaining, duration_text(full_in_ns))
        return list(zip(self.names, values, strict=True))

    def lines(self, now_ns: int) -> bytes:
        """Return them as they are at this moment, as lines."""
        if not self._others:
            remaining, full_in_ns = self._first.outlook(now_ns)
            # A gateway that is cut off from Redis has its share of the limit, be that as full as it may.
            if not full_in_ns and remaining == self._first.rate.burst:
                return self._full
            return f"{self._before}{remaining}{self._between}".encode() + duration_text(full_in_ns) + b"\r\n"
        limit, remaining, full_in_ns = self._state(now_ns)
        return self._form % (limit, remaining, duration_text(full_in_ns))

    def _state(self, now_ns: int) -> tuple[bytes, int, int]:
        limit = self._limit
        remaining, full_in_ns = self._first.outlook(now_ns)
        for quota, its_limit in self._others:
            left, its_full_in_ns = quota.outlook(now_ns)
            if left < remaining:
                limit, remaining, full_in_ns = its_limit, left, its_full_in_ns
        return limit, remaining, full_in_ns


def duration_text(ns: int) -> bytes:
    """Write a duration as OpenAI does: 120ms, 3.5s, 6m0s. Rounded up to whole milliseconds."""
    ms = -(-ns // _NS_PER_MS)
    if ms < 1000:
        return f"{ms}ms".encode()
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = b"%gs" % (rest_ms / 1000)
    return b"%dm%b" % (minutes, seconds) if minutes else seconds


def is_id(value: bytes) -> bool:
    """Say whether a value may pass as an id."""
    return ID_FORM.fullmatch(value) is not None


def client_id(head: RequestHead) -> bytes | None:
    """Return the id that a client gave its request; None if it gave none that may pass."""
    if not head.shape.may_have_id:
        return None
    value = head.header(REQUEST_ID)
    return value if value is not None and is_id(value) else None
