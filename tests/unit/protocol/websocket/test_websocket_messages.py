"""What is held of a client's messages that are looked at before they pass: one at a time, and little beside it."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from velox.protocol.websocket.messages import MessageError, MessageGate

KIB = 1024


def sent(opcode: Opcode, payload: bytes = b"", *, fin: bool = False) -> bytes:
    """Return a client's frame."""
    return Frame(opcode, payload, fin).serialize(mask=True)


def nothing(message: bytes) -> None:
    """Let every message pass."""


@pytest.mark.parametrize(
    "beside",
    [sent(Opcode.CONT), sent(Opcode.PING, b"x" * 125, fin=True), sent(Opcode.CONT, b"xx")],
    ids=["empty", "ping", "short"],
)
def test_what_is_held_beside_a_message_is_bounded(beside: bytes) -> None:
    """Fragments without content, or with little, and control frames between them, which pass with the message."""
    gate = MessageGate(nothing)
    gate.feed(sent(Opcode.TEXT))
    with pytest.raises(MessageError, match="framing"):
        for _ in range(40 * KIB // len(beside) + 1):
            assert gate.feed(beside) == b""
    assert gate.held_bytes <= 40 * KIB


def test_message_in_large_fragments_passes_however_long() -> None:
    """An eighth of framing, as of a chunked body; and the next message starts anew."""
    seen = []
    gate = MessageGate(seen.append)
    wire = sent(Opcode.BINARY, b"a" * 48) + sent(Opcode.CONT, b"b" * 48) * 2_000
    for _ in range(2):
        assert gate.feed(wire) == b""
        assert gate.held_bytes == len(wire)
        last = sent(Opcode.CONT, b"c", fin=True) + sent(Opcode.PING, b"p", fin=True)
        assert gate.feed(last) == wire + last
        assert gate.held_bytes == 0
        assert seen.pop() == b"a" * 48 + b"b" * 96_000 + b"c"


def test_pings_between_messages_are_not_counted() -> None:
    """They pass at once."""
    gate = MessageGate(nothing)
    ping = sent(Opcode.PING, b"x" * 125, fin=True)
    for _ in range(500):
        assert gate.feed(ping) == ping


def test_message_may_have_so_many_bytes_and_no_more() -> None:
    """All fragments together; refused by the head of the one that is too many."""
    gate = MessageGate(nothing, 10)
    assert gate.feed(sent(Opcode.TEXT, b"a" * 10, fin=True))
    gate.feed(sent(Opcode.TEXT, b"a" * 5))
    with pytest.raises(MessageError, match="10 bytes"):
        gate.feed(sent(Opcode.CONT, b"a" * 6)[:7])
