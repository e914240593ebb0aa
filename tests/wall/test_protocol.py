"""Replies and connections that break HTTP, and the ways in which HTTP/2 says no (F-29 to F-36, F-39)."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from tests.e2e.recorded_call import Call
from tests.e2e.upstreams import CHAT_JSON
from tests.e2e.watching import until
from tests.wall.client import PLAIN, STREAM
from tests.wall.faults import DONE, WORDS, gzip_bomb
from tests.wall.faults_http1 import BAD_HEADS_HTTP1, SMUGGLED
from tests.wall.faults_http2 import BAD_HEADS_HTTP2, FLOODS
from tests.wall.gate import Wall, start_gate
from tests.wall.provider import ANSWERED

HTTP1 = pytest.mark.ways("http1", "http1-tls")
HTTP2 = pytest.mark.ways("ngh2", "h2")
BOTH = pytest.mark.parametrize("stream", [PLAIN, STREAM], ids=["plain", "stream"])
_MB = 1 << 20


# -- bad replies ----------------------------------------------------------------------------------------------


@pytest.mark.fault("F-29")
@HTTP1
@pytest.mark.parametrize("head", BAD_HEADS_HTTP1)
def test_f29_http1_bad_head_is_a_502_and_ends_its_connection(wall: Wall, head: str) -> None:
    """What cannot be read the same way by everybody is not read at all, nor asked for a second time."""
    check_bad_head(wall, f"http1-{head}")


@pytest.mark.fault("F-29")
@HTTP2
@pytest.mark.parametrize("head", [*BAD_HEADS_HTTP2, "1mb-header"])
def test_f29_http2_bad_head_is_a_502_and_ends_its_stream(wall: Wall, head: str) -> None:
    """The same over HTTP/2, where the stream (or the connection with it) is given up."""
    check_bad_head(wall, f"http2-{head}")


def check_bad_head(wall: Wall, fault: str) -> None:
    """Check that both a plain and a streamed request get a 502, and the upstream is left."""
    for stream in (PLAIN, STREAM):
        model = wall.ticket(fault)

        answer = wall.alone.ask(model, stream=stream).answer()

        assert (answer.status, answer.reason) == (502, "upstream_protocol")
        assert answer.header("x-should-retry") == "false"
        assert CHAT_JSON not in answer.body
        (call,) = wall.first.attempts(model)
        wall.first.wait_left(call)


@pytest.mark.fault("F-30")
@HTTP1
@pytest.mark.parametrize("fault", ["extra-bytes", "extra-reply", "extra-reply-later"])
def test_f30_connection_with_bytes_after_the_reply_is_not_used_again(wall: Wall, fault: str) -> None:
    """The reply counts, what follows it does not: no other client may get it for an answer."""
    model = wall.ticket(fault)

    with wall.alone.counted('velox_upstream_connections_ended_total{cause="extra_data"}'):
        answer = wall.alone.ask(model).answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, CHAT_JSON, True)
    (call,) = wall.first.attempts(model)
    for ask in [wall.alone.ask(wall.ticket("alive")) for _ in range(3)]:
        given = ask.answer()
        assert (given.status, given.body) == (200, CHAT_JSON) and SMUGGLED not in given.body
        assert wall.first.attempts(ask.model)[0].connection != call.connection


@pytest.mark.fault("F-30")
@HTTP2
def test_f30_http2_bytes_after_the_reply_reach_nobody(wall: Wall) -> None:
    """DATA on a stream that has ended is an error of the upstream's (RFC 9113 §5.1), and no other stream's matter."""
    answer = wall.alone.ask(wall.ticket("data-after-end")).answer()
    later = [wall.alone.ask(wall.ticket("alive")) for _ in range(3)]

    assert (answer.status, answer.body, answer.is_whole) == (200, CHAT_JSON, True)
    assert [ask.answer().body for ask in later] == [CHAT_JSON] * 3


@pytest.mark.fault("F-31")
@BOTH
def test_f31_interim_replies_are_skipped(wall: Wall, stream: bool) -> None:
    """100 and 103 are no replies."""
    answer = wall.alone.ask(wall.ticket("interim-10"), stream=stream).answer()

    assert (answer.status, answer.is_whole, answer.header("link")) == (200, True, None)


@pytest.mark.fault("F-31")
@BOTH
def test_f31_interim_replies_without_end_are_not(wall: Wall, stream: bool) -> None:
    """A hundred of them are an upstream out of its mind."""
    model = wall.ticket("interim-100")

    answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.reason) == (502, "upstream_protocol")
    assert len(wall.first.attempts(model)) == 1


@pytest.mark.fault("F-32")
def test_f32_packed_reply_is_passed_on_as_it_is(wall: Wall) -> None:
    """A gigabyte packed into a megabyte stays packed."""
    wanted = gzip_bomb()
    before = wall.alone.rss_bytes()

    answer = wall.alone.ask(wall.ticket("bomb")).answer()

    assert (answer.status, answer.header("content-encoding"), answer.is_whole) == (200, "gzip", True)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(wanted).digest()
    assert wall.alone.rss_bytes() < before + 16 * _MB


# -- HTTP/2 says no ---------------------------------------------------------------------------------------------


@pytest.mark.fault("F-33")
@HTTP2
def test_f33_goaway_lets_streams_finish_and_sends_new_ones_elsewhere(wall: Wall) -> None:
    """The stream that is under way comes to its end; what is asked meanwhile goes over another connection."""
    model = wall.ticket("goaway-in-stream")
    with wall.alone.counted('velox_upstream_connections_ended_total{cause="goaway"}'):
        running = wall.alone.ask(model, stream=STREAM)
        running.read_until(WORDS[-20:])
        call = wall.first.wait_attempt(model)
        meanwhile = [wall.alone.ask(wall.ticket("alive")) for _ in range(10)]

        assert [ask.answer().status for ask in meanwhile] == [200] * 10
        assert all(wall.first.attempts(ask.model)[0].connection != call.connection for ask in meanwhile)
        wall.first.step()
        answer = running.answer()

    assert (answer.status, answer.body, answer.is_whole) == (200, WORDS + DONE, True)
    assert wall.first.ends(model) == [ANSWERED]


@pytest.mark.fault("F-34")
@HTTP2
@BOTH
@pytest.mark.parametrize("fault", ["goaway-zero", "goaway-below"])
def test_f34_request_above_the_last_id_is_sent_again_unnoticed(wall: Wall, fault: str, stream: bool) -> None:
    """The upstream said that it did nothing: the other attempt is free."""
    model = wall.ticket(fault)

    with wall.alone.counted('velox_retries_total{cause="goaway"}'):
        answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    first, second = wall.first.attempts(model)
    assert wall.first.ends(model)[1] == ANSWERED and second.connection != first.connection


@pytest.mark.fault("F-35")
@HTTP2
@BOTH
def test_f35_refused_stream_is_sent_again_unnoticed(wall: Wall, stream: bool) -> None:
    """REFUSED_STREAM: no work was done, the other attempt is free."""
    model = wall.ticket("refuse-once")

    with wall.alone.counted('velox_retries_total{cause="refused"}'):
        answer = wall.alone.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert wall.first.ends(model) == ["reset 7", ANSWERED]


@pytest.mark.fault("F-35")
@HTTP2
@BOTH
def test_f35_stream_that_is_refused_each_time_is_given_up(wall: Wall, stream: bool) -> None:
    """Ten free attempts more, then an error that says that another try is safe."""
    model = wall.ticket("refuse")

    answer = wall.alone.ask(model, stream=stream).answer()

    assert answer.status == 502 and answer.header("x-should-retry") == "true"
    assert len(wall.first.attempts(model)) == 11


@pytest.mark.fault("F-35")
@HTTP2
@BOTH
def test_f35_refused_stream_goes_on_to_the_next_upstream(wall: Wall, stream: bool) -> None:
    """Where there is another one."""
    model = wall.ticket("refuse@1")

    answer = wall.pair.ask(model, stream=stream).answer()

    assert (answer.status, answer.is_whole) == (200, True)
    assert wall.second.ends(model) == [ANSWERED]


@pytest.mark.fault("F-36")
@HTTP2
@pytest.mark.parametrize("limit", ["limit-1", "limit-0"])
def test_f36_limit_that_is_lowered_under_way_locks_nobody_out(wall: Wall, limit: str) -> None:
    """The stream beyond the limit goes on; requests find room on another connection."""
    model = wall.ticket(limit)
    running = wall.alone.ask(model, stream=STREAM)
    running.read_until(WORDS[-20:])

    meanwhile = [wall.alone.ask(wall.ticket("alive"), stream=bool(n % 2)) for n in range(10)]
    answers = [ask.answer() for ask in meanwhile]
    wall.first.step()

    assert [(answer.status, answer.is_whole) for answer in answers] == [(200, True)] * 10
    assert running.answer().body == WORDS + DONE


@pytest.mark.fault("F-36")
@HTTP2
def test_f36_one_stream_a_connection_is_obeyed_and_starves_nobody(wall: Wall) -> None:
    """Twenty requests at once at an upstream that takes one a connection: all pass, none over the limit."""
    provider = wall.provider(1)
    provider.http2_settings = {3: 1}  # MAX_CONCURRENT_STREAMS
    with provider, start_gate(wall.setup, [provider]) as gate:
        model = wall.ticket("hold")
        asks = [gate.ask(model, stream=bool(n % 2)) for n in range(20)]
        until(lambda: len(provider.attempts(model)) > 0, "the first is there")
        provider.step(20)

        assert [(answer.status, answer.is_whole) for answer in (ask.answer() for ask in asks)] == [(200, True)] * 20
        assert provider.ends(model) == [ANSWERED] * 20
        pairs = itertools.permutations(provider.attempts(model), 2)
        assert [pair for pair in pairs if _is_beside(*pair)] == []
        gate.check_alive()


def _is_beside(other: Call, call: Call) -> bool:
    """True when a call came while another one was open on its connection."""
    return other.connection == call.connection and other.came_s <= call.came_s < other.ended_s


@pytest.mark.fault("F-39")
@HTTP2
@pytest.mark.parametrize("flood", [*FLOODS, "empty-data"])
def test_f39_flood_ends_its_connection_only(wall: Wall, flood: str) -> None:
    """An upstream that floods is left; a stream of another upstream goes on, and memory stays where it was."""
    check_flood(wall, f"flood-{flood}")


@pytest.mark.fault("F-39")
@HTTP2
def test_f39_header_bomb_ends_its_connection_only(wall: Wall) -> None:
    """Four megabytes of head in five kilobytes are not unpacked."""
    check_flood(wall, "http2-header-bomb")


def check_flood(wall: Wall, fault: str) -> None:
    """Check that a flood fails its request, and nothing else."""
    before = wall.pair.rss_bytes()
    beside = wall.pair.ask(wall.ticket("503@1"))  # goes on to the second
    assert beside.answer().status == 200
    steady = wall.alone.ask(wall.ticket("held-stream"), stream=STREAM)
    steady.read_until(WORDS[-20:])

    model = wall.ticket(fault)
    with wall.pair.counted('velox_upstream_connections_ended_total{cause="protocol"}'):
        answer = wall.pair.ask(model, stream=STREAM).answer()

    assert answer.status == 502 or not answer.is_whole
    (call,) = wall.first.attempts(model)
    wall.first.wait_left(call)
    assert wall.pair.rss_bytes() < before + 16 * _MB
    wall.first.step()
    assert steady.answer().body == WORDS + DONE
