"""A body is held until its cost is known, as far as there is room."""

from __future__ import annotations

import pytest

from velox.gateway.limits.cost_filter import CostFilter
from velox.heads import ReplyHead
from velox.net.client.body_budget import FREE_REPLY_BYTES, BodyBudget

PIECE = FREE_REPLY_BYTES // 2


def begun(bodies: BodyBudget) -> CostFilter:
    made = CostFilter(lambda: b"0.01", bodies)
    head = ReplyHead.of(200, [(b"content-type", b"application/json")], None)
    assert made.begin(head, is_sse=False, is_plain=True) is None
    return made


def told(made: CostFilter) -> bytes | None:
    assert made.released is not None
    return dict(made.released.headers).get(b"x-velox-cost")


def test_what_is_held_takes_room_and_gives_it_back() -> None:
    """As much as any client may leave unread is free."""
    bodies = BodyBudget(8 * FREE_REPLY_BYTES, 1.0, lambda: 0.0)
    made = begun(bodies)

    taken = []
    for _ in range(4):
        assert made.feed(bytes(PIECE), False) == b""
        taken.append(bodies.taken_bytes)
    assert taken == [0, 0, PIECE, 2 * PIECE]

    assert len(made.feed(b"", True)) == 4 * PIECE
    assert (told(made), bodies.taken_bytes) == (b"0.01", 0)


def test_body_passes_untold_where_no_room_is_left() -> None:
    bodies = BodyBudget(2 * FREE_REPLY_BYTES, 1.0, lambda: 0.0)
    assert bodies.take_for_reply(FREE_REPLY_BYTES)
    made = begun(bodies)

    assert made.feed(bytes(FREE_REPLY_BYTES), False) == b""
    assert len(made.feed(b"x", False)) == FREE_REPLY_BYTES + 1
    assert (told(made), bodies.taken_bytes) == (None, FREE_REPLY_BYTES)
    assert made.feed(b"y", True) == b"y"


def test_reply_that_is_cut_gives_its_room_back() -> None:
    bodies = BodyBudget(8 * FREE_REPLY_BYTES, 1.0, lambda: 0.0)
    made = begun(bodies)
    made.feed(bytes(2 * FREE_REPLY_BYTES), False)
    assert bodies.taken_bytes == FREE_REPLY_BYTES

    made.close()
    assert bodies.taken_bytes == 0


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
@pytest.mark.parametrize("n_last", [0, 1, 2, 3])
def test_stream_that_ends_with_a_whole_event_is_told_behind_it(end: bytes, n_last: int) -> None:
    """Lines end with LF, CR or CRLF, each as it likes, and however the stream is cut."""
    stream = b"data: {}" + end
    at = len(stream) - n_last
    made = CostFilter(lambda: b"0.01", BodyBudget(8 * FREE_REPLY_BYTES, 1.0, lambda: 0.0))
    made.begin(ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None), is_sse=True, is_plain=True)

    out = made.feed(stream[:at], False) + made.feed(stream[at:], True)

    assert out == stream + b": x-velox-cost 0.01\n\n"


@pytest.mark.parametrize("stream", [b"", b"data: {}", b"data: {}\n", b"data: {}\r\n", b"data: {}\n\ndata"])
def test_stream_that_ends_inside_an_event_is_left_as_it_is(stream: bytes) -> None:
    """A comment there would end the event."""
    made = CostFilter(lambda: b"0.01", BodyBudget(8 * FREE_REPLY_BYTES, 1.0, lambda: 0.0))
    made.begin(ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None), is_sse=True, is_plain=True)

    assert made.feed(stream, True) == stream


def test_cost_that_is_not_told_is_known_to_what_comes_behind() -> None:
    """Of a plain answer; a stream passes unread."""
    bodies = BodyBudget(8 * FREE_REPLY_BYTES, 1.0, lambda: 0.0)
    made = CostFilter(lambda: b"0.01", bodies, is_told=False)
    head = ReplyHead.of(200, [(b"content-type", b"application/json")], None)
    assert made.begin(head, is_sse=False, is_plain=True) is None and made.known == b""
    assert made.feed(b"{}", True) == b"{}"
    assert (made.released, made.known) == (head, b"0.01")

    assert made.begin(head, is_sse=True, is_plain=True) is head
    assert (made.reads_body, made.known) == (False, b"")

    sound = ReplyHead.of(200, [(b"content-type", b"audio/mpeg")], None)
    assert made.begin(sound, is_sse=False, is_plain=True) is sound, "it is heard while it comes"
    assert not made.reads_body
