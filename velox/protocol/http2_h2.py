"""The HTTP/2 engine on h2, in pure Python: for machines without ngh2, and its opponent in tests.

Knows: h2's calls, events and gaps. Does not know: sockets, what an exchange means.

About 20 times dearer than ngh2. What h2 leaves to us:
- Cutting bodies to frames and windows, whose rule was broken (a stream's or the connection's), floods, and what a
  GOAWAY or an overlong frame means: see http2_h2_wire.py.
- It has no limit on answers to PING and SETTINGS, none on the number of header fields.
- It refers to itself in cycles; close() breaks them, so that a connection is freed when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from h2.config import H2Configuration
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple

from velox.protocol.http2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    MAX_INTERIM,
    MAX_OUTPUT,
    NO_ERROR,
    PING_DATA,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineHandler,
    EngineSettings,
    guarded,
)
from velox.protocol.http2_guard import FrameGuard
from velox.protocol.http2_h2_wire import Outbox, WireConnection
from velox.protocol.http2_head import MalformedError, check_trailers
from velox.types import Header, Headers

__all__ = ["H2Engine"]

# PING and SETTINGS that a peer may send between two writes of ours: each queues an answer. Like libnghttp2.
_MAX_UNANSWERED: Final = 1_000
# Bytes of frames that wait to be written: heads of requests, and what the peer is owed. Bodies wait elsewhere.
_MAX_READY: Final = 1 << 20
_DEFAULT_WINDOW: Final = 65_535  # RFC 9113 §6.9.2


@dataclass(slots=True)
class _Stream:
    """What this file must know of an open stream. held: bytes received and not acknowledged.

    queue_ended: the caller has given the last of it; local_ended: and it has been sent.
    """

    held: int = 0
    n_interim: int = 0
    queue_ended: bool = False
    local_ended: bool = False
    remote_ended: bool = False


class H2Engine:
    """See velox.protocol.http2.Engine."""

    def __init__(self, handler: EngineHandler, settings: EngineSettings, client: bool) -> None:
        self.peer_max_streams = 100
        self._handler: Final = handler
        self._settings: Final = settings
        self._client: Final = client
        # Outbound names are lower-case and values checked already; inbound ones are the peer's.
        config = H2Configuration(client, validate_outbound_headers=False, normalize_outbound_headers=False)
        if settings.guards and not client:
            # A hundred crumbs of a cookie would be one field (CVE-2026-49975).
            config.normalize_inbound_headers = False
            # It takes a millisecond for 32 KiB; http2_head.py looks at each field anyway.
            config.validate_inbound_headers = False
        self._guard: Final = FrameGuard(settings.max_streams_local) if settings.guards and not client else None
        self._connection: Final = WireConnection(config, self._guard)
        self._streams: Final[dict[int, _Stream]] = {}
        self._outbox: Final = Outbox(self._connection, self._end_local)
        self._n_unanswered = 0
        self._is_leaving = False  # one side has sent GOAWAY
        self._is_dead = False

    def __repr__(self) -> str:
        return f"<H2Engine client={self._client} streams={len(self._streams)} dead={self._is_dead}>"

    @property
    def has_output(self) -> bool:
        return self._outbox.has_output

    def start(self) -> None:
        ours = self._settings
        wire = {
            SettingCodes.INITIAL_WINDOW_SIZE: ours.stream_window,
            SettingCodes.MAX_HEADER_LIST_SIZE: ours.max_header_list,
        }
        if self._client:
            wire[SettingCodes.ENABLE_PUSH] = 0
        else:
            wire[SettingCodes.MAX_CONCURRENT_STREAMS] = ours.max_streams_local
        connection = self._connection
        connection.local_settings = Settings(self._client, wire)
        connection.decoder.max_header_list_size = ours.max_header_list
        connection.initiate_connection()
        connection.increment_flow_control_window(ours.connection_window - _DEFAULT_WINDOW)

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> None:
        if self._is_dead:
            return
        if self._guard is not None and (fault := self._guard.read(data, now)) is not None:
            self._end(*fault)
            return
        for event in self._connection.receive_data(data):
            self._tell(event)
        self._look_at_connection()

    def _tell(self, event: Event) -> None:
        if self._is_dead:
            pass  # since an earlier event of this read
        elif isinstance(event, DataReceived):
            self._on_data(event)
        elif isinstance(event, ResponseReceived | RequestReceived):
            self._on_head(event)
        else:
            self._on_rare(event)

    def _look_at_connection(self) -> None:
        """After a read: did the connection break in it?"""
        connection = self._connection
        if self._is_dead:
            pass  # since an event of this read
        elif connection.fault:
            self._die(connection.fault)
        elif connection.awaits_overlong_frame:
            self._end(FRAME_SIZE_ERROR, "the peer sent an overlong frame, or no HTTP/2 at all")
        elif self._outbox.n_ready > _MAX_READY:
            self._end(ENHANCE_YOUR_CALM, "the peer takes no answers and asks for more")

    def send_request(self, headers: Headers, end_stream: bool) -> int:
        if self._is_dead or self._is_leaving:
            raise EngineError("the connection takes no new streams")
        if len(self._streams) >= self.peer_max_streams:
            raise EngineError("the peer allows no more streams")
        try:
            stream_id = self._connection.get_next_available_stream_id()
            self._connection.send_headers(stream_id, guarded(headers, _mark), end_stream)
        except H2Error as error:
            raise EngineError(f"no stream can be opened: {error}") from error
        self._streams[stream_id] = _Stream(queue_ended=end_stream, local_ended=end_stream)
        return stream_id

    def send_continue(self, stream_id: int) -> None:
        if stream_id in self._streams:
            try:
                self._connection.send_headers(stream_id, [(b":status", b"100")])
            except H2Error:
                pass  # over, see Engine

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.queue_ended:
            try:
                self._connection.send_headers(stream_id, guarded(headers, _mark), end_stream)
            except H2Error:
                return  # over, see Engine
            stream.queue_ended = end_stream
            if end_stream:
                self._end_local(stream_id)

    def send_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.queue_ended:
            stream.queue_ended = end_stream
            self._outbox.push(stream_id, data, end_stream)

    def queued_bytes(self, stream_id: int) -> int:
        return self._outbox.queued_bytes(stream_id)

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        if stream_id in self._streams:
            try:
                self._connection.reset_stream(stream_id, error_code)
            except H2Error:
                pass  # over, see Engine
            self._forget(stream_id)

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.held:
            n_bytes = min(n_bytes, stream.held)
            stream.held -= n_bytes
            self._connection.acknowledge_received_data(n_bytes, stream_id)

    def widen(self, stream_id: int, n_bytes: int) -> None:
        if stream_id in self._streams:
            try:
                self._connection.increment_flow_control_window(n_bytes, stream_id)
            except H2Error:
                pass  # over, see Engine

    def ping(self) -> None:
        if not self._is_dead:
            self._connection.ping(PING_DATA)

    def forgive(self) -> None:
        self._connection.n_idle = 0

    def goaway(self, *, is_notice: bool = False) -> None:
        if not self._is_dead:
            self._is_leaving = not is_notice
            self._outbox.goaway(NO_ERROR, is_notice=is_notice)

    def close(self) -> None:
        self._is_dead = True
        self._streams.clear()
        self._outbox.let_go()
        self._connection.let_go()

    def take_output(self, limit: int = MAX_OUTPUT) -> bytes:
        self._n_unanswered = 0
        return self._outbox.take(limit)

    def _on_data(self, event: DataReceived) -> None:
        stream_id = event.stream_id
        stream = self._streams.get(stream_id)
        padding = event.flow_controlled_length - len(event.data)
        if stream is None:
            self._connection.acknowledge_received_data(event.flow_controlled_length, stream_id)
            return
        stream.held += len(event.data)
        if padding:  # counts against the windows but is never given to anybody
            self._connection.acknowledge_received_data(padding, stream_id)
        self._handler.on_data(stream_id, event.data, event.stream_ended is not None)
        if event.stream_ended is not None:
            self._end_remote(stream_id, stream)

    def _on_head(self, event: ResponseReceived | RequestReceived) -> None:
        stream_id = event.stream_id
        if isinstance(event, RequestReceived):
            self._streams[stream_id] = _Stream()
            if self._is_leaving:
                self.reset(stream_id, REFUSED_STREAM)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if len(event.headers) > self._settings.max_headers:
            self._refuse(stream_id)
            return
        self._handler.on_head(stream_id, event.headers, event.stream_ended is not None)
        if event.stream_ended is not None:
            self._end_remote(stream_id, stream)

    def _on_rare(self, event: Event) -> None:
        handler = self._handler
        if isinstance(event, TrailersReceived):
            self._on_trailers(event.stream_id, event.headers)
        elif isinstance(event, StreamReset):
            if (stream := self._streams.get(event.stream_id)) is not None:
                self._forget(event.stream_id)
                if not (self._client and stream.remote_ended):
                    handler.on_reset(event.stream_id, int(event.error_code), not event.remote_reset)
        elif isinstance(event, InformationalResponseReceived):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.n_interim += 1
                if stream.n_interim > MAX_INTERIM:
                    self._refuse(event.stream_id)
        elif isinstance(event, WindowUpdated):
            handler.on_window(event.stream_id)
        elif isinstance(event, RemoteSettingsChanged):
            self.peer_max_streams = self._connection.remote_settings.max_concurrent_streams
            handler.on_settings()
            self._count_unanswered()
        elif isinstance(event, PingReceived):
            self._count_unanswered()
        elif isinstance(event, PingAckReceived):
            handler.on_pong()
        elif isinstance(event, ConnectionTerminated):
            self._on_goaway(event.last_stream_id or 0, int(event.error_code or NO_ERROR))

    def _on_trailers(self, stream_id: int, headers: Sequence[Header]) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        try:
            if self._guard is not None:
                check_trailers(headers)
        except MalformedError:
            self._refuse(stream_id)
            return
        self._handler.on_stream_end(stream_id)
        self._end_remote(stream_id, stream)

    def _on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._is_leaving = True
        self._handler.on_goaway(last_stream_id, error_code)
        if self._client:
            for stream_id, stream in [*self._streams.items()]:
                # The handler may reset another one from on_reset; of a whole reply it hears nothing more.
                if stream_id > last_stream_id and stream_id in self._streams:
                    self.reset(stream_id, CANCEL)
                    if not stream.remote_ended:
                        self._handler.on_reset(stream_id, REFUSED_STREAM)

    def _refuse(self, stream_id: int) -> None:
        """End a stream on which the peer went over a limit of ours."""
        self.reset(stream_id, PROTOCOL_ERROR)
        self._handler.on_reset(stream_id, PROTOCOL_ERROR, True)

    def _count_unanswered(self) -> None:
        self._n_unanswered += 1
        if self._n_unanswered > _MAX_UNANSWERED:
            self._end(ENHANCE_YOUR_CALM, "the peer sent too many control frames")

    def _end(self, error_code: int, message: str) -> None:
        """End the connection for what the peer did."""
        self._outbox.goaway(error_code)
        self._die(message)

    def _die(self, message: str) -> None:
        self._is_dead = True
        self._streams.clear()
        self._outbox.clear()
        self._connection.let_go()  # a megabyte, if it died of a flood; the last words may take a while
        self._handler.on_fatal(message)

    def _end_local(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        stream.local_ended = True
        if stream.remote_ended:
            self._forget(stream_id)

    def _end_remote(self, stream_id: int, stream: _Stream) -> None:
        stream.remote_ended = True
        if stream.local_ended and stream_id in self._streams:
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        """Drop a stream that is over; what it took from the connection's window goes back."""
        self._outbox.drop(stream_id)
        held = self._streams.pop(stream_id).held
        if held:
            self._connection.acknowledge_received_data(held, stream_id)


def _mark(header: Header) -> Header:
    return NeverIndexedHeaderTuple(*header)
