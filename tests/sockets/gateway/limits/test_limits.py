"""Limits in the life of a request: whatever end it comes to, what it took is settled; clients are told what is left."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NoReturn

import pytest

from tests.sockets.gateway.core_attempts import BODY, RULES, SILENT, ask, broken, run, status_of, until, whole
from tests.sockets.gateway.core_gateway import (
    LIMITS,
    FakeClient,
    ScriptedStream,
    ScriptedUpstream,
    Step,
    gateway,
    one_a_minute,
    request_head,
)
from tests.unit.gateway.limits.local_quotas import LocalQuota, LocalTable
from velox.errors import Reason, VeloxError
from velox.gateway.cluster.group import Attempt
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.gateway.websocket.tunnel import TunnelExchange
from velox.heads import Header, ReplyHead, RequestHead, WebSocketOffer
from velox.net.upstream.interface import ReplySink, UpstreamRequest
from velox.outcomes import Retry
from velox.policy.limits.estimate import Estimator
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.limits.token_bucket import BucketRate
from velox.types import ANYONE, BodyFields, Caller, KeyEntry, KeyTerms, Priority, Rates, Scope

# So slow that nothing fills up while a test runs; 10,000 tokens, of which a request of BODY is taken to need 107.
TOKENS, PROMPT, ANSWER = 10_000, 7, 100
ALL: Final = LimitRule("limits[0]", Scope.KEY, Rates(rpm=1, burst=100, tpm=1, tpm_burst=TOKENS, concurrency=3))
ESTIMATOR: Final = Estimator(bytes_per_token=4, default_max_tokens=ANSWER)
USAGE: Final = b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":30,"total_tokens":50}}'
JSON: Final[Header] = (b"content-type", b"application/json")
SSE: Final[Header] = (b"content-type", b"text/event-stream")
STREAMED: Final = b'{"model":"m","messages":[],"stream":true}'


def limited(*dials: object, rules: Sequence[LimitRule] = (ALL,), **more: object) -> AbstractContextManager[Gateway]:
    """Return a gateway with limits."""
    return gateway(*dials, limited=rules, estimator=ESTIMATOR, **more)  # type: ignore[arg-type]


def used(made: Gateway, caller: Caller = ANYONE) -> tuple[int, int, int]:
    """Return what is taken of ALL: requests, tokens, slots."""
    limits = made.parts.limiter.limits(caller, "m")
    now_ns = time.monotonic_ns()
    requests, tokens = (bound.quota.rate.burst - bound.quota.remaining(now_ns) for bound in limits.quotas)
    return requests, tokens, limits.slots[0].slots.in_use()


def headers_of(client: FakeClient) -> dict[str, str]:
    """Return the reply's headers; of a name that is there twice the last one, with the number of them before it."""
    found: dict[str, str] = {}
    for line in client.written.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        found[name] = f"twice {value}" if name in found else value
    return found


def send(
    made: Gateway, body: bytes = BODY, *headers: Header, caller: Caller = ANYONE
) -> tuple[Exchange | None, FakeClient]:
    """Send one request. None: it was refused on the spot."""
    head, client = request_head(more=headers), FakeClient()
    made.check_head(head)
    return made.submit(client, head, body, caller), client


async def never(_owner: object) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


# -- how an exchange can end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "costs"),
    [
        (whole(200, USAGE, JSON), (1, 50)),
        (whole(200, b'{"choices":[]}', JSON), (1, PROMPT + ANSWER)),
        (whole(200, b"\x8b\x0f\x80" * 99, (b"content-encoding", b"br")), (1, PROMPT + ANSWER)),
        (whole(500, b'{"error":{}}', JSON), (1, 0)),
        (whole(429, b"", (b"retry-after", b"99")), (1, 0)),
        (whole(302), (1, 0)),
        (broken(), (1, 0)),
        (broken(Reason.UPSTREAM_TTFB_TIMEOUT), (1, 0)),
        (broken(Reason.UPSTREAM_RESET, Retry.REFUSED), (0, 0)),
        (broken(Reason.UPSTREAM_CONNECT, Retry.CONNECT), (0, 0)),
        (
            [(ReplyHead.of(200, [JSON], 999), USAGE[:40].ljust(300), False), *broken(Reason.UPSTREAM_TRUNCATED)],
            (1, PROMPT + ANSWER),
        ),
    ],
    ids=["usage", "no usage", "unreadable", "error", "429", "redirect", "reset", "timeout", "refused", "dial", "cut"],
)
def test_reply_settles_what_was_estimated(script: list[Step], costs: tuple[int, int]) -> None:
    """The upstream's numbers where it tells; nothing for an error; all of it back where no upstream began."""

    async def main() -> None:
        with limited(ScriptedUpstream(script).dial) as made:
            await ask(made)
            assert used(made) == (*costs, 0)

    run(main)


def events(*texts: str) -> list[Step]:
    """Return a stream of chat events, without an end."""
    chunks = [b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode() for text in texts]
    return [(ReplyHead.of(200, [SSE], None), chunks[0], False), *((None, chunk, False) for chunk in chunks[1:])]


def test_client_that_leaves_a_stream_pays_for_what_was_produced() -> None:
    """The prompt as estimated, and an event a token."""

    async def main() -> None:
        upstream = ScriptedUpstream(events("a", "b", "c"))
        with limited(upstream.dial) as made:
            exchange, client = send(made, STREAMED)
            await until(lambda: client.written.count(b"data: ") == 3)
            assert used(made) == (1, 11 + ANSWER, 1), "charged in advance, and a slot"
            exchange.client_gone()
            await until(lambda: made.n_active == 0)
            assert used(made) == (1, 11 + 3, 0)

    run(main)


def test_client_that_leaves_with_the_whole_answer_pays_for_that() -> None:
    """All of the announced length is there; the end of the upstream's stream, in a frame of its own, is not yet."""

    async def main() -> None:
        upstream = ScriptedUpstream([(ReplyHead.of(200, [JSON], len(USAGE)), USAGE, False)])
        with limited(upstream.dial) as made:
            exchange, client = send(made, BODY)
            await until(lambda: client.written.endswith(USAGE))
            assert exchange is not None
            exchange.client_gone()
            await until(lambda: made.n_active == 0)
            assert used(made) == (1, 50, 0)
            assert (upstream.n_open, upstream.n_cancelled) == (0, 1)

    run(main)


def test_stream_that_breaks_costs_what_was_produced() -> None:
    """The client has got three tokens."""

    async def main() -> None:
        upstream = ScriptedUpstream([*events("a", "b", "c"), *broken(Reason.UPSTREAM_TRUNCATED)])
        with limited(upstream.dial) as made:
            _, client = send(made, STREAMED)
            await client.finished.wait()
            assert used(made) == (1, 11 + 3, 0)

    run(main)


def end_gone(exchange: Exchange) -> None:
    exchange.client_gone()


def end_drain(exchange: Exchange) -> None:
    exchange.fail(VeloxError(Reason.DRAINING, "leaving"))


def end_drain_of_socket(exchange: Exchange) -> None:
    """A Responses WebSocket is closed at once, and gives up its requests: that is not the client's doing."""
    end_drain(exchange)
    exchange.client_gone()


def end_deadline(exchange: Exchange) -> None:
    exchange.on_deadline()


@pytest.mark.parametrize("end", [end_gone, end_drain, end_drain_of_socket, end_deadline])
@pytest.mark.parametrize("phase", ["queue", "limit", "connect", "ttfb", "backoff"])
def test_end_from_outside_in_any_phase_is_settled_once(phase: str, end: Callable[[Exchange], None]) -> None:
    """Before the upstream got it all goes back; then the permit is used, and who gave up pays what was estimated."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(503, b"", (b"retry-after", b"9")) if phase == "backoff" else SILENT)
        more: dict[str, object] = {"rules": RULES} if phase == "backoff" else {}
        dial = never if phase == "connect" else upstream.dial
        with gateway(dial, limited=[ALL], estimator=ESTIMATOR, max_wait_s=6000.0, **more) as made:  # type: ignore[arg-type]
            quota = made.parts.limiter.limits(ANYONE, "m").quotas[0].quota
            if phase == "limit":
                quota.take(100, time.monotonic_ns())
            full_in_ns = quota.full_in_ns(time.monotonic_ns())
            exchange, client = send(made, BODY, (b"x-request-timeout-ms", b"300000"))
            await until(lambda: exchange.phase == phase)
            if phase == "queue" and end is end_drain:
                made.fail_all(VeloxError(Reason.DRAINING, "leaving"))
            else:
                end(exchange)
            await until(lambda: made.n_active == 0 and not len(made.queue))
            await asyncio.sleep(0)
            is_sent = phase in ("ttfb", "backoff")
            pays = phase == "ttfb" and end in (end_gone, end_deadline)
            if phase == "limit":
                assert used(made) == (100, 0, 0) and quota.full_in_ns(time.monotonic_ns()) <= full_in_ns
            else:
                assert used(made) == (int(is_sent), PROMPT + ANSWER if pays else 0, 0)
            assert (client.written == b"") == (end in (end_gone, end_drain_of_socket))

    run(main)


def test_retry_is_settled_with_its_last_answer() -> None:
    """One request of the client's: one permit, the tokens of the answer that it got."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(200, USAGE, JSON))
        first = ScriptedUpstream(whole(500))
        with gateway(first.dial, upstream.dial, limited=[ALL], estimator=ESTIMATOR, rules=RULES) as made:
            assert status_of(await ask(made)) == 200
            assert used(made) == (1, 50, 0)

    run(main)


@pytest.mark.parametrize("body", [b"{", b'{"model":"m","model":"n"}'])
def test_request_that_can_not_be_read_takes_nothing(body: bytes) -> None:
    """400 before the gate."""

    async def main() -> None:
        with limited(ScriptedUpstream(whole()).dial) as made:
            _, client = send(made, body)
            await client.finished.wait()
            assert status_of(client) == 400 and used(made) == (0, 0, 0)

    run(main)


class BrokenEstimator(Estimator):
    """A bug in the gate."""

    def estimate(self, route: object, n_bytes: int, peek: BodyFields) -> NoReturn:
        raise ZeroDivisionError


class BrokenUpstream(ScriptedUpstream):
    """A bug on the way to the upstream."""

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        if request.method != b"HEAD":
            raise ZeroDivisionError
        return super().open(request, sink)


class BrokenQuota(LocalQuota):
    """A bug where the account is made."""

    def give_back(self, n: int, *, waiting: bool) -> None:
        raise ZeroDivisionError

    def charge(self, n: int) -> None:
        raise ZeroDivisionError


class BrokenTable(LocalTable):
    """Has quotas that take, and can't be settled."""

    def quota(self, tag: int, rate: BucketRate, *, open_ended: bool = False, others: int = 0) -> LocalQuota:
        return BrokenQuota(rate)


def test_crash_in_the_account_is_not_the_client_s() -> None:
    """It has its answer, and the exchange ends."""

    async def main() -> None:
        with limited(ScriptedUpstream(whole(200, USAGE, JSON)).dial, table=BrokenTable()) as made:
            assert status_of(await ask(made)) == 200
            assert made.n_active == 0

    run(main)


def test_crash_in_the_gate_or_behind_it_leaves_no_slot_taken() -> None:
    """A bug of ours costs the client its answer, and nobody a slot or a token."""

    async def main() -> None:
        with gateway(ScriptedUpstream(whole()).dial, limited=[ALL], estimator=BrokenEstimator()) as made:
            assert status_of(await ask(made)) == 500
            assert used(made) == (0, 0, 0)
        with limited(BrokenUpstream(whole()).dial) as made:
            assert status_of(await ask(made)) == 500
            assert used(made) == (1, 0, 0)

    run(main)


def test_body_that_is_read_in_steps_comes_to_the_gate_by_itself() -> None:
    """1 MiB and more: its tokens are taken, and settled; the next one is refused."""

    async def main() -> None:
        body = b'{"model":"m","messages":["%b"]}' % (b"x" * 2**20)
        prompt = -(-len(body) // 4)
        rule = LimitRule("limits[0]", Scope.KEY, Rates(tpm=1, tpm_burst=prompt + ANSWER))
        with limited(ScriptedUpstream(whole(200, b"{}", JSON)).dial, rules=[rule]) as made:
            for status in (200, 429):
                _, client = send(made, body)
                await client.finished.wait()
                assert status_of(client) == status
            assert made.n_active == 0 and b"limits[0].tpm" in client.written

    run(main)


def test_form_where_json_belongs_is_refused() -> None:
    """A server may read it as JSON: then its answer would cost nothing."""

    async def main() -> None:
        with limited(ScriptedUpstream(whole(200, USAGE, JSON)).dial) as made:
            media = (b"content-type", b"multipart/form-data; boundary=x")
            head = RequestHead.of(b"POST", b"/v1/chat/completions", [media], len(BODY))
            with pytest.raises(VeloxError) as refused:
                made.check_head(head)
            assert refused.value.reason is Reason.UNSUPPORTED_MEDIA and used(made) == (0, 0, 0)

    run(main)


# -- refusals -----------------------------------------------------------------------------------------------


def test_refusal_takes_nothing_and_says_when_to_come_back() -> None:
    """Two limits: the first has room and keeps it; a client that sleeps so long passes at once."""

    async def main() -> None:
        quick = LimitRule("VELOX_RATE_LIMIT", Scope.GATEWAY, Rates(rpm=60, burst=1))
        with limited(ScriptedUpstream(whole(200, USAGE, JSON)).dial, rules=(ALL, quick)) as made:
            for _ in range(2):
                assert status_of(await ask(made)) == 200
                before = [bound.quota.remaining(time.monotonic_ns()) for bound in limits_of(made).quotas[:2]]
                refused = await ask(made)
                assert status_of(refused) == 429 and b'"rate_limited"' in refused.written
                assert b"(VELOX_RATE_LIMIT_RPM)" in refused.written
                after = [bound.quota.remaining(time.monotonic_ns()) for bound in limits_of(made).quotas[:2]]
                assert before == after
                told = headers_of(refused)
                assert 0 < int(told["retry-after-ms"]) <= 1000 and told["retry-after"] == "1"
                assert told["x-ratelimit-remaining-requests"] == "0"
                await asyncio.sleep(int(told["retry-after-ms"]) / 1000)

    run(main)


def limits_of(made: Gateway) -> object:
    return made.parts.limiter.limits(ANYONE, "m")


def test_request_at_a_time_too_many_gets_429_until_one_has_ended() -> None:
    """A slot is held to the end of the reply, and no longer."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT, SILENT, SILENT, whole(200, USAGE, JSON))
        with limited(upstream.dial) as made:
            running = [send(made) for _ in range(3)]
            await until(lambda: len(upstream.opened_s) == 3)
            refused = await ask_among(made)
            assert status_of(refused) == 429 and b"3 requests at a time" in refused.written
            assert used(made) == (3, 3 * (PROMPT + ANSWER), 3)
            running[0][0].client_gone()
            await until(lambda: made.n_active == 2)
            assert status_of(await ask_among(made)) == 200
            for exchange, _ in running:
                exchange.client_gone()
            await until(lambda: made.n_active == 0)

    run(main)


async def ask_among(made: Gateway) -> FakeClient:
    """Ask while others run."""
    _, client = send(made)
    await client.finished.wait()
    return client


def test_request_that_can_never_pass_is_told_so() -> None:
    """No Retry-After, x-should-retry: false; what it may need, and what the limit holds."""

    async def main() -> None:
        with limited(ScriptedUpstream(whole()).dial) as made:
            _, client = send(made, b'{"model":"m","max_tokens":10000}')
            await client.finished.wait()
            told = headers_of(client)
            assert status_of(client) == 429 and told["x-should-retry"] == "false"
            assert "retry-after" not in told and "retry-after-ms" not in told
            assert b"may need 10008 tokens" in client.written and b"holds 10000" in client.written
            assert used(made) == (0, 0, 0)

    run(main)


# -- headers ------------------------------------------------------------------------------------------------


def test_every_reply_tells_a_limited_client_what_is_left() -> None:
    """Ours instead of the upstream's, which tell of its account; also on errors of Velox's own."""

    async def main() -> None:
        theirs = [(b"x-ratelimit-remaining-requests", b"4999"), (b"x-ratelimit-limit-tokens", b"7")]
        script = whole(200, USAGE, JSON, *theirs)
        with limited(ScriptedUpstream(script, broken()).dial) as made:
            for status, requests, tokens in ((200, 99, 10_000 - PROMPT - ANSWER), (502, 98, 10_000 - 50)):
                client = await ask(made)
                told = {name: text for name, text in headers_of(client).items() if name.startswith("x-ratelimit-")}
                assert status_of(client) == status
                assert told.pop("x-ratelimit-reset-tokens") and told.pop("x-ratelimit-reset-requests")
                assert told == {
                    "x-ratelimit-limit-requests": "100",
                    "x-ratelimit-remaining-requests": str(requests),
                    "x-ratelimit-limit-tokens": "10000",
                    "x-ratelimit-remaining-tokens": str(tokens),
                }
            _, client = send(made, b"{")
            await client.finished.wait()
            assert headers_of(client)["x-ratelimit-remaining-requests"] == "98"

    run(main)


def test_reply_to_a_client_without_limits_keeps_the_upstreams_numbers() -> None:
    """And where only requests are limited here, the upstream's tokens pass."""

    async def main() -> None:
        theirs = [(b"x-ratelimit-remaining-requests", b"4999"), (b"x-ratelimit-remaining-tokens", b"7")]
        for rules, wanted in (([], {"4999", "7"}), ([one_a_minute()], {"0", "7"})):
            with limited(ScriptedUpstream(whole(200, b"{}", *theirs)).dial, rules=rules) as made:
                told = headers_of(await ask(made))
                assert {text for name, text in told.items() if name.startswith("x-ratelimit-remaining")} == wanted

    run(main)


# -- keys ---------------------------------------------------------------------------------------------------


def key(name: str, **terms: Any) -> tuple[KeyEntry, Header]:
    entry = KeyEntry(hashlib.sha256(name.encode()).digest(), name, KeyTerms(**terms))
    return entry, (b"authorization", b"Bearer " + name.encode())


async def ask_as(made: Gateway, header: Header, *more: Header) -> FakeClient:
    head, client = request_head(more=[header, *more]), FakeClient()
    made.submit(client, head, BODY, made.check_head(head))
    await client.finished.wait()
    return client


def test_keys_have_limits_of_their_own_and_new_ones_count_at_once() -> None:
    """After a change of the file of keys the new rates hold, and what was used stays used."""

    async def main() -> None:
        poor, poor_header = key("poor", rates=Rates(rpm=1, burst=1))
        free, free_header = key("free")
        upstream = ScriptedUpstream(whole())
        with limited(upstream.dial, rules=[], keys=(poor, free)) as made:
            assert [status_of(await ask_as(made, poor_header)) for _ in range(3)] == [200, 429, 429]
            assert [status_of(await ask_as(made, free_header)) for _ in range(3)] == [200] * 3
            made.change_keys({poor.digest: replace(poor, terms=KeyTerms(rates=Rates(rpm=60, burst=62)))})
            # 60 of the new permits take as long as the one that was used.
            assert [status_of(await ask_as(made, poor_header)) for _ in range(4)][:2] == [200, 200]
            told = headers_of(await ask_as(made, poor_header))
            assert told["x-ratelimit-limit-requests"] == "62"

    run(main)


# -- the queue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"urgent", b"", b"high, low", b"0"])
def test_priority_that_is_none_is_refused_with_the_head(value: bytes) -> None:
    """400 with the header's name: the client counts on it."""

    async def main() -> None:
        with limited(ScriptedUpstream(whole()).dial) as made:
            head = request_head(more=[(b"x-velox-priority", value)])
            with pytest.raises(VeloxError) as caught:
                made.check_head(head)
            assert (caught.value.reason, caught.value.param) == (Reason.BAD_REQUEST, "x-velox-priority")

    run(main)


@pytest.mark.parametrize(
    ("own", "asked", "gets"),
    [
        (None, None, Priority.NORMAL),
        (None, b"high", Priority.NORMAL),
        (None, b"LOW", Priority.LOW),
        (Priority.HIGH, None, Priority.HIGH),
        (Priority.HIGH, b"normal", Priority.NORMAL),
        (Priority.LOW, None, Priority.LOW),
        (Priority.LOW, b"high", Priority.LOW),
    ],
)
def test_priority_is_no_higher_than_the_keys(own: Priority | None, asked: bytes | None, gets: Priority) -> None:
    """A key's own is the highest it may ask for, and what it has if it does not ask."""

    async def main() -> None:
        entry, header = key("k", priority=own)
        with limited(never, keys=(entry,)) as made:
            head = request_head(more=[header, *([(b"x-velox-priority", asked)] if asked else [])])
            exchange = made.submit(FakeClient(), head, BODY, made.check_head(head))
            assert exchange is not None and exchange.plan.priority is gets
            exchange.client_gone()
        with limited(never) as made:
            exchange, _ = send(made, BODY, (b"x-velox-priority", b"high"))
            assert exchange.plan.priority is Priority.HIGH, "nobody is asked for a key"
            exchange.client_gone()

    run(main)


def test_high_class_goes_first_and_pushes_out_the_low_one() -> None:
    """A full queue: the newcomer of a higher class gets the place of the newest of the lowest, which gets 503."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT, whole())
        with limited(upstream.dial, rules=[], limits=replace(LIMITS, max_inflight=1)) as made:
            first, _ = send(made)
            await until(lambda: len(upstream.opened_s) == 1)
            low = [send(made, BODY, (b"x-velox-priority", b"low")) for _ in range(16)]
            _, high = send(made, BODY, (b"x-velox-priority", b"high"))
            out = [client for _, client in low if client.finished.is_set()]
            assert len(out) == 1 and status_of(out[0]) == 503 and b"queue_full" in out[0].written
            done: list[str] = []
            for name, client in (("high", high), *(("low", each) for _, each in low if each not in out)):
                asyncio.get_running_loop().create_task(note(done, name, client))
            await asyncio.sleep(0)
            first.client_gone()
            await until(lambda: len(done) == 16)
            assert done[0] == "high"

    run(main)


ONE: Final = LimitRule("limits[0]", Scope.KEY, Rates(rpm=1, burst=1))


def test_who_is_refused_behind_the_queue_is_charged_nothing() -> None:
    """It was charged when it left the queue; that comes back, whether a limit refuses it or it is too late by then."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        with limited(upstream.dial, rules=[ONE], limits=replace(LIMITS, max_inflight=1)) as made:
            first, _ = send(made)
            await until(lambda: len(upstream.opened_s) == 1)
            (_, limited_one), (late, late_one), (_, last) = (send(made) for _ in range(3))
            late.deadline_s = 0.0  # its timer has not had its turn
            first.client_gone()
            await last.finished.wait()
            assert [status_of(client) for client in (limited_one, late_one, last)] == [429, 503, 429]
            line = made.queue._classes[Priority.NORMAL].line(ANYONE.id)
            assert line is not None and line.counter == 0

    run(main)


def test_who_is_refused_without_an_attempt_says_nothing_of_how_long_requests_take() -> None:
    """A large body comes to the gate by itself: its 429 after a millisecond is no request's time."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole())
        with limited(upstream.dial, rules=[ONE]) as made:
            await ask(made)
            before_ns = made.queue._standing.mean_ns
            _, client = send(made, b'{"model":"m","messages":["%b"]}' % (b"x" * 2**20))
            await client.finished.wait()
            assert status_of(client) == 429
            assert made.queue._standing.mean_ns == before_ns > 0

    run(main)


def test_tunnel_says_nothing_of_how_long_requests_take() -> None:
    """It lasts as long as its client likes: an hour of it would allow all others an hour in the queue."""

    async def main() -> None:
        with limited(never) as made:
            head = request_head(b"GET", b"/v1/realtime", offer=WebSocketOffer(b"x", (), b""))
            tunnel = TunnelExchange(made, FakeClient(), head, None, made.plan(head))
            route = tunnel._route = made.routing.resolve(head, None, ANYONE)
            assert route.only is not None
            tunnel._answering = Attempt(route.only, 0, 0)
            tunnel.n_attempts, tunnel.taken_ns = 1, time.monotonic_ns() - 3600 * 10**9
            made.account(tunnel, None, 101, tunnel.cost)
            assert made.queue._standing.mean_ns == 0

    run(main)


async def note(done: list[str], name: str, client: FakeClient) -> None:
    await client.finished.wait()
    done.append(name)


def test_request_that_would_wait_too_long_is_refused_at_once() -> None:
    """The queue drains at a known speed: who can't make it is told now, and when to come back."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        with limited(upstream.dial, rules=[], limits=replace(LIMITS, max_inflight=1)) as made:
            for _ in range(4):
                send(made)
            for n in range(20):  # one leaves each 20 ms, and another one comes
                await until(lambda n=n: len(upstream.opened_s) == n + 1)  # type: ignore[misc]
                await asyncio.sleep(0.02)
                made.submit(FakeClient(), request_head(), BODY, ANYONE)
                (running,) = made._active
                running.client_gone()
            head, client = request_head(more=[(b"x-request-timeout-ms", b"5")]), FakeClient()
            assert made.submit(client, head, BODY, ANYONE) is None
            assert status_of(client) == 503 and b"queue_timeout" in client.written
            assert int(headers_of(client)["retry-after-ms"]) > 5
            assert re.search(rb"would wait about [0-9.]+ s in the queue", client.written)
            made.fail_all(VeloxError(Reason.DRAINING, "leaving"))
            await until(lambda: made.n_active == 0)

    run(main)
