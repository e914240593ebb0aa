"""What a request holds of its budgets, what it is refused for, and what it spent at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.limits.budgets import BudgetGate, Unread
from velox.gateway.limits.lease_wait import NotYet
from velox.gateway.limits.reservation import NOT_RESERVED, Reservation
from velox.gateway.reply.respond import error_reply
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule, BudgetScope
from velox.policy.limits.estimate import NO_TOKENS, Estimate, Estimator
from velox.policy.limits.output_guess import OutputGuess
from velox.prices.price import Price, compiled
from velox.shm.budget_table import BudgetMemory, BudgetTable, rule_digest
from velox.types import BodyFields, Budget, Caller, Dialect, Endpoint, KeyTerms

NOON = 1_795_435_200.0
ALICE, BOB = Caller("alice", id=b"a" * 8), Caller("bob", id=b"b" * 8)
# Pico-dollars of a token; twice as much for prompts of more than 1,000.
TIERED = Price(compiled({"input_mtok": [2_000_000, [1000, 4_000_000]], "output_mtok": 10_000_000}), "test", "1")
CHEAP = Price(compiled({"input_mtok": 1_000_000, "output_mtok": 1_000_000}), "test", "1")
FREE = Price(compiled({"input_mtok": 0, "output_mtok": 0}), "test", "1")


class Way:
    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, model: str | None) -> Iterable[tuple[str, str]]:
        return [(name, model or "") for name in self.names]


HERE = Way("here")


def rule(scope: BudgetScope = "key", models: tuple[str, ...] = (), **fields: object) -> BudgetRule:
    return BudgetRule("budgets[0]", scope, parse_budget({"window": "day", **fields}), models=models)


class House:
    """A gate with a table, a clock, and prices by the name of the upstream."""

    def __init__(self, *rules: BudgetRule, unread: Unread = "strict", **prices: Price) -> None:
        self.memory = BudgetMemory(1000, 2)
        self.now_s = NOON
        self.prices = prices or {"here": CHEAP}
        table = BudgetTable(self.memory, 0)
        self.gate = BudgetGate(rules, table, self._price, lambda: self.now_s, unread=unread)

    def _price(self, upstream: str, model: str, answered: str, tier: str, now_s: int) -> Price | None:
        return None if model == "unknown" else self.prices.get(upstream)

    def hold(
        self, caller: Caller = ALICE, way: Way = HERE, prompt: int = 100, answer: int = 1024, **fields: object
    ) -> Reservation | None:
        body = BodyFields(**{"model": "m", **fields})  # type: ignore[arg-type]
        return self.take(caller, way, body, Estimate(prompt, answer))

    def take(self, caller: Caller, way: Way, body: BodyFields, estimate: Estimate) -> Reservation | None:
        """Return the reservation of a request that no limit counts; None: nor does a budget."""
        held = self.gate.hold(caller, way, body, estimate)
        assert not isinstance(held, NotYet), "nobody is to be asked here"
        return None if held is None else NOT_RESERVED.holding(held)

    def refused(self, caller: Caller = ALICE, **fields: object) -> VeloxError:
        with pytest.raises(VeloxError) as caught:
            self.hold(caller, **fields)  # type: ignore[arg-type]
        return caught.value

    @property
    def spent(self) -> list[int]:
        return [state.spent for state in self.memory.states(self.now_s)]

    @property
    def held(self) -> list[int]:
        return [state.held for state in self.memory.states(self.now_s)]


def used(hold: Reservation | None, nano: int | None, tokens: int) -> None:
    assert hold is not None
    hold.begin()
    hold.spend(nano, tokens)
    hold.settle(None, sent=True)


def test_without_a_budget_nothing_is_held() -> None:
    assert House().hold() is None
    assert House(rule("team", usd=1)).hold() is None
    assert House(rule(usd=1, models=("gpt-*",))).hold(model="claude") is None


def test_case_01_requests_at_the_edge_stay_below_the_budget_and_the_bound() -> None:
    """At most as many run as their holds fit; what is spent above the budget is what they cost above their holds."""
    house = House(rule(tokens=10_000))
    running = []
    while True:
        try:
            running.append(house.hold(prompt=400, max_tokens=600))
        except VeloxError as error:
            assert error.reason is Reason.RATE_LIMITED and error.retry_after_s == 1.0
            break
    assert len(running) == 10
    for hold in running:
        used(hold, None, 1100)
    assert house.spent == [11_000] and house.spent[0] <= 10_000 + len(running) * (1100 - 1000)
    assert house.refused().reason is Reason.INSUFFICIENT_QUOTA


@pytest.mark.parametrize(
    ("unread", "refuses"), [("strict", [True, False]), ("refuse", [True, True]), ("allow", [False, False])]
)
def test_budget_that_nobody_knows_refuses_where_it_is_to(unread: Unread, refuses: list[bool]) -> None:
    """Nothing of it is held, nor of others, and it goes on as soon as it is known; whatever becomes of other rules."""
    for is_strict, is_refused in zip((True, False), refuses, strict=True):
        known, lacking = rule("gateway", tokens=10_000), rule(tokens=10_000, strict=is_strict)
        house = House(known, lacking, unread=unread)
        for digests in (None, [rule_digest(lacking.identity)]):
            house.memory.set_lacking(digests)
            if is_refused:
                error = house.refused(max_tokens=100)
                assert (error.reason, error.retry_after_s) == (Reason.LIMITS_UNAVAILABLE, 5.0)
                assert "budgets[0]" in error.message and set(house.held) == {0}
            else:
                used(house.hold(max_tokens=100), None, 1)
        for digests in ([rule_digest(known.identity + " ")], []):
            house.memory.set_lacking(digests)
            used(house.hold(max_tokens=100), None, 1)


def test_more_rules_that_nobody_knows_than_can_be_listed_are_all() -> None:
    memory = BudgetMemory(1000, 1)
    memory.set_lacking(range(1, 513))
    assert memory.lacks(512) and not memory.lacks(513)
    memory.set_lacking(range(1, 514))
    assert memory.lacking() is None and memory.lacks(1000)
    memory.set_lacking(())
    assert not memory.lacks(1)


def test_call_whose_reply_does_not_tell_counts_in_a_strict_budget_as_it_was_held() -> None:
    """It may have cost that. In others it counts as estimated, and where the reply tells, what it tells counts."""
    house = House(rule(tokens=100_000, strict=True), rule("gateway", tokens=100_000))
    for is_known, wanted in ((False, [1000, 5]), (True, [1005, 10])):
        hold = house.hold(prompt=400, max_tokens=600)
        assert hold is not None
        hold.begin()
        hold.spend(None, 5, is_known=is_known)
        hold.settle(None, sent=True)
        assert sorted(house.spent, reverse=True) == wanted
    hold = house.hold(prompt=400, max_tokens=600)
    assert hold is not None
    hold.begin()
    hold.spend(None, 5000, is_known=False)
    hold.settle(None, sent=True)
    assert sorted(house.spent, reverse=True) == [6005, 5010], "an estimate above it counts"


def test_refusal_is_counted_for_the_budget_that_is_used_up() -> None:
    """Not what only waits for running requests; and in which window it was."""
    house = House(rule(tokens=1000), rule("model", tokens=10_000))
    running = house.hold(prompt=400, max_tokens=590)
    house.refused()
    assert [(state.n_refused, state.has_refused) for state in house.memory.states(NOON)] == [(0, False)] * 2
    used(running, None, 990)
    for _ in range(3):
        house.refused()
    found = {state.label.scope: (state.n_refused, state.has_refused) for state in house.memory.states(NOON)}
    assert found == {"key": (3, True), "model": (0, False)}
    found = {state.label.scope: (state.n_refused, state.has_refused) for state in house.memory.states(NOON + 86_400)}
    assert found == {"key": (3, False), "model": (0, False)}


def test_case_02_request_without_max_tokens_does_not_hold_the_whole_budget() -> None:
    house = House(rule(usd=2000))
    assert house.hold() is not None and house.held == [(100 + 1024) * 1000]


def test_case_03_holds_are_as_long_as_answers_usually_are() -> None:
    """Agents that ask for 32,000 tokens and use 300 don't fill the budget; a strict one holds what was asked for."""
    house = House(rule(tokens=100_000))
    for _ in range(20):
        hold = house.hold(max_tokens=32_000)
        assert hold is not None and hold.held is not None
        hold.held.lengths.add(300)
        used(hold, None, 400)
    running = [house.hold(max_tokens=32_000) for _ in range(100)]
    assert all(running) and house.held == [100 * (100 + 384)]
    strict = House(rule(tokens=100_000, strict=True))
    assert [bool(strict.hold(max_tokens=32_000)) for _ in range(3)] == [True] * 3
    assert strict.refused(max_tokens=32_000).reason is Reason.RATE_LIMITED
    assert strict.hold(max_tokens=100) is not None


def test_case_04_hostile_max_tokens_hold_no_more_than_a_model_can_answer() -> None:
    for n in (10**400, 2**63, -5, 0):
        for strict in (False, True):
            house = House(rule(tokens=10**9, strict=strict))
            assert house.hold(max_tokens=n, n=10**30) is not None
            assert 0 <= house.held[0] <= 10**9
            (spent,) = house.spent
            assert spent == 0


def test_case_05_hold_of_a_long_prompt_has_the_price_of_long_prompts() -> None:
    house = House(rule(usd=1), here=TIERED)
    house.hold(prompt=1000, max_tokens=10)
    assert house.held == [1000 * 2000 + 10 * 10_000]
    house = House(rule(usd=1), here=TIERED)
    house.hold(prompt=1001, max_tokens=10)
    assert house.held == [1001 * 4000 + 10 * 10_000]


def test_case_06_call_without_a_price_is_refused_or_held_by_tokens_and_never_skipped() -> None:
    """Of dollars it is refused, and the message says what to do; tokens need no price; `allow` lets it pass."""
    house = House(rule(usd=1))
    error = house.refused(model="unknown")
    assert (error.reason, error.status) == (Reason.UNPRICED_MODEL, 403)
    assert "VELOX_PRICES" in error.message and "budgets[0]" in error.message and house.held == [0]
    assert House(rule(tokens=10**6)).hold(model="unknown") is not None
    allowed = House(rule(usd=1, unpriced="allow"))
    used(allowed.hold(model="unknown"), None, 50)
    assert allowed.spent == [0]
    # A fallback without a price could be who answers.
    assert House(rule(usd=1)).refused(way=Way("here", "elsewhere")).reason is Reason.UNPRICED_MODEL
    # Known before, and not by the reply: as it was held.
    late = House(rule(usd=1))
    used(late.hold(max_tokens=100), None, 50)
    assert late.spent == [200 * 1000]


def test_case_11_request_that_is_not_read_passes_no_budget_of_dollars_for_nothing() -> None:
    """A form or a WebSocket whose model has a price: of its tokens nothing is known."""
    refusing = House(rule(usd=1))
    with pytest.raises(VeloxError, match=r"can't be known: .* \(unpriced: allow\)") as caught:
        refusing.take(ALICE, HERE, BodyFields(model="m"), NO_TOKENS)
    assert caught.value.reason is Reason.UNPRICED_MODEL
    allowing = House(rule(usd=1, unpriced="allow"))
    assert allowing.take(ALICE, HERE, BodyFields(model="m"), NO_TOKENS) is not None
    counting = House(rule(tokens=100))
    hold = counting.take(ALICE, HERE, BodyFields(model="m"), NO_TOKENS)
    used(hold, None, 60)
    assert counting.spent == [60]


@pytest.mark.parametrize("strict", [False, True])
def test_request_that_is_not_read_passes_no_budget_of_tokens_that_is_used_up(strict: bool) -> None:
    """What it takes is known from its reply alone, so at most the last one goes over the limit."""
    house = House(rule(tokens=100, strict=strict))
    for _ in range(2):
        used(house.take(ALICE, HERE, BodyFields(), NO_TOKENS), None, 99)
    assert (house.spent, house.held) == ([198], [0])
    with pytest.raises(VeloxError) as caught:
        house.take(ALICE, HERE, BodyFields(), NO_TOKENS)
    assert caught.value.reason is Reason.INSUFFICIENT_QUOTA
    assert house.spent == [198]


def test_dearest_destination_decides() -> None:
    house = House(rule(usd=1), cheap=CHEAP, dear=TIERED)
    house.hold(way=Way("cheap", "dear"), prompt=100, max_tokens=100)
    assert house.held == [100 * 2000 + 100 * 10_000]


def test_free_model_passes_a_budget_that_is_used_up() -> None:
    house = House(rule(usd="0.000001"), here=FREE)
    used(house.hold(), 5000, 1)
    assert house.hold() is not None


def test_case_07_request_that_ends_without_a_call_holds_nothing() -> None:
    """Cancelled before it was sent, or refused by its upstream."""
    house = House(rule(tokens=5000))
    hold = house.hold()
    assert hold is not None and house.held == [1124]
    hold.settle(None, sent=False)
    assert (house.held, house.spent) == ([0], [0])


def test_refusal_by_one_budget_holds_nothing_of_the_others() -> None:
    """Several windows hold together: the smallest refuses, and says when it begins anew."""
    month, day = rule(tokens=100_000, window="month"), rule(tokens=2000)
    house = House(month, day)
    used(house.hold(), None, 1500)
    error = house.refused()
    assert "1500 of 2000 tokens are spent" in error.message and house.held == [0, 0]
    assert dict(error.headers)[b"x-velox-budget-reset"] == b"2026-11-24T00:00:00Z"
    assert house.hold(BOB) is not None
    house.now_s += 12 * 3600
    assert house.hold() is not None and max(house.spent) == 1500


def test_case_24_budget_counts_over_all_upstreams() -> None:
    house = House(rule("gateway", usd="0.0025"), one=CHEAP, other=CHEAP)
    used(house.hold(way=Way("one")), 1_000_000, 1000)
    used(house.hold(BOB, way=Way("other")), 1_000_000, 1000)
    for name in ("one", "other"):
        assert house.refused(way=Way(name)).reason is Reason.INSUFFICIENT_QUOTA
    assert house.spent == [2_000_000]


def test_key_has_budgets_of_its_own() -> None:
    house = House()
    own = Caller("carol", terms=KeyTerms(budgets=(Budget(None, 500, "day"), Budget(None, 10**9, "total"))), id=b"c" * 8)
    assert house.hold(ALICE) is None
    used(house.hold(own, prompt=100, max_tokens=100), None, 450)
    error = house.refused(own, prompt=100, max_tokens=100)
    assert "budgets[0] of the key" in error.message
    (label, *_) = sorted(state.label for state in house.memory.states(NOON))
    assert label.who == f"{own.id.hex()} carol"


def test_guess_is_never_a_reason_to_refuse_for_ever() -> None:
    """A budget that is smaller than what any request is guessed to cost lets one pass at a time."""
    house = House(rule(tokens=50))
    hold = house.hold()
    assert hold is not None and house.held == [50]
    assert house.refused().reason is Reason.RATE_LIMITED
    used(hold, None, 20)
    assert house.refused().reason is Reason.INSUFFICIENT_QUOTA or house.hold() is not None


@pytest.mark.parametrize("fields", [{"usd": 0}, {"tokens": 0}, {"usd": 0, "strict": True}, {"usd": "0.000000001"}])
def test_budget_of_nothing_lets_nothing_pass(fields: dict[str, object]) -> None:
    """Nor does one that was lowered to it; what is free passes one of dollars."""
    house = House(rule(**fields))
    if fields != {"usd": "0.000000001"}:
        assert house.refused().reason is Reason.INSUFFICIENT_QUOTA
    house.gate.replace([rule(usd=5)])
    used(house.hold(), 1000, 10)
    house.gate.replace([rule(usd=0)])
    assert house.refused().reason is Reason.INSUFFICIENT_QUOTA
    assert House(rule(usd=0), here=FREE).hold() is not None


def test_replaced_rules_count_from_now_on() -> None:
    house = House(rule(tokens=2000))
    used(house.hold(), None, 1900)
    house.gate.replace([rule(tokens=5000)])
    assert house.hold() is not None and house.spent == [1900]
    house.gate.replace([])
    assert house.hold() is None


@pytest.mark.parametrize("dialect", Dialect)
def test_case_22_refusal_says_what_no_sdk_repeats(dialect: Dialect) -> None:
    """429 with insufficient_quota in the client's own shape, `x-should-retry: false`, and when to come back."""
    house = House(rule(tokens=100))
    used(house.hold(), None, 100)
    headers, body = error_reply(house.refused(), b"vx-1", dialect=dialect)
    told = dict(headers)
    assert told[b"x-should-retry"] == b"false" and told[b"x-velox-reason"] == b"insufficient_quota"
    assert told[b"x-velox-budget-reset"] == b"2026-11-24T00:00:00Z" and told[b"retry-after"] == b"43200"
    error = json.loads(body)["error"]
    if dialect is not Dialect.GOOGLE:
        assert (error["type"], error["code"]) == ("rate_limit_error", "insufficient_quota")
    else:
        assert (error["status"], error["details"][0]["reason"]) == ("RESOURCE_EXHAUSTED", "INSUFFICIENT_QUOTA")


def test_budget_for_ever_says_so() -> None:
    house = House(rule(tokens=100, window="total"))
    used(house.hold(), None, 100)
    error = house.refused()
    assert error.retry_after_s is None and "never reset" in error.message


def test_embeddings_hold_no_answer() -> None:
    house = House(rule(tokens=10_000))
    estimate = Estimator().estimate(Endpoint.EMBEDDINGS, 400, BodyFields(model="m"))
    house.hold(prompt=estimate.prompt, answer=estimate.answer)
    assert house.held == [100]


# -- the guess ----------------------------------------------------------------------------------------


def test_guess_needs_some_answers_and_is_above_most() -> None:
    guess = OutputGuess()
    for _ in range(4):
        guess.lengths(b"a", "m").add(100)
    assert guess.lengths(b"a", "m").guess is None
    guess.lengths(b"a", "m").add(5000)
    assert guess.lengths(b"a", "m").guess == 6144
    for _ in range(60):
        guess.lengths(b"a", "m").add(100)
    assert guess.lengths(b"a", "m").guess == 128
    assert guess.lengths(b"b", "m").guess is None and guess.lengths(b"a", "other").guess is None


def test_guess_forgets() -> None:
    guess = OutputGuess()
    for _ in range(600):
        guess.lengths(b"a", "m").add(10_000)
    for _ in range(2500):
        guess.lengths(b"a", "m").add(1)
    assert guess.lengths(b"a", "m").guess == 1
    guess.lengths(b"a", "m").add(2**60)
