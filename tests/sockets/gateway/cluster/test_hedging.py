"""Two attempts of one request at a time: whose reply the client gets, and what is left of the other however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sockets.gateway.composed import routing_of
from tests.sockets.gateway.core_attempts import RULES, broken, put_out, run, status_of, until, whole
from tests.sockets.gateway.core_gateway import FakeClient, change_parts
from tests.sockets.gateway.core_hedging import AT_ONCE, COMMENT, EVENT, NEVER, event_head, race, turns
from tests.unit.gateway.limits.recorded_calls import CallRecords
from velox.errors import Reason
from velox.gateway.limits.calls import CallLog
from velox.heads import ReplyHead, RequestHead
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Retry
from velox.policy.health.group import GroupRules
from velox.policy.health.member import State, Verdict
from velox.policy.queue.concurrency import FixedLimit
from velox.policy.routes.entries import ANYTHING, Delay, Hedge, RouteEntry, Target
from velox.types import ANYONE


def test_second_attempt_that_speaks_first_wins() -> None:
    """The first is cancelled in the same turn; the bytes are the second's alone."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.second.says((event_head((b"x-from", b"second")), EVENT, False))
            assert (both.first.n_cancelled, both.first.n_open) == (1, 0), "at once"
            both.second.says((None, b"data: [DONE]\n\n", True))
            client = await both.answer()
            assert client.written.count(b"data: ") == 2 and both.field(b"x-from") == b"second"
            assert both.way == (b"1", b"2", b"0=hedged")
            assert both.hedges() == {"WON": 1}

    run(main)


def test_first_attempt_that_speaks_late_wins() -> None:
    """The second one was for nothing, and is cancelled."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((event_head(), EVENT, False))
            assert (both.second.n_cancelled, both.second.n_open) == (1, 0)
            both.first.says((None, b"", True))
            await both.answer()
            assert both.way == (b"0", b"2", b"1=hedged")
            assert both.hedges() == {"LOST": 1}

    run(main)


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_at_one_upstream_each_is_recorded_as_what_it_was(tmp_path: Path, winner: int) -> None:
    """Their upstream's name does not tell them apart: the second one asks it for a smaller model."""
    records = CallRecords(tmp_path)

    async def main() -> None:
        with race(1) as both:
            made, balance = both.made, both.balance
            target = Target(made.routing.members[0].name)
            fallback = (replace(target, model="small"),)
            entry = RouteEntry("*", ANYTHING, (target,), fallback=fallback, hedge=Hedge(AT_ONCE, 100.0))
            made.routing = routing_of(made.routing.members, entry, balancer=balance)
            change_parts(made, calls=CallLog(records.writer, lambda *_: None))
            media = (b"content-type", b"application/json")
            head = RequestHead.of(b"POST", b"/v1/chat/completions", [media], len(both.body))
            made.submit(both.client, head, both.body, ANYONE)
            await until(lambda: len(both.first.streams) == 2)
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}\n\n'
            both.first.says((event_head(), usage, True), n=winner)
            await until(both.client.finished.is_set)

    run(main)
    found = [(call.attempt, call.upstream_model, call.reason, call.tokens.output) for call in records.calls]
    models = ("m", "small")
    assert sorted(found) == sorted([(winner + 1, models[winner], "ok", 7), (2 - winner, models[1 - winner], "lost", 0)])


def test_attempt_that_answers_in_time_stays_alone() -> None:
    """Nothing is counted, nobody else is asked."""

    async def main() -> None:
        with race(after=NEVER) as both:
            both.submit()
            await until(lambda: both.first.is_asked)
            both.first.says((event_head(), EVENT, True))
            await both.answer()
            assert both.way == (b"0", b"1", b"")
            assert (both.second.n_dials, both.hedges()) == (0, {})

    run(main)


@pytest.mark.parametrize(
    "breath", [COMMENT, b"event: response.created\ndata: {}\n\n", b"event: message_start\ndata: {}\n\n"]
)
def test_head_comments_and_that_it_was_taken_are_no_first_byte(breath: bytes) -> None:
    """Some servers send them before they think: who speaks wins over who only breathes."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((event_head(), b"", False), (None, breath, False))
            assert both.client.written == b"", "nothing of it before it has won"
            both.second.says((event_head(), breath, False), (None, EVENT, True))
            client = await both.answer()
            assert client.written.count(b"HTTP/1.1") == 1
            assert client.written.count(breath) == 1 and EVENT in client.written
            assert both.way[0] == b"1"

    run(main)


@pytest.mark.parametrize("n_bytes", [100, 66_000, 300_000])
def test_preludes_of_any_size_are_no_first_byte(n_bytes: int) -> None:
    """C25: who repeats a long request has not begun to answer it, and does not win over who has."""
    prelude = b'event: response.created\ndata: {"type":"response.created","x":"%b"}\n\n' % (b"x" * n_bytes)

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((event_head(), b"", False), (None, prelude, False))
            assert both.second.n_cancelled == 0 and both.client.written == b""
            both.second.says((event_head(), EVENT, True))
            await both.answer()
            assert both.way[0] == b"1" and both.hedges() == {"WON": 1}

    run(main)


def test_head_that_is_held_back_is_heard_of_by_health() -> None:
    """Its member answers, whoever wins: it is not one that says nothing."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            health = both.made.routing.members[0].health
            assert health._n_waiting == 1
            both.first.says((event_head(), b"", False))
            assert health._n_waiting == 0
            both.second.says((event_head(), EVENT, True))
            await both.answer()

    run(main)


def test_what_was_held_back_comes_first() -> None:
    """Head, comment and half an event go out with the byte that makes it an event."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((event_head((b"x-from", b"first")), COMMENT, False))
            both.first.says((None, b": ", False), (None, b"more\n\ndata: a", False))
            assert both.second.n_cancelled == 1
            both.first.says((None, b"b\n\n", True))
            client = await both.answer()
            body = client.written.partition(b"\r\n\r\n")[2]
            assert COMMENT + b": more\n\ndata: a" in body and b"b\n\n" in body

    run(main)


def test_reply_without_a_body_wins_when_it_is_whole() -> None:
    """It has no first byte to wait for."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.second.says((ReplyHead.of(204, [], 0), b"", True))
            assert status_of(await both.answer()) == 204
            assert both.hedges() == {"WON": 1}

    run(main)


def test_stream_without_an_event_does_not_win() -> None:
    """Whole, but nothing in it: the other may have something."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.second.says((event_head(), COMMENT, True))
            assert both.first.is_asked
            both.first.says((event_head(), EVENT, True))
            await both.answer()
            assert both.way == (b"0", b"2", b"1=upstream_truncated")
            assert both.hedges() == {"FAILED": 1}

    run(main)


@pytest.mark.parametrize("winner", [0, 1])
def test_error_of_one_does_not_beat_the_other(winner: int) -> None:
    """It waits, whole, and is dropped when the other speaks; its member is judged by it."""

    async def main() -> None:
        with race(rules=RULES) as both:
            await both.both_asked()
            good, bad = both.upstreams[winner], both.upstreams[1 - winner]
            bad.says(*whole(500, b"mine"))
            await turns()
            assert both.client.written == b"" and good.is_asked
            good.says((event_head(), EVENT, True))
            client = await both.answer()
            assert status_of(client) == 200 and b"mine" not in client.written
            assert both.way == (b"%d" % winner, b"2", b"%d=500" % (1 - winner))
            faults = both.made.routing.members[1 - winner].health.counts(bad.opened_s[0] + 1.0)[1]
            assert faults > 0.0

    run(main)


@pytest.mark.parametrize("loser", [0, 1])
def test_failure_of_one_leaves_the_other(loser: int) -> None:
    """It goes on as if it were alone: an error status is its client's then, and so is a comment."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            rest = both.upstreams[1 - loser]
            both.upstreams[loser].says(*broken())
            await turns()
            rest.says((event_head(), COMMENT, False))
            rest.says((None, EVENT, True))
            assert both.client.written.startswith(b"HTTP/1.1 200") and COMMENT + EVENT in both.client.written
            await both.answer()
            assert both.way == (b"%d" % (1 - loser), b"2", b"%d=upstream_reset" % loser)
            assert both.hedges() == ({"WON": 1} if loser == 0 else {"FAILED": 1})

    run(main)


def test_error_that_waited_is_passed_on_when_the_other_fails() -> None:
    """With all of its body."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.first.says((ReplyHead.of(400, [], None), b"wrong ", False))
            both.second.says(*broken())
            await turns()
            both.first.says((None, b"field", True))
            client = await both.answer()
            assert status_of(client) == 400 and b"wrong " in client.written and b"field" in client.written
            assert both.way == (b"0", b"2", b"1=upstream_reset")

    run(main)


@pytest.mark.parametrize(("statuses", "seen"), [((400, 500), 400), ((500, 400), 400), ((500, 501), 501)])
def test_of_two_errors_the_one_that_nobody_tries_again_is_seen(statuses: tuple[int, int], seen: int) -> None:
    """What is wrong with the request says more than that a server has failed. Else it is the later one."""

    async def main() -> None:
        with race(rules=RULES) as both:
            await both.both_asked()
            for upstream, status in zip(both.upstreams, statuses, strict=True):
                upstream.says(*whole(status))
            assert status_of(await both.answer()) == seen
            assert both.field(b"x-velox-attempts") == b"2"
            assert both.hedges() == ({"FAILED": 1})

    run(main)


@pytest.mark.parametrize("how", ["reset", "500", "mixed", "same turn"])
def test_when_both_fail_the_usual_retry_follows_once(how: str) -> None:
    """At a member that neither was at; with one retry allowed there are three attempts, and no second hedge."""

    async def main() -> None:
        with race(4, rules=RULES) as both:
            await both.both_asked()
            first, second, third, fourth = both.upstreams
            first.says(*(whole(500) if how in ("500", "mixed") else broken()))
            if how != "same turn":
                await turns()
            second.says(*(whole(500) if how == "500" else broken()))
            await until(lambda: third.is_asked)
            assert not fourth.streams
            third.says(*whole())
            client = await both.answer()
            assert status_of(client) == 200
            assert both.way[:2] == (b"2", b"3")
            assert both.field(b"x-velox-tried").count(b"=") == 2
            assert len(fourth.streams) == 0 and both.hedges() == {"FAILED": 1}

    run(main)


def test_when_both_fail_and_nobody_may_try_again_the_client_is_told() -> None:
    """The last one's failure."""

    async def main() -> None:
        with race() as both:
            await both.both_asked()
            both.second.says(*broken())
            both.first.says(*broken(Reason.UPSTREAM_PROTOCOL))
            client = await both.answer()
            assert status_of(client) == 502
            assert both.field(b"x-should-retry") == b"false", "an upstream may have begun"
            assert both.hedges() == {"FAILED": 1}

    run(main)


def test_first_that_fails_before_the_delay_is_tried_again_as_usual() -> None:
    """No hedge for what is no longer slow, but over."""

    async def main() -> None:
        with race(after=NEVER, rules=RULES) as both:
            both.submit()
            await until(lambda: both.first.is_asked)
            both.first.says(*broken())
            await until(lambda: both.second.is_asked)
            both.second.says(*whole())
            await both.answer()
            assert both.way == (b"1", b"2", b"0=upstream_reset")
            assert both.hedges() == {}

    run(main)


def test_first_that_brings_an_error_before_the_delay_is_passed_on_at_once() -> None:
    """It waits for nobody."""

    async def main() -> None:
        with race(after=NEVER) as both:
            both.submit()
            await until(lambda: both.first.is_asked)
            both.first.says(*whole(404, b"no such model"))
            assert status_of(await both.answer()) == 404
            assert (both.second.n_dials, both.hedges()) == (0, {})

    run(main)


def test_second_that_waits_for_a_connection_is_no_harm() -> None:
    """The first one goes on; its phase is its own."""

    async def main() -> None:
        with race(after=Delay(seconds=0.02)) as both:
            both.second.may_connect.clear()
            exchange = both.submit()
            await until(lambda: both.first.is_asked)
            await until(lambda: both.second.n_dials > 0)
            both.first.says((event_head(), EVENT, False))
            assert exchange.phase == "ttfb"
            both.first.says((None, b"", True))
            await both.answer()
            assert both.way == (b"0", b"2", b"1=hedged")
            assert both.hedges() == {"LOST": 1}
            both.second.may_connect.set()

    run(main)


@pytest.mark.parametrize("refusing", [0, 1])
def test_member_that_can_not_be_reached_leaves_the_other(refusing: int) -> None:
    """It is not dialed again for this request."""

    async def main() -> None:
        with race(rules=RULES) as both:
            both.first.may_connect.clear()
            both.second.may_connect.clear()
            both.submit()
            await until(lambda: both.first.n_dials > 0 and both.second.n_dials > 0)
            both.upstreams[refusing].refuses = True
            both.upstreams[refusing].may_connect.set()
            await until(lambda: both.made.routing.members[refusing].pool.is_down)
            both.upstreams[1 - refusing].may_connect.set()
            await until(lambda: both.upstreams[1 - refusing].is_asked)
            both.upstreams[1 - refusing].says(*whole())
            await both.answer()
            assert both.way == (b"%d" % (1 - refusing), b"2", b"%d=upstream_connect" % refusing)

    run(main)


def test_first_that_waits_for_a_connection_is_overtaken() -> None:
    """The delay runs from when it was sent off, not from when it had a connection; then nothing of it is left."""

    async def main() -> None:
        with race() as both:
            both.first.may_connect.clear()
            both.submit()
            await until(lambda: both.second.is_asked)
            both.second.says((event_head(), EVENT, True))
            await both.answer()
            assert both.way == (b"1", b"2", b"0=hedged")
            both.first.may_connect.set()
            await turns()
            assert not both.first.streams

    run(main)


def test_denied_for_want_of_budget() -> None:
    """The first goes on alone; half a second try is saved."""

    async def main() -> None:
        with race(at_most=50.0) as both:
            both.submit()
            await until(lambda: both.first.is_asked and both.hedges() == {"DENIED": 1})
            both.first.says((event_head(), b"", False))
            both.first.says((None, EVENT, False))
            assert both.client.written.startswith(b"HTTP/1.1 200")
            both.first.says((None, EVENT, True))
            await both.answer()
            assert both.second.n_dials == 0 and both.way == (b"0", b"1", b"")

    run(main)


def test_head_that_waits_is_passed_on_when_the_second_is_denied() -> None:
    """It came before the delay was over: nobody else can win any more."""

    async def main() -> None:
        with race(1) as both:
            both.first.may_connect.clear()
            both.submit()
            await until(lambda: both.hedges() == {"DENIED": 1})
            both.first.may_connect.set()
            await until(lambda: both.first.is_asked)
            both.first.says((event_head(), COMMENT, False))
            both.first.says((None, EVENT, False))
            assert COMMENT + EVENT in both.client.written
            both.first.says((None, EVENT, True))
            await both.answer()

    run(main)


def test_member_without_room_gets_no_second_attempt() -> None:
    """`concurrency` holds for it: the load that there is none to spare for is not doubled."""

    async def main() -> None:
        with race(concurrency=[FixedLimit(8), FixedLimit(1)]) as both:
            taken = both.made.routing.members[1].concurrency
            taken.begin(0.0)
            both.submit()
            await until(lambda: both.first.is_asked and both.hedges() == {"DENIED": 1})
            both.first.says(*whole())
            taken.ended(0.0, 1.0, replied=False)
            await both.answer()
            assert both.second.n_dials == 0

    run(main)


def test_second_attempt_takes_no_place_that_others_count_on() -> None:
    """Two attempts of one request are two of the places at the upstreams: the queue lets no more out for it."""

    async def main() -> None:
        with race(concurrency=[FixedLimit(1), FixedLimit(2)]) as both:
            await both.both_asked()
            assert both.made._free_slots() == 1
            both.first.says(*broken())
            await turns()
            assert both.made._free_slots() == 2, "the place of the one that has failed"
            both.second.says(*whole())
            await both.answer()

    run(main)


def test_place_of_the_loser_is_the_next_ones() -> None:
    """At once, not when the winner's reply has ended."""

    async def main() -> None:
        with race(concurrency=[FixedLimit(1), FixedLimit(1)]) as both:
            await both.both_asked()
            client, both.client = both.client, FakeClient()
            both.submit()
            await turns()
            assert len(both.made.queue) == 1, "there is no room"
            both.second.says((event_head(), EVENT, False))
            await until(lambda: len(both.first.streams) == 2)
            both.first.says((event_head(), EVENT, True))
            await until(both.client.finished.is_set)
            assert both.way == (b"0", b"1", b"")
            both.client = client
            both.second.says((None, b"", True))
            await both.answer()

    run(main)


@pytest.mark.parametrize(
    ("headers", "path", "body"),
    [
        ((), b"/v1/chat/completions", b'{"model":"m","messages":[]}'),
        (((b"x-stainless-retry-count", b"1"),), b"/v1/chat/completions", b'{"model":"m","stream":true}'),
        ((), b"/v1/files", b'{"model":"m","stream":true}'),
        ((), b"/v1/responses", b'{"model":"m","stream":true,"background":true}'),
        ((), b"/v1/responses", b'{"model":"m","stream":true,"conversation":"conv_1"}'),
    ],
    ids=["no stream", "the client's own retry", "no inference", "runs on", "is added to a conversation"],
)
def test_only_what_may_be_asked_twice_is_hedged(
    headers: tuple[tuple[bytes, bytes], ...], path: bytes, body: bytes
) -> None:
    """And only where a first byte says something of the server's speed."""

    async def main() -> None:
        with race() as both:
            both.body = body
            both.submit(*headers, path=path)
            await until(lambda: both.first.is_asked)
            await turns(20)
            both.first.says(*whole())
            await both.answer()
            assert both.second.n_dials == 0 and both.hedges() == {}

    run(main)


def test_embeddings_are_hedged_though_they_are_no_streams() -> None:
    """They take as long as the server does."""

    async def main() -> None:
        with race() as both:
            both.body = b'{"model":"m","input":"x"}'
            both.submit(path=b"/v1/embeddings")
            await until(lambda: both.second.is_asked)
            both.second.says(*whole())
            await both.answer()
            assert both.hedges() == {"WON": 1}

    run(main)


def test_refused_second_attempt_is_tried_nowhere_else_while_the_first_may_answer() -> None:
    """Not even for free."""

    async def main() -> None:
        with race(3, rules=RULES) as both:
            await both.both_asked()
            both.second.says(UpstreamFailure(Reason.UPSTREAM_RESET, "refused", unprocessed=Retry.REFUSED))
            await turns(10)
            assert not both.upstreams[2].streams
            both.first.says(*whole())
            await both.answer()

    run(main)


# -- probes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["the other answers", "the client leaves"])
def test_silence_of_a_member_that_is_out_is_not_the_wait_of_the_client_that_probes_it(ends: str) -> None:
    """On a route that hedges nothing. The probe has failed by its silence: the next one is not due for longer."""

    async def main() -> None:
        with race(hedges=False, health=GroupRules(least_late_s=0.01)) as both:
            loop = asyncio.get_running_loop()
            first, second = (member.health for member in both.made.routing.members)
            put_out(first, loop.time() - 60.0)
            second.begin(loop.time())
            second.answers(loop.time() - 0.001, loop.time())  # a first byte is late after 10 ms
            second.ended(Verdict.WELL, loop.time(), loop.time(), answered=True)
            assert first.wants_probe(loop.time())

            exchange = await both.both_asked()
            if ends == "the client leaves":
                exchange.client_gone()
                await both.over()
            else:
                both.second.says((event_head(), EVENT, True))
                await both.answer()
                assert both.way == (b"1", b"2", b"0=hedged")

            assert first.state(loop.time()) is State.OUT
            assert not first.wants_probe(loop.time() + 1.5), "an attempt that was given up is asked again after 1 s"
            assert first.wants_probe(loop.time() + 3.0)

    run(main)


def test_probe_that_answers_in_time_is_the_only_attempt() -> None:
    """And so on until the member is back."""

    async def main() -> None:
        with race(hedges=False) as both:
            loop = asyncio.get_running_loop()
            put_out(both.made.routing.members[0].health, loop.time() - 60.0)
            both.submit()
            await until(lambda: both.first.is_asked)
            both.first.says((event_head(), EVENT, True))
            await both.answer()
            assert (both.way, both.hedges()) == ((b"0", b"1", b""), {})

    run(main)
