"""The head of an HTTP/1.1 request: from its bytes to a RequestHead, or a refusal.

Knows: every check that keeps two servers from reading one head as two different requests.
Does not know: how the bytes came, bodies, routes, keys.

llhttp (strict, through httptools) checks the grammar and gives the fields. The request line is split here,
because llhttp passes what must not (two spaces, HTTP/0.9, any target). What is ambiguous is refused, never
repaired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias

import httptools

from velox.errors import Reason, VeloxError
from velox.heads import ExtraFields, Header, Headers, HeadShape, RequestHead, ShapeField
from velox.protocol.heads.extras import PlansBeside
from velox.protocol.heads.fields import (
    CREDENTIALS,
    HANDSHAKE,
    HOP_BY_HOP,
    LENGTH_DIGITS,
    TOKEN,
    FieldCollector,
    beyond_ascii,
    connection_members,
    field_values,
    framing_error,
    is_never_volatile,
    length_line,
    line_start,
    only_pass,
)
from velox.protocol.heads.layouts import HeadForms, Layout
from velox.protocol.heads.memory import MOST_HEAD_BYTES, Bounds, HeadLines, LineMemory, Plan
from velox.protocol.heads.own_names import is_own
from velox.protocol.heads.target import SERVER, origin_form, split_target
from velox.protocol.websocket.handshake import read_offer

__all__ = [
    "METHODS",
    "REQUEST_LINE_EXTRA",
    "HeadReader",
    "Http1Limits",
    "asks_for_foreign_page",
    "bad_method",
    "body_framing",
    "body_length",
    "check_host",
    "check_request_line",
    "check_single",
    "expects_continue",
    "shared_shape",
    "too_long",
]


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """What one request may take. A head counts with its request line and its closing empty line.

    hosts: the names of this server, in lower case; a target may be a URL with one of them.
    """

    target_bytes: int = 8192
    head_bytes: int = 32768
    line_bytes: int = 16384
    header_count: int = 100
    body_bytes: int = 64 * 1024 * 1024
    hosts: frozenset[bytes] = frozenset()


# (method, target, path, query, is HTTP/1.0), all checked.
_RequestLine: TypeAlias = tuple[bytes, bytes, bytes, bytes, bool]

METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_ALLOW: Final = (b"allow", b", ".join(sorted(METHODS)))
# A method of 7, two spaces, "HTTP/1.1" and some room: what a request line may have beside its target.
REQUEST_LINE_EXTRA: Final = 32
_VERSION: Final = re.compile(rb"HTTP/[1-9]\.[0-9]")

# A reg-name without the characters that attacks use, IPv4 or [IPv6]; then a port.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_ZERO: Final = ord("0")
_NAME_OF: Final = itemgetter(0)
_UNDERSCORE: Final = ord("_")  # as a number: to look for it as bytes raises and drops an error inside CPython
# RFC 9110 §5.5 allows more space around a value; a server in front of us that does not strip it sees another body.
_FRAMING_LINE: Final = re.compile(rb"\r\n(?:content-length: ?[0-9]+|transfer-encoding: ?chunked)\r\n", re.IGNORECASE)

# Read here and then gone: the next hop's are built anew.
_REMOVED: Final = HOP_BY_HOP | HANDSHAKE | {b"host", b"content-length", b"expect"}
# Two readers could each take another one of these.
_SINGLE: Final = (b"host", b"transfer-encoding", b"authorization", b"content-type", b"expect")
# CVE-2022-31813: a Connection that names these makes a proxy strip what the next hop relies on.
_PROTECTED: Final = frozenset({b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding"})


class HeadReader:
    """Reads the heads of many connections; one a worker, so that what one connection taught helps the next.

    A client sends the same lines again and again, but for a few: its Content-Length, an id, a trace. What those lines
    say that Velox acts on is found by them (heads/memory.py), and reading them is left out. Only heads that accept()
    was called for are remembered. What follows from a credential is found by its value, which no shape holds.
    """

    __slots__ = ("_beside", "_forms", "_limits", "_memory", "_most_bytes", "_unknown")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits: Final = limits
        # So short that nothing in it is over a limit. What is known is within those of the target and of the count.
        self._most_bytes: Final = min(MOST_HEAD_BYTES, limits.head_bytes, limits.line_bytes)
        self._memory: Final = LineMemory[bytes, HeadShape](_start, named=True, always=CREDENTIALS)
        self._forms: Final = HeadForms[Plan[bytes, HeadShape]](Bounds().plans)
        self._beside: Final = PlansBeside[HeadShape](limits.header_count)
        self._unknown: tuple[RequestHead, list[bytes], Headers] | None = None  # that was read last, with all its fields

    def __repr__(self) -> str:
        return f"<HeadReader {self._memory}>"

    def clear(self) -> None:
        """Forget everything."""
        self._memory.clear()
        self._forms.clear()
        self._beside.clear()

    def find(self, data: bytes | bytearray, at: int = 0) -> tuple[RequestHead, int] | None:
        """Return the head that begins at `at`, if it is whole and known, and where it ends. Raises as read() does.

        None: read() has to look, once it is whole.
        """
        found = self._forms.find(data, at)
        if found is None:
            return self._find_beside(data, at)
        plan, values, end = found
        return None if end - at > self._most_bytes else (self._filled(plan, values), end)

    def _find_beside(self, data: bytes | bytearray, at: int) -> tuple[RequestHead, int] | None:
        """As find(), of a head with fields that no other had."""
        found = self._beside.find(data, at)
        if found is None:
            return None
        beside, end = found
        return None if end - at > self._most_bytes else (self._filled(*beside), end)

    def read(self, head: bytes) -> RequestHead:
        """Read a whole head, from its first byte to the empty line. Raises VeloxError, with close=True."""
        if len(head) > self._most_bytes:
            return _read(head, self._limits)[0]
        lines = head.split(b"\r\n")
        memory = self._memory
        marks = tuple(map(memory.marks.get, lines))
        for plan in memory.plans.get(marks) or memory.recall(lines):
            request = self._by_plan(plan, lines)
            if request is not None:
                layout = Layout(plan.places, plan.starts, plan.has_length, len(lines) - 2)
                self._forms.keep(plan, head, layout)
                return request
        beside = self._beside.find_by_lines(head, lines, marks)
        if beside is not None:
            return self._filled(*beside)
        request, fields = _read(head, self._limits)
        self._unknown = request, lines, fields
        return request

    def _by_plan(self, plan: Plan[bytes, HeadShape], lines: list[bytes]) -> RequestHead | None:
        """Return the head that a plan was found for; None if what is new in it must be looked at more closely."""
        if plan.pick is None:
            return RequestHead(plan.shape, (), None)
        new = plan.check(b"\n".join(plan.pick(lines)))
        if new is None:
            return None
        return self._filled(plan, new.groups())

    def _filled(
        self, plan: Plan[bytes, HeadShape], values: tuple[bytes, ...], extras: ExtraFields | None = None
    ) -> RequestHead:
        if not plan.has_length:
            return RequestHead(plan.shape, values, None, extras)
        digits = values[-1]
        length = int(digits)
        if length > self._limits.body_bytes or digits[0] == _ZERO:
            length = body_length(digits, self._limits)  # which says what is wrong with it
        return RequestHead(plan.shape, values[:-1], length, extras)

    def accept(self, request: RequestHead) -> None:
        """Remember a head that read() has just returned: its caller may be served."""
        unknown, self._unknown = self._unknown, None
        if unknown is None or unknown[0] is not request:
            return
        _, lines, fields = unknown
        names = [*map(_NAME_OF, fields)]
        # A head that asks for an answer of its own kind is too rare to be worth a plan.
        if request.offer is not None or len(lines) != len(fields) + 3 or b"expect" in names:
            return
        credentials = CREDENTIALS.intersection(names)
        if len(credentials) > 1 or any(names.count(name) > 1 for name in credentials):
            return
        caller = next((lines[names.index(name) + 1] for name in credentials), None)
        if not self._memory.wants(caller):
            return
        length_at, length_start = length_line(lines, fields)
        if request.content_length is not None and length_at < 0:
            return
        passed = set(map(_NAME_OF, request.shape.fields))
        said = [None, *[field if field[0] in passed else None for field in fields], None, None]
        learnt = HeadLines(lines, said, length_at, length_start)
        memory, beside = self._memory, self._beside
        is_less = beside.learns_less
        if is_less:
            learnt = memory.without_new(learnt, lambda name: only_pass([name], name))
        marks = memory.learn(learnt, caller)
        plan = None if marks is None else memory.keep(marks, learnt, partial(shared_shape, request.shape))
        beside.learnt(has_plan=plan is not None and not is_less)
        if marks is not None and plan is not None:
            beside.keep(marks, plan, learnt, dict(fields).get(b"connection"))


def shared_shape(shape: HeadShape, fields: tuple[ShapeField, ...]) -> HeadShape:
    """Return the shape of heads like one that was read, with these fields."""
    volatile = [name for name, value in fields if value is None]
    credential_at = next((at for at, name in enumerate(volatile) if name in CREDENTIALS), -1)
    may_have_id = any(name == b"x-request-id" for name, _ in fields)
    return replace(shape, fields=fields, is_shared=True, credential_at=credential_at, may_have_id=may_have_id)


def _start(line: bytes, field: Header) -> bytes | None:
    """See LineMemory."""
    return None if is_never_volatile(field[0]) else line_start(line, field)


def _read(head: bytes, limits: Http1Limits) -> tuple[RequestHead, Headers]:
    """Return what a head says, and all of its fields."""
    method, target, http_1_0 = check_request_line(head[: head.index(b"\r\n")], limits)
    is_url = not target.startswith(b"/")
    if target == SERVER and method == b"OPTIONS":
        is_url, path, query = False, SERVER, b""
    else:
        target = origin_form(target, limits.hosts)
        path, query = split_target(target)
    if len(head) > limits.line_bytes:
        _check_sizes(head, limits)
    fields = _parse_fields(head, limits)
    values = field_values(fields)
    if len(values) != len(fields):
        check_single(fields)
    host = values.get(b"host")
    check_host(host, http_1_0=http_1_0)
    line = method, target, path, query, http_1_0
    # The host of a target that is a URL counts, and is one of ours (heads/target.py).
    is_foreign_page = not is_url and asks_for_foreign_page(host, values, limits)
    request = _make_request(line, fields, values, limits, is_foreign_page=is_foreign_page, host=host or b"")
    if request.shape.chunked or request.content_length is not None:
        _check_framing_line(head, request.content_length)
    return request, fields


def _check_framing_line(head: bytes, length: int | None) -> None:
    """Refuse what frames the body if it has space around it. length: None for a body in chunks."""
    if length is not None:
        line = b"".join((b"\r\nContent-Length: ", str(length).encode(), b"\r\n"))
        if head.find(line) >= 0 or head.find(line.lower()) >= 0:  # what clients send, found at a tenth of the cost
            return
    if not _FRAMING_LINE.search(head):
        raise framing_error("Content-Length or Transfer-Encoding has white space around its value")


def _make_request(
    line: _RequestLine,
    fields: Headers,
    values: dict[bytes, bytes],
    limits: Http1Limits,
    *,
    is_foreign_page: bool,
    host: bytes,
) -> RequestHead:
    """Build the head from its parts; check the body's framing and the hop-by-hop fields."""
    method, *_, http_1_0 = line
    content_length, chunked = body_framing(values, limits, http_1_0=http_1_0)
    has_body = chunked or bool(content_length)
    offer = read_offer(method, values, http_1_0=http_1_0, has_body=has_body) if b"upgrade" in values else None
    expect_continue = b"expect" in values and expects_continue(values[b"expect"]) and has_body and not http_1_0
    removed, keep_alive = _REMOVED, not http_1_0
    if b"connection" in values and values[b"connection"] != b"keep-alive":
        members = _connection(values[b"connection"])
        removed = _REMOVED | members
        # A connection that asked for a WebSocket carries no other request, whatever the answer.
        keep_alive = keep_alive and b"close" not in members and offer is None
    # A CGI-like server reads Content_Length as Content-Length: never forwarded.
    headers = tuple([field for field in fields if field[0] not in removed and _UNDERSCORE not in field[0]])
    shape = HeadShape(
        *line, keep_alive, chunked, expect_continue, offer, headers, is_foreign_page=is_foreign_page, host=host
    )
    return RequestHead(shape, (), content_length)


def check_request_line(line: bytes, limits: Http1Limits) -> tuple[bytes, bytes, bool]:
    """Return (method, target, is HTTP/1.0) of a line without its CRLF; the target is only measured."""
    parts = line.split(b" ")
    if len(parts) != 3:
        # RFC 9112 §3: 400, whatever its first word is.
        raise framing_error("request line is not 'METHOD target HTTP/1.1' with single spaces")
    method, target, version = parts
    if method not in METHODS:
        raise bad_method(method)
    if len(target) > limits.target_bytes:
        raise too_long(f"request target is over {limits.target_bytes} bytes", status=414)
    if version == b"HTTP/1.1":
        return method, target, False
    if version == b"HTTP/1.0":
        return method, target, True
    if _VERSION.fullmatch(version):
        raise framing_error("HTTP version is not supported; speak HTTP/1.1", status=505)
    raise framing_error("request line does not end with an HTTP version")


def too_long(message: str, *, status: int = 431) -> VeloxError:
    """Return the refusal of a head that is over a limit."""
    return VeloxError(Reason.HEADER_TOO_LARGE, message, status=status, close=True)


def bad_method(method: bytes) -> VeloxError:
    """Return the refusal of a method that is none of METHODS."""
    if method == b"PRI":
        return framing_error("HTTP/2 is not spoken on this port")
    if len(method) >= REQUEST_LINE_EXTRA or not TOKEN.fullmatch(method):
        return framing_error("request does not begin with a method")
    return VeloxError(Reason.METHOD_NOT_ALLOWED, "method is not supported", headers=(_ALLOW,), close=True)


def _check_sizes(head: bytes, limits: Http1Limits) -> None:
    if len(head) > limits.head_bytes:
        raise too_long(f"request head is over {limits.head_bytes} bytes")
    if max(map(len, head.split(b"\r\n"))) > limits.line_bytes:
        raise too_long(f"line of the request head is over {limits.line_bytes} bytes")


def _parse_fields(head: bytes, limits: Http1Limits) -> Headers:
    if not head.isascii():
        line = next(line for line in head.split(b"\r\n") if not line.isascii())
        raise beyond_ascii(line.partition(b":")[0])
    collector = FieldCollector()
    try:
        httptools.HttpRequestParser(collector).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # the head is whole; read_offer() decides what becomes of the offer
    except httptools.HttpParserError:
        raise framing_error("request head is malformed") from None
    if len(collector.fields) > limits.header_count:
        raise too_long(f"request has over {limits.header_count} header fields")
    return collector.fields


def check_single(fields: Headers) -> None:
    """Refuse a second field of a name that two readers could each take another one of."""
    names = [name for name, _ in fields]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise VeloxError(Reason.BAD_REQUEST, f"request has two {name.decode()} fields", close=True)


def check_host(host: bytes | None, *, http_1_0: bool) -> None:
    """Refuse a host that is missing, or is more than a name or address with or without a port."""
    if host is None:
        # RFC 9112 §3.2 asks it of HTTP/1.1 only.
        if http_1_0:
            return
        raise VeloxError(Reason.BAD_REQUEST, "request has no Host field", close=True)
    match = _HOST.fullmatch(host)
    if match is None or (match[1] and int(match[1]) > 65535):
        raise VeloxError(Reason.BAD_REQUEST, "Host is not one name or address, with or without a port", close=True)


def asks_for_foreign_page(host: bytes | None, values: dict[bytes, bytes], limits: Http1Limits) -> bool:
    """Say whether a browser may ask for a page of elsewhere, which can have this host as its own name.

    host: as check_host() takes it.
    """
    if host is None or not _is_browsers(values):
        return False
    match = _HOST.fullmatch(host)
    name = host if match is None or match[1] is None else host[: match.start(1) - 1]
    return name.lower().removesuffix(b".") not in limits.hosts and not is_own(name.decode("ascii"), ())


def _is_browsers(values: dict[bytes, bytes]) -> bool:
    """Say whether a browser may have sent a head.

    What a page asks for has the browser's name (RFC 9110 §10.1.5), which Firefox lets a page change; and languages, of
    which a page can change the value, and not that there is one. Of other clients Node's fetch() sends some, with a
    field that no page can send, and that browsers send only to where DNS rebinding does not lead.
    """
    if values.get(b"user-agent", b"").startswith(b"Mozilla/"):
        return True
    return b"accept-language" in values and b"sec-fetch-mode" not in values


def body_framing(values: dict[bytes, bytes], limits: Http1Limits, *, http_1_0: bool) -> tuple[int | None, bool]:
    """Return (content_length, chunked). llhttp refuses both at once, too; it reads less of a head with an Upgrade."""
    if b"transfer-encoding" in values:
        if b"content-length" in values:
            raise framing_error("request has both Content-Length and Transfer-Encoding")
        if http_1_0:
            raise framing_error("HTTP/1.0 has no Transfer-Encoding")
        if values[b"transfer-encoding"].lower() != b"chunked":
            raise framing_error("Transfer-Encoding other than chunked is not supported", status=501)
        return None, True
    length = values.get(b"content-length")
    return (None if length is None else body_length(length, limits)), False


def body_length(digits: bytes, limits: Http1Limits) -> int:
    """Return a Content-Length's value: no sign, no list, no second spelling ("05" is 5 to some and octal to others)."""
    if not digits.isdigit() or len(digits) > LENGTH_DIGITS or (digits[0] == _ZERO and digits != b"0"):
        raise framing_error("Content-Length is not a plain decimal number")
    content_length = int(digits)
    if content_length > limits.body_bytes:
        message = f"body is {content_length} bytes; the limit is {limits.body_bytes} (VELOX_MAX_BODY)"
        raise VeloxError(Reason.BODY_TOO_LARGE, message, close=True)
    return content_length


def expects_continue(value: bytes) -> bool:
    """Return True for `100-continue`; refuse any other expectation."""
    if value.lower() != b"100-continue":
        raise VeloxError(Reason.BAD_REQUEST, "Expect other than 100-continue can't be met", status=417, close=True)
    return True


def _connection(value: bytes) -> frozenset[bytes]:
    members = connection_members(value)
    for member in members:
        if member in _PROTECTED or member.startswith(b"x-forwarded-"):
            raise VeloxError(Reason.BAD_REQUEST, "Connection names a field that must pass", close=True)
    return members
