"""What is read of a WebSocket's text messages as they pass: whole ones, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from velox.protocol.websocket.tap import MessageTap


class Seen:
    """What a tap has told. n_missed: messages that were too long."""

    def __init__(self, most_bytes: int = 100) -> None:
        self.messages: list[bytes] = []
        self.n_missed = 0
        self.tap = MessageTap(self.messages.append, most_bytes, self._miss)

    def _miss(self) -> None:
        self.n_missed += 1


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
