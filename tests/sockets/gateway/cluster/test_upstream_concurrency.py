"""A gateway keeps to the limits of its upstreams: who waits, when room comes back, and what a limit is told."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_attempts import (
    RULES,
    SILENT,
    ask,
    attempts,
    broken,
    run,
    status_of,
    submit,
    until,
    whole,
)
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, Step, gateway, request_head
from velox.errors import Reason
from velox.gateway.front.intake import Gateway
from velox.heads import Header, ReplyHead
from velox.outcomes import Retry
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.queue.concurrency import FixedLimit
from velox.types import ANYONE, Rates, Scope

EVENTS = [(b"content-type", b"text/event-stream")]


class Noted(FixedLimit):
    """A limit that notes what it is told, and grows with each reply if it is to."""

    def __init__(self, limit: int, *, grows: bool = False) -> None:
        super().__init__(limit)
        self.told: list[str] = []
        self._n = limit
        self._grows = grows

    @property
    def free_slots(self) -> int:
        return self._n - self.n_begun

    def replied(self, began_s: float, first_byte_s: float, now_s: float, *, streamed: bool) -> bool:
        assert 0 <= first_byte_s <= now_s - began_s
        self.told.append("stream" if streamed else "reply")
        self._n += self._grows
        return self._grows

    def refused(self, began_s: float, now_s: float) -> None:
        self.told.append("refused")

    def ended(self, began_s: float, now_s: float, *, replied: bool, is_tunnel: bool = False) -> None:
        super().ended(began_s, now_s, replied=replied, is_tunnel=is_tunnel)
        self.told.append("end" if replied else "end without a reply")


def stream(*pieces: bytes) -> list[Step]:
    """Return a stream that does not end: the head, then each piece."""
    return [(ReplyHead.of(200, EVENTS, None), b"", False), *[(None, piece, False) for piece in pieces]]


async def turns() -> None:
    """Let everything happen that needs no time."""
    for _ in range(30):
        await asyncio.sleep(0)


async def ask_beside(made: Gateway) -> FakeClient:
    """Ask, with others still running; return the client when it has its answer."""
    client = FakeClient()
    submit(made, client)
    async with asyncio.timeout(PATIENCE_S):
        await client.finished.wait()
    return client


def test_what_is_above_the_limit_waits_for_an_end() -> None:
    """Three requests, a limit of one: they go one after the other, and each as soon as the one before has ended."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT, whole())
        with gateway(upstream.dial, concurrency=[FixedLimit(1)]) as made:
            clients = [FakeClient() for _ in range(3)]
            first, *_ = [submit(made, client) for client in clients]
            await until(lambda: upstream.n_open == 1)
            await turns()
            assert (made.n_active, len(made.queue), attempts(upstream)) == (1, 2, [1])

            first.client_gone()

            for client in clients[1:]:
                async with asyncio.timeout(PATIENCE_S):
                    await client.finished.wait()
            assert attempts(upstream) == [3]

    run(main)


def test_limit_that_grows_lets_the_next_one_go_at_once() -> None:
    """Nothing has ended: the room comes with the first event of a reply."""

    async def main() -> None:
        upstream = ScriptedUpstream(stream(b"data: 1\n\n"), SILENT)
        with gateway(upstream.dial, concurrency=[Noted(1, grows=True)]) as made:
            exchanges = [submit(made, FakeClient()) for _ in range(2)]

            await until(lambda: attempts(upstream) == [2])

            for exchange in exchanges:
                exchange.client_gone()
            await until(lambda: not made.n_active)

    run(main)


def test_who_is_on_the_way_has_its_place() -> None:
    """A large body is read in steps: its request is at no upstream yet, and no other one gets in before it."""

    async def main() -> None:
        upstream, seen = ScriptedUpstream(SILENT), []

        def note() -> None:
            seen.append(made.n_active)
            if upstream.n_open < 1:
                asyncio.get_running_loop().call_soon(note)

        with gateway(upstream.dial, concurrency=[FixedLimit(1)]) as made:
            large = made.submit(FakeClient(), request_head(), b'{"model": "m", "x": "%b"}' % (b"x" * 4_000_000), ANYONE)
            while not made.n_active:
                await asyncio.sleep(0)
            second = submit(made, FakeClient())
            note()
            await until(lambda: upstream.n_open == 1)
            assert large is not None and large.n_attempts == 1
            assert max(seen) == 1 and len(seen) > 3, "there were turns in which the second one might have gone"
            for exchange in (large, second):
                exchange.client_gone()
            await until(lambda: not made.n_active)

    run(main)


def test_place_of_one_that_sleeps_is_used_by_others() -> None:
    """Who waits for its second attempt keeps nobody else waiting."""

    async def main() -> None:
        upstream = ScriptedUpstream(whole(503, b"", (b"retry-after", b"5")), whole())
        with gateway(upstream.dial, concurrency=[FixedLimit(1)], rules=RULES) as made:
            sleeper = submit(made, FakeClient())
            assert status_of(await ask_beside(made)) == 200
            assert (sleeper.phase, attempts(upstream), made.n_active) == ("backoff", [2], 1)

            sleeper.client_gone()

            await until(lambda: not made.n_active)
            assert made.routing.free_slots(0, 0, 0.0) == 1

    run(main)


def test_no_more_places_are_lent_than_there_are() -> None:
    """All that sleep may wake at one time, and go: so the limit is passed by as many again, however many wait."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        rule = LimitRule("limits[0]", Scope.GATEWAY, Rates(rpm=60, burst=1))
        with gateway(upstream.dial, concurrency=[FixedLimit(2)], limited=[rule], max_wait_s=60.0) as made:
            exchanges = [submit(made, FakeClient()) for _ in range(9)]
            await turns()
            assert [exchange.phase for exchange in exchanges].count("limit") == 3
            assert (made.n_active, len(made.queue)) == (4, 5)
            for exchange in exchanges:
                exchange.client_gone()
            await until(lambda: not made.n_active)

    run(main)


def test_second_attempt_goes_though_there_is_no_room() -> None:
    """Its client has waited for a place already; the limit of the other upstream counts it, and asks nothing."""

    async def main() -> None:
        bad, good = ScriptedUpstream(broken(unprocessed=Retry.REFUSED)), ScriptedUpstream(SILENT, whole())
        limits = [FixedLimit(2), FixedLimit(1)]
        with gateway(bad.dial, good.dial, concurrency=limits) as made:
            holding = submit(made, FakeClient())
            await until(lambda: good.n_open == 1)
            assert status_of(await ask_beside(made)) == 200
            assert [limit.in_flight for limit in limits] == [0, 1]
            holding.client_gone()
            await until(lambda: not made.n_active)
            assert [limit.in_flight for limit in limits] == [0, 0]

    run(main)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (whole(), ["reply", "end"]),
        (whole(200, b""), ["end without a reply"]),
        (whole(400, b"{}"), ["end without a reply"]),
        (whole(429, b"{}"), ["end without a reply", "refused"]),
        (whole(503, b"{}"), ["end without a reply", "refused"]),
        (whole(500, b"{}"), ["end without a reply"]),
        (broken(Reason.UPSTREAM_TTFB_TIMEOUT), ["refused", "end without a reply"]),
        (broken(Reason.UPSTREAM_RESET), ["end without a reply"]),
    ],
    ids=["whole", "empty", "400", "429", "503", "500", "silent", "reset"],
)
def test_limit_is_told_how_an_attempt_ended(script: list[Step], told: list[str]) -> None:
    """Too much to do, and silence, are signs; an error says nothing of how much there is to do."""

    async def main() -> None:
        limit = Noted(4)
        with gateway(ScriptedUpstream(script).dial, concurrency=[limit]) as made:
            await ask(made)
        assert limit.told == told
        assert limit.in_flight == 0

    run(main)


LIMITED = (b"x-ratelimit-remaining-requests", b"0")


@pytest.mark.parametrize(
    ("asked", "refused", "n_keys", "told"),
    [
        ((b"openai-organization", b"org-1"), whole(429, b"{}"), 1, ["end without a reply"]),
        ((b"openai-organization", b"org-1"), whole(503, b"{}"), 1, ["end without a reply", "refused"]),
        ((b"x-other", b"org-1"), whole(429, b"{}", LIMITED), 1, ["end without a reply", "refused"]),
        ((b"authorization", b"Bearer sk-1"), whole(429, b"{}", LIMITED), 0, ["end without a reply"]),
        ((b"authorization", b"Bearer sk-1"), whole(429, b"{}"), 0, ["end without a reply", "refused"]),
        ((b"x-other", b"sk-1"), whole(429, b"{}", LIMITED), 0, ["end without a reply", "refused"]),
    ],
    ids=["account", "account, 503", "our key", "its key", "its key, server without limits", "no key"],
)
def test_limit_hears_of_no_429_about_an_account_of_the_clients(
    asked: Header, refused: list[Step], n_keys: int, told: list[str]
) -> None:
    """It has used up what is its own; the upstream has no more to do than before, and all others would wait for it."""

    async def main() -> None:
        limit = Noted(4)
        upstream = ScriptedUpstream(refused)
        with gateway(upstream.dial, concurrency=[limit], n_keys=n_keys, accounts_pass=True) as made:
            await ask(made, asked)
        assert limit.told == told

    run(main)


def test_limit_hears_nothing_of_it_where_the_reply_is_refused_for_another_upstream() -> None:
    async def main() -> None:
        limit, first, second = Noted(4), ScriptedUpstream(whole(429, b"{}")), ScriptedUpstream(whole())
        limits = [limit, Noted(4)]
        with gateway(first.dial, second.dial, concurrency=limits, rules=RULES, n_keys=1, accounts_pass=True) as made:
            assert status_of(await ask(made, (b"openai-organization", b"org-1"))) == 200
        assert limit.told == ["end without a reply"]

    run(main)


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((), []),
        ((b": thinking\n\n",), []),
        ((b": thinking\n\n", b"data: 1\n\n", b"data: 2\n\n"), ["stream"]),
        ((b"event: response.created\ndata: {}\n\n", b"event: response.in_progress\ndata: {}\n\n"), []),
        ((b"event: message_start\n", b"data: {}\n\n", b"event: content_block_start\ndata: {}\n\n"), ["stream"]),
        (
            (
                b"event: message_start\ndata: {}\n\nevent: ping\ndata: {}\n\nevent: content",
                b"_block_start\ndata: 1\n\n",
            ),
            ["stream"],
        ),
    ],
    ids=["head", "comment", "events", "only taken", "taken, then begun", "in pieces"],
)
def test_reply_begins_with_its_first_event(pieces: tuple[bytes, ...], told: list[str]) -> None:
    """Not with what servers send before the request has had its turn: its head, comments, that it was taken."""

    async def main() -> None:
        limit = Noted(4)
        upstream = ScriptedUpstream(stream(*pieces))
        with gateway(upstream.dial, concurrency=[limit]) as made:
            client = FakeClient()
            exchange = submit(made, client)
            await until(lambda: bool(upstream.streams))
            await turns()
            assert limit.told == told
            exchange.client_gone()
            await until(lambda: not made.n_active)

    run(main)
