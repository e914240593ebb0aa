"""A stream whose errors end that stream, and not the connection with all others on it.

Knows: where the code of one stream is entered from what serves all of them. Does not know: what went wrong there.

Such an error is a bug of Velox's. It is recorded, and the client gets RST_STREAM(INTERNAL_ERROR): it can't know what
became of its request. What the gateway does for a request on its own is contained there already.
"""

from __future__ import annotations

from collections.abc import Sequence

from velox.net.client.http2_stream import ClientHttp2Stream
from velox.protocol.http2 import INTERNAL_ERROR
from velox.types import Header

__all__ = ["ContainedStream"]


class ContainedStream(ClientHttp2Stream):
    """What the connection calls raises nothing."""

    __slots__ = ()

    def on_head(self, fields: Sequence[Header], *, end_stream: bool) -> None:
        try:
            super().on_head(fields, end_stream=end_stream)
        except Exception as exc:
            self._crashed(exc)

    def on_data(self, data: bytes, end_stream: bool) -> None:
        try:
            super().on_data(data, end_stream)
        except Exception as exc:
            self._crashed(exc)

    def _after_grant(self) -> None:
        try:
            super()._after_grant()
        except Exception as exc:
            self._crashed(exc)

    def pause(self) -> None:
        try:
            super().pause()
        except Exception as exc:
            self._crashed(exc)

    def settle(self, *, has_said_all: bool) -> bool:
        try:
            return super().settle(has_said_all=has_said_all)
        except Exception as exc:
            self._crashed(exc)
            return False

    def on_deadline(self, now_s: float) -> None:
        try:
            super().on_deadline(now_s)
        except Exception as exc:
            self._crashed(exc)

    def gone(self, *, stalled: bool = False) -> None:
        try:
            super().gone(stalled=stalled)
        except Exception as exc:
            # The last thing of all that it does is to tell the gateway.
            self._connection.ingress.app.crashed(exc)

    def _crashed(self, exc: Exception) -> None:
        connection = self._connection
        connection.ingress.app.crashed(exc)
        connection.engine.reset(self.id, INTERNAL_ERROR)
        connection.flush_soon()
        self.gone()
