"""Whom a worker asks for health and load, when, and what comes of the answers. Time is virtual."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final, cast

import pytest

from tests.sockets.gateway.composed import Counted, Stand, member_of, upstream_of
from tests.unit import virtual_time
from tests.unit.net.upstream.pool_server import Server
from tests.unit.providers.fixed_source import FixedSource
from velox.errors import Reason, VeloxError
from velox.gateway.translation.forward import Forwarder
from velox.gateway.upstreams.health_checks import HealthChecks, load_every_s
from velox.gateway.upstreams.member import Member
from velox.net.upstream.interface import UpstreamConnection
from velox.net.upstream.pool import UpstreamPool
from velox.policy.balance.scraped import ScrapedLoad
from velox.policy.health.member import ActiveRules, MemberHealth, MemberRules, ProbeSchedule, State
from velox.policy.routes.entries import ProbeEntry
from velox.providers.authority import BearerAuthority
from velox.providers.rows import PROVIDERS

VLLM: Final = b"vllm:num_requests_running 7\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.9\n"
EVERY_S: Final = 1.0
TICK_S: Final = 0.1


class Setup:
    """Health checks on a loop that ticks, and what they told."""

    def __init__(self) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self.counts: Final = Counted()
        self.health: Final[list[tuple[str, str | None]]] = []
        self.problems: Final[list[tuple[str, str | None]]] = []
        self.bugs: Final[list[Exception]] = []
        self.randoms = 0.5
        self.checks: Final = HealthChecks(
            self.loop,
            load_every_s=EVERY_S,
            on_health=lambda member, problem: self.health.append((member.name, problem)),
            on_load=lambda member, problem: self.problems.append((member.name, problem)),
            on_bug=self.bugs.append,
            random=lambda: self.randoms,
        )

    def member(
        self, server: Server, *, name: str = "m", row: int = 0, probe: str = "", load: bool = False, n_keys: int = 0
    ) -> Member:
        """A member that is asked as a test says. probe: its path."""
        made = member_of(
            *(upstream_of(name, n_keys=n_keys), Stand(pool=cast(UpstreamPool, server))), row=row, counts=self.counts
        )
        entry = made.entry
        if probe:
            rules = ActiveRules(every_s=5.0, timeout_s=2.0)
            active = ProbeSchedule(rules, self.loop.time(), 0.5)
            keys = made.health.keys
            health = MemberHealth(MemberRules(), self.loop.time(), keys=keys, active=active, is_new=False)
            entry = dataclasses.replace(entry, probe=ProbeEntry(probe, 5.0))
            made = dataclasses.replace(made, health=health, entry=entry)
        if load:
            entry = dataclasses.replace(entry, load="vllm")
            made = dataclasses.replace(made, load=ScrapedLoad(10.0), entry=entry)
        return made

    async def go_on(self, seconds: float) -> None:
        """Let the worker's clock tick for so long."""
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            self.checks.tick(self.loop.time())
            await asyncio.sleep(TICK_S)


def run(talk: Callable[[Setup], Awaitable[None]], *, n_bugs: int = 0) -> None:
    async def main() -> None:
        setup = Setup()
        await talk(setup)
        setup.checks.close()
        await asyncio.sleep(0.001)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others and len(setup.bugs) == n_bugs, (others, setup.bugs)

    virtual_time.run(main())


def gaps(server: Server) -> list[float]:
    """Return the times between questions."""
    return [round(after - before, 3) for (before, _), (after, _) in zip(server.asked, server.asked[1:], strict=False)]


def test_probe_is_sent_at_each_interval_to_the_path_on_the_server() -> None:
    """The path is not below that of the origin's API; one of the upstream's keys goes with it, as with any request."""

    async def talk(setup: Setup) -> None:
        server = Server(status=204)
        member = setup.member(server, probe="/health?deep=1", n_keys=2)
        setup.checks.replace([member])
        await setup.go_on(60)

        assert 11 <= len(server.asked) <= 12
        assert {path for _, path in server.asked} == {b"/health?deep=1"}
        assert {(request.method, request.body) for request in server.requests} == {(b"GET", None)}
        assert all(5.0 <= gap <= 5.0 + TICK_S + 0.01 for gap in gaps(server)), gaps(server)
        assert dict(server.requests[-1].headers)[b"authorization"].startswith(b"Bearer sk-of-the-gateway-")
        assert member.health.state(setup.loop.time()) is State.IN and not setup.health

    run(talk)


@pytest.mark.parametrize("how", ["status", "breaks", "slow", "redirect"])
def test_member_with_bad_answers_is_out_until_they_are_good_again(how: str) -> None:
    """Three in a row put it out once it was well, two good ones bring it back; each turn is told once."""

    async def talk(setup: Setup) -> None:
        server = Server()
        member = setup.member(server, probe="/health")
        setup.checks.replace([member])
        await setup.go_on(10)
        if how == "slow":
            server.takes_s = 3.0
        else:
            server.status = {"status": 503, "breaks": 0, "redirect": 302}[how]
        n_before = len(server.asked)
        while member.health.state(setup.loop.time()) is State.IN:
            await setup.go_on(TICK_S)
        assert len(server.asked) == n_before + 3
        ((name, problem),) = setup.health
        assert name == "m" and problem is not None
        told = {"status": "it answered 503 to /health", "redirect": "it answered 302 to /health"}
        assert problem == told.get(how, problem)
        assert setup.counts.n_ejections == 1

        await setup.go_on(30)
        server.status, server.takes_s = 200, 0.01
        n_before = len(server.asked)
        while member.health.state(setup.loop.time()) is not State.IN:
            await setup.go_on(TICK_S)
        assert len(server.asked) == n_before + 2
        assert setup.health == [("m", problem), ("m", None)] and setup.counts.n_ejections == 1
        assert server.most_open == 1

    run(talk)


@pytest.mark.parametrize("status", [401, 403, 429])
def test_answer_to_the_key_says_nothing_of_the_member(status: int) -> None:
    """Requests have other keys, or find out by themselves; without keys of its own it is an answer as any other."""

    async def talk(setup: Setup) -> None:
        servers = [Server(), Server()]
        members = [setup.member(server, probe="/health", n_keys=n) for n, server in enumerate(servers)]
        setup.checks.replace(members)
        await setup.go_on(10)
        for server in servers:
            server.status = status
        await setup.go_on(30)
        assert [each.health.state(setup.loop.time()) for each in members] == [State.OUT, State.IN]

        servers[1].status = 500
        await setup.go_on(30)
        assert members[1].health.state(setup.loop.time()) is State.OUT

    run(talk)


@pytest.mark.parametrize("status", [401, 403])
def test_answer_to_a_probe_without_the_clouds_credentials_says_nothing(status: int) -> None:
    """Requests are signed in and a probe is not: a member that refuses it would be out for good."""

    async def talk(setup: Setup) -> None:
        server = Server(status=status)
        made = setup.member(server, probe="/openai/v1/models")
        authority = BearerAuthority(FixedSource("token"))
        entra = Forwarder(
            PROVIDERS["azure"],
            base_path="",
            root_path="/",
            key=None,
            client_keys_are_ours=True,
            authority=authority,
        )
        member = dataclasses.replace(made, forwarders=(entra,))
        setup.checks.replace([member])
        await setup.go_on(30)
        assert server.asked and member.health.state(setup.loop.time()) is State.IN

        server.status = 500
        await setup.go_on(30)
        assert member.health.state(setup.loop.time()) is State.OUT

    run(talk)


@pytest.mark.parametrize("status", [401, 429])
def test_key_that_requests_do_not_carry_is_not_asked_with(status: int) -> None:
    """It was refused, or rests: neither a probe nor a question for the load has it."""

    async def talk(setup: Setup) -> None:
        server = Server(body=VLLM)
        member = setup.member(server, probe="/health", load=True, n_keys=2)
        keys, now_s = member.health.keys, setup.loop.time()
        assert keys is not None
        for key in range(2):
            server.requests.clear()
            keys.begin(key, now_s)
            keys.answered(key, status, [(b"retry-after", b"9")], now_s, now_s, 0.0)
            setup.checks.replace([member])
            await setup.go_on(8)
            used = {dict(request.headers)[b"authorization"] for request in server.requests}
            assert used == {b"Bearer sk-of-the-gateway-%d" % (1 - key)}
            assert {request.target for request in server.requests} == {b"/health", b"/metrics"}
            await setup.go_on(4)
            now_s = setup.loop.time()
            keys.begin(key, now_s)
            keys.answered(key, 200, [], now_s, now_s, 0.0)

    run(talk)


def test_member_that_has_no_connection_to_spare_is_not_blamed() -> None:
    """All are busy with requests: a probe that was never sent tells nothing."""

    async def talk(setup: Setup) -> None:
        server = Server()
        member = setup.member(server, probe="/health")
        setup.checks.replace([member])
        await setup.go_on(10)
        n_asked = len(server.asked)
        server.is_busy = True
        await setup.go_on(60)
        assert len(server.asked) == n_asked and member.health.state(setup.loop.time()) is State.IN

        server.is_busy, server.status = False, 500
        await setup.go_on(30)
        assert member.health.state(setup.loop.time()) is State.OUT

    run(talk)


def test_load_is_told_with_the_requests_in_flight_at_that_time() -> None:
    """What others have sent there counts, what this gateway has sent is known better."""

    async def talk(setup: Setup) -> None:
        server = Server(body=VLLM)
        member = setup.member(server, row=3, load=True)
        assert member.load is not None
        setup.checks.replace([member])
        for _ in range(4):
            setup.counts.began(3)
        await setup.go_on(2)

        assert {path for _, path in server.asked} == {b"/metrics"}
        assert member.load.extra(setup.loop.time()) == 7 + 2 - 4 + 2
        assert member.load.headroom(setup.loop.time()) == pytest.approx(0.5)
        assert not setup.problems

    run(talk)


def test_load_is_asked_for_often_only_while_there_are_requests() -> None:
    """At any member that tells its load: the idle ones are those to choose."""

    async def talk(setup: Setup) -> None:
        idle, busy = Server(body=VLLM), Server(body=VLLM)
        setup.checks.replace([setup.member(idle, load=True), setup.member(busy, name="n", row=1, load=True)])
        await setup.go_on(50)
        assert 9 <= len(idle.asked) <= 11

        idle.asked.clear()
        setup.counts.began(1)
        await setup.go_on(20)
        assert 16 <= len(idle.asked) <= 20
        setup.counts.ended(1)
        await setup.go_on(1)
        idle.asked.clear()
        await setup.go_on(50)
        assert 9 <= len(idle.asked) <= 11

    run(talk)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"no such path", "404"),
        (200, b"python_info 1\n", "none of vllm's metrics"),
        (200, b"x" * (5 << 20), "bytes"),
        (0, b"", "gone"),
    ],
)
def test_load_that_can_not_be_read_is_told_once_and_asked_for_seldom(status: int, body: bytes, said: str) -> None:
    """A setting that is wrong, most often. What was known before is forgotten with time."""

    async def talk(setup: Setup) -> None:
        server = Server(status, body)
        member = setup.member(server, load=True)
        setup.checks.replace([member])
        setup.counts.began(0)
        await setup.go_on(50)
        assert 9 <= len(server.asked) <= 11
        [(_, problem)] = setup.problems
        assert problem is not None and said in problem

        server.status, server.body = 200, VLLM
        await setup.go_on(10)
        assert setup.problems[1:] == [("m", None)]

    run(talk)


def test_member_is_asked_one_thing_at_a_time() -> None:
    """A server that is slow with one answer is not asked for another one."""

    async def talk(setup: Setup) -> None:
        server = Server(body=VLLM, takes_s=1.9)
        setup.checks.replace([setup.member(server, probe="/health", load=True)])
        setup.counts.began(0)
        await setup.go_on(60)
        assert server.most_open == 1
        paths = [path for _, path in server.asked]
        assert paths.count(b"/health") >= 8 and paths.count(b"/metrics") >= 12

    run(talk)


def test_questions_are_spread_and_their_intervals_vary() -> None:
    """Members that were made together are not asked together."""

    async def talk(setup: Setup) -> None:
        servers = [Server(body=VLLM) for _ in range(10)]
        members = [setup.member(server, name=str(n), load=True) for n, server in enumerate(servers)]
        for n in range(len(members)):
            setup.randoms = n / 10
            setup.checks.replace(members[: n + 1])
        setup.counts.began(0)
        setup.randoms = 0.99
        await setup.go_on(5)
        firsts = [server.asked[0][0] for server in servers]
        assert firsts == sorted(firsts) and firsts[-1] - firsts[0] > 0.5
        assert all(1.09 <= gap <= 1.1 + TICK_S for server in servers for gap in gaps(server)[1:])

    run(talk)


def test_reload_keeps_those_that_stay_and_asks_the_others_no_more() -> None:
    """A question under way at a member that is gone is given up; one at a member that stays is not."""

    async def talk(setup: Setup) -> None:
        stays, goes, comes = (Server(takes_s=1.0) for _ in range(3))
        members = [setup.member(server, probe="/health") for server in (stays, goes, comes)]
        setup.checks.replace(members[:2])
        while not stays.n_open:
            await setup.go_on(TICK_S)
        assert goes.n_open == 1
        setup.checks.replace([members[0], members[2]])
        await setup.go_on(TICK_S)
        assert (stays.n_open, goes.n_open) == (1, 0)

        n_gone = len(goes.asked)
        await setup.go_on(30)
        assert len(goes.asked) == n_gone and comes.asked
        assert all(5.0 <= gap <= 5.0 + TICK_S + 0.01 for gap in gaps(stays))

    run(talk)


def test_end_gives_up_what_is_asked_at_that_moment() -> None:
    """Also what was to be asked in that very turn of the loop."""

    async def talk(setup: Setup) -> None:
        for takes_s in (0.0, 1.0):
            server = Server(takes_s=takes_s)
            setup.checks.replace([setup.member(server, probe="/health")])
            while not setup.checks.n_asking:
                setup.checks.tick(setup.loop.time())
                if not setup.checks.n_asking:
                    await asyncio.sleep(TICK_S)
            if takes_s:
                await asyncio.sleep(0.5)
            setup.checks.close()
            await asyncio.sleep(0.001)
            assert server.n_open == 0
            n_asked = len(server.asked)
            await setup.go_on(20)
            assert len(server.asked) == n_asked

    run(talk)


@pytest.mark.slow
def test_no_tick_begins_more_than_a_few() -> None:
    """After a stop of the loop all may be due; the others follow in the next ticks."""

    async def talk(setup: Setup) -> None:
        servers = [Server(takes_s=100.0) for _ in range(200)]
        setup.checks.replace([setup.member(server, probe="/health") for server in servers])
        await asyncio.sleep(60)
        seen = []
        for _ in range(3):
            setup.checks.tick(setup.loop.time())
            seen.append(setup.checks.n_asking)
        assert seen == [80, 160, 200]

    run(talk)


def test_bug_in_a_question_does_not_end_the_others() -> None:
    """It is told, and the member is asked again."""

    class Broken(Server):
        def lease_nowait(self) -> UpstreamConnection | None:
            self.asked.append((0.0, b""))
            raise RuntimeError("a bug")

    async def talk(setup: Setup) -> None:
        server, other = Broken(), Server()
        setup.checks.replace([setup.member(server, probe="/health"), setup.member(other, probe="/health")])
        await setup.go_on(21)
        assert len(server.asked) >= 2 and len(other.asked) >= 3
        assert all(isinstance(bug, RuntimeError) for bug in setup.bugs)
        setup.bugs.clear()

    run(talk)


def test_failure_to_ask_is_not_a_failure_of_the_member() -> None:
    """The gateway is about to leave: whatever else is no failure of the upstream."""

    class Leaving(Server):
        def lease_nowait(self) -> UpstreamConnection | None:
            raise VeloxError(Reason.DRAINING, "leaving")

    async def talk(setup: Setup) -> None:
        member = setup.member(Leaving(), probe="/health", load=True)
        setup.checks.replace([member])
        await setup.go_on(60)
        assert member.health.state(setup.loop.time()) is State.IN and not setup.problems

    run(talk)


@pytest.mark.parametrize(("n_workers", "every_s"), [(1, 1.0), (2, 1.0), (4, 2.0), (8, 4.0), (64, 4.0)])
def test_more_workers_ask_less_often_each(n_workers: int, every_s: float) -> None:
    """A server is asked about twice a second, whatever the number of cores."""
    assert load_every_s(n_workers) == every_s
