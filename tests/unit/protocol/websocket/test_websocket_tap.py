"""What is read of a WebSocket's text messages as they pass: whole ones, however they are cut."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from velox.protocol.websocket.tap import MOST_FRAMES, MessageTap


class Seen:
    """What a tap has told. n_missed: messages that were too long. n_held: bytes of the one that is open."""

    def __init__(self, most_bytes: int = 100) -> None:
        self.messages: list[bytes] = []
        self.n_missed = self.n_held = self.n_calls = 0
        self.n_passed = 0
        self._most: Final = most_bytes
        self.tap: Final = MessageTap(self)

    def hold(self, n_bytes: int) -> bool:
        self.n_calls += 1
        self.n_held += n_bytes
        if self.n_held > self._most:
            self.n_missed += 1
            self.n_held = 0
            return False
        return True

    def take(self, message: bytes) -> None:
        assert self.n_held == len(message)
        self.n_held = 0
        self.messages.append(message)

    def drop(self) -> None:
        self.n_held = 0

    def passed_over(self) -> None:
        self.n_held = 0
        self.n_passed += 1


def sent(opcode: Opcode, payload: bytes, *, masked: bool, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=masked)


@pytest.mark.parametrize("masked", [True, False])
@given(sizes=st.lists(st.integers(1, 40), max_size=30))
def test_messages_are_read_however_they_are_cut(masked: bool, sizes: list[int]) -> None:
    """Of both sides; fragments with a ping between them, an empty one, sound beside them."""
    wire = b"".join(
        [
            sent(Opcode.TEXT, b"one", masked=masked),
            sent(Opcode.BINARY, b"sound" * 30, masked=masked),
            sent(Opcode.TEXT, b"tw", masked=masked, fin=False),
            sent(Opcode.PING, b"p", masked=masked),
            sent(Opcode.CONT, b"", masked=masked, fin=False),
            sent(Opcode.CONT, b"o", masked=masked),
            sent(Opcode.TEXT, b"", masked=masked),
            sent(Opcode.TEXT, b"x" * 100, masked=masked),
            sent(Opcode.CLOSE, b"", masked=masked),
        ]
    )
    seen, passed, left = Seen(), b"", wire
    for size in [*sizes, len(wire)]:
        passed += seen.tap.feed(left[:size])
        left = left[size:]
    assert passed == wire
    assert seen.messages == [b"one", b"two", b"", b"x" * 100] and seen.n_missed == 0


def test_message_that_is_too_long_or_compressed_is_passed_over() -> None:
    """By its head, or by that of the fragment that is too much; what follows is read."""
    seen = Seen(10)
    seen.tap.feed(sent(Opcode.TEXT, b"x" * 11, masked=True))
    seen.tap.feed(sent(Opcode.TEXT, b"x" * 6, masked=True, fin=False))
    seen.tap.feed(sent(Opcode.CONT, b"x" * 6, masked=True, fin=False))
    assert "held=0" in repr(seen.tap)
    seen.tap.feed(sent(Opcode.CONT, b"x", masked=True))
    compressed = bytearray(sent(Opcode.TEXT, b"x", masked=True))
    compressed[0] |= 0x40
    seen.tap.feed(bytes(compressed))
    seen.tap.feed(sent(Opcode.TEXT, b"next", masked=True))
    assert seen.messages == [b"next"] and seen.n_missed == 2


@given(st.binary(max_size=300))
def test_what_is_no_websocket_passes_unread(data: bytes) -> None:
    seen = Seen()
    assert seen.tap.feed(data) == data


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.CONT, Opcode.PING, Opcode.BINARY])
def test_read_of_tiny_frames_is_the_last_that_is_read(masked: bool, opcode: Opcode) -> None:
    """And of it no more than a bound: the rest of the read, and all that comes, passes unread."""
    seen = Seen()
    seen.tap.feed(sent(Opcode.TEXT, b"one", masked=masked))
    most = sent(opcode, b"", masked=masked) * MOST_FRAMES
    assert seen.tap.feed(most) == most and not seen.n_passed
    n_calls, more = seen.n_calls, sent(opcode, b"", masked=masked) * 9000
    assert seen.tap.feed(more) == more and seen.n_passed == 1
    assert seen.n_calls - n_calls <= MOST_FRAMES
    n_messages = len(seen.messages)
    last = sent(Opcode.TEXT, b"last", masked=masked)
    assert seen.tap.feed(last) == last and len(seen.messages) == n_messages
    assert repr(seen.tap) == "<MessageTap held=0 off>"


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [10, 200])
@pytest.mark.parametrize("cut", [0, 1, 5, 40])
def test_message_in_too_many_fragments_is_passed_over_and_the_next_is_read(masked: bool, size: int, cut: int) -> None:
    """In one read; what ends there, and what goes on behind it. cut: bytes that come in the next read."""
    part = sent(Opcode.CONT, b"x" * size, masked=masked, fin=False)
    many = sent(Opcode.TEXT, b"", masked=masked, fin=False) + part * (MOST_FRAMES + 100)
    many += sent(Opcode.CONT, b"x", masked=masked)
    seen = Seen(10**6)
    wire = many + sent(Opcode.TEXT, b"between" * 100, masked=masked)
    at = len(wire) - cut
    passed = seen.tap.feed(wire[:at]) + seen.tap.feed(wire[at:])
    assert passed == wire and seen.n_passed == 1
    seen.tap.feed(sent(Opcode.TEXT, b"next", masked=masked))
    assert seen.messages[-1] == b"next" and set(seen.messages) <= {b"next", b"between" * 100}
    # What goes on in the next read was not passed over as a whole: it is read.
    assert len(seen.messages) == (2 if cut else 1)
    assert seen.n_held == 0
