"""Fuzz: what a client sends over HTTP/2, to either engine in the role of a server.

Input: frames, each written as kind, flags, stream, length (a byte each) and payload; a kind from 0xF0 on
stands for raw bytes. Whatever they are:
- an engine raises nothing, and tells of each stream in order: head, body, end; and nothing after an end, a reset, or
  the connection's end;
- how the bytes are cut changes nothing (but when a connection breaks: a frame that came after our reset is no fault
  of its sender's, and one before it is), nor does it matter which engine reads them: both bring the same requests;
- a head is refused, or one request of HTTP/1.1 can be made of it, in h11's reading too;
- an engine writes no more than a few bytes for each that it read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.fuzz.target_head import check_forwarded
from tests.fuzz.wires import Pieces, cuttings
from velox.errors import VeloxError
from velox.heads import Header, RequestHead
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import CANCEL, Engine, EngineSettings
from velox.protocol.http2.h2_engine import H2Engine
from velox.protocol.http2.ngh2_engine import Ngh2Engine
from velox.protocol.http2.request_head import MalformedError, read_head

__all__ = ["run"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_RAW = 0xF0
_DRIPPED_BYTES = 150
# More streams than an input can open: which one is the first too many depends on when the others end.
_SETTINGS = EngineSettings(
    stream_window=2048,
    connection_window=70_000,
    max_streams_local=100,
    max_header_list=2048,
    max_headers=20,
    guards=True,
)
# What we answer to each request; and what an engine may write of its own for what it reads: a SETTINGS or PING costs
# its sender 9 or 17 bytes and is answered by as many, a frame that breaks a rule on a stream by RST_STREAM.
_ANSWER: list[Header] = [(b":status", b"200")]
_BODY = b"answer"
_BYTES_PER_STREAM = 64
_FACTOR = 4
_ALLOWANCE = 512  # our own settings, and a GOAWAY

_LIMITS = Http1Limits(target_bytes=256, header_count=20, body_bytes=4096)


def run(data: bytes) -> None:
    """Speak to both engines. Raises AssertionError, or what a bug raises."""
    wire = b"".join(_frames(data))
    heard = []
    for make in (Ngh2Engine, H2Engine):
        whole = _heard(make, [_PREFACE + wire])
        heard.append(whole)
        for n, pieces in enumerate(cuttings(wire, _DRIPPED_BYTES)):
            if n == 0:
                _heard(make, [_PREFACE, *pieces], writes=True)
            in_pieces = _heard(make, [_PREFACE, *pieces])
            assert _agree(whole, in_pieces), f"{make.__name__}: another story when the bytes are cut"
    if not any(handler.is_broken for handler in heard):
        assert heard[0].requests() == heard[1].requests(), "other requests by the other engine"


def _agree(one: _Handler, other: _Handler) -> bool:
    """True when both were told the same; of a connection that broke, when neither was told what the other denies."""
    if not one.is_broken and not other.is_broken:
        return one.story() == other.story()
    both = one.heads.keys() & other.heads.keys()
    bodies = [sorted((one.bodies[stream_id], other.bodies[stream_id]), key=len) for stream_id in both]
    return all(one.heads[stream_id] == other.heads[stream_id] for stream_id in both) and all(
        longer.startswith(shorter) for shorter, longer in bodies
    )


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(data):
        kind, flags, stream, length = data[at : at + 4]
        payload = data[at + 4 : at + 4 + length]
        at += 4 + length
        if kind >= _RAW:
            yield payload
        else:
            yield len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class _Handler:
    """Writes down what it is told, and objects to what no handler may be told."""

    def __init__(self) -> None:
        self.engine: Engine
        self.heads: dict[int, RequestHead] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.over: set[int] = set()
        self.is_broken = False

    def story(self) -> tuple[object, ...]:
        """What was told of a connection that did not break."""
        return (self.heads, self.bodies, self.ended, self.over)

    def requests(self) -> dict[int, tuple[RequestHead, bytes]]:
        """What an application would have been asked."""
        return {stream_id: (self.heads[stream_id], self.bodies[stream_id]) for stream_id in self.ended - self.over}

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self._check(stream_id)
        assert stream_id not in self.heads, "a second head"
        assert stream_id % 2, "a stream of an even number"
        total = sum(len(name) + len(value) + 32 for name, value in headers)
        assert total <= _SETTINGS.max_header_list and len(headers) <= _SETTINGS.max_headers, "a head over its limits"
        try:
            head = read_head(headers, _LIMITS, end_stream=end_stream)
        except (MalformedError, VeloxError):
            self._give_up(stream_id)
            return
        check_forwarded(head)
        self.heads[stream_id] = head
        self.bodies[stream_id] = b""
        if end_stream:
            self._end(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self._check(stream_id)
        assert stream_id in self.heads, "a body before its head"
        self.bodies[stream_id] += data
        self.engine.acknowledge(stream_id, len(data))
        if len(self.bodies[stream_id]) > 3 * _SETTINGS.stream_window:
            self._give_up(stream_id)
        elif end_stream:
            self._end(stream_id)

    def on_stream_end(self, stream_id: int) -> None:
        self._check(stream_id)
        assert stream_id in self.heads, "an end before its head"
        self._end(stream_id)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        assert not self.is_broken, "a reset after the connection's end"
        assert stream_id not in self.over, "two ends of one stream"
        assert 0 <= error_code < 1 << 32
        self.over.add(stream_id)

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        assert not self.is_broken

    def on_settings(self) -> None:
        assert not self.is_broken

    def on_window(self, stream_id: int) -> None:
        assert not self.is_broken

    def on_pong(self) -> None:
        assert not self.is_broken

    def on_fatal(self, message: str) -> None:
        assert not self.is_broken, "two ends of one connection"
        assert message
        self.is_broken = True

    def _end(self, stream_id: int) -> None:
        self.ended.add(stream_id)

    def answer(self) -> None:
        """Answer what is whole. Not before all was read: an answer makes room for one more stream."""
        for stream_id in self.ended:
            self.engine.send_response(stream_id, _ANSWER, False)
            self.engine.send_data(stream_id, _BODY, True)

    def _give_up(self, stream_id: int) -> None:
        self.over.add(stream_id)
        self.engine.reset(stream_id, CANCEL)

    def _check(self, stream_id: int) -> None:
        assert not self.is_broken, "something after the connection's end"
        assert stream_id not in self.ended and stream_id not in self.over, "something after the end of its stream"


def _heard(make: type[Ngh2Engine] | type[H2Engine], pieces: Pieces, *, writes: bool = False) -> _Handler:
    """Let an engine read the pieces, then answer. writes: its output is taken after each, not only at the end."""
    handler = _Handler()
    engine = handler.engine = make(handler, _SETTINGS, False)
    engine.start()
    n_read = n_written = 0
    for piece in pieces:
        engine.receive(piece)
        n_read += len(piece)
        n_written += _drained(engine) if writes else 0
    handler.answer()
    n_written += _drained(engine)
    allowed = _FACTOR * n_read + _ALLOWANCE + _BYTES_PER_STREAM * len(handler.heads)
    assert n_written <= allowed, f"{make.__name__} wrote {n_written} bytes for {n_read}"
    return handler


def _drained(engine: Engine) -> int:
    """Take all output; return its size. has_output may be True for nothing once."""
    n_bytes = n_empty = 0
    while engine.has_output:
        output = engine.take_output()
        n_bytes += len(output)
        n_empty = 0 if output else n_empty + 1
        assert n_empty < 2, "has_output, and nothing to take"
    return n_bytes
