"""Limits, route and budgets of a request are taken together, and each end gives back what it has to, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.sockets.gateway.core_attempts import BODY, run, until, whole
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, change_parts, gateway
from tests.unit.gateway.limits.recorded_calls import CallRecords
from velox.gateway.front.intake import Gateway
from velox.gateway.limits.budgets import BudgetGate
from velox.gateway.limits.calls import CallLog
from velox.gateway.limits.lease_wait import Want
from velox.gateway.request.exchange import Exchange
from velox.heads import Header, RequestHead
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.estimate import Estimator
from velox.policy.limits.limit_rules import LimitRule
from velox.prices.price import Price
from velox.shm.budget_table import BudgetMemory, BudgetTable, Lack, SharedBudget
from velox.types import ANYONE, Rates, Scope

NOON: Final = 1_795_435_200.0
PROMPT, ANSWER = 7, 100
COST: Final = PROMPT + ANSWER
ALL: Final = LimitRule("limits[0]", Scope.KEY, Rates(rpm=1, burst=100, tpm=1, tpm_burst=10_000, concurrency=3))
JSON: Final[Header] = (b"content-type", b"application/json")
HEAD: Final = RequestHead.of(b"POST", b"/v1/chat/completions", [JSON], len(BODY))
USAGE: Final = b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":30,"total_tokens":50}}'


class GrantedBudget(SharedBudget):
    """A budget of which Redis has granted some."""

    granted = 0

    def lack(self, amount: int, now_s: float) -> Lack:
        """Ask for more."""
        return Lack.NOT_GRANTED

    def _granted(self, number: int) -> int:
        return self.granted


class GrantedTable(BudgetTable):
    """A table of these."""

    def shared(self, memory: BudgetMemory, row: int, block: int, rule: BudgetRule) -> SharedBudget:
        """Return one."""
        return GrantedBudget(memory, row, block, rule)


class Leases:
    """Redis, as a worker asks it: it grants what is wanted once it is let."""

    timeout_s: Final = 60.0

    def __init__(self) -> None:
        self.answers: Final = asyncio.Event()
        self.n_asked = 0

    async def wait_for_lease(self, wants: Sequence[Want], until_s: float) -> bool:
        """See LeaseWait."""
        self.n_asked += 1
        await self.answers.wait()
        for budget, n in wants:
            assert isinstance(budget, GrantedBudget)
            GrantedBudget.granted = n
        return True


class House:
    """A gateway with limits and a budget. is_shared: Redis grants it."""

    def __init__(self, made: Gateway, folder: Path, budget: dict[str, object], *, is_shared: bool = False) -> None:
        GrantedBudget.granted = 0
        self.made: Final = made
        self.memory: Final = BudgetMemory(1000, 1)
        self.leases: Final = Leases()
        self.has_bug = False
        table = (GrantedTable if is_shared else BudgetTable)(self.memory, 0)
        rule = BudgetRule("budgets[0]", "gateway", parse_budget({"window": "day", **budget}))
        gate = BudgetGate((rule,), table, self._price, lambda: NOON, default_answer=ANSWER)
        log = CallLog(CallRecords(folder).writer, self._price, budgets=gate)
        change_parts(made, calls=log, leases=self.leases)

    def _price(self, *_: object) -> Price | None:
        if self.has_bug:
            raise AssertionError("a bug")
        return None

    def send(self, body: bytes = BODY) -> tuple[Exchange | None, FakeClient]:
        """Send a request. None: it was refused on the spot."""
        client = FakeClient()
        return self.made.submit(client, HEAD, body, ANYONE), client  # type: ignore[return-value]

    @property
    def limits(self) -> tuple[int, int, int]:
        """What is taken of limits: requests, tokens, slots."""
        limits, now_ns = self.made.parts.limiter.limits(ANYONE, "m"), time.monotonic_ns()
        requests, tokens = (each.quota.rate.burst - each.quota.remaining(now_ns) for each in limits.quotas)
        return requests, tokens, limits.slots[0].slots.in_use()

    @property
    def budget(self) -> tuple[int, int]:
        """What of the budget is held and spent."""
        states = [(state.held, state.spent) for state in self.memory.states(NOON)]
        return states[0] if states else (0, 0)


@contextmanager
def house(folder: Path, *, is_shared: bool = False, **budget: object) -> Iterator[House]:
    upstream = ScriptedUpstream(whole(200, USAGE, JSON))
    with gateway(upstream.dial, limited=[ALL], estimator=Estimator(4, ANSWER)) as made:
        yield House(made, folder, budget or {"tokens": 10_000}, is_shared=is_shared)


def test_request_that_a_budget_refuses_is_refused_at_once_and_has_taken_nothing(tmp_path: Path) -> None:
    """Its limits are given back, and it holds no configuration."""

    async def main() -> None:
        with house(tmp_path, tokens=10) as found:
            exchange, client = found.send()
            await client.finished.wait()
            assert exchange is not None
            assert found.budget == (0, 50), "the first one holds no more than the limit"
            before = found.limits

            exchange, client = found.send()

            assert exchange is None and client.written.startswith(b"HTTP/1.1 429")
            assert b"insufficient_quota" in client.written
            assert (found.limits, found.budget) == (before, (0, 50))
            assert (found.made.routing.n_open, found.made.n_active) == (0, 0)

    run(main)


def test_limits_are_taken_once_while_a_budget_is_asked_for(tmp_path: Path) -> None:
    """The request waits with what it has; then it holds of its budget, and its end settles both."""

    async def main() -> None:
        with house(tmp_path, is_shared=True) as found:
            _, client = found.send()
            await until(lambda: found.leases.n_asked == 1)
            assert (found.limits, found.budget) == ((1, COST, 1), (0, 0))

            found.leases.answers.set()
            await client.finished.wait()

            assert client.written.startswith(b"HTTP/1.1 200")
            assert (found.limits, found.budget) == ((1, 50, 0), (0, 50))
            assert found.leases.n_asked == 1 and not found.made.routing.n_open

    run(main)


def test_client_that_leaves_while_a_budget_is_asked_for_has_taken_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with house(tmp_path, is_shared=True) as found:
            exchange, _ = found.send()
            await until(lambda: found.leases.n_asked == 1)
            assert exchange is not None
            exchange.client_gone()
            await until(lambda: not found.made.n_active)
            assert (found.limits, found.budget, found.made.routing.n_open) == ((0, 0, 0), (0, 0), 0)

    run(main)


def test_bug_in_the_middle_leaves_nothing_taken(tmp_path: Path) -> None:
    """Of limits, where the price that a budget is held by can't be asked for: the client gets 500."""

    async def main() -> None:
        with house(tmp_path, usd=1) as found:
            found.has_bug = True
            exchange, client = found.send()
            assert exchange is None and client.written.startswith(b"HTTP/1.1 500")
            assert (found.limits, found.budget, found.made.routing.n_open) == ((0, 0, 0), (0, 0), 0)

    run(main)


@pytest.mark.parametrize("n", [1, 5])
def test_requests_of_which_all_end_hold_nothing(tmp_path: Path, n: int) -> None:
    """Each has spent what its reply tells, in limits and budget alike."""

    async def main() -> None:
        with house(tmp_path) as found:
            for _ in range(n):
                _, client = found.send()
                await client.finished.wait()
            assert (found.limits, found.budget) == ((n, 50 * n, 0), (0, 50 * n))

    run(main)
