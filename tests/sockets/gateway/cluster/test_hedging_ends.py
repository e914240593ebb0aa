"""Two attempts of one request, and ends from outside: clients that leave or do not read, deadlines, drains."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import weakref
from dataclasses import replace
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import TIMEOUTS
from tests.sockets.gateway.core_attempts import RULES, broken, run, status_of, until, whole
from tests.sockets.gateway.core_gateway import FakeClient, Step
from tests.sockets.gateway.core_hedging import AT_ONCE, COMMENT, EVENT, NEVER, Race, event_head, race, turns
from tests.unit import virtual_time
from velox.errors import Reason, VeloxError
from velox.gateway.request.exchange import Exchange
from velox.heads import ReplyHead
from velox.policy.routes.entries import Delay

DRAINING: Final = VeloxError(Reason.DRAINING, "leaving", close=True)


async def at_first(both: Race) -> Exchange:
    exchange = both.submit()
    await until(lambda: both.first.is_asked)
    return exchange


async def at_both(both: Race) -> Exchange:
    return await both.both_asked()


async def at_first_lease(both: Race) -> Exchange:
    both.first.may_connect.clear()
    exchange = both.submit()
    await until(lambda: both.second.is_asked)
    return exchange


async def at_second_lease(both: Race) -> Exchange:
    both.second.may_connect.clear()
    exchange = both.submit()
    await until(lambda: both.second.n_dials > 0 and both.first.is_asked)
    return exchange


async def at_both_leases(both: Race) -> Exchange:
    both.first.may_connect.clear()
    both.second.may_connect.clear()
    exchange = both.submit()
    await until(lambda: both.second.n_dials > 0)
    return exchange


async def at_held_head(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.first.says((event_head(), COMMENT, False))
    return exchange


async def at_held_error(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.first.says((ReplyHead.of(500, [], None), b"x" * 10, False))
    return exchange


async def at_win(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.second.says((event_head(), EVENT, False))
    return exchange


async def at_loss(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.first.says((event_head(), EVENT, False))
    return exchange


async def at_alone(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.first.says(*broken())
    return exchange


async def at_refused(both: Race) -> Exchange:
    both.second.refuses = True
    exchange = both.submit()
    await until(lambda: both.second.n_dials > 0 and both.first.is_asked)
    return exchange


async def at_both_failed(both: Race) -> Exchange:
    exchange = await both.both_asked()
    both.first.says(*broken())
    both.second.says(*broken())
    return exchange


MOMENTS: Final = [
    at_first,
    at_both,
    at_first_lease,
    at_second_lease,
    at_both_leases,
    at_held_head,
    at_held_error,
    at_win,
    at_loss,
    at_alone,
    at_refused,
    at_both_failed,
]


@pytest.mark.parametrize("how", ["gone", "drain", "both"])
@pytest.mark.parametrize("n_turns", range(4))
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.more
def test_end_from_outside_ends_both_and_leaves_nothing(moment, n_turns: int, how: str) -> None:  # type: ignore[no-untyped-def]
    """Whatever each of them is at, and in the turns after it; over() looks at all that must be back."""

    async def main() -> None:
        with race(4, after=NEVER if moment is at_first else AT_ONCE, rules=RULES) as both:
            exchange = await moment(both)
            await turns(n_turns)
            if how != "drain":
                exchange.client_gone()
            if how != "gone":
                exchange.fail(DRAINING)
            await both.over()
            for upstream in both.upstreams:
                upstream.may_connect.set()
            await turns(10)
            assert all(upstream.n_open == 0 for upstream in both.upstreams), "no stream is opened later"
            assert len(exchange.tried) == len(set(exchange.tried)), "each is told of once"
            if how == "gone":
                assert both.client.written.count(b"HTTP/1.1") <= 1
            elif how == "drain":
                assert both.client.finished.is_set()

    run(main)


@pytest.mark.parametrize("n_turns", range(5))
def test_second_end_while_the_first_is_under_way_waits_for_both(n_turns: int) -> None:
    """The request is accounted once both attempts are; over() looks in the same turn."""

    async def main() -> None:
        with race() as both:
            exchange = await at_both_leases(both)
            exchange.fail(DRAINING)
            await turns(n_turns)
            exchange.client_gone()
            await both.over()

    run(main)


@pytest.mark.parametrize("n_turns", range(8))
def test_client_that_leaves_at_any_turn_from_the_start_leaves_nothing(n_turns: int) -> None:
    """Queued, between the two tasks and their first steps, while connections are made."""

    async def main() -> None:
        with race() as both:
            exchange = both.submit()
            await turns(n_turns)
            exchange.client_gone()
            await both.over()
            assert both.client.written == b""

    run(main)


@pytest.mark.parametrize("moment", [at_first, at_both, at_first_lease, at_second_lease, at_held_head, at_held_error])
def test_deadline_of_the_client_ends_both(moment) -> None:  # type: ignore[no-untyped-def]
    """504, and the way it took; nothing is tried again."""

    async def main() -> None:
        with race(3, after=NEVER if moment is at_first else AT_ONCE, rules=RULES) as both:
            exchange = await moment(both)
            exchange.on_deadline()
            await both.over()
            assert status_of(both.client) == 504
            n = 1 if moment is at_first else 2
            assert both.way == (b"0", b"%d" % n, b"" if n == 1 else b"1=hedged")
            assert both.hedges() == ({} if n == 1 else {"LOST": 1})
            assert not both.upstreams[2].streams

    run(main)


def test_no_second_attempt_after_the_deadline() -> None:
    """The client waits no longer for what it would bring."""

    async def main() -> None:
        with race(after=Delay(seconds=0.05)) as both:
            both.submit((b"x-request-timeout-ms", b"20"))
            await until(both.client.finished.is_set)
            await both.over()
            await asyncio.sleep(0.06)
            assert both.second.n_dials == 0 and both.hedges() == {}

    run(main)


def test_no_second_attempt_for_a_deadline_that_nobody_has_looked_at_yet() -> None:
    """A long one has no timer of its own; it is seen every 0.3 s."""

    async def main() -> None:
        with race(after=Delay(seconds=0.2)) as both:
            exchange = both.submit()
            await until(lambda: both.first.is_asked)
            exchange.deadline_s = 0.0  # type: ignore[misc]
            await until(lambda: both.hedges() == {"DENIED": 1})
            exchange.check_deadlines(1.0, both.made.parts.limits)
            await both.over()
            assert both.second.n_dials == 0

    run(main)


def test_failure_in_the_same_turn_as_the_first_byte_counts() -> None:
    """A deadline is not undone by a reply that begins in the moment after it."""

    async def main() -> None:
        with race() as both:
            exchange = await both.both_asked()
            exchange.on_deadline()
            both.second.says((event_head(), EVENT, False))
            await both.over()
            assert status_of(both.client) == 504

    run(main)


def test_reply_that_is_whole_as_the_client_leaves_is_whole() -> None:
    """It left with its answer."""

    async def main() -> None:
        with race() as both:
            exchange = await both.both_asked()
            both.second.says((event_head(), EVENT, True))
            exchange.client_gone()
            await both.answer()
            assert both.hedges() == {"WON": 1}

    run(main)


def test_slow_reader_holds_up_the_winner() -> None:
    """And nobody else: the loser's stream is gone."""

    async def main() -> None:
        with race() as both:
            exchange = await both.both_asked()
            both.second.says((event_head(), EVENT, False))
            exchange.client_paused()
            assert both.second.streams[0].is_paused
            exchange.client_resumed()
            assert not both.second.streams[0].is_paused
            assert both.first.streams[0].n_pauses == 0
            both.second.says((None, b"", True))
            await both.answer()

    run(main)


def test_client_that_does_not_read_before_the_first_byte_holds_up_who_wins() -> None:
    """The race goes on; the winner's first bytes are written, and no more is read."""

    async def main() -> None:
        with race() as both:
            exchange = await both.both_asked()
            both.client.is_write_paused = True
            exchange.client_paused()
            assert not any(upstream.streams[0].is_paused for upstream in both.upstreams)
            both.second.says((event_head(), EVENT, False))
            assert both.second.streams[0].is_paused
            both.client.is_write_paused = False
            exchange.client_resumed()
            both.second.says((None, b"", True))
            await both.answer()

    run(main)


def test_large_error_that_waits_is_held_up() -> None:
    """Some of its body is kept, the rest stays where it is until it is the client's."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((ReplyHead.of(400, [], None), b"x" * 70_000, False))
            assert both.first.streams[0].is_paused
            both.second.says(*broken())
            await turns()
            assert not both.first.streams[0].is_paused
            both.first.says((None, b"y", True))
            client = await both.answer()
            assert client.written.count(b"x" * 70_000) == 1 and b"\r\ny\r\n" in client.written

    run(main)


def test_endless_comments_win() -> None:
    """They are kept no longer than some; who sends so many is there."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((event_head(), b"", False))
            for _ in range(1000):
                both.first.says((None, COMMENT * 400, False))
            assert both.second.n_cancelled == 1 and COMMENT in both.client.written
            both.first.says((None, EVENT, True))
            await both.answer()

    run(main)


def test_attempt_without_a_byte_in_time_fails_alone() -> None:
    """VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT is of each attempt: the second has its own, and goes on."""

    async def main() -> None:
        with race(timeouts=replace(TIMEOUTS, first_byte_s=30.0)) as both:
            exchange = await both.both_asked()
            attempting = exchange._attempting
            assert attempting is not None and exchange.reply is not None
            now_s = asyncio.get_running_loop().time()
            both.second.says(*whole(500))
            exchange.check_deadlines(now_s + 29.0, both.made.parts.limits)
            assert both.first.is_asked
            exchange.check_deadlines(now_s + 31.0, both.made.parts.limits)
            await both.answer()
            assert status_of(both.client) == 500, "it had answered, so its time is not over"
            assert both.way == (b"1", b"2", b"0=upstream_ttfb_timeout")

    run(main)


def test_winner_that_goes_silent_is_ended_as_any() -> None:
    """VELOX_UPSTREAM_IDLE_TIMEOUT, with an error event."""

    async def main() -> None:
        with race() as both:
            exchange = await both.both_asked()
            both.second.says((event_head(), EVENT, False))
            now_s = asyncio.get_running_loop().time()
            exchange.check_deadlines(now_s + 59.0, both.made.parts.limits)
            await turns()
            assert both.second.is_asked
            exchange.check_deadlines(now_s + 61.0, both.made.parts.limits)
            await both.answer()
            assert b"upstream_idle_timeout" in both.client.cuts[0][0]

    run(main)


def test_winner_that_breaks_is_not_tried_again() -> None:
    """The client has seen a byte."""

    async def main() -> None:
        with race(3, rules=RULES) as both:
            await both.both_asked()
            both.second.says((event_head(), EVENT, False), *broken())
            await both.answer()
            assert both.client.cuts and not both.upstreams[2].streams
            assert both.hedges() == {"WON": 1}

    run(main)


@pytest.mark.parametrize("buggy", [0, 1])
def test_bug_in_one_attempt_is_told_and_does_not_end_the_other(buggy: int) -> None:
    """The operator hears of it, the client does not."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    async def main() -> None:
        with race() as both:
            both.made.parts.recorder._logger.addHandler(Listener())
            both.upstreams[buggy].bug = ZeroDivisionError("a bug")
            both.first.may_connect.clear()
            both.submit()
            await until(lambda: both.second.is_asked or (buggy == 1 and told))
            both.first.may_connect.set()
            await until(lambda: bool(told) and both.upstreams[1 - buggy].is_asked)
            both.upstreams[1 - buggy].says((event_head(), EVENT, True))
            await both.answer()
            assert both.way == (b"%d" % (1 - buggy), b"2", b"%d=internal" % buggy)
            assert len(told) == 1 and "ZeroDivisionError" in told[0]

    run(main)


def test_first_bytes_are_heard_and_what_was_given_up() -> None:
    """So that the percentile is not made shorter by those that lost."""

    async def main() -> None:
        with race(after=Delay(percentile=50.0)) as both:
            for _ in range(10):
                both.client.finished.clear()
                both.submit()
                await until(lambda: both.first.is_asked)
                both.first.says((event_head(), EVENT, True))
                await both.answer()
            assert both.second.n_dials == 0
            assert both.hedging._times._n_now == 10
            await asyncio.sleep(1.1)  # a percentile is kept for a second
            both.client.finished.clear()
            await both.both_asked()
            both.second.says((event_head(), EVENT, True))
            await both.answer()
            assert both.hedging._times._n_now == 11, "the first, with how long it had waited; not the second"

    run(main)


def test_ended_request_holds_nothing() -> None:
    """No cycle keeps its body until the garbage collector comes by: it may be 32 MB."""

    class Body(bytearray):
        """That can be watched."""

    async def main() -> None:
        for moment in MOMENTS:
            with race(4, after=NEVER if moment is at_first else AT_ONCE) as both:
                body = Body(b'{"model":"m","stream":true,"messages":[]}')
                watched = weakref.ref(body), weakref.ref(both.client)
                both.body = body
                gc.collect()
                gc.disable()
                try:
                    exchange = await moment(both)
                    both.body = b""
                    del body
                    await turns()
                    if both.made.n_active:
                        exchange.client_gone()
                    del exchange
                    await both.over()
                    for upstream in both.upstreams:
                        upstream.streams.clear()
                    both.client = FakeClient()
                    assert [each() for each in watched] == [None, None], moment
                finally:
                    gc.enable()

    run(main)


@pytest.mark.parametrize("seed", range(40))
def test_any_course_ends_and_leaves_nothing(seed: int) -> None:
    """Replies, errors, failures, lost connections and ends from outside, in any order and at any turn."""
    rng = random.Random(seed)

    async def main() -> None:
        with race(3, rules=RULES) as both:
            for _ in range(25):
                await _course(both, rng)

    run(main)


async def _course(both: Race, rng: random.Random) -> None:
    client = both.client = type(both.client)()
    for upstream in both.upstreams:
        upstream.streams.clear()
        if rng.random() < 0.2:
            upstream.may_connect.clear()
    now_s = asyncio.get_running_loop().time()
    for member in both.made.routing.members:  # what earlier courses have said of it is not the point
        member.health.__init__(member.health._rules, now_s, is_new=False)  # type: ignore[misc]
    exchange = both.submit()
    texts = {id(upstream): b"data: %d\n\n" % n for n, upstream in enumerate(both.upstreams)}
    async with asyncio.timeout(PATIENCE_S):
        while both.runs:
            await turns(rng.randrange(4))
            upstream = rng.choice(both.upstreams)
            what = rng.random()
            if what < 0.05:
                exchange.client_gone()
            elif what < 0.1 and both.made.n_active:
                exchange.fail(DRAINING)
            elif what < 0.2:
                upstream.may_connect.set()
            elif upstream.streams:
                _speak(upstream, texts[id(upstream)], rng)
    for upstream in both.upstreams:
        upstream.may_connect.set()
    await both.over()
    heads = client.written.count(b"HTTP/1.1 ")
    speakers = sum(text in client.written for text in texts.values())
    assert heads <= 1 and speakers <= 1, client.written


def _speak(upstream, text: bytes, rng: random.Random) -> None:  # type: ignore[no-untyped-def]
    """Bring what may come next in its newest reply."""
    stream = upstream.streams[-1]
    if not hasattr(stream, "has_head"):
        stream.has_head = True
        steps: list[list[Step]] = [
            [(event_head(), b"", False)],
            [(event_head(), COMMENT, False)],
            [(event_head(), text, rng.random() < 0.5)],
            [(event_head(), b"", True)],
            [(ReplyHead.of(rng.choice([400, 401, 429, 500, 302]), [], None), b"e", rng.random() < 0.5)],
            whole(200, text),
            broken(),
        ]
    else:
        steps = [[(None, COMMENT, False)], [(None, text, rng.random() < 0.5)], [(None, b"", True)], broken()]
    upstream.says(*rng.choice(steps))


def test_held_reply_is_silent_since_its_head_and_not_since_it_was_sent() -> None:
    """Where the wait for a first byte is longer than the one between two, a head that took its time is no silence."""

    async def main() -> None:
        with race(timeouts=replace(TIMEOUTS, first_byte_s=300.0, idle_s=60.0)) as both:
            both.body = b'{"model":"m","input":"x"}'
            both.submit(path=b"/v1/embeddings")
            await until(lambda: both.first.is_asked and both.second.is_asked)
            loop = asyncio.get_running_loop()
            await asyncio.sleep(100.0)
            both.first.says((ReplyHead.of(200, [(b"content-type", b"application/json")], 2), b"", False))
            both.made.sweep(loop.time() + 0.1)
            both.first.says((None, b"{}", True))
            assert status_of(await both.answer()) == 200
            assert both.way == (b"0", b"2", b"1=hedged")

    virtual_time.run(main())
