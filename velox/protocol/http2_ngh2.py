"""The HTTP/2 engine on ngh2, a binding of libnghttp2: the usual one.

Knows: ngh2's calls, events and gaps. Does not know: sockets, what an exchange means.

What ngh2 leaves to us:
- Above the peer's stream limit it queues silently; send_request() refuses instead.
- It lets a large upload hold up every small request behind it; see http2_ngh2_outbox.py.
- Bytes that a stream held unacknowledged when it closed stay missing from the connection's window for ever;
  they are counted here and given back.
- It closes a stream on which the peer broke a rule only when the RST_STREAM has been serialised; so receive()
  serialises a little output before it looks at the events.
- It holds back an empty DATA frame that ends a stream while the stream's window is closed. Left so: that needs
  a body cut exactly at the window and ended later, and passes when the peer reads.
- Once the peer has broken the connection every call raises, also for what came before in the same read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    DataReceived,
    DenialOfServiceError,
    Event,
    GoAwayReceived,
    InformationalResponseReceived,
    NeverIndexedHeader,
    NGH2Error,
    PingAcknowledged,
    RequestReceived,
    ResponseReceived,
    Role,
    Setting,
    SettingsReceived,
    StreamClosed,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

from velox.protocol.http2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    MAX_IDLE_FRAMES,
    MAX_INTERIM,
    MAX_OUTPUT,
    PING_DATA,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineHandler,
    EngineSettings,
    guarded,
)
from velox.protocol.http2_fields import SharedFields
from velox.protocol.http2_guard import FrameGuard
from velox.protocol.http2_ngh2_frames import goaway_frame, is_idle
from velox.protocol.http2_ngh2_outbox import Outbox
from velox.types import Header, Headers

__all__ = ["Ngh2Engine"]

# Serialised by receive(): enough for its answers and for 1,200 RST_STREAM, with little upload data besides.
_EARLY: Final = 16 << 10
# While a caller can't write no more than this is serialised; then libnghttp2's own limit on answers counts.
_MAX_EARLY: Final = 64 << 10
# What a server reads at once: two frames of the largest size at least, so that 1 MiB of body is 32 calls.
_PIECE: Final = 32 << 10
# Streams at once whose fields are not worth the 1.5 µs that it takes to share them.
_UNSHARED: Final = 8
_UNLIMITED: Final = 2**32 - 1  # RFC 9113 §6.5.2: what settings without a limit on streams mean
# NeverIndexedHeader's own constructor is a Python function and costs twice as much.
_mark: Final = partial(tuple.__new__, NeverIndexedHeader)


class Ngh2Engine:
    """See velox.protocol.http2.Engine."""

    def __init__(self, handler: EngineHandler, settings: EngineSettings, client: bool) -> None:
        self.peer_max_streams = 100
        self._handler: Final = handler
        self._settings: Final = settings
        self._connection: Final = Connection(
            Role.CLIENT if client else Role.SERVER,
            Configuration(auto_window_update=False, max_inbound_header_list_size=settings.max_header_list),
        )
        self._streams: Final[dict[int, int]] = {}  # open streams: bytes received and not acknowledged
        self._outbox: Final = Outbox(self._connection)
        self._interim: Final[dict[int, int]] = {}  # 1xx replies so far, for streams that had one
        self._whole: Final[set[int]] = set()  # a client's streams whose reply is whole and request is not
        self._is_client: Final = client
        self._guard: Final = FrameGuard(settings.max_streams_local) if settings.guards and not client else None
        self._fields: Final = SharedFields()  # of a guard's clients
        self._has_settings = False
        self._early = b""
        self._n_idle = 0  # frames in a row that brought nothing
        self._is_dead = False

    def __repr__(self) -> str:
        return f"<Ngh2Engine client={self._is_client} streams={len(self._streams)} dead={self._is_dead}>"

    @property
    def has_output(self) -> bool:
        try:
            return bool(self._early) or self._connection.want_write
        except NGH2Error:
            return False  # over, see Engine

    def start(self) -> None:
        ours = self._settings
        wire = {
            Setting.INITIAL_WINDOW_SIZE: ours.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: ours.max_header_list,
        }
        if self._is_client:
            wire[Setting.ENABLE_PUSH] = 0
        else:
            wire[Setting.MAX_CONCURRENT_STREAMS] = ours.max_streams_local
        self._connection.initiate_connection(wire)
        self._connection.set_local_window_size(ours.connection_window)

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> None:
        if self._guard is None:
            self._receive(data)
            return
        # Piece by piece: what a flood makes us send is counted after each.
        if len(data) <= _PIECE:
            self._receive_guarded(self._guard, data, now)
            return
        pieces = memoryview(data)
        for at in range(0, len(data), _PIECE):
            self._receive_guarded(self._guard, pieces[at : at + _PIECE], now)

    def _receive_guarded(self, guard: FrameGuard, data: bytes | memoryview, now: float) -> None:
        if not self._is_dead:
            fault = guard.read(data, now)
            if fault is None:
                self._receive(data)
            else:
                self._end(*fault)

    def _receive(self, data: bytes | memoryview) -> None:
        if self._is_dead:
            return
        connection = self._connection
        failure = ""  # not the error: its traceback would keep all of this alive
        is_flood = False
        try:
            connection.receive_data(data)
            if connection.want_write and len(self._early) < _MAX_EARLY:
                self._serialise_early()
        except NGH2Error as error:
            failure = f"{type(error).__name__}: {error}"
            is_flood = isinstance(error, DenialOfServiceError)
        if self._guard is not None and self._guard.fault is not None:
            self._end(*self._guard.fault)
            return
        self._tell()
        if failure:
            self._fail(failure, is_flood=is_flood)

    def _serialise_early(self) -> None:
        early = self._connection.data_to_send(_EARLY)
        self._early += early
        if self._guard is not None:
            self._guard.wrote(early)

    def _tell(self) -> None:
        """Tell the handler what came."""
        streams = self._streams
        on_data = self._handler.on_data
        is_client = self._is_client
        n_idle = self._n_idle
        for event in self._connection.events():
            if type(event) is DataReceived:
                stream_id = event.stream_id
                held = streams.get(stream_id)
                body = event.data
                n_idle = 0 if body else n_idle + 1
                if held is not None:
                    streams[stream_id] = held + len(body)
                    end_stream = event.end_stream
                    if end_stream and is_client:
                        self._whole.add(stream_id)
                    on_data(stream_id, body, end_stream)
                else:
                    self._give_back(stream_id, len(body))
            elif type(event) is ResponseReceived or type(event) is RequestReceived:
                n_idle = 0
                self._on_head(event)
            elif type(event) is StreamClosed:
                self._on_closed(event.stream_id, event.error_code)
            else:
                n_idle += is_idle(event)
                self._on_rare(event)
            if n_idle > MAX_IDLE_FRAMES and self._guard is None:
                self._end(ENHANCE_YOUR_CALM, "the peer sent too many frames that bring nothing")
                break
        self._n_idle = n_idle

    def send_request(self, headers: Headers, end_stream: bool) -> int:
        if len(self._streams) >= self.peer_max_streams:
            raise EngineError("the peer allows no more streams")
        try:
            stream_id = self._connection.send_request(guarded(headers, _mark), end_stream=end_stream)
        except NGH2Error as error:
            raise EngineError(f"no stream can be opened: {error}") from error
        self._streams[stream_id] = 0
        return stream_id

    def send_continue(self, stream_id: int) -> None:
        if stream_id in self._streams:
            try:
                self._connection.send_informational_response(stream_id, [(b":status", b"100")])
            except NGH2Error:
                pass  # over, see Engine

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        if stream_id in self._streams:
            try:
                self._connection.send_response(stream_id, guarded(headers, _mark), end_stream=end_stream)
            except NGH2Error:
                pass  # over, see Engine

    def send_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if stream_id in self._streams:
            self._outbox.push(stream_id, data, end_stream)

    def queued_bytes(self, stream_id: int) -> int:
        return self._outbox.queued_bytes(stream_id) if stream_id in self._streams else 0

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        if stream_id in self._streams:
            try:
                self._connection.reset_stream(stream_id, error_code)
            except NGH2Error:
                pass  # over, see Engine
            self._forget(stream_id)

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        held = self._streams.get(stream_id)
        if held:
            if n_bytes > held:
                n_bytes = held
            self._streams[stream_id] = held - n_bytes
            self._give_back(stream_id, n_bytes)

    def widen(self, stream_id: int, n_bytes: int) -> None:
        if stream_id in self._streams:
            self._outbox.widen(stream_id, n_bytes)

    def ping(self) -> None:
        try:
            self._connection.ping(PING_DATA)
        except NGH2Error:
            pass  # over, see Engine

    def forgive(self) -> None:
        self._n_idle = 0

    def goaway(self, *, is_notice: bool = False) -> None:
        try:
            if is_notice:
                self._connection.send_shutdown_notice()
            else:
                self._connection.send_goaway()
        except NGH2Error:
            pass  # over, see Engine

    def close(self) -> None:
        self._is_dead = True
        self._streams.clear()
        self._outbox.clear()

    def take_output(self, limit: int = MAX_OUTPUT) -> bytes:
        early = self._early
        try:
            output = self._outbox.take(max(0, limit - len(early)))
        except NGH2Error:
            output = b""  # over, see Engine
        if self._guard is not None:
            self._guard.wrote(output)
        if early:
            self._early = b""
            output = early + output
        return output

    def _on_head(self, event: ResponseReceived | RequestReceived) -> None:
        stream_id = event.stream_id
        headers: Sequence[Header] = event.headers
        if type(event) is RequestReceived:
            self._streams[stream_id] = 0
        elif stream_id not in self._streams:
            return  # reset by us a moment ago
        if len(headers) > self._settings.max_headers:
            self._refuse(stream_id)
            return
        if self._guard is not None and len(self._streams) > _UNSHARED:
            headers = self._fields.share(headers)
        if event.end_stream and self._is_client:
            self._whole.add(stream_id)
        self._handler.on_head(stream_id, headers, event.end_stream)

    def _on_closed(self, stream_id: int, error_code: int) -> None:
        if stream_id in self._streams:
            if error_code:
                # A reset by the peer came as StreamReset before; what is refused by its GOAWAY comes as this alone.
                self._lose(stream_id, error_code, by_us=error_code != REFUSED_STREAM)
            else:
                self._forget(stream_id)

    def _lose(self, stream_id: int, error_code: int, *, by_us: bool = False) -> None:
        is_whole = stream_id in self._whole
        self._forget(stream_id)
        if not is_whole:
            self._handler.on_reset(stream_id, error_code, by_us)

    def _on_rare(self, event: Event) -> None:
        handler = self._handler
        match event:
            case StreamReset(stream_id, error_code):
                # StreamClosed follows, but its code 0 could not be told from a proper end.
                if stream_id in self._streams:
                    self._lose(stream_id, error_code)
            case TrailersReceived(stream_id, _):
                if stream_id in self._streams:
                    if self._is_client:
                        self._whole.add(stream_id)
                    handler.on_stream_end(stream_id)
            case InformationalResponseReceived(stream_id, _):
                if stream_id in self._streams:
                    n_interim = self._interim[stream_id] = self._interim.get(stream_id, 0) + 1
                    if n_interim > MAX_INTERIM:
                        self._refuse(stream_id)
            case SettingsReceived(settings):
                unstated = self.peer_max_streams if self._has_settings else _UNLIMITED
                self._has_settings = True
                self.peer_max_streams = settings.get(Setting.MAX_CONCURRENT_STREAMS, unstated)
                handler.on_settings()
            case WindowUpdated(stream_id, _):
                handler.on_window(stream_id)
            case PingAcknowledged():
                handler.on_pong()
            case GoAwayReceived(last_stream_id, error_code, _):
                handler.on_goaway(last_stream_id, error_code)
            case ConnectionClosed(error_code, _):
                if error_code or self._streams:
                    self._die(f"HTTP/2 connection error {error_code}")
                self._is_dead = True  # without a word if a GOAWAY was said and no stream is left
            case _:
                pass  # acknowledgements, priorities, ALTSVC and ORIGIN change nothing for us

    def _refuse(self, stream_id: int) -> None:
        """End a stream on which the peer went over a limit of ours."""
        if stream_id in self._streams:
            self.reset(stream_id, PROTOCOL_ERROR)
            self._handler.on_reset(stream_id, PROTOCOL_ERROR, True)

    def _end(self, error_code: int, message: str) -> None:
        """End the connection for what the peer did."""
        try:
            self._connection.terminate_connection(error_code)
        except NGH2Error:
            pass  # over, see Engine
        self._die(message)

    def _fail(self, message: str, *, is_flood: bool) -> None:
        """The engine can't read on."""
        if self._guard is not None and is_flood:
            # It would leave without a word.
            self._early += goaway_frame(self._guard.highest_stream, ENHANCE_YOUR_CALM)
        self._die(message)

    def _die(self, message: str) -> None:
        if not self._is_dead:
            self._is_dead = True
            self._streams.clear()
            self._outbox.clear()
            self._handler.on_fatal(message)

    def _forget(self, stream_id: int) -> None:
        self._outbox.forget(stream_id)
        self._interim.pop(stream_id, None)
        self._whole.discard(stream_id)
        self._give_back(stream_id, self._streams.pop(stream_id))

    def _give_back(self, stream_id: int, n_bytes: int) -> None:
        """Open the windows again; of a stream that is over, only the connection's."""
        if n_bytes:
            try:
                self._connection.acknowledge_received_data(n_bytes, stream_id)
            except NGH2Error:
                pass  # over, see Engine
