"""What is held of a client's messages that are looked at before they pass: one at a time, and little beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from velox.protocol.websocket.messages import MessageError, MessageGate

KIB = 1024


def sent(opcode: Opcode, payload: bytes = b"", *, fin: bool = False) -> bytes:
    """Return a client's frame."""
    return Frame(opcode, payload, fin).serialize(mask=True)


def nothing(message: bytes, has_asked: bool) -> tuple[()]:
    """Let every message pass."""
    return ()


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
    seen: list[bytes] = []
    gate = MessageGate(lambda message, _: seen.append(message) or ())
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


# -- messages about which others are asked first ------------------------------------------------------------------

PING = sent(Opcode.PING, b"p", fin=True)
ASKS, PLAIN = sent(Opcode.TEXT, b"ask 1", fin=True), sent(Opcode.TEXT, b"plain", fin=True)
IN_PIECES = sent(Opcode.TEXT, b"ask") + PING + sent(Opcode.CONT, b" 2", fin=True)


def wants_what_is_asked_for(message: bytes, has_asked: bool) -> Sequence[str]:
    return [message.decode()] if message.startswith(b"ask") and not has_asked else ()


@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_message_that_waits_holds_what_follows(cuts: list[int]) -> None:
    """However it comes: nothing overtakes it, a ping neither; each is asked about once, and all pass as they came."""
    wire = PLAIN + ASKS + PING + PLAIN + IN_PIECES + PLAIN
    gate = MessageGate(wants_what_is_asked_for)
    ends = [*sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    passed, at = b"", 0
    for end in ends:
        passed += gate.feed(wire[at:end])
        at = end

    assert (passed, gate.wanted, gate.held_bytes) == (PLAIN, ["ask 1"], len(wire) - len(PLAIN))
    assert gate.feed(b"") == b""
    gate.answered()
    passed += gate.feed(b"")
    assert (passed, gate.wanted) == (PLAIN + ASKS + PING + PLAIN, ["ask 2"])
    gate.answered()
    assert (passed + gate.feed(b""), gate.wanted, gate.held_bytes) == (wire, (), 0)


def test_message_that_waited_may_be_refused() -> None:
    """By what was learnt: nothing of it passes, nor what follows."""

    def refuses(message: bytes, has_asked: bool) -> Sequence[str]:
        if has_asked:
            raise MessageError("another's")
        return ["x"]

    gate = MessageGate(refuses)
    assert gate.feed(PLAIN + PLAIN) == b""
    gate.answered()
    with pytest.raises(MessageError, match="another's"):
        gate.feed(b"")
