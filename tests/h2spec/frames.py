"""Cases of frames, streams and errors: section http2 of h2spec 2.6 up to §7, written anew.

Knows: what the client says, what is wanted. Does not know: who is at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.h2spec.generic import both, get, post
from tests.h2spec.talker import (
    ACK,
    COMPRESSION_ERROR,
    DUMMY,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PADDED,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    Case,
    Step,
    Talker,
    answer,
    close,
    connection_error,
    data_of,
    end_of_stream,
    frame,
    pong,
    settings_ack,
    stream_error,
    uint32,
)
from velox.protocol.http2.engine import PREFACE

__all__ = ["FRAMES"]

_ZEROS: Final = bytes(8)
_UNKNOWN: Final = frame(0x16, 0, 0, _ZEROS)
_LARGEST: Final = 2**31 - 1
_WINDOW: Final = 4


def _say(data: bytes) -> Step:
    return lambda it: it.say(data)


def _more(*, end: bool = True, stream_id: int = 1) -> Step:
    """A CONTINUATION that would be right in a header block."""
    return lambda it: it.continuation(it.block([(b"x-dummy", b"1")]), stream_id, end=end)


def _open_block(flags: int = 0) -> Step:
    """HEADERS whose block goes on."""
    return lambda it: it.say(frame(1, flags, 1, it.block(it.post)))


def _get(stream_id: int) -> Step:
    return lambda it: it.head(it.get, stream_id)


def _data(*, end: bool = True) -> Step:
    return lambda it: it.data(end=end)


def _window(stream_id: int, increment: int) -> Step:
    return lambda it: it.window(stream_id, increment)


def _set(*pairs: tuple[int, int]) -> Step:
    return lambda it: it.setting(*pairs)


def _too_many_streams(talker: Talker) -> None:
    talker.setting((_WINDOW, 0))
    for n in range(talker.max_streams + 1):
        talker.head(talker.get, 2 * n + 1)


def _preface_alone(talker: Talker) -> None:
    talker.say(PREFACE + frame(4, 0, 0, b"\0\4" + uint32(65_535)))


def _bad_padding_of_head(talker: Talker) -> None:
    block = talker.block(talker.get)
    talker.say(frame(1, END_STREAM | END_HEADERS | PADDED, 1, bytes((len(block) + 2,)) + block))


def _head_on_itself(talker: Talker) -> None:
    payload = uint32(1) + b"\xff" + talker.block(talker.get)
    talker.say(frame(1, END_STREAM | END_HEADERS | PRIORITY, 1, payload))


def _large_head(talker: Talker) -> None:
    talker.head([*talker.get, *[(DUMMY[0], DUMMY[1] + bytes((n + 48,))) for n in range(8)]])


def _negative_window(talker: Talker) -> None:
    talker.setting((_WINDOW, 3))
    talker.head(talker.get)
    data_of(3).look(talker)
    talker.setting((_WINDOW, 2))
    talker.window(1, 2)


_SECTIONS_3_TO_5: Final[Sequence[Case]] = [
    Case("http2/3.5/1", "preface", both(_preface_alone, Talker.ping), pong(), shakes_hands=False),
    Case("http2/3.5/2", "no preface", _say(b"INVALID CONNECTION PREFACE\r\n\r\n"), close(), shakes_hands=False),
    Case("http2/4.1/1", "frame of unknown type", both(_say(_UNKNOWN), Talker.ping), pong()),
    Case("http2/4.1/2", "undefined flags", _say(frame(6, 0x16, 0, b"h2spec\0\0")), pong()),
    Case("http2/4.1/3", "reserved bit", _say(frame(6, 0, 1 << 31, b"h2spec\0\0")), pong()),
    Case("http2/4.2/1", "DATA of 16,384", both(post, lambda it: it.data(b" " * 16_384)), answer()),
    Case(
        "http2/4.2/2", "DATA of 16,385", both(post, lambda it: it.data(b" " * 16_385)), stream_error(FRAME_SIZE_ERROR)
    ),
    Case("http2/4.2/3", "HEADERS over 16,384", _large_head, connection_error(FRAME_SIZE_ERROR)),
    Case(
        "http2/4.3/1", "block that ends in a field", _say(frame(1, 5, 1, b"\x40")), connection_error(COMPRESSION_ERROR)
    ),
    Case(
        "http2/4.3/2",
        "PRIORITY in a block",
        both(_open_block(), Talker.priority, _more()),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/4.3/3", "HEADERS in a block", both(_open_block(), _get(3), _more()), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/1", "idle: DATA", _data(), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/2", "idle: RST_STREAM", Talker.reset, connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/3", "idle: WINDOW_UPDATE", _window(1, 100), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/4", "idle: CONTINUATION", _more(), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1/5", "half-closed (remote): DATA", both(get, _data()), stream_error(STREAM_CLOSED)),
    Case("http2/5.1/6", "half-closed (remote): HEADERS", both(get, get), stream_error(STREAM_CLOSED)),
    Case(
        "http2/5.1/7",
        "half-closed (remote): CONTINUATION",
        both(get, _more()),
        stream_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("http2/5.1/8", "reset: DATA", both(post, Talker.reset, _data()), stream_error(STREAM_CLOSED)),
    Case("http2/5.1/9", "reset: HEADERS", both(post, Talker.reset, get), stream_error(STREAM_CLOSED)),
    Case(
        "http2/5.1/10",
        "reset: CONTINUATION",
        both(post, Talker.reset, _more()),
        stream_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("http2/5.1/11", "closed: DATA", both(get, end_of_stream, _data()), connection_error(STREAM_CLOSED)),
    Case("http2/5.1/12", "closed: HEADERS", both(get, end_of_stream, get), connection_error(STREAM_CLOSED)),
    Case(
        "http2/5.1/13",
        "closed: CONTINUATION",
        both(get, end_of_stream, _more()),
        connection_error(STREAM_CLOSED, PROTOCOL_ERROR),
    ),
    Case("http2/5.1.1/1", "even stream", _get(2), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1.1/2", "lower stream than the last", both(_get(5), _get(3)), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.1.2/1", "too many streams", _too_many_streams, stream_error(PROTOCOL_ERROR, REFUSED_STREAM)),
    Case("http2/5.3.1/1", "HEADERS that depend on themselves", _head_on_itself, stream_error(PROTOCOL_ERROR)),
    Case(
        "http2/5.3.1/2", "PRIORITY that depends on itself", lambda it: it.priority(1, 1), stream_error(PROTOCOL_ERROR)
    ),
    Case("http2/5.4.1/1", "connection error: close", _say(frame(6, 0, 3, _ZEROS)), close()),
    Case("http2/5.4.1/2", "connection error: GOAWAY", _say(frame(6, 0, 3, _ZEROS)), connection_error(PROTOCOL_ERROR)),
    Case("http2/5.5/1", "unknown extension", both(_say(_UNKNOWN), Talker.ping), pong()),
    Case(
        "http2/5.5/2",
        "unknown extension in a block",
        both(_open_block(), _say(_UNKNOWN)),
        connection_error(PROTOCOL_ERROR),
    ),
]

_SECTION_6: Final[Sequence[Case]] = [
    Case("http2/6.1/1", "DATA on stream 0", lambda it: it.data(stream_id=0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.1/2", "DATA on a half-closed stream", both(get, _data()), stream_error(STREAM_CLOSED)),
    Case(
        "http2/6.1/3",
        "DATA, padding too long",
        both(post, _say(frame(0, 9, 1, b"\x06test"))),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.2/1",
        "PRIORITY after HEADERS without END_HEADERS",
        both(_open_block(), Talker.priority),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.2/2",
        "HEADERS after HEADERS without END_HEADERS",
        both(_open_block(), _get(3)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.2/3", "HEADERS on stream 0", _get(0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.2/4", "HEADERS, padding too long", _bad_padding_of_head, stream_error(PROTOCOL_ERROR)),
    Case("http2/6.3/1", "PRIORITY on stream 0", lambda it: it.priority(0), connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.3/2", "PRIORITY of 4 bytes", both(get, _say(frame(2, 0, 1, uint32(3)))), stream_error(FRAME_SIZE_ERROR)
    ),
    Case("http2/6.4/1", "RST_STREAM on stream 0", lambda it: it.reset(0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.4/2", "RST_STREAM on an idle stream", Talker.reset, connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.4/3",
        "RST_STREAM of 3 bytes",
        both(get, _say(frame(3, 0, 1, b"\0\0\0"))),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Case(
        "http2/6.5/1", "SETTINGS ACK with a payload", _say(frame(4, ACK, 0, b"\0")), connection_error(FRAME_SIZE_ERROR)
    ),
    Case(
        "http2/6.5/2", "SETTINGS on stream 1", _say(frame(4, 0, 1, b"\0\3\0\0\0\x64")), connection_error(PROTOCOL_ERROR)
    ),
    Case(
        "http2/6.5/3",
        "SETTINGS of 8 bytes",
        _say(frame(4, 0, 0, b"\0\3\0\0\0\x64\0\2")),
        connection_error(PROTOCOL_ERROR, FRAME_SIZE_ERROR),
    ),
    Case("http2/6.5.2/1", "ENABLE_PUSH 2", _set((2, 2)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.5.2/2", "INITIAL_WINDOW_SIZE 2^31", _set((4, 1 << 31)), connection_error(FLOW_CONTROL_ERROR)),
    Case("http2/6.5.2/3", "MAX_FRAME_SIZE 16,383", _set((5, 16_383)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.5.2/4", "MAX_FRAME_SIZE 2^24", _set((5, 1 << 24)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.5.2/5", "unknown setting", both(_set((0xFF, 1)), Talker.ping), pong()),
    Case("http2/6.5.3/1", "two values of one setting", both(_set((4, 100), (4, 1)), get), data_of(1)),
    Case("http2/6.5.3/2", "SETTINGS are acknowledged", _set((2, 0)), settings_ack()),
    Case("http2/6.7/1", "PING", Talker.ping, pong()),
    Case("http2/6.7/2", "PING ACK is not answered", both(_say(frame(6, ACK, 0, b"invalid\0")), Talker.ping), pong()),
    Case("http2/6.7/3", "PING on stream 1", _say(frame(6, 0, 1, _ZEROS)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.7/4", "PING of 6 bytes", _say(frame(6, 0, 0, bytes(6))), connection_error(FRAME_SIZE_ERROR)),
    Case("http2/6.8/1", "GOAWAY on stream 1", _say(frame(7, 0, 1, _ZEROS)), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.9/1", "WINDOW_UPDATE of 0", _window(0, 0), connection_error(PROTOCOL_ERROR)),
    Case("http2/6.9/2", "WINDOW_UPDATE of 0 on a stream", both(post, _window(1, 0)), stream_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.9/3", "WINDOW_UPDATE of 3 bytes", _say(frame(8, 0, 0, b"\0\0\1")), connection_error(FRAME_SIZE_ERROR)
    ),
    Case("http2/6.9.1/1", "initial window of 1", both(_set((4, 1)), get), data_of(1)),
    Case(
        "http2/6.9.1/2",
        "connection's window over 2^31-1",
        both(_window(0, _LARGEST), _window(0, _LARGEST)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Case(
        "http2/6.9.1/3",
        "stream's window over 2^31-1",
        both(post, _window(1, _LARGEST), _window(1, _LARGEST)),
        stream_error(FLOW_CONTROL_ERROR),
    ),
    Case("http2/6.9.2/1", "window changed by SETTINGS", both(_set((4, 0)), get, _set((4, 1))), data_of(1)),
    Case("http2/6.9.2/2", "window made negative by SETTINGS", _negative_window, data_of(1)),
    Case("http2/6.9.2/3", "INITIAL_WINDOW_SIZE too large", _set((4, 1 << 31)), connection_error(FLOW_CONTROL_ERROR)),
    Case(
        "http2/6.10/1",
        "two CONTINUATION",
        both(lambda it: it.say(frame(1, END_STREAM, 1, it.block(it.get))), _more(end=False), _more()),
        answer(),
    ),
    Case(
        "http2/6.10/2",
        "CONTINUATION, then DATA",
        both(_open_block(), _more(end=False), _data()),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/3",
        "CONTINUATION on stream 0",
        both(_open_block(), _more(stream_id=0)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/6.10/4", "CONTINUATION after END_HEADERS", both(post, _more()), connection_error(PROTOCOL_ERROR)),
    Case(
        "http2/6.10/5",
        "CONTINUATION after CONTINUATION with END_HEADERS",
        both(_open_block(), _more(), _more()),
        connection_error(PROTOCOL_ERROR),
    ),
    Case(
        "http2/6.10/6",
        "CONTINUATION after DATA",
        both(_open_block(), _data(), _more(end=False), _more(stream_id=0)),
        connection_error(PROTOCOL_ERROR),
    ),
    Case("http2/7/1", "GOAWAY with an unknown code", _say(frame(7, 0, 0, uint32(0) + uint32(0xFF))), close()),
    Case("http2/7/2", "RST_STREAM with an unknown code", both(post, lambda it: it.reset(1, 0xFF), Talker.ping), pong()),
]

FRAMES: Final[Sequence[Case]] = [*_SECTIONS_3_TO_5, *_SECTION_6]
