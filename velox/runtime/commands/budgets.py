"""`velox budgets`: what is left of each budget, as the running gateway counts it.

Knows: the pages of /api/v1/budgets, and how a budget is printed. Does not know: where the admin listener is, or its
token (settings/loading.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from velox.admin.call import ASKS, ELSEWHERE, AdminCaller, AdminCallError
from velox.ledger.report import lines
from velox.types import Address, Secret

__all__ = ["NoBudgetsError", "Told", "all_budgets", "call_budgets"]

_TIMEOUT_S: Final = 10.0
_PAGE: Final = 1000
_STATES: Final[Mapping[str, str]] = {
    "known": "",
    "unread": "what was spent before the start is not known",
    "redis_down": "Redis can't be asked",
}


class Told(NamedTuple):
    """What the command prints. code: 1: the gateway has no budgets; 2: it could not be asked."""

    code: int
    lines: list[str]


class NoBudgetsError(Exception):
    """The gateway answers that it has none."""


def call_budgets(
    address: Address, token: Secret | None, cert: str | None, asked: Mapping[str, str], *, as_json: bool
) -> Told:
    """Ask for all budgets, and say what is left. cert: as the listener shows; None: no TLS. asked: scope and name."""
    try:
        with contextlib.closing(AdminCaller(address, token, cert, _TIMEOUT_S)) as caller:
            found = all_budgets(caller, address, asked)
    except AdminCallError as exc:
        return Told(2, [str(exc)])
    except NoBudgetsError as exc:
        return Told(1, [str(exc)])
    if as_json:
        return Told(0, [json.dumps(found, indent=2)])
    if not found:
        return Told(0, ["no budget was used since the start, or in its window before"])
    return Told(0, list(lines(map(_row, found), "table")))


def all_budgets(caller: AdminCaller, address: Address, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return all budgets, as the API has them. asked: scope and name. Raises AdminCallError, NoBudgetsError."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {**asked, "limit": str(_PAGE), **({"cursor": cursor} if cursor else {})}
        status, body = caller.ask("GET", f"/api/v1/budgets?{urlencode(query)}")
        if status in (401, 403):
            raise AdminCallError(f"the gateway at {address} was not asked: {ASKS}")
        try:
            page = json.loads(body)
            if status != 200:
                raise NoBudgetsError(f"the gateway at {address} says: {page['error']['message']}")
            found += page["data"]
            cursor = page["cursor"]
        except (ValueError, TypeError, LookupError):
            what = f"what answers at {address} is no admin listener of Velox, or has no budgets ({status}); {ELSEWHERE}"
            raise AdminCallError(what) from None
    return found


def _row(budget: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Return what a person asks for first."""
    return {
        "whose": f"{budget['scope']} {budget['name']}".strip(),
        "budget": budget["budget"],
        "limit": _amount(budget, "limit"),
        "spent": _amount(budget, "spent"),
        "held": _amount(budget, "held"),
        "left": _amount(budget, "left"),
        "per": budget["window"],
        "until": budget["window_end"] or "",
        "note": _STATES.get(budget["state"], budget["state"]),
    }


def _amount(budget: Mapping[str, Any], name: str) -> str:
    """Return dollars to the hundredth of a cent, or tokens."""
    value = budget[name]
    return f"{value:,}" if budget["unit"] == "tokens" else f"${float(value):,.4f}"
