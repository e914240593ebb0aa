"""Where WebSocket frames end, however the bytes are cut; the Close frame that is Velox's own; a client's messages.

The frames are written, and ours are read, by the `websockets` library, which is the other reading of RFC 6455 §5.2.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ProtocolError
from websockets.frames import Close, Frame, Opcode

from velox.protocol.websocket.frames import FrameReader, TooLongError, close_code_of
from velox.protocol.websocket.handshake import GOING_AWAY, NO_CODE, FrameScanner, close_frame

SIZES = [0, 1, 2, 125, 126, 127, 65535, 65536, 70000]


def wire(opcode: Opcode, payload: bytes, *, fin: bool = True, mask: bool = False) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=mask)


def boundaries(data: bytes, cuts: list[int]) -> list[int]:
    """Return where the scanner stands between two frames, looking after each byte's worth of a piece's end."""
    scanner, found, begin = FrameScanner(), [], 0
    for end in [*sorted(set(cuts)), len(data)]:
        at = begin
        while at < end:
            # A frame's end inside the piece is where feed_frame() stops.
            at = begin + scanner.feed_frame(data[begin:end], at - begin)
            if scanner.between:
                found.append(at)
        begin = end
    return found


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_frame_ends_with_its_last_byte(size: int, mask: bool) -> None:
    """§5.2: each of the three ways to write a length, masked or not; not a byte sooner, not a byte later."""
    data = wire(Opcode.BINARY, bytes(size), mask=mask)

    scanner = FrameScanner()
    scanner.feed(data[:-1])
    assert not scanner.between
    scanner.feed(data[-1:])
    assert scanner.between
    scanner.feed(b"\x82")
    assert not scanner.between


frames = st.tuples(
    st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG]),
    st.integers(0, 300).map(bytes) | st.sampled_from([65535, 65536]).map(bytes),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(frames, min_size=1, max_size=6), st.data())
def test_any_chunking_gives_the_same_boundaries(given_frames: list[tuple[Opcode, bytes, bool, bool]], data: st.DataObject) -> None:  # fmt: skip # noqa: E501
    """The scanner stands between two frames at the ends of frames and nowhere else, however the bytes are cut."""
    wires = [
        wire(opcode, payload[:125] if opcode >= Opcode.CLOSE else payload, fin=fin or opcode >= Opcode.CLOSE, mask=mask)
        for opcode, payload, fin, mask in given_frames
    ]
    stream = b"".join(wires)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))

    ends = [sum(map(len, wires[: n + 1])) for n in range(len(wires))]
    assert boundaries(stream, []) == ends
    assert boundaries(stream, cuts) == ends


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=30))
def test_any_bytes_read_the_same_however_cut(stream: bytes, cuts: list[int]) -> None:
    """Bytes that are no frames pass too; they must not be read in two ways either."""
    cuts = [cut for cut in cuts if cut <= len(stream)]

    whole, pieces = FrameScanner(), FrameScanner()
    whole.feed(stream)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        pieces.feed(stream[begin:end])

    assert boundaries(stream, cuts) == boundaries(stream, [])
    assert (pieces.between, pieces.close_code) == (whole.between, whole.close_code)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(
    ("payload", "code"), [(b"", NO_CODE), (b"\x03\xe8", 1000), (b"\x03\xe9why", 1001), (b"\x0f\xa0" + b"x" * 123, 4000)]
)
def test_close_code_is_read_whole_or_byte_by_byte(payload: bytes, code: int, mask: bool) -> None:
    """§5.5.1: the first two bytes of a Close frame's payload; a client's are masked."""
    stream = wire(Opcode.TEXT, b"\x88\x02\x03\xea") + wire(Opcode.CLOSE, payload, mask=mask)

    whole, dripped = FrameScanner(), FrameScanner()
    whole.feed(stream)
    for index in range(len(stream)):
        assert dripped.close_code is None
        dripped.feed(stream[index : index + 1])

    assert (whole.close_code, dripped.close_code) == (code, code)


def test_first_close_counts() -> None:
    """§5.5.1: nothing may follow a Close frame, so what does is not believed."""
    scanner = FrameScanner()
    scanner.feed(wire(Opcode.CLOSE, b"\x03\xe8") + wire(Opcode.CLOSE, b"\x03\xf3"))

    assert scanner.close_code == 1000


def test_length_that_no_frame_has_never_ends() -> None:
    """§5.2: the highest bit of a 64-bit length is 0. Nothing is put into a stream that has it."""
    scanner = FrameScanner()
    scanner.feed(b"\x82\xff" + b"\xff" * 8 + b"mask" + bytes(100_000))

    assert not scanner.between


@pytest.mark.parametrize("mask", [b"", b"\x01\x02\x03\x04", b"\xff\x00\xff\x00"])
def test_close_frame_is_read_by_another_implementation(mask: bytes) -> None:
    """§5.5.1: FIN, opcode 8, the code, the text; masked towards a server."""
    data = close_frame(GOING_AWAY, "the gateway is shutting down", mask)

    source = bytearray(data)

    def read_exact(n: int):  # type: ignore[no-untyped-def]
        yield from ()
        piece = bytes(source[:n])
        del source[:n]
        return piece

    parser = Frame.parse(read_exact, mask=bool(mask))
    with pytest.raises(StopIteration) as done:
        next(parser)
    frame = done.value.value
    assert (frame.opcode, frame.fin) == (Opcode.CLOSE, True)
    assert Close.parse(frame.data) == Close(1001, "the gateway is shutting down")
    scanner = FrameScanner()
    scanner.feed(data)
    assert (scanner.between, scanner.close_code) == (True, 1001)


# -- a client's messages ------------------------------------------------------------------------------


@given(st.lists(frames, min_size=1, max_size=6), st.data())
def test_messages_are_the_same_however_cut(given_frames: list[tuple[Opcode, bytes, bool, bool]], data: st.DataObject) -> None:  # fmt: skip # noqa: E501
    """§5.4: fragments make one message, and control frames between them are told at once."""
    stream, wanted, message, opcode = b"", [], b"", 0
    for kind, payload, fin, _ in given_frames:
        if kind >= Opcode.CLOSE:
            payload = payload[:125]
            stream += wire(kind, payload, mask=True)
            wanted.append((int(kind), payload))
            continue
        stream += wire(Opcode.CONT if opcode else Opcode.TEXT, payload, fin=fin, mask=True)
        message, opcode = message + payload, 1
        if fin:
            wanted.append((opcode, message))
            message, opcode = b"", 0
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))

    reader, found = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[begin:end])
    assert found == wanted
    assert reader.held_bytes == len(message)


def test_empty_fragments_are_not_held() -> None:
    """They have no payload: however many come, nothing grows."""
    reader = FrameReader()
    reader.feed(wire(Opcode.TEXT, b"ab", fin=False, mask=True))
    for _ in range(100):
        assert reader.feed(wire(Opcode.CONT, b"", fin=False, mask=True) * 100) == []
    assert reader.held_bytes == 2
    assert len(reader._data) <= 100 * 6
    assert reader.feed(wire(Opcode.CONT, b"c", mask=True)) == [(1, b"abc")]


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_reserved_opcode_can_not_be_read(opcode: int) -> None:
    """§5.2: what it means is not known, so neither is what follows."""
    with pytest.raises(ValueError, match="reserved"):
        FrameReader().feed(bytes((0x80 | opcode, 0x80)) + b"mask")


def test_close_code_is_answered_if_it_may_be_sent() -> None:
    """§5.5.1, §7.4: by the reading of another implementation, for all codes there are."""
    assert close_code_of(b"") == 1000
    with pytest.raises(ValueError, match="valid code"):
        close_code_of(b"\x03")
    for code in range(1 << 16):
        payload, is_valid = code.to_bytes(2) + b"bye", True
        try:
            Close.parse(payload).check()
        except ProtocolError:
            is_valid = False
        try:
            assert close_code_of(payload) == code and is_valid
        except ValueError:
            assert not is_valid, code


@pytest.mark.parametrize("pieces", [[11], [10, 1], [5, 0, 6]])
def test_message_that_is_too_long_is_refused_by_its_heads(pieces: list[int]) -> None:
    """Before its last fragment comes; the longest one passes."""
    stream = b"".join(wire(Opcode.CONT if n else Opcode.TEXT, bytes(size), fin=False, mask=True) for n, size in enumerate(pieces))  # fmt: skip # noqa: E501
    with pytest.raises(TooLongError):
        FrameReader(10).feed(stream[: len(stream) - pieces[-1]])
    assert FrameReader(11).feed(stream + wire(Opcode.CONT, b"", mask=True)) == [(1, bytes(11))]
