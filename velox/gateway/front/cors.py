"""Web pages of elsewhere: a browser lets them read replies, and ask beforehand, where the settings name their origin.

    CrossOrigin.check_head(), submit(), refuse()   as the gateway's, which it stands before

Knows: the Fetch standard's CORS protocol. Does not know: which origins there are (policy/web_origins.py), or keys: a
page presents one as any client does, in a header, and never by a cookie.

It stands before a gateway only where the settings name origins. A browser asks before a request with a key whether the
page may send it, without that key: this is answered here, before a key is looked for, and goes nowhere. A reply to a
page that may read it says so, errors too; what an upstream says of this is not for the gateway's clients. A page that
may not gets no word of it, and its browser keeps the reply from it.
"""

from __future__ import annotations

import time
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Header, Headers, RequestHead
from velox.net.application import Application, ChunkWriter, Client, ClientExchange, PairsOnly, Successor
from velox.policy.web_origins import WebOrigins
from velox.protocol.heads.date import http_date
from velox.protocol.http1.request_head import METHODS
from velox.types import ANYONE, Caller

__all__ = ["CrossOrigin"]

_STARTS: Final = b"access-control-"
_METHOD: Final = b"access-control-request-method"
_HEADERS: Final = b"access-control-request-headers"
# All but what may be said without asking; without a cookie, `*` stands for each name (Fetch standard §3.3.3).
_EXPOSED: Final = (b"access-control-expose-headers", b"*")
_VARY: Final = (b"vary", b"origin")
_ALLOWED_METHODS: Final = (b"access-control-allow-methods", b", ".join(sorted(METHODS - {b"OPTIONS"})))
# Chromium's limit.
_MAX_AGE: Final = (b"access-control-max-age", b"7200")
_PREFLIGHT_VARY: Final = (b"vary", b"origin, access-control-request-method, access-control-request-headers")
_PRIVATE: Final = b"access-control-request-private-network"
_OK: Final = 200


class CrossOrigin:
    """An application that stands before another one. origins: of the pages that may use it."""

    def __init__(self, inner: Application, origins: WebOrigins) -> None:
        self._inner: Final = inner
        self._origins: Final = origins

    def __repr__(self) -> str:
        return f"<CrossOrigin {self._origins!r}>"

    def check_head(self, head: RequestHead) -> Caller:
        """See Application."""
        if not _is_preflight(head):
            return self._inner.check_head(head)
        if not self._origins.allows(head.header(b"origin") or b""):
            message = "pages of this origin may not use this gateway; VELOX_CORS_ORIGINS names those that may"
            raise VeloxError(Reason.FORBIDDEN, message)
        return ANYONE

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        """See Application."""
        if _is_preflight(head):
            # Not 204: answers have a length, which that may not (RFC 9110 §8.6).
            client.answer(_OK, self._preflight(head), b"", with_body=False, close=False)
            return None
        return self._inner.submit(self._for_page(client, head), head, body, caller)

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """See Application."""
        self._inner.refuse(client if head is None else self._for_page(client, head), head, error)

    def crashed(self, exc: Exception) -> None:
        """See Application."""
        self._inner.crashed(exc)

    def _for_page(self, client: Client, head: RequestHead) -> Client:
        """Return what adds to replies what a page's browser looks for; the client itself for what is no page's."""
        origin = head.header(b"origin")
        if origin is None or head.offer is not None:  # browsers don't ask this of WebSockets
            return client
        fields = (*self._allowed(origin), _EXPOSED) if self._origins.allows(origin) else (_VARY,)
        return _PageClient(client, fields)

    def _allowed(self, origin: bytes) -> tuple[Header, ...]:
        name = b"access-control-allow-origin"
        return ((name, b"*"),) if self._origins.any_page else ((name, origin), _VARY)

    def _preflight(self, head: RequestHead) -> Headers:
        date = (b"date", http_date(int(time.time())))
        headers = [*self._allowed(head.header(b"origin") or b""), _ALLOWED_METHODS, _MAX_AGE, date]
        wanted = head.header(_HEADERS)
        if wanted:
            # `*` does not stand for Authorization there, which each request of an SDK has.
            headers.append((b"access-control-allow-headers", wanted))
        if head.header(_PRIVATE) == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        return [*(field for field in headers if field != _VARY), _PREFLIGHT_VARY]


def _is_preflight(head: RequestHead) -> bool:
    return head.method == b"OPTIONS" and head.header(_METHOD) is not None and head.header(b"origin") is not None


class _PageClient(PairsOnly):
    """The client of a page's request: fields are added to its reply."""

    __slots__ = ("_client", "_fields")

    def __init__(self, client: Client, fields: tuple[Header, ...]) -> None:
        self._client: Final = client
        self._fields: Final = fields

    def __repr__(self) -> str:
        return f"<_PageClient {self._client!r}>"

    def _with_fields(self, headers: Headers) -> Headers:
        return [*(field for field in headers if not field[0].startswith(_STARTS)), *self._fields]

    @property
    def address(self) -> str:
        """See Client."""
        return self._client.address

    @property
    def is_write_paused(self) -> bool:
        """See Client."""
        return self._client.is_write_paused

    @property
    def may_run_ahead(self) -> bool:
        """See Client."""
        return self._client.may_run_ahead

    @property
    def chunk_writer(self) -> ChunkWriter | None:
        """See Client."""
        return self._client.chunk_writer

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        self._client.begin_reply(status, self._with_fields(headers), length, data, end, has_body=has_body)

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        self._client.body(data, end)

    def cut(self, last: bytes) -> None:
        """See Client."""
        self._client.cut(last)

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client."""
        self._client.answer(status, self._with_fields(headers), body, with_body=with_body, close=close)

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: a WebSocket's client is passed on as it is."""
        raise AssertionError("only a head with an offer")

    def finish(self) -> None:
        """See Client."""
        self._client.finish()

    def hold_more(self, n_bytes: int) -> bool:
        """See Client."""
        return self._client.hold_more(n_bytes)

    def release_body(self) -> None:
        """See Client."""
        self._client.release_body()
