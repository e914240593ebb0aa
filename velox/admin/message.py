"""Requests and replies of the admin listener, as values and as bytes.

Knows: what a head must look like, which Host may be asked for, how a reply is written. Does not know:
sockets, paths.

Smaller than the data path's codec on purpose: GET and HEAD, and POST for what is not only read; no bodies, one request
per connection. The Host check stops DNS rebinding: a page of a foreign name that resolves to this address sends that
name, and gets 403. So does a page of any name that lets a browser POST: it says where it is from (Origin).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httptools

__all__ = ["HTML", "TEXT", "AdminRequest", "RefusalError", "Reply", "parse_request", "write_reply"]

TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

# What is done at these, by POST only.
_ACTIONS: Final = frozenset({"/reload"})
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
        self.reply: Final = Reply(status, f"{text}\n".encode(), headers=headers)


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request that passed all checks of parse_request.

    path, query: the target around its first "?", as they came. host: "" only for HTTP/1.0.
    headers: lower-case names; of repeated ones the last.
    """

    method: str
    path: str
    query: str
    host: str
    headers: dict[str, str]

    @property
    def is_head(self) -> bool:
        """True when the reply's body is not wanted."""
        return self.method == "HEAD"


class _Head:
    """Collects what httptools finds."""

    def __init__(self) -> None:
        self.target = b""
        self.is_whole = False
        self.headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.is_whole = True


def parse_request(head: bytes, host_names: frozenset[str]) -> AdminRequest:
    """Read a head, up to and with its empty line. Raises RefusalError: 400, 403, 405.

    host_names: names besides "localhost" that a Host header may have, lower-case; IP addresses always may.
    """
    found = _Head()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an offer of another protocol, which a server may ignore (RFC 9110 §7.8)
    except httptools.HttpParserError:
        found.is_whole = False
    if not found.is_whole:
        raise RefusalError(400, "this is not an HTTP/1.1 request")
    method = parser.get_method().decode("latin-1")
    path, _, query = found.target.decode("latin-1").partition("?")
    if method not in ("GET", "HEAD") and (method != "POST" or path not in _ACTIONS):
        raise RefusalError(405, "only GET and HEAD are served here", (("Allow", "GET, HEAD"),))
    host = _checked_host(found.headers, host_names, required=parser.get_http_version() != "1.0")
    if method == "POST" and any(name == "origin" for name, _ in found.headers):
        raise RefusalError(403, "no page of a browser may ask for this")
    return AdminRequest(method, path, query, host, dict(found.headers))


def _checked_host(headers: list[tuple[str, str]], names: frozenset[str], *, required: bool) -> str:
    hosts = [value for name, value in headers if name == "host"]
    if not hosts and not required:
        return ""  # HTTP/1.0, as some health checks speak it; a browser always names a host
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None:
        raise RefusalError(400, "exactly one valid Host header is required")
    name = match[1].lower().removesuffix(".")
    if name != "localhost" and name not in names and not _is_address(name.strip("[]")):
        raise RefusalError(403, "the Host header must be an IP address, localhost or the name of the admin listener")
    return hosts[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def write_reply(reply: Reply, *, head_only: bool) -> bytes:
    """Return the bytes of a reply, without its body for HEAD. The connection ends after each."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    if reply.body is not None:
        lines.append(f"Content-Length: {len(reply.body)}")
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    return head if head_only or reply.body is None else head + reply.body
