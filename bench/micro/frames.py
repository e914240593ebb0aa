"""Both HTTP/2 engines, in both roles: a whole request, and a chunk of a streamed reply.

What the other side sends is recorded once, and then told to each engine: only one side's time is taken.

Knows: Velox's engines (protocol/http2/engine.py), and h2 as its documentation uses it. Does not know: sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final, Literal, Protocol, TypeAlias

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed
from bench.payloads import API_KEY, CHAT_PATH, CHAT_REPLY, SSE_CHUNK, SSE_LAST, chat_body
from velox.heads import Header, Headers
from velox.protocol.http2.engine import INGRESS_SETTINGS, Engine, EngineSettings
from velox.protocol.http2.engines import engine_factory

__all__ = ["N_CHUNKS", "SUBJECT"]

N_CHUNKS: Final = 100
# As many exchanges on one connection: more would be told what the first ones told.
_N_REQUESTS: Final = 200
_N_STREAMS: Final = 20
_BODY: Final = chat_body(stream=False)
_CHUNKS: Final = (SSE_CHUNK,) * (N_CHUNKS - 1) + (SSE_LAST,)
_REQUEST: Final[Headers] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"api.example.com"),
    (b":path", CHAT_PATH.encode()),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 2.8.0"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-package-version", b"2.8.0"),
    (b"x-stainless-os", b"Linux"),
    (b"x-stainless-arch", b"x64"),
    (b"x-stainless-runtime", b"CPython"),
    (b"x-stainless-retry-count", b"0"),
    (b"authorization", f"Bearer {API_KEY}".encode()),
    (b"content-length", str(len(_BODY)).encode()),
]
_REPLY: Final[Headers] = [
    (b":status", b"200"),
    (b"content-type", b"application/json"),
    (b"x-request-id", b"req-00000001"),
    (b"openai-processing-ms", b"153"),
    (b"content-length", str(len(CHAT_REPLY)).encode()),
]
_STREAM: Final[Headers] = [(b":status", b"200"), (b"content-type", b"text/event-stream")]

_Kind: TypeAlias = Literal["requests", "streams"]


@dataclass(slots=True)
class Seen:
    """What a side was told of one stream."""

    headers: list[Header] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False


class Side(Protocol):
    """One side of a connection, as it is used here. seen: by stream; whoever looks at it forgets it."""

    seen: dict[int, Seen]

    def request(self, headers: Headers, body: bytes) -> int:
        """Send a request; return its stream."""

    def respond(self, stream_id: int, headers: Headers) -> None:
        """Send the head of a reply."""

    def send(self, stream_id: int, data: bytes, end: bool) -> None:
        """Send more of a reply."""

    def receive(self, data: bytes) -> None:
        """Take what the other side sent."""

    def output(self) -> bytes:
        """Return what is to be written."""


class _Velox:
    """An engine behind Velox's adapter, with a handler that does no more than the others."""

    def __init__(self, name: Literal["ngh2", "h2"], *, client: bool) -> None:
        self.seen: dict[int, Seen] = {}
        # As a worker has it: clients are strangers, whose frames are counted; upstreams are not.
        settings = EngineSettings() if client else INGRESS_SETTINGS
        self._engine: Final[Engine] = engine_factory(name)(self, settings, client)
        self._engine.start()
        self.respond: Final = partial(self._engine.send_response, end_stream=False)
        self.send: Final = self._engine.send_data
        self.receive: Final = self._engine.receive

    def request(self, headers: Headers, body: bytes) -> int:
        stream_id = self._engine.send_request(headers, False)
        self._engine.send_data(stream_id, body, True)
        return stream_id

    def output(self) -> bytes:
        return self._engine.take_output() if self._engine.has_output else b""

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self.seen[stream_id] = Seen(list(headers), is_whole=end_stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        seen = self.seen[stream_id]
        seen.body += data
        seen.is_whole = end_stream
        self._engine.acknowledge(stream_id, len(data))

    def on_stream_end(self, stream_id: int) -> None:
        self.seen[stream_id].is_whole = True

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        raise AssertionError(f"stream {stream_id} was reset: {error_code}")

    def on_fatal(self, message: str) -> None:
        raise AssertionError(message)

    def on_goaway(self, last_stream_id: int, error_code: int) -> None: ...

    def on_settings(self) -> None: ...

    def on_window(self, stream_id: int) -> None: ...

    def on_pong(self) -> None: ...


class _H2:
    """h2 by itself."""

    def __init__(self, *, client: bool) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection

        self.seen: dict[int, Seen] = {}
        self._connection: Final = H2Connection(H2Configuration(client_side=client, header_encoding=None))
        self._connection.initiate_connection()
        self.output: Final = self._connection.data_to_send

    def request(self, headers: Headers, body: bytes) -> int:
        stream_id = self._connection.get_next_available_stream_id()
        self._connection.send_headers(stream_id, headers)
        self._connection.send_data(stream_id, body, end_stream=True)
        return stream_id

    def respond(self, stream_id: int, headers: Headers) -> None:
        self._connection.send_headers(stream_id, headers)

    def send(self, stream_id: int, data: bytes, end: bool) -> None:
        self._connection.send_data(stream_id, data, end_stream=end)

    def receive(self, data: bytes) -> None:
        from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded

        for event in self._connection.receive_data(data):
            if isinstance(event, DataReceived):
                self.seen[event.stream_id].body += event.data
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, RequestReceived | ResponseReceived):
                self.seen[event.stream_id] = Seen([(bytes(name), bytes(value)) for name, value in event.headers])
            elif isinstance(event, StreamEnded):
                self.seen[event.stream_id].is_whole = True


_Make: TypeAlias = Callable[..., Side]


# -- what the other side sends ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Script:
    """What one side is sent: at first, and for each exchange before each thing that it does itself."""

    start: bytes = b""
    steps: list[list[bytes]] = field(default_factory=list)


class _Pair:
    """Two sides back to back; what each is sent is written down."""

    def __init__(self) -> None:
        self.client, self.server = _Velox("ngh2", client=True), _Velox("ngh2", client=False)
        self.to_client, self.to_server = _Script(), _Script()
        self.to_client.start, self.to_server.start = self.pump()

    def pump(self) -> tuple[bytes, bytes]:
        """Carry output both ways until both are quiet; return what went to the client, and to the server."""
        downs, ups = b"", b""
        while True:
            up, down = self.client.output(), self.server.output()
            if not up and not down:
                return downs, ups
            if up:
                self.server.receive(up)
            if down:
                self.client.receive(down)
            downs, ups = downs + down, ups + up


@cache
def _recorded(kind: _Kind) -> tuple[_Script, _Script]:
    """Return what a client is sent in all exchanges of a kind, and what a server is."""
    pair = _Pair()
    head, parts, n = (_REPLY, (CHAT_REPLY,), _N_REQUESTS) if kind == "requests" else (_STREAM, _CHUNKS, _N_STREAMS)
    for _ in range(n):
        stream_id = pair.client.request(_REQUEST, _BODY)
        down, up = pair.pump()
        downs, ups = [down], [up]
        pair.server.respond(stream_id, head)
        for at, part in enumerate(parts, start=1):
            pair.server.send(stream_id, part, at == len(parts))
            down, up = pair.pump()
            downs.append(down)
            ups.append(up)
        pair.to_client.steps.append(downs)
        pair.to_server.steps.append(ups)
    return pair.to_client, pair.to_server


# -- one side, told of it ---------------------------------------------------------------------------------------------


def _as_client(side: Side, steps: Sequence[Sequence[bytes]], kind: _Kind) -> Iterator[Seen]:
    """Ask, and read what comes: an exchange with each step."""
    for step in steps:
        stream_id = side.request(_REQUEST, _BODY)
        side.output()
        for data in step:
            if data:
                side.receive(data)
                side.output()
        yield side.seen.pop(stream_id)


def _as_server(side: Side, steps: Sequence[Sequence[bytes]], kind: _Kind) -> Iterator[Seen]:
    """Read a request, and answer it."""
    head, parts = (_REPLY, (CHAT_REPLY,)) if kind == "requests" else (_STREAM, _CHUNKS)
    for step in steps:
        side.receive(step[0])
        ((stream_id, seen),) = side.seen.items()
        del side.seen[stream_id]
        side.respond(stream_id, head)
        for at, part in enumerate(parts, start=1):
            side.send(stream_id, part, at == len(parts))
            side.output()
            if step[at]:
                side.receive(step[at])
        yield seen


def _played(make: _Make, kind: _Kind, *, client: bool, n: int) -> tuple[float, list[Seen]]:
    """Play `n` exchanges on one connection; return the seconds that one side took, and what it saw."""
    script = _recorded(kind)[0 if client else 1]
    side = make(client=client)
    side.output()
    side.receive(script.start)
    side.output()
    play = _as_client if client else _as_server
    began_s = time.thread_time()
    seen = list(play(side, script.steps[:n], kind))
    return time.thread_time() - began_s, seen


def _begin(make: _Make, kind: _Kind, client: bool) -> Timed:
    most = len(_recorded(kind)[0].steps)

    def timed(n: int) -> float:
        took_s = 0.0
        while n > 0:
            took_s += _played(make, kind, client=client, n=min(n, most))[0]
            n -= most
        return took_s

    return timed


def _answers(make: _Make, kind: _Kind, client: bool) -> Answers:
    """Say what was seen; and what a usual client makes of what a server sends, or a server of what a client does."""
    _, seen = _played(make, kind, client=client, n=5)
    return {
        "heads": [each.headers for each in seen],
        "bodies": [each.body for each in seen],
        "ends": [each.is_whole for each in seen],
        "understood": _understood(make, client=client),
    }


def _understood(make: _Make, *, client: bool) -> object:
    """Speak with an engine of the other role; return what that one saw."""
    side, peer = make(client=client), _Velox("ngh2", client=not client)
    ends: tuple[Side, Side] = (side, peer) if client else (peer, side)
    _carry(*ends)
    stream_id = ends[0].request(_REQUEST, _BODY)
    _carry(*ends)
    ends[1].respond(stream_id, _REPLY)
    ends[1].send(stream_id, CHAT_REPLY, True)
    _carry(*ends)
    seen = peer.seen[stream_id]
    return seen.headers, seen.body, seen.is_whole


def _carry(client: Side, server: Side) -> None:
    while True:
        up, down = client.output(), server.output()
        if not up and not down:
            return
        if up:
            server.receive(up)
        if down:
            client.receive(down)


def _case(name: str, kind: _Kind, *, client: bool) -> Case:
    ways: dict[str, _Make] = {"Velox, ngh2": partial(_Velox, "ngh2"), "Velox, h2": partial(_Velox, "h2"), "h2": _H2}
    return Case(
        name,
        tuple(
            Candidate(
                way,
                partial(_begin, make, kind, client),
                partial(_answers, make, kind, client),
                ("h2",) if way.endswith("h2") else (),
            )
            for way, make in ways.items()
        ),
        N_CHUNKS if kind == "streams" else 1,
    )


SUBJECT: Final = Subject(
    "frames",
    "a request or a chunk",
    (
        _case("a request, as client", "requests", client=True),
        _case("a request, as server", "requests", client=False),
        _case("a chunk received, as client", "streams", client=True),
        _case("a chunk sent, as server", "streams", client=False),
    ),
)
