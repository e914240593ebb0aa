"""The HTTP/2 engine on ngh2, a binding of libnghttp2: the usual one.

Knows: ngh2's calls, events and gaps. Does not know: sockets, what an exchange means.

What ngh2 leaves to us:
- Above the peer's stream limit it queues silently; send_request() refuses instead.
- It lets a large upload hold up every small request behind it; see Outbox.
- Bytes that a stream held unacknowledged when it closed stay missing from the connection's window for ever;
  they are counted here and given back.
- It closes a stream on which the peer broke a rule only when the RST_STREAM has been serialised; so receive()
  serialises a little output before it looks at the events.
- It holds back an empty DATA frame that ends a stream while the stream's window is closed. Left so: that needs
  a body cut exactly at the window and ended later, and passes when the peer reads.
- Once the peer has broken the connection every call raises, also for what came before in the same read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final, cast

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

from velox.heads import Header, Headers
from velox.protocol.http2.engine import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    LARGE_UPDATE,
    MAX_IDLE_FRAMES,
    MAX_INTERIM,
    MAX_OUTPUT,
    PING_DATA,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineHandler,
    EngineSettings,
    Markable,
    SendQueue,
    guarded,
)
from velox.protocol.http2.guard import FrameGuard

__all__ = ["Ngh2Engine", "SharedFields"]

# Serialised by receive(): enough for its answers and for 1,200 RST_STREAM, with little upload data besides.
_EARLY: Final = 16 << 10
# While a caller can't write no more than this is serialised; then libnghttp2's own limit on answers counts.
_MAX_EARLY: Final = 64 << 10
# What a server reads at once: two frames of the largest size at least, so that 1 MiB of body is 32 calls.
_PIECE: Final = 32 << 10
# Streams at once whose fields are not worth the 1.5 µs that it takes to share them.
_UNSHARED: Final = 8
_UNLIMITED: Final = 2**32 - 1  # RFC 9113 §6.5.2: what settings without a limit on streams mean
_GOAWAY: Final = Struct(">HBBBIII")  # RFC 9113 §6.8
# Events that can't be had without end: each needs a stream, or ends the connection.
_BOUNDED: Final = frozenset(
    {StreamClosed, StreamReset, TrailersReceived, InformationalResponseReceived, ConnectionClosed}
)
# NeverIndexedHeader's own constructor is a Python function and costs twice as much.
_mark: Final = partial(tuple.__new__, NeverIndexedHeader)

# A stream's turn when several have much to send.
_SLICE: Final = 64 << 10
# What ngh2 is given of a stream that may not send: it is a copy, and want_write needs something to speak for.
_WAITING: Final = 1 << 10
# What a stream that sends small pieces may have in ngh2 before the rest waits here.
_MAX_INSIDE: Final = 256 << 10
_UPDATE: Final = 13  # a WINDOW_UPDATE (RFC 9113 §4.1, §6.9)

# Of all fields that are known, as RFC 9113 §6.5.2 counts them: what one head may hold. HPACK's table, which is all that
# can be said in a byte, is smaller.
_MAX_BYTES: Final = 32 << 10
_OVERHEAD: Final = 32


class Ngh2Engine:
    """See velox.protocol.http2.engine.Engine."""

    mark: Final = staticmethod(_mark)

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
        if self._early:
            return True
        try:
            return self._connection.want_write
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
        guard = self._guard
        if guard is not None and len(data) > _PIECE:
            # Piece by piece: what a flood makes us send is counted after each.
            pieces = memoryview(data)
            for at in range(0, len(data), _PIECE):
                self.receive(pieces[at : at + _PIECE], now)
            return
        if self._is_dead:
            return
        if guard is not None:
            fault = guard.read(data, now)
            if fault is not None:
                self._end(*fault)
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
        if guard is not None and guard.fault is not None:
            self._end(*guard.fault)
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
                if body:
                    n_idle = 0
                else:
                    n_idle += 1
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
                if event.stream_id in streams:
                    self._on_closed(event.stream_id, event.error_code)
            else:
                n_idle += _is_idle(event)
                self._on_rare(event)
            if n_idle > MAX_IDLE_FRAMES and self._guard is None:
                self._end(ENHANCE_YOUR_CALM, "the peer sent too many frames that bring nothing")
                break
        self._n_idle = n_idle

    def send_request(
        self, headers: Markable, end_stream: bool, body: bytes | bytearray = b"", *, is_marked: bool = False
    ) -> int:
        if len(self._streams) >= self.peer_max_streams:
            raise EngineError("the peer allows no more streams")
        connection = self._connection
        headers = headers if is_marked else guarded(headers, _mark)
        try:
            stream_id = connection.send_request(headers, end_stream=end_stream and not body)
            if body and len(body) <= _SLICE:
                connection.send_data(stream_id, body, end_stream=end_stream)
        except NGH2Error as error:
            raise EngineError(f"no stream can be opened: {error}") from error
        self._streams[stream_id] = 0
        if len(body) > _SLICE:
            self._outbox.push(stream_id, body, end_stream)
        return stream_id

    def send_continue(self, stream_id: int) -> None:
        if stream_id in self._streams:
            _unless_over(self._connection.send_informational_response, stream_id, [(b":status", b"100")])

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        if stream_id in self._streams:
            try:
                self._connection.send_response(stream_id, guarded(headers, _mark), end_stream=end_stream)
            except NGH2Error:
                pass  # over, see Engine

    def send_data(self, stream_id: int, data: bytes | bytearray, end_stream: bool) -> None:
        if stream_id in self._streams:
            self._outbox.push(stream_id, data, end_stream)

    def queued_bytes(self, stream_id: int) -> int:
        return self._outbox.queued_bytes(stream_id) if stream_id in self._streams else 0

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        if stream_id in self._streams:
            _unless_over(self._connection.reset_stream, stream_id, error_code)
            self._forget(stream_id)

    def finish(self, stream_id: int) -> None:
        held = self._streams.get(stream_id)
        if held is None:
            return  # both sides have ended it
        if self._outbox.queued_bytes(stream_id):
            self.reset(stream_id, CANCEL)
        else:
            self.acknowledge(stream_id, held)

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
        _unless_over(self._connection.ping, PING_DATA)

    def forgive(self) -> None:
        self._n_idle = 0

    def goaway(self, *, is_notice: bool = False) -> None:
        _unless_over(self._connection.send_shutdown_notice if is_notice else self._connection.send_goaway)

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
        _unless_over(self._connection.terminate_connection, error_code)
        self._die(message)

    def _fail(self, message: str, *, is_flood: bool) -> None:
        """The engine can't read on."""
        if self._guard is not None and is_flood:
            # It would leave without a word.
            self._early += _GOAWAY.pack(0, 8, 7, 0, 0, self._guard.highest_stream, ENHANCE_YOUR_CALM)
        self._die(message)

    def _die(self, message: str) -> None:
        if not self._is_dead:
            self._is_dead = True
            self._streams.clear()
            self._outbox.clear()
            self._handler.on_fatal(message)

    def _forget(self, stream_id: int) -> None:
        outbox = self._outbox
        if outbox.waiting or outbox.to_widen:
            outbox.forget(stream_id)
        if self._interim:
            self._interim.pop(stream_id, None)
        self._whole.discard(stream_id)
        held = self._streams.pop(stream_id)
        if held:
            try:
                self._connection.acknowledge_received_data(held, stream_id)  # as _give_back()
            except NGH2Error:
                pass

    def _give_back(self, stream_id: int, n_bytes: int) -> None:
        """Open the windows again; of a stream that is over, only the connection's."""
        if n_bytes:
            try:
                self._connection.acknowledge_received_data(n_bytes, stream_id)
            except NGH2Error:
                pass  # over, see Engine


class Outbox:
    """Body bytes of one connection's streams: small ones go into ngh2 at once, large ones slice by slice, in turns.

    ngh2 sends all that it holds of one stream before it looks at the next: with a large upload inside it, every small
    request behind would wait. It keeps a reference to what it is given, so that only the slices are ever copied.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self.waiting: Final[dict[int, SendQueue]] = {}  # what ngh2 does not hold yet, by stream
        self.to_widen: Final[dict[int, int]] = {}  # by how much, by stream: once its head has left

    def __repr__(self) -> str:
        return f"<Outbox waiting={len(self.waiting)}>"

    def push(self, stream_id: int, data: bytes | bytearray, ended: bool) -> None:
        """Queue body bytes of a stream."""
        connection = self._connection
        queue = self.waiting.get(stream_id)
        if queue is None:
            if len(data) <= _SLICE and connection.queued_body_size(stream_id) <= _MAX_INSIDE - _SLICE:
                try:
                    connection.send_data(stream_id, data, end_stream=ended)
                except NGH2Error:
                    pass  # over, see Engine
                return
            queue = self.waiting[stream_id] = SendQueue()
        queue.push(data, ended)
        self._feed(stream_id, queue)

    def queued_bytes(self, stream_id: int) -> int:
        """Return the body bytes of a stream that are not serialised yet."""
        queue = self.waiting.get(stream_id)
        inside = self._connection.queued_body_size(stream_id)
        return inside if queue is None else inside + queue.n_bytes

    def take(self, limit: int) -> bytes:
        """Return at most `limit` bytes of the connection's output, the streams taking turns."""
        output = self._take_turns(limit) if self.waiting else self._connection.data_to_send(limit)
        return output + self._widen_all() if self.to_widen else output

    def widen(self, stream_id: int, n_bytes: int) -> None:
        """Open a stream's window by so much as soon as its head is serialised: before, ngh2 knows no stream."""
        self.to_widen[stream_id] = n_bytes

    def forget(self, stream_id: int) -> None:
        """Drop what a stream still wanted."""
        self.waiting.pop(stream_id, None)
        self.to_widen.pop(stream_id, None)

    def clear(self) -> None:
        """Drop what any stream still wanted."""
        self.waiting.clear()
        self.to_widen.clear()

    def _widen_all(self) -> bytes:
        connection = self._connection
        n_widened = 0
        for stream_id, n_bytes in [*self.to_widen.items()]:
            try:
                window = connection.stream_local_window_size(stream_id) + n_bytes
                connection.set_local_window_size(window, stream_id=stream_id)
            except NGH2Error:
                continue  # its head has found no room yet
            del self.to_widen[stream_id]
            n_widened += 1
        return connection.data_to_send(n_widened * _UPDATE) if n_widened else b""

    def _take_turns(self, limit: int) -> bytes:
        parts = []
        room = limit
        while room > 0:
            self._feed_all()
            part = self._connection.data_to_send(room)
            if not part:
                break
            parts.append(part)
            room -= len(part)
        # Whoever still waits has a slice in ngh2 from here on, so that its want_write speaks for all.
        self._feed_all()
        return b"".join(parts)

    def _feed_all(self) -> None:
        for stream_id, queue in [*self.waiting.items()]:
            self._feed(stream_id, queue)

    def _feed(self, stream_id: int, queue: SendQueue) -> None:
        """Give ngh2 the stream's next slice if it has sent the last one."""
        if self._connection.queued_body_size(stream_id) == 0:
            piece = queue.take(min(_SLICE, max(self._window(stream_id), _WAITING)))
            is_last = queue.n_bytes == 0
            if is_last:
                del self.waiting[stream_id]
            try:
                self._connection.send_data(stream_id, piece, end_stream=is_last and queue.ended)
            except NGH2Error:
                pass  # over, see Engine

    def _window(self, stream_id: int) -> int:
        """Return how many bytes the peer takes of a stream now."""
        connection = self._connection
        try:
            return min(connection.stream_remote_window_size(stream_id), connection.remote_window_size)
        except NGH2Error:
            return 0  # over, see Engine


class SharedFields:
    """One object for each header field that a connection brings again and again.

    HPACK says a field that came before in one byte. Each time it is decoded into new objects, so that a client could
    fill 32 KiB of memory by a head of 30 bytes, on 100 streams at once (CVE-2026-47774). Shared, a field is in memory
    once for all streams that hold it. Honest clients send the same fields all the time too, so their streams become
    smaller.
    """

    __slots__ = ("_known", "_n_bytes")

    def __init__(self) -> None:
        self._known: Final[dict[Header, Header]] = {}
        self._n_bytes = 0

    def __repr__(self) -> str:
        return f"<SharedFields {len(self._known)}, {self._n_bytes} bytes>"

    def share(self, fields: Sequence[Any]) -> Headers:
        """Return the fields, those that came before as the same objects. A field of a subclass stays what it is."""
        get = self._known.get
        shared: list[Any] = []
        for field in fields:
            known: Any = get(field)
            if known is None or type(field) is not tuple:
                known = self._keep(field)
            shared.append(known)
        return shared

    def _keep(self, field: Any) -> Any:
        if type(field) is tuple:
            self._n_bytes += len(field[0]) + len(field[1]) + _OVERHEAD
            if self._n_bytes > _MAX_BYTES:
                # Starts over: a client that fills it sends as many bytes as it holds.
                self._known.clear()
                self._n_bytes = 0
            else:
                self._known[field] = field
        return field


def _unless_over(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Call a verb of ngh2, which raises when the stream or the connection is over; see Engine."""
    try:
        call(*args, **options)
    except NGH2Error:
        pass


def _is_idle(event: Event) -> bool:
    """True for a frame that brings nothing, of which a peer may send as many as it likes."""
    kind = type(event)
    if kind is WindowUpdated:
        return cast(WindowUpdated, event).increment < LARGE_UPDATE
    return kind not in _BOUNDED
