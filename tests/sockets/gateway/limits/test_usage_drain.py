"""Streams that are read on for their usage after their client has left, at any moment and with any end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from tests.sockets.gateway.core_attempts import run
from tests.sockets.gateway.core_gateway import (
    FakeClient,
    Limits,
    ScriptedUpstream,
    full_in_minutes,
    gateway,
    request_head,
)
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.observe.series import USAGE_DRAINS
from velox.outcomes import Drained
from velox.policy.limits.limit_rules import LimitRule
from velox.types import ANYONE, Rates, Scope

BODY: Final = b'{"model":"m","messages":[],"stream":true,"max_tokens":50000}'
HEAD: Final = ReplyHead.of(200, [(b"content-type", b"text/event-stream")], None)
WORD: Final = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":29000}}\n\n'
DONE: Final = b"data: [DONE]\n\n"
# 1,000 a minute: what was used is how many minutes it takes to make good.
RULE: Final = LimitRule("VELOX_RATE_LIMIT", Scope.GATEWAY, Rates(tpm=1000, tpm_burst=1_000_000))


@dataclass(frozen=True)
class Draining(Limits):
    usage_drain: str = "all"
    usage_drain_timeout_s: float = 3600.0
    usage_drain_bytes: int = 10_000
    usage_drains: int = 2


class Bench:
    def __init__(self, made: Gateway, upstream: ScriptedUpstream) -> None:
        self.gateway: Final = made
        self.upstream: Final = upstream

    async def stream(self) -> tuple[Exchange, FakeClient]:
        """Return an exchange whose client has had a word."""
        client = FakeClient()
        exchange = self.gateway.submit(client, request_head(), BODY, ANYONE)
        assert exchange is not None
        while b"hi" not in client.written:
            await asyncio.sleep(0)
        assert isinstance(exchange, Exchange)
        return exchange, client

    async def ended(self, n_active: int = 0) -> None:
        while self.gateway.n_active > n_active:
            await asyncio.sleep(0)

    @property
    def drained(self) -> dict[Drained, int]:
        """How many there were of each outcome, as the metric tells."""
        cells = self.gateway.parts.recorder.metrics._cells
        return {each: n for each in Drained if (n := cells[USAGE_DRAINS.first + each])}

    @property
    def used(self) -> int:
        """Tokens that were charged, in thousands."""
        return full_in_minutes(self.gateway)[0]


@contextmanager
def bench() -> Iterator[Bench]:
    upstream = ScriptedUpstream([(HEAD, WORD, False)])
    with gateway(upstream.dial, limits=Draining(), limited=[RULE]) as made:
        yield Bench(made, upstream)


def test_drained_stream_is_charged_by_its_usage_and_its_client_hears_no_more() -> None:
    async def main() -> None:
        with bench() as made:
            exchange, client = await made.stream()
            had = client.written
            exchange.client_paused()
            exchange.client_gone()
            assert (made.gateway.n_active, made.gateway.n_drains, made.upstream.n_cancelled) == (1, 1, 0)
            made.upstream.streams[0].play((None, WORD, False))
            made.upstream.streams[0].play((None, USAGE + DONE, True))
            await made.ended()
            assert (made.used, made.gateway.n_drains, made.upstream.n_cancelled) == (30, 0, 0)
            assert client.written == had and not client.finished.is_set()
            assert made.drained == {Drained.WHOLE: 1}

    run(main)


def _too_much(made: Bench, exchange: Exchange) -> None:
    made.upstream.streams[0].play((None, WORD * 300, False))


def _too_late(made: Bench, exchange: Exchange) -> None:
    exchange.check_deadlines(asyncio.get_running_loop().time() + 3601, made.gateway.parts.limits)


def _shutdown(made: Bench, exchange: Exchange) -> None:
    made.gateway.end_drains()


def _end_of_the_window(made: Bench, exchange: Exchange) -> None:
    made.gateway.fail_all(VeloxError(Reason.DRAINING, "bye"))


def _cut(made: Bench, exchange: Exchange) -> None:
    made.upstream.streams[0].play(UpstreamFailure(Reason.UPSTREAM_RESET, "cut"))


@pytest.mark.parametrize("end", [_too_much, _too_late, _shutdown, _end_of_the_window, _cut])
def test_drain_that_does_not_come_to_the_usage_is_accounted_once_and_cancelled(end: object) -> None:
    """It is charged by its events, as a stream whose client left and that nobody reads on."""
    assert callable(end)

    async def main() -> None:
        with bench() as made:
            exchange, _ = await made.stream()
            exchange.client_gone()
            end(made, exchange)
            await made.ended()
            assert (made.used, made.gateway.n_drains, made.upstream.n_open) == (1, 0, 0)
            assert made.drained == {Drained.CUT: 1}

    run(main)


def test_only_so_many_are_read_on_at_once_and_none_once_the_worker_stops() -> None:
    async def main() -> None:
        with bench() as made:
            for n_drains in (1, 2, 2):
                exchange, _ = await made.stream()
                exchange.client_gone()
                await made.ended(n_drains)
                assert (made.gateway.n_active, made.gateway.n_drains) == (n_drains, n_drains)
            made.gateway.end_drains()
            await made.ended()
            made.gateway.draining = True
            exchange, _ = await made.stream()
            exchange.client_gone()
            await made.ended()
            assert made.upstream.n_cancelled == 4
            assert made.drained == {Drained.CUT: 2, Drained.DENIED: 1}, "one was not to be read on at all"

    run(main)


@pytest.mark.parametrize("is_cut", [False, True])
def test_drain_leaves_no_cycle(is_cut: bool) -> None:
    """What it held is free at its end, without the garbage collector."""

    async def main() -> None:
        with bench() as made:
            found = []
            for _ in range(4):
                exchange, _ = await made.stream()
                exchange.client_gone()
                if is_cut:
                    made.gateway.end_drains()
                else:
                    made.upstream.streams[-1].play((None, USAGE + DONE, True))
                await made.ended()
                made.upstream.streams.clear()
                del exchange, _
                await asyncio.sleep(0)
                found.append(gc.collect())
            assert found[1:] == [0, 0, 0]

    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()
