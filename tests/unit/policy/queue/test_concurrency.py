"""A limit that finds the knee of a server, and one that is given."""

from __future__ import annotations

import math

import pytest

from tests.unit.policy.queue.model_server import ModelServer
from velox.policy.queue.concurrency import AdaptiveLimit, FixedLimit, Refusals, Unlimited

MOST = 2000


def adaptive(n_workers: int) -> list[AdaptiveLimit]:
    return [AdaptiveLimit(MOST) for _ in range(n_workers)]


def settled(server: ModelServer) -> float:
    """Let a server run until the limits should have found its knee; return how long a look at it should last."""
    server.play(60 * server.peak_s)
    return 300 * server.peak_s


# -- fixed ------------------------------------------------------------------------------------------------------


def test_fixed_limit_has_room_for_so_many() -> None:
    """Tunnels count, and an end makes room."""
    limit = FixedLimit(2)
    limit.begin(0.0)
    assert limit.free_slots == 1
    limit.begin(0.0, is_tunnel=True)
    assert (limit.free_slots, limit.in_flight, limit.n_begun) == (0, 2, 2)

    limit.ended(0.0, 1.0, replied=True, is_tunnel=True)

    assert limit.free_slots == 1
    assert repr(limit) == "<FixedLimit 1 of 2>"


def test_no_limit_always_has_room() -> None:
    """It says 0, which is what the metrics show."""
    limit = Unlimited()
    for _ in range(10_000):
        limit.begin(0.0)

    assert limit.free_slots > 10_000 and limit.limit == 0


# -- adaptive: the knee -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "n_workers"), [(16, 1), (32, 1), (32, 2), (32, 4), (200, 1), (200, 4)])
def test_limit_finds_the_knee_and_stays(capacity: int, n_workers: int) -> None:
    """Within 30 % of it nine times of ten (a probe is at half), at 95 % of the peak, and first tokens within twice."""
    server = ModelServer(adaptive(n_workers), capacity)

    seen = server.play(settled(server))

    assert capacity * 0.7 <= seen.limit(0.1) <= seen.limit(0.98) <= capacity * 1.3
    assert seen.rate >= 0.95 * server.peak
    assert seen.median_ttft_s <= 2 * server.prompt_s


@pytest.mark.parametrize(("capacity", "n_workers"), [(4, 1), (8, 1), (8, 2)])
def test_few_places_are_found_less_sharply(capacity: int, n_workers: int) -> None:
    """Rounds are long and medians of eight are coarse: within one and 40 %, at 85 % of the peak."""
    server = ModelServer(adaptive(n_workers), capacity)

    seen = server.play(settled(server))

    assert capacity * 0.6 - 1 <= seen.limit(0.1) <= seen.limit(0.98) <= capacity * 1.4 + 1
    assert seen.rate >= 0.85 * server.peak
    assert seen.median_ttft_s <= 2 * server.prompt_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_limit_finds_the_knee_though_prompts_differ_much_in_length(seed: int) -> None:
    """One in six is three times as long as the median: a slow first token is mostly a long prompt."""
    server = ModelServer(adaptive(2), 32, prompt_sigma=1.0, seed=seed)

    seen = server.play(settled(server))

    assert 32 * 0.7 <= seen.limit(0.15) <= seen.limit(0.98) <= 32 * 1.3
    assert seen.rate >= 0.9 * server.peak


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2])
def test_server_that_batches_without_end_is_kept_near_its_knee(n_workers: int) -> None:
    """It has no line that could be seen; its first tokens come slower by the part that is too much."""
    server = ModelServer(adaptive(n_workers), 32, shares=True)

    seen = server.play(settled(server))

    assert 32 * 0.9 <= seen.limit(0.5) <= 32 * 1.6
    assert seen.rate >= 0.95 * server.peak
    assert seen.median_ttft_s <= 2 * server.prompt_s


def test_replies_that_are_not_streamed_tell_by_their_whole_time() -> None:
    """It differs with the length of the answer, so the knee is found less sharply."""
    server = ModelServer(adaptive(1), 32, is_streamed=False)

    seen = server.play(settled(server))

    assert 32 * 0.7 <= seen.limit(0.5) <= 32 * 1.6
    assert seen.rate >= 0.85 * server.peak


@pytest.mark.slow
def test_workers_share_fairly_however_they_began() -> None:
    """One that comes later, as after a restart, gets its part; over a long time neither has twice the other's."""
    limits = [AdaptiveLimit(MOST), AdaptiveLimit(1)]
    server = ModelServer(limits, 32)
    server.play(100 * server.peak_s)
    limits[1] = AdaptiveLimit(MOST)

    server.play(100 * server.peak_s)
    seen = server.play(300 * server.peak_s)

    assert max(seen.shares) <= 2 * min(seen.shares)
    assert seen.rate >= 0.95 * server.peak


def test_refusals_hold_the_limit_below_where_they_begin() -> None:
    """A server that says 429 from 20 on, below its knee: few are refused, and most of the 20 places are used."""
    server = ModelServer(adaptive(2), 64, refuses_from=20)

    seen = server.play(settled(server))

    assert 20 * 0.7 <= seen.limit(0.1) <= seen.limit(0.98) <= 20 * 1.3
    assert seen.rate >= 0.9 * server.peak * 20 / 64
    assert seen.n_refused <= 0.35 * seen.rate * 300 * server.peak_s


@pytest.mark.slow
def test_refusals_are_followed_down_far_below_the_knee() -> None:
    """The server takes 10 in place of 60: its good replies in between say that it is the number."""
    server = ModelServer(adaptive(1), 64, refuses_from=60)
    server.play(60 * server.peak_s)
    server.refuses_from = 10
    server.play(5 * server.peak_s)

    seen = server.play(60 * server.peak_s)

    assert 10 * 0.5 <= seen.limit(0.1) <= seen.limit(0.98) <= 10 * 1.3
    assert seen.n_refused <= 0.5 * seen.rate * 60 * server.peak_s


@pytest.mark.parametrize(("part", "least"), [(0.05, 0.9), (0.1, 0.8), (0.25, 0.35)])
def test_refusals_by_chance_leave_most_of_the_limit(part: float, least: float) -> None:
    """A balancer refuses at once what it would send to a dead server: the others answer as before."""
    server = ModelServer(adaptive(2), 64)
    server.play(100 * server.peak_s)
    server.refuses_part = part

    server.play(100 * server.peak_s)
    assert server.play(150 * server.peak_s).rate >= least * server.peak

    server.refuses_part = 0.0
    server.play(30 * server.peak_s)
    assert server.play(60 * server.peak_s).rate >= 0.85 * server.peak


@pytest.mark.parametrize(("part", "least"), [(0.05, 0.9), (0.1, 0.85), (0.25, 0.25)])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_limit_that_grows_comes_to_the_knee_though_some_are_refused_by_chance(
    part: float, least: float, n_workers: int
) -> None:
    """The first refusal comes long before the knee: it is no reason to stop there."""
    server = ModelServer(adaptive(n_workers), 64, refuses_part=part)
    server.play(150 * server.peak_s)

    assert server.play(150 * server.peak_s).rate >= least * server.peak


@pytest.mark.parametrize("n_workers", [1, 2])
def test_number_is_found_by_refusals_though_others_came_by_chance_before(n_workers: int) -> None:
    """A dead server behind a balancer is gone, and those that are left take 10."""
    server = ModelServer(adaptive(n_workers), 64, refuses_part=0.05)
    server.play(150 * server.peak_s)
    server.refuses_part, server.refuses_from = 0.0, 10
    server.play(60 * server.peak_s)

    seen = server.play(100 * server.peak_s)

    assert seen.limit(0.98) <= 13
    assert seen.n_refused <= 0.6 * seen.rate * 100 * server.peak_s


def test_outage_with_fast_refusals_leaves_half_the_limit() -> None:
    """A restart that answers 503 at once to whatever comes, for two answers' time: a minute later all is as before."""
    server = ModelServer(adaptive(1), 64)
    server.play(60 * server.peak_s)
    before = server.limits[0].limit
    server.refuses_from = 0
    server.play(2 * server.peak_s)
    assert server.limits[0].limit >= before // 2
    server.refuses_from = None

    assert server.play(30).rate >= 0.6 * server.peak
    assert server.play(60).rate >= 0.9 * server.peak


# -- adaptive: what changes -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(32, 64), (64, 32), (64, 12)])
def test_capacity_that_changes_is_followed(before: int, after: int) -> None:
    """A second replica of the server, or the loss of one."""
    server = ModelServer(adaptive(2), before)
    server.play(settled(server) / 5)
    server.capacity = after

    server.play(150 * server.peak_s)
    seen = server.play(200 * server.peak_s)

    assert after * 0.6 <= seen.limit(0.1) <= seen.limit(0.9) <= after * 1.3 + 2
    assert seen.rate >= 0.93 * server.peak


@pytest.mark.slow
def test_server_that_is_slower_for_good_keeps_its_limit() -> None:
    """First tokens take three times as long, at the same knee: the base is learned anew, and the limit comes back."""
    server = ModelServer(adaptive(1), 32)
    server.play(settled(server) / 5)
    server.prompt_s *= 3

    server.play(200 * server.peak_s)
    seen = server.play(200 * server.peak_s)

    assert 32 * 0.7 <= seen.limit(0.1) <= seen.limit(0.98) <= 32 * 1.3
    assert seen.rate >= 0.93 * server.peak


def test_limit_that_is_not_used_does_not_grow() -> None:
    """Three requests at a time say nothing of what forty would do."""
    server = ModelServer(adaptive(1), 32, offered=3)

    seen = server.play(300 * server.peak_s)

    assert seen.limits[-1] <= 8


def test_limit_grows_no_further_than_the_worker_could_use() -> None:
    """VELOX_MAX_INFLIGHT."""
    server = ModelServer([AdaptiveLimit(10)], 32)

    seen = server.play(200 * server.peak_s)

    assert seen.limits[-1] == 10


# -- adaptive: single steps -------------------------------------------------------------------------------------


def first_round(limit: AdaptiveLimit, first_byte_s: float, now_s: float) -> bool:
    """Begin as many as may, and let them all reply; return whether there is more room then."""
    n = limit.free_slots
    for _ in range(n):
        limit.begin(now_s)
    grew = [limit.replied(now_s, first_byte_s, now_s + first_byte_s, streamed=True) for _ in range(n)]
    for _ in range(n):
        limit.ended(now_s, now_s + 1.0, replied=True)
    return any(grew)


@pytest.mark.parametrize("offsets", [(0, -1, -1, -1), (0, -1, -1, 0), (0, 1, 1, 0), (1, -1, 0, 2, 1, -2)])
def test_round_ends_though_some_were_chosen_before_it(offsets: tuple[int, ...]) -> None:
    """They begin in another order than they were chosen in: each that is counted is one whose reply counts."""
    limit = AdaptiveLimit(MOST)
    chosen = [100.0 + offset / 1000 for offset in offsets]
    for began_s in chosen:
        limit.begin(began_s)
    for began_s in chosen:
        limit.replied(began_s, 0.1, 100.2, streamed=True)
        limit.ended(began_s, 100.2, replied=True)

    for now_s in (102.0, 104.0):
        first_round(limit, 0.1, now_s)

    assert limit.limit > 4


def test_start_doubles_until_the_first_sign() -> None:
    """4, 8, 16; the replies to 16 come late: 8."""
    limit = AdaptiveLimit(MOST)

    assert [(first_round(limit, 0.1, now_s), limit.limit) for now_s in (0.0, 2.0)] == [(True, 8), (True, 16)]
    assert not first_round(limit, 0.5, 4.0)
    assert limit.limit == 8


def test_refusals_of_one_round_trip_are_one_sign() -> None:
    """Eight were sent before the first 429 came; all eight mean the same."""
    limit = AdaptiveLimit(MOST)
    for now_s in (0.0, 2.0, 4.0):
        first_round(limit, 0.1, now_s)
    assert limit.limit == 32
    for _ in range(32):
        limit.begin(6.0)

    for _ in range(8):
        limit.refused(6.0, 6.01)
        limit.ended(6.0, 6.01, replied=False)

    assert limit.limit == 29  # 32 less 7 %


def refuse_all(limit: AdaptiveLimit, now_s: float, n: int) -> None:
    """Refuse so many, one after the other."""
    for at in range(n):
        began_s = now_s + at / 100
        limit.begin(began_s)
        limit.refused(began_s, began_s + 0.005)
        limit.ended(began_s, began_s + 0.005, replied=False)


def test_refusals_with_nothing_good_in_between_take_half_at_most() -> None:
    """Where nothing is taken it is not the number; one good reply later it may be."""
    limit = AdaptiveLimit(MOST)
    for now_s in (0.0, 2.0, 4.0):
        first_round(limit, 0.1, now_s)
    assert limit.limit == 32

    refuse_all(limit, 6.0, 200)
    assert limit.limit == 16

    limit.begin(10.0)
    limit.replied(10.0, 0.1, 10.1, streamed=True)
    limit.ended(10.0, 10.2, replied=True)
    refuse_all(limit, 11.0, 200)
    assert limit.limit == 8


def test_refusals_among_good_replies_tell_how_many_are_taken() -> None:
    """Of 40 that run, each tenth is refused at once: 36 of them are not."""
    refusals = Refusals()

    assert refusals.least(40.0, 40, 1000, 0.0) == 0.0  # of one, nothing is known
    for at in range(1, 20):
        least = refusals.least(37.0, 37, 9, float(at))
    assert least == pytest.approx(36.0, abs=0.3)


def test_refusals_in_a_row_or_after_a_calm_say_nothing_of_what_was_taken_before() -> None:
    refusals = Refusals()
    for at in range(20):
        refusals.least(40.0, 40, 9, float(at))

    in_a_row = [refusals.least(37.0, 37, 0, 20.0) for _ in range(3)]
    assert in_a_row[0] > 30.0 and in_a_row[2] == 0.0

    assert refusals.least(20.0, 12, 80, 30.0) <= 12.0
    assert refusals.least(12.0, 10, 80, 130.0) == 0.0


def test_refusals_by_chance_say_nothing_until_they_are_clearly_more() -> None:
    refusals = Refusals()
    for at in range(20):
        refusals.least(40.0, 40, 9, float(at))
    assert refusals.note_chance() and not refusals.note_chance()

    assert [refusals.least(50.0, 50, 9, at) for at in (20.0, 21.0)] == [math.inf, math.inf]
    later = [refusals.least(60.0, 60, 2, 22.0 + at) for at in range(80)]

    assert later[0] == math.inf
    assert later[-1] == pytest.approx(60.0 * 2 / 3, abs=2.0)
    refusals.note_chance()
    assert [refusals.least(60.0, 60, 0, 110.0) for _ in range(4)][-1] == 0.0, "in a row"


def test_reply_to_what_was_sent_before_is_no_good_sign() -> None:
    """What had begun before all was refused is answered yet, as streams are while a server goes down."""
    limit = AdaptiveLimit(MOST)
    for now_s in (0.0, 2.0, 4.0):
        first_round(limit, 0.1, now_s)
    for _ in range(16):
        limit.begin(5.9)
    for n in range(16):
        refuse_all(limit, 6.0 + n, 20)
        limit.replied(5.9, n, 6.5 + n, streamed=True)

    assert limit.limit == 16


def test_refusals_before_anything_is_answered_say_nothing() -> None:
    """A server that loads its model yet: it begins as any other once it is there."""
    limit = AdaptiveLimit(MOST)

    refuse_all(limit, 0.0, 200)

    assert limit.limit == 4
    assert first_round(limit, 0.1, 10.0) and limit.limit == 8


def test_limit_is_never_below_one() -> None:
    """Whatever the server says: else nobody would ever find out that it is back."""
    limit = AdaptiveLimit(MOST)
    first_round(limit, 0.1, 0.0)
    for n in range(10, 200):
        limit.begin(float(n))
        limit.replied(float(n), 0.1, n + 0.1, streamed=True)
        limit.ended(float(n), n + 0.2, replied=True)
        refuse_all(limit, n + 0.5, 20)

    assert (limit.limit, limit.free_slots) == (1, 1)


def test_tunnels_do_not_count() -> None:
    """They last, and their delay says nothing; n_begun is for whoever has to know who is on the way."""
    limit = AdaptiveLimit(MOST)
    limit.begin(0.0, is_tunnel=True)
    limit.begin(0.0)

    assert (limit.in_flight, limit.n_begun, limit.free_slots) == (1, 2, 3)

    limit.ended(0.0, 1.0, replied=False, is_tunnel=True)
    limit.ended(0.0, 1.0, replied=False)

    assert (limit.in_flight, limit.n_begun, limit.free_slots) == (0, 0, 4)
    assert "0 of 4" in repr(limit)


def test_refusal_in_a_probe_ends_it() -> None:
    """Half the limit was to be for a moment: a 429 takes its part of the whole one."""
    limit = AdaptiveLimit(MOST)
    for now_s in (0.0, 2.0, 4.0):
        first_round(limit, 0.1, now_s)
    first_round(limit, 0.5, 6.0)
    assert limit.limit == 16
    first_round(limit, 0.1, 8.0)
    before = limit.limit
    first_round(limit, 0.1, 70.0)
    assert limit.limit == before // 2, "the clock has passed 64 s"

    limit.begin(72.0)
    limit.refused(72.0, 72.1)

    assert before * 0.9 <= limit.limit < before


def test_wait_of_milliseconds_is_no_sign() -> None:
    """An upstream that replies in one may take four: that is the clock, or nothing that anybody minds."""
    limit = AdaptiveLimit(MOST)

    assert [first_round(limit, first_s, now_s) for now_s, first_s in ((0.0, 0.001), (2.0, 0.004))] == [True, True]
