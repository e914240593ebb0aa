"""Who waits for room at an upstream: in order, woken for each place, and never left behind."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.sockets.gateway.core_attempts import run
from tests.sockets.gateway.core_plans import fail, member, plan, refuse_key, route, tables
from velox.errors import Reason, VeloxError
from velox.gateway.cluster.capacity import CapacityWaiters, QueueTicket
from velox.gateway.cluster.group import Attempt
from velox.gateway.cluster.routing import Routing
from velox.gateway.upstreams.member import Member
from velox.policy.health.member import Verdict
from velox.policy.queue.concurrency import FixedLimit
from velox.policy.routes.entries import Match
from velox.types import Priority

LONG_S: Final = 60.0


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


def limited(name: str, n: int = 1, *, n_keys: int = 0, models: tuple[str, ...] = ()) -> Member:
    """Return a member that takes `n` at once."""
    return member(name, concurrency=FixedLimit(n), n_keys=n_keys, models=models)


class Client:
    """One request that waits for room. It has its place at the upstream from then on."""

    def __init__(
        self,
        routing: Routing,
        model: str = "m",
        *,
        timeout_s: float = LONG_S,
        caller: bytes = b"",
        priority: Priority = Priority.NORMAL,
    ) -> None:
        self.routing: Final = routing
        self._ticket: Final = QueueTicket(caller, priority)
        self._way: Final = plan(routing, model)
        self.task: Final = asyncio.get_running_loop().create_task(self._go(now() + timeout_s))

    async def _go(self, until_s: float) -> Attempt:
        pick = self._way.first(now()) or await self.routing.wait_for_capacity(self._way, until_s, self._ticket)
        pick.member.concurrency.begin(now())
        return pick

    @property
    def is_in(self) -> bool:
        """True once it has its place."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    @property
    def at(self) -> str:
        """Where its place is."""
        return self.task.result().member.name

    def end(self) -> None:
        """Give the place back."""
        pick = self.task.result()
        pick.member.concurrency.ended(now(), now(), replied=True)
        pick.gave_up(now())
        self.routing.found_capacity(now())


async def turns() -> None:
    """Let everything happen that needs no time."""
    for _ in range(30):
        await asyncio.sleep(0)


def lines(routing: Routing) -> str:
    """Return who waits."""
    return repr(routing.waiters)


def test_line_that_is_full_refuses_at_once() -> None:
    """Those who wait count as running: some of what may run stays for requests that have room elsewhere."""

    async def main() -> None:
        routing = tables([limited("a")], route("r", "a"), waiters=CapacityWaiters(2))
        clients = [Client(routing) for _ in range(4)]
        await turns()
        *others, last = clients
        with pytest.raises(VeloxError) as refused:
            await last.task
        assert refused.value.reason is Reason.QUEUE_FULL
        for client in others:
            assert client.is_in
            client.end()
            await turns()
        later = Client(routing)
        await turns()
        assert later.is_in
        later.end()

    run(main)


def test_places_are_given_in_order() -> None:
    """First come, first served: each end lets one more in."""

    async def main() -> None:
        routing = tables([limited("a", 2)], route("r", "a"))
        clients = [Client(routing) for _ in range(6)]
        await turns()
        assert [each.is_in for each in clients] == [True] * 2 + [False] * 4

        for n in range(4):
            clients[n].end()
            await turns()
            assert [each.is_in for each in clients] == [True] * (3 + n) + [False] * (3 - n)

        assert lines(routing) == "<CapacityWaiters []>"

    run(main)


def test_one_word_of_room_fills_all_places() -> None:
    """Several places came free, and that was told once: each who is let in lets in the next."""

    async def main() -> None:
        of = limited("a", 3)
        routing = tables([of], route("r", "a"))
        for _ in range(3):
            of.concurrency.begin(now())
        clients = [Client(routing) for _ in range(5)]
        await turns()
        for _ in range(3):
            of.concurrency.ended(now(), now(), replied=True)

        routing.found_capacity(now())
        await turns()

        assert [each.is_in for each in clients] == [True] * 3 + [False] * 2
        for each in clients[3:]:
            each.task.cancel()

    run(main)


def test_who_leaves_with_a_turn_passes_it_on() -> None:
    """The client left between the word and its step: the place is the next one's, at once."""

    async def main() -> None:
        of = limited("a")
        routing = tables([of], route("r", "a"))
        first, second, third = [Client(routing) for _ in range(3)]
        await turns()

        first.end()
        second.task.cancel()
        await turns()

        assert second.task.cancelled() and third.is_in
        assert of.concurrency.n_begun == 1 and lines(routing) == "<CapacityWaiters []>"

    run(main)


def test_who_leaves_the_line_leaves_no_trace() -> None:
    """From the middle of the line: the others keep their places."""

    async def main() -> None:
        routing = tables([limited("a")], route("r", "a"))
        clients = [Client(routing) for _ in range(4)]
        await turns()
        clients[2].task.cancel()
        await turns()
        assert lines(routing) == "<CapacityWaiters [2]>"

        for n in (0, 1):
            clients[n].end()
            await turns()

        assert clients[3].is_in

    run(main)


def test_wait_ends_with_the_deadline() -> None:
    """503 queue_timeout, to come back in a second; what comes free then is the next one's."""

    async def main() -> None:
        routing = tables([limited("a")], route("r", "a"))
        first = Client(routing)
        await turns()
        second, third = Client(routing, timeout_s=0.02), Client(routing)

        with pytest.raises(VeloxError) as refused:
            await second.task

        assert (refused.value.reason, refused.value.status) == (Reason.QUEUE_TIMEOUT, 503)
        assert refused.value.retry_after_s == 1.0
        first.end()
        await turns()
        assert third.is_in

    run(main)


def test_turn_and_deadline_at_the_same_time_lose_no_place() -> None:
    """The word comes in the turn in which its time is over, before it has looked: the place is the next one's."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        routing = tables([limited("a")], route("r", "a"))
        first = Client(routing)
        await turns()
        second, third = Client(routing, timeout_s=0.02), Client(routing)
        await turns()
        until_s = loop.time() + 0.02
        loop.call_at(until_s - 0.001, first.end)
        while loop.time() < until_s + 0.001:
            pass  # both timers are due in the loop's next turn

        await asyncio.wait({second.task})
        await turns()

        assert second.is_in is not third.is_in
        if second.is_in:
            third.task.cancel()
            await turns()

    run(main)


def test_who_was_too_slow_is_still_the_first() -> None:
    """Somebody who just came took the place: whose turn it was goes before those who were behind it."""

    async def main() -> None:
        of = limited("a")
        routing = tables([of], route("r", "a"))
        clients = [Client(routing) for _ in range(3)]
        await turns()
        clients[0].end()
        of.concurrency.begin(now())  # before the task of the second has had its step
        await turns()
        assert [each.is_in for each in clients[1:]] == [False, False]

        of.concurrency.ended(now(), now(), replied=True)
        routing.found_capacity(now())
        await turns()

        assert [each.is_in for each in clients[1:]] == [True, False]
        clients[2].task.cancel()
        await turns()

    run(main)


def test_room_at_the_fallback_wakes_who_waits_for_it() -> None:
    """The first upstream is out, with hanging requests on it: what counts is room where requests go now."""

    async def main() -> None:
        hanging, standing_in = limited("a"), limited("b")
        routing = tables([hanging, standing_in], route("r", "a", fallback=["b"]))
        hanging.concurrency.begin(now())
        fail(hanging)
        first, second = Client(routing), Client(routing)
        await turns()
        assert (first.at, second.is_in) == ("b", False)

        first.end()
        await turns()

        assert second.is_in and second.at == "b"

    run(main)


def test_first_upstream_that_is_back_takes_those_who_wait_for_the_fallback() -> None:
    """The fallback is full, and room at the first one does for those in line."""

    async def main() -> None:
        back, standing_in = limited("a"), limited("b")
        routing = tables([back, standing_in], route("r", "a", fallback=["b"]))
        fail(back)
        first, second = Client(routing), Client(routing)
        await turns()
        assert (first.at, second.is_in) == ("b", False)
        back.health.begin(now() + 3.0)
        for n in range(2):
            back.health.begin(now() + 3.0 + n * 2.0)
            back.health.answers(now() + 3.0 + n * 2.0, now() + 3.0 + n * 2.0)
            back.health.ended(Verdict.WELL, now() + 3.0 + n * 2.0, now() + 3.0 + n * 2.0, answered=True)

        routing.found_capacity(now() + 10.0)
        await turns()

        assert second.is_in and second.at == "a"

    run(main)


def test_lines_of_routes_do_not_wake_each_other() -> None:
    """Room at one upstream is no room at another; and a line in which nobody stands costs nothing."""

    async def main() -> None:
        members = [limited("a", models=("x",)), limited("b", models=("y",))]
        routing = tables(
            members, route("r", "a", match=Match(models=("x",))), route("s", "b", match=Match(models=("y",)))
        )
        clients = {model: [Client(routing, model) for _ in range(2)] for model in ("x", "y")}
        await turns()
        assert lines(routing) == "<CapacityWaiters [1, 1]>"

        clients["y"][0].end()
        await turns()

        assert (clients["x"][1].is_in, clients["y"][1].is_in) == (False, True)
        assert lines(routing) == "<CapacityWaiters [1]>"
        clients["x"][0].end()
        await turns()
        assert clients["x"][1].is_in and lines(routing) == "<CapacityWaiters []>"

    run(main)


def test_line_is_fair_to_callers_and_classes() -> None:
    """A caller with many requests delays another one by one of them, and nobody of a higher class."""

    async def main() -> None:
        routing = tables([limited("a")], route("r", "a"))
        inside = Client(routing)
        waiting = {f"loud {n}": Client(routing, caller=b"loud") for n in range(6)}
        waiting |= {f"quiet {n}": Client(routing, caller=b"quiet") for n in range(2)}
        waiting["high"] = Client(routing, caller=b"loud", priority=Priority.HIGH)
        await turns()
        served = []
        while waiting:
            inside.end()
            await turns()
            ((name, inside),) = [each for each in waiting.items() if each[1].is_in]
            del waiting[name]
            served.append(name)

        assert served[0] == "high"
        assert [name.split()[0] for name in served[1:5]] in (["loud", "quiet"] * 2, ["quiet", "loud"] * 2)
        assert [name for name in served if "loud" in name] == [f"loud {n}" for n in range(6)]

    run(main)


def test_line_that_is_full_of_one_callers_requests_has_a_place_for_another() -> None:
    """The newest of the longest goes for it, and hears that the line is full."""

    async def main() -> None:
        routing = tables([limited("a")], route("r", "a"), waiters=CapacityWaiters(3))
        inside = Client(routing)
        loud = [Client(routing, caller=b"loud") for _ in range(4)]
        await turns()
        quiet = Client(routing, caller=b"quiet")
        await turns()

        errors = [client.task.exception() for client in loud[2:]]
        assert [isinstance(each, VeloxError) and each.reason for each in errors] == [Reason.QUEUE_FULL] * 2
        assert lines(routing) == "<CapacityWaiters [3]>" and routing.waiters.n_waiting == 3
        for client in (loud[0], quiet, loud[1]):
            inside.end()
            await turns()
            assert client.is_in
            inside = client
        assert lines(routing) == "<CapacityWaiters []>"

    run(main)


def test_place_of_one_that_leaves_just_now_goes_to_who_comes() -> None:
    """It is in the line until its task runs: neither is the newcomer told of a bug, nor is a place left unused."""

    async def main() -> None:
        routing = tables([limited("a", 2)], route("r", "a"), waiters=CapacityWaiters(4))
        inside = [Client(routing) for _ in range(2)]
        loud = [Client(routing, caller=b"loud") for _ in range(4)]
        await turns()
        quiet = [Client(routing, caller=b"quiet") for _ in range(2)]  # their tasks run before
        for client in loud[2:]:
            client.task.cancel()
        await turns()
        assert [client.task.done() for client in quiet] == [False, False]
        for client in inside:
            client.end()
        await turns()
        assert sum(client.is_in for client in (*loud, *quiet)) == 2
        for client in (*loud, *quiet):
            if client.is_in:
                client.end()
        await turns()
        assert all(client.is_in for client in (*loud[:2], *quiet)) and lines(routing) == "<CapacityWaiters []>"

    run(main)


@pytest.mark.parametrize("n_others", [1, 4])
def test_lines_that_wait_for_one_upstream_get_its_places_in_turn(n_others: int) -> None:
    """However long the line of the busier route is: it never empties."""

    async def main() -> None:
        routing = tables(
            [limited("a")], route("r", "a", match=Match(models=("x",))), route("s", "a", match=Match(models=("y",)))
        )
        inside = Client(routing, "x")
        waiting = {"x": [Client(routing, "x") for _ in range(8)], "y": [Client(routing, "y") for _ in range(n_others)]}
        await turns()
        served = ""
        for _ in range(2 * n_others):
            inside.end()
            await turns()
            (model, inside), *more = [
                (name, client) for name, line in waiting.items() for client in line if client.is_in
            ]
            assert not more
            waiting[model].remove(inside)
            served += model

        assert served == "xy" * n_others

    run(main)


def test_keys_that_rest_meanwhile_are_told() -> None:
    """Who has a turn and finds all keys resting gets 429, and so does the next."""

    async def main() -> None:
        members = [limited("a", n_keys=2)]
        routing = tables(members, route("r", "a"))
        clients = [Client(routing) for _ in range(3)]
        await turns()
        for key in (0, 1):
            refuse_key(members[0], key, 60.0)

        clients[0].end()
        await asyncio.wait({each.task for each in clients[1:]}, timeout=10)

        reasons = [error.reason for each in clients[1:] if isinstance(error := each.task.exception(), VeloxError)]
        assert reasons == [Reason.RATE_LIMITED] * 2

    run(main)


def test_room_is_counted_over_all_upstreams_of_several_routes() -> None:
    """As many leave the queue as there are places anywhere; without a limit anywhere, any number."""

    async def main() -> None:
        members = [limited("a", 2), limited("b", 3)]
        routes = (route("r", "a", match=Match(models=("x",))), route("s", "b", match=Match(models=("y",))))
        routing = tables(members, *routes)
        assert routing.free_slots(0, 0, now()) == 5
        clients = [Client(routing, "x") for _ in range(2)]
        await turns()
        assert routing.free_slots(2, 0, now()) == 3
        assert routing.free_slots(3, 0, now()) == 2  # one has left the queue and is in no attempt yet
        assert routing.free_slots(3, 1, now()) == 3  # it waits for its time
        for each in clients:
            each.end()

        assert tables([member("a")], route("r", "a")).free_slots(10_000, 0, now()) > 10_000
        assert tables([*members, member("c")], *routes, route("t", "c")).free_slots(10_000, 0, now()) > 10_000

    run(main)


def test_line_at_one_upstream_holds_up_nobody_else() -> None:
    """Those who wait for the upstream of one route leave all places of another's to its requests."""

    async def main() -> None:
        members = [limited("a", 1), limited("b", 2)]
        routes = (route("r", "a", match=Match(models=("x",))), route("s", "b", match=Match(models=("y",))))
        routing = tables(members, *routes)
        clients = [Client(routing, "x") for _ in range(9)]
        await turns()
        assert lines(routing) == "<CapacityWaiters [8]>"

        assert routing.free_slots(9, 0, now()) == 2

        for each in clients:
            each.task.cancel()
        await turns()
        assert routing.free_slots(1, 0, now()) == 2

    run(main)


def test_room_of_one_route_is_that_of_its_first_stage_that_is_well() -> None:
    """A fallback's places are no places while requests don't go there."""

    async def main() -> None:
        a, b = members = [limited("a", 2), limited("b", 3)]
        routing = tables(members, route("r", "a", fallback=["b"]))
        assert routing.free_slots(0, 0, now()) == 2
        fail(a)
        assert routing.free_slots(0, 0, now()) == 3
        fail(b)

        assert routing.free_slots(0, 0, now()) == 2

    run(main)
