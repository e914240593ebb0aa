"""What a worker notes of one request for its trace, on its way to the exporter: as MessagePack.

Knows: the fields. Does not know: which attributes they become (spans.py).

Times are Unix time in nanoseconds. Nothing of a prompt or an answer is here but where content is switched on, and no
key: only its id and name.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from velox.protocol.trace_context import TraceParent

__all__ = ["MOST_CHARS", "AttemptRecord", "ContentRecord", "SpanIds", "TraceRecord", "packed", "unpacked"]

# Of what a client has written: a name of 100 KB fills no ring.
MOST_CHARS: Final = 256


class AttemptRecord(msgspec.Struct, array_like=True):
    """One attempt. cause: why it was made; "" for the first. status: 0: none came. error: a reason, "" for none.

    provider: the row of the upstream. model: that was asked for. address: the origin. response_model: that answered.
    """

    span_id: bytes
    upstream: str
    provider: str
    address: str
    model: str
    start_ns: int
    end_ns: int = 0
    cause: str = ""
    status: int = 0
    error: str = ""


class ContentRecord(msgspec.Struct, array_like=True):
    """What was asked and answered, as it came, each up to a bound. is_stream: of events. is_cut: an end is missing.

    is_socket: both are lists of a WebSocket's messages, in MessagePack; is_cut: some are left out.
    """

    asked: bytes
    answered: bytes
    is_stream: bool = False
    is_cut: bool = False
    is_socket: bool = False


class TraceRecord(msgspec.Struct, array_like=True):
    """One request. parent_id: b"" where it begins its trace. is_remote: its parent is the client's.

    is_sampled: by the head sampler; else it is here for the sake of those that failed or were slow. endpoint: of the
    closed list. route: of the configuration. caller: the name of its key. first_ns: to the first byte, from the start.
    Tokens and cost: None: not known. reason: a reason, "" where it ended well.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    trace_state: str
    is_sampled: bool
    start_ns: int
    end_ns: int
    id: str
    method: str
    path: str
    endpoint: str
    status: int
    reason: str = ""
    model: str = ""
    is_stream: bool = False
    is_websocket: bool = False
    route: str = ""
    key_id: str = ""
    caller: str = ""
    team: str = ""
    session: str = ""
    address: str = ""
    first_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_written_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_nano: int | None = None
    tried: str = ""
    attempts: list[AttemptRecord] = []
    content: ContentRecord | None = None


class SpanIds:
    """The ids of one request in its trace, and its attempts so far. is_sampled: the head sampler wants it.

    start_ns: Unix time of its begin. All its other times are that, and what has passed since: a clock that is set
    meanwhile changes no duration.
    """

    __slots__ = ("_began_ns", "attempts", "is_sampled", "parent", "span_id", "start_ns", "trace_id")

    def __init__(self, trace_id: bytes, span_id: bytes, parent: TraceParent | None, *, is_sampled: bool) -> None:
        self.start_ns: Final = time.time_ns()
        self._began_ns: Final = time.monotonic_ns()
        self.trace_id: Final = trace_id
        self.span_id: Final = span_id
        self.parent: Final = parent
        self.is_sampled: Final = is_sampled
        self.attempts: Final[list[AttemptRecord]] = []

    @property
    def parent_id(self) -> bytes:
        """Return the span that it is below; b"": it begins its trace."""
        return b"" if self.parent is None else self.parent.span_id

    @property
    def state(self) -> str:
        """Return what its tracestate says; "" for nothing."""
        return "" if self.parent is None else self.parent.state

    def at(self, now_ns: int) -> int:
        """Return the Unix time of a monotonic one."""
        return self.start_ns + now_ns - self._began_ns

    def now(self) -> int:
        """Return the Unix time."""
        return self.at(time.monotonic_ns())


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(TraceRecord)


def packed(record: TraceRecord) -> bytes:
    """Return a record as bytes."""
    return _ENCODER.encode(record)


def unpacked(message: bytes) -> TraceRecord | None:
    """Read a record; None: it is none, as another version of Velox may write it."""
    try:
        return _DECODER.decode(message)
    except msgspec.DecodeError:
        return None
