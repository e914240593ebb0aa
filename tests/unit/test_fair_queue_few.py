"""A queue in which few of one caller wait in no line does what one does that lines up the second one that comes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from velox.policy.fair_queue import FairQueue
from velox.types import Priority

MS = 1_000_000
TIMEOUT_NS = 3_000 * MS
STEPS_MS = (0, 0, 0, 0, 1, 5, 40, 300, 1_500)


class InLines(FairQueue[int]):
    """Puts whoever comes second into a line, whatever the order is."""

    __slots__ = ()

    def _joins_few(self, newcomer: Any) -> bool:
        return False


def seen(queue: FairQueue[int]) -> tuple[Any, ...]:
    return len(queue), queue.n_bytes, queue.depth_by_class, queue.next_deadline_ns


@pytest.mark.parametrize("seed", range(60))
def test_few_that_wait_in_no_line_are_served_as_from_their_lines(seed: int) -> None:
    rng = random.Random(seed)
    depth, max_bytes, batch = (*rng.choice([(4, 60), (12, 90), (40, 10_000)]), rng.choice([2, 5, 16]))
    queues = [kind(depth, max_bytes, batch, TIMEOUT_NS, 0.1) for kind in (FairQueue[int], InLines)]
    is_busy = seed % 2 == 0  # no room for some turns, now and then
    now_ns = item = 0
    waiting: list[int] = []
    running: list[tuple[int, int]] = []  # and when they were taken
    for _ in range(400):
        now_ns += rng.choice(STEPS_MS) * MS
        caller, priority = rng.choice("aaaaab"), rng.choice([Priority.NORMAL] * 6 + list(Priority))
        for _ in range(rng.choice([0, 1, 1, 2, 3, 7])):
            item += 1
            what: dict[str, Any] = {"caller": caller, "priority": priority, "cost": rng.randrange(0, 50)}
            what |= {"n_bytes": rng.randrange(1, 20), "deadline_ns": now_ns + rng.choice([20, 900, 9_000]) * MS}
            verdicts = [queue.offer(item, now_ns, **what) for queue in queues]
            assert verdicts[0] == verdicts[1]
            waiting.append(item)
            if rng.random() < 0.1:
                caller = "b"
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
        room = rng.choice([0, 0, 1, 2]) if is_busy and rng.random() < 0.6 else 50
        taken = [queue.take(room, now_ns) for queue in queues]
        assert taken[0] == taken[1]
        running += [(served, now_ns) for served, _ in taken[0]]
        assert seen(queues[0]) == seen(queues[1])
