"""Requests and replies of the admin listener, as values.

Knows: which Host may be asked for, which method, and from which pages of a browser. Does not know: how a head is read
and a reply written, which is as for clients (net/client/http1.py), or what a page shows.

The Host check stops DNS rebinding: a page of a foreign name that resolves to this address sends that name, and gets
403. What changes something or takes the workers' time is for no page of another origin (Origin, RFC 6454 §7;
Sec-Fetch-Site, W3C Fetch Metadata §2.3).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Self

from velox.heads import Headers, RequestHead
from velox.protocol.heads.own_names import is_own

__all__ = [
    "HTML",
    "HTML_POLICY",
    "TEXT",
    "AdminRequest",
    "RefusalError",
    "Reply",
    "escaped",
    "read_request",
    "reply_headers",
]

TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
# The header Content-Security-Policy of pages without scripts, whose style is in the page (CSP Level 3).
HTML_POLICY: Final = (
    "Content-Security-Policy",
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
)

# What is done at these, by POST only.
_ACTIONS: Final = frozenset({"/reload", "/upgrade", "/sign-in", "/sign-out", "/playground"})
# The workers do something for these.
_COSTLY: Final = frozenset(f"/debug/pprof/{name}" for name in ("profile", "heap", "tasks", "connections", "loop"))
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})
_PORT: Final = re.compile(":[0-9]+$")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. body None: a HEAD's, whose length nobody knows without doing the work.

    stream: what the body is instead, in pieces that are sent as they come.
    """

    status: int
    body: bytes | None
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes] | None = None


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


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request that passed all checks of read_request().

    path, query: the target around its first "?", as they came. host: "" only for HTTP/1.0.
    headers: lower-case names; of repeated ones the last. is_private: nobody between the client and us can read along:
    TLS, this machine, or a unix socket.
    """

    method: str
    path: str
    query: str
    host: str
    headers: dict[str, str]
    body: bytes = b""
    is_private: bool = False

    @property
    def is_head(self) -> bool:
        """True when the reply's body is not wanted."""
        return self.method == "HEAD"


def read_request(
    head: RequestHead, host_names: frozenset[str], takes_any: Callable[[str], bool] = lambda _path: False
) -> AdminRequest:
    """Return what a head asks for, without its body. Raises RefusalError: 403, 405.

    host_names: names besides "localhost" that a Host header may have, lower-case; IP addresses always may.
    takes_any: True for a path that is asked for with all methods; other pages are only read.
    """
    method, path, query = head.method.decode(), head.path.decode(), head.query.decode()
    if method not in ("GET", "HEAD") and not takes_any(path) and (method != "POST" or path not in _ACTIONS):
        raise RefusalError(405, "only GET and HEAD are served here", (("Allow", "GET, HEAD"),))
    host = head.shape.host.decode()
    if host and not is_own(_PORT.sub("", host), host_names):  # none came: HTTP/1.0, as some health checks speak it
        raise RefusalError(403, "the Host header must be an IP address, localhost or the name of the admin listener")
    headers = [(name.decode(), value.decode()) for name, value in head.headers]
    is_change = method not in ("GET", "HEAD")
    if (is_change or path in _COSTLY) and _is_of_another_site(headers, host):
        raise RefusalError(403, "no page of another site may ask for this")
    return AdminRequest(method, path, query, host, dict(headers))


def _is_of_another_site(headers: list[tuple[str, str]], host: str) -> bool:
    """Say whether a browser asks for a page of another origin; the address bar and our own pages are none."""
    return any(
        (name == "sec-fetch-site" and value.lower() in _OTHER_SITES)
        or (name == "origin" and value.lower().partition("://")[2] != host.lower())
        for name, value in headers
    )


def reply_headers(reply: Reply) -> Headers:
    """Return the headers of a reply, without its length."""
    own = [(name.lower().encode(), value.encode()) for name, value in reply.headers]
    headers = [(b"content-type", reply.content_type.encode()), (b"x-content-type-options", b"nosniff")]
    if not any(name == b"cache-control" for name, _ in own):
        headers.append((b"cache-control", b"no-store"))
    return headers + own


def escaped(text: str) -> str:
    """Return a text as HTML. The library `html` does the same, and takes half a megabyte for names of characters."""
    return (
        text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace('"', "&quot;")
        .replace("'", "&#x27;")
    )
