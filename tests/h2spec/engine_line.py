"""A server without a socket for the cases: an engine in its role, and an application that answers everything.

Knows: how an owner uses an engine. Does not know: the cases. What it does is what Velox does with an engine, as far
as a client sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from velox.errors import VeloxError
from velox.heads import Header
from velox.protocol.http1.request_head import Http1Limits
from velox.protocol.http2.engine import INGRESS_SETTINGS, PROTOCOL_ERROR
from velox.protocol.http2.engines import engine_factory
from velox.protocol.http2.request_head import MalformedError, read_head

__all__ = ["EngineLine"]

_BODY = b"conformance"


class EngineLine:
    """See tests.h2spec.talker.Line. n_requests: those that reached the application, whole and well-formed."""

    host = b"gateway.example"

    def __init__(self, name: Literal["ngh2", "h2"]) -> None:
        self.n_requests = 0
        self._engine = engine_factory(name)(self, INGRESS_SETTINGS, False)
        self._waiting: set[int] = set()  # streams whose request is not whole
        self._answers: set[int] = set()  # streams that are being answered
        self._is_over = False
        self._engine.start()

    def write(self, data: bytes) -> None:
        if not self._is_over:
            self._engine.receive(data)

    def read(self) -> bytes | None:
        output = self._engine.take_output() if self._engine.has_output else b""
        if output:
            return output
        self._answers = {stream_id for stream_id in self._answers if self._engine.queued_bytes(stream_id)}
        return b"" if self._is_over else None

    def close(self) -> None:
        """The connection is gone."""
        self._engine.close()

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        try:
            read_head(headers, Http1Limits(), end_stream=end_stream)
        except MalformedError:
            self._engine.reset(stream_id, PROTOCOL_ERROR)
            return
        except VeloxError as error:
            self._engine.send_response(stream_id, [(b":status", b"%d" % error.status)], True)
            return
        self._waiting.add(stream_id)
        if end_stream:
            self._answer(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self._engine.acknowledge(stream_id, len(data))
        if end_stream:
            self._answer(stream_id)

    def on_stream_end(self, stream_id: int) -> None:
        self._answer(stream_id)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        self._waiting.discard(stream_id)

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._is_over = not self._waiting

    def on_settings(self) -> None: ...

    def on_window(self, stream_id: int) -> None: ...

    def on_pong(self) -> None: ...

    def on_fatal(self, message: str) -> None:
        self._is_over = True

    def _answer(self, stream_id: int) -> None:
        if stream_id in self._waiting:
            self._waiting.discard(stream_id)
            self.n_requests += 1
            self._engine.send_response(stream_id, [(b":status", b"200")], False)
            self._engine.send_data(stream_id, _BODY, True)
            self._answers.add(stream_id)
