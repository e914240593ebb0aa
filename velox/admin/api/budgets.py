"""What budgets have left, at /api/v1/budgets.

Knows: what each role may see, and how amounts are written. Does not know: how budgets are counted
(shm/budget_table.py), whose memory this reads: no call waits for a database.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any, Final

from velox.accounts.active import caller_id_of
from velox.admin.api import schemas
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import OWNERS, Field, Route
from velox.admin.roles import Role
from velox.ledger.record import key_id
from velox.policy.budgets.budget import NANO_PER_USD, period_text
from velox.policy.budgets.rules import BUDGET_SCOPES
from velox.shm.budget_table import BudgetMemory, BudgetState

__all__ = ["BudgetPages"]

_PAGE: Final = 100
_MOST_PAGE: Final = 1000
_MOST_ROW: Final = 12  # digits


class BudgetPages:
    """The call. memory: None: nothing is recorded, so nothing is counted. now: Unix time in seconds."""

    def __init__(self, memory: BudgetMemory | None, now: Callable[[], float]) -> None:
        self._memory: Final = memory
        self._now: Final = now

    def __repr__(self) -> str:
        return "<BudgetPages>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        query = (
            Field("scope", {"enum": list(BUDGET_SCOPES)}, "only budgets of these"),
            Field("name", {"type": "string"}, "only those of this key, team, user, tag or model: its id or name"),
            Field("cursor", {"type": "string"}, "of the page before"),
            Field("limit", {"type": "integer", "minimum": 1, "maximum": _MOST_PAGE}, f"of a page; {_PAGE}"),
        )
        about = "What is spent and left of each budget that was used since the start, or in its window before."
        page = schemas.listed(schemas.ref("BudgetState"))
        yield Route("GET", "/api/v1/budgets", "listBudgets", about, self._list, page, OWNERS, query)

    def _list(self, call: ApiCall) -> Answer:
        memory = self._memory
        if memory is None:
            raise ApiError(404, "off", "nothing is recorded here, so there are no budgets: set VELOX_LEDGER=FOLDER")
        text = call.query.get("cursor", "0")
        if not text.isascii() or not text.isdecimal() or len(text) > _MOST_ROW:
            raise ApiError(400, "invalid", "cursor: expected what the page before has told", "cursor")
        scope = call.query.get("scope")
        if scope is not None and scope not in BUDGET_SCOPES:
            raise ApiError(400, "invalid", f"scope: expected one of {', '.join(BUDGET_SCOPES)}", "scope")
        most, now_s, first = call.number("limit", _PAGE, _MOST_PAGE), self._now(), int(text)
        found: list[dict[str, Any]] = []
        for row in memory.used_rows():
            state = memory.state(row, now_s) if row >= first else None
            if state is None or not _is_asked_for(call, state):
                continue
            if len(found) == most:
                return Answer(200, {"data": found, "cursor": str(row)})
            found.append(_shown(state))
        return Answer(200, {"data": found, "cursor": None})


def _is_asked_for(call: ApiCall, state: BudgetState) -> bool:
    label, asker, name = state.label, call.asker, call.query.get("name")
    if asker.role is Role.OWN:
        # Of a key its ID: it may have had another name when its budget was first used.
        own = {"key": key_id(asker.key_name), "team": asker.team}.get(label.scope)
        if not own or _parts(state)[0] != own:
            return False
    if label.scope != call.query.get("scope", label.scope):
        return False
    if name is None or name in (label.who, *_parts(state)):
        return True
    # The id that a managed key was given is in no record: what it is counted by is made of it.
    return label.scope == "key" and _parts(state)[0] == caller_id_of(name).hex()


def _parts(state: BudgetState) -> tuple[str, str]:
    """Return id and name of whose it is."""
    who = state.label.who
    if state.label.scope != "key":
        return who, who
    id_, _, name = who.partition(" ")
    return id_, name


def _shown(state: BudgetState) -> dict[str, Any]:
    label, (id_, name) = state.label, _parts(state)

    def amount(n: int) -> int | str:
        return n if label.is_tokens else f"{n // NANO_PER_USD}.{n % NANO_PER_USD:09d}"

    return {
        "scope": label.scope,
        "id": id_,
        "name": name,
        "budget": label.name,
        "window": period_text(label.budget(state.limit)),
        "zone": label.zone,
        "window_start": _time(state.window.start_s),
        "window_end": None if state.window.end_s is None else _time(state.window.end_s),
        "unit": "tokens" if label.is_tokens else "usd",
        "limit": amount(state.limit),
        "spent": amount(state.spent),
        "held": amount(state.held),
        "left": amount(state.left),
        "state": "unread" if state.is_lacking else "known" if state.room is None else "redis_down",
    }


def _time(at_s: int) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
