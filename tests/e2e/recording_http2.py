"""The scripted upstream's HTTP/2, on the `h2` library.

Knows: frames and windows of the server side, how to refuse, reset and go away. Does not know: scripts (recording.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import GoAwayFrame

from tests.e2e.recorded_call import Call, Connection, Fields

if TYPE_CHECKING:  # each upstream has connections, each connection has its upstream
    from tests.e2e.recording import RecordingUpstream

__all__ = ["Http2Call", "Http2Connection"]


class Http2Connection(Connection):
    """One HTTP/2 connection; what is received is acknowledged at once."""

    def __init__(self, upstream: RecordingUpstream) -> None:
        super().__init__(upstream)
        config = h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        self.h2 = h2.connection.H2Connection(config)
        self.calls: dict[int, Http2Call] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.h2.initiate_connection()
        if self.upstream.http2_settings:
            self.h2.update_settings(self.upstream.http2_settings)
        self.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        for call in tuple(self.calls.values()):
            call.note_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self._on_event(event)
        self.flush()

    def flush(self) -> None:
        """Write what the library has to say."""
        data = self.h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _on_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream_id), headers=headers):
                fields = [(str(name), str(value)) for name, value in headers or ()]
                call = self.calls[stream_id] = Http2Call(self, stream_id, fields)
                self.upstream.began(call)
            case h2.events.DataReceived(stream_id=int(stream_id), data=bytes(data)):
                self.calls[stream_id].pieces.append(data)
                if self.calls[stream_id].takes_body:
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
                else:
                    self.calls[stream_id].n_withheld += event.flow_controlled_length or 0
            case h2.events.StreamEnded(stream_id=int(stream_id)):
                call = self.calls[stream_id]
                call.body = b"".join(call.pieces)
                self.upstream.play(call)
            case h2.events.StreamReset(stream_id=int(stream_id)):
                if stream_id in self.calls:
                    call = self.calls.pop(stream_id)
                    if call.n_withheld:  # RFC 9113 §6.9: what a dead stream took still counts for the connection
                        self.h2.increment_flow_control_window(call.n_withheld)
                    call.note_left(event.error_code)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for call in self.calls.values():
                    call.window_opened.set()
            case _:
                pass


class Http2Call(Call):
    """A call over HTTP/2."""

    def __init__(self, link: Http2Connection, stream_id: int, fields: Fields) -> None:
        pseudo = {name: value for name, value in fields if name.startswith(":")}
        rest = [(name, value) for name, value in fields if not name.startswith(":")]
        super().__init__(link, pseudo[":method"], pseudo[":path"], rest)
        self.pseudo = pseudo
        self.stream_id = stream_id
        self.pieces: list[bytes] = []
        self.window_opened = asyncio.Event()
        self.takes_body = True  # False: no window is given for the request's body
        self.n_withheld = 0
        self._connection = link

    def __repr__(self) -> str:
        h2 = self._connection.h2
        window = "?" if self.ended else h2.local_flow_control_window(self.stream_id)
        state = f"stream={self.stream_id} window={window} of {h2.outbound_flow_control_window}"
        return f"{super().__repr__()[:-1]} {state}>"

    async def head(self, status: int, fields: Fields = ()) -> None:
        self._send(lambda h2: h2.send_headers(self.stream_id, [(":status", str(status)), *fields]))

    async def interim(self, status: int, fields: Fields = ()) -> None:
        await self.head(status, fields)

    async def data(self, data: bytes) -> None:
        connection = self._connection
        while data and not self.left_s:
            room = min(connection.h2.local_flow_control_window(self.stream_id), connection.h2.max_outbound_frame_size)
            if room <= 0:
                self.window_opened.clear()
                await self._unless_left(self._wait_window())
                continue
            piece, data = data[:room], data[room:]
            self._send(lambda h2, piece=piece: h2.send_data(self.stream_id, piece))  # type: ignore[misc]

    async def end(self) -> None:
        self.note_end("answered")
        self._send(lambda h2: h2.end_stream(self.stream_id))
        self._connection.calls.pop(self.stream_id, None)

    def cut(self) -> None:
        self.reset(h2.errors.ErrorCodes.INTERNAL_ERROR)

    def refuse(self) -> None:
        """RST_STREAM(REFUSED_STREAM): no work was done."""
        self.reset(h2.errors.ErrorCodes.REFUSED_STREAM)

    def reset(self, error_code: int) -> None:
        """RST_STREAM."""
        self.note_end(f"reset {int(error_code)}")
        self._connection.calls.pop(self.stream_id, None)
        self._send(lambda h2: h2.reset_stream(self.stream_id, error_code))

    def goaway(self, last_stream_id: int, error_code: int = 0) -> None:
        """GOAWAY; the streams that are open go on."""
        frame = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=error_code)
        self._connection.flush()
        self._connection.transport.write(frame.serialize())

    def lose(self) -> None:
        self.note_end("lost")
        self._connection.transport.abort()

    async def _wait_window(self) -> None:
        await self.window_opened.wait()

    def _send(self, verb: Callable[[h2.connection.H2Connection], None]) -> None:
        """Do it unless the gateway has reset the stream meanwhile."""
        if self.left_s:
            return
        verb(self._connection.h2)
        self._connection.flush()
