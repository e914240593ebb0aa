"""The client of a case: says frames, right or wrong, and looks at what comes back.

Knows: frames, HPACK, how a case is judged. Does not know: who is at the other end (see Line), which cases there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from hpack import Encoder
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from velox.heads import Header
from velox.protocol.http2.engine import PREFACE

__all__ = [
    "ACK",
    "COMPRESSION_ERROR",
    "DUMMY",
    "END_HEADERS",
    "END_STREAM",
    "FLOW_CONTROL_ERROR",
    "FRAME_SIZE_ERROR",
    "PADDED",
    "PRIORITY",
    "PROTOCOL_ERROR",
    "REFUSED_STREAM",
    "STREAM_CLOSED",
    "Case",
    "Line",
    "Step",
    "Talker",
    "Verdict",
    "answer",
    "close",
    "connection_error",
    "data_of",
    "end_of_stream",
    "frame",
    "pong",
    "settings_ack",
    "stream_error",
    "uint32",
]

PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
COMPRESSION_ERROR: Final = 9

# Flags; some share a bit.
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

# A field of 4 KB: five of them are more than a frame holds.
DUMMY: Final[Header] = (b"x-dummy", b"x" * 4096)


class Line(Protocol):
    """A connection to a server, with or without a socket."""

    host: bytes

    def write(self, data: bytes) -> None:
        """Send bytes. Nothing happens when the server has closed."""

    def read(self) -> bytes | None:
        """Return what came next; b"" when the server has closed; None when nothing comes."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """Return a frame; length: what it says of itself, if not the truth."""
    n = len(payload) if length is None else length
    return n.to_bytes(3) + bytes((kind, flags)) + uint32(stream_id) + payload


def uint32(number: int) -> bytes:
    """Return four bytes."""
    return number.to_bytes(4)


class Talker:
    """One connection. What comes is kept in order, and looked at once."""

    def __init__(self, line: Line) -> None:
        self._line: Final = line
        self._encoder: Final = Encoder()
        self._buffer = b""
        self.is_closed = False
        self.max_streams = 0
        self.last: Frame | None = None  # for a message, when something else than that was wanted
        self.get: Final[list[Header]] = [
            (b":method", b"GET"),
            (b":scheme", b"http"),
            (b":path", b"/v1/models"),
            (b":authority", line.host),
        ]
        self.post: Final[list[Header]] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/v1/chat/completions"),
            (b":authority", line.host),
            (b"content-type", b"application/json"),
        ]

    # -- saying -----------------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._line.write(data)

    def handshake(self, settings: bytes = b"") -> None:
        """Preface and settings, both ways."""
        self.say(PREFACE + frame(4, 0, 0, settings))
        ours = self.wait(lambda it: isinstance(it, SettingsFrame) and "ACK" not in it.flags)
        assert isinstance(ours, SettingsFrame), f"no SETTINGS from the server, but {self.last}"
        self.max_streams = ours.settings.get(SettingsFrame.MAX_CONCURRENT_STREAMS, 0)
        self.say(frame(4, ACK, 0))
        assert self.wait(lambda it: isinstance(it, SettingsFrame) and "ACK" in it.flags), "no SETTINGS ACK"

    def block(self, headers: Sequence[Header]) -> bytes:
        """Return a header block."""
        return self._encoder.encode(headers)

    def head(self, headers: Sequence[Header], stream_id: int = 1, *, end: bool = True) -> None:
        """Send a whole HEADERS frame."""
        self.say(frame(1, END_HEADERS | end, stream_id, self.block(headers)))

    def data(self, payload: bytes = b"test", stream_id: int = 1, *, end: bool = True) -> None:
        """Send a DATA frame."""
        self.say(frame(0, int(end), stream_id, payload))

    def continuation(self, block: bytes, stream_id: int = 1, *, end: bool = True) -> None:
        """Send a CONTINUATION frame."""
        self.say(frame(9, END_HEADERS if end else 0, stream_id, block))

    def priority(self, stream_id: int = 1, depends_on: int = 0, weight: int = 255) -> None:
        """Send a PRIORITY frame."""
        self.say(frame(2, 0, stream_id, uint32(depends_on) + bytes((weight,))))

    def reset(self, stream_id: int = 1, error_code: int = 8) -> None:
        """Send a RST_STREAM frame."""
        self.say(frame(3, 0, stream_id, uint32(error_code)))

    def setting(self, *pairs: tuple[int, int]) -> None:
        """Send a SETTINGS frame."""
        self.say(frame(4, 0, 0, b"".join(key.to_bytes(2) + uint32(value) for key, value in pairs)))

    def ping(self) -> None:
        """Send a PING frame."""
        self.say(frame(6, 0, 0, b"h2spec\0\0"))

    def window(self, stream_id: int, increment: int) -> None:
        """Send a WINDOW_UPDATE frame."""
        self.say(frame(8, 0, stream_id, uint32(increment)))

    # -- listening --------------------------------------------------------------------------------

    def wait(self, wanted: Callable[[Frame], bool]) -> Frame | None:
        """Return the next frame that is wanted, or None when nothing comes any more or the connection is closed."""
        while True:
            came = self._next()
            if came is None:
                return None
            self.last = came
            if wanted(came):
                return came

    def _next(self) -> Frame | None:
        while True:
            if len(self._buffer) >= 9:
                length = int.from_bytes(self._buffer[:3])
                if len(self._buffer) >= 9 + length:
                    whole, self._buffer = self._buffer[: 9 + length], self._buffer[9 + length :]
                    return _parse(whole)
            came = None if self.is_closed else self._line.read()
            if not came:
                self.is_closed = self.is_closed or came == b""
                return None
            self._buffer += came


def _parse(data: bytes) -> Frame:
    parsed, _ = Frame.parse_frame_header(memoryview(data[:9]))
    try:
        parsed.parse_body(memoryview(data[9:]))
    except HyperframeError as error:
        raise AssertionError(f"the server sent a bad frame: {error}") from error
    return parsed


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case went. is_stricter: the connection ended where the stream would do, which is allowed (§5.4.1)."""

    is_right: bool
    is_stricter: bool = False
    got: str = ""


Step: TypeAlias = Callable[[Talker], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One thing that may be wanted: says it in words, and looks whether it came."""

    words: str
    look: Callable[[Talker], Verdict]


@dataclass(frozen=True, slots=True)
class Case:
    """id: section and number as in h2spec 2.6; what: what the client does; section: of RFC 9113 or RFC 7541."""

    id: str
    what: str
    say: Step
    wanted: Wanted
    shakes_hands: bool = True

    def run(self, line: Line) -> Verdict:
        """Play the case on a new connection."""
        talker = Talker(line)
        if self.shakes_hands:
            talker.handshake()
        self.say(talker)
        return self.wanted.look(talker)


def _got(talker: Talker) -> str:
    words = "nothing" if talker.last is None else repr(talker.last)
    return f"{words}, {'closed' if talker.is_closed else 'open'}"


def connection_error(*codes: int) -> Wanted:
    """GOAWAY with one of these codes."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, GoAwayFrame))
        is_right = isinstance(came, GoAwayFrame) and came.error_code in codes
        return Verdict(is_right, got=_got(talker))

    return Wanted(f"GOAWAY {_names(codes)}", look)


def stream_error(*codes: int, stream_id: int | None = None) -> Wanted:
    """RST_STREAM with one of these codes; GOAWAY with it is stricter."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, GoAwayFrame | RstStreamFrame))
        is_right = isinstance(came, GoAwayFrame | RstStreamFrame) and came.error_code in codes
        if isinstance(came, RstStreamFrame) and stream_id is not None and came.stream_id != stream_id:
            is_right = False
        return Verdict(is_right, isinstance(came, GoAwayFrame), _got(talker))

    return Wanted(f"RST_STREAM {_names(codes)}", look)


def answer(stream_id: int = 1) -> Wanted:
    """HEADERS on the stream."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, HeadersFrame | GoAwayFrame | RstStreamFrame))
        return Verdict(isinstance(came, HeadersFrame) and came.stream_id == stream_id, got=_got(talker))

    return Wanted("an answer", look)


def pong() -> Wanted:
    """PING with ACK, of what was sent."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, PingFrame | GoAwayFrame))
        is_right = isinstance(came, PingFrame) and "ACK" in came.flags and came.opaque_data == b"h2spec\0\0"
        return Verdict(is_right, got=_got(talker))

    return Wanted("PING ACK", look)


def settings_ack() -> Wanted:
    """SETTINGS with ACK."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, SettingsFrame | GoAwayFrame))
        return Verdict(isinstance(came, SettingsFrame) and "ACK" in came.flags, got=_got(talker))

    return Wanted("SETTINGS ACK", look)


def data_of(length: int | None = None) -> Wanted:
    """DATA of that length, of any if None."""

    def look(talker: Talker) -> Verdict:
        came = talker.wait(lambda it: isinstance(it, DataFrame | GoAwayFrame | RstStreamFrame))
        is_right = isinstance(came, DataFrame) and length in (None, came.flow_controlled_length)
        return Verdict(is_right, got=_got(talker))

    return Wanted("DATA" if length is None else f"DATA of {length}", look)


def close() -> Wanted:
    """The end of the connection."""

    def look(talker: Talker) -> Verdict:
        talker.wait(lambda it: False)
        return Verdict(talker.is_closed, got=_got(talker))

    return Wanted("close", look)


def end_of_stream(talker: Talker) -> None:
    """Wait until the server has answered to the end."""
    came = talker.wait(lambda it: isinstance(it, DataFrame | HeadersFrame) and "END_STREAM" in it.flags)
    assert came is not None, f"the request was not answered: {_got(talker)}"


_NAMES: Final = {
    PROTOCOL_ERROR: "PROTOCOL_ERROR",
    FLOW_CONTROL_ERROR: "FLOW_CONTROL_ERROR",
    STREAM_CLOSED: "STREAM_CLOSED",
    FRAME_SIZE_ERROR: "FRAME_SIZE_ERROR",
    REFUSED_STREAM: "REFUSED_STREAM",
    COMPRESSION_ERROR: "COMPRESSION_ERROR",
}


def _names(codes: Sequence[int]) -> str:
    return " or ".join(_NAMES[code] for code in codes)
