"""A queue that passes items through at once does what one does that is offered them and hands them out at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.state import state_of
from velox.policy.queue.fair_queue import ADMITTED, FairQueue
from velox.types import Priority

MS = 1_000_000
TIMEOUT_NS = 3_000 * MS
STEPS_MS = (0, 0, 0, 0, 1, 5, 40, 300, 1_500)


def offer_and_take(queue: FairQueue[int], item: int, now_ns: int, what: dict[str, Any]) -> bool:
    if queue.n:
        return False
    assert queue.offer(item, now_ns, **what) is ADMITTED
    assert queue.take(1, now_ns) == [(item, 0)]
    return True


def pass_through(queue: FairQueue[int], _: int, now_ns: int, what: dict[str, Any]) -> bool:
    if queue.n:
        return False
    queue.pass_through(what["caller"], what["priority"], what["cost"], now_ns)
    return True


def seen(queue: FairQueue[int]) -> tuple[Any, ...]:
    """All that decides on what comes next: what waits, counters, levels, rates."""
    state = {name: value for name, value in state_of(queue).items() if isinstance(value, int | tuple)}
    lines = [
        (each._level, each._top, each.n, {line.caller: (line.counter, line.cost) for line in each._lines.values()})
        for each in queue._classes
    ]
    parts = [state_of(part) for part in (queue._drain, queue._standing)]
    return {**state, "_now_ns": None, "_classes": None}, lines, parts, queue.depth_by_class, queue.next_deadline_ns


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_item_passed_through_leaves_the_queue_as_offer_and_take_do(seed: int) -> None:
    rng, ways = random.Random(seed), (pass_through, offer_and_take)
    depth, max_bytes, batch = (*rng.choice([(4, 60), (12, 90), (40, 10_000)]), rng.choice([2, 5, 16]))
    queues = [FairQueue[int](depth, max_bytes, batch, TIMEOUT_NS, 0.1) for _ in range(2)]
    is_busy = seed % 2 == 0  # no room for some turns, now and then
    now_ns = item = n_passed = 0
    waiting: list[int] = []
    running: list[tuple[int, int]] = []  # and when they were taken
    for _ in range(400):
        now_ns += rng.choice(STEPS_MS) * MS
        room = rng.choice([0, 0, 1, 2]) if is_busy and rng.random() < 0.6 else 50
        for _ in range(rng.choice([0, 1, 1, 2, 3, 7])):
            item += 1
            what: dict[str, Any] = {"caller": rng.choice("aaaaab"), "cost": rng.randrange(0, 50)}
            what |= {"priority": rng.choice([Priority.NORMAL] * 6 + list(Priority)), "n_bytes": rng.randrange(1, 20)}
            what |= {"deadline_ns": now_ns + rng.choice([20, 900, 9_000]) * MS}
            if room:
                passed = [way(queue, item, now_ns, what) for way, queue in zip(ways, queues, strict=True)]
                assert passed[0] == passed[1]
                if passed[0]:
                    n_passed += 1
                    room -= 1
                    running.append((item, now_ns))
                    continue
            verdicts = [queue.offer(item, now_ns, **what) for queue in queues]
            assert verdicts[0] == verdicts[1]
            waiting.append(item)
        assert seen(queues[0]) == seen(queues[1])
        if rng.random() < 0.1 and waiting:
            gone = rng.choice(waiting[-8:])
            assert queues[0].discard(gone) == queues[1].discard(gone)
        while running and rng.random() < 0.7:
            served, taken_ns = running.pop(0)
            for queue in queues:
                queue.serviced(30 * MS)
                queue.correct("ab"[served % 9 == 0], served % 40 - 20, priority=Priority.NORMAL, taken_ns=taken_ns)
        assert queues[0].late(now_ns) == queues[1].late(now_ns)
        taken = [queue.take(room, now_ns) for queue in queues]
        assert taken[0] == taken[1]
        running += [(served, now_ns) for served, _ in taken[0]]
        assert seen(queues[0]) == seen(queues[1])
    assert n_passed > 20
