"""The calls of a request as they are recorded: which of them, with which tokens, and what they count of a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from velox.errors import Reason
from velox.gateway.budgets import BudgetGate
from velox.gateway.calls import NO_KINDS, Answered, CallLog, RequestCalls
from velox.gateway.metering import Usage
from velox.ledger.record import Call, NamePart, NameParts, read_body
from velox.ledger.writer import CallWriter
from velox.policy.budget import parse_budget
from velox.policy.budget_rules import BudgetRule
from velox.policy.estimate import Estimator
from velox.prices.price import Price, compiled
from velox.shm.budget_table import BudgetMemory, BudgetTable
from velox.shm.record_ring import RecordRing
from velox.types import BodyFields, Caller, Endpoint

NOON = 1_795_435_200.0
ALICE = Caller("alice", id=b"a" * 8)
# Of a token: 1,000 nano-dollars.
PRICE = Price(compiled({"input_mtok": 1_000_000, "output_mtok": 1_000_000}), "test", "1")
UNTOLD = Usage(None, None, False)
LONGEST = 131_072


class NoCounts:
    """Where members count."""

    def count_call(self, row: int, tokens: Sequence[int | None], cost_nano: int | None) -> None: ...


@dataclass
class Attempt:
    """One, which is its own member."""

    may_have_worked: bool = False
    row: int = 0

    @property
    def counts(self) -> NoCounts:
        return NoCounts()

    @property
    def member(self) -> Attempt:
        return self


class Way:
    def destinations(self, model: str | None) -> Iterable[tuple[str, str]]:
        return [("one", model or "")]


class Desk:
    """A worker's log of calls, with a ring, and a budget of the gateway."""

    def __init__(self, folder: Path, **budget: object) -> None:
        self.ring = RecordRing(folder / "0.ring", 100)
        self.ring.recover()
        self.memory = BudgetMemory(1000, 1)
        rule = BudgetRule("budgets[0]", "gateway", parse_budget({"usd": 2000, "window": "month", **budget}))
        self.gate = BudgetGate((rule,), BudgetTable(self.memory, 0), lambda *_: PRICE, lambda: NOON)
        self.log = CallLog(CallWriter(self.ring, 0xABCD), lambda *_: PRICE, lambda: int(NOON * 1e9), lambda: 0)

    def request(self, fields: BodyFields, n_bytes: int = 400, endpoint: Endpoint = Endpoint.CHAT) -> RequestCalls:
        estimate = Estimator().estimate(endpoint, n_bytes, fields)
        hold = self.gate.hold(ALICE, Way(), fields, estimate)
        return self.log.request(b"vx-0000abcd-1", ALICE, endpoint, "all", fields, estimate, hold=hold)

    @property
    def calls(self) -> list[Call]:
        """What is recorded."""
        names, calls = NameParts(), []
        for body in self.ring.read(0, self.ring.head):
            assert body is not None
            record = read_body(body, names)
            if isinstance(record, NamePart):
                names.add(record)
            elif record is not None:
                calls.append(record)
        return calls

    @property
    def spent(self) -> int:
        (state,) = self.memory.states(NOON)
        assert not state.held
        return state.spent


def left(upstream: str = "one") -> Answered:
    """Return the end of a request whose client left before any of the reply had come."""
    return Answered(upstream, 499, Reason.CLIENT_CLOSED, True, False, 0, UNTOLD, NO_KINDS)


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
    calls.begin(Attempt(may_have_worked=True), "one", "m")
    calls.end(left())

    (call,) = desk.calls
    assert call.tokens[:2] == (100, answer)
    assert desk.spent == call.cost_nano == (100 + answer) * 1000


@pytest.mark.parametrize(("fields", "answer"), HOSTILE)
def test_call_of_a_killed_worker_counts_no_more_either(tmp_path: Path, fields: BodyFields, answer: int) -> None:
    """What the ledger has for it is what budgets begin with after the next start."""
    desk = Desk(tmp_path)
    desk.request(fields).begin(Attempt(), "one", "m")
    desk.ring.recover()

    (call,) = desk.calls
    assert (call.reason, call.tokens[:2], call.cost_nano) == ("killed", (100, answer), (100 + answer) * 1000)


@pytest.mark.parametrize(("fields", "answer"), HOSTILE)
def test_strict_budget_holds_all_that_can_count(tmp_path: Path, fields: BodyFields, answer: int) -> None:
    desk = Desk(tmp_path, strict=True)
    calls = desk.request(fields)
    (state,) = desk.memory.states(NOON)
    assert state.held >= (100 + answer) * 1000
    calls.end(left())
    assert desk.calls == [] and desk.spent == 0
