"""Server-Timing says what each step took, to the microsecond, and nothing of steps that there were not."""

from __future__ import annotations

import pytest

from velox.gateway.reply.timing import Moments, TimingFilter
from velox.heads import ReplyHead

EVENTS = [(b"content-type", b"text/event-stream")]


def moments() -> Moments:
    made = Moments(started_ns=1_000_000, accept_ns=2_000_000)
    made.queue_ns, made.parse_ns, made.limit_ns, made.route_ns = 1_499, 20_000, 3_000, 4_001_000
    return made


def test_each_step_has_its_duration_in_milliseconds() -> None:
    made = moments()
    attempt = made.begin(2_000_000)
    attempt.prepared_ns, attempt.connected_ns, attempt.sent_ns = 7_000, 8_000, 3_000_000

    name, value = made.field(413_345_678, is_reply=True)

    assert name == b"server-timing"
    assert value == (
        b"accept;dur=2.000, queue;dur=0.001, parse;dur=0.020, limit;dur=0.003, route;dur=4.001, "
        b"translate;dur=0.007, connect;dur=0.008, first-byte;dur=410.345, total;dur=412.345"
    )


def test_request_that_was_not_sent_tells_of_no_attempt() -> None:
    assert moments().field(2_000_000, is_reply=False)[1].split(b", ")[4:] == [b"route;dur=4.001", b"total;dur=1.000"]


def test_time_of_earlier_attempts_stands_apart() -> None:
    made = moments()
    made.begin(2_000_000)
    made.begin(252_000_000)
    value = made.field(300_000_000, is_reply=True)[1]
    assert b", retry;dur=250.000, translate;dur=0.000, connect;dur=0.000, first-byte;dur=48.000," in value


def test_reply_gets_the_field_beside_that_of_its_upstream() -> None:
    made = TimingFilter(moments(), lambda: 5_000_000)
    head = ReplyHead.of(200, [(b"server-timing", b"cfEdge;dur=3")], 2)

    passed = made.begin(head, is_sse=False, is_plain=True)

    assert [name for name, _ in passed.headers] == [b"server-timing", b"server-timing"]
    assert (passed.content_length, made.reads_body) == (2, False)


@pytest.mark.parametrize("stream", [b"data: {}\n\n", b"data: {}\r\n\r\n", b": ping\n\n"])
def test_comment_stands_behind_the_last_event(stream: bytes) -> None:
    times = iter([5_000_000, 9_000_000])
    made = TimingFilter(moments(), lambda: next(times), to_end=True)
    made.begin(ReplyHead.of(200, EVENTS, None), is_sse=True, is_plain=True)

    assert made.feed(stream[:4], False) == stream[:4]
    assert made.feed(stream[4:], True) == stream[4:] + b": server-timing stream;dur=4.000, total;dur=8.000\n\n"


@pytest.mark.parametrize(
    ("to_end", "is_sse", "is_plain", "length"),
    [(False, True, True, None), (True, False, True, None), (True, True, False, None), (True, True, True, 8)],
)
def test_no_comment_where_none_is_asked_for_or_has_room(
    to_end: bool, is_sse: bool, is_plain: bool, length: int | None
) -> None:
    """Not in a body that is compressed, or whose length was announced."""
    made = TimingFilter(moments(), lambda: 5_000_000, to_end=to_end)
    made.begin(ReplyHead.of(200, EVENTS, length), is_sse=is_sse, is_plain=is_plain)
    assert not made.reads_body


@pytest.mark.parametrize("stream", [b"", b"data: {}", b"data: {}\n"])
def test_stream_that_ends_inside_an_event_is_left_as_it_is(stream: bytes) -> None:
    made = TimingFilter(moments(), lambda: 5_000_000, to_end=True)
    made.begin(ReplyHead.of(200, EVENTS, None), is_sse=True, is_plain=True)
    assert made.feed(stream, True) == stream
