"""Peers for the tests of the HTTP/2 engines: a handler that remembers, a pair of engines, a peer made of raw frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

from velox.heads import Header
from velox.protocol.http2.engine import Engine, EngineSettings
from velox.protocol.http2.engines import engine_factory

__all__ = ["OK", "PREFACE", "REQUEST", "Name", "Pair", "RawServer", "Recorder", "make"]

Name = Literal["ngh2", "h2"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"api.example"),
    (b":path", b"/v1/chat/completions"),
    (b"authorization", b"Bearer sk-1"),
]
OK: list[Header] = [(b":status", b"200"), (b"x-request-id", b"r-1")]


class Recorder:
    """A handler that writes down what it is told; acknowledges what it gets when `acknowledges` is set."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self.engine: Engine
        self.acknowledges = acknowledges
        self.heads: dict[int, list[Header]] = {}
        self.bodies: dict[int, bytearray] = {}
        self.ended: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.goaways: list[tuple[int, int]] = []
        self.windows: list[int] = []
        self.fatal: list[str] = []
        self.n_settings = 0
        self.n_pongs = 0

    def body(self, stream_id: int) -> bytes:
        return bytes(self.bodies.get(stream_id, b""))

    def forget(self) -> None:
        """Let go of what was written down, for tests of growth."""
        self.heads.clear()
        self.bodies.clear()
        self.ended.clear()
        self.windows.clear()

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        assert stream_id not in self.heads, "a second head for one stream"
        self.heads[stream_id] = list(headers)
        self._end(stream_id, end_stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        assert stream_id in self.heads, "data before the head"
        assert stream_id not in self.ended, "data after the end"
        self.bodies.setdefault(stream_id, bytearray()).extend(data)
        if self.acknowledges:
            self.engine.acknowledge(stream_id, len(data))
        self._end(stream_id, end_stream)

    def on_stream_end(self, stream_id: int) -> None:
        self._end(stream_id, True)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        self.resets.append((stream_id, error_code))

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self.goaways.append((last_stream_id, error_code))

    def on_settings(self) -> None:
        self.n_settings += 1

    def on_window(self, stream_id: int) -> None:
        self.windows.append(stream_id)

    def on_pong(self) -> None:
        self.n_pongs += 1

    def on_fatal(self, message: str) -> None:
        self.fatal.append(message)

    def _end(self, stream_id: int, end_stream: bool) -> None:
        if end_stream:
            assert stream_id not in self.ended, "two ends of one stream"
            self.ended.append(stream_id)


def make(name: Name, settings: EngineSettings, *, client: bool) -> tuple[Engine, Recorder]:
    """Return a started engine and its handler."""
    recorder = Recorder()
    recorder.engine = engine_factory(name)(recorder, settings, client)
    recorder.engine.start()
    return recorder.engine, recorder


class Pair:
    """Two engines back to back."""

    def __init__(
        self,
        client: Name,
        server: Name,
        client_settings: EngineSettings | None = None,
        server_settings: EngineSettings | None = None,
    ) -> None:
        self.client, self.at_client = make(client, client_settings or EngineSettings(), client=True)
        self.server, self.at_server = make(server, server_settings or EngineSettings(), client=False)
        self.pump()

    def pump(self, limit: int = 1 << 20) -> None:
        """Carry output both ways until both sides are quiet."""
        n_empty = 0
        while self.client.has_output or self.server.has_output:
            up, down = self.client.take_output(limit), self.server.take_output(limit)
            n_empty = 0 if up or down else n_empty + 1
            assert n_empty < 2, "has_output, but take_output() gives nothing"
            if up:
                self.server.receive(up)
            if down:
                self.client.receive(memoryview(down))

    def exchange(self, body: bytes = b"ping", answer: bytes = b"pong") -> int:
        """Run one whole exchange; return its stream."""
        stream_id = self.client.send_request(REQUEST, not body)
        if body:
            self.client.send_data(stream_id, body, True)
        self.pump()
        self.server.send_response(stream_id, OK, not answer)
        if answer:
            self.server.send_data(stream_id, answer, True)
        self.pump()
        return stream_id


class RawServer:
    """A server that says whatever a test wants, right or wrong, to a client engine."""

    def __init__(self, name: Name, settings: EngineSettings | None = None) -> None:
        self.client, self.at_client = make(name, settings or EngineSettings(), client=True)
        self._encoder = Encoder()
        self.send(SettingsFrame(0), SettingsFrame(0, flags=["ACK"]))

    def send(self, *frames: Frame) -> None:
        """Give the client frames in one read."""
        self.client.receive(b"".join(frame.serialize() for frame in frames))

    def request(self, *, end_stream: bool = True) -> int:
        """Let the client open a stream and take what it wrote."""
        stream_id = self.client.send_request(REQUEST, end_stream)
        self.client.take_output()
        return stream_id

    def head(self, stream_id: int, headers: Sequence[Header], *, end_stream: bool = False) -> HeadersFrame:
        flags = ["END_HEADERS", "END_STREAM"] if end_stream else ["END_HEADERS"]
        return HeadersFrame(stream_id, self._encoder.encode(headers), flags=flags)

    def data(self, stream_id: int, data: bytes, *, end_stream: bool = False, padding: int = 0) -> DataFrame:
        frame = DataFrame(stream_id, data, pad_length=padding)
        if padding:
            frame.flags.add("PADDED")
        if end_stream:
            frame.flags.add("END_STREAM")
        return frame
