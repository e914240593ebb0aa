"""Which limits count a request, that all are taken or none, and that each end is settled once and exactly."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from tests.unit.gateway.limits.local_quotas import LocalTable
from velox.errors import Reason, VeloxError
from velox.gateway.limits.limiter import Limiter, QuotaTable
from velox.gateway.limits.metering import NOTHING_USED, Usage
from velox.gateway.limits.reservation import LONGEST_DEBT_NS, NOT_RESERVED, Reservation, Spent
from velox.gateway.reply.headers import duration_text
from velox.outcomes import Decision, Unit
from velox.policy.limits.estimate import NO_TOKENS, Estimate, Estimator
from velox.policy.limits.limit_rules import LimitRule
from velox.protocol.http1.write import field_lines
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable as SharedTable
from velox.types import ANYONE, NO_RATES, BodyFields, Caller, Endpoint, KeyTerms, Rates, Scope

NOW = time.monotonic_ns()  # a reservation reads this clock when it is settled
MINUTE_NS = 60 * 10**9
ALICE = Caller("alice", id=b"a")
BOB = Caller("bob", id=b"b")


def of(caller: Caller, id_: bytes = b"", **terms: Any) -> Caller:
    """Return a caller like this one, with other terms."""
    return replace(caller, id=id_ or caller.id, terms=structs.replace(caller.terms, **terms))


def tokens_of(spent: Spent | None) -> tuple[int, int, int]:
    assert spent is not None
    return spent.estimated, spent.input, spent.output


def rule(scope: Scope = Scope.GATEWAY, name: str = "limits[0]", **more: object) -> LimitRule:
    """Return a rule; rates are given by their names."""
    rates = {key: more.pop(key) for key in tuple(more) if key in Rates.__dataclass_fields__}
    if "rpm" in rates:
        rates.setdefault("burst", 1)
    if "tpm" in rates:
        rates.setdefault("tpm_burst", rates["tpm"])
    return LimitRule(name, scope, Rates(**rates), **more)  # type: ignore[arg-type]


class House:
    """A limiter with a table of its own."""

    def __init__(self, *rules: LimitRule, max_wait_s: float = 0.0) -> None:
        self.table = LocalTable()
        self.said: Counter[tuple[Scope, Unit, Decision]] = Counter()
        self.limiter = Limiter(rules, self.table, max_wait_s, self._counter)

    def _counter(self, *decision: *tuple[Scope, Unit, Decision]) -> Callable[[], object]:
        return lambda: self.said.update((decision,))

    def admit(
        self,
        caller: Caller = ALICE,
        model: str | None = "m",
        tokens: Estimate = NO_TOKENS,
        *,
        now_ns: int = NOW,
    ) -> Reservation:
        """Let one request in."""
        taken = self.limiter.admit(self.limiter.limits(caller, model), tokens, now_ns)
        assert isinstance(taken, Reservation), "no quota here has anybody to ask"
        return taken

    def refuses(
        self, caller: Caller = ALICE, model: str | None = "m", tokens: Estimate = NO_TOKENS, *, now_ns: int = NOW
    ) -> VeloxError:
        """Ask for what must be refused; return what is said."""
        before = self.state()
        with pytest.raises(VeloxError) as caught:
            self.admit(caller, model, tokens, now_ns=now_ns)
        made_now = {name: 0 for name in self.state() if name not in before}
        assert self.state() == before | made_now, "a refusal takes nothing from any"
        assert caught.value.reason is Reason.RATE_LIMITED and caught.value.status == 429
        return caught.value

    def state(self) -> dict[str, int]:
        """Return what is taken of everything: of quotas, the time until they are full again."""
        quotas = {name: quota.full_in_ns(NOW) for name, quota in self.table.quotas.items()}
        return quotas | {name: slots.n for name, slots in self.table.slots_of.items()}

    def remaining(self, now_ns: int = NOW) -> dict[str, int]:
        """Return what is left of each quota."""
        return {name: quota.remaining(now_ns) for name, quota in self.table.quotas.items()}


# -- which limits count a request ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "alone"),
    [
        (Scope.GATEWAY, ("a m", "a n", "b m", "b n")),
        (Scope.KEY, ("a m", "a n")),
        (Scope.MODEL, ("a m", "b m")),
        (Scope.KEY_MODEL, ("a m",)),
    ],
)
def test_limit_counts_together_what_its_scope_says(scope: Scope, alone: tuple[str, ...]) -> None:
    """Who has used up a quota is refused with all that share it; others are not."""
    for who, model in product((ALICE, BOB), ("m", "n")):
        house = House(rule(scope, rpm=1))
        house.admit(ALICE, "m")
        if f"{who.name[0]} {model}" in alone:
            house.refuses(who, model)
        else:
            house.admit(who, model)


def test_keys_of_a_team_or_user_share_their_limits_and_others_have_none() -> None:
    """By a rule for each of them, and by the rates that a team or user has itself."""
    ann, ben, cat = (of(ALICE, name, team=team) for name, team in ((b"1", "red"), (b"2", "red"), (b"3", "")))
    house = House(rule(Scope.TEAM, rpm=1))
    house.admit(ann)
    house.refuses(ben)
    house.admit(of(ben, team="blue"))
    for _ in range(3):
        house.admit(cat)

    own = House()
    users = [of(ALICE, name, user="u1", user_rates=Rates(rpm=60, burst=1)) for name in (b"1", b"2")]
    own.admit(users[0])
    refusal = own.refuses(users[1])
    assert "this user's request limit is reached (user.rpm)" in refusal.message


def test_limit_for_some_keys_and_models_counts_no_others() -> None:
    """`keys` and `models` say whose requests count; a model that can't be read matches no pattern."""
    house = House(rule(Scope.KEY, keys=("alice",), models=("gpt-4*", "o1"), rpm=1))

    counted = [(who, model) for who, model in product((ALICE, BOB), ("gpt-4o", "o1", "o1-mini", None))]
    found = [(who, model) for who, model in counted if house.limiter.limits(who, model).quotas]

    assert found == [(ALICE, "gpt-4o"), (ALICE, "o1")]


def test_limit_of_a_key_stands_over_the_one_for_every_key() -> None:
    """The gateway's rule for keys has the rates of the key itself, where it has some."""
    house = House(rule(Scope.KEY, "VELOX_KEY", rpm=60, of_key=True))
    rich = Caller("rich", terms=KeyTerms(rates=Rates(rpm=120, burst=7, concurrency=2)), id=b"r")

    house.admit(rich)
    house.admit(BOB)

    assert house.remaining() == {"rpm/VELOX_KEY/r/": 6, "rpm/VELOX_KEY/b/": 0}
    assert house.table.slots_of["concurrency/VELOX_KEY/r/"].limit == 2


def test_key_whose_rate_changes_keeps_what_it_has_used() -> None:
    """After a change of the file of keys the same caller has another object: its new rates count, on the same row."""
    house = House(rule(Scope.KEY, "VELOX_KEY", of_key=True))
    before = Caller("k", terms=KeyTerms(rates=Rates(rpm=1, burst=1)), id=b"k")
    after = Caller("k", terms=KeyTerms(rates=Rates(rpm=600, burst=20)), id=b"k")

    house.admit(before)
    assert house.limiter.limits(before, None) is house.limiter.limits(before, None)
    assert house.limiter.limits(after, None).quotas[0].quota.rate.burst == 20
    assert list(house.table.quotas) == ["rpm/VELOX_KEY/k/"]


@pytest.mark.more
def test_memo_of_limits_is_bounded_whatever_models_clients_make_up() -> None:
    """Each model of a client's has a set of limits, and a quota in it: only the last ones are known."""
    house = House(rule(Scope.MODEL, rpm=600))

    for n in range(10_000):
        house.limiter.limits(ALICE, f"model-{n}")

    most = 2 * 4096  # a memo keeps twice its limit
    assert len(house.limiter._sets) <= most and len(house.limiter._quotas) <= most


def test_model_with_a_lone_surrogate_has_a_quota() -> None:
    """JSON lets one through, and UTF-8 can't say it."""
    limiter = Limiter([rule(Scope.MODEL, rpm=60)], SharedTable(QuotaMemory(64, 1), 0), 0.0, lambda *_: lambda: None)
    assert limiter.limits(ALICE, "\ud800").quotas


# -- all or none --------------------------------------------------------------------------------------

FOUR = (
    rule(Scope.GATEWAY, "limits[0]", rpm=60, burst=9, tpm=9000),
    rule(Scope.KEY, "limits[1]", rpm=60, burst=8, concurrency=8),
    rule(Scope.MODEL, "limits[2]", tpm=8000, concurrency=9),
    rule(Scope.KEY_MODEL, "limits[3]", rpm=60, burst=7, tpm=7000, concurrency=7),
)
NAMES = (
    "rpm/limits[0]//",
    "tpm/limits[0]//",
    "rpm/limits[1]/a/",
    "tpm/limits[2]//m",
    "rpm/limits[3]/a/m",
    "tpm/limits[3]/a/m",
)


def fill(house: House, name: str) -> None:
    """Use up one quota."""
    house.limiter.limits(ALICE, "m")
    quota = house.table.quotas[name]
    assert quota.take(quota.rate.burst, NOW) == 0


def test_request_takes_of_all_that_count_it() -> None:
    """One request of each, its tokens of each, a slot of each."""
    house = House(*FOUR)

    house.admit(tokens=Estimate(100, 400))

    assert house.remaining() == dict(zip(NAMES, (8, 8500, 7, 7500, 6, 6500), strict=True))
    assert [slots.n for slots in house.table.slots_of.values()] == [1, 1, 1]
    assert set(house.said.values()) == {1} and {said[2] for said in house.said} == {Decision.GRANTED}
    assert len(house.said) == 3 + 3 + 3


def test_other_rules_hold_at_once_and_what_was_taken_is_given_back() -> None:
    """A request that began under the rules before ends under them; a set that was made for those is none any more."""
    house = House(rule(rpm=60), rule(name="limits[1]", concurrency=1))
    running = house.admit()
    house.refuses()

    house.limiter.replace([])
    house.admit()
    house.limiter.replace([rule(Scope.MODEL, "limits[2]", rpm=60)])
    house.admit(model="m")

    assert "(limits[2].rpm)" in house.refuses(model="m").message
    house.admit(model="n")
    (slots,) = house.table.slots_of.values()
    assert slots.n == 1
    running.settle(None, sent=True)
    assert slots.n == 0


def test_limit_that_is_raised_passes_requests_at_its_new_rate() -> None:
    """Whatever was used of the old one; also when it was raised before, and lowered again."""
    limiter = Limiter([], SharedTable(QuotaMemory(64, 1), 0), 0.0, lambda *_: int)
    for now_ns in (NOW, NOW + 10 * MINUTE_NS):
        limiter.replace([rule(rpm=6, burst=6)])
        for _ in range(6):
            limiter.admit(limiter.limits(ALICE, "m"), NO_TOKENS, now_ns)

        limiter.replace([rule(rpm=600, burst=100)])

        with pytest.raises(VeloxError, match="a request will pass in 100 ms"):
            limiter.admit(limiter.limits(ALICE, "m"), NO_TOKENS, now_ns)
        limiter.admit(limiter.limits(ALICE, "m"), NO_TOKENS, now_ns + MINUTE_NS // 600)


@pytest.mark.parametrize("name", NAMES)
def test_refusal_by_any_of_them_takes_nothing_from_any(name: str) -> None:
    """Also when the last one that is looked at is the one without room; only that one is counted as a refusal."""
    house = House(*FOUR)
    fill(house, name)

    error = house.refuses(tokens=Estimate(100, 400))

    rates, rule_name, *_ = name.split("/")
    assert f"({rule_name}.{rates})" in error.message
    assert [said[2] for said in house.said] == [Decision.REFUSED]


@pytest.mark.parametrize("name", ["concurrency/limits[1]/a/", "concurrency/limits[2]//m", "concurrency/limits[3]/a/m"])
@pytest.mark.parametrize("race", [False, True])
def test_refusal_for_want_of_a_slot_takes_nothing_from_any(name: str, race: bool) -> None:
    """Nobody knows when one comes free, so the client is told a second. race: it was there at the first look."""
    house = House(*FOUR)
    house.limiter.limits(ALICE, "m")
    slots = house.table.slots_of[name]
    if race:
        slots.races = 1
    else:
        slots.n = slots.limit

    error = house.refuses(tokens=Estimate(100, 400))

    assert f"limit of {slots.limit} requests at a time" in error.message and name.split("/")[1] in error.message
    assert error.retry_after_s == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_race_that_is_lost_gives_back_what_was_taken(name: str) -> None:
    """Another worker took the last permit between the look and the taking."""
    house = House(*FOUR)
    house.limiter.limits(ALICE, "m")
    house.table.quotas[name].races = 1

    error = house.refuses(tokens=Estimate(100, 400))

    assert error.retry_after_s == house.table.quotas[name].rate.interval_ns / 1e9
    assert house.remaining() == {name: quota.rate.burst for name, quota in house.table.quotas.items()}


def test_request_without_tokens_is_not_held_up_by_quotas_for_them() -> None:
    """A list of models costs none: it passes while the caller is in debt."""
    house = House(rule(Scope.KEY, tpm=1000), rule(Scope.KEY, "limits[1]", rpm=60, burst=5))
    house.limiter.limits(ALICE, "m")
    house.table.quotas["tpm/limits[0]/a/"].charge(10**6)

    assert house.admit().wait_ns == 0


def test_crash_while_taking_gives_back_what_was_taken() -> None:
    """A bug in the last of them leaves nothing taken of the others."""
    house = House(*FOUR)
    house.limiter.limits(ALICE, "m")
    before = house.state()
    house.table.quotas[NAMES[-1]].is_broken = True

    with pytest.raises(ZeroDivisionError):
        house.admit(tokens=Estimate(100, 400))

    assert house.state() == before


# -- what a refusal says ------------------------------------------------------------------------------


def test_wait_is_the_longest_of_all_that_must_be_waited_for() -> None:
    """And each of them notes what is taken ahead of its time, until it is due."""
    house = House(
        rule(rpm=60),
        rule(Scope.KEY, "limits[1]", rpm=30),
        rule(Scope.MODEL, "limits[2]", rpm=600, burst=9),
        max_wait_s=5,
    )
    house.admit().used_wait()

    reservation = house.admit()

    assert reservation.wait_ns == 2 * 10**9
    waiting = {name: quota.waiting for name, quota in house.table.quotas.items()}
    assert waiting == {"rpm/limits[0]//": 1, "rpm/limits[1]/a/": 1, "rpm/limits[2]//m": 0}
    reservation.used_wait()
    assert {quota.waiting for quota in house.table.quotas.values()} == {0}
    assert house.said[Scope.KEY, Unit.REQUESTS, Decision.WAITED] == 1
    assert house.said[Scope.MODEL, Unit.REQUESTS, Decision.WAITED] == 0


@pytest.mark.parametrize("max_wait_s", [0.0, 0.5])
def test_refused_client_that_sleeps_as_told_passes_at_once(max_wait_s: float) -> None:
    """The time is when all have room: not only the one that refused, but those too that would have made it wait."""
    house = House(*FOUR, rule(Scope.KEY, "limits[4]", rpm=100), max_wait_s=max_wait_s)
    tokens = Estimate(1000, 2500)
    house.admit(tokens=tokens)
    house.admit(tokens=Estimate(100, 2400), now_ns=NOW + 600_000_000)

    error = house.refuses(tokens=tokens, now_ns=NOW + 600_000_001)
    assert error.retry_after_s is not None
    back_ns = NOW + 600_000_001 + round(error.retry_after_s * 1e9)

    if not max_wait_s:
        house.refuses(tokens=tokens, now_ns=back_ns - 1_000_000)
    assert house.admit(tokens=tokens, now_ns=back_ns).wait_ns == 0


def test_refused_of_one_batch_are_told_different_times() -> None:
    """As many as come back in time pass; the next batch begins anew."""
    house = House(rule(rpm=600))
    house.admit()

    told = [house.refuses().retry_after_s for _ in range(3)]

    assert told == [0.1, 0.2, pytest.approx(0.3)]
    assert house.refuses(now_ns=NOW + 1000).retry_after_s == pytest.approx(0.1 - 1e-6)


def test_request_larger_than_a_full_quota_is_told_that_it_never_passes() -> None:
    """No Retry-After, no retry of the SDK's; what it may need and what there is. What it names itself counts."""
    house = House(rule(Scope.KEY, tpm=1000), rule(rpm=1, name="limits[1]"))

    error = house.refuses(tokens=Estimate(1, 1000, named=1000))

    assert (error.retry_after_s, error.should_retry) == (None, False)
    assert "may need 1001 tokens" in error.message and "holds 1000 (limits[0].tpm)" in error.message
    assert house.admit(tokens=Estimate(100, 900, named=900)).wait_ns == 0


@pytest.mark.parametrize(
    "estimate", [Estimate(5, 1024), Estimate(101, 900, named=900), Estimate(10**6, 0), Estimate(2000, 999, named=999)]
)
@pytest.mark.parametrize("others", [(), (rule(rpm=600, name="limits[1]"),)])
def test_estimate_above_a_full_quota_takes_all_of_it_and_is_settled(
    estimate: Estimate, others: tuple[LimitRule, ...]
) -> None:
    """`tpm: 1000` and no `max_tokens`: 1,024 are assumed, which was a refusal for ever."""
    house = House(rule(Scope.KEY, tpm=1000), *others)
    tokens = "tpm/limits[0]/a/"

    reservation = house.admit(tokens=estimate)
    assert house.remaining()[tokens] == 0
    assert house.refuses(tokens=estimate).should_retry is not False, "the next one waits for its turn"
    reservation.settle(Usage(5, 7, True), sent=True)

    assert house.remaining()[tokens] == 988


@pytest.mark.parametrize(
    ("given", "made", "left"), [(None, None, 0), (400, None, 0), (None, 10, 0), (1200, None, -200)]
)
def test_reply_that_does_not_tell_its_usage_makes_no_debt_of_a_guess(
    given: int | None, made: int | None, left: int
) -> None:
    """What was taken stays taken; only what is known can be charged above it."""
    house = House(rule(Scope.KEY, tpm=1000))
    reservation = house.admit(tokens=Estimate(5000, 100_000))

    reservation.settle(Usage(given, made, True), sent=True)

    quota = house.table.quotas["tpm/limits[0]/a/"]
    assert (quota.tat - NOW) / quota.rate.interval_ns == pytest.approx(1000 - left)


@pytest.mark.parametrize(("n_events", "charged"), [(0, 2000), (1000, 3000), (1500, 3024), (20_000, 20_000)])
def test_stream_without_usage_is_charged_as_its_page_says(n_events: int, charged: int) -> None:
    """docs/tokens.md: the prompt's estimate and the events, within what was taken; or the events if they are more."""
    house = House(rule(Scope.KEY, tpm=100_000))
    reservation = house.admit(tokens=Estimate(2000, 1024))

    reservation.settle(Usage(None, n_events, False), sent=True)

    assert house.remaining()["tpm/limits[0]/a/"] == 100_000 - charged


def test_estimate_above_a_full_quota_goes_back_whole_when_the_request_was_never_sent() -> None:
    """What was taken goes back, and not what was estimated."""
    house = House(rule(Scope.KEY, tpm=1000), rule(tpm=5000, name="limits[1]"))

    house.admit(tokens=Estimate(100, 1024)).settle(None, sent=False)

    assert house.remaining() == {"tpm/limits[0]/a/": 1000, "tpm/limits[1]//": 5000}


def test_message_names_what_a_key_has_of_its_own_as_that() -> None:
    """The setting for all keys is not what would have to be changed; of a rate that the key has not, it is."""
    house = House(rule(Scope.KEY, "VELOX_KEY", rpm=60, concurrency=1, of_key=True))
    caller = of(ALICE, rates=Rates(rpm=30, burst=2))
    kept = house.admit(caller)

    assert "(VELOX_KEY_CONCURRENCY)" in house.refuses(caller).message
    kept.settle(None, sent=True)
    house.admit(caller).settle(None, sent=True)
    assert "(rpm of the key)" in house.refuses(caller).message
    # The same rate, after a reload that took it off the key and gave it to all.
    house.limiter.replace([rule(Scope.KEY, "VELOX_KEY", rpm=30, burst=2, of_key=True)])
    assert "(VELOX_KEY_RPM)" in house.refuses(of(ALICE, rates=NO_RATES)).message


def test_message_names_the_rule_and_whose_limit_it_is_never_the_key() -> None:
    """A key's name is for the operator."""
    whose_limits = ("the gateway's", "this key's", "this model's", "this key's", "this team's", "this user's")
    caller = of(ALICE, team="red", user="ann")
    for scope, whose in zip(Scope, whose_limits, strict=True):
        house = House(rule(scope, "VELOX_KEY", rpm=60))
        house.admit(caller)
        message = house.refuses(caller).message
        assert message.startswith(whose) and "(VELOX_KEY_RPM)" in message
        assert "1000 ms" in message and "alice" not in message


# -- how it is settled --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "made", "left"),
    [(90, 300, 610), (100, 400, 500), (200, 900, 0), (None, 50, 850), (90, None, 510), (None, None, 500), (0, 0, 1000)],
)
def test_reservation_is_settled_by_what_was_really_used(given: int | None, made: int | None, left: int) -> None:
    """More than estimated is charged, less goes back; what is not known stays as it was estimated."""
    house = House(rule(Scope.KEY, tpm=1000))
    reservation = house.admit(tokens=Estimate(100, 400))

    spent = reservation.settle(Usage(given, made, True), sent=True)

    wanted = (100 if given is None else given, 400 if made is None else made)
    assert tokens_of(spent) == (500, *wanted)
    assert house.remaining() == {"tpm/limits[0]/a/": left}


def test_usage_above_what_is_left_is_a_debt_that_time_pays() -> None:
    """2,100 of 1,000 tokens were used: the next ones wait until the debt is paid."""
    house = House(rule(Scope.KEY, tpm=1000))
    reservation = house.admit(tokens=Estimate(100, 0))
    reservation.settle(Usage(100, 2000, True), sent=True)

    assert house.refuses(tokens=Estimate(100, 0)).retry_after_s == pytest.approx(1.2 * 60, abs=1e-3)


def test_nonsense_of_an_upstream_locks_nobody_out_for_good() -> None:
    """However much it says was used, and how often: the bucket gives again after LONGEST_DEBT_NS."""
    house = House(rule(Scope.KEY, tpm=1000))
    reservations = [house.admit(tokens=Estimate(100, 0), now_ns=time.monotonic_ns()) for _ in range(3)]
    for reservation in reservations:
        reservation.settle(Usage(100, 10**9, True), sent=True)

    (quota,) = house.table.quotas.values()
    assert LONGEST_DEBT_NS < quota.full_in_ns(time.monotonic_ns()) <= LONGEST_DEBT_NS + MINUTE_NS


@pytest.mark.parametrize("waits", [False, True])
def test_request_that_never_went_out_gives_everything_back(waits: bool) -> None:
    """Permits, tokens, slots: as if it had not come. Also what was taken ahead of its time."""
    house = House(*FOUR, max_wait_s=3600)
    for name in NAMES if waits else ():
        fill(house, name)
    house.limiter.limits(ALICE, "m")
    before = house.state()

    reservation = house.admit(tokens=Estimate(100, 400))
    assert (reservation.wait_ns > 0) == waits
    reservation.settle(None, sent=False)

    assert house.state() == before
    assert house.remaining() == {name: 0 if waits else quota.rate.burst for name, quota in house.table.quotas.items()}
    assert {slots.n for slots in house.table.slots_of.values()} == {0}
    assert {quota.waiting for quota in house.table.quotas.values()} == {0}


def test_request_that_was_not_answered_costs_its_permit_and_no_tokens() -> None:
    """The upstream got it, and broke: not the client's to pay."""
    house = House(*FOUR)
    reservation = house.admit(tokens=Estimate(100, 400))

    assert tokens_of(reservation.settle(NOTHING_USED, sent=True)) == (500, 0, 0)

    assert house.remaining() == dict(zip(NAMES, (8, 9000, 7, 8000, 6, 7000), strict=True))
    assert {slots.n for slots in house.table.slots_of.values()} == {0}


def test_no_reservation_can_be_settled_by_all() -> None:
    """Exchanges that have taken nothing yet share it."""
    for _ in range(2):
        assert NOT_RESERVED.settle(None, sent=False) is None


# -- headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_taken", [0, 1, 99, 100])
@pytest.mark.parametrize("later_ns", [0, 1, 999_000_000, 1_000_000_000, 59_999_999_999, 61_000_000_001, 10**13])
def test_lines_of_one_quota_say_what_its_headers_do(n_taken: int, later_ns: int) -> None:
    """The usual caller has one limit; its lines are put together in a way of their own."""
    house = House(rule(Scope.KEY, rpm=6, burst=100))
    for _ in range(n_taken):
        house.admit()

    headers = house.limiter.limits(ALICE, "m").headers

    assert headers is not None
    assert headers.lines(NOW + later_ns) == field_lines(headers.headers(NOW + later_ns))


def test_headers_tell_of_the_tightest_quota_of_each_unit() -> None:
    """Its size, what is left, when it is whole again."""
    house = House(*FOUR)
    house.admit(tokens=Estimate(100, 400))

    headers = house.limiter.limits(ALICE, "m").headers
    assert headers is not None
    assert headers.lines(NOW) == field_lines(headers.headers(NOW))
    assert headers.headers(NOW) == [
        (b"x-ratelimit-limit-requests", b"7"),
        (b"x-ratelimit-remaining-requests", b"6"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"7000"),
        (b"x-ratelimit-remaining-tokens", b"6500"),
        (b"x-ratelimit-reset-tokens", b"4.286s"),
    ]
    assert {name for name, _ in headers.headers(NOW)} <= headers.dropped and b"set-cookie" in headers.dropped


def test_headers_of_a_unit_without_a_quota_are_left_to_the_upstream() -> None:
    """Requests are limited here and tokens there: the client is told of both."""
    house = House(rule(rpm=60))
    headers = house.limiter.limits(ALICE, "m").headers
    assert headers is not None and b"x-ratelimit-limit-tokens" not in headers.dropped
    assert House(rule(concurrency=3)).limiter.limits(ALICE, "m").headers is None


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (10**9 - 1, "1s"),
        (1_500_000_000, "1.5s"),
        (MINUTE_NS, "1m0s"),
        (90_001_000_001, "1m30.002s"),
    ],
)
def test_duration_is_written_as_openai_does(ns: int, text: str) -> None:
    """Rounded up: who waits so long has waited long enough."""
    assert duration_text(ns) == text.encode()


# -- estimates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "n_bytes", "peek", "wanted"),
    [
        (Endpoint.CHAT, 400, BodyFields(), (100, 1024)),
        (Endpoint.CHAT, 401, BodyFields(max_tokens=7), (101, 7)),
        (Endpoint.CHAT, 4, BodyFields(max_tokens=7, n=3), (1, 21)),
        (Endpoint.COMPLETIONS, 4, BodyFields(n=2), (1, 2048)),
        (Endpoint.COMPLETIONS, 4, BodyFields(n=2, n_prompts=3), (1, 6144)),
        (Endpoint.RESPONSES, 4, BodyFields(max_tokens=0), (1, 0)),
        (Endpoint.MESSAGES, 4, BodyFields(max_tokens=9), (1, 9)),
        (Endpoint.EMBEDDINGS, 40, BodyFields(max_tokens=9, n=2), (10, 0)),
        (Endpoint.MODERATIONS, 40, BodyFields(), (10, 0)),
        (Endpoint.AUDIO, 40, BodyFields(), (10, 0)),
        (Endpoint.CHAT, 4, BodyFields(max_tokens=10**400, n=128), (1, 2**40)),
    ],
)
def test_estimate_is_bytes_of_the_prompt_and_the_longest_answers(
    route: Endpoint, n_bytes: int, peek: BodyFields, wanted: tuple[int, int]
) -> None:
    """Prompt by its bytes, answer by max_tokens or the default, n of them; what has no answer of tokens costs none."""
    estimate = Estimator(4, 1024).estimate(route, n_bytes, peek)
    assert (estimate.prompt, estimate.answer) == wanted
    assert estimate.named == (0 if peek.max_tokens is None else estimate.answer), "what the request says, and no guess"


# -- the fake is like the real thing ------------------------------------------------------------------


@pytest.mark.parametrize("make", [LocalTable, lambda: SharedTable(QuotaMemory(64, 1), 0)])
def test_story_is_the_same_with_quotas_of_a_process_and_of_the_gateway(make: Callable[[], QuotaTable]) -> None:
    """Granted, waited, refused, settled: told by the headers and the times."""
    now_ns = time.monotonic_ns()  # the gateway's are for this clock
    limiter = Limiter(FOUR, make(), 0.5, lambda *_: lambda: None)
    limits = limiter.limits(ALICE, "m")
    told: list[object] = []
    reservations = []
    for n in range(14):
        try:
            taken = limiter.admit(limits, Estimate(100, 400), now_ns + n * 30_000_000)
            assert isinstance(taken, Reservation)
            reservations.append(taken)
            told.append(taken.wait_ns)
        except VeloxError as error:
            told.append((re.sub(r"\d+ ms", "", error.message), error.retry_after_s))
        if n % 5 == 4:
            reservations.pop().settle(NOTHING_USED, sent=n == 4)
        assert limits.headers is not None
        told.append(limits.headers.headers(now_ns + n * 30_000_000))
    assert _STORIES.setdefault("story", told) == told
    assert limiter.limits(ANYONE, "m") is not limits


_STORIES: dict[str, list[object]] = {}


def test_refused_message_counts_as_a_request_and_holds_no_place() -> None:
    """A message of a WebSocket that makes no request: nothing of it comes back, and it takes no tokens."""
    house = House(rule(rpm=60, burst=2, tpm=100, concurrency=1))
    for _ in range(2):
        house.limiter.count_refused(ALICE, NOW)
    with pytest.raises(VeloxError) as caught:
        house.limiter.count_refused(ALICE, NOW)
    assert caught.value.reason is Reason.RATE_LIMITED
    assert all(slots.n == 0 for slots in house.table.slots_of.values())
    assert sorted(house.remaining().values()) == [0, 100]
