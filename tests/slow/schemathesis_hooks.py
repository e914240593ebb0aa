"""What the description of the admin API can't say, for schemathesis, which loads this file (SCHEMATHESIS_HOOKS).

A call that fits the description is changed where it depends on what is there already, or on a list that is not ours:
teams and users, cursors, bursts beside rates that a key has, time zones, dollars with more than nine places, days
before 1970. Nothing else is: what is generated otherwise is what is sent.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

THERE: Final = "there"  # the team and the user that there are: they stay, and have no limits

_YEAR: Final = re.compile(r"(?:19[7-9][1-9]|2[0-9]{3})-")


def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Change a call before it is made."""
    if case.operation.method != "get" and (case.path_parameters or {}).get("id") == THERE:
        case.path_parameters = {"id": "other"}
    if case.meta is None or case.meta.generation.mode != "positive":
        return
    query = {name: value for name, value in (case.query or {}).items() if name != "cursor"}
    times = {"since": "30d", "until": "0h"}
    query.update({name: value for name, value in times.items() if name in query})
    if query.get("by"):
        query["by"] = query["by"].partition(",")[0]
    case.query = query
    if isinstance(case.body, dict):
        case.body = _possible(case.body, is_new=case.operation.method == "post")


def _possible(body: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
    dropped = () if is_new else ("burst", "tpm_burst", "role", "team", "user")
    found = {name: value for name, value in body.items() if name not in dropped}
    found.update({name: THERE for name in ("team", "user") if found.get(name)})
    if found.get("expires") and not _YEAR.match(found["expires"]):
        found["expires"] = "2040-01-31"
    if isinstance(found.get("budgets"), list):
        found["budgets"] = list(map(_possible_budget, found["budgets"]))
    return found


def _possible_budget(budget: dict[str, Any]) -> dict[str, Any]:
    found = dict(budget)
    if found.get("zone"):
        found["zone"] = "Europe/Berlin"
    if found.get("starts") and not _YEAR.match(found["starts"]):
        found["starts"] = "2026-01-31"
    if isinstance(found.get("usd"), float):
        found["usd"] = round(found["usd"], 6)
    return found


importlib.import_module("schemathesis").hook("before_call")(before_call)
