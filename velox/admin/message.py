"""Requests and replies of the admin listener, as values and as bytes.

Knows: what a head must look like, which Host may be asked for, where a body ends, how a reply is written. Does not
know: sockets, pages.

Smaller than the data path's reading on purpose: llhttp checks the grammar, a path is compared as it came, and there is
no memory of heads. The rules that keep two servers from reading one head as two different requests are the data path's
(protocol/http1/request_head.py). The Host check stops DNS rebinding: a page of a foreign name that resolves to this
address sends that name, and gets 403. So does a page of any name that lets a browser change something: it says where it
is from (Origin). What takes the workers' time is for no page of another site (Sec-Fetch-Site, W3C Fetch Metadata §2.3;
Origin).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple, Self

import httptools

from velox.errors import VeloxError
from velox.heads import Header
from velox.protocol.heads.fields import connection_members, field_values
from velox.protocol.heads.own_names import is_own
from velox.protocol.http1.request_head import METHODS, Http1Limits, body_framing, check_single, expects_continue

__all__ = [
    "BODY_BYTES",
    "HTML",
    "NO_BODY",
    "TEXT",
    "AdminRequest",
    "Framing",
    "RefusalError",
    "Reply",
    "parse_request",
    "too_large",
    "write_reply",
]

TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

BODY_BYTES: Final = 2**20
# A body that is over the limit is refused here, with a message of our own.
_LIMITS: Final = Http1Limits(body_bytes=2**63)
# What is done at these, by POST only.
_ACTIONS: Final = frozenset({"/reload"})
# The workers do something for these.
_COSTLY: Final = frozenset({"/debug/pprof/profile"})
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. body None: a HEAD's, whose length nobody knows without doing the work."""

    status: int
    body: bytes | None
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


class RefusalError(Exception):
    """A request that gets `reply` and nothing else. The text is a constant: nothing of the input is in it."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.reply = Reply(status, f"{text}\n".encode(), headers=headers)

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return one that gets this reply."""
        refusal = cls(reply.status, "")
        refusal.reply = reply
        return refusal


class Framing(NamedTuple):
    """How a request ends. length: of its body; None: it comes in chunks.

    keep_alive: another request may follow. expects_continue: the client waits for a word before it sends the body.
    """

    length: int | None
    keep_alive: bool
    expects_continue: bool


NO_BODY: Final = Framing(0, keep_alive=False, expects_continue=False)


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request that passed all checks of parse_request.

    path, query: the target around its first "?", as they came. host: "" only for HTTP/1.0.
    headers: lower-case names; of repeated ones the last. is_private: nobody between the client and us can read along:
    TLS, this machine, or a unix socket.
    """

    method: str
    path: str
    query: str
    host: str
    headers: dict[str, str]
    framing: Framing = NO_BODY
    body: bytes = b""
    is_private: bool = False

    @property
    def is_head(self) -> bool:
        """True when the reply's body is not wanted."""
        return self.method == "HEAD"


class _Head:
    """Collects what httptools finds."""

    def __init__(self) -> None:
        self.target = b""
        self.is_whole = False
        self.fields: list[Header] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_whole = True


def parse_request(
    head: bytes, host_names: frozenset[str], takes_any: Callable[[str], bool] = lambda _path: False
) -> AdminRequest:
    """Read a head, up to and with its empty line. Raises RefusalError: 400, 403, 405, 413, 417, 501.

    host_names: names besides "localhost" that a Host header may have, lower-case; IP addresses always may.
    takes_any: True for a path that is asked for with all methods; other pages are only read.
    """
    found = _Head()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an offer of another protocol, which a server may ignore (RFC 9110 §7.8)
    except httptools.HttpParserError:
        found.is_whole = False
    if not found.is_whole or head.count(b"\n") != head.count(b"\r\n"):
        raise RefusalError(400, "this is not an HTTP/1.1 request")
    raw_method = parser.get_method()
    method = raw_method.decode("latin-1")
    path, _, query = found.target.decode("latin-1").partition("?")
    is_api = takes_any(path) and raw_method in METHODS
    if not is_api and method not in ("GET", "HEAD") and (method != "POST" or path not in _ACTIONS):
        raise RefusalError(405, "only GET and HEAD are served here", (("Allow", "GET, HEAD"),))
    http_1_0 = parser.get_http_version() == "1.0"
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in found.fields]
    host = _checked_host(headers, host_names, required=not http_1_0)
    if method not in ("GET", "HEAD") and any(name == "origin" for name, _ in headers):
        raise RefusalError(403, "no page of a browser may ask for this")
    if path in _COSTLY and _is_of_another_site(headers, host):
        raise RefusalError(403, "no page of another site may ask for this")
    framing = _framing(found.fields, http_1_0=http_1_0)
    return AdminRequest(method, path, query, host, dict(headers), framing)


def _is_of_another_site(headers: list[tuple[str, str]], host: str) -> bool:
    """Say whether a browser asks for a page of another origin; the address bar and our own pages are none."""
    return any(
        (name == "sec-fetch-site" and value.lower() in _OTHER_SITES)
        or (name == "origin" and value.lower().partition("://")[2] != host.lower())
        for name, value in headers
    )


def _framing(fields: list[Header], *, http_1_0: bool) -> Framing:
    """Return how a request ends. Raises RefusalError."""
    values = field_values(fields)
    try:
        check_single(fields)
        length, is_chunked = body_framing(values, _LIMITS, http_1_0=http_1_0)
        has_body = is_chunked or bool(length)
        waits = b"expect" in values and expects_continue(values[b"expect"]) and has_body and not http_1_0
    except VeloxError as exc:
        raise RefusalError(exc.status, exc.message) from exc
    if length is not None and length > BODY_BYTES:
        raise too_large()
    keep_alive = not http_1_0 and b"close" not in connection_members(values.get(b"connection", b""))
    return Framing(None if is_chunked else length or 0, keep_alive, waits)


def too_large() -> RefusalError:
    """Return the refusal of a body that is over the limit."""
    return RefusalError(413, f"the body is over {BODY_BYTES} bytes")


def _checked_host(headers: list[tuple[str, str]], names: frozenset[str], *, required: bool) -> str:
    hosts = [value for name, value in headers if name == "host"]
    if not hosts and not required:
        return ""  # HTTP/1.0, as some health checks speak it; a browser always names a host
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None:
        raise RefusalError(400, "exactly one valid Host header is required")
    if not is_own(match[1], names):
        raise RefusalError(403, "the Host header must be an IP address, localhost or the name of the admin listener")
    return hosts[0]


def write_reply(reply: Reply, *, head_only: bool, keep_alive: bool = False) -> bytes:
    """Return the bytes of a reply, without its body for HEAD. keep_alive: another one may follow."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    if reply.body is not None:
        lines.append(f"Content-Length: {len(reply.body)}")
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    return head if head_only or reply.body is None else head + reply.body
