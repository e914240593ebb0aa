"""LiteLLM's paths of keys, teams and users: `/key/...`, `/team/...`, `/user/...`.

Knows: which call does what, and the shape of each answer. Does not know: fields (fields.py), or where accounts are
kept. All handlers block: they wait for the database.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from velox.accounts.fields import FieldError, time_text
from velox.accounts.model import Account, Key, Kind, Team
from velox.accounts.service import MOST_GRACE_S, Accounts, AccountsError, Made
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import ADMINS, OWNERS, READERS, Route
from velox.admin.roles import Role
from velox.ledger.store import Store
from velox.policy.budgets.budget import window_at
from velox_migrate.account_fields import OUR_NAMES, duration_s, name_here
from velox_migrate.admin.fields import alias_of, changed, created, first_budget, shown
from velox_migrate.admin.members import Members, has_account, is_member, memberships_of, user_of_email
from velox_migrate.admin.spent import find_key, spent_of

__all__ = ["LitellmAccounts"]

_PAGE: Final = 100
_MOST_PAGE: Final = 1000
_MOST_BULK: Final = 500
_MOST_TOLD: Final = 256
_RETRIES: Final = 100  # each time somebody else has made a change
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class LitellmAccounts:
    """The calls. accounts, store: as for the API. now: Unix time. logger: the operations log."""

    def __init__(
        self,
        accounts: Callable[[], Accounts],
        store: Callable[[], Store],
        now: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self._accounts: Final = accounts
        self._store: Final = store
        self._now: Final = now
        self._logger: Final = logger
        self._told: Final[set[str]] = set()
        self._members: Final = Members(accounts, lambda team: self._owner("team", team))

    def __repr__(self) -> str:
        return "<LitellmAccounts>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        for path, do in (
            ("/key/generate", self._generate),
            ("/key/update", self._update_key),
            ("/key/delete", self._delete_keys),
            ("/key/block", self._block),
            ("/key/unblock", self._unblock),
            ("/key/regenerate", self._regenerate),
            ("/key/{key}/regenerate", self._regenerate),
            ("/team/new", self._new_team),
            ("/key/bulk_update", self._update_keys),
            ("/team/update", self._update_team),
            ("/team/delete", self._delete_teams),
            ("/team/block", self._block_team),
            ("/team/unblock", self._unblock_team),
            ("/team/member_add", self._members.add),
            ("/team/member_update", self._members.update),
            ("/team/member_delete", self._members.delete),
            ("/user/new", self._new_user),
            ("/user/update", self._update_user),
            ("/user/delete", self._delete_users),
        ):
            yield Route("POST", path, path, "", do, {}, ADMINS, body={})
        yield Route("GET", "/key/info", "/key/info", "", self._key_info, {}, OWNERS)
        for path, read in (
            ("/key/list", self._list_keys),
            ("/key/aliases", self._list_aliases),
            ("/team/info", self._team_info),
            ("/team/list", self._list_teams),
            ("/user/info", self._user_info),
            ("/user/list", self._list_users),
        ):
            yield Route("GET", path, path, "", read, {}, READERS)

    # -- keys -------------------------------------------------------------------------------------

    def _generate(self, call: ApiCall) -> Answer:
        body = dict(call.body)
        secret = body.pop("key", None)
        if secret is None:
            _check_private(call)
        fields = created("key", body, self._now_s, self._tell)
        user = self._missing_user(fields.get("user"), call)
        try:
            with _Named("key"):
                made = self._accounts().create_key(
                    {**fields, **({} if secret is None else {"key": secret})}, call.asker.name
                )
        except (ApiError, AccountsError):
            if user is not None:
                with contextlib.suppress(AccountsError):  # somebody has given it a key since
                    self._accounts().delete("user", user.id, call.asker.name)
            raise
        key = self._blocked(made.key, body, call)
        return Answer(200, self._made(made._replace(key=key)))

    def _missing_user(self, id_: object, call: ApiCall) -> Account | None:
        """Make the user of a new key, as LiteLLM does; None: there is one, or the key has none. Raises ApiError."""
        if not isinstance(id_, str) or not id_ or has_account(self._accounts(), "user", id_):
            return None
        with _Named("user"):
            try:
                return self._accounts().create_user({"id": id_}, call.asker.name)
            except AccountsError as exc:
                if exc.code == "conflict":  # somebody else made it meanwhile
                    return None
                raise

    def _made(self, made: Made) -> dict[str, Any]:
        token = self._token(made.key)
        return {**self._key(made.key, 0.0, token), "key": made.secret, "token_id": token}

    def _update_key(self, call: ApiCall) -> Answer:
        return Answer(200, self._updated_key(call.body, call))

    def _updated_key(self, body: Mapping[str, Any], call: ApiCall) -> dict[str, Any]:
        """Change a key that is named by itself, its SHA-256, or else its alias. Raises ApiError."""
        given, alias = body.get("key"), body.get("key_alias")
        by_alias = given is None and isinstance(alias, str) and alias != ""
        key = self._only_of_alias(str(alias), "key_alias") if by_alias else self._find(given)
        with _Named("key"):
            after = self._change("key", key, body, call)
            assert isinstance(after, Key), "that was changed"
            after = self._blocked(after, body, call)
        return {**self._key(after), "key": self._token(key) if by_alias else given}

    def _update_keys(self, call: ApiCall) -> Answer:
        """Change several keys, each for itself: one that is refused keeps none of the others from its change."""
        items = call.body.get("keys")
        if not isinstance(items, list) or not 1 <= len(items) <= _MOST_BULK:
            raise ApiError(400, "invalid", f"keys: expected a list of 1 to {_MOST_BULK} objects", "keys")
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for item in items:
            given = item.get("key") if isinstance(item, dict) else None
            name = given if isinstance(given, str) else ""
            try:
                if not isinstance(item, dict):
                    raise ApiError(400, "invalid", "keys: expected objects", "keys")
                info = self._updated_key({"key": name, **item}, call)
            except (ApiError, AccountsError) as exc:
                failed.append({"key": name, "key_info": None, "failed_reason": exc.message})
            else:
                done.append({"key": name, "key_info": info})
        return Answer(200, {"total_requested": len(items), "successful_updates": done, "failed_updates": failed})

    def _delete_keys(self, call: ApiCall) -> Answer:
        # null is nothing: the Python client sends both.
        keys, aliases = call.body.get("keys") or [], call.body.get("key_aliases") or []
        if not isinstance(keys, list) or not isinstance(aliases, list) or not (keys or aliases):
            raise ApiError(400, "invalid", "keys: expected a list of keys, or key_aliases", "keys")
        found = [self._find(each, "keys") for each in keys]
        found += [self._only_of_alias(str(alias), "key_aliases") for alias in aliases]
        for key in {each.id: each for each in found}.values():
            self._accounts().delete("key", key.id, call.asker.name)
        return Answer(200, {"deleted_keys": [*keys, *aliases]})

    def _block(self, call: ApiCall) -> Answer:
        key = self._find(call.body.get("key"))
        return Answer(200, self._key_of(self._accounts().block("key", key.id, call.asker.name)))

    def _unblock(self, call: ApiCall) -> Answer:
        key = self._find(call.body.get("key"))
        return Answer(200, self._key_of(self._accounts().unblock("key", key.id, call.asker.name)))

    def _regenerate(self, call: ApiCall) -> Answer:
        """Change what is given, and give the key a new secret."""
        _check_private(call)
        key = self._find(call.ids[0] if call.ids else call.body.get("key"))
        if call.body.get("new_key") is not None:
            raise ApiError(
                400, "invalid", "new_key: expected nothing: a rotated key gets a secret of its own", "new_key"
            )
        given = {name: value for name, value in call.body.items() if name not in ("key", "new_key", "new_master_key")}
        grace = given.get("grace_period")
        try:
            grace_s = 0 if grace in (None, "", "0s") else duration_s("grace_period", grace)
        except FieldError as exc:
            raise ApiError(400, "invalid", str(exc), exc.field) from None
        if grace_s > MOST_GRACE_S:
            message = f"grace_period: expected at most {MOST_GRACE_S // 86_400}d"
            raise ApiError(400, "invalid", message, "grace_period")
        if given.keys() - {"grace_period"}:
            with _Named("key"):
                self._change("key", key, given, call)
        return Answer(200, self._made(self._accounts().rotate_key(key.id, grace_s, call.asker.name)))

    def _key_info(self, call: ApiCall) -> Answer:
        asker, given = call.asker, call.query.get("key")
        key = self._accounts().find_key(asker.key) if given is None and asker.key else self._find(given)
        if key is None or (asker.role is Role.OWN and key.id != asker.key):
            raise ApiError(404, "not_found", "there is no such key", "key")
        return Answer(200, {"key": given or self._token(key), "info": self._key(key)})

    def _list_keys(self, call: ApiCall) -> Answer:
        where = {
            ours: call.query[name] for name, ours in (("team_id", "team"), ("user_id", "user")) if call.query.get(name)
        }
        if call.query.get("key_hash"):
            found: Sequence[Account] = [self._find(call.query["key_hash"], "key_hash")]
        else:
            alias = call.query.get("key_alias")
            found = self._of_alias(alias, where) if alias else self._all("key", where)
        some, page = self._page(call, found, call.number("size", _PAGE, _MOST_PAGE))
        tokens = {id_: each.hex() for id_, each in self._accounts().key_digests().items()}
        keys: list[Any] = [tokens.get(each.id, "") for each in some]
        if call.query.get("return_full_object", "").lower() == "true":
            spent = spent_of("key", some, self._store, self._now_s)
            keys = [
                self._key(each, spent.get(each.id, 0.0), tokens.get(each.id, ""))
                for each in some
                if isinstance(each, Key)
            ]
        counts = {
            "total_count": len(found),
            "current_page": page,
            "total_pages": _pages(len(found), call.number("size", _PAGE, _MOST_PAGE)),
        }
        return Answer(200, {"keys": keys, **counts})

    def _list_aliases(self, call: ApiCall) -> Answer:
        where = {"team": call.query["team_id"]} if call.query.get("team_id") else {}
        wanted = call.query.get("search", "").lower()
        aliases = {alias_of("key", each) for each in self._all("key", where)}
        found = sorted(each for each in aliases if each and wanted in each.lower())
        size, page = call.number("size", 50, _MOST_PAGE), call.number("page", 1, 1_000_000)
        counts = {"total_count": len(found), "current_page": page, "total_pages": _pages(len(found), size)}
        return Answer(200, {"aliases": found[(page - 1) * size : page * size], **counts, "size": size})

    def _only_of_alias(self, alias: str, field: str) -> Key:
        found = self._of_alias(alias, {})
        if len(found) != 1:
            raise ApiError(404, "not_found", f"{field}: not found: no key, or several, have this alias", field)
        return found[0]

    def _of_alias(self, alias: str, where: Mapping[str, str]) -> list[Key]:
        found = self._all("key", {**where, "name": name_here("key", alias)})
        return [each for each in found if isinstance(each, Key) and alias_of("key", each) == alias]

    def _find(self, given: object, field: str = "key") -> Key:
        if not isinstance(given, str) or not given:
            raise ApiError(400, "invalid", f"{field}: expected a key, or its SHA-256", field)
        key = find_key(self._accounts(), given)
        if key is None:
            raise ApiError(404, "not_found", "there is no such key", field)
        return key

    def _token(self, key: Key) -> str:
        held = sorted(self._accounts().digests(key.id), key=lambda each: each.until_s is not None)
        return held[0].digest.hex() if held else ""

    def _key_of(self, key: Account) -> dict[str, Any]:
        assert isinstance(key, Key), "that was asked for"
        return self._key(key)

    def _key(self, key: Key, spent: float | None = None, token: str | None = None) -> dict[str, Any]:
        if spent is None:
            spent = spent_of("key", [key], self._store, self._now_s).get(key.id, 0.0)
        return {
            **shown(key),
            "token": self._token(key) if token is None else token,
            "key_name": key.hint or None,
            "spend": spent,
            **self._reset(key),
        }

    # -- teams ------------------------------------------------------------------------------------

    def _new_team(self, call: ApiCall) -> Answer:
        fields = created(
            "team", {name: value for name, value in call.body.items() if name != "team_id"}, self._now_s, self._tell
        )
        with _Named("team"):
            team = self._accounts().create_team({**fields, **_given_id(call.body, "team_id")}, call.asker.name)
            team = self._blocked(team, call.body, call)
        return Answer(200, self._owner("team", team, 0.0))

    def _update_team(self, call: ApiCall) -> Answer:
        team = self._accounts().get("team", _id(call.body, "team_id"))
        with _Named("team"):
            team = self._blocked(self._change("team", team, call.body, call), call.body, call)
        return Answer(200, {"team_id": team.id, "data": self._owner("team", team)})

    def _team_info(self, call: ApiCall) -> Answer:
        team = self._accounts().get("team", _id(call.query, "team_id"))
        keys = self._all("key", {"team": team.id})
        more = {"keys": self._keys(keys), "team_memberships": memberships_of(team)}
        return Answer(200, {"team_id": team.id, "team_info": self._owner("team", team), **more})

    def _list_teams(self, call: ApiCall) -> Answer:
        teams = self._all("team", {})
        if call.query.get("user_id"):
            user = call.query["user_id"]
            mine = {each.team for each in self._all("key", {"user": user}) if isinstance(each, Key)}
            teams = [each for each in teams if each.id in mine or is_member(each, user)]
        spent = spent_of("team", teams, self._store, self._now_s)
        keys = self._keys_by_team()
        return Answer(
            200,
            [
                {
                    **self._owner("team", each, spent.get(each.id, 0.0)),
                    "keys": keys.get(each.id, []),
                    "team_memberships": memberships_of(each),
                }
                for each in teams
            ],
        )

    def _keys_by_team(self) -> dict[str, list[dict[str, Any]]]:
        keys = [each for each in self._all("key", {}) if isinstance(each, Key) and each.team]
        spent = spent_of("key", keys, self._store, self._now_s)
        tokens = {id_: each.hex() for id_, each in self._accounts().key_digests().items()}
        found: dict[str, list[dict[str, Any]]] = {}
        for each in keys:
            found.setdefault(each.team, []).append(self._key(each, spent.get(each.id, 0.0), tokens.get(each.id, "")))
        return found

    def _delete_teams(self, call: ApiCall) -> Answer:
        """Delete teams with their keys, as LiteLLM does."""
        ids = self._delete_owners("team", call)
        return Answer(200, {"deleted_teams": ids})

    def _delete_owners(self, kind: Kind, call: ApiCall) -> list[str]:
        """Delete teams or users with their keys; nothing is done if one of them is not there. Raises ApiError."""
        field = f"{kind}_ids"
        ids = call.body.get(field)
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) and each for each in ids):
            raise ApiError(400, "invalid", f"{field}: expected a list of ids", field)
        accounts, actor = self._accounts(), call.asker.name
        wanted = list(dict.fromkeys(ids))
        for each in wanted:
            if not has_account(accounts, kind, each):
                raise ApiError(404, "not_found", f"{field}: one of these is not found", field)
        for each in wanted:
            for key in self._all("key", {kind: each}):
                accounts.delete("key", key.id, actor)
            accounts.delete(kind, each, actor)
        return wanted

    def _block_team(self, call: ApiCall) -> Answer:
        team = self._accounts().block("team", _id(call.body, "team_id"), call.asker.name)
        return Answer(200, self._owner("team", team))

    def _unblock_team(self, call: ApiCall) -> Answer:
        team = self._accounts().unblock("team", _id(call.body, "team_id"), call.asker.name)
        return Answer(200, self._owner("team", team))

    # -- users ------------------------------------------------------------------------------------

    def _new_user(self, call: ApiCall) -> Answer:
        """Make a user, and unless it is told not to, a key."""
        body = dict(call.body)
        has_key = body.pop("auto_create_key", True) is not False
        if has_key:
            _check_private(call)
        own = {
            name: value
            for name, value in body.items()
            if name not in ("user_id", "key_alias", "team_id", "duration", "teams")
        }
        fields = created("user", own, self._now_s, self._tell)
        of_key = {name: body[name] for name in ("key_alias", "team_id", "duration", "models") if body.get(name)}
        key_fields = created("key", of_key, self._now_s, self._tell)
        accounts = self._accounts()
        teams = self._members.teams(body.get("teams"))
        with _Named("user"):
            user = accounts.create_user({**fields, **_given_id(body, "user_id")}, call.asker.name)
            user = self._blocked(user, body, call)
        answer = self._owner("user", user, 0.0)
        if has_key:
            try:
                with _Named("key"):
                    made = accounts.create_key({**key_fields, "user": user.id}, call.asker.name)
                # Of what both have, such as a budget, the user's: its key was given none.
                answer = {**self._made(made), **answer}
            except ApiError:
                accounts.delete("user", user.id, call.asker.name)
                raise
        for team in teams:
            self._members.join(team, user, call.asker.name)
        return Answer(200, {**answer, "user_id": user.id, "teams": [each.id for each in teams]})

    def _update_user(self, call: ApiCall) -> Answer:
        """Change a user that is named by its id, or else by its address."""
        body = dict(call.body)
        email = body.get("user_email")
        if not body.get("user_id") and isinstance(email, str) and email:
            found = user_of_email(self._accounts(), email)
            if found is None:
                raise ApiError(404, "not_found", "user_email: not found: no user, or several, have it", "user_email")
            user: Account = found
        else:
            user = self._accounts().get("user", _id(body, "user_id"))
        body.pop("user_id", None)
        teams = body.pop("teams", None)
        ids = sorted(map(str, teams)) if isinstance(teams, list) else teams
        if ids is not None and ids != sorted(each.id for each in self._teams_of(user.id)):
            message = "teams: they are changed by /team/member_add and /team/member_delete, so nothing was done"
            raise ApiError(400, "invalid", message, "teams")
        with _Named("user"):
            user = self._blocked(self._change("user", user, body, call), body, call)
        return Answer(200, {"user_id": user.id, "data": self._owner("user", user)})

    def _delete_users(self, call: ApiCall) -> Answer:
        """Delete users with their keys, and take them out of their teams, as LiteLLM does."""
        ids = self._delete_owners("user", call)
        for team in self._all("team", {}):
            self._members.drop(team, ids, call.asker.name)
        return Answer(200, len(ids))

    def _user_info(self, call: ApiCall) -> Answer:
        user = self._accounts().get("user", _id(call.query, "user_id"))
        keys = self._all("key", {"user": user.id})
        teams = self._teams_of(user.id)
        more = {"keys": self._keys(keys), "teams": [self._owner("team", each) for each in teams]}
        info = {**self._owner("user", user), "teams": [each.id for each in teams]}
        return Answer(200, {"user_id": user.id, "user_info": info, **more})

    def _teams_of(self, user: str) -> list[Account]:
        """Return the teams of which a user is a member, or has a key."""
        mine = {each.team for each in self._all("key", {"user": user}) if isinstance(each, Key)}
        return [each for each in self._all("team", {}) if each.id in mine or is_member(each, user)]

    def _list_users(self, call: ApiCall) -> Answer:
        found = self._all("user", {})
        if call.query.get("user_ids"):
            wanted = set(call.query["user_ids"].split(","))
            found = [each for each in found if each.id in wanted]
        size = call.number("page_size", 25, _MOST_PAGE)
        some, page = self._page(call, found, size)
        spent = spent_of("user", some, self._store, self._now_s)
        users = [self._owner("user", each, spent.get(each.id, 0.0)) for each in some]
        counts = {"total": len(found), "page": page, "page_size": size, "total_pages": _pages(len(found), size)}
        return Answer(200, {"users": users, **counts})

    # -- what they share --------------------------------------------------------------------------

    @property
    def _now_s(self) -> int:
        return int(self._now())

    def _tell(self, name: str) -> None:
        """Say once of a field that it is kept, and that nothing follows from it."""
        if name not in self._told and len(self._told) < _MOST_TOLD and _WORD.fullmatch(name):
            self._told.add(name)
            self._logger.warning("LiteLLM's field %s is kept with its account, and means nothing here", name)

    def _change(self, kind: Kind, account: Account, body: Mapping[str, Any], call: ApiCall) -> Account:
        """Change what a body names. What follows from fields of ours follows from those that are changed."""
        for _ in range(_RETRIES):
            fields = self._changes(kind, account, body)
            try:
                return self._accounts().update(kind, account.id, fields, call.asker.name, _same_as(account))
            except _ChangedError as changed_since:
                account = changed_since.account
        raise ApiError(409, "conflict", "others are changing it at the same time: try again")

    def _changes(self, kind: Kind, account: Account, body: Mapping[str, Any]) -> dict[str, object]:
        spend = body.get("spend")
        if spend is not None and spend != spent_of(kind, [account], self._store, self._now_s).get(account.id, 0.0):
            message = "spend: what was spent is what is recorded, and can't be set: raise max_budget instead"
            raise ApiError(400, "invalid", message, "spend")
        return changed(account, body, self._now_s, self._tell, kind)

    def _blocked(self, account: Any, body: Mapping[str, Any], call: ApiCall) -> Any:
        """Block or unblock an account, if a body asks for it; return what it is then."""
        wanted = body.get("blocked")
        if not isinstance(wanted, bool) or wanted is account.is_blocked:
            return account
        kind: Kind = "key" if isinstance(account, Key) else "team" if isinstance(account, Team) else "user"
        do = self._accounts().block if wanted else self._accounts().unblock
        return do(kind, account.id, call.asker.name)

    def _owner(self, kind: Kind, account: Account, spent: float | None = None) -> dict[str, Any]:
        if spent is None:
            spent = spent_of(kind, [account], self._store, self._now_s).get(account.id, 0.0)
        return {**shown(account), f"{kind}_id": account.id, "spend": spent, **self._reset(account)}

    def _reset(self, account: Account) -> dict[str, Any]:
        budget = first_budget(account)
        end_s = None if budget is None else window_at(budget, self._now_s).end_s
        return {"budget_reset_at": None if end_s is None else time_text(end_s)}

    def _keys(self, keys: Sequence[Account]) -> list[dict[str, Any]]:
        spent = spent_of("key", keys, self._store, self._now_s)
        return [self._key(each, spent.get(each.id, 0.0)) for each in keys if isinstance(each, Key)]

    def _all(self, kind: Kind, where: Mapping[str, str]) -> list[Account]:
        found: list[Account] = []
        cursor = ""
        while True:
            page = self._accounts().page(kind, cursor, _MOST_PAGE, where)
            found += page.items
            cursor = page.cursor
            if not cursor:
                return found

    def _page(self, call: ApiCall, found: Sequence[Account], size: int) -> tuple[Sequence[Account], int]:
        page = call.number("page", 1, 1_000_000)
        return found[(page - 1) * size : page * size], page


class _ChangedError(Exception):
    """An account is another one than the fields were made for."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account: Final = account


def _same_as(before: Account) -> Callable[[Account], None]:
    def check(account: Account) -> None:
        if account != before:
            raise _ChangedError(account)

    return check


class _Named:
    """Has errors name LiteLLM's field."""

    def __init__(self, kind: Kind) -> None:
        self._names: Final = OUR_NAMES[kind]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, AccountsError) and error.field:
            first = error.field.partition(".")[0]
            theirs = self._names.get(first, first)
            message = error.message.replace(error.field, theirs, 1)
            status = {"not_found": 404, "conflict": 409}.get(error.code, 400)
            raise ApiError(status, error.code, message, theirs) from None


def _id(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name)
    if not isinstance(found, str) or not found:
        raise ApiError(400, "invalid", f"{name}: expected an id", name)
    return found


def _given_id(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"id": body[name]} if body.get(name) is not None else {}


def _pages(n: int, size: int) -> int:
    return max(1, -(-n // size))


def _check_private(call: ApiCall) -> None:
    if not call.is_private:
        message = (
            "a new key is shown over TLS or from this machine only: set VELOX_ADMIN_TLS_CERT, or give a key of yours"
        )
        raise ApiError(403, "not_private", message)
