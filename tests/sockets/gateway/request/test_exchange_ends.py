"""Ends of an exchange that come at the worst moment, on a real loop with a pool that never gets a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest
import uvloop

from tests.sockets.gateway.composed import nowhere
from tests.sockets.gateway.core_gateway import LIMITS, full_in_minutes, gateway, one_a_minute, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.net.application import ChunkWriter, Successor
from velox.net.client.http1 import Http1Replies
from velox.types import ANYONE


class FakeClient(Http1Replies):
    """A client's connection that notes what it is told."""

    is_http_1_0 = False
    is_write_paused = False
    will_close = True
    protocol = "HTTP/1.1"
    state = "answering"
    n_streams = 1
    is_busy = True
    address = "192.0.2.7"

    def __init__(self) -> None:
        self._transport, self._chunked, self.ends_at_close = None, False, False  # it is no connection of an ingress
        self.written = b""
        self.finished = 0

    @property
    def direct_write(self) -> ChunkWriter | None:
        return self.write

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self, *, close: bool = False) -> None:
        self.finished += 1

    def cut_off(self, last: bytes, *, reset: bool) -> None:
        raise AssertionError("no reply has begun")

    def on_deadline(self) -> None: ...

    def close_if_idle(self) -> None: ...

    def turn_came(self) -> None: ...

    def release_body(self) -> None:
        pass

    def hand_over(self, successor: Successor) -> None: ...


class Bench:
    """A gateway whose upstream never takes a connection."""

    def __init__(self, made: Gateway) -> None:
        self.gateway: Final = made

    def submit(self, client: FakeClient) -> Exchange:
        exchange = self.gateway.submit(client, request_head(b"GET", b"/v1/files"), None, ANYONE)
        assert exchange is not None, "the queue has room"
        return exchange


@contextmanager
def bench(max_inflight: int = 1) -> Iterator[Bench]:
    """A gateway for the block, with room for so many exchanges."""
    limits = replace(LIMITS, max_inflight=max_inflight)
    with gateway(nowhere, limits=limits, limited=[one_a_minute()], max_wait_s=600.0) as made:
        yield Bench(made)


async def turns(n: int = 5) -> None:
    """Let the loop go round a few times."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns_later", range(5))
def test_client_that_leaves_at_any_turn_frees_its_slot(turns_later: int) -> None:
    """Queued, between the queue and its first step, waiting for a connection: each is counted."""

    async def main() -> None:
        with bench() as made:
            client = FakeClient()
            exchange = made.submit(client)
            for _ in range(turns_later):
                await asyncio.sleep(0)
            # Behind what the loop has to do already: after one turn, between the task's making and its first step.
            asyncio.get_running_loop().call_soon(exchange.client_gone)
            await turns()
            assert made.gateway.n_active == 0
            assert (client.written, client.finished) == (b"", 0), "nobody is there to be answered"

    uvloop.run(main())


def test_client_that_leaves_while_its_token_is_not_due_gives_it_back() -> None:
    """The token of an exchange whose task never began is a token as well."""

    async def main() -> None:
        with bench(max_inflight=2) as made:
            made.submit(FakeClient())
            late = made.submit(FakeClient())
            asyncio.get_running_loop().call_soon(late.client_gone)
            await turns()
            assert (full_in_minutes(made.gateway), made.gateway.n_active) == ([1], 1)

    uvloop.run(main())


def test_end_of_a_drain_answers_who_waits_for_a_connection_and_who_is_queued() -> None:
    """503 draining for both; neither is left to find its connection reset."""

    async def main() -> None:
        with bench(max_inflight=1) as made:
            clients = [FakeClient(), FakeClient()]
            for client in clients:
                made.submit(client)
            await turns()
            assert (made.gateway.n_active, len(made.gateway.queue)) == (1, 1)
            made.gateway.fail_all(VeloxError(Reason.DRAINING, "leaving", close=True))
            await turns()
            for client in clients:
                assert client.written.startswith(b"HTTP/1.1 503 ") and b"draining" in client.written
                assert client.finished == 1
            assert (made.gateway.n_active, len(made.gateway.queue)) == (0, 0)

    uvloop.run(main())
