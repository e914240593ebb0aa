"""CONNECT: a request to a proxy for a tunnel to a host, and what its answer means (RFC 9110 §9.3.6).

Knows: the bytes of both. Does not know: sockets, time, or what goes through the tunnel.

    sent       CONNECT api.example:443 HTTP/1.1
    2xx        the tunnel is there, from the byte behind the answer's head on, whatever its fields say
    anything   no tunnel: a refusal, with its status; or no HTTP
"""

from __future__ import annotations

import http
import re
from typing import Final

from velox.protocol.http1.write import check_unsplit

__all__ = ["ConnectExchange", "ProxyRefusedError", "refusal_text"]

_MOST_HEAD_BYTES: Final = 16 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")
_START: Final = b"HTTP/1."
_END: Final = re.compile(rb"\r?\n\r?\n")
_LOGIN: Final = 407
_LOST: Final = frozenset({502, 503, 504})


class ProxyRefusedError(Exception):
    """There is no tunnel. The text goes on behind "the proxy NAME"; nothing that the proxy wrote is in it."""


class ConnectExchange:
    """One request for a tunnel.

    authority: HOST:PORT of who is at its other end. authorization: for the proxy, b"": none. request: the bytes to
    send. Raises ValueError where a value would be more than one line.
    """

    def __init__(self, authority: bytes, authorization: bytes) -> None:
        self._authority: Final = authority
        self._has_login: Final = bool(authorization)
        self._received = bytearray()
        lines = [b"CONNECT " + authority + b" HTTP/1.1", b"host: " + authority, b"user-agent: velox"]
        if authorization:
            lines.append(b"proxy-authorization: " + authorization)
        for line in lines:
            check_unsplit(line)
        self.request: Final = b"\r\n".join((*lines, b"", b""))

    def __repr__(self) -> str:
        return f"<ConnectExchange {self._authority.decode()}>"

    def feed(self, data: bytes) -> bytes | None:
        """Take what came; return what came behind the answer once the tunnel is there, None before.

        Raises ProxyRefusedError.
        """
        self._received += data
        while True:
            begin = bytes(self._received[: len(_START)])
            if not _START.startswith(begin[: len(_START)]):
                raise ProxyRefusedError("answers with what is no HTTP/1")
            end = _END.search(self._received)
            if end is None:
                if len(self._received) > _MOST_HEAD_BYTES:
                    raise ProxyRefusedError(f"answers with a head of over {_MOST_HEAD_BYTES} bytes")
                return None
            status = _STATUS_LINE.match(self._received)
            if status is None:
                raise ProxyRefusedError("answers with what is no HTTP/1")
            code = int(status[1])
            rest = bytes(self._received[end.end() :])
            if 200 <= code < 300:
                return rest
            if code >= 200:
                raise ProxyRefusedError(refusal_text(code, self._authority.decode(), has_login=self._has_login))
            self._received = bytearray(rest)  # an interim answer, before the one that counts

    def eof(self) -> ProxyRefusedError:
        """Return what it means that the proxy ends the connection before the tunnel is there."""
        return ProxyRefusedError("closed the connection before it had answered")


def refusal_text(status: int, authority: str, *, has_login: bool) -> str:
    """Return what a status of a proxy means, behind "the proxy NAME"."""
    try:
        called = f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        called = str(status)
    if status == _LOGIN:
        return (
            f"does not take the user and password of its URL ({called})"
            if has_login
            else f"asks for a user and a password ({called}): give them in its URL, http://USER:PASSWORD@HOST:PORT"
        )
    if status in _LOST:
        return f"can't reach {authority} ({called})"
    return f"does not connect to {authority} ({called})"
