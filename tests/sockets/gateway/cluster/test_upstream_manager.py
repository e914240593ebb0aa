"""A worker's upstreams over reloads: what is unchanged goes on, and what is gone ends with its last request."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.recording import SSE, Call, RecordingUpstream
from tests.e2e.routed import nobody
from tests.sockets.gateway.core_attempts import run, until
from tests.sockets.gateway.core_plans import fail, refuse_key, succeed
from tests.sockets.gateway.core_upstreams import Bed, bed, settings_of, upstream
from velox.gateway.upstreams.member import Member
from velox.heads import WebSocketOffer
from velox.net.upstream.pool import UpstreamPool
from velox.observe.oplog import operations_logger
from velox.policy.balance.candidates import Candidates
from velox.runtime.upstreams.members import MemberMaker
from velox.runtime.upstreams.upstream_manager import UpstreamManager
from velox.settings import Settings

TO_A: Final = ["name: r, to: a"]
TO_B: Final = ["name: r, to: b"]


async def stream(call: Call) -> None:
    """One event, and the end when the test says so; to who asks for a WebSocket nothing."""
    if call.method == "GET":
        await call.silence()
        return
    await call.head(200, SSE)
    await call.data(b"data: 1\n\n")
    await call.step()
    await call.data(b"data: [DONE]\n\n")
    await call.end()


@pytest.fixture
def servers() -> Iterator[tuple[RecordingUpstream, RecordingUpstream]]:
    with RecordingUpstream() as one, RecordingUpstream() as other:
        yield one, other


Two = tuple[RecordingUpstream, RecordingUpstream]


def test_ejection_is_told_with_its_origin_and_its_cause(tmp_path: Path, servers: Two) -> None:
    """Once, and once more when it is over: where no connection can be made, and where requests fail."""
    a, _ = servers
    log = io.StringIO()
    with nobody() as dead:
        alive = f"http://127.0.0.1:{a.port}"
        lines = [f'  - {{name: m, origin: ["{alive}", "{dead}"], http2: off, keys: [env:KEY]}}']

        async def main() -> None:
            with bed(tmp_path, settings_of(tmp_path, lines, ["name: r, to: m"])) as worker:
                worker.maker.logger = operations_logger(log)
                await worker.eventually(lambda: "is ejected" in log.getvalue())
                await worker.eventually(lambda: worker.member("m").pool.is_warm)
                member = worker.member("m")
                fail(member)
                for _ in range(2):
                    worker.tick()
                for later_s in (100.0, 102.0):
                    succeed(member, later_s)
                for _ in range(2):
                    worker.tick()

        run(main)
    told = [json.loads(line)["message"] for line in log.getvalue().splitlines()]
    assert [line for line in told if "no warm connection" in line] == [
        f"no warm connection to the upstream m ({dead}): the upstream could not be reached: Connection refused"
    ], "once, however often it is tried"
    assert [line for line in told if "no warm connection" not in line] == [
        f"the upstream m ({dead}) is ejected: no connection can be made",
        f"the upstream m ({alive}) is ejected: its requests fail",
        f"the upstream m ({alive}) answers requests again",
    ]


def test_unchanged_upstream_keeps_all_that_it_has(tmp_path: Path, servers: Two) -> None:
    """Its connections, its health, its keys that rest; where it stands in the file does not matter."""
    a, b = servers

    async def main() -> None:
        lines = [upstream("a", a, more=", models: [m]"), upstream("b", b)]
        with bed(tmp_path, settings_of(tmp_path, lines, ["name: r, to: [a, b]"])) as worker:
            await worker.until_warm()
            member, n_connections = worker.member("a"), a.n_connections
            fail(member)
            refuse_key(member, 0, 60.0)

            worker.replace(settings_of(tmp_path, lines[::-1], ["name: s, to: [b, a], balance: peak_ewma"]))
            worker.tick()

            assert worker.member("a") is member and repr(worker.manager) == "<UpstreamManager 2 members, 0 retired>"
            assert member.health.state(worker.loop.time()).name == "OUT" and member.health.cooldown_left_s(
                worker.loop.time()
            )
            assert (await worker.answer()).startswith(b"HTTP/1.1 200")
            assert a.n_connections == n_connections

    run(main)


@pytest.mark.parametrize("more", [", weight: 3", ", timeouts: {idle: 7s}", ", models: [m]"])
def test_changed_upstream_begins_anew_but_its_keys_rest(tmp_path: Path, servers: Two, more: str) -> None:
    """The upstream told how long its key is to rest: another weight does not shorten that."""
    a, _ = servers

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            before = worker.member("a")
            refuse_key(before, 0, 60.0)
            fail(before)

            worker.replace(settings_of(tmp_path, [upstream("a", a, more=more)], TO_A))

            after, now_s = worker.member("a"), worker.loop.time()
            assert after is not before and after.row == before.row
            assert after.health.cooldown_left_s(now_s) > 50.0
            assert after.health.state(now_s).name == "RESTING"

    run(main)


def test_key_that_is_another_one_does_not_rest(tmp_path: Path, servers: Two) -> None:
    """The same reference, another secret: nothing is known of it."""
    a, _ = servers

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            refuse_key(worker.member("a"), 0, 60.0)

            worker.replace(settings_of(tmp_path, [upstream("a", a)], TO_A, KEY="sk-another"))

            assert not worker.member("a").health.cooldown_left_s(worker.loop.time())
            await worker.until_warm()
            assert (await worker.answer()).startswith(b"HTTP/1.1 200")
            assert a.calls[-1].header("authorization") == "Bearer sk-another"

    run(main)


def test_key_rests_on_when_another_one_of_its_upstream_changes(tmp_path: Path, servers: Two) -> None:
    """One is rotated, one is added before it: the one that got a 429 is the one that rests, and no other."""
    a, _ = servers

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [keyed(a, "KEY", "KEY2")], TO_A)) as worker:
            refuse_key(worker.member("a"), 0, 60.0)

            worker.replace(settings_of(tmp_path, [keyed(a, "KEY", "KEY2")], TO_A, KEY2="sk-another"))
            assert not may_be_used(worker.member("a"), 0) and may_be_used(worker.member("a"), 1)
            worker.replace(settings_of(tmp_path, [keyed(a, "KEY3", "KEY")], TO_A, KEY3="sk-third"))
            assert may_be_used(worker.member("a"), 0) and not may_be_used(worker.member("a"), 1)

            await worker.until_warm()
            assert (await worker.answer()).startswith(b"HTTP/1.1 200")
            assert a.calls[-1].header("authorization") == "Bearer sk-third"

    run(main)


def keyed(server: RecordingUpstream, *names: str) -> str:
    """Return the line of an upstream with keys by these variables."""
    keys = ", ".join(f"env:{name}" for name in names)
    return f'  - {{name: a, origin: "http://127.0.0.1:{server.port}", http2: off, keys: [{keys}]}}'


def may_be_used(of: Member, key: int) -> bool:
    """Say whether one of two keys may be used now."""
    keys = of.health.keys
    assert keys is not None
    return keys.pick(asyncio.get_running_loop().time(), 0.5, {1 - key}) == key


def test_retired_upstream_ends_with_its_last_stream(tmp_path: Path, servers: Two) -> None:
    """Its stream goes on to its end; then its connections are closed, and its row is given up."""
    a, b = servers

    async def main() -> None:
        with a.playing(stream), bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            await worker.until_warm()
            client, _ = worker.ask()
            await worker.eventually(lambda: b"data: 1" in client.written)
            row = worker.member("a").row

            worker.replace(settings_of(tmp_path, [upstream("b", b)], TO_B))
            for _ in range(3):
                worker.tick()
            await worker.until_warm()
            assert repr(worker.manager) == "<UpstreamManager 1 members, 1 retired>" and a.n_open
            assert worker.table.memory.has_state(row) and worker.table.inflight(row) == 1

            a.step()
            await asyncio.wait_for(client.finished.wait(), 10)
            assert client.written.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and not client.cuts
            await worker.eventually(lambda: not a.n_open)
            assert repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>"
            assert not worker.table.memory.has_state(row) and not worker.table.inflight(row)

    run(main)


def test_request_between_two_attempts_holds_what_it_may_need(tmp_path: Path, servers: Two) -> None:
    """It has no stream just now, but may be tried again where its configuration says."""
    a, b = servers

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            await worker.until_warm()
            routing = worker.manager.routing
            routing.n_open += 1  # as an exchange does

            worker.replace(settings_of(tmp_path, [upstream("b", b)], TO_B))
            worker.tick()
            assert repr(worker.manager) == "<UpstreamManager 1 members, 1 retired>" and a.n_open
            routing.n_open -= 1
            worker.tick()

            assert repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>"
            await worker.eventually(lambda: not a.n_open)

    run(main)


def test_websocket_holds_no_old_configuration(tmp_path: Path, servers: Two) -> None:
    """It may last for days and uses no pool; it is counted where it is until it ends."""
    a, b = servers

    async def silent(call: Call) -> None:
        await call.step()
        await call.reply(404, (), b"")

    async def main() -> None:
        with a.playing(silent), bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            await worker.until_warm()
            client, _ = worker.ask(offer=WebSocketOffer(b"MDEyMzQ1Njc4OWFiY2RlZg==", (), b""))
            await worker.eventually(lambda: worker.running() == [1])
            row = worker.member("a").row

            worker.replace(settings_of(tmp_path, [upstream("b", b)], TO_B))
            worker.tick()
            assert repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>"
            assert worker.table.inflight(row) == 1

            a.step()
            await asyncio.wait_for(client.finished.wait(), 10)
            assert client.written.startswith(b"HTTP/1.1 404") and worker.table.inflight(row) == 0

    run(main)


def test_what_runs_on_the_old_upstreams_takes_no_room_of_the_new(tmp_path: Path, servers: Two) -> None:
    """Streams and WebSockets go on where they are for as long as they like: nobody waits for them."""
    a, b = servers

    async def main() -> None:
        ways = [
            ([upstream("a", a, more=", concurrency: 2")], TO_A),
            ([upstream("b", b, more=", concurrency: 2")], TO_B),
        ]
        with a.playing(stream), bed(tmp_path, settings_of(tmp_path, *ways[0])) as worker:
            client, _ = worker.ask()
            worker.ask(offer=WebSocketOffer(b"MDEyMzQ1Njc4OWFiY2RlZg==", (), b""))
            await worker.eventually(lambda: b"data: 1" in client.written and worker.running() == [2])

            worker.replace(settings_of(tmp_path, *ways[1]))
            assert worker.manager.routing.free_slots(worker.gateway.n_active, 0, worker.loop.time()) == 2
            assert (await worker.answer()).startswith(b"HTTP/1.1 200")

            a.step()
            await asyncio.wait_for(client.finished.wait(), 10)
            await worker.eventually(lambda: repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>")
            assert worker.gateway.n_active == 1  # the one that asks for a WebSocket
            assert worker.manager.routing.free_slots(1, 0, worker.loop.time()) == 2

    run(main)


@pytest.mark.parametrize("limit", ["1", "auto"])
def test_what_runs_at_an_upstream_counts_under_its_limit_after_a_reload(
    tmp_path: Path, servers: Two, limit: str
) -> None:
    """Its server works for the requests of before, too; and a limit that was found out is not found out again."""
    a, _ = servers

    def settings(weight: int) -> Settings:
        return settings_of(tmp_path, [upstream("a", a, more=f", concurrency: {limit}, weight: {weight}")], TO_A)

    async def main() -> None:
        with a.playing(stream), bed(tmp_path, settings(1)) as worker:
            await worker.until_warm()
            client, _ = worker.ask()
            await worker.eventually(lambda: b"data: 1" in client.written)
            before = worker.member("a")
            for weight in (2, 3):
                worker.replace(settings(weight))
                after = worker.member("a")
                assert after is not before and after.concurrency is before.concurrency
                assert after.concurrency.in_flight == 1
                routing, now_s = worker.manager.routing, worker.loop.time()
                assert routing.free_slots(worker.gateway.n_active, 0, now_s) == after.concurrency.free_slots
            later, _ = worker.ask()
            if limit == "1":
                await worker.eventually(lambda: worker.gateway.queue.n == 1)
            else:
                await worker.eventually(lambda: b"data: 1" in later.written)

            for each in (client, later):
                await worker.eventually(lambda each=each: b"data: 1" in each.written)
                a.step()
                await asyncio.wait_for(each.finished.wait(), 10)
            await worker.eventually(lambda: repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>")
            assert worker.member("a").concurrency.in_flight == 0 and not worker.manager.routing.retired

    run(main)


def test_upstream_that_left_keeps_no_connection_while_old_requests_run(tmp_path: Path, servers: Two) -> None:
    """A stream at another one may last for hours; what has no use is closed, and not made again."""
    a, b = servers

    async def main() -> None:
        both = settings_of(tmp_path, [upstream("a", a), upstream("b", b)], TO_A)
        with a.playing(stream), bed(tmp_path, both) as worker:
            await worker.until_warm()
            client, _ = worker.ask()
            await worker.eventually(lambda: b"data: 1" in client.written)
            assert b.n_open

            worker.replace(settings_of(tmp_path, [upstream("a", a)], TO_A))
            await worker.eventually(lambda: not b.n_open)
            assert repr(worker.manager) == "<UpstreamManager 1 members, 1 retired>"
            n_dialed = b.n_connections
            for _ in range(10):
                worker.tick()
                await asyncio.sleep(0)
            assert b.n_connections == n_dialed

            a.step()
            await asyncio.wait_for(client.finished.wait(), 10)
            await worker.eventually(lambda: repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>")

    run(main)


def test_origins_of_one_upstream_keep_their_keys_when_another_one_goes(tmp_path: Path, servers: Two) -> None:
    """Their places on the ring do not depend on how many there are."""
    a, b = servers
    hashed = ["name: r, to: a, balance: hash"]

    def owners(worker: Bed, settings: Settings, n: int) -> dict[bytes, str]:
        group = worker.manager.routing.parts(settings.routes[0]).groups[0]
        candidates = Candidates([1.0] * n, [0] * n)
        keys = [b"user-%d" % each for each in range(400)]
        found = {key: group.balancer.pick(candidates, 0.0, 0.5, key) for key in keys}
        return {key: group.members[at].address for key, at in found.items() if at is not None}

    async def main() -> None:
        with RecordingUpstream() as c:
            three = settings_of(tmp_path, [upstream("a", a, c, b)], hashed)
            two = settings_of(tmp_path, [upstream("a", a, b)], hashed)
            with bed(tmp_path, three) as worker:
                before = owners(worker, three, 3)
                worker.replace(two)
                after = owners(worker, two, 2)

            gone = f"http://127.0.0.1:{c.port}"
            assert len(set(before.values())) == 3
            assert {key: at for key, at in after.items() if before[key] != gone} == {
                key: at for key, at in before.items() if at != gone
            }

    run(main)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nothing_is_left_of_an_upstream_that_is_gone(tmp_path: Path, servers: Two, host: str) -> None:
    """Its pool is freed soon, without a wait for the collector, and its name is not looked up again."""
    a, b = servers
    line = upstream("a", a).replace("127.0.0.1", host)

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [line], TO_A)) as worker:
            await worker.until_warm()
            left = id(worker.member("a").pool)
            worker.replace(settings_of(tmp_path, [upstream("b", b)], TO_B))
            # Not by a weak reference, which a compiled pool does not have.
            await worker.eventually(
                lambda: left not in {id(o) for o in gc.get_objects() if isinstance(o, UpstreamPool)}
            )

    run(main)


def test_who_waits_for_room_waits_on_over_a_reload(tmp_path: Path, servers: Two) -> None:
    """It has its turn when the stream before it ends, before those who came after the reload, and not some time."""
    a, b = servers

    async def main() -> None:
        lines = [upstream("a", a, more=", concurrency: 1"), upstream("b", b, more=", concurrency: 4")]
        routes = ["name: r, match: {headers: {x-to: b}}, to: b", "name: s, to: a"]
        with a.playing(stream), bed(tmp_path, settings_of(tmp_path, lines, routes)) as worker:
            await worker.until_warm()
            clients = [worker.ask()[0]]
            await worker.eventually(lambda: b"data: 1" in clients[0].written)
            clients.append(worker.ask()[0])
            await worker.eventually(lambda: "[1]" in repr(worker.manager.routing.waiters))
            worker.replace(settings_of(tmp_path, lines, [*routes[:1], "name: t, to: a"]))
            clients.append(worker.ask()[0])
            await worker.eventually(lambda: "[1, 1]" in repr(worker.manager.routing.waiters))

            for client in clients:
                await until(lambda client=client: b"data: 1" in client.written)
                a.step()
                await asyncio.wait_for(client.finished.wait(), 10)

    run(main)


def test_new_upstream_is_warmed_up_once_the_worker_serves(tmp_path: Path, servers: Two) -> None:
    """At once after a reload, and not before start()."""
    a, b = servers

    async def main() -> None:
        settings = settings_of(tmp_path, [upstream("a", a)], TO_A)
        with bed(tmp_path, settings) as worker:
            await worker.until_warm()
            n_a = a.n_warmups
            both = settings_of(tmp_path, [upstream("a", a), upstream("b", b)], TO_A)
            other = UpstreamManager(settings, worker.maker, worker.table, worker.loop)
            worker.table.enroll([("a", f"http://127.0.0.1:{a.port}"), ("b", f"http://127.0.0.1:{b.port}")])
            other.replace(both)
            await asyncio.sleep(0)
            assert not b.n_connections

            worker.replace(both)
            await worker.until_warm()

            assert (a.n_warmups, b.n_warmups > 0) == (n_a, True)

    run(main)


def test_many_reloads_under_streams_lose_none(tmp_path: Path, servers: Two) -> None:
    """To and fro between two configurations, each with a stream that lasts: all end whole, and nothing is left."""
    a, b = servers

    async def main() -> None:
        ways = [([upstream("a", a)], TO_A), ([upstream("b", b)], TO_B)]
        with a.playing(stream), b.playing(stream), bed(tmp_path, settings_of(tmp_path, *ways[0])) as worker:
            clients = []
            for n in range(6):
                if n:
                    worker.replace(settings_of(tmp_path, *ways[n % 2]))
                client, _ = worker.ask()
                clients.append(client)
                await worker.eventually(lambda client=client: b"data: 1" in client.written)
            assert repr(worker.manager) == "<UpstreamManager 1 members, 5 retired>"
            assert sorted(worker.running()) == [3, 3]

            for server in (a, b):
                server.step(3)
            for client in clients:
                await asyncio.wait_for(client.finished.wait(), 10)
            await worker.eventually(lambda: repr(worker.manager) == "<UpstreamManager 1 members, 0 retired>")

            assert all(b"[DONE]" in client.written and not client.cuts for client in clients)
            assert worker.running() == [0, 0]
            rows = {upstream: row for row, upstream, _ in worker.table.labels()}
            # The one that came back has its row still; the other one's is free as soon as the supervisor looks.
            assert [worker.table.memory.has_state(rows[name]) for name in "ab"] == [False, True]
            await worker.eventually(lambda: not a.n_open)

    run(main)


def test_end_closes_all_there_is(tmp_path: Path, servers: Two) -> None:
    """Also what is retired, with streams in it."""
    a, b = servers

    async def main() -> None:
        with a.playing(stream), bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            client, _ = worker.ask()
            await worker.eventually(lambda: b"data: 1" in client.written)
            worker.replace(settings_of(tmp_path, [upstream("b", b)], TO_B))
            await worker.until_warm()

            worker.manager.close()

            await asyncio.wait_for(client.finished.wait(), 10)
            assert client.cuts and worker.running() == [0, 0]
            await worker.eventually(lambda: not a.n_open and not b.n_open)

    run(main)


def test_tables_change_with_the_last_step(tmp_path: Path, servers: Two) -> None:
    """A worker serves by the old tables while it takes over a large configuration, and by these if it can't."""
    a, b = servers

    async def main() -> None:
        with bed(tmp_path, settings_of(tmp_path, [upstream("a", a)], TO_A)) as worker:
            before = worker.manager.routing
            both = settings_of(tmp_path, [upstream("a", a), upstream("b", b)], TO_B)
            worker.table.enroll([("a", f"http://127.0.0.1:{a.port}"), ("b", f"http://127.0.0.1:{b.port}")])
            steps = worker.manager.replacing(both)
            next(steps)
            assert worker.manager.routing is before
            row = worker.table.row("b", f"http://127.0.0.1:{b.port}")
            assert worker.table.memory.has_state(row)

            steps.close()

            assert worker.manager.routing is before and not worker.table.memory.has_state(row)
            worker.replace(both)
            assert [member.name for member in worker.manager.members] == ["a", "b"]

    run(main)


class Breaking(MemberMaker):
    """Can't make some members."""

    def make(self, settings: Settings, entry, *more, **others):  # type: ignore[no-untyped-def]
        if entry.name == "c":
            raise OSError("no such file")
        return super().make(settings, entry, *more, **others)


def test_configuration_that_can_not_be_made_leaves_nothing(tmp_path: Path, servers: Two) -> None:
    """A certificate is gone, say: the rows of those that were made before it are given up."""
    a, b = servers

    async def main() -> None:
        settings = settings_of(tmp_path, [upstream("a", a)], TO_A)
        with bed(tmp_path, settings, Breaking) as worker:
            bad = settings_of(tmp_path, [upstream("a", a), upstream("b", b), upstream("c", b)], TO_A)

            with pytest.raises(OSError, match="no such file"):
                worker.replace(bad)

            rows = {name: row for row, name, _ in worker.table.labels()}
            assert [worker.table.memory.has_state(rows[name]) for name in "abc"] == [True, False, False]
            assert [member.name for member in worker.manager.members] == ["a"]

    run(main)


def test_requests_are_counted_for_all_workers_to_see(tmp_path: Path, servers: Two) -> None:
    """Rows of several servers of one upstream: what runs where, from the begin of an attempt to its end."""
    a, b = servers

    async def main() -> None:
        lines = [upstream("a", a, b)]
        settings = settings_of(tmp_path, lines, ["name: r, to: a, balance: least_inflight"])
        with a.playing(stream), b.playing(stream), bed(tmp_path, settings) as worker:
            clients = [worker.ask()[0] for _ in range(6)]
            await worker.eventually(lambda: all(b"data: 1" in client.written for client in clients))
            assert worker.running() == [3, 3]

            for server in (a, b):
                server.step(3)
            for client in clients:
                await asyncio.wait_for(client.finished.wait(), 10)

            assert worker.running() == [0, 0]

    run(main)
