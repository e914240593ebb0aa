"""LiteLLM's members of teams: `/team/member_add`, `/team/member_update`, `/team/member_delete`.

Members are kept with their team, in `metadata` as its other fields of LiteLLM, and given back. Nothing follows from
them: a user is bound to a team by a key that belongs to both. What would limit a member is refused.

Knows: how members are given and kept. Does not know: how a team is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from velox.accounts.model import Account, Kind, User
from velox.accounts.service import Accounts, AccountsError
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox_migrate.account_fields import LITELLM

__all__ = ["Members", "has_account", "is_member", "memberships_of", "user_of_email"]

_KEPT: Final = "members_with_roles"
_ROLES: Final = frozenset({"admin", "user"})
_PAGE: Final = 1000
_RETRIES: Final = 100  # each time somebody else has made a change
_MOST: Final = 500  # members of one call
_NAMES: Final = frozenset({"team_id", "user_id", "user_email", "role", "member"})
# They limit what a member may do in its team, which nothing here does.
_LIMITING: Final = (
    "max_budget_in_team",
    "budget_duration",
    "allowed_models",
    "tpm_limit",
    "rpm_limit",
    "temp_budget_increase",
    "temp_budget_expiry",
    "model_max_budget",
)


class Members:
    """The calls. accounts: as for the API. shown: a team as LiteLLM's clients see it."""

    def __init__(self, accounts: Callable[[], Accounts], shown: Callable[[Account], dict[str, Any]]) -> None:
        self._accounts: Final = accounts
        self._shown: Final = shown

    def __repr__(self) -> str:
        return "<Members>"

    def add(self, call: ApiCall) -> Answer:
        """Add members; users that are not there are made, as LiteLLM does. Nothing is done if one is one already."""
        _check(call.body)
        given = call.body.get("member")
        items: list[Any] = given if isinstance(given, list) else [given]
        if not 1 <= len(items) <= _MOST or not all(isinstance(each, dict) for each in items):
            raise ApiError(400, "invalid", f"member: expected an object, or a list of 1 to {_MOST}", "member")
        team = self._accounts().get("team", _team_id(call.body))
        wanted = [_member(each) for each in items]
        users = [self._user(each) for each in wanted]
        for user in users:
            if user is not None:
                _check_new(team, user.id)
        new: dict[str, dict[str, Any]] = {}
        for each, found in zip(wanted, users, strict=True):
            user = found or self._made(each, call)
            new[user.id] = {"user_id": user.id, "user_email": user.email or None, "role": each["role"]}

        def added(now: Account) -> list[dict[str, Any]]:
            for id_ in new:
                _check_new(now, id_)
            return [*members_of(now), *new.values()]

        team = self._change(team, added, call.asker.name)
        return Answer(
            200,
            {
                **self._shown(team),
                "updated_users": [
                    {"user_id": each["user_id"], "user_email": each["user_email"], "max_budget": None, "spend": 0.0}
                    for each in new.values()
                ],
                "updated_team_memberships": [each for each in memberships_of(team) if each["user_id"] in new],
            },
        )

    def update(self, call: ApiCall) -> Answer:
        """Change the role of a member."""
        _check(call.body)
        team = self._accounts().get("team", _team_id(call.body))
        role = call.body.get("role")
        if role is not None and role not in _ROLES:
            raise ApiError(400, "invalid", "role: expected admin or user", "role")
        found = _found(team, call.body)

        def updated(now: Account) -> list[dict[str, Any]]:
            _found(now, {"user_id": found["user_id"]})
            return [
                {**each, "role": role or each["role"]} if each["user_id"] == found["user_id"] else each
                for each in members_of(now)
            ]

        if role is not None:
            self._change(team, updated, call.asker.name)
        more = dict.fromkeys(_LIMITING)
        return Answer(
            200,
            {"team_id": team.id, "user_id": found["user_id"], "user_email": found.get("user_email"), **more},
        )

    def delete(self, call: ApiCall) -> Answer:
        """Take a member out of a team. Its keys stay, as they do in LiteLLM."""
        _check(call.body)
        team = self._accounts().get("team", _team_id(call.body))
        id_ = _found(team, call.body)["user_id"]
        return Answer(200, self._shown(self._change(team, lambda now: _without(now, [id_]), call.asker.name)))

    def teams(self, ids: object) -> list[Account]:
        """Return the teams that a new user is to be in. Raises ApiError."""
        if ids is None:
            return []
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise ApiError(400, "invalid", "teams: expected a list of ids", "teams")
        accounts = self._accounts()
        if not all(has_account(accounts, "team", each) for each in ids):
            raise ApiError(404, "not_found", "teams: one of these is not found", "teams")
        return [accounts.get("team", each) for each in dict.fromkeys(ids)]

    def join(self, team: Account, user: User, actor: str) -> None:
        """Make a user a member of a team, if it is none. Raises ApiError, AccountsError."""
        member = {"user_id": user.id, "user_email": user.email or None, "role": "user"}
        self._change(
            team, lambda now: members_of(now) if is_member(now, user.id) else [*members_of(now), member], actor
        )

    def drop(self, team: Account, users: Sequence[str], actor: str) -> None:
        """Take users out of a team, if they are in it. Raises ApiError, AccountsError."""
        if any(is_member(team, each) for each in users):
            self._change(team, lambda now: _without(now, users), actor)

    def _user(self, member: Mapping[str, str]) -> User | None:
        """Return the user whom a member names by its id, or else by its address; None: there is none."""
        accounts = self._accounts()
        if not member["user_id"]:
            return user_of_email(accounts, member["user_email"])
        if not has_account(accounts, "user", member["user_id"]):
            return None
        user = accounts.get("user", member["user_id"])
        assert isinstance(user, User), "that was asked for"
        return user

    def _made(self, member: Mapping[str, str], call: ApiCall) -> User:
        id_ = {"id": member["user_id"]} if member["user_id"] else {}
        email = {"email": member["user_email"]} if member["user_email"] else {}
        try:
            return self._accounts().create_user({**id_, **email}, call.asker.name)
        except AccountsError as exc:
            again = self._user(member) if exc.code == "conflict" else None
            if again is not None:  # the list names it twice, or somebody else made it meanwhile
                return again
            raise

    def _change(self, team: Account, members: Callable[[Account], list[dict[str, Any]]], actor: str) -> Account:
        """Keep other members with a team, as they follow from what it is at that time. Raises AccountsError."""
        for _ in range(_RETRIES):
            before = team
            kept = before.metadata.get(LITELLM)
            own = {**(kept if isinstance(kept, dict) else {}), _KEPT: members(before)}
            metadata = {**before.metadata, LITELLM: own}

            def check(now: Account, before: Account = before) -> None:
                if now != before:
                    raise _ChangedError(now)

            try:
                return self._accounts().update("team", team.id, {"metadata": metadata}, actor, check)
            except _ChangedError as changed:
                team = changed.account
        raise ApiError(409, "conflict", "others are changing it at the same time: try again")


class _ChangedError(Exception):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account: Final = account


def members_of(team: Account) -> list[dict[str, Any]]:
    """Return the members that are kept with a team."""
    kept = team.metadata.get(LITELLM)
    found = kept.get(_KEPT) if isinstance(kept, dict) else None
    if not isinstance(found, list):
        return []
    return [dict(each) for each in found if isinstance(each, dict) and isinstance(each.get("user_id"), str)]


def is_member(team: Account, user: str) -> bool:
    """Tell whether a user is a member of a team."""
    return any(each["user_id"] == user for each in members_of(team))


def memberships_of(team: Account) -> list[dict[str, Any]]:
    """Return the memberships of a team. What a member has spent in it is not kept."""
    nothing = {"budget_id": None, "spend": None, "litellm_budget_table": None}
    return [{"user_id": each["user_id"], "team_id": team.id, **nothing} for each in members_of(team)]


def has_account(accounts: Accounts, kind: Kind, id_: str) -> bool:
    """Tell whether there is an account of an id. Raises StoreError."""
    try:
        accounts.get(kind, id_)
    except AccountsError as exc:
        if exc.code == "not_found":
            return False
        raise
    return True


def user_of_email(accounts: Accounts, email: str) -> User | None:
    """Return the user who has an address; None: none has it, or several have."""
    found = [each for each in _users(accounts) if each.email and each.email.lower() == email.lower()]
    return found[0] if len(found) == 1 else None


def _users(accounts: Accounts) -> Iterator[User]:
    cursor = ""
    while True:
        page = accounts.page("user", cursor, _PAGE)
        yield from page.items
        cursor = page.cursor
        if not cursor:
            return


def _team_id(body: Mapping[str, Any]) -> str:
    found = body.get("team_id")
    if not isinstance(found, str) or not found:
        raise ApiError(400, "invalid", "team_id: expected an id", "team_id")
    return found


def _check(body: Mapping[str, Any]) -> None:
    """Refuse what would limit a member, and what is no field. Raises ApiError."""
    for name in _LIMITING:
        if body.get(name) not in (None, "", [], {}):
            message = f"{name}: Velox has no limits for members of teams; set them on the team, the user or the key"
            raise ApiError(400, "invalid", message, name)
    for name in body:
        if name not in _NAMES and name not in _LIMITING:
            raise ApiError(400, "invalid", "LiteLLM has no such field here", name[:64])


def _member(item: Mapping[str, Any]) -> dict[str, str]:
    found = {"user_id": item.get("user_id") or "", "user_email": item.get("user_email") or ""}
    if not all(isinstance(each, str) for each in found.values()) or not any(found.values()):
        raise ApiError(400, "invalid", "member: expected user_id or user_email", "member")
    role = item.get("role")
    if role not in _ROLES:
        raise ApiError(400, "invalid", "role: expected admin or user", "role")
    return {**found, "role": role}


def _check_new(team: Account, user: str) -> None:
    if is_member(team, user):
        raise ApiError(400, "team_member_already_in_team", "member: one of these is in the team already", "member")


def _found(team: Account, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member whom a call names. Raises ApiError."""
    id_, email = body.get("user_id") or "", body.get("user_email") or ""
    if not isinstance(id_, str) or not isinstance(email, str) or not (id_ or email):
        raise ApiError(400, "invalid", "user_id: expected user_id or user_email", "user_id")
    for each in members_of(team):
        if each["user_id"] == id_ or (not id_ and str(each.get("user_email") or "").lower() == email.lower()):
            return each
    raise ApiError(404, "not_found", "user_id: this user is not found in the team", "user_id")


def _without(team: Account, users: Sequence[str]) -> list[dict[str, Any]]:
    return [each for each in members_of(team) if each["user_id"] not in users]
