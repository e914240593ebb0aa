"""The calls of a request as they are recorded: which of them, with which tokens, and what they count of a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from tests.unit.gateway.limits.recorded_calls import CallRecords
from velox.errors import Reason
from velox.gateway.limits.budgets import BudgetGate
from velox.gateway.limits.calls import NO_KINDS, Answered, CallLog, Copied, RequestCalls, Spending
from velox.gateway.limits.lease_wait import NotYet
from velox.gateway.limits.metering import Usage
from velox.gateway.limits.reservation import NOT_RESERVED
from velox.gateway.reply.reply import AnsweringAttempt
from velox.heads import ReplyHead
from velox.ledger.record import Call, Flag
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.estimate import NO_TOKENS, Estimator
from velox.prices.price import Price, compiled
from velox.protocol.usage.token_usage import Bill, TokenUsage
from velox.shm.budget_table import BudgetMemory, BudgetTable
from velox.types import BodyFields, Caller, Endpoint, KeyTerms

NOON = 1_795_435_200.0
ALICE = Caller("alice", id=b"a" * 8)
# Nano-dollars of a token: 1,000; of the small model: 10.
PRICE = Price(compiled({"input_mtok": 1_000_000, "output_mtok": 1_000_000}), "test", "1")
# What it draws costs three times as much as what it writes.
DRAWING = {"input_mtok": 1_000_000, "output_mtok": 1_000_000, "output_image_mtok": 3_000_000}
DRAWN = Price(compiled({**DRAWING}), "test", "1")
SMALL = Price(compiled({"input_mtok": 10_000, "output_mtok": 10_000}), "test", "1")
UNTOLD = Usage(None, None, False)
LONGEST = 131_072


def price(upstream: str, asked: str, answered: str, tier: str, now_s: int) -> Price:
    return {"small": SMALL, "drawn": DRAWN}.get(answered or asked, PRICE)


class Attempt(AnsweringAttempt):
    """One whose reply nobody reads."""

    holds_head = False

    def __init__(
        self, *, may_have_worked: bool = False, usage_so_far: Callable[[], TokenUsage | None] | None = None
    ) -> None:
        self.may_have_worked = may_have_worked
        self.usage_so_far = usage_so_far

    def reasons(self, named: str | None) -> bool:
        return False

    def count_call(self, tokens: Sequence[int | None], cost_nano: int | None) -> None: ...

    def on_head(self, head: ReplyHead) -> None: ...

    def on_first(self, now_s: float, *, is_stream: bool) -> None: ...


class Way:
    def __call__(self, model: str | None) -> Iterable[tuple[str, str]]:
        return [("one", model or "")]


class Desk:
    """A worker's log of calls, with a ring, and a budget of the gateway."""

    def __init__(self, folder: Path, **budget: object) -> None:
        self.records = CallRecords(folder)
        self.memory = BudgetMemory(1000, 1)
        rule = BudgetRule("budgets[0]", "gateway", parse_budget({"usd": 2000, "window": "month", **budget}))
        self.gate = BudgetGate((rule,), BudgetTable(self.memory, 0), price, lambda: NOON)
        self.log = CallLog(self.records.writer, price, lambda: int(NOON * 1e9), lambda: 0)
        self.reservation = NOT_RESERVED

    def request(self, fields: BodyFields, n_bytes: int = 400, endpoint: Endpoint = Endpoint.CHAT) -> RequestCalls:
        estimate = Estimator().estimate(endpoint, n_bytes, fields)
        held = self.gate.hold(ALICE, Way(), fields, estimate)
        assert held is not None and not isinstance(held, NotYet), "its budget counts it, and nobody is to be asked"
        self.reservation = NOT_RESERVED.holding(held)
        return self.log.request(
            *(b"vx-0000abcd-1", ALICE, endpoint, "all", fields, estimate), reservation=self.reservation
        )

    @property
    def calls(self) -> list[Call]:
        """What is recorded."""
        return self.records.calls

    @property
    def spent(self) -> int:
        """What the budget has counted, once the request is settled."""
        self.reservation.settle(None, sent=True)
        self.reservation = NOT_RESERVED
        (state,) = self.memory.states(NOON)
        assert not state.held
        return state.spent


def told_of(spent: Spending | None) -> tuple[object, ...]:
    """Return its fields, in their order."""
    assert spent is not None
    kinds = (spent.input, spent.output, spent.cached, spent.cache_written, spent.reasoning)
    return (*kinds, spent.cost_nano, spent.is_estimated)


def left(attempt: Attempt | None) -> Answered:
    """Return the end of a request whose client left before any of the reply had come."""
    return Answered(attempt, 499, Reason.CLIENT_CLOSED, True, False, 0, UNTOLD, NO_KINDS)


# -- what is taken for used where nothing tells -----------------------------------------------------

HOSTILE = [
    (BodyFields("m", max_tokens=1000), 1000),
    (BodyFields("m", max_tokens=LONGEST + 1), LONGEST),
    (BodyFields("m", max_tokens=10**400), LONGEST),
    (BodyFields("m", max_tokens=10**9, n=3), 3 * LONGEST),
    (BodyFields("m", max_tokens=2, n=10**30), 2 * 128),
    (BodyFields("m"), 1024),
    (BodyFields("m", n=10**30), 128 * 32_768),
]


@pytest.mark.parametrize(("fields", "answer"), HOSTILE)
def test_client_that_leaves_uses_up_no_more_than_an_answer_can_be(
    tmp_path: Path, fields: BodyFields, answer: int
) -> None:
    """Whatever it asks for: as a strict budget holds."""
    desk = Desk(tmp_path)
    calls = desk.request(fields)
    attempt = Attempt(may_have_worked=True)
    calls.begin(attempt, "one", "m")
    calls.end(left(attempt))

    (call,) = desk.calls
    assert call.tokens[:2] == (100, answer)
    assert desk.spent == call.cost_nano == (100 + answer) * 1000


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("reason", [None, Reason.CLIENT_CLOSED, Reason.UPSTREAM_RESET])
def test_answer_that_does_not_tell_its_usage_takes_all_that_a_strict_budget_held(
    tmp_path: Path, reason: Reason | None, is_stream: bool
) -> None:
    """However it ended: a client that could have it counted by its words would pay for words only."""
    desk = Desk(tmp_path, strict=True)
    calls = desk.request(BodyFields("m", stream=is_stream, max_tokens=20_000))
    attempt = Attempt()
    calls.begin(attempt, "one", "m")
    usage = Usage(None, 3 if is_stream else None, False)
    calls.end(Answered(attempt, 200, reason, True, True, 1, usage, NO_KINDS))

    (call,) = desk.calls
    assert call.flags & Flag.ESTIMATED
    assert call.tokens[:2] == (100, 3 if is_stream else 20_000)
    assert desk.spent == (100 + 20_000) * 1000


@pytest.mark.parametrize(("fields", "answer"), HOSTILE)
def test_call_of_a_killed_worker_counts_no_more_either(tmp_path: Path, fields: BodyFields, answer: int) -> None:
    """What the ledger has for it is what budgets begin with after the next start."""
    desk = Desk(tmp_path)
    desk.request(fields).begin(Attempt(), "one", "m")
    desk.records.ring.recover()

    (call,) = desk.calls
    assert (call.reason, call.tokens[:2], call.cost_nano) == ("killed", (100, answer), (100 + answer) * 1000)


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [(Endpoint.CHAT, 1024), (Endpoint.EMBEDDINGS, 0), (Endpoint.MODERATIONS, 0), (Endpoint.AUDIO, None),
     (Endpoint.IMAGES, None), (Endpoint.OTHER, None)],
)  # fmt: skip
def test_cost_of_an_answer_that_can_t_be_guessed_is_unknown(
    tmp_path: Path, endpoint: Endpoint, answer: int | None
) -> None:
    """Pictures and sound cost much more than the words that ask for them."""
    desk = Desk(tmp_path)
    calls = desk.request(BodyFields("m"), endpoint=endpoint)
    attempt = Attempt()
    calls.begin(attempt, "one", "m")
    calls.answering = attempt
    usd = b"unknown" if answer is None else b"0.%09d; estimated" % ((100 + answer) * 1000)
    assert calls.cost(UNTOLD, NO_KINDS) == usd

    calls.end(Answered(attempt, 200, None, True, True, 1, UNTOLD, NO_KINDS))
    (call,) = desk.calls
    assert (call.tokens.input, call.tokens.output) == (100, answer)
    assert call.cost_nano == (None if answer is None else (100 + answer) * 1000)
    assert call.flags == Flag.ESTIMATED


@pytest.mark.parametrize(("fields", "answer"), HOSTILE)
def test_strict_budget_holds_all_that_can_count(tmp_path: Path, fields: BodyFields, answer: int) -> None:
    desk = Desk(tmp_path, strict=True)
    calls = desk.request(fields)
    (state,) = desk.memory.states(NOON)
    assert state.held >= (100 + answer) * 1000
    calls.end(left(None))
    assert desk.calls == [] and desk.spent == 0


# -- whose reply it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_attempts_at_one_upstream_the_one_that_answered_counts_as_it_tells(tmp_path: Path, winner: int) -> None:
    """The other counts its prompt; each at its own model's price. The client is told the same."""
    desk = Desk(tmp_path)
    calls = desk.request(BodyFields("m", max_tokens=1000))
    attempts = [Attempt(), Attempt()]
    attempts[1 - winner].may_have_worked = True
    for attempt, model in zip(attempts, ("m", "small"), strict=True):
        calls.begin(attempt, "one", model)
    calls.answering = attempts[winner]
    told = Usage(200, 50, True)
    cost = calls.cost(told, NO_KINDS)
    calls.end(Answered(attempts[winner], 200, None, True, True, 0, told, NO_KINDS))

    answered, lost = sorted(desk.calls, key=lambda call: call.reason == "lost")
    assert (answered.attempt, answered.upstream_model) == (winner + 1, ("m", "small")[winner])
    assert (answered.reason, answered.tokens[:2], answered.cost_nano) == ("ok", (200, 50), 250 * (1000, 10)[winner])
    assert (lost.attempt, lost.upstream_model) == (2 - winner, ("small", "m")[winner])
    assert (lost.reason, lost.tokens[:2], lost.cost_nano) == ("lost", (100, 0), 100 * (10, 1000)[winner])
    assert cost == b"0.%09d" % answered.cost_nano
    assert desk.spent == answered.cost_nano + lost.cost_nano


@pytest.mark.parametrize("is_last", [True, False])
def test_attempt_of_several_calls_counts_those_that_were_answered(tmp_path: Path, is_last: bool) -> None:
    """Also if another one ends it with an error; one of which none was answered is no call."""
    desk = Desk(tmp_path)
    calls = desk.request(BodyFields("m"), endpoint=Endpoint.EMBEDDINGS)
    failed, none = Attempt(usage_so_far=lambda: TokenUsage(70, 0)), Attempt(usage_so_far=lambda: None)
    for attempt in (failed, none):
        calls.begin(attempt, "one", "m")

    calls.end(Answered(failed if is_last else none, 429, None, False, True, 1, Usage(0, 0, False), NO_KINDS))

    (call,) = desk.calls
    assert (call.tokens.input, call.tokens.output, call.cost_nano) == (70, 0, 70_000)
    assert call.flags == Flag.LOST | Flag.ESTIMATED
    assert (call.status, call.reason) == ((429, "upstream_status") if is_last else (0, "lost"))
    assert desk.spent == 70_000


def test_model_that_answered_has_the_price(tmp_path: Path) -> None:
    """Whatever it was asked for as."""
    desk = Desk(tmp_path)
    calls, attempt = desk.request(BodyFields("m")), Attempt()
    calls.begin(attempt, "one", "m")

    calls.end(Answered(attempt, 200, None, True, True, 1, Usage(200, 50, True), TokenUsage(200, 50, model="small")))

    (call,) = desk.calls
    assert call.cost_nano == 250 * 10


@pytest.mark.parametrize(
    ("endpoint", "kinds", "cost"),
    [
        (Endpoint.IMAGES, TokenUsage(100, 50), 250),
        (Endpoint.IMAGES, TokenUsage(100, 50, image_output=30), 210),
        (Endpoint.IMAGES, TokenUsage(100, 50, image_output=0), 150),
        (Endpoint.CHAT, TokenUsage(100, 50), 150),
    ],
)
def test_pictures_cost_as_such_where_their_usage_does_not_tell_them_apart(
    tmp_path: Path, endpoint: Endpoint, kinds: TokenUsage, cost: int
) -> None:
    """OpenAI's streams of pictures don't: gpt-image-1.5 would cost a third."""
    desk = Desk(tmp_path)
    calls, attempt = desk.request(BodyFields("drawn"), endpoint=endpoint), Attempt()
    calls.begin(attempt, "one", "drawn")

    calls.end(Answered(attempt, 200, None, True, True, 1, Usage(100, 50, True), kinds))

    (call,) = desk.calls
    assert call.cost_nano == desk.spent == cost * 1000


def test_bill_is_the_cost_of_what_has_no_tokens(tmp_path: Path) -> None:
    """As OpenRouter's reranking, whose usage has a cost and search units."""
    desk = Desk(tmp_path)
    desk.log.prices = lambda *_: Price((), "test", "1", biller="openrouter")
    calls, attempt = desk.log.request(b"vx-1-1", ALICE, Endpoint.OTHER, "all", BodyFields(), NO_TOKENS), Attempt()
    calls.begin(attempt, "one", None)

    kinds = TokenUsage(bill=Bill(1_000_000_000, "openrouter"))
    calls.end(Answered(attempt, 200, None, True, True, 1, UNTOLD, kinds))

    (call,) = desk.calls
    assert (call.cost_nano, call.tokens.input, call.tokens.output) == (1_000_000, None, None)


def test_call_costs_what_it_did_when_it_began(tmp_path: Path) -> None:
    """A reload meanwhile may change the price, or take the upstream away: then nobody knows one."""
    desk = Desk(tmp_path)
    calls, attempt = desk.request(BodyFields("m")), Attempt()
    calls.begin(attempt, "one", "m")
    desk.log.prices = lambda *_: None

    calls.end(Answered(attempt, 200, None, True, True, 1, Usage(200, 50, True), TokenUsage(200, 50)))

    (call,) = desk.calls
    assert (call.cost_nano, call.prices) == (250 * 1000, "1") and desk.spent == 250 * 1000


def test_request_that_ends_before_its_first_attempt_records_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    calls = desk.request(BodyFields("m"))
    calls.answering = None
    assert calls.cost(UNTOLD, NO_KINDS) == b"unknown"
    calls.end(left(None))
    assert desk.calls == [] and desk.spent == 0


def test_caller_with_other_terms_is_recorded_under_its_new_team(tmp_path: Path) -> None:
    """The texts of its calls are put together once, but for the caller that it is: a reload may change its team."""
    records = CallRecords(tmp_path)
    log = CallLog(records.writer, price, lambda: int(NOON * 1e9), lambda: 0)
    estimate = Estimator().estimate(Endpoint.CHAT, 400, BodyFields("m"))
    for n, team in enumerate(("red", "red", "blue"), 1):
        caller = Caller("ada", KeyTerms(team=team), b"12345678")
        calls = log.request(b"vx-0000abcd-%d" % n, caller, Endpoint.CHAT, "all", BodyFields("m"), estimate)
        attempt = Attempt(may_have_worked=True)
        calls.begin(attempt, "one", "m")
        calls.end(left(attempt))

    assert [call.team for call in records.calls] == ["red", "red", "blue"]
    assert {call.key for call in records.calls} == {"3132333435363738 ada"}


def test_what_calls_of_a_request_took_is_known_together(tmp_path: Path) -> None:
    """The access log has one line for all. A copy for a mirror is not the caller's; an estimate is said to be one."""
    desk = Desk(tmp_path)
    calls = desk.request(BodyFields("m", max_tokens=1000))
    assert calls.spent() is None
    lost, answering = Attempt(may_have_worked=True), Attempt()
    calls.begin(lost, "one", "m")
    calls.begin(answering, "two", "m")
    copy = calls.begin_copy(Attempt(), "three", "m")
    told = TokenUsage(10, 20, reasoning=4)
    calls.end_copy(copy, Copied(True, 200, None, 1, Usage(10, 20, True), told))
    assert calls.spent() is None
    calls.end(Answered(answering, 200, None, True, True, 1, Usage(10, 20, True), told))

    assert told_of(calls.spent()) == (110, 20, None, None, 4, 130_000, True)
    again = desk.request(BodyFields("m"))
    again.begin(answering, "two", "m")
    again.end(Answered(answering, 200, None, True, True, 1, Usage(10, 20, True), told))
    assert told_of(again.spent()) == (10, 20, None, None, 4, 30_000, False)
