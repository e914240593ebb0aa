"""Keys, teams, users and the audit of their changes, at /api/v1.

Knows: which call does what with them, and what each role may see. Does not know: what a field may be
(accounts/fields.py), or where they are kept. All handlers block: they wait for the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from velox.accounts.fields import time_text, view
from velox.accounts.model import KINDS, Account, Change, Key, Kind
from velox.accounts.service import MOST_GRACE_S, Accounts, AccountsError, Made, Page
from velox.admin.api import schemas
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import ADMINS, MANAGERS, OWNERS, READERS, Field, Route, Schema
from velox.admin.api.team_keys import TeamKeys
from velox.admin.roles import Role

__all__ = ["AccountPages", "refused"]

_PAGE: Final = 100
_MOST_PAGE: Final = 1000
_STATUSES: Final = {"invalid": 400, "forbidden": 403, "not_found": 404, "conflict": 409}
_CURSOR: Final = Field("cursor", {"type": "string"}, "of the page before")
_LIMIT: Final = Field("limit", {"type": "integer", "minimum": 1, "maximum": _MOST_PAGE}, f"of a page; {_PAGE}")


def refused(error: AccountsError) -> ApiError:
    """Return what the API says of it."""
    return ApiError(_STATUSES.get(error.code, 400), error.code, error.message, error.field)


class AccountPages:
    """The calls. accounts: returns the service; it may wait for the database."""

    def __init__(self, accounts: Callable[[], Accounts]) -> None:
        self._accounts: Final = accounts

    def __repr__(self) -> str:
        return "<AccountPages>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        for kind in KINDS:
            yield from self._routes_of(kind)
        yield Route(
            "GET",
            "/api/v1/changes",
            "listChanges",
            "Who changed what and when, the last change first.",
            self._changes,
            schemas.listed(schemas.ref("Change")),
            READERS,
            query=(
                Field("kind", {"enum": list(KINDS)}, "only changes of these"),
                Field("id", {"type": "string"}, "only of this one"),
                Field("actor", {"type": "string"}, "only by"),
                _CURSOR,
                _LIMIT,
            ),
        )

    def _routes_of(self, kind: Kind) -> Iterator[Route]:
        base, title = f"/api/v1/{kind}s", kind.title()
        one, item = f"{base}/{{id}}", schemas.ref(title)
        changers = MANAGERS if kind == "key" else ADMINS
        made: Schema = schemas.ref("MadeKey") if kind == "key" else item
        names = ("name", "team", "user") if kind == "key" else ("name",)
        filters = tuple(Field(name, {"type": "string"}, f"only those of this {name}") for name in names)

        def route(
            method: str, path: str, name: str, about: str, do: Callable[[ApiCall, Kind], Answer], **more: Any
        ) -> Route:
            return Route(method, path, f"{name}{title}", about, lambda call: do(call, kind), **{"answer": item, **more})

        page: dict[str, Any] = {"answer": schemas.listed(item), "query": (*filters, _CURSOR, _LIMIT), "roles": OWNERS}
        yield Route(
            "GET",
            base,
            f"list{title}s",
            f"The {kind}s, in the order of their ids.",
            lambda call: self._list(call, kind),
            **page,
        )
        new = {
            "body": schemas.given(kind, is_new=True),
            "needs_body": True,
            "status": 201,
            "roles": changers,
            "errors": (409,),
            "answer": made,
        }
        yield route("POST", base, "create", f"Make a {kind}.", self._create, **new)
        yield route("GET", one, "get", f"One {kind}.", self._get, roles=OWNERS, errors=(404,))
        change = {
            "body": schemas.given(kind, is_new=False),
            "needs_body": True,
            "roles": changers,
            "errors": (404, 409),
        }
        yield route(
            "PATCH", one, "update", "Change the fields that are given; null takes one away.", self._update, **change
        )
        gone = {"roles": changers, "errors": (404, 409), "answer": schemas.ref("Deleted")}
        yield route("DELETE", one, "delete", f"Take a {kind} away.", self._delete, **gone)
        few = {"roles": changers, "errors": (404,)}
        yield route("POST", f"{one}/block", "block", f"Have nothing of this {kind} be used.", self._block, **few)
        yield route("POST", f"{one}/unblock", "unblock", "Have it be used again.", self._unblock, **few)
        if kind == "key":
            grace = {
                "type": "integer",
                "minimum": 0,
                "maximum": MOST_GRACE_S,
                "description": "for which its former secret is accepted, too; 0",
            }
            body = {"type": "object", "properties": {"grace_s": grace}, "additionalProperties": False}
            rotated = {**few, "body": body, "answer": made, "errors": (404, 409)}
            yield route("POST", f"{one}/rotate", "rotate", "Give a key a new secret.", self._rotate, **rotated)

    # -- calls ------------------------------------------------------------------------------------

    def _list(self, call: ApiCall, kind: Kind) -> Answer:
        asker = call.asker
        where = {name: call.query[name] for name in ("name", "team", "user") if name in call.query}
        if asker.role is Role.OWN:
            own = self._own(call, kind)
            if kind != "key" or not asker.team:
                shown = [view(each) for each in own if all(_says(each, name, value) for name, value in where.items())]
                return Answer(200, {"data": shown, "cursor": None})
            where["team"] = asker.team
        page = self._accounts().page(kind, call.query.get("cursor", ""), call.number("limit", _PAGE, _MOST_PAGE), where)
        return _page(page, view)

    def _own(self, call: ApiCall, kind: Kind) -> list[Account]:
        """Return what an asker of the role OWN may see without asking the database for more."""
        asker = call.asker
        ids = {"key": asker.key, "team": asker.team, "user": ""}
        return [self._accounts().get(kind, ids[kind])] if ids[kind] else []

    def _get(self, call: ApiCall, kind: Kind) -> Answer:
        (id_,) = call.ids
        account = self._accounts().get(kind, id_)
        asker = call.asker
        own = {"key": asker.key, "team": asker.team}.get(kind)
        is_own = id_ == own or (isinstance(account, Key) and asker.team and account.team == asker.team)
        if asker.role is Role.OWN and not is_own:
            raise ApiError(404, "not_found", f"there is no such {kind}")
        return Answer(200, view(account))

    def _create(self, call: ApiCall, kind: Kind) -> Answer:
        accounts, actor = self._accounts(), call.asker.name
        if kind == "team":
            return Answer(201, view(accounts.create_team(call.body, actor)))
        if kind == "user":
            return Answer(201, view(accounts.create_user(call.body, actor)))
        by_team = call.asker.role is Role.OWN
        fields = TeamKeys(accounts, call.asker).new(call.body) if by_team else call.body
        if not any(fields.get(name) for name in schemas.WHOSE):
            raise ApiError(
                400, "invalid", f"expected whose key it is: {', '.join(schemas.WHOSE)}, one at least", "name"
            )
        if call.body.get("key") is None and call.body.get("digest") is None:
            _check_private(call)
        return Answer(201, _shown_once(accounts.create_key(fields, actor, by_team=by_team)))

    def _update(self, call: ApiCall, kind: Kind) -> Answer:
        accounts, asker = self._accounts(), call.asker
        guard = TeamKeys.guard_of(accounts, asker)
        by_team = asker.role is Role.OWN
        if by_team:
            TeamKeys(accounts, asker).check(call.body)
        return Answer(200, view(accounts.update(kind, call.ids[0], call.body, asker.name, guard, by_team=by_team)))

    def _delete(self, call: ApiCall, kind: Kind) -> Answer:
        accounts = self._accounts()
        accounts.delete(kind, call.ids[0], call.asker.name, TeamKeys.guard_of(accounts, call.asker))
        return Answer(200, {"id": call.ids[0], "deleted": True})

    def _block(self, call: ApiCall, kind: Kind) -> Answer:
        accounts = self._accounts()
        guard = TeamKeys.guard_of(accounts, call.asker)
        by_team = call.asker.role is Role.OWN
        return Answer(200, view(accounts.block(kind, call.ids[0], call.asker.name, guard, by_team=by_team)))

    def _unblock(self, call: ApiCall, kind: Kind) -> Answer:
        accounts = self._accounts()
        guard = TeamKeys.guard_of(accounts, call.asker)
        by_team = call.asker.role is Role.OWN
        return Answer(200, view(accounts.unblock(kind, call.ids[0], call.asker.name, guard, by_team=by_team)))

    def _rotate(self, call: ApiCall, kind: Kind) -> Answer:
        accounts = self._accounts()
        guard = TeamKeys.guard_of(accounts, call.asker)
        _check_private(call)
        for name in call.body:
            if name != "grace_s":
                raise ApiError(400, "invalid", "there is no such field; there is grace_s", name[:64])
        grace_s = call.body.get("grace_s", 0)
        try:
            return Answer(200, _shown_once(accounts.rotate_key(call.ids[0], grace_s, call.asker.name, guard)))
        except AccountsError as exc:
            raise ApiError(_STATUSES[exc.code], exc.code, exc.message, "grace_s" if exc.field else "") from None

    def _changes(self, call: ApiCall) -> Answer:
        names = {"kind": "kind", "id": "object_id", "actor": "actor"}
        where = {column: call.query[name] for name, column in names.items() if name in call.query}
        most = call.number("limit", _PAGE, _MOST_PAGE)
        return _page(self._accounts().changes(call.query.get("cursor", ""), most, where), _change)


def _says(account: Account, name: str, value: str) -> bool:
    return getattr(account, name, "") == value


def _check_private(call: ApiCall) -> None:
    """Refuse to show a secret where others may read along. Raises ApiError."""
    if not call.is_private:
        message = (
            "a new key is shown over TLS or from this machine only: set VELOX_ADMIN_TLS_CERT, or make the key yourself "
            "and give its SHA-256 as digest"
        )
        raise ApiError(403, "not_private", message)


def _shown_once(made: Made) -> dict[str, object]:
    return {**view(made.key), "key": made.secret or None}


def _change(change: Change) -> dict[str, object]:
    return {
        "number": change.number,
        "time": time_text(change.time_s),
        "actor": change.actor,
        "action": change.action,
        "kind": change.kind,
        "object_id": change.object_id,
        "before": change.before,
        "after": change.after,
    }


def _page(page: Page, shown: Callable[[Any], Mapping[str, object]]) -> Answer:
    return Answer(200, {"data": [shown(each) for each in page.items], "cursor": page.cursor or None})
