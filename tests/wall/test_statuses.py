"""Upstreams that answer with a refusal: what is tried again, when, where, and what the client gets (F-22 to F-28)."""

from __future__ import annotations

import time

import pytest

from tests.wall.client import PLAIN, STREAM
from tests.wall.faults import CONTEXT_ERROR, STATUS_BODY
from tests.wall.gate import KEY, Wall
from tests.wall.provider import ANSWERED

BOTH = pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])


# -- too many requests --------------------------------------------------------------------------------------


@pytest.mark.fault("F-22")
def test_f22_retry_after_is_waited_for_in_each_of_its_forms(wall: Wall) -> None:
    """Seconds, milliseconds or a date: the second attempt comes when the upstream said, and is answered."""
    waits_s = {"429-2s-once": 1.8, "429-300ms-once": 0.28, "429-date-once": 0.5}
    n_before = wall.alone.metric('velox_retries_total{cause="rate_limited"}')
    asks = [wall.alone.ask(wall.ticket(fault), stream=stream) for fault in waits_s for stream in (PLAIN, STREAM)]

    assert [ask.answer().status for ask in asks] == [200] * len(asks)
    for ask in asks:
        refused, served = wall.first.attempts(ask.model)
        assert served.came_s - refused.came_s >= waits_s[ask.model.partition("#")[0]]
    assert wall.alone.metric('velox_retries_total{cause="rate_limited"}') == n_before + len(asks)


@pytest.mark.fault("F-22")
@BOTH
def test_f22_retry_after_that_is_too_long_is_passed_on(wall: Wall, stream: bool) -> None:
    """Over VELOX_RETRY_MAX_WAIT the client gets the upstream's own 429, with its headers, at once."""
    model = wall.ticket("429-60s")

    with wall.alone.counted('velox_retries_denied_total{by="wait"}'):
        answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.body, answer.reason) == (429, STATUS_BODY, "")
    assert (answer.header("retry-after"), answer.header("x-wall")) == ("60", "kept")
    assert answer.took_s < 1.5
    assert len(wall.first.attempts(model)) == 1


@pytest.mark.fault("F-22", "F-23")
@BOTH
@pytest.mark.parametrize("fault", ["429-60s@1", "429@1"])
def test_f22_f23_too_many_requests_goes_on_to_the_next_upstream_at_once(wall: Wall, fault: str, stream: bool) -> None:
    """Another upstream need not be waited for, and the first one is not held for broken."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert answer.took_s < 1.5
    assert wall.first.ends(model) == [ANSWERED]
    assert wall.second.ends(model) == [ANSWERED]


@pytest.mark.fault("F-23")
def test_f23_too_many_requests_for_ever_is_passed_on_after_two_attempts(wall: Wall) -> None:
    """Without a Retry-After one more attempt, a moment later; then the upstream's own answer."""
    models = [wall.ticket("429"), wall.ticket("429")]
    asks = [wall.alone.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    for ask in asks:
        answer = ask.answer()
        assert (answer.status, answer.body, answer.reason) == (429, STATUS_BODY, "")
    for model in models:
        first, second = wall.first.attempts(model)
        assert second.came_s - first.came_s >= 0.1  # 0.25 s, and half to one and a half of it


@pytest.mark.fault("F-23", "F-24")
@pytest.mark.parametrize("fault", ["429@1", "503@1"])
def test_f23_f24_back_pressure_is_no_fault_of_the_upstream(wall: Wall, fault: str) -> None:
    """Refusals put nobody out. Who says 503 three times in a row rests, here for a second, and needs no probe."""
    for _ in range(7):
        assert wall.pair.ask(wall.ticket(fault)).answer().status == 200

    if fault == "503@1":
        origin = wall.first.upstream.url
        rests = f'velox_upstream_state{{origin="{origin}",state="resting",upstream="default"}}'
        wall.pair.velox.wait_metric(rests, lambda n: n == 1)
        wall.pair.velox.wait_metric(rests, lambda n: n == 0)
    assert wall.pair.metric("velox_upstreams_out") == 0
    model = wall.ticket("alive")
    assert wall.pair.ask(model).answer().status == 200
    assert len(wall.first.attempts(model)) == 1


# -- failures -------------------------------------------------------------------------------------------------


@pytest.mark.fault("F-24")
@pytest.mark.parametrize("fault", ["500-once", "503-once"])
def test_f24_one_failure_is_tried_once_more(wall: Wall, fault: str) -> None:
    """The client notices nothing."""
    models = [wall.ticket(fault), wall.ticket(fault)]
    asks = [wall.alone.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    assert [(answer.status, answer.is_whole) for answer in (ask.answer() for ask in asks)] == [(200, True)] * 2
    assert [len(wall.first.attempts(model)) for model in models] == [2, 2]


@pytest.mark.fault("F-24")
@pytest.mark.parametrize("fault", ["500", "503"])
def test_f24_failure_for_ever_gives_the_upstreams_own_error(wall: Wall, fault: str) -> None:
    """Two attempts, then status, headers and body as the upstream sent them."""
    models = [wall.ticket(fault), wall.ticket(fault)]
    asks = [wall.alone.ask(model, stream=stream) for model, stream in zip(models, (PLAIN, STREAM), strict=True)]

    for ask in asks:
        answer = ask.answer()
        assert (answer.status, answer.body, answer.reason) == (int(fault), STATUS_BODY, "")
        assert answer.header("x-wall") == ("kept" if fault == "503" else None)
    assert [len(wall.first.attempts(model)) for model in models] == [2, 2]


@pytest.mark.fault("F-24")
@BOTH
@pytest.mark.parametrize("fault", ["500@1", "503@1"])
def test_f24_failure_goes_on_to_the_next_upstream(wall: Wall, fault: str, stream: bool) -> None:
    """At once, and the refused reply leaves no trace in the one that is passed on."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole, answer.header("x-wall")) == (200, True, None)
    assert b"from the wall" not in answer.body
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 1]


@pytest.mark.fault("F-24")
def test_f24_failure_that_must_not_be_tried_again_is_not(wall: Wall) -> None:
    """The upstream's `x-should-retry: false` is obeyed, with another upstream there too."""
    model = wall.ticket("500-no-retry")

    answer = wall.pair.ask(model).answer()

    assert (answer.status, answer.body) == (500, STATUS_BODY)
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


@pytest.mark.fault("F-24")
def test_f24_request_that_an_sdk_repeats_is_not_multiplied(wall: Wall) -> None:
    """An SDK that retries says so, and gets one attempt for each of its own."""
    model = wall.ticket("500")

    answer = wall.alone.ask(model, x_stainless_retry_count="1").answer()

    assert answer.status == 500
    assert len(wall.first.attempts(model)) == 1


@pytest.mark.fault("F-25")
@BOTH
@pytest.mark.parametrize("fault", ["context-length", "content-filter"])
def test_f25_bad_request_is_passed_on_after_one_attempt(wall: Wall, fault: str, stream: bool) -> None:
    """What is wrong with the request is wrong everywhere."""
    model = wall.ticket(fault)

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (400, True)
    assert answer.body in (CONTEXT_ERROR, CONTEXT_ERROR.replace(b"context_length_exceeded", b"content_filter"))
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


@pytest.mark.fault("F-26")
@BOTH
def test_f26_refused_key_is_told_without_the_key(wall: Wall, stream: bool) -> None:
    """A 401 of the upstream stays one; a body that repeats our key is replaced, and the refusal is counted."""
    model = wall.ticket("echo-key")

    with wall.pair.counted("velox_upstream_auth_failures_total"):
        answer = wall.pair.ask(model, stream=stream).answer()

    (call,) = wall.first.attempts(model)
    assert call.header("authorization") == f"Bearer {KEY}", "the fault is one that shows our key"
    assert answer.status == 401 and answer.is_whole
    assert KEY.encode() not in answer.body
    assert not any(KEY in value for _, value in answer.headers)
    assert KEY not in "\n".join(wall.pair.velox.stdout.lines + wall.pair.velox.stderr.lines)
    assert wall.second.attempts(model) == []


@pytest.mark.fault("F-26")
def test_f26_forbidden_without_our_key_is_passed_on_unchanged(wall: Wall) -> None:
    """A 403 that tells nothing keeps its body."""
    model = wall.ticket("403")

    with wall.pair.counted("velox_upstream_auth_failures_total"):
        answer = wall.pair.ask(model).answer()

    assert (answer.status, answer.body) == (403, STATUS_BODY)
    assert [len(wall.first.attempts(model)), len(wall.second.attempts(model))] == [1, 0]


# -- flapping, and sending away -------------------------------------------------------------------------------


@pytest.mark.fault("F-27")
def test_f27_upstream_that_flaps_is_passed_over_probed_and_used_again(wall: Wall) -> None:
    """While it fails the other one serves, and one request tries it now and then; then it is back by itself."""
    model = wall.ticket("flap@1")
    wall.first.is_down = True
    began_s = time.monotonic()
    try:
        while len(wall.first.attempts(model)) < 7:  # 5 open the breaker, 2 probes
            assert wall.pair.ask(model).answer().status == 200
            assert time.monotonic() - began_s < 35, "no probe"  # 14 s each, after an outage in a test before
        wall.pair.velox.wait_metric("velox_upstreams_out", lambda n: n == 1)
        took_s = wall.first.attempts(model)[-1].came_s - wall.first.attempts(model)[4].came_s
        assert took_s >= 1.5, "two probes are two seconds apart, less what a timer may be early"
    finally:
        wall.first.is_down = False
    n_second = len(wall.second.attempts(model))

    def is_back() -> bool:
        assert wall.pair.ask(model).answer().status == 200
        return wall.first.attempts(model)[-1].came_s > back_s

    back_s = time.monotonic()
    while not is_back() or wall.pair.metric("velox_upstreams_out"):  # two probes in a row
        assert time.monotonic() - back_s < 20, "it is not used again"

    assert n_second > 0


@pytest.mark.fault("F-28")
@BOTH
def test_f28_redirect_is_a_502_and_goes_nowhere(wall: Wall, stream: bool) -> None:
    """An upstream cannot send a request, and the key in it, elsewhere."""
    model = wall.ticket("redirect")

    answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.reason, answer.header("location")) == (502, "upstream_redirect", None)
    assert [call.target for call in wall.first.calls] == ["/v1/chat/completions"]
    assert wall.second.calls == []
