"""Profiles over the channel between the admin process and real worker processes on uvloop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import orjson
import pytest
import uvloop

from tests.sockets.profiling.profile_workers import busy_work, start_worker, stop_worker
from velox.profiling.remote import ProfileAgent
from velox.profiling.samples import Profile
from velox.profiling.workers import GRACE_S, Workers

pytestmark = pytest.mark.more

Pair = tuple[socket.socket, socket.socket]


async def idle_work() -> None:
    await asyncio.Event().wait()


async def stuck_work() -> None:
    """Take the order, then never come back to the loop in time."""
    await asyncio.sleep(0.3)
    time.sleep(30)


def deep_work(depth: int) -> None:
    """Many distinct stacks, so that an answer takes many messages."""
    if depth:
        deep_work(depth - 1)
    else:
        sum(range(2000))


async def many_stacks_work() -> None:
    while True:
        for depth in range(100):
            deep_work(depth)
        await asyncio.sleep(0)


@contextmanager
def workers(*work: Callable[[], Awaitable[None]]) -> Iterator[tuple[list[Pair], list[int]]]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in work]
    pids = [start_worker(theirs, one) for (_, theirs), one in zip(pairs, work, strict=True)]
    try:
        yield pairs, pids
    finally:
        for pid in pids:
            stop_worker(pid)
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


async def collect(socks: list[socket.socket], seconds: float, hz: int) -> Profile:
    return await Workers(socks).profile(seconds, hz)


def ends(pairs: list[Pair]) -> list[socket.socket]:
    return [ours for ours, _ in pairs]


def cpu_in(profile: Profile, worker: str, function: str) -> float:
    return sum(
        cost.amount / 1e9
        for stack, cost in profile.workers[worker].items()
        if any(frame.function == function for frame in stack)
    )


def test_collect_busy_and_idle_worker_both_answer() -> None:
    """A busy worker shows what it does, an idle one that it does nothing, in the time that was asked for."""
    with workers(busy_work, idle_work) as (pairs, _):
        started = time.monotonic()
        profile = uvloop.run(collect(ends(pairs), 1, 99))
        took = time.monotonic() - started

    assert profile.missing == ()
    assert took < 1 + GRACE_S, "nobody was waited for in vain"
    # What each had of the processor is the machine's choice.
    idle_s = sum(cost.amount for cost in profile.workers["worker 1"].values()) / 1e9
    assert cpu_in(profile, "worker 0", "busy_work") > 5 * idle_s
    assert idle_s < 0.05


def test_collect_again_gives_the_second_profile_alone() -> None:
    """Profiles one after the other do not mix."""
    with workers(busy_work) as (pairs, _):

        async def twice() -> list[Profile]:
            workers = Workers(ends(pairs))
            return [await workers.profile(0.5, 99) for _ in range(2)]

        first, second = uvloop.run(twice())

    assert first.n_samples > 0
    assert cpu_in(second, "worker 0", "busy_work") < 0.6


def test_collect_answer_of_many_messages_arrives_whole() -> None:
    """An answer larger than one message comes in parts."""
    with workers(many_stacks_work) as (pairs, _):
        profile = uvloop.run(collect(ends(pairs), 2, 500))

    samples = profile.workers["worker 0"]
    assert len(samples) > 20
    assert len({len(stack) for stack in samples}) > 20


def test_collect_killed_worker_is_named_and_others_count() -> None:
    """A worker that dies while it is profiled is left out and named; no other one suffers."""
    with workers(busy_work, busy_work) as (pairs, pids):

        async def kill_in_the_middle() -> Profile:
            asyncio.get_running_loop().call_later(0.3, stop_worker, pids[1])
            return await collect(ends(pairs), 1, 99)

        started = time.monotonic()
        profile = uvloop.run(kill_in_the_middle())
        took = time.monotonic() - started

    assert profile.missing == ("worker 1",)
    assert list(profile.workers) == ["worker 0"]
    assert cpu_in(profile, "worker 0", "busy_work") > 0
    assert took < 1 + GRACE_S + 0.5


def test_collect_replaced_worker_answers_although_old_orders_wait() -> None:
    """The next worker of a slot finds its predecessor's orders on the channel, and the answer is still right."""
    with workers(busy_work) as (pairs, pids):
        stop_worker(pids[0])
        gone = uvloop.run(collect(ends(pairs), 0.1, 99))
        pids[0] = start_worker(pairs[0][1], busy_work)

        profile = uvloop.run(collect(ends(pairs), 0.5, 99))

    assert gone.missing == ("worker 0",)
    assert profile.missing == ()
    assert cpu_in(profile, "worker 0", "busy_work") > 0


def test_collect_stuck_worker_is_left_out_in_time() -> None:
    """A worker whose loop stands still delays a profile by the grace and no more."""
    with workers(stuck_work) as (pairs, _):
        started = time.monotonic()
        profile = uvloop.run(collect(ends(pairs), 1, 99))
        took = time.monotonic() - started

    assert profile.missing == ("worker 0",)
    assert took < 1 + GRACE_S + 0.5


def test_collect_full_channel_is_a_missing_worker() -> None:
    """A slot that nobody reads for long fills its channel; asking it fails at once instead of blocking."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        try:
            while True:
                ours.send(b"x" * 1000)
        except BlockingIOError:
            pass

        started = time.monotonic()
        profile = uvloop.run(collect([ours], 5, 99))
        took = time.monotonic() - started

    assert profile.missing == ("worker 0",)
    assert took < 0.5


def test_collect_closed_channel_is_a_missing_worker() -> None:
    """A channel whose other end is gone is no reason to wait."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours:
        profile = uvloop.run(collect([ours], 5, 99))

    assert profile.missing == ("worker 0",)


def test_collect_cancelled_tells_the_workers_to_stop() -> None:
    """Who gives up a profile does not leave workers sampling."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def give_up() -> None:
        task = asyncio.create_task(collect([ours], 30, 99))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with ours, theirs:
        uvloop.run(give_up())
        orders = [orjson.loads(theirs.recv(65536)) for _ in range(2)]

    assert [order["op"] for order in orders] == ["profile", "stop"]
    assert orders[0]["id"] == orders[1]["id"]


def test_agent_garbage_orders_are_ignored() -> None:
    """Nothing that arrives on the channel can stop a worker."""

    async def main(ours: socket.socket, theirs: socket.socket) -> Profile:
        agent = ProfileAgent(theirs, asyncio.get_running_loop())
        agent.start()
        for message in (
            b"\xff",
            b"[]",
            b"{}",
            b'{"op":"exit"}',
            b'{"op":"profile"}',
            b'{"op":"profile","id":"x"}',
        ):
            ours.send(message)
        try:
            return await collect([ours], 0.05, 99)
        finally:
            agent.close()

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert uvloop.run(main(ours, theirs)).missing == ()


def test_agent_admin_gone_stops_sampling() -> None:
    """With the admin end closed nobody wants the samples: the agent stops, and does not spin on the dead socket."""

    async def main(ours: socket.socket, theirs: socket.socket) -> str:
        agent = ProfileAgent(theirs, asyncio.get_running_loop())
        agent.start()
        ours.send(b'{"op":"profile","id":1,"seconds":30,"hz":99}')
        await asyncio.sleep(0.05)
        assert "sampling=True" in repr(agent)
        ours.close()
        await asyncio.sleep(0.05)
        return repr(agent)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert "sampling=False" in uvloop.run(main(ours, theirs))


async def hoarding_work() -> None:
    """Allocate, and keep it."""
    kept = []
    while True:
        kept.append(bytearray(1000))
        await asyncio.sleep(0.001)


def test_heap_has_the_line_that_keeps_memory() -> None:
    """Of each worker what it allocated meanwhile and has still; the next one begins from nothing."""

    async def twice(socks: list[socket.socket]) -> tuple[Profile, Profile]:
        channels = Workers(socks)
        return await channels.heap(0.5), await channels.heap(0.2)

    with workers(hoarding_work, idle_work) as (pairs, _):
        first, second = uvloop.run(twice(ends(pairs)))

    assert first.missing == second.missing == ()
    kept = [
        cost
        for profile in (first, second)
        for stack, cost in profile.workers["worker 0"].items()
        if stack[-1].file.endswith("test_profile_remote.py") and cost.amount > 1000
    ]
    assert len(kept) == 2 and all(cost.amount >= 1000 * cost.n // 2 for cost in kept)


def test_questions_are_answered_during_a_profile_and_do_not_end_it() -> None:
    """A page that asks twice a second leaves a profile of a minute alone."""

    async def main(ours: socket.socket, theirs: socket.socket) -> tuple[list[bytes | None], Profile]:
        questions = {"tasks": lambda which: b"x" * 100_000 + which.encode()}
        agent = ProfileAgent(theirs, asyncio.get_running_loop(), questions)
        agent.start()
        channels = Workers([ours])
        try:
            profile = asyncio.create_task(channels.profile(0.3, 99))
            answers = await asyncio.gather(*(channels.ask("tasks", str(n)) for n in range(3)))
            return [answer for each in answers for answer in each], await profile
        finally:
            agent.close()

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        answers, profile = uvloop.run(main(ours, theirs))

    assert answers == [b"x" * 100_000 + str(n).encode() for n in range(3)], "each its own, though of several parts"
    assert profile.missing == ()


def test_question_that_nobody_knows_has_an_empty_answer() -> None:
    """A worker of the version before, during an upgrade."""

    async def main(ours: socket.socket, theirs: socket.socket) -> list[bytes | None]:
        agent = ProfileAgent(theirs, asyncio.get_running_loop())
        agent.start()
        try:
            return await Workers([ours]).ask("weather")
        finally:
            agent.close()

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert uvloop.run(main(ours, theirs)) == [b""]
