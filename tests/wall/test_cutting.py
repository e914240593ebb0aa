"""Replies that break off, come in crumbs or say strange things (F-11 to F-19): never does a cut one look whole."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.upstreams import CHAT_JSON
from tests.wall.client import PLAIN, STREAM
from tests.wall.faults import BIG_EVENT, DONE, ERROR_IN_STREAM, MALFORMED, UNENDED, WORDS
from tests.wall.gate import IDLE_S, Wall
from tests.wall.provider import ANSWERED
from tests.wall.ways import ALL_KINDS

pytestmark = pytest.mark.ways(*ALL_KINDS)
BOTH = pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
HTTP2 = pytest.mark.ways("ngh2", "h2")
HTTP1 = pytest.mark.ways("http1", "http1-tls")


# -- before the first byte ------------------------------------------------------------------------------


@pytest.mark.fault("F-11")
@BOTH
def test_f11_reset_before_any_byte_is_tried_once_more(wall: Wall, stream: bool) -> None:
    """One reset costs the client nothing but time."""
    model = wall.ticket("drop-once")

    with wall.alone.counted('velox_retries_total{cause="reset"}'):
        answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert wall.first.ends(model) == ["lost", ANSWERED]


@pytest.mark.fault("F-11")
@BOTH
@pytest.mark.parametrize("fault", ["drop", "hang-up"])
def test_f11_reset_each_time_is_a_502_after_two_attempts(wall: Wall, fault: str, stream: bool) -> None:
    """The work may have been done: no third attempt, and the SDK is told to make none."""
    model = wall.ticket(fault)

    answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.reason, answer.header("x-should-retry")) == (502, "upstream_reset", "false")
    assert len(wall.first.attempts(model)) == 2


@pytest.mark.fault("F-11")
@BOTH
def test_f11_reset_goes_on_to_the_next_upstream(wall: Wall, stream: bool) -> None:
    """With another upstream there, the second attempt is its."""
    model = wall.ticket("drop@1")

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert wall.first.ends(model) == ["lost"]
    assert wall.second.ends(model) == [ANSWERED]


# -- in the middle ----------------------------------------------------------------------------------------


@pytest.mark.fault("F-12")
def test_f12_stream_reset_after_its_head_is_an_error(wall: Wall) -> None:
    """The client has nothing of it yet, as the head waits for the first event: it gets the error's own status."""
    model = wall.ticket("lose-after-head")

    answer = wall.alone.ask(model, stream=STREAM).answer()

    assert answer.status == 502


@pytest.mark.fault("F-12")
def test_f12_plain_reply_reset_after_its_head_never_looks_whole(wall: Wall) -> None:
    """A JSON reply without its body is an error, or breaks off."""
    model = wall.ticket("lose-after-head")

    answer = wall.alone.ask(model).answer()

    assert answer.status == 502 or not answer.is_whole


CUTS = ["lose-after-words", "cut-after-words", "cut-in-event"]


@pytest.mark.fault("F-13")
@pytest.mark.parametrize("fault", [*CUTS, pytest.param("fin-in-stream", marks=HTTP2)])
def test_f13_stream_that_was_cut_gives_what_came_and_the_error_event(wall: Wall, fault: str) -> None:
    """Every event that came is passed on, then the error event; no [DONE], no proper end, no second attempt."""
    check_cut_stream(wall, fault)


@pytest.mark.fault("F-13")
@HTTP1
@pytest.mark.parametrize("fault", ["until-lost", "until-closed-in-event"])
def test_f13_stream_that_only_its_close_ends_gives_the_error_event(wall: Wall, fault: str) -> None:
    """A reset is no end, nor is a close in the middle of an event."""
    check_cut_stream(wall, fault)


def check_cut_stream(wall: Wall, fault: str) -> None:
    """Check that what came is passed on, then the error event."""
    model = wall.ticket(fault)

    with wall.alone.counted('velox_stream_end_total{reason="cut"}'):
        answer = wall.alone.ask(model, stream=STREAM).answer()

    assert (answer.status, answer.cut_reason) == (200, "upstream_truncated")
    passed = answer.body[: answer.body.rindex(b"data: ")]
    assert WORDS.startswith(passed.rstrip(b"\n")) and len(passed) > 100, "what came is passed on unchanged"
    assert len(wall.first.attempts(model)) == 1


@pytest.mark.fault("F-13")
def test_f13_stream_short_of_its_length_never_looks_whole(wall: Wall) -> None:
    """Where the length is announced an event of ours would fill it up: the reply just stays short."""
    model = wall.ticket("cut-short-of-length")

    answer = wall.alone.ask(model, stream=STREAM).answer()

    assert answer.status == 200 and not answer.is_whole
    assert answer.body.startswith(WORDS) and DONE not in answer.body


@pytest.mark.fault("F-13")
@pytest.mark.parametrize("fault", [*CUTS, "cut-short-of-length"])
def test_f13_plain_reply_that_was_cut_never_looks_whole(wall: Wall, fault: str) -> None:
    """A body of which a part is missing is not an answer."""
    answer = wall.alone.ask(wall.ticket(fault)).answer()

    assert answer.status == 502 or not answer.is_whole


@pytest.mark.fault("F-13", "F-30")
@HTTP2
@pytest.mark.parametrize("fault", ["data-under-length", "data-over-length"])
def test_f13_http2_reply_of_another_length_than_announced_never_looks_whole(wall: Wall, fault: str) -> None:
    """RFC 9113 §8.1.1: a reply whose DATA does not match its content-length is malformed."""
    answer = wall.alone.ask(wall.ticket(fault)).answer()

    assert answer.status == 502 or not answer.is_whole


@pytest.mark.fault("F-14")
@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_f14_cut_inside_a_character_leaves_the_error_readable(wall: Wall, n_bytes: int) -> None:
    """The bytes that came are passed, then a blank line, so that the error stands in an event of its own."""
    answer = wall.alone.ask(wall.ticket(f"cut-in-character-{n_bytes}"), stream=STREAM).answer()

    assert answer.cut_reason == "upstream_truncated"
    assert b'data: {"x":"' + "😀".encode()[:n_bytes] + b"\n\n" in answer.body


# -- whole, and strange -------------------------------------------------------------------------------------


@pytest.mark.fault("F-15")
@BOTH
def test_f15_one_byte_at_a_time_gives_the_same_bytes(wall: Wall, stream: bool) -> None:
    """However the bytes are cut up, the client gets the same ones."""
    wanted = WORDS + "data: \u2028 é 😀\r\n\r\n".encode() + DONE

    answer = wall.alone.ask(wall.ticket("drip"), stream=stream).answer()

    assert answer.is_whole
    assert hashlib.sha256(answer.body).hexdigest() == hashlib.sha256(wanted).hexdigest()


@pytest.mark.fault("F-16")
def test_f16_error_inside_a_stream_is_passed_on_and_counted(wall: Wall) -> None:
    """The upstream's own error event is its own: no byte of it is changed."""
    with wall.alone.counted("velox_stream_error_events_total"):
        answer = wall.alone.ask(wall.ticket("error-in-stream"), stream=STREAM).answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, ERROR_IN_STREAM, True)


@pytest.mark.fault("F-17")
@pytest.mark.parametrize(
    ("fault", "body"),
    [
        pytest.param("malformed", MALFORMED, id="malformed"),
        pytest.param("big-event", BIG_EVENT, id="1mb-event"),
        pytest.param("unended", UNENDED, id="no-done"),
    ],
)
def test_f17_strange_events_are_passed_on_and_the_end_is_not_waited_for(wall: Wall, fault: str, body: bytes) -> None:
    """What is in the events is between upstream and client; a stream that ended has ended."""
    n_errors = wall.alone.metric("velox_stream_error_events_total")

    answer = wall.alone.ask(wall.ticket(fault), stream=STREAM).answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, body, True)
    assert answer.took_s < IDLE_S
    assert wall.alone.metric("velox_stream_error_events_total") == n_errors


# -- silence ------------------------------------------------------------------------------------------------


@pytest.mark.ways("http1", "ngh2", "h2")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("stall", marks=pytest.mark.fault("F-18"), id="f18-silence"),
        pytest.param("comments", marks=pytest.mark.fault("F-19"), id="f19-comments-only"),
    ],
)
def test_f18_f19_stream_without_events_is_cut_and_the_upstream_told(wall: Wall, fault: str) -> None:
    """A model that hangs is not kept alive by comments; the client gets the error event, the upstream a cancel."""
    model = wall.ticket(fault)

    answer = wall.alone.ask(model, stream=STREAM).answer()

    assert answer.cut_reason == "upstream_idle_timeout"
    assert answer.body.startswith(WORDS)
    assert IDLE_S * 0.9 < answer.took_s < IDLE_S + 2
    call = wall.first.wait_attempt(model)
    wall.first.wait_left(call)
    assert call.ended == ("left 8" if wall.is_http2 else "left")
    assert len(wall.first.attempts(model)) == 1


@pytest.mark.fault("F-18")
@pytest.mark.ways("http1", "ngh2", "h2")
def test_f18_plain_reply_that_stalls_never_looks_whole(wall: Wall) -> None:
    """The same silence inside a JSON body."""
    model = wall.ticket("stall")

    answer = wall.alone.ask(model).answer()

    assert not answer.is_whole and answer.body != CHAT_JSON
    wall.first.wait_left(wall.first.wait_attempt(model))
