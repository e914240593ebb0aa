"""AWS event stream frames: recorded streams, any cut, wrong bytes. botocore's reader says what is right."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.converse.frames import EventFrame, Frames

_STREAMS = recorded("bedrock", "converse-stream")


def frame_of(payload: bytes, **headers: Any) -> bytes:
    """Write a frame; in names of headers, _ is -. Values: str, bytes, bool, int."""
    written = b"".join(_header(name.replace("_", "-"), value) for name, value in headers.items())
    return raw_frame(written, payload)


def raw_frame(headers: bytes, payload: bytes) -> bytes:
    """Write a frame with headers that are written already."""
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    start = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return start + struct.pack(">I", zlib.crc32(start))


def event(name: str, payload: bytes) -> bytes:
    """Write an event as Bedrock does."""
    return frame_of(payload, **{":event-type": name, ":content-type": "application/json", ":message-type": "event"})


def _header(name: str, value: str | bytes | bool | int) -> bytes:
    start = bytes([len(name)]) + name.encode()
    match value:
        case bool():
            return start + bytes([0 if value else 1])
        case int():
            return start + b"\x04" + struct.pack(">i", value)
        case str():
            return start + b"\x07" + struct.pack(">H", len(value.encode())) + value.encode()
        case bytes():
            return start + b"\x06" + struct.pack(">H", len(value)) + value


def _by_botocore(data: bytes) -> list[EventFrame]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    found = []
    for message in buffer:
        headers = message.headers
        kind = headers.get(":message-type", "event")
        if kind == "error":
            name, text = headers.get(":error-code", ""), headers.get(":error-message", "")
        else:
            name, text = headers.get(":exception-type" if kind == "exception" else ":event-type", ""), ""
        found.append(EventFrame(kind.encode(), name.encode(), text.encode(), message.payload))
    return found


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_frames_of_a_recorded_stream_are_those_that_botocore_reads(exchange: Exchange) -> None:
    frames = Frames()

    assert frames.feed(exchange.reply) == _by_botocore(exchange.reply) != []
    assert frames.is_between


@pytest.mark.parametrize("exchange", _STREAMS, ids=str)
def test_pitfall_33_frames_cut_at_each_byte(exchange: Exchange) -> None:
    """33: frames cut at each byte, and at any others, are the same frames."""
    whole = Frames().feed(exchange.reply)
    by_bytes = Frames()
    assert [frame for byte in exchange.reply for frame in by_bytes.feed(bytes([byte]))] == whole

    chance = random.Random(33)
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(exchange.reply)), 5))
        frames = Frames()
        parts = [exchange.reply[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert [frame for part in parts for frame in frames.feed(part)] == whole


def test_pitfall_33_frame_with_a_wrong_checksum_is_broken() -> None:
    """33: whichever byte is another one, no frame comes of it, or the lengths make it wait for more."""
    right = event("contentBlockDelta", b'{"contentBlockIndex":0,"delta":{"text":"Hi"}}')
    for at in range(len(right)):
        wrong = bytearray(right)
        wrong[at] ^= 0x10

        with pytest.raises(BrokenReplyError):
            Frames().feed(bytes(wrong) + right)


def test_pitfall_33_frame_over_the_bound_is_broken_before_it_has_come() -> None:
    """33: n-1 and n bytes pass; of n+1 the first twelve bytes are enough."""
    for n, is_right in ((199, True), (200, True), (201, False)):
        data = raw_frame(b"", bytes(n - 16))
        if is_right:
            assert len(Frames(200).feed(data)) == 1
        else:
            with pytest.raises(BrokenReplyError, match="201 bytes; the limit is 200"):
                Frames(200).feed(data[:12])


def test_frame_with_lengths_that_do_not_fit_is_broken() -> None:
    for total, n_headers in ((0, 0), (15, 0), (20, 5), (16, 2**32 - 1)):
        lengths = struct.pack(">II", total, n_headers)
        with pytest.raises(BrokenReplyError, match="lengths"):
            Frames().feed(lengths + struct.pack(">I", zlib.crc32(lengths)))


def test_frame_reads_headers_of_all_types() -> None:
    values = [
        (0, b""),
        (1, b""),
        (2, b"1"),
        (3, b"12"),
        (4, b"1234"),
        (5, b"12345678"),
        (8, b"12345678"),
        (9, b"x" * 16),
    ]
    headers = b"".join(b"\x01" + bytes([97 + kind, kind]) + value for kind, value in values)
    data = raw_frame(headers + _header(":message-type", "exception") + _header(":exception-type", "x"), b"{}")

    assert Frames().feed(data) == [EventFrame(b"exception", b"x", b"", b"{}")] == _by_botocore(data)


def test_frame_of_an_error_has_its_code_and_message() -> None:
    data = frame_of(b"", **{":message-type": "error", ":error-code": "InternalError", ":error-message": "An error"})

    assert Frames().feed(data) == [EventFrame(b"error", b"InternalError", b"An error", b"")]


@pytest.mark.parametrize("headers", [b"\x01", b"\x05abc", b"\x01a", b"\x01a\x0a", b"\x01a\x07\x00", b"\x01a\x04\x00"])
def test_frame_with_a_broken_header_is_broken(headers: bytes) -> None:
    with pytest.raises(BrokenReplyError, match="header"):
        Frames().feed(raw_frame(headers, b""))


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_garbage_raises_nothing_else(data: bytes, headers: bytes) -> None:
    for wrong in (data, raw_frame(headers, data)):
        try:
            Frames().feed(wrong)
        except BrokenReplyError:
            pass


@given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=50)), max_size=6), st.data())
def test_frames_are_those_that_botocore_reads(events: list[tuple[str, bytes]], data: st.DataObject) -> None:
    stream = b"".join(event(name, payload) for name, payload in events)
    frames, at, found = Frames(), 0, []
    while at < len(stream):
        n = data.draw(st.integers(1, len(stream)))
        found += frames.feed(stream[at : at + n])
        at += n

    assert found == _by_botocore(stream)
