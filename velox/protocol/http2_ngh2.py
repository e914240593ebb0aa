"""The HTTP/2 engine on ngh2, a binding of libnghttp2: the usual one.

Knows: ngh2's calls, events and gaps. Does not know: sockets, what an exchange means.

What ngh2 leaves to us:
- Above the peer's stream limit it queues silently; send_request() refuses instead.
- It sends the whole queue of one stream before the next one's, so a large upload would hold up every small
  request behind it. Large bodies are fed to it slice by slice, and all streams take turns.
- Bytes that a stream held unacknowledged when it closed stay missing from the connection's window for ever;
  they are counted here and given back.
- It closes a stream on which the peer broke a rule only when the RST_STREAM has been serialised; so receive()
  serialises a little output before it looks at the events.
- Once the peer has broken the connection every call raises, also for what came before in the same read.
"""

from __future__ import annotations

from typing import Final

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    DataReceived,
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
    MAX_INTERIM,
    MAX_OUTPUT,
    PING_DATA,
    PROTOCOL_ERROR,
    EngineError,
    EngineHandler,
    EngineSettings,
    SendQueue,
    guarded,
)
from velox.types import Headers

__all__ = ["Ngh2Engine"]

# A stream's turn when several have much to send; also what one send_data() may put into ngh2 at once.
_SLICE: Final = 64 << 10
# What a stream that sends small pieces may have in ngh2 before the rest waits here.
_ENGINE_QUEUE: Final = 256 << 10
# Serialised by receive(): enough for its answers and for 1,200 RST_STREAM, with little upload data besides.
_EARLY: Final = 16 << 10
# While a caller can't write no more than this is serialised; then libnghttp2's own limit on answers counts.
_MAX_EARLY: Final = 64 << 10


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
        self._uploads: Final[dict[int, SendQueue]] = {}  # what waits for its turn in ngh2
        self._interim: Final[dict[int, int]] = {}  # 1xx replies so far, for streams that had one
        self._early = b""
        self._is_dead = False

    def __repr__(self) -> str:
        return f"<Ngh2Engine {self._connection.role.value} streams={len(self._streams)} dead={self._is_dead}>"

    @property
    def has_output(self) -> bool:
        # A waiting upload counts only with something in ngh2: else it has sent all that its window allows.
        return bool(self._early) or self._connection.want_write

    def start(self) -> None:
        ours = self._settings
        wire = {
            Setting.INITIAL_WINDOW_SIZE: ours.stream_window,
            Setting.MAX_HEADER_LIST_SIZE: ours.max_header_list,
        }
        if self._connection.role is Role.CLIENT:
            wire[Setting.ENABLE_PUSH] = 0
        else:
            wire[Setting.MAX_CONCURRENT_STREAMS] = ours.max_streams_local
        self._connection.initiate_connection(wire)
        self._connection.set_local_window_size(ours.connection_window)

    def receive(self, data: bytes | memoryview) -> None:
        if self._is_dead:
            return
        connection = self._connection
        failure = ""
        try:
            connection.receive_data(data)
            if connection.want_write and len(self._early) < _MAX_EARLY:
                self._early += connection.data_to_send(_EARLY)
        except NGH2Error as error:
            failure = f"{type(error).__name__}: {error}"
        streams = self._streams
        on_data = self._handler.on_data
        for event in connection.events():
            if type(event) is DataReceived:
                stream_id = event.stream_id
                held = streams.get(stream_id)
                body = event.data
                if held is not None:
                    streams[stream_id] = held + len(body)
                    on_data(stream_id, body, event.end_stream)
                else:
                    self._give_back(stream_id, len(body))
            elif type(event) is ResponseReceived or type(event) is RequestReceived:
                self._on_head(event)
            elif type(event) is StreamClosed:
                self._on_closed(event.stream_id, event.error_code)
            else:
                self._on_rare(event)
        if failure:
            self._die(failure)

    def send_request(self, headers: Headers, end_stream: bool) -> int:
        if len(self._streams) >= self.peer_max_streams:
            raise EngineError("the peer allows no more streams")
        try:
            stream_id = self._connection.send_request(
                guarded(headers, NeverIndexedHeader), end_stream=end_stream
            )
        except NGH2Error as error:
            raise EngineError(f"no stream can be opened: {error}") from error
        self._streams[stream_id] = 0
        return stream_id

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        if stream_id in self._streams:
            try:
                self._connection.send_response(
                    stream_id, guarded(headers, NeverIndexedHeader), end_stream=end_stream
                )
            except NGH2Error:
                pass  # over, see Engine

    def send_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        if stream_id not in self._streams:
            return
        connection = self._connection
        queue = self._uploads.get(stream_id)
        if queue is None:
            if len(data) <= _SLICE and connection.queued_body_size(stream_id) <= _ENGINE_QUEUE - _SLICE:
                self._hand_over(stream_id, data, end_stream)
                return
            queue = self._uploads[stream_id] = SendQueue()
        queue.push(data, end_stream)
        self._feed(stream_id, queue)

    def queued_bytes(self, stream_id: int) -> int:
        if stream_id not in self._streams:
            return 0
        queue = self._uploads.get(stream_id)
        waiting = queue.n_bytes if queue is not None else 0
        return waiting + self._connection.queued_body_size(stream_id)

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
            n_bytes = min(n_bytes, held)
            self._streams[stream_id] = held - n_bytes
            self._give_back(stream_id, n_bytes)

    def ping(self) -> None:
        try:
            self._connection.ping(PING_DATA)
        except NGH2Error:
            pass  # over, see Engine

    def goaway(self) -> None:
        try:
            self._connection.send_goaway()
        except NGH2Error:
            pass  # over, see Engine

    def take_output(self, limit: int = MAX_OUTPUT) -> bytes:
        early, self._early = self._early, b""
        try:
            if not self._uploads:
                output = self._connection.data_to_send(limit)
                return early + output if early else output
            parts = [early]
            size = len(early)
            while size < limit:
                for stream_id, queue in [*self._uploads.items()]:
                    self._feed(stream_id, queue)
                part = self._connection.data_to_send(limit - size)
                if not part:
                    break
                parts.append(part)
                size += len(part)
        except NGH2Error:
            # Only a connection that is ending fails here; receive() has told, or will tell, on_fatal.
            return early
        return b"".join(parts)

    def _on_head(self, event: ResponseReceived | RequestReceived) -> None:
        stream_id = event.stream_id
        headers = event.headers
        if type(event) is RequestReceived:
            self._streams[stream_id] = 0
        elif stream_id not in self._streams:
            return  # reset by us a moment ago
        if len(headers) > self._settings.max_headers:
            self._refuse(stream_id)
            return
        if self._interim:
            self._interim.pop(stream_id, None)
        self._handler.on_head(stream_id, headers, event.end_stream)

    def _on_closed(self, stream_id: int, error_code: int) -> None:
        if stream_id in self._streams:
            self._forget(stream_id)
            if error_code:
                self._handler.on_reset(stream_id, error_code)

    def _on_rare(self, event: Event) -> None:
        handler = self._handler
        match event:
            case StreamReset(stream_id, error_code):
                # StreamClosed follows, but its code 0 could not be told from a proper end.
                if stream_id in self._streams:
                    self._forget(stream_id)
                    handler.on_reset(stream_id, error_code)
            case TrailersReceived(stream_id, _):
                if stream_id in self._streams:
                    handler.on_stream_end(stream_id)
            case InformationalResponseReceived(stream_id, _):
                n_interim = self._interim[stream_id] = self._interim.get(stream_id, 0) + 1
                if n_interim > MAX_INTERIM:
                    self._refuse(stream_id)
            case SettingsReceived():
                self.peer_max_streams = self._connection.remote_settings[Setting.MAX_CONCURRENT_STREAMS]
                handler.on_settings()
            case WindowUpdated(stream_id, _):
                handler.on_window(stream_id)
            case PingAcknowledged():
                handler.on_pong()
            case GoAwayReceived(last_stream_id, error_code, _):
                handler.on_goaway(last_stream_id, error_code)
            case ConnectionClosed(error_code, _):
                # Code 0 and no stream: both sides have said GOAWAY or nobody has anything left to do.
                if error_code or self._streams:
                    self._die(f"HTTP/2 connection error {error_code}")
            case _:
                pass  # acknowledgements, priorities, ALTSVC and ORIGIN change nothing for us

    def _refuse(self, stream_id: int) -> None:
        """End a stream on which the peer went over a limit of ours."""
        if stream_id in self._streams:
            self.reset(stream_id, PROTOCOL_ERROR)
            self._handler.on_reset(stream_id, PROTOCOL_ERROR)

    def _die(self, message: str) -> None:
        if not self._is_dead:
            self._is_dead = True
            self._streams.clear()
            self._uploads.clear()
            self._handler.on_fatal(message)

    def _feed(self, stream_id: int, queue: SendQueue) -> None:
        """Give ngh2 the stream's next slice if it has sent the last one."""
        if self._connection.queued_body_size(stream_id) == 0:
            piece = queue.take(_SLICE)
            is_last = queue.n_bytes == 0
            if is_last:
                del self._uploads[stream_id]
            self._hand_over(stream_id, piece, queue.ended and is_last)

    def _hand_over(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        try:
            self._connection.send_data(stream_id, data, end_stream=end_stream)
        except NGH2Error:
            pass  # over, see Engine

    def _forget(self, stream_id: int) -> None:
        self._uploads.pop(stream_id, None)
        self._interim.pop(stream_id, None)
        self._give_back(stream_id, self._streams.pop(stream_id))

    def _give_back(self, stream_id: int, n_bytes: int) -> None:
        """Open the windows again; of a stream that is over, only the connection's."""
        if n_bytes:
            try:
                self._connection.acknowledge_received_data(n_bytes, stream_id)
            except NGH2Error:
                pass  # over, see Engine
