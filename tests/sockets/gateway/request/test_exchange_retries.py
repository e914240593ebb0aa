"""Which attempts a request gets, where, and what is left of it however it ends: a real loop, scripted upstreams."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_attempts import (
    RULES,
    SILENT,
    ask,
    attempts,
    broken,
    put_out,
    run,
    status_of,
    submit,
    until,
    whole,
)
from tests.sockets.gateway.core_gateway import NO_RETRIES, FakeClient, ScriptedUpstream, Step, gateway, request_head
from tests.sockets.gateway.core_plans import fail
from velox.errors import Reason
from velox.gateway.cluster.group import Group
from velox.gateway.cluster.retries import RetryPolicy
from velox.gateway.cluster.routing import RouteCursor, RouteParts, Routing
from velox.gateway.front.intake import Gateway
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Retry
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.member import EJECTION, State, Verdict
from velox.policy.retries.deadline import ClientTerms
from velox.policy.retries.retry import RetryBudget, RetryRules
from velox.types import ANYONE, BodyFields


def retry_policy(made: Gateway, cursor: RouteCursor) -> RetryPolicy:
    parts = made.parts
    denied = parts.recorder.retry_denied
    return RetryPolicy(parts.retry_rules, parts.retry_budget, denied, cursor, ClientTerms(), math.inf)


@pytest.mark.parametrize(("cause", "most"), [(Retry.REFUSED, 10), (Retry.GOAWAY, 10), (Retry.STALE, 2)])
def test_work_that_was_surely_not_begun_is_tried_again_for_free(cause: Retry, most: int) -> None:
    """Whatever the settings and the budget say, and not for ever."""

    async def main() -> None:
        free = broken(unprocessed=cause)
        good, bad = ScriptedUpstream(*[free] * most, whole()), ScriptedUpstream(free)
        with gateway(good.dial, budget=RetryBudget(0, 0.0)) as made:
            assert status_of(await ask(made)) == 200
        with gateway(bad.dial, budget=RetryBudget(0, 0.0)) as made:
            assert status_of(await ask(made)) == 502
        assert attempts(good, bad) == [most + 1, most + 1]

    run(main)


def test_connection_that_was_waited_for_in_vain_is_not_waited_for_again() -> None:
    """F-2: a black hole costs one connect time-out, unless there is another upstream; a refusal may be a moment's."""

    async def main() -> None:
        failure = UpstreamFailure(Reason.UPSTREAM_CONNECT, "time-out", unprocessed=Retry.CONNECT)
        lone, other = ScriptedUpstream(whole()), ScriptedUpstream(whole())
        with gateway(lone.dial) as made:
            plan = made.routing.resolve(request_head(), None, ANYONE).cursor(request_head(), BodyFields(), ANYONE, None)
            pick = plan.first(100.0)
            assert pick is not None
            retries = retry_policy(made, plan)
            assert retries.after_failure(failure, pick, 100.1) is not None
            assert retries.after_failure(failure, pick, 103.1) is None
        with gateway(lone.dial, other.dial) as made:
            plan = made.routing.resolve(request_head(), None, ANYONE).cursor(request_head(), BodyFields(), ANYONE, None)
            pick = plan.first(100.0)
            assert pick is not None
            again = retry_policy(made, plan).after_failure(failure, pick, 103.0)
            assert again is not None and again.attempt.member is made.routing.members[1]

    run(main)


def test_free_retry_goes_to_the_next_upstream() -> None:
    """The second is asked once the first has refused, and the first one stays the preferred."""

    async def main() -> None:
        first, second = ScriptedUpstream(broken(unprocessed=Retry.REFUSED), whole()), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial) as made:
            assert [status_of(await ask(made)) for _ in range(2)] == [200, 200]
        assert attempts(first, second) == [2, 1]

    run(main)


@pytest.mark.parametrize("script", [whole(500), whole(503), whole(429), broken()], ids=["500", "503", "429", "reset"])
def test_counted_retry_goes_to_the_next_upstream_at_once(script: list[Step]) -> None:
    """Even if the first asks for an hour: that is its own hour."""

    async def main() -> None:
        first, second = ScriptedUpstream(script), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            assert status_of(await ask(made)) == 200
        assert attempts(first, second) == [1, 1]
        assert second.opened_s[0] - first.opened_s[0] < 0.2

    run(main)


def test_each_fallback_is_asked_once_when_the_retries_are_used_up() -> None:
    """`fallback` is for when those of `to` can't answer, however many of them can't."""

    async def main() -> None:
        failing = [ScriptedUpstream(whole(500)) for _ in range(3)]
        last = ScriptedUpstream(whole())
        with gateway(*(each.dial for each in failing), last.dial, rules=RULES) as made:
            assert status_of(await ask(made)) == 200
            assert attempts(*failing, last) == [1, 1, 1, 1]
            assert status_of(await ask(made, (b"x-stainless-retry-count", b"1"))) == 500
        with gateway(failing[0].dial, last.dial, rules=NO_RETRIES) as made:
            assert status_of(await ask(made)) == 500
        with gateway(*(each.dial for each in failing), last.dial, rules=RULES, budget=RetryBudget(0, 0.0)) as made:
            assert status_of(await ask(made)) == 500

    run(main)


def _all_but_the_first_out(made: Gateway, ago_s: float) -> None:
    """Put them out so long ago. After a minute each is due for a test."""
    for member in made.routing.members[1:]:
        put_out(member.health, asyncio.get_running_loop().time() - ago_s)


@pytest.mark.parametrize("script", [whole(500), broken(), whole(429, b"", (b"retry-after", b"3600"))])
def test_fallback_that_was_out_long_ago_is_asked_once_it_is_wanted(script: list[Step]) -> None:
    """Nobody tests it while the first is well: with the first that fails it is not as if there were none."""

    async def main() -> None:
        first, second = ScriptedUpstream(script), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            _all_but_the_first_out(made, 60.0)
            assert status_of(await ask(made)) == 200
        assert attempts(second) == [1]

    run(main)


def test_fallback_that_was_out_long_ago_is_asked_in_place_of_a_silent_one() -> None:
    """A time-out is not waited for at the same one again."""

    async def main() -> None:
        first, second = ScriptedUpstream(broken(Reason.UPSTREAM_TTFB_TIMEOUT)), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            _all_but_the_first_out(made, 60.0)
            assert status_of(await ask(made)) == 200
        assert attempts(first, second) == [1, 1]

    run(main)


@pytest.mark.parametrize(("ago_s", "status"), [(60.0, 200), (0.0, 404)])
def test_fallback_that_is_due_for_a_test_is_asked_for_a_model(ago_s: float, status: int) -> None:
    """404 of the first: another one may have it. One that has failed just now is not asked for that."""

    async def main() -> None:
        first, second = ScriptedUpstream(whole(404, NO_MODEL)), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=NO_RETRIES) as made:
            _all_but_the_first_out(made, ago_s)
            assert status_of(await ask(made)) == status

    run(main)


@pytest.mark.parametrize("ago_s", [60.0, 0.0])
def test_one_that_is_well_is_asked_again_before_one_that_is_out(ago_s: float) -> None:
    """A single error of the first is soon over; whether the second is back is not known."""

    async def main() -> None:
        first, second = ScriptedUpstream(whole(500), whole()), ScriptedUpstream(whole(500))
        with gateway(first.dial, second.dial, rules=RULES) as made:
            _all_but_the_first_out(made, ago_s)
            assert status_of(await ask(made)) == 200
        assert attempts(first, second) == [2, 0]

    run(main)


@pytest.mark.parametrize("script", [whole(500), broken(), broken(Reason.UPSTREAM_TTFB_TIMEOUT)])
def test_where_all_are_out_another_one_is_asked_not_the_same(script: list[Step]) -> None:
    """The second is well again, and nobody knows: what is believed of it is believed of the first, too."""

    async def main() -> None:
        first, second = ScriptedUpstream(script), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            for member in made.routing.members:
                put_out(member.health, asyncio.get_running_loop().time())
            assert status_of(await ask(made)) == 200
        assert attempts(first, second) == [1, 1]

    run(main)


NO_MODEL: Final = b'{"error":{"message":"The model `m` does not exist","code":"model_not_found"}}'


def test_who_does_not_have_the_model_is_passed_over() -> None:
    """A 404 that says so: each of the others is asked once, whatever is left of retries; the last one's passes."""

    async def main() -> None:
        missing = [ScriptedUpstream(whole(404, NO_MODEL)) for _ in range(3)]
        last = ScriptedUpstream(whole())
        budget = RetryBudget(0, 0.0)
        with gateway(*(each.dial for each in missing), last.dial, rules=NO_RETRIES, budget=budget) as made:
            client = await ask(made, (b"x-stainless-retry-count", b"1"))
            assert status_of(client) == 200
            assert attempts(*missing, last) == [1, 1, 1, 1]
            assert b"=404" in client.written
        with gateway(*(each.dial for each in missing), rules=NO_RETRIES, budget=budget) as made:
            client = await ask(made)
            assert status_of(client) == 404
            assert client.written.endswith(NO_MODEL)
        with gateway(missing[0].dial, rules=NO_RETRIES, budget=budget) as made:
            assert status_of(await ask(made)) == 404

    run(main)


def test_body_of_a_missing_model_may_come_in_parts() -> None:
    """The client sees nothing of it before it is read."""

    async def main() -> None:
        head = ReplyHead.of(404, [(b"content-type", b"application/json")], None)
        parts: list[Step] = [(head, b"", False), *((None, NO_MODEL[n : n + 1], False) for n in range(len(NO_MODEL)))]
        first, last = ScriptedUpstream([*parts, (None, b"", True)]), ScriptedUpstream(whole())
        with gateway(first.dial, last.dial) as made:
            assert status_of(await ask(made)) == 200

    run(main)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),
        (404, b""),
        (404, b'{"error":{"code":"model_not_found"},"more":"%b"}' % (b"x" * 100_000)),
        (400, NO_MODEL),
    ],
    ids=["other", "empty", "long", "400"],
)
def test_other_404_is_the_clients(status: int, body: bytes) -> None:
    """It passes as it came."""

    async def main() -> None:
        head = ReplyHead.of(status, [], len(body))
        parts: list[Step] = [(head, b"", False), (None, body[:70_000], False), (None, body[70_000:], True)]
        first, last = ScriptedUpstream(parts), ScriptedUpstream(whole())
        with gateway(first.dial, last.dial) as made:
            client = await ask(made)
            assert status_of(client) == status
            assert client.written.endswith(body)
        assert attempts(last) == [0]

    run(main)


def test_fallback_is_not_asked_in_place_of_a_retry_in_the_group() -> None:
    """Of two members of `to` the other one goes first; of three the third is not asked, but the fallback is."""

    async def main() -> None:
        upstreams = [ScriptedUpstream(whole(500)) for _ in range(3)]
        spare = ScriptedUpstream(whole())
        with gateway(*(each.dial for each in upstreams), spare.dial, rules=RULES) as made:
            *group, last = made.routing.members
            groups = [Group(group, [None] * 3, [1.0] * 3, RoundRobin()), Group([last], [None], [1.0], RoundRobin())]
            made.routing = Routing(made.routing.table, [*group, last], lambda entry: RouteParts(entry, tuple(groups)))
            assert status_of(await ask(made)) == 200
        assert sorted(attempts(*upstreams)) == [0, 1, 1] and attempts(spare) == [1]

    run(main)


def test_closed_connection_is_no_reason_to_go_elsewhere() -> None:
    """F-10, F-34: a server ends each connection after some time or some requests, and a fallback may be another model.

    If it happens again the next one is asked.
    """

    async def main() -> None:
        for cause in (Retry.STALE, Retry.GOAWAY):
            first, second = ScriptedUpstream(broken(unprocessed=cause), whole()), ScriptedUpstream(whole())
            with gateway(first.dial, second.dial) as made:
                assert status_of(await ask(made)) == 200
            assert attempts(first, second) == [2, 0]
            twice, second = ScriptedUpstream(broken(unprocessed=cause)), ScriptedUpstream(whole())
            with gateway(twice.dial, second.dial) as made:
                assert status_of(await ask(made)) == 200
            assert attempts(twice, second) == [2, 1]

    run(main)


@pytest.mark.parametrize("rules", [NO_RETRIES, RULES])
def test_request_that_no_closed_connection_delivered_goes_on(rules: RetryRules) -> None:
    """Nobody has received it: another try costs nothing, whatever settings and budget say."""

    async def main() -> None:
        upstreams = [ScriptedUpstream(broken(unprocessed=Retry.STALE)) for _ in range(3)]
        last = ScriptedUpstream(whole())
        dials = [each.dial for each in (*upstreams, last)]
        with gateway(*dials, rules=rules, budget=RetryBudget(0, 0.0)) as made:
            assert status_of(await ask(made)) == 200
        assert attempts(*upstreams, last) == [2, 1, 1, 1]

    run(main)


def test_reply_that_is_no_http_is_tried_elsewhere_within_the_budget() -> None:
    """It is a failed attempt like another: counted, at another upstream at once; none where retries are off."""

    async def main() -> None:
        for rules, expected in ((RULES, [1, 1]), (NO_RETRIES, [1, 0])):
            first, second = ScriptedUpstream(broken(Reason.UPSTREAM_PROTOCOL)), ScriptedUpstream(whole())
            with gateway(first.dial, second.dial, rules=rules) as made:
                status = status_of(await ask(made))
            assert attempts(first, second) == expected
            assert status == (200 if expected[1] else 502)

    run(main)


@pytest.mark.parametrize("then", [Reason.UPSTREAM_TTFB_TIMEOUT])
def test_what_comes_after_closed_connections_counts_as_it_is(then: Reason) -> None:
    """A time-out is never tried again at the same, whatever was closed before that."""

    async def main() -> None:
        stale = broken(unprocessed=Retry.STALE)
        upstream = ScriptedUpstream(stale, stale, broken(then))
        with gateway(upstream.dial, rules=replace(RULES, retries=2)) as made:
            client = await ask(made)
        assert status_of(client) >= 500
        assert attempts(upstream) == [3]

    run(main)


def test_request_reaches_the_one_that_works_past_all_that_do_not() -> None:
    """F-1: connections that can't be made cost nothing, so all upstreams that seem to work are asked."""

    async def main() -> None:
        down = [ScriptedUpstream(broken(Reason.UPSTREAM_CONNECT, Retry.CONNECT)) for _ in range(5)]
        last = ScriptedUpstream(whole())
        with gateway(*(each.dial for each in down), last.dial) as made:
            assert status_of(await ask(made)) == 200
        assert attempts(*down, last) == [1] * 6

    run(main)


@pytest.mark.parametrize("header", [(b"x-stainless-retry-count", b"1"), (b"x-other", b"1")])
def test_key_that_is_refused_costs_no_retry(header: Header) -> None:
    """401 of one of three keys: the upstream did no work, so the others are tried, whatever settings and budget say."""

    async def main() -> None:
        for n_refused, status in ((1, 200), (2, 200), (3, 401)):
            upstream = ScriptedUpstream(*[whole(401)] * n_refused, whole())
            with gateway(upstream.dial, budget=RetryBudget(0, 0.0), n_keys=3) as made:
                assert status_of(await ask(made, header)) == status
            assert attempts(upstream) == [min(3, n_refused + 1)]

    run(main)


def test_key_that_has_had_enough_costs_a_retry() -> None:
    """429: another key of the same account may be refused as well, so settings and budget are asked."""

    async def main() -> None:
        for retries, status in ((0, 429), (1, 200)):
            upstream = ScriptedUpstream(whole(429), whole())
            with gateway(upstream.dial, rules=replace(RULES, retries=retries), n_keys=2) as made:
                assert status_of(await ask(made)) == status

    run(main)


def test_refused_reply_is_never_mixed_into_the_next() -> None:
    """Not a byte of the first attempt's status, headers or body reaches the client, however late it comes."""

    async def main() -> None:
        late: list[Step] = [
            (ReplyHead.of(500, [(b"x-first", b"1")], None), b"first", False),
            (None, b"more of the first", False),
        ]
        first, second = ScriptedUpstream(late), ScriptedUpstream(whole(200, b"second"))
        with gateway(first.dial, second.dial, rules=RULES) as made:
            client = await ask(made)
        assert client.written.startswith(b"HTTP/1.1 200 ") and client.written.endswith(b"second")
        assert b"first" not in client.written
        assert (first.n_open, first.n_cancelled) == (0, 1), "what is left of it is dropped"

    run(main)


def test_same_upstream_is_asked_again_after_the_wait_it_asked_for() -> None:
    """F-22: not before."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(429, b"slow down", (b"retry-after-ms", b"150")), whole())
        with gateway(upstream.dial, rules=RULES) as made:
            assert status_of(await ask(made)) == 200
        assert upstream.opened_s[1] - upstream.opened_s[0] >= 0.149

    run(main)


def test_wait_is_read_anew_at_each_attempt() -> None:
    """The second refusal's Retry-After counts for the third attempt."""

    async def main() -> None:
        refusals = [whole(503, b"", (b"retry-after-ms", b"%d" % ms)) for ms in (20, 120)]
        upstream = ScriptedUpstream(*refusals, whole())
        with gateway(upstream.dial, rules=replace(RULES, retries=2)) as made:
            assert status_of(await ask(made)) == 200
        first, second, third = upstream.opened_s
        assert 0.019 <= second - first < 0.119 <= third - second

    run(main)


def unchanged(client: FakeClient, status: int, body: bytes) -> bool:
    return status_of(client) == status and client.written.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("script", "headers", "rules"),
    [
        (whole(429, b"mine", (b"retry-after", b"11")), (), RULES),
        (whole(500, b"mine", (b"x-should-retry", b"false")), (), RULES),
        (whole(500, b"mine"), ((b"x-stainless-retry-count", b"1"),), RULES),
        (whole(500, b"mine"), (), replace(RULES, retries=0)),
        (whole(500, b"mine"), (), replace(RULES, statuses=frozenset())),
        (whole(429, b"mine", (b"retry-after", b"2")), ((b"x-request-timeout-ms", b"1000"),), RULES),
        (whole(400, b"mine", (b"x-should-retry", b"true")), (), RULES),
    ],
    ids=["wait", "upstream forbids", "sdk retries", "none allowed", "not this status", "deadline", "4xx"],
)
def test_reply_that_may_not_be_tried_again_passes_unchanged(
    script: list[Step], headers: tuple[Header, ...], rules: RetryRules
) -> None:
    """Status and body are the upstream's own, after one attempt."""

    async def main() -> None:
        upstream = ScriptedUpstream(script)
        with gateway(upstream.dial, rules=rules) as made:
            head = script[0]
            assert isinstance(head, tuple) and head[0] is not None
            assert unchanged(await ask(made, *headers), head[0].status, b"mine")
        assert attempts(upstream) == [1]

    run(main)


def test_last_attempts_reply_passes_unchanged() -> None:
    """F-24, S04: the client sees what the upstream said, after one retry."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(503, b"one", (b"retry-after", b"0")), whole(503, b"two"))
        with gateway(upstream.dial, rules=RULES) as made:
            assert unchanged(await ask(made), 503, b"two")
        assert attempts(upstream) == [2]

    run(main)


def test_empty_budget_ends_counted_retries() -> None:
    """One spare retry, then none."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(503, b"", (b"retry-after", b"0")))
        with gateway(upstream.dial, rules=RULES, budget=RetryBudget(0, 0.001)) as made:
            for _ in range(3):
                assert status_of(await ask(made)) == 503
        assert attempts(upstream) == [4]

    run(main)


def test_nothing_is_tried_again_once_the_client_has_a_byte() -> None:
    """A reset inside the reply cuts it, though the next upstream is there."""

    async def main() -> None:
        cut: list[Step] = [(ReplyHead.of(200, [], None), b"some" * 100, False), *broken()]
        first, second = ScriptedUpstream(cut), ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            client = await ask(made)
        assert client.cuts and attempts(first, second) == [1, 0]

    run(main)


@pytest.mark.parametrize("n_upstreams", [1, 2])
def test_silent_upstream_is_not_asked_again_but_the_next_one_is(n_upstreams: int) -> None:
    """F-21, S06: it may be at work on the request still."""

    async def main() -> None:
        upstreams = [ScriptedUpstream(SILENT), ScriptedUpstream(whole())][:n_upstreams]
        with gateway(*(upstream.dial for upstream in upstreams), rules=RULES) as made:
            client = FakeClient()
            submit(made, client)
            await until(lambda: upstreams[0].n_open == 1)
            now_s = asyncio.get_running_loop().time()
            made.sweep(now_s + 59.0)
            assert upstreams[0].n_open == 1
            made.sweep(now_s + 61.0)
            async with asyncio.timeout(PATIENCE_S):
                await client.finished.wait()
            assert status_of(client) == (504 if n_upstreams == 1 else 200)
            assert attempts(*upstreams) == [1, 1][:n_upstreams]
            assert upstreams[0].n_open == 0

    run(main)


def test_failing_upstream_is_passed_over_and_found_again() -> None:
    """F-27: after five faults in a row it is left alone; probes that are well bring it back."""

    async def main() -> None:
        first = ScriptedUpstream(*[whole(500)] * 5, whole())
        second = ScriptedUpstream(whole())
        with gateway(first.dial, second.dial, rules=RULES) as made:
            for _ in range(8):
                assert status_of(await ask(made)) == 200
            assert attempts(first, second) == [5, 8]
            health = made.routing.members[0].health
            loop = asyncio.get_running_loop()
            assert made.routing.publish(loop.time()) == 1
            for n_asked in range(EJECTION.probes):
                await until(lambda: health.wants_probe(loop.time()))
                assert [status_of(await ask(made)) for _ in range(2)] == [200, 200]
                assert attempts(first, second)[0] >= 6 + n_asked
            assert made.routing.publish(loop.time()) == 0
            assert status_of(await ask(made)) == 200
            assert attempts(first, second) == [9, 9]

    run(main)


def test_lone_upstream_that_fails_is_shown_as_out() -> None:
    """Though it gets requests. One that rests is not: it said when it comes back."""

    async def main() -> None:
        with gateway(ScriptedUpstream(whole()).dial) as made:
            fail(made.routing.members[0])
            assert made.routing.publish(asyncio.get_running_loop().time()) == 1
            assert status_of(await ask(made)) == 200

        with gateway(ScriptedUpstream(whole()).dial, ScriptedUpstream(whole()).dial) as made:
            health, now_s = made.routing.members[0].health, asyncio.get_running_loop().time()
            for _ in range(3):
                health.begin(now_s)
                health.ended(Verdict.BUSY, now_s, now_s, answered=False, cooldown_s=60.0)
            assert health.state(now_s) is State.RESTING
            assert made.routing.publish(now_s) == 0

    run(main)


def test_upstreams_that_are_all_out_are_used_all_the_same() -> None:
    """S16: no request is refused for what Velox believes of an upstream."""

    async def main() -> None:
        first, second = ScriptedUpstream(*[whole(500)] * 5, whole()), ScriptedUpstream(whole(500))
        with gateway(first.dial, second.dial, rules=RULES) as made:
            for _ in range(5):
                assert status_of(await ask(made)) == 500
            assert made.routing.publish(asyncio.get_running_loop().time()) == 2
            assert status_of(await ask(made)) == 200

    run(main)
