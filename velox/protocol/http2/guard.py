"""What a client's frames may do to a server of ours, whichever engine reads them.

Knows: frame headers of both directions (RFC 9113 §4.1), which streams a client has ended, how much of what brings
nothing a client may send. Does not know: HPACK, events, what an engine makes of a frame.

It looks at a client's bytes before an engine does: 0.5 µs a frame, so that a flood ends before it has cost anything
else. What it finds ends the connection. That is harsh only to peers that no honest client resembles:

- resets, those we receive and those we are made to send: 100 at once, 33 a second (CVE-2023-44487, CVE-2025-8671);
- frames that bring nothing (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, unknown ones): 200 at once, 20 a
  second, and three more for each DATA frame of ours, which a client may answer by a WINDOW_UPDATE for its stream, one
  for the connection, and a PING that measures the way (CVE-2019-9512, -9515, -9518);
- a header block: 8 CONTINUATION frames, 64 KiB (CVE-2024-27316);
- bodies cut into crumbs: their frame headers may be 16 KiB and an eighth of the bodies, as for chunks of HTTP/1.1;
- a frame on a stream that the client itself has ended or reset (RFC 9113 §5.1): one such ends the connection.

Time is the argument `now` of read(): monotonic seconds.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from velox.protocol.http2.engine import (
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
)

__all__ = ["Fault", "FrameGuard"]

# Length (two parts), type, flags, stream: RFC 9113 §4.1.
_HEADER: Final = Struct(">HBBBI")
_UINT32: Final = Struct(">I")
_STREAM_MASK: Final = 2**31 - 1
_DATA: Final = 0x0
_HEADERS: Final = 0x1
_PRIORITY: Final = 0x2
_RST_STREAM: Final = 0x3
_SETTINGS: Final = 0x4
_CONTINUATION: Final = 0x9
_LOOKED_INTO: Final = frozenset({_HEADERS, _PRIORITY})  # beyond the frame header
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_HAS_PRIORITY: Final = 0x20

_RESET_BURST: Final = 100
_RESETS_PER_S: Final = 33.0
_IDLE_BURST: Final = 200
_IDLE_PER_S: Final = 20.0
# How many frames that bring nothing one DATA frame of ours justifies, and how many a client may save up: as many as
# a client sends that reads a whole window of small frames only after a while.
_PER_DATA: Final = 3
_MAX_JUSTIFIED: Final = 4_000
_MAX_CONTINUATIONS: Final = 8
_MAX_BLOCK: Final = 64 << 10
# Entries of 6 bytes; there are nine settings, and libnghttp2 takes 32 entries.
_MAX_SETTINGS: Final = 32 * 6
# As ChunkedDecoder: a frame header is overhead of 9 bytes. What ends a stream may be small: many bodies are.
_OVERHEAD_BYTES: Final = 16 << 10
_OVERHEAD_SHARE: Final = 8
_OVERHEAD_OF_STREAM: Final = 64
_MAX_PADDING: Final = 256  # with the byte that says how much it is
# Streams that are over and still known. What a client sent before it saw our reset comes within a round trip, in which
# the allowance for resets lets no more become so.
_MAX_OVER: Final = 200


class Fault(NamedTuple):
    """Why the connection ends: an error code of RFC 9113 §7, and a message for logs."""

    error_code: int
    message: str


class _Allowance:
    """So many at once, so many a second."""

    __slots__ = ("_burst", "_left", "_per_s", "_since_s")

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst: Final = burst
        self._per_s: Final = per_s
        self._left = float(burst)
        self._since_s = 0.0

    def spend(self, now: float) -> bool:
        """Take one; False if there is none."""
        left = min(self._burst, self._left + (now - self._since_s) * self._per_s)
        self._since_s = now
        self._left = left - 1.0
        return left >= 1.0


class FrameGuard:
    """The guard of one connection. n_streams: how many streams the client has opened so far.

    max_streams: that may be open at once; the engine sees to it, and only streams it does not see are counted here.
    """

    __slots__ = (
        "_abandoned",
        "_block_bytes",
        "_block_stream",
        "_ended",
        "_highest",
        "_idle",
        "_is_overdrawn",
        "_justified",
        "_max_open",
        "_n_continuations",
        "_now",
        "_open",
        "_overhead",
        "_partial_in",
        "_partial_out",
        "_resets",
        "_skip_in",
        "_skip_out",
        "n_streams",
    )

    def __init__(self, max_streams: int) -> None:
        self.n_streams = 0
        self._max_open: Final = 2 * max_streams
        self._resets: Final = _Allowance(_RESET_BURST, _RESETS_PER_S)
        self._idle: Final = _Allowance(_IDLE_BURST, _IDLE_PER_S)
        self._is_overdrawn = False  # of resets
        self._justified = 0
        self._overhead = 0
        self._highest = 0
        self._open: Final[set[int]] = set()  # streams that the client has opened and not ended
        # The last streams that are over: ended by the client; reset by us, when its frames may be on their way.
        self._ended: Final[dict[int, None]] = {}
        self._abandoned: Final[dict[int, None]] = {}
        self._block_stream = 0  # of the header block that is not whole, or 0
        self._block_bytes = 0
        self._n_continuations = 0
        self._now = 0.0
        self._partial_in = self._partial_out = b""
        self._skip_in = len(PREFACE)
        self._skip_out = 0

    def __repr__(self) -> str:
        return f"<FrameGuard streams={self.n_streams} open={len(self._open)} overdrawn={self._is_overdrawn}>"

    @property
    def highest_stream(self) -> int:
        """The last stream that the client has opened."""
        return self._highest

    @property
    def fault(self) -> Fault | None:
        """What made the connection unbearable by frames of ours: too many resets."""
        return _RESET_FLOOD if self._is_overdrawn else None

    def read(self, data: bytes | memoryview, now: float) -> Fault | None:
        """Look at what the client sent, in any pieces. After a fault nothing more of it may be looked at."""
        self._now = now
        if self._is_overdrawn:
            return _RESET_FLOOD
        if self._partial_in:
            data = self._partial_in + bytes(data)
            self._partial_in = b""
        at, end = self._skip_in, len(data)
        while at + 9 <= end:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(data, at)
            if kind in _LOOKED_INTO and at + 9 + _looked_at(kind, flags) > end:
                break
            fault = self._judge(kind, flags, stream_id & _STREAM_MASK, high << 8 | low, data, at + 9)
            if fault is not None:
                return fault
            at += 9 + (high << 8 | low)
        if at < end:
            self._skip_in = 0
            self._partial_in = bytes(data[at:])
        else:
            self._skip_in = at - end
        return None

    def wrote(self, data: bytes) -> None:
        """Look at frames of ours on their way out, in any pieces. For an engine that can't tell us one by one."""
        if self._partial_out:
            data = self._partial_out + data
            self._partial_out = b""
        at, end = self._skip_out, len(data)
        while at + 9 <= end:
            high, low, kind, _, stream_id = _HEADER.unpack_from(data, at)
            if kind == _DATA:
                self.sent_data()
            elif kind == _RST_STREAM:
                if at + 13 > end:
                    break
                self.sent_reset(stream_id, _UINT32.unpack_from(data, at + 9)[0])
            at += 9 + (high << 8 | low)
        self._skip_out = max(0, at - end)
        if at < end:
            self._partial_out = data[at:]

    def sent_data(self) -> None:
        """A DATA frame of ours goes out; the client may answer it."""
        if self._justified < _MAX_JUSTIFIED:
            self._justified += _PER_DATA

    def sent_reset(self, stream_id: int, error_code: int) -> None:
        """A RST_STREAM of ours goes out. All but INTERNAL_ERROR, which is for replies cut by others, count."""
        self._move(stream_id, self._abandoned)
        if error_code != INTERNAL_ERROR and not self._resets.spend(self._now):
            self._is_overdrawn = True

    def _judge(
        self, kind: int, flags: int, stream_id: int, length: int, data: bytes | memoryview, at: int
    ) -> Fault | None:
        """Judge one frame of the client, whose payload begins at data[at]."""
        if self._block_stream and kind != _CONTINUATION:
            return Fault(PROTOCOL_ERROR, "a frame is in the midst of a header block")
        if kind == _DATA:
            return self._judge_data(flags, stream_id, length)
        if kind == _HEADERS:
            return self._judge_headers(flags, stream_id, length, data, at)
        if kind == _CONTINUATION:
            return self._judge_continuation(flags, stream_id, length)
        if kind == _RST_STREAM:
            self._move(stream_id, self._ended)
            return None if self._resets.spend(self._now) else _RESET_FLOOD
        if kind == _PRIORITY and length == 5 and _depends_on(data, at) == stream_id:
            return _SELF_DEPENDENCY
        if kind == _SETTINGS and length:
            if flags & _ACK:
                return Fault(FRAME_SIZE_ERROR, "SETTINGS ACK says something")
            if length > _MAX_SETTINGS:
                return _IDLE_FLOOD
        return self._judge_idle()

    def _judge_data(self, flags: int, stream_id: int, length: int) -> Fault | None:
        if stream_id not in self._open and 0 < stream_id <= self._highest and stream_id not in self._abandoned:
            return Fault(STREAM_CLOSED, "DATA on a stream that the client had ended")
        if flags & _PADDED:
            # Whatever the padding says, it can't hide more than this.
            length = max(0, length - _MAX_PADDING)
        if flags & _END_STREAM:
            self._move(stream_id, self._ended)
            overhead = self._overhead - _OVERHEAD_OF_STREAM
            if overhead < 0:
                overhead = 0
        elif not length:
            return self._judge_idle()
        else:
            overhead = self._overhead
        overhead += 9 - length // _OVERHEAD_SHARE
        self._overhead = overhead if overhead > 0 else 0
        return _CRUMBS if overhead > _OVERHEAD_BYTES else None

    def _judge_headers(
        self, flags: int, stream_id: int, length: int, data: bytes | memoryview, at: int
    ) -> Fault | None:
        if stream_id > self._highest:
            self._highest = stream_id
            self.n_streams += 1
            self._open.add(stream_id)
            if len(self._open) > self._max_open:
                return Fault(ENHANCE_YOUR_CALM, "the client opens streams that are never accepted")
        elif stream_id in self._ended:
            return Fault(STREAM_CLOSED, "HEADERS on a stream that the client had ended")
        elif stream_id not in self._open and stream_id not in self._abandoned:
            return Fault(PROTOCOL_ERROR, "HEADERS for a lower stream than the last one")
        if flags & _END_STREAM:
            self._move(stream_id, self._ended)
        if not flags & _END_HEADERS:
            self._block_stream = stream_id
            self._block_bytes = length
            self._n_continuations = 0
        if flags & _HAS_PRIORITY and _depends_on(data, at + bool(flags & _PADDED)) == stream_id:
            return _SELF_DEPENDENCY
        return None

    def _judge_continuation(self, flags: int, stream_id: int, length: int) -> Fault | None:
        if stream_id != self._block_stream or not stream_id:
            return Fault(PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._n_continuations += 1
        self._block_bytes += length
        if self._n_continuations > _MAX_CONTINUATIONS or self._block_bytes > _MAX_BLOCK:
            return Fault(ENHANCE_YOUR_CALM, "a header block has too many or too large parts")
        if flags & _END_HEADERS:
            self._block_stream = 0
        return None

    def _judge_idle(self) -> Fault | None:
        """A frame that brings nothing: our own DATA justifies it, or the allowance pays."""
        if self._justified:
            self._justified -= 1
            return None
        return None if self._idle.spend(self._now) else _IDLE_FLOOD

    def _move(self, stream_id: int, over: dict[int, None]) -> None:
        """Note that a stream is over, as far as the client's frames go."""
        if stream_id in self._open:
            self._open.discard(stream_id)
            over[stream_id] = None
            if len(over) > _MAX_OVER:
                del over[next(iter(over))]


_RESET_FLOOD: Final = Fault(ENHANCE_YOUR_CALM, "too many streams are reset")
_IDLE_FLOOD: Final = Fault(ENHANCE_YOUR_CALM, "too many frames that bring nothing")
_CRUMBS: Final = Fault(ENHANCE_YOUR_CALM, "bodies come in crumbs")
_SELF_DEPENDENCY: Final = Fault(PROTOCOL_ERROR, "a stream depends on itself")


def _looked_at(kind: int, flags: int) -> int:
    """Return how much of a frame's payload is looked at."""
    if kind == _PRIORITY:
        return 4
    if kind == _HEADERS and flags & _HAS_PRIORITY:
        return 5 if flags & _PADDED else 4
    return 0


def _depends_on(data: bytes | memoryview, at: int) -> int:
    stream_id: int = _UINT32.unpack_from(data, at)[0]
    return stream_id & _STREAM_MASK
