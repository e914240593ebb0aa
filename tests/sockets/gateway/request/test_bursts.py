"""Hundreds at once: those that come, those whose time is over, those that leave. Nobody else waits for all of them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from tests.patience import PATIENCE_S
from tests.sockets.gateway.core_attempts import SILENT, run, status_of, submit, until
from tests.sockets.gateway.core_gateway import LIMITS, FakeClient, ScriptedUpstream, gateway
from tests.sockets.net.core_ingress import App, Server, eventually, sweep
from velox.runtime.processes.listeners import ClientListener, bind_one
from velox.types import Address

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
# Four times what loops ask for by themselves. The kernel makes no queue longer than somaxconn; a process that nobody
# has given more has 1,024 descriptors, and both ends are here.
N = min(400, int(Path("/proc/sys/net/core/somaxconn").read_text()))


@asynccontextmanager
async def entered(app: App, address: Address) -> AsyncIterator[tuple[Server, ClientListener]]:
    """Accept as a worker does, on a socket that it was given."""
    listener = bind_one(address)
    server = Server(app, write_s=5.0, budget=1 << 20, max_connections=2 * N, min_rate=0)
    server.address = listener.getsockname()
    entrance = ClientListener([listener], server.ingress, None)
    sweeping = asyncio.create_task(sweep(server.ingress))
    await entrance.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield server, entrance
    finally:
        if listener.fileno() >= 0:  # the test has not closed it
            await entrance.close(PATIENCE_S)
        sweeping.cancel()
        server.ingress.stop()
        await asyncio.sleep(0)
    assert server.crashes == [], "no callback may raise"


def come(server: Server, n: int, data: bytes = b"") -> list[socket.socket]:
    """Connect clients while the loop does nothing; fail if one finds no place in the queue."""
    clients = []
    for _ in range(n):
        client = socket.socket(socket.AF_UNIX if isinstance(server.address, str) else socket.AF_INET)
        clients.append(client)
        client.setblocking(False)
        assert client.connect_ex(server.address) in (0, errno.EINPROGRESS), f"no room after {len(clients) - 1}"
        try:
            client.send(data)
        except OSError as exc:
            raise AssertionError(f"no room in the queue after {len(clients) - 1}") from exc
    return clients


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_burst_of_clients_finds_room_in_the_queue_and_is_served(kind: str, tmp_path: Path) -> None:
    """One for whom there is none would come again after a second: its connection would be that slow."""
    address = Address("unix", path=str(tmp_path / "s")) if kind == "unix" else Address("tcp", host="127.0.0.1", port=0)

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with entered(app, address) as (server, _):
            clients = come(server, N, GET)
            loop = asyncio.get_running_loop()
            for client in clients:
                assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 200 ")
            close(clients)

    uvloop.run(main())


def test_request_that_is_there_waits_for_no_more_than_a_few_that_come() -> None:
    """A connection a turn: the request of one that was there before comes among the first of them, not after all."""

    async def main() -> None:
        found: list[int] = []
        app = App(lambda exchange: (found.append(len(server.ingress.connections)), exchange.answer())[0])
        async with entered(app, Address("tcp", host="127.0.0.1", port=0)) as (server, _):
            (served,) = come(server, 1)
            await eventually(lambda: len(server.ingress.connections) == 1)
            clients = come(server, N)
            n_there = [1]
            while n_there[-1] < N + 1:
                await asyncio.sleep(0)
                n_there.append(len(server.ingress.connections))
                if n_there[-2] == 1 < n_there[-1]:
                    served.send(GET)
            assert max(after - before for before, after in pairwise(n_there)) <= 4
            assert len(found) == 1 and found[0] <= 16, found
            close([served, *clients])

    uvloop.run(main())


def test_drain_serves_all_that_wait_in_the_queue() -> None:
    """They have connected, so they are answered, however many there are."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with entered(app, Address("tcp", host="127.0.0.1", port=0)) as (server, entrance):
            clients = come(server, N, GET)
            server.ingress.draining = True
            await entrance.close(PATIENCE_S)
            loop = asyncio.get_running_loop()
            for client in clients:
                assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 200 ")
            close(clients)

    uvloop.run(main())


class Overdue:
    """A connection whose time is over, or whose client has left; it notes how many were ended in each turn."""

    def __init__(self, server: Server, ended: list[Overdue]) -> None:
        self._ingress = server.ingress
        self._ended = ended
        self.deadline_s = 0.001
        self.ours, self.theirs = socket.socketpair()

    def on_deadline(self) -> None:
        self.deadline_s = 0.0
        self._ended.append(self)

    def peer_closed(self) -> None:
        self._ingress.paused.discard(self)
        self._ended.append(self)

    def fileno(self) -> int:
        return self.ours.fileno()

    def close_if_idle(self) -> None: ...

    def abort(self) -> None:
        self._ingress.connections.pop(self, None)


@pytest.mark.parametrize("why", ["time", "left"])
def test_request_that_is_there_waits_for_no_more_than_a_few_that_end(why: str) -> None:
    """A sweep finds hundreds; in the turn after it began, the request is read."""

    async def main() -> None:
        found: list[int] = []
        ended: list[Overdue] = []
        app = App(lambda exchange: (found.append(len(ended)), exchange.answer())[0])
        async with entered(app, Address("tcp", host="127.0.0.1", port=0)) as (server, _):
            (served,) = come(server, 1)
            await eventually(lambda: len(server.ingress.connections) == 1)
            each = [Overdue(server, ended) for _ in range(100)]
            if why == "time":
                server.ingress.connections.update(dict.fromkeys(each))
            else:
                server.ingress.paused.update(each)
                close([one.theirs for one in each])
            async with asyncio.timeout(PATIENCE_S):
                while not ended:
                    await asyncio.sleep(0)
            assert len(ended) <= 8
            served.send(GET)
            await eventually(lambda: len(ended) == 100)
            assert set(ended) == set(each), "each of them once"
            assert len(found) == 1 and found[0] <= 30, found
            close([served, *(one.ours for one in each), *(one.theirs for one in each)])

    uvloop.run(main())


def test_connection_that_goes_on_before_its_turn_is_not_ended() -> None:
    """It was overdue when the sweep began; meanwhile its bytes have come, or it has ended by itself."""

    async def main() -> None:
        ended: list[Overdue] = []
        async with entered(App(), Address("tcp", host="127.0.0.1", port=0)) as (server, _):
            each = [Overdue(server, ended) for _ in range(100)]
            server.ingress.connections.update(dict.fromkeys(each))
            async with asyncio.timeout(PATIENCE_S):
                while not ended:
                    await asyncio.sleep(0)
            waiting = [one for one in each if one not in ended]
            for one in waiting[::2]:
                one.deadline_s = server.ingress.loop.time() + 60
            for one in waiting[1::2]:
                del server.ingress.connections[one]
            n_ended = len(ended)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(ended) == n_ended < 100
            for one in each:
                close([one.ours, one.theirs])

    uvloop.run(main())


def test_requests_of_an_upstream_that_hangs_end_over_several_turns() -> None:
    """All are told in the end, each once; one turn looks at a few dozen of them."""

    async def main() -> None:
        upstream = ScriptedUpstream(SILENT)
        with gateway(upstream.dial, limits=replace(LIMITS, max_inflight=100)) as made:
            clients: list[FakeClient] = []
            for _ in range(6):
                for _ in range(16):  # as many as its queue holds
                    clients.append(FakeClient())
                    submit(made, clients[-1])
                await until(lambda: upstream.n_open == len(clients))
            made.sweep(asyncio.get_running_loop().time() + 61.0)
            left: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while not left or left[-1]:
                    await asyncio.sleep(0)
                    left.append(made.n_active)
            assert max(before - after for before, after in pairwise([96, *left])) <= 32, left
            assert {status_of(client) for client in clients} == {504}
            assert all(client.written.count(b"HTTP/1.1 ") == 1 for client in clients)

    run(main)
