"""Exchanges that share a call: at any moment somebody leaves, reads slowly or fails, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_attempts import run
from tests.sockets.gateway.core_gateway import FakeClient, Limits, ScriptedUpstream, gateway, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.gateway.join.joining import Joining
from velox.gateway.request.exchange import Exchange
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.policy.join.joined_call import CALL_BYTES
from velox.policy.join.rules import JoinRule
from velox.policy.join.table import JoinTable
from velox.types import ANYONE

BODY: Final = b'{"model":"m","messages":[],"stream":true,"temperature":0}'
EQUAL: Final = JoinRule()
PLAIN_BODY: Final = b'{"model":"m","messages":[],"temperature":0}'
PLAIN_HEAD: Final = ReplyHead.of(200, [(b"content-type", b"application/json")], None)
HEAD: Final = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
WORD: Final = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
RETRIES: Final = JoinRule(equal=False, retries=True, keep_s=3600.0)
FIRST: Final = (b"x-stainless-retry-count", b"0")
AGAIN: Final = (b"x-stainless-retry-count", b"1")
N_MANY: Final = 10_000


class Body(bytearray):
    """A body that can be watched."""


class Bench:
    def __init__(self, made: Gateway, upstream: ScriptedUpstream) -> None:
        self.gateway: Final = made
        self.upstream: Final = upstream

    def submit(self, *more: Header, body: bytes | bytearray = BODY) -> tuple[Exchange, FakeClient]:
        client = FakeClient()
        exchange = self.gateway.submit(client, request_head(more=more), body, ANYONE)
        assert isinstance(exchange, Exchange)
        return exchange, client

    async def opened(self, n: int = 1) -> None:
        while len(self.upstream.streams) < n:
            await asyncio.sleep(0)

    async def had(self, client: FakeClient, what: bytes) -> None:
        while what not in client.written:
            await asyncio.sleep(0)

    async def ended(self, n_active: int = 0) -> None:
        while self.gateway.n_active > n_active:
            await asyncio.sleep(0)

    @property
    def table(self) -> JoinTable:
        make = self.gateway.parts.joining
        assert make is not None
        joining: Joining = make()
        return joining._table

    def check_nothing_is_left(self, kept: int = 0) -> None:
        assert self.gateway.n_active == 0
        assert self.upstream.n_open == 0
        assert self.table.n_taken == kept
        assert self.gateway._n_asleep == 0
        assert self.gateway.routing.n_open == 0
        assert self.gateway.parts.tunnels.bodies.taken_bytes == 0


@contextmanager
def bench(rule: JoinRule = EQUAL, max_inflight: int = 64, join_bytes: int = 1 << 24) -> Iterator[Bench]:
    upstream = ScriptedUpstream([])
    with gateway(upstream.dial, limits=Limits(max_inflight=max_inflight), join=rule, join_bytes=join_bytes) as made:
        yield Bench(made, upstream)


def body_of(client: FakeClient) -> bytes:
    """What a client has had, without head and framing."""
    head, _, rest = client.written.partition(b"\r\n\r\n")
    if b"content-length" in head:
        return rest
    found = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        found, rest = found + rest[:n], rest[n + 2 :]
    return found


def test_all_get_the_same_and_nothing_is_left() -> None:
    async def main() -> None:
        with bench() as made:
            asked = [made.submit() for _ in range(5)]
            await made.opened()
            stream = made.upstream.streams[0]
            stream.play((HEAD, WORD, False))
            await made.had(asked[3][1], b"hi")
            asked.append(made.submit())
            stream.play((None, WORD + DONE, True))
            await made.ended()
            assert {body_of(client) for _, client in asked} == {WORD + WORD + DONE}
            assert len(made.upstream.streams) == 1
            made.check_nothing_is_left()

    run(main)


@pytest.mark.parametrize("began", [False, True])
def test_leader_leaves_and_its_followers_have_all(began: bool) -> None:
    async def main() -> None:
        with bench() as made:
            leader, client = made.submit()
            follower = made.submit()
            await made.opened()
            stream = made.upstream.streams[0]
            if began:
                stream.play((HEAD, WORD, False))
                await made.had(client, b"hi")
            leader.client_gone()
            had = client.written
            stream.play((None if began else HEAD, WORD + DONE, True))
            await made.ended()
            assert body_of(follower[1]) == (WORD if began else b"") + WORD + DONE
            assert client.written == had and not client.finished.is_set()
            made.check_nothing_is_left()

    run(main)


def test_leader_leaves_before_its_task_has_begun() -> None:
    async def main() -> None:
        with bench() as made:
            leader, _ = made.submit()
            follower = made.submit()
            leader.client_gone()
            await made.opened()
            made.upstream.streams[0].play((HEAD, WORD + DONE, True))
            await made.ended()
            assert body_of(follower[1]) == WORD + DONE
            made.check_nothing_is_left()

    run(main)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("began", [False, True])
def test_last_to_leave_cancels(order: tuple[int, ...], began: bool) -> None:
    async def main() -> None:
        with bench() as made:
            asked = [made.submit() for _ in range(3)]
            await made.opened()
            if began:
                made.upstream.streams[0].play((HEAD, WORD, False))
                await made.had(asked[2][1], b"hi")
            for n in order:
                assert made.upstream.n_cancelled == 0
                asked[n][0].client_gone()
                await asyncio.sleep(0)
            await made.ended()
            assert made.upstream.n_cancelled == 1
            made.check_nothing_is_left()

    run(main)


def test_failure_before_the_first_byte_lets_each_ask_once() -> None:
    async def main() -> None:
        with bench() as made:
            asked = [made.submit() for _ in range(3)]
            await made.opened()
            made.upstream.streams[0].play(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))
            await made.opened(3)
            for n in (1, 2):
                made.upstream.streams[n].play((HEAD, WORD + DONE, True))
            await made.ended()
            assert b"upstream_reset" in asked[0][1].written
            assert [body_of(client) for _, client in asked[1:]] == [WORD + DONE] * 2
            assert len(made.upstream.streams) == 3
            made.check_nothing_is_left()

    run(main)


def _cut(made: Bench) -> None:
    made.upstream.streams[0].play(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))


def _end_of_the_window(made: Bench) -> None:
    made.gateway.fail_all(VeloxError(Reason.DRAINING, "bye"))


@pytest.mark.parametrize("end", [_cut, _end_of_the_window])
def test_failure_behind_the_first_byte_cuts_all(end: object) -> None:
    assert callable(end)

    async def main() -> None:
        with bench() as made:
            asked = [made.submit() for _ in range(3)]
            await made.opened()
            made.upstream.streams[0].play((HEAD, WORD, False))
            await made.had(asked[2][1], b"hi")
            end(made)
            await made.ended()
            assert all(client.cuts for _, client in asked)
            assert all(DONE not in client.written for _, client in asked)
            made.check_nothing_is_left()

    run(main)


def test_follower_that_is_paused_goes_on_where_it_was() -> None:
    async def main() -> None:
        with bench() as made:
            _, leader = made.submit()
            slow, client = made.submit()
            await made.opened()
            made.upstream.streams[0].play((HEAD, WORD, False))
            await made.had(client, b"hi")
            client.is_write_paused = True
            slow.client_paused()
            made.upstream.streams[0].play((None, WORD * 9 + DONE, True))
            await made.ended(1)
            assert body_of(leader) == WORD * 10 + DONE
            assert body_of(client) == WORD
            client.is_write_paused = False
            slow.client_resumed()
            await made.ended()
            assert body_of(client) == WORD * 10 + DONE
            made.check_nothing_is_left()

    run(main)


@pytest.mark.parametrize("leaves", [False, True])
def test_long_reply_that_is_no_stream_goes_on_though_nobody_reads_of_it_yet(leaves: bool) -> None:
    async def main() -> None:
        with bench() as made:
            leader, had = made.submit(body=PLAIN_BODY)
            _, client = made.submit(body=PLAIN_BODY)
            await made.opened()
            stream = made.upstream.streams[0]
            stream.play((PLAIN_HEAD, b"x", False))
            if leaves:
                leader.client_gone()
            for _ in range(12):
                stream.play((None, b"x" * 65_536, False))
                await asyncio.sleep(0)
                assert not stream.is_paused
            stream.play((None, b"x", True))
            await made.ended()
            assert body_of(client) == b"x" * (12 * 65_536 + 2)
            assert leaves or body_of(had) == body_of(client)
            made.check_nothing_is_left()

    run(main)


def test_call_with_nobody_there_waits_for_a_retry_and_is_cancelled_with_the_worker() -> None:
    async def main() -> None:
        with bench(RETRIES) as made:
            first, _ = made.submit(FIRST)
            await made.opened()
            first.client_gone()
            _, retry = made.submit(AGAIN)
            made.upstream.streams[0].play((HEAD, WORD, False))
            await made.had(retry, b"hi")
            made.upstream.streams[0].play((None, DONE, True))
            await made.ended()
            assert body_of(retry) == WORD + DONE
            other, _ = made.submit(FIRST, body=BODY.replace(b'"m"', b'"n"'))
            await made.opened(2)
            other.client_gone()
            for _ in range(5):
                await asyncio.sleep(0)
            assert (made.gateway.n_active, made.upstream.n_cancelled) == (1, 0)
            made.gateway.end_drains()
            await made.ended()
            assert made.upstream.n_cancelled == 1

    run(main)


def test_answer_that_is_kept_takes_its_exact_room_until_its_time_is_over() -> None:
    async def main() -> None:
        with bench(JoinRule(equal=False, retries=True, keep_s=0.01)) as made:
            end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
            whole = WORD + end + DONE
            named = (b"idempotency-key", b"k1")
            first, _ = made.submit(named)
            await made.opened()
            made.upstream.streams[0].play((HEAD, whole, True))
            await made.ended()
            made.check_nothing_is_left(kept=CALL_BYTES + len(whole))
            assert first.reply is not None
            while made.table.n_taken:
                await asyncio.sleep(0.01)
            made.check_nothing_is_left()

    run(main)


def test_deadline_of_a_client_is_told_and_its_call_goes_on_for_its_retry() -> None:
    """The error says that a retry is safe; the room of the request's body is held on, and given back."""

    async def main() -> None:
        with bench(RETRIES) as made:
            first, client = made.submit(FIRST)
            await made.opened()
            made.gateway.loop.call_soon(first.on_deadline)
            await client.finished.wait()
            assert b"504" in client.written and b"x-should-retry: true" in client.written
            bodies = made.gateway.parts.tunnels.bodies
            assert bodies.taken_bytes == len(BODY)
            _, retry = made.submit(AGAIN)
            made.upstream.streams[0].play((HEAD, WORD + DONE, True))
            await made.ended()
            assert body_of(retry) == WORD + DONE
            assert bodies.taken_bytes == 0

    run(main)


def test_deadline_of_a_follower_says_that_a_retry_is_safe() -> None:
    """Else its SDK would give up a call that runs."""

    async def main() -> None:
        with bench() as made:
            _, leader = made.submit()
            follower, client = made.submit()
            await made.opened()
            made.gateway.loop.call_soon(follower.on_deadline)
            await client.finished.wait()
            assert b"504" in client.written and b"x-should-retry: true" in client.written
            made.upstream.streams[0].play((HEAD, WORD + DONE, True))
            await made.ended()
            assert body_of(leader) == WORD + DONE
            made.check_nothing_is_left()

    run(main)


def test_request_without_room_has_a_call_of_its_own() -> None:
    async def main() -> None:
        with bench(join_bytes=CALL_BYTES) as made:
            for _ in range(2):
                made.submit()
            await made.opened(2)
            for stream in made.upstream.streams:
                stream.play((HEAD, WORD + DONE, True))
            await made.ended()
            made.check_nothing_is_left()

    run(main)


NAME: Final = (b"idempotency-key", b"one")
OTHER_BODY: Final = BODY.replace(b'"m"', b'"n"')


def test_idempotency_key_of_another_body_is_refused_and_of_other_fields_is_not() -> None:
    """A proxy before the gateway adds times and codings: SDKs do not retry a 422, so an honest retry would fail."""

    async def main() -> None:
        with bench(RETRIES) as made:
            made.submit(NAME, (b"x-request-start", b"t=1"))
            await made.opened()
            again = made.submit(NAME, (b"x-request-start", b"t=2"))
            third = made.submit(NAME, (b"x-request-start", b"t=1"))
            await made.opened(2)
            refused = FakeClient()
            assert made.gateway.submit(refused, request_head(more=(NAME,)), OTHER_BODY, ANYONE) is None
            assert b"422" in refused.written.partition(b"\r\n")[0] and b"idempotency_mismatch" in refused.written
            for stream in made.upstream.streams:
                stream.play((HEAD, WORD + DONE, True))
            await made.ended()
            assert body_of(again[1]) == body_of(third[1]) == WORD + DONE
            assert len(made.upstream.streams) == 2, "the third has joined the first, whose name it has"

    run(main)


def test_empty_idempotency_key_is_none() -> None:
    async def main() -> None:
        with bench(RETRIES) as made:
            asked = [made.submit((b"idempotency-key", b""), body=body) for body in (BODY, OTHER_BODY)]
            await made.opened(2)
            for stream in made.upstream.streams:
                stream.play((HEAD, WORD + DONE, True))
            await made.ended()
            assert [body_of(client) for _, client in asked] == [WORD + DONE] * 2

    run(main)


def test_retry_with_a_name_joins_no_call_of_another_name() -> None:
    """Two samples of one prompt, each with a name of its own, are two answers."""

    async def main() -> None:
        with bench(RETRIES) as made:
            leader, _ = made.submit(NAME, FIRST)
            await made.opened()
            leader.client_gone()
            made.submit((b"idempotency-key", b"two"), AGAIN)
            await made.opened(2)
            made.submit(AGAIN)  # one that has no name is no retry of one that had
            await made.opened(3)
            for stream in made.upstream.streams:
                stream.play((HEAD, WORD + DONE, True))
            await made.ended()

    run(main)


def test_follower_that_leaves_in_the_middle_has_used_its_place_in_the_limits() -> None:
    """Else a client that leaves each stream before its end is limited by nothing."""

    async def main() -> None:
        with bench() as made:
            made.submit()
            follower, client = made.submit()
            early, _ = made.submit()
            await made.opened()
            early.client_gone()
            stream = made.upstream.streams[0]
            stream.play((HEAD, WORD, False))
            await made.had(client, b"hi")
            follower.client_gone()
            stream.play((None, DONE, True))
            await made.ended()
            assert (follower.was_sent, early.was_sent) == (True, False)
            made.check_nothing_is_left()

    run(main)


def test_deadline_of_the_last_follower_promises_nothing() -> None:
    """Its call ends with it where no retry is waited for: the next request pays anew."""

    async def main() -> None:
        with bench() as made:
            leader, _ = made.submit()
            follower, client = made.submit()
            await made.opened()
            leader.client_gone()
            follower.on_deadline()
            await asyncio.wait_for(client.finished.wait(), PATIENCE_S)
            assert b"x-should-retry: true" not in client.written
            await made.ended()
            made.check_nothing_is_left()

    run(main)


def test_ten_thousand_followers_have_one_call() -> None:
    async def main() -> None:
        with bench(max_inflight=2 * N_MANY) as made:
            asked = [made.submit()]
            await made.opened()
            while len(asked) < N_MANY:
                asked += [made.submit() for _ in range(10)]
                await asyncio.sleep(0)
            stream = made.upstream.streams[0]
            stream.play((HEAD, WORD, False))
            await made.had(asked[-1][1], b"hi")
            for exchange, _ in asked[: N_MANY // 2]:
                exchange.client_gone()
            stream.play((None, WORD + DONE, True))
            await made.ended()
            assert {body_of(client) for _, client in asked[N_MANY // 2 :]} == {WORD + WORD + DONE}
            assert len(made.upstream.streams) == 1
            made.check_nothing_is_left()

    run(main)


def _all_well(made: Bench, asked: list[Exchange]) -> None:
    made.upstream.streams[0].play((HEAD, WORD + DONE, True))


def _leader_leaves(made: Bench, asked: list[Exchange]) -> None:
    asked[0].client_gone()
    made.upstream.streams[0].play((HEAD, WORD + DONE, True))


def _all_leave(made: Bench, asked: list[Exchange]) -> None:
    for each in asked:
        each.client_gone()


def _breaks(made: Bench, asked: list[Exchange]) -> None:
    made.upstream.streams[0].play((HEAD, WORD, False))
    made.upstream.streams[0].play(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))


@pytest.mark.parametrize("end", [_all_well, _leader_leaves, _all_leave, _breaks])
def test_exchanges_that_share_a_call_are_no_garbage(end: object) -> None:
    """Each is gone with its last reference: a cycle would hold its body until a collection."""
    assert callable(end)

    async def main() -> None:
        with bench() as made:
            bodies = [Body(BODY) for _ in range(3)]
            watched = [weakref.ref(each) for each in bodies]
            asked = [made.submit(body=each)[0] for each in bodies]
            del bodies
            await made.opened()
            end(made, asked)
            asked.clear()
            await made.ended()
            made.upstream.streams.clear()
            for _ in range(5):
                await asyncio.sleep(0)
            assert [each() for each in watched] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()
