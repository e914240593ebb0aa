"""An HTTP/1.1 connection to a proxy that sends requests on to a server of plain HTTP (RFC 9112 §3.2.2).

Knows: the absolute form of a target, the proxy's credentials, which answers are the proxy's own. Does not know: how a
connection is made (proxied.py), or tunnels (proxy_connect.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from velox.errors import Reason
from velox.heads import Headers, ReplyHead
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.interface import (
    PlainFields,
    ReplySink,
    RequestFields,
    UpstreamFailure,
    UpstreamRequest,
    UpstreamStream,
)
from velox.net.upstream.proxy_connect import refusal_text
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http2.engine import Mark

__all__ = ["ForwardedConnection", "ForwardedOrigin"]

_LOGIN: Final = 407


@dataclass(slots=True)
class ForwardedOrigin:
    """Who is asked by which proxy. prefix: what a target begins with. called: the proxy, for errors.

    credentials: Proxy-Authorization, if there is one. asks_each: the proxy looks at each request, and not only at the
    first of a connection. One that does not (tinyproxy) passes later ones on as they are, to a server that may not see
    its credentials: so these have them only once it has asked for them.
    """

    prefix: bytes
    called: str
    credentials: Headers
    asks_each: bool = False


class ForwardedConnection(Http1Connection):
    """The connection to the proxy. Whatever the reply says, it is the server's, but for a 407."""

    __slots__ = ("forwarded",)

    forwarded: ForwardedOrigin

    def open(self, request: UpstreamRequest, sink: ReplySink) -> UpstreamStream:  # type: ignore[override]
        origin = self.forwarded
        fields: RequestFields = request.fields
        has_login = bool(origin.credentials) and (self.n_begun == 0 or origin.asks_each)
        if has_login:
            fields = _FieldsBeside(fields, PlainFields(origin.credentials))
        target = origin.prefix + request.target
        return super().open(
            UpstreamRequest(request.method, target, fields, request.values, request.body),
            _ProxySink(self, sink, has_login=has_login),
        )


class _FieldsBeside:
    """Fields of a request, and the proxy's behind them."""

    __slots__ = ("_fields", "_more")

    def __init__(self, fields: RequestFields, more: PlainFields) -> None:
        self._fields: Final = fields
        self._more: Final = more

    def headers(self, values: Sequence[bytes], mark: Mark | None = None) -> Headers:
        return [*self._fields.headers(values, mark), *self._more.headers((), mark)]

    def lines(self, values: Sequence[bytes]) -> bytes:
        return self._fields.lines(values) + self._more.lines(())


class _ProxySink:
    """Passes a reply on, and makes of a 407 the failure that it is: no request went to the server."""

    __slots__ = ("_connection", "_has_login", "_sink")

    def __init__(self, connection: ForwardedConnection, sink: ReplySink, *, has_login: bool) -> None:
        self._connection: Final = connection
        self._has_login: Final = has_login
        self._sink: Final = sink

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        if head is None or head.status != _LOGIN:
            self._sink.on_reply(head, data, end)
            return
        connection = self._connection
        if end:
            connection.retire(ConnectionEnd.LOST)
        else:
            connection.cancel()
        origin = connection.forwarded
        why = refusal_text(_LOGIN, origin.prefix.decode(), has_login=self._has_login)
        # On a connection that has served, it now asks for what it has: another one does.
        is_late = bool(origin.credentials) and not self._has_login
        origin.asks_each = origin.asks_each or is_late
        retry = Retry.STALE if is_late else Retry.CONNECT
        message = f"the proxy {origin.called} {why}"
        self._sink.on_failure(UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=retry))

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return self._sink.on_chunk(chunk, at)

    def on_failure(self, failure: UpstreamFailure) -> None:
        self._sink.on_failure(failure)
