"""Sixteen scenarios of failing providers (S01 to S16), each with a second upstream behind the first.

A scenario ends as *pass* or as *safe*. Pass: the client gets a right answer, or the error that is the right one. Safe:
no answer can be given, since part of it has gone down already; the client surely notices, and nothing is done twice.
What safe means stands in the docstring, and in the marker: fault("S08", safe=True).
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE
from tests.wall.client import PLAIN, STREAM
from tests.wall.faults import CONTEXT_ERROR, MALFORMED, SLOW_S, UNENDED, WORDS
from tests.wall.gate import CONNECT_S, FIRST_BYTE_S, IDLE_S, Wall

BOTH = pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])


def check_served(wall: Wall, fault: str, stream: bool, n_first: int, n_second: int) -> float:
    """Check that the client gets a right answer after so many attempts; return the seconds that it took."""
    model = wall.ticket(fault)
    answer = wall.pair.ask(model, stream=stream).answer()
    assert (answer.status, answer.is_whole) == (200, True)
    assert answer.body == (CHAT_SSE if stream else CHAT_JSON)
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [n_first, n_second]
    return answer.took_s


@pytest.mark.fault("S01")
@BOTH
def test_s01_429_with_retry_after_is_served(wall: Wall, stream: bool) -> None:
    """The first says "in 2 s": the second serves at once. Alone, the 2 s are waited for (F-22)."""
    assert check_served(wall, "429-2s-once@1", stream, 1, 1) < 1.5


@pytest.mark.fault("S02")
@BOTH
def test_s02_429_for_ever_is_served(wall: Wall, stream: bool) -> None:
    """One attempt at the first, then the second."""
    check_served(wall, "429@1", stream, 1, 1)


@pytest.mark.fault("S03")
@BOTH
def test_s03_500_once_is_served(wall: Wall, stream: bool) -> None:
    """One further attempt."""
    check_served(wall, "500-once@1", stream, 1, 1)


@pytest.mark.fault("S04")
@BOTH
def test_s04_503_for_ever_is_served(wall: Wall, stream: bool) -> None:
    """One attempt at the first, then the second."""
    check_served(wall, "503@1", stream, 1, 1)


@pytest.mark.fault("S05")
@BOTH
def test_s05_reset_before_a_byte_is_served(wall: Wall, stream: bool) -> None:
    """One attempt at the first, then the second."""
    check_served(wall, "drop@1", stream, 1, 1)


@pytest.mark.fault("S06")
@BOTH
def test_s06_no_response_is_served(wall: Wall, stream: bool) -> None:
    """After the time-out for the first byte, by the second; the first is told to stop."""
    assert check_served(wall, "silent@1", stream, 1, 1) < 2 * FIRST_BYTE_S + 1


@pytest.mark.fault("S07")
@BOTH
def test_s07_slow_first_token_is_served(wall: Wall, stream: bool) -> None:
    """Slow is not broken: the first is waited for, and asked once."""
    assert check_served(wall, "slow@1", stream, 1, 0) >= SLOW_S


@pytest.mark.fault("S08", safe=True)
def test_s08_cut_in_a_stream_is_never_taken_for_its_end(wall: Wall) -> None:
    """Safe: every event that came, then an error event and no proper end, so the SDK raises; nothing is sent again."""
    model = wall.ticket("cut-after-words@1")

    answer = wall.pair.ask(model, stream=STREAM).answer()

    assert answer.body.startswith(WORDS) and answer.cut_reason == "upstream_truncated"
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


@pytest.mark.fault("S09", safe=True)
@pytest.mark.parametrize("fault", ["stall@1", "comments@1"])
def test_s09_stall_in_a_stream_ends_in_time(wall: Wall, fault: str) -> None:
    """Safe: after the idle time-out an error event and no proper end; comments hide no stall; the upstream is told."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=STREAM).answer()

    assert answer.body.startswith(WORDS) and answer.cut_reason == "upstream_idle_timeout"
    assert answer.took_s < IDLE_S + 2
    wall.first.wait_left(wall.first.wait_attempt(model))
    assert wall.second.attempts(model) == []


@pytest.mark.fault("S10")
def test_s10_malformed_event_is_passed_on(wall: Wall) -> None:
    """The upstream's bytes are its own: the client sees what it sent, all of it."""
    answer = wall.pair.ask(wall.ticket("malformed@1"), stream=STREAM).answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, MALFORMED, True)


@pytest.mark.fault("S11")
def test_s11_stream_without_done_ends_promptly(wall: Wall) -> None:
    """A stream that ended properly has ended, with [DONE] or without."""
    answer = wall.pair.ask(wall.ticket("unended@1"), stream=STREAM).answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, UNENDED, True)
    assert answer.took_s < IDLE_S


@pytest.mark.fault("S12")
@BOTH
def test_s12_context_length_is_the_clients_to_know(wall: Wall, stream: bool) -> None:
    """One attempt; status and body as the upstream sent them."""
    check_refused(wall, "context-length", CONTEXT_ERROR, stream)


@pytest.mark.fault("S13")
@BOTH
def test_s13_content_filter_is_the_clients_to_know(wall: Wall, stream: bool) -> None:
    """One attempt; status and body as the upstream sent them."""
    check_refused(wall, "content-filter", CONTEXT_ERROR.replace(b"context_length_exceeded", b"content_filter"), stream)


def check_refused(wall: Wall, fault: str, body: bytes, stream: bool) -> None:
    """Check that a 400 is passed on after one attempt."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.body, answer.is_whole) == (400, body, True)
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


@pytest.mark.fault("S14", safe=True)
@pytest.mark.parametrize("fault", ["cut-short-of-length@1"])
@BOTH
def test_s14_reply_short_of_its_length_is_never_taken_for_whole(wall: Wall, fault: str, stream: bool) -> None:
    """Safe: a 502, or a reply that breaks off before its announced end, which every HTTP client reports."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert answer.status == 502 or not answer.is_whole
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


@pytest.mark.fault("S15")
def test_s15_upstream_that_flaps_costs_no_request(wall: Wall) -> None:
    """Down for a while, up again, down again: every request is served, and the first is used again when it is up.

    The scenario's minute is two seconds here; nothing in Velox depends on how long the outage is.
    """
    model = wall.ticket("flap@1")
    for is_down in (True, False, True, False):
        wall.first.is_down = is_down
        until_s = time.monotonic() + (1.0 if is_down else 5.0)
        n_before = len(wall.first.attempts(model))
        while time.monotonic() < until_s:
            assert wall.pair.ask(model).answer().status == 200
            if not is_down and len(wall.first.attempts(model)) > n_before + 1:
                break  # a probe, and what follows it
        assert is_down or len(wall.first.attempts(model)) > n_before + 1, "it is used again"


@pytest.mark.fault("S16")
@BOTH
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [("drop", 502, "upstream_reset"), ("503", 503, ""), ("silent", 504, "upstream_ttfb_timeout")],
)
def test_s16_outage_of_all_upstreams_is_told_in_time(
    wall: Wall, fault: str, status: int, reason: str, stream: bool
) -> None:
    """There is no answer: the right error, in bounded time, after one attempt each; and all is well when they are."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.reason, answer.is_whole) == (status, reason, True)
    assert answer.took_s < 2 * FIRST_BYTE_S + CONNECT_S + 2
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 1]
    wall.pair.check_alive()
