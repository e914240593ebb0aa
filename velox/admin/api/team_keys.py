"""What a team's own token may do: a key that manages the keys of its team.

Knows: what such a key may give and change. Does not know: how keys are kept (velox.accounts), or which call asks.

A manager gives no more than its team has, and nothing by which one caller is told from another: ids, names and users.
Objects, limits and rules go by these, so a key of another team could be impersonated with them. Who manages is for the
admin to say: a manager makes no others, and changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from velox.accounts.active import covers_endpoint
from velox.accounts.fields import RATES, FieldError, read_fields
from velox.accounts.model import Account, Key, Team
from velox.accounts.service import Accounts, AccountsError
from velox.admin.api.call import ApiError, Asker
from velox.admin.roles import Role
from velox.policy.budgets.budget import same_windows
from velox.policy.patterns import covers
from velox.types import NO_RATES, Budget, Priority

__all__ = ["MOST_TEAM_KEYS", "TeamKeys"]

MOST_TEAM_KEYS: Final = 1000
_ADMINS: Final = ("id", "name", "user", "role")
# Groups that a key of a team without a list of its own must not be given.
_NAMED_ONLY: Final = "organization"


class TeamKeys:
    """The keys that one asker may change. Raises ApiError: 403 for a key of a client that manages nothing."""

    def __init__(self, accounts: Accounts, asker: Asker) -> None:
        if not asker.manages or not asker.team:
            message = "this key may only read: the admin token, or a key with the role team_admin, is needed"
            raise ApiError(403, "forbidden", message)
        self._accounts: Final = accounts
        self._asker: Final = asker

    def __repr__(self) -> str:
        return f"<TeamKeys of {self._asker.team}>"

    @classmethod
    def guard_of(cls, accounts: Accounts, asker: Asker) -> Callable[[Account], None] | None:
        """Return what refuses a change of keys that are not the asker's; None: all are. Raises ApiError."""
        return cls(accounts, asker).guard if asker.role is Role.OWN else None

    def guard(self, account: Account) -> None:
        """Refuse a key that is not the team's: as if there was none. Raises ApiError, AccountsError."""
        if not isinstance(account, Key) or account.team != self._asker.team:
            raise AccountsError("not_found", "there is no such key")
        if account.role:
            raise ApiError(403, "forbidden", "a key that manages its team's keys is changed with the admin token only")

    def new(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Return the fields of a new key: it is the team's. Raises ApiError."""
        given = {name: value for name, value in fields.items() if value is not None or name not in (*_ADMINS, "team")}
        self.check(given)
        page = self._accounts.page("key", "", MOST_TEAM_KEYS, {"team": self._asker.team})
        if len(page.items) >= MOST_TEAM_KEYS:
            raise ApiError(403, "forbidden", f"the team has {MOST_TEAM_KEYS} keys: more are made with the admin token")
        return {**given, "team": self._asker.team}

    def check(self, fields: Mapping[str, object]) -> None:
        """Refuse fields that give more than the team has. Raises ApiError, AccountsError.

        What is no value of its field is left to whoever reads it.
        """
        if "team" in fields and fields["team"] != self._asker.team:
            raise _refused("team", "a team's own token has keys of its team only")
        for name in _ADMINS:
            if name in fields:
                raise _refused(name, f"{name} is given with the admin token only")
        team = self._accounts.get("team", self._asker.team)
        assert isinstance(team, Team), "that was asked for"
        for name, most, holds in (("models", team.models, covers), ("endpoints", team.endpoints, covers_endpoint)):
            if most and not all(any(holds(wide, each) for wide in most) for each in _texts(fields.get(name))):
                raise _refused(name, f"expected some of its team's {name}")
        if not team.endpoints and any(
            each.startswith("/") or each == _NAMED_ONLY for each in _texts(fields.get("endpoints"))
        ):
            raise _refused("endpoints", f"paths and {_NAMED_ONLY} are given with the admin token only")
        for name in RATES:
            value, most_rate = fields.get(name), getattr(team.rates, name)
            if isinstance(value, int) and most_rate and value > most_rate:
                raise _refused(name, f"expected at most {most_rate}, as its team has")
        _check_priority(fields.get("priority"), team)
        _check_budgets(fields.get("budgets"), team)


def _check_priority(value: object, team: Team) -> None:
    most = Priority.NORMAL if team.priority is None else team.priority
    for each in Priority:
        if value == each.name.lower() and each < most:
            raise _refused("priority", f"expected {most.name.lower()} at most")


def _check_budgets(value: object, team: Team) -> None:
    if not value:
        return
    try:
        budgets: Sequence[Budget] = read_fields("key", {"budgets": value}, NO_RATES)["budgets"]
    except FieldError:
        return  # whoever reads it says what is wrong
    for budget in budgets:
        for most in team.budgets:
            if same_windows(budget) == same_windows(most) and budget.limit > most.limit:
                raise _refused("budgets", "expected at most what its team may spend in such a window")


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _refused(field: str, why: str) -> ApiError:
    return ApiError(403, "forbidden", f"{field}: {why}", field)
