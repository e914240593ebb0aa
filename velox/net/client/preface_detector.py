"""The first bytes of a plain connection: do they begin HTTP/2, or HTTP/1.1?

Knows: the preface of a client that speaks HTTP/2 without asking (RFC 9113 §3.3). Does not know: anything of either.

Until they have come, the connection is one of HTTP/1.1: counted, timed and, if need be, refused as such.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from velox.net.client.http1 import ClientHttp1Connection
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.ingress_state import IngressState
from velox.net.client.plain_socket import PlainSocket
from velox.protocol.http2.engine import PREFACE, EngineFactory

__all__ = ["PrefaceDetector"]


class PrefaceDetector(asyncio.Protocol):
    """Holds back the first bytes until they can't be the preface any more, or are; then it hands the socket over.

    It is above a PlainSocket, and so is what it hands the socket over to: a transport looks at the kind of its protocol
    only when it begins to read.
    """

    def __init__(self, ingress: IngressState, make_engine: EngineFactory, view: memoryview) -> None:
        """view: of the PlainSocket below it."""
        self._ingress: Final = ingress
        self._make_engine: Final = make_engine
        self._view: Final = view
        self._http1: Final = ClientHttp1Connection(ingress)
        self._came = b""
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<PrefaceDetector {len(self._came)} bytes {self._http1!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http1.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        came = self._came = self._came + data if self._came else data
        if self._http1.is_idle and PREFACE.startswith(came[: len(PREFACE)]):
            if len(came) < len(PREFACE):
                return
            self._http1.connection_lost(None)  # it is none any more
            http2 = ClientHttp2Connection(self._ingress, self._make_engine)
            self._hand_over(http2)
            http2.connection_made(self._transport)
            http2.data_received(came)
        else:
            self._hand_over(self._http1)
            self._http1.data_received(came)

    def _hand_over(self, protocol: asyncio.Protocol) -> None:
        self._came = b""
        self._transport.set_protocol(PlainSocket(self._view, protocol))

    def eof_received(self) -> bool:
        return self._http1.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._http1.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http1.pause_writing()

    def resume_writing(self) -> None:
        self._http1.resume_writing()
