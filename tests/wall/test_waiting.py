"""Upstreams that think for long, or for ever (F-20, F-21, F-40)."""

from __future__ import annotations

import pytest

from tests.wall.client import PLAIN, STREAM
from tests.wall.faults import DONE, N_TICKS, SLOW_S, TICK, WORDS
from tests.wall.gate import FIRST_BYTE_S, Wall
from tests.wall.provider import ANSWERED

_N_BESIDE = 99


@pytest.mark.fault("F-20")
def test_f20_slow_first_token_is_waited_for(wall: Wall) -> None:
    """Within the time-out a slow model is just slow, and is asked once."""
    models = [wall.ticket("slow"), wall.ticket("slow")]
    asks = [wall.pair.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    for ask in asks:
        answer = ask.answer()
        assert (answer.status, answer.is_whole) == (200, True)
        assert answer.took_s >= SLOW_S
    assert [len(wall.first.attempts(model)) for model in models] == [1, 1]
    assert wall.second.calls == []


@pytest.mark.fault("F-20", "F-21")
@pytest.mark.parametrize("fault", ["too-slow@1", "silent@1"])
def test_f20_f21_no_first_byte_goes_on_to_the_next_upstream(wall: Wall, fault: str) -> None:
    """One time-out, then another upstream; the first one is told to stop, and not asked again."""
    models = [wall.ticket(fault), wall.ticket(fault)]
    asks = [wall.pair.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    for ask in asks:
        answer = ask.answer()
        assert (answer.status, answer.is_whole) == (200, True)
        assert FIRST_BYTE_S * 0.9 < answer.took_s < 2 * FIRST_BYTE_S + 1
    for model in models:
        (call,) = wall.first.attempts(model)
        wall.first.wait_left(call)
        assert wall.second.ends(model) == [ANSWERED]
    assert wall.pair.metric('velox_retries_total{cause="timeout"}') >= 2


@pytest.mark.fault("F-21")
def test_f21_no_first_byte_and_nobody_else_is_a_504_after_one_attempt(wall: Wall) -> None:
    """The work may be going on: it is not begun a second time, neither by the gateway nor by the SDK."""
    models = [wall.ticket("silent"), wall.ticket("silent")]
    asks = [wall.alone.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    for ask in asks:
        answer = ask.answer()
        assert (answer.status, answer.reason) == (504, "upstream_ttfb_timeout")
        assert answer.header("x-should-retry") == "false"
    for model in models:
        (call,) = wall.first.attempts(model)
        wall.first.wait_left(call)
        assert call.ended == ("left 8" if wall.is_http2 else "left")


@pytest.mark.fault("F-40")
def test_f40_one_stream_that_times_out_fails_alone(wall: Wall) -> None:
    """Ninety-nine streams beside it, all on one connection where HTTP/2 is spoken, go on to their end."""
    beside = [wall.ticket("ticking") for _ in range(_N_BESIDE)]
    asks = [wall.alone.ask(model, stream=STREAM) for model in beside]
    for ask in asks:
        ask.read_until(WORDS[-20:])

    quiet = wall.alone.ask(wall.ticket("silent"), stream=STREAM)
    call = wall.first.wait_attempt(quiet.model)
    answer = quiet.answer()

    assert (answer.status, answer.reason) == (504, "upstream_ttfb_timeout")
    if wall.is_http2:
        assert call.connection in {wall.first.attempts(model)[0].connection for model in beside}
    assert all(ask.answer().body == WORDS + TICK * N_TICKS + DONE for ask in asks)
