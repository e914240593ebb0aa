"""The fair queue against what a plain list says, under any operations (hypothesis).

The model knows what waits and what must hold of each answer. It does not know the order between callers: that is
checked by what fairness means, the difference of service.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from velox.policy.queue.fair_queue import FairQueue, Outcome
from velox.types import Priority

TIMEOUT = 1000
CALLERS = "abcd"

callers = st.sampled_from(CALLERS)
priorities = st.sampled_from(Priority)


@dataclass(frozen=True)
class Item:
    number: int
    caller: str
    priority: Priority
    n_bytes: int
    at_ns: int
    deadline_ns: int


class QueueMachine(RuleBasedStateMachine):
    """Any operations in any order."""

    @initialize(
        depth=st.integers(1, 12),
        max_bytes=st.integers(1, 200),
        batch=st.integers(1, 5),
        floor=st.sampled_from([0.0, 0.1, 0.3]),
    )
    def start(self, depth: int, max_bytes: int, batch: int, floor: float) -> None:
        self.queue: FairQueue[Item] = FairQueue(depth, max_bytes, batch, TIMEOUT, floor)
        self.depth, self.max_bytes, self.batch = depth, max_bytes, batch
        self.waiting: list[Item] = []
        self.now_ns = 0
        self.n_offered = 0

    @rule(
        caller=callers,
        priority=priorities,
        cost=st.integers(0, 1000),
        n_bytes=st.integers(0, 60),
        time=st.integers(0, 2000),
    )
    def offer(self, caller: str, priority: Priority, cost: int, n_bytes: int, time: int) -> None:
        self.n_offered += 1
        deadline_ns = min(self.now_ns + time, self.now_ns + TIMEOUT)
        item = Item(self.n_offered, caller, priority, n_bytes, self.now_ns, deadline_ns)
        verdict = self.queue.offer(
            item,
            self.now_ns,
            caller=caller,
            priority=priority,
            cost=cost,
            n_bytes=n_bytes,
            deadline_ns=self.now_ns + time,
        )
        for victim in verdict.evicted:
            assert victim.priority >= priority, "nobody goes for a lower class"
            line = [
                other for other in self.waiting if (other.caller, other.priority) == (victim.caller, victim.priority)
            ]
            assert victim is line[-1], "the newest goes"
            if victim.priority == priority:
                assert victim.caller != caller
                assert len(line) > 1, "nobody loses its only one to a peer"
            self.waiting.remove(victim)
        if verdict.outcome is Outcome.ADMITTED:
            self.waiting.append(item)
        else:
            assert not verdict.evicted
        if not time:
            assert verdict.outcome is Outcome.TOO_LATE
        elif not self.waiting:
            raise AssertionError("an empty queue refuses nobody")

    @rule(room=st.integers(-1, 8))
    def take(self, room: int) -> None:
        taken = self.queue.take(room, self.now_ns)
        assert len(taken) == max(0, min(room, self.batch, len(self.waiting)))
        for item, waited_ns in taken:
            assert waited_ns == self.now_ns - item.at_ns
            first = next(
                other for other in self.waiting if (other.caller, other.priority) == (item.caller, item.priority)
            )
            assert item is first, "of one caller and class: first in, first out"
            self.waiting.remove(item)

    @rule(time=st.integers(0, 400))
    def late(self, time: int) -> None:
        self.now_ns += time
        late = self.queue.late(self.now_ns)
        # No request was ever served for long here, so nothing but deadlines sends anybody away.
        assert sorted(item.number for item in late) == [
            item.number for item in self.waiting if item.deadline_ns <= self.now_ns
        ]
        self.waiting = [item for item in self.waiting if item.deadline_ns > self.now_ns]

    @rule(index=st.integers(0, 20))
    def discard(self, index: int) -> None:
        if index < len(self.waiting):
            item = self.waiting.pop(index)
            assert self.queue.discard(item)
            assert not self.queue.discard(item)
        else:
            assert not self.queue.discard(Item(-1, "a", Priority.LOW, 0, 0, 0))

    @rule(caller=callers, priority=priorities, delta=st.integers(-1000, 1000))
    def correct(self, caller: str, priority: Priority, delta: int) -> None:
        self.queue.correct(caller, delta, priority=priority, taken_ns=self.now_ns)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.waiting) <= self.depth
        assert queue.n_bytes == sum(item.n_bytes for item in self.waiting)
        assert (
            queue.n_bytes <= self.max_bytes
            or len(queue) == 1
            or all(item.n_bytes == 0 for item in sorted(self.waiting, key=lambda item: item.n_bytes)[:-1])
        )
        assert queue.depth_by_class == tuple(
            sum(item.priority is priority for item in self.waiting) for priority in Priority
        )
        assert queue.next_deadline_ns == min((item.deadline_ns for item in self.waiting), default=None)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestQueueMachine.pytestmark = [pytest.mark.slow]


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.lists(st.integers(1, 1000), min_size=40, max_size=40), min_size=2, max_size=4),
    head_start=st.integers(0, 20),
)
def test_service_of_two_that_wait_differs_by_a_request_of_each_at_most(costs: list[list[int]], head_start: int) -> None:
    """The bound of virtual token counters, for every pair and at every moment, whatever was served before."""
    queue: FairQueue[tuple[int, int]] = FairQueue(1000, 1 << 30, 64, 1 << 40, 0.1)

    def offer(caller: int, numbers: range) -> None:
        for number in numbers:
            cost = costs[caller][number]
            queue.offer(
                (caller, number),
                0,
                caller=caller,
                priority=Priority.NORMAL,
                cost=cost,
                n_bytes=0,
                deadline_ns=1 << 50,
            )

    offer(0, range(40))
    queue.take(head_start, 0)
    for caller in range(1, len(costs)):
        offer(caller, range(40))

    served = [0] * len(costs)
    left = [40 - head_start] + [40] * (len(costs) - 1)
    most = [max(of) for of in costs]
    while all(left):
        [((caller, number), _)] = queue.take(1, 0)
        served[caller] += costs[caller][number]
        left[caller] -= 1
        for one in range(len(costs)):
            for other in range(one):
                assert abs(served[one] - served[other]) <= most[one] + most[other]
