"""The fair queue: who is next, who must go, who is told at once; examples of each promise of docs/queue.md."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import count

import pytest

from velox.policy.queue.fair_queue import FairQueue, Outcome, Verdict
from velox.types import Priority

HIGH, NORMAL, LOW = Priority
TIMEOUT = 1_000_000_000_000
NEVER = 1 << 62
MS = 1_000_000


class Q:
    """A queue of strings, with defaults for what a test is not about."""

    def __init__(self, depth: int = 100, max_bytes: int = 10_000, batch: int = 64, floor: float = 0.1) -> None:
        self.queue: FairQueue[str] = FairQueue(depth, max_bytes, batch, TIMEOUT, floor)

    def offer(
        self,
        item: str,
        now_ns: int = 0,
        *,
        caller: str | None = None,
        priority: Priority = NORMAL,
        cost: int = 10,
        n_bytes: int = 1,
        deadline_ns: int = NEVER,
    ) -> Verdict[str]:
        """Offer one; its caller is the first letter of its name unless said."""
        return self.queue.offer(
            item,
            now_ns,
            caller=caller or item[0],
            priority=priority,
            cost=cost,
            n_bytes=n_bytes,
            deadline_ns=deadline_ns,
        )

    def fill(self, *items: str, now_ns: int = 0, priority: Priority = NORMAL, cost: int = 10, n_bytes: int = 1) -> Q:
        for item in items:
            verdict = self.offer(item, now_ns, priority=priority, cost=cost, n_bytes=n_bytes)
            assert verdict.outcome is Outcome.ADMITTED
        return self

    def take(self, room: int = 1, now_ns: int = 0) -> list[str]:
        return [item for item, _ in self.queue.take(room, now_ns)]


# -- bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_queue_of_one_caller_full_refuses_the_newcomer(depth: int) -> None:
    """The depth is exact: the last place is given, the one after it is not, and nobody goes for it."""
    q = Q(depth).fill(*(f"a{n}" for n in range(depth)))

    verdict = q.offer("a!")

    assert verdict.outcome is Outcome.FULL
    assert verdict.evicted == ()
    assert len(q.queue) == depth


def test_queue_bytes_are_bounded() -> None:
    """Bodies that wait count: the last byte is given, the one after it is not."""
    q = Q(max_bytes=100).fill("a1", "a2", n_bytes=50)

    assert q.offer("a3", n_bytes=1).outcome is Outcome.FULL_BYTES
    assert q.queue.n_bytes == 100
    assert q.offer("a4", n_bytes=0).outcome is Outcome.ADMITTED


def test_queue_request_larger_than_all_bytes_waits_alone() -> None:
    """One that could never fit is not refused for ever; nobody joins it."""
    q = Q(max_bytes=100).fill("a1", n_bytes=101)

    assert q.offer("b1").outcome is Outcome.FULL_BYTES
    assert q.take() == ["a1"]
    assert q.queue.n_bytes == 0


@pytest.mark.parametrize(("room", "taken"), [(0, []), (1, ["a1"]), (2, ["a1", "a2"]), (3, ["a1", "a2"]), (-1, [])])
def test_queue_take_is_limited_by_room_and_batch(room: int, taken: list[str]) -> None:
    """One turn takes no more than there is room for, and no more than a batch."""
    assert Q(batch=2).fill("a1", "a2", "a3").take(room) == taken


def test_queue_take_tells_how_long_each_waited() -> None:
    """Time in the queue is part of what Velox adds, so it is measured for each."""
    q = Q().fill("a1", now_ns=1).fill("a2", now_ns=5)

    assert q.queue.take(10, 20) == [("a1", 19), ("a2", 15)]


def test_queue_tells_its_depth_by_class() -> None:
    """What waits is seen by class, also when it is only one."""
    q = Q().fill("a1", priority=LOW)
    assert q.queue.depth_by_class == (0, 0, 1)
    q.fill("a2", priority=HIGH)
    assert q.queue.depth_by_class == (1, 0, 1)
    assert len(q.queue) == 2


# -- between callers ------------------------------------------------------------------------------------


def test_queue_callers_take_turns() -> None:
    """A caller with one request is served before the second of a caller with many."""
    q = Q().fill("a1", "a2", "a3", "a4", "b1", "c1")

    assert q.take(10) == ["a1", "b1", "c1", "a2", "a3", "a4"]


def test_queue_turns_are_by_tokens() -> None:
    """One that asks for ten times the tokens has a tenth of the requests."""
    q = Q().fill(*(f"a{n}" for n in range(3)), cost=100).fill(*(f"b{n}" for n in range(20)), cost=10)

    taken = q.take(15)

    assert sum(item[0] == "a" for item in taken) in (1, 2)


def test_queue_huge_request_is_not_starved() -> None:
    """What a request costs is charged after it is served, so its size does not keep it waiting."""
    q = Q().fill("b1", "b2", "b3").fill("a1", cost=1_000_000_000)

    assert q.take(2) == ["b1", "a1"]


def test_queue_requests_that_cost_nothing_take_turns_too() -> None:
    """Zero tokens count as one: else a caller of such requests would be first for ever."""
    q = Q().fill("a1", "a2", "a3", "b1", "b2", cost=0)

    assert q.take(4) == ["a1", "b1", "a2", "b2"]


def test_queue_idle_caller_has_saved_nothing_up() -> None:
    """One that was away while another was served a thousand times gets every second turn, not a thousand."""
    q = Q(depth=3000).fill(*(f"a{n}" for n in range(2000)), "b!")
    q.take(2)  # both are known
    for _ in range(1000):
        q.take(1)
    q.fill(*(f"b{n}" for n in range(100)))

    assert sum(item[0] == "b" for item in q.take(20)) in (10, 11)


def test_queue_caller_that_was_served_much_alone_is_not_punished() -> None:
    """Nobody waited while it was served, so nobody has a claim on it."""
    q = Q()
    for n in range(1000):
        q.fill(f"a{n}", now_ns=n).take(1, n)

    q.fill("b1", "b2", "b3", "a1", "a2", "a3", now_ns=2000)

    assert q.take(4, 2000) == ["b1", "a1", "b2", "a2"]


def test_queue_debt_is_paid_by_the_service_of_others() -> None:
    """A request that took ten times its estimate costs its caller nine turns, and no more."""
    q = Q().fill("a0", "b0", *(f"a{n}" for n in range(1, 20)), *(f"b{n}" for n in range(1, 30)))
    assert q.take(2) == ["a0", "b0"]

    q.queue.correct("a", 90, priority=NORMAL, taken_ns=0)

    assert "".join(item[0] for item in q.take(14)) == "b" * 9 + "ababa"


def test_queue_debt_is_forgiven_when_nobody_had_to_wait() -> None:
    """A caller is not punished for ever: after a second without anybody left behind, all are equal."""
    q = Q().fill("a1", "a2", "b1")
    q.take(1)
    q.take(9)
    q.queue.correct("a", 1_000_000, priority=NORMAL, taken_ns=0)

    q.fill("b2", "a3", "b3", "a4", now_ns=1000 * MS)

    assert q.take(4, 1000 * MS) == ["b2", "a3", "b3", "a4"]


def test_queue_refund_comes_back_while_its_caller_waits() -> None:
    """Who was charged a thousand tokens and used ten is owed turns."""
    q = Q().fill("a1", cost=1000).fill(*(f"b{n}" for n in range(50)), "a2", "a3", "a4")
    assert [item[0] for item in q.take(6)] == ["a", "b", "b", "b", "b", "b"]

    q.queue.correct("a", -990, priority=NORMAL, taken_ns=0)

    assert [item[0] for item in q.take(6)] == ["a", "a", "a", "b", "b", "b"]


@pytest.mark.parametrize("contended", [False, True], ids=["charged to nobody", "charged and forgotten"])
def test_queue_refund_of_what_counts_no_more_is_no_credit(contended: bool) -> None:
    """Requests that began in calm, and end while others wait: their caller is not served ahead for them."""
    q, calm_ns = Q(), 0
    for n in range(20):
        q.fill(f"a{n}", cost=1000)
        if contended:
            q.fill(f"b{n}")
        q.take(1)
        q.take(1)
    if contended:
        calm_ns = 2000 * MS
    later_ns = calm_ns + MS
    q.fill("a!", "b1", "b2", "b3", "a?", "a+", now_ns=later_ns)

    for _ in range(20):
        q.queue.correct("a", -1000, priority=NORMAL, taken_ns=0)

    assert [item[0] for item in q.take(4, later_ns)] == ["a", "b", "a", "b"]


def test_queue_request_that_did_not_wait_counts_while_others_just_had_to() -> None:
    """Within a second of a contention who finds the queue empty is charged, and a correction is one of that."""
    q = Q().fill("a1", "b1", "b2")
    q.take(1)
    q.take(9)  # a contention: somebody was left behind
    q.fill("a2", cost=500, now_ns=MS).take(1, MS)
    q.fill("b3", "a3", "b4", "a4", "a5", now_ns=2 * MS)

    q.queue.correct("a", -500, priority=NORMAL, taken_ns=MS)

    assert [item[0] for item in q.take(4, 2 * MS)] == ["a", "b", "a", "b"]


def test_queue_debt_is_no_larger_than_a_large_answer() -> None:
    """An upstream that tells nonsense does not keep a caller out of a queue that never empties."""
    q = Q(1000).fill("a0", "b0", "a1", "b1")
    assert q.take(2) == ["a0", "b0"]
    for _ in range(3):
        q.queue.correct("a", 10**9, priority=NORMAL, taken_ns=0)

    q.fill(*(f"b{n}" for n in range(2, 20)), cost=100_000)

    assert "a1" in q.take(14)


def test_queue_correct_of_a_stranger_is_nothing() -> None:
    """A caller that was forgotten owes nothing, and a correction does not make it known."""
    q = Q().fill("a1", "a2", "b1")
    q.queue.correct("z", 1_000_000, priority=NORMAL, taken_ns=0)
    q.fill("z1")

    assert q.take(3) == ["a1", "b1", "z1"]


def test_queue_callers_of_different_classes_have_different_counters() -> None:
    """What a caller was served in one class does not count in another, where little is served."""
    q = Q(floor=0.0).fill(*(f"a{n}" for n in range(50)), "b0", priority=HIGH)
    q.take(51)

    q.fill("b1", "b2", "a1", "a2", priority=LOW)

    assert q.take(4) == ["b1", "a1", "b2", "a2"]


@pytest.mark.slow
def test_queue_many_callers_that_never_come_back_keep_memory_bounded() -> None:
    """However many names there were, about a thousand are kept."""
    q = Q(depth=10)
    names = (f"{n}" for n in count())
    tracemalloc.start()
    for n in range(4000):
        q.offer(f"x{n}", n, caller=next(names))
        q.offer(f"y{n}", n, caller=next(names))
        q.take(1, n)
        q.take(1, n)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used < 1_500_000


@pytest.mark.slow
def test_queue_many_discards_behind_a_waiting_item_keep_memory_bounded() -> None:
    """Clients that come and go cost nothing that stays, even while the oldest item waits."""
    q = Q(depth=10).fill("a0", "b0")
    tracemalloc.start()
    for n in range(20_000):
        q.offer(f"a{n + 1}", n)
        q.queue.discard(f"a{n + 1}")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(q.queue) == 2
    assert used < 65_536


# -- between classes ------------------------------------------------------------------------------------


def test_queue_higher_class_goes_first() -> None:
    """Whoever came first: high before normal before low."""
    q = Q(floor=0.0).fill("l1", priority=LOW).fill("n1").fill("h1", "h2", priority=HIGH)

    assert q.take(4) == ["h1", "h2", "n1", "l1"]


def classes_of(q: Q, *, n: int, cost: int = 10) -> str:
    """Serve `n`, each class always having more; return their classes as letters."""
    names: Iterator[int] = count()
    letters = ""
    for now_ns in range(n):
        for letter, priority in (("h", HIGH), ("l", LOW)):
            if not q.queue.depth_by_class[priority]:
                q.fill(f"{letter}{next(names)}", f"{letter}{next(names)}", priority=priority, cost=cost)
        letters += "".join(q.take(1, now_ns))[0]
    return letters


@pytest.mark.parametrize("cost", [0, 1, 10, 100_000])
def test_queue_low_class_gets_its_floor_under_a_flood(cost: int) -> None:
    """Of 1,000 requests while the high class never pauses, the low class has its tenth, evenly spread."""
    letters = classes_of(Q(), n=1000, cost=cost)

    assert 99 <= letters.count("l") <= 101
    assert "h" * 12 not in letters


def test_queue_low_class_without_a_floor_gets_what_is_left() -> None:
    """Floor 0 is strict priority."""
    assert "l" not in classes_of(Q(floor=0.0), n=100)


def test_queue_low_class_alone_runs_up_no_debt() -> None:
    """What it gets while no higher class waits is free: its floor is there at once when one comes."""
    q = Q(depth=3000).fill(*(f"l{n}" for n in range(1500)), priority=LOW)
    for now_ns in range(1000):
        q.take(1, now_ns)

    q.fill(*(f"h{n}" for n in range(1000)), priority=HIGH)

    assert 9 <= sum(item[0] == "l" for now_ns in range(100) for item in q.take(1, 1000 + now_ns)) <= 11


def test_queue_class_that_comes_back_has_saved_no_floor_up() -> None:
    """A low class that was away has no claim on the time it was away."""
    q = Q(depth=3000).fill(*(f"h{n}" for n in range(1000)), priority=HIGH).fill("l!", priority=LOW)
    q.take(1)
    for now_ns in range(500):
        q.take(1, now_ns)
    q.fill(*(f"l{n}" for n in range(100)), priority=LOW)

    assert sum(item[0] == "l" for item in q.take(50, 600)) <= 6


# -- who is pushed out ----------------------------------------------------------------------------------


def test_queue_full_pushes_the_newest_of_the_loudest_out() -> None:
    """A caller that fills the queue loses its own newest request to one that has none there."""
    q = Q(5).fill("a1", "a2", "a3", "a4", "b1")

    verdict = q.offer("c1")

    assert verdict.outcome is Outcome.ADMITTED
    assert verdict.evicted == ("a4",)
    assert q.take(9) == ["a1", "b1", "c1", "a2", "a3"]


@pytest.mark.parametrize(
    ("waiting", "newcomer"),
    [(["a1", "b1"], "c1"), (["a1", "a2", "b1"], "b2"), (["a1", "a2", "b1", "b2"], "a3")],
)
def test_queue_full_of_equals_refuses_the_newcomer(waiting: list[str], newcomer: str) -> None:
    """Nobody goes for one who would then have as many: a tie is for those who came first."""
    q = Q(len(waiting)).fill(*waiting)

    verdict = q.offer(newcomer)

    assert (verdict.outcome, verdict.evicted) == (Outcome.FULL, ())


def test_queue_full_of_bytes_pushes_the_largest_holder_out() -> None:
    """By bytes, the loudest is whoever holds most of them; as many go as are needed, and no more."""
    q = Q(max_bytes=100).fill("a1", "a2", "a3", "a4", n_bytes=20).fill("b1", "b2", "b3", n_bytes=1)

    verdict = q.offer("c1", n_bytes=30)

    assert verdict.evicted == ("a4",)
    assert q.queue.n_bytes == 93


def test_queue_full_of_bytes_leaves_each_caller_its_only_one() -> None:
    """A caller with a single large request does not lose it to small ones of its class."""
    q = Q(max_bytes=100).fill("a1", n_bytes=90).fill("b1", n_bytes=10)

    assert q.offer("c1").outcome is Outcome.FULL_BYTES


def test_queue_large_newcomer_does_not_push_a_crowd_out() -> None:
    """At most 16 go for one."""
    q = Q(max_bytes=100).fill(*(f"a{n}" for n in range(99)), n_bytes=1)

    assert q.offer("b1", n_bytes=17).evicted == tuple(f"a{n}" for n in range(98, 82, -1))
    assert q.offer("c1", n_bytes=18).outcome is Outcome.FULL_BYTES


def test_queue_higher_class_pushes_out_of_the_lowest() -> None:
    """A full queue of low ones has a place for a high one, also if it is the only place."""
    q = Q(1).fill("l1", priority=LOW)

    assert q.offer("h1", priority=HIGH).evicted == ("l1",)
    assert q.take(2) == ["h1"]


@pytest.mark.parametrize(("full_of", "newcomer"), [(HIGH, NORMAL), (HIGH, LOW), (NORMAL, LOW)])
def test_queue_lower_class_pushes_nobody_out_of_a_higher(full_of: Priority, newcomer: Priority) -> None:
    """However long the line there is."""
    q = Q(10).fill(*(f"a{n}" for n in range(10)), priority=full_of)

    verdict = q.offer("b1", priority=newcomer)

    assert (verdict.outcome, verdict.evicted) == (Outcome.FULL, ())


def test_queue_places_are_kept_for_a_class_that_was_seen() -> None:
    """A flood of high ones takes all places, but not again once a low one has asked for one."""
    q = Q(10).fill(*(f"h{n}" for n in range(10)), priority=HIGH)
    assert q.offer("l1", priority=LOW).outcome is Outcome.FULL
    q.take(1)

    assert q.offer("h!", priority=HIGH).outcome is Outcome.FULL
    assert q.offer("l1", priority=LOW).outcome is Outcome.ADMITTED


def test_queue_places_are_kept_for_a_class_that_was_seen_alone() -> None:
    """It found the queue empty, and others joined it: that is a first request, too."""
    q = Q(10).fill("l1", priority=LOW).fill("h1", priority=HIGH)
    q.take(2)

    q.fill(*(f"h{n}" for n in range(9)), priority=HIGH)

    assert q.offer("h!", priority=HIGH).outcome is Outcome.FULL
    assert q.offer("l2", priority=LOW).outcome is Outcome.ADMITTED


# -- deadlines and estimates ----------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ns", "late"), [(99, []), (100, ["b1"]), (101, ["b1", "a2"]), (500, ["b1", "a2", "a1"])])
def test_queue_late_items_leave_at_their_own_deadline(now_ns: int, late: list[str]) -> None:
    """Each has its own, whoever came first; none leaves before."""
    q = Q()
    for item, deadline_ns in (("a1", 200), ("a2", 101), ("b1", 100)):
        q.offer(item, deadline_ns=deadline_ns)

    assert q.queue.next_deadline_ns == 100
    assert q.queue.late(now_ns) == late
    assert len(q.queue) == 3 - len(late)


@pytest.mark.parametrize("alone", [True, False])
def test_queue_time_out_holds_for_who_has_no_deadline(alone: bool) -> None:
    """VELOX_QUEUE_TIMEOUT is the longest wait."""
    q = Q().fill("a1", now_ns=7)
    if not alone:
        q.fill("b1", now_ns=9)

    assert q.queue.next_deadline_ns == TIMEOUT + 7
    assert q.queue.late(TIMEOUT + 6) == []
    assert q.queue.late(TIMEOUT + 7) == ["a1"]


def test_queue_deadline_that_is_over_is_refused_at_once() -> None:
    """It is never let in to be thrown out again."""
    assert Q().offer("a1", 100, deadline_ns=100).outcome is Outcome.TOO_LATE


@pytest.mark.parametrize("item", ["a1", "a2", "a3", "b1"])
def test_queue_discarded_item_is_not_taken_and_gives_its_place_back(item: str) -> None:
    """A client that left in the queue is never served, and does not keep others out."""
    q = Q(4).fill("a1", "a2", "a3", "b1")

    assert q.queue.discard(item)
    assert not q.queue.discard(item)
    assert q.offer("c1").outcome is Outcome.ADMITTED
    assert sorted(q.take(9)) == sorted({"a1", "a2", "a3", "b1", "c1"} - {item})


def test_queue_discarded_while_alone_leaves_it_empty() -> None:
    """The one that waits alone can leave too, and only that one."""
    q = Q().fill("a1")

    assert not q.queue.discard("b1")
    assert q.queue.discard("a1")
    assert (len(q.queue), q.queue.next_deadline_ns, q.take(1)) == (0, None, [])


def draining(every_ms: int = 10) -> tuple[Q, int]:
    """Return a queue of 500 of one caller that loses one each `every_ms`, and the time."""
    q = Q(1000).fill(*(f"a{n}" for n in range(500)))
    for n in range(50):
        q.take(1, n * every_ms * MS)
    return q, 49 * every_ms * MS


def test_queue_without_history_refuses_nobody() -> None:
    """Nothing has drained yet: nobody knows that it will not."""
    q = Q(1000).fill(*(f"a{n}" for n in range(500)))

    assert q.offer("a!", deadline_ns=1).outcome is Outcome.ADMITTED


def test_queue_refuses_at_once_who_would_be_too_late() -> None:
    """450 wait, 100 a second leave: 4.5 s to wait, and 4 s are left."""
    q, now_ns = draining()

    verdict = q.offer("a!", now_ns, deadline_ns=now_ns + 4000 * MS)

    assert verdict.outcome is Outcome.TOO_LATE
    assert verdict.wait_ns == pytest.approx(4500 * MS, rel=0.03)
    assert verdict.allowed_ns == 4000 * MS
    assert q.offer("a!", now_ns, deadline_ns=now_ns + 5000 * MS).outcome is Outcome.ADMITTED


def test_queue_estimate_is_that_of_the_caller() -> None:
    """Another caller has a line of its own, and is next: 4.5 s are not its wait. A higher class neither."""
    q, now_ns = draining()

    assert q.offer("b1", now_ns, deadline_ns=now_ns + 30 * MS).outcome is Outcome.ADMITTED
    assert q.offer("a!", now_ns, deadline_ns=now_ns + 30 * MS, priority=HIGH).outcome is Outcome.ADMITTED


def test_queue_estimate_knows_the_floor() -> None:
    """450 high ones are ahead of a low one, but its tenth is its own: 2 ahead of it are 0.2 s and not 4.5 s."""
    q = Q(1000).fill(*(f"h{n}" for n in range(500)), priority=HIGH)
    for n in range(50):
        q.take(1, n * 10 * MS)
    now_ns = 490 * MS
    assert q.offer("l1", now_ns, priority=LOW).outcome is Outcome.ADMITTED
    assert q.offer("l2", now_ns, priority=LOW).outcome is Outcome.ADMITTED

    assert q.offer("l3", now_ns, priority=LOW, deadline_ns=now_ns + 400 * MS).outcome is Outcome.ADMITTED
    assert q.offer("l4", now_ns, priority=LOW, deadline_ns=now_ns + 200 * MS).outcome is Outcome.TOO_LATE


def test_queue_forgets_a_rate_that_is_old() -> None:
    """After a long pause the servers may be others: nobody is refused for what was."""
    q, now_ns = draining()
    assert q.offer("a!", now_ns, deadline_ns=now_ns + 1000 * MS).outcome is Outcome.TOO_LATE

    later_ns = now_ns + 11_000 * MS

    assert q.offer("a!", later_ns, deadline_ns=later_ns + 1000 * MS).outcome is Outcome.ADMITTED


def test_queue_that_does_not_drain_at_all_keeps_everybody_to_the_deadline() -> None:
    """Also when it stands and knows how long requests take: a stall may end at any time."""
    q, now_ns = draining()
    q.queue.serviced(10 * MS)
    q.queue.late(now_ns + 2000 * MS)

    assert len(q.queue) == 450
    assert q.queue.late(TIMEOUT - 1) == []
    assert len(q.queue.late(TIMEOUT)) == 450
