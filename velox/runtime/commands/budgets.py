"""`velox budgets`: what is left of each budget, as the running gateway counts it.

Knows: the pages of /api/v1/budgets, and how a budget is printed. Does not know: where the admin listener is, or its
token (settings/loading.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from velox.admin.call import AdminCaller
from velox.ledger.report import lines

__all__ = ["all_budgets", "budget_lines"]

_PAGE: Final = 1000
_STATES: Final[Mapping[str, str]] = {
    "known": "",
    "unread": "what was spent before the start is not known",
    "redis_down": "Redis can't be asked",
}


def budget_lines(caller: AdminCaller, asked: Mapping[str, str], *, as_json: bool) -> list[str]:
    """Return what is left of all budgets, as it is printed. asked, raises: as for all_budgets()."""
    found = all_budgets(caller, asked)
    if as_json:
        return [json.dumps(found, indent=2)]
    if not found:
        return ["no budget was used since the start, or in its window before"]
    return list(lines(map(_row, found), "table"))


def all_budgets(caller: AdminCaller, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return all budgets, as the API has them. asked: scope and name. Raises as AdminCaller.ask_api() does."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {**asked, "limit": str(_PAGE), **({"cursor": cursor} if cursor else {})}
        page = caller.ask_api("GET", f"/api/v1/budgets?{urlencode(query)}", "data", "cursor")
        found += page["data"]
        cursor = page["cursor"]
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
