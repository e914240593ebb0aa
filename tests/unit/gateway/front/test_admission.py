"""What a request is asked before it is sent: in one order, and nothing that its gateway has not."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from velox.gateway.front import admission as order
from velox.gateway.front.admission import admission


@dataclass
class HasParts:
    """The parts of a gateway that decide which steps there are."""

    calls: object = None
    access: Any = field(default_factory=lambda: SimpleNamespace(share=None))


def names(parts: HasParts, *, may_be_local: bool = False) -> list[str]:
    return [step.__name__ for step in admission(parts, may_be_local=may_be_local)]  # type: ignore[arg-type]


def test_gateway_without_ledger_asks_for_limits_and_a_route_alone() -> None:
    assert names(HasParts()) == ["take_limits", "find_route"]


@pytest.mark.parametrize(("records", "shares", "ours"), [*product((False, True), repeat=3)])
def test_steps_stand_in_the_order_that_is_written_down(records: bool, shares: bool, ours: bool) -> None:
    """What is off is left out; the module's docstring has all of them, in their order."""
    parts = HasParts(object() if records else None, SimpleNamespace(share=(lambda: None) if shares else None))

    found = names(parts, may_be_local=ours)

    text = order.__doc__ or ""
    places = [text.index(f"\n    {name} ") for name in found]
    assert places == sorted(places)
    assert ("hold_budgets" in found, "ask_other_gateways" in found, "answer_locally" in found) == (
        records,
        shares,
        ours,
    )
