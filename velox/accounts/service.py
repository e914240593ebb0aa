"""Keys, teams and users: made, changed, found and deleted, by whoever asks for it: the API, a command, an import.

Knows: what may be changed into what, and that each change is told to the audit. Does not know: who may ask, how a field
is written (fields.py), or where accounts are kept (store.py).

A key is shown once, when it is made or rotated; only its SHA-256 is kept. All calls block: they wait for the database.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from velox.accounts import objects
from velox.accounts.active import covers_endpoint, entry_of, is_over
from velox.accounts.bounds import LoosenedError, bounds_of_audit, check_bounds, set_bounds
from velox.accounts.fields import AccountObject, FieldError, attributes, read_object, view
from velox.accounts.model import Account, Bounds, Change, Digest, Key, Kind, Team, User
from velox.accounts.store import AccountStore, Conflict, ConflictError, Write
from velox.policy import spellings
from velox.policy.patterns import covers
from velox.types import NO_RATES, Rates

__all__ = ["MOST_GRACE_S", "Accounts", "AccountsError", "Adopted", "Adoption", "Made", "Page"]

A = TypeVar("A", bound=Account)
Guard: TypeAlias = Callable[[Account], None]

MOST_GRACE_S: Final = 90 * 86_400
# Of one key at a time: each counts as a key in every worker.
_MOST_SECRETS: Final = 20
# Of a key: its owners, and what these bound.
_OF_OWNERS: Final = ("team", "user", "models", "endpoints")
_MOST_PAGE: Final = 1000
_TYPES: Final[Mapping[Kind, type[Account]]] = {"key": Key, "team": Team, "user": User}
_ADMIN: Final = "admin"  # the actor whose token is the admin's
_RETRIES: Final = 100  # each time somebody else has made a change
_SECRET_BYTES: Final = 32
_OF_NOTHING: Final = hashlib.sha256(b"").digest()


class AccountsError(Exception):
    """What was asked for can't be done, and nothing of it was.

    code: invalid, forbidden, not_found or conflict. field: which one is wrong; "" for none. The message never shows
    what was given.
    """

    def __init__(self, code: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.field: Final = field


class Made(NamedTuple):
    """A key as it was made or rotated. secret: what its client presents; "" where only its digest was given."""

    key: Key
    secret: str


class Adopted(NamedTuple):
    """An account as it was elsewhere. digests: of a key: SHA-256, and Unix time to which it holds; None: as the key.

    created_s: Unix time; None: not known. hint: as a Key's.
    """

    kind: Kind
    id: str
    fields: Mapping[str, object]
    is_blocked: bool = False
    created_s: int | None = None
    digests: tuple[tuple[bytes, int | None], ...] = ()
    hint: str = ""


class Adoption(enum.Enum):
    """What has become of it. SAME: it was here already. KEPT: somebody has changed or deleted it here since."""

    MADE = "made"
    CHANGED = "changed"
    SAME = "the same"
    KEPT = "left as changed or deleted here"


class Page(NamedTuple):
    """Some of a list. cursor: what the next page begins with; "": this is the last one."""

    items: Sequence[Any]
    cursor: str


class Accounts:
    """All accounts of a gateway, or of all that share a database. clock: Unix time. random: so many bytes."""

    def __init__(
        self,
        store: AccountStore,
        clock: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self._random: Final = random

    def __repr__(self) -> str:
        return f"<Accounts in {self._store!r}>"

    # -- making -----------------------------------------------------------------------------------

    # by_team: True where the admin of its team asks, who undoes nothing that the gateway's admin did (bounds.py).

    def create_key(self, fields: Mapping[str, object], actor: str, *, by_team: bool = False) -> Made:
        """Make a key. Besides its fields: id; key: what its client presents; or digest: the SHA-256 of that.

        Raises AccountsError.
        """
        given = _read("key", fields, is_new=True)
        assert isinstance(given, objects.Key), "that is what was asked for"
        secret, digest, hint = self._credential(given)
        key = self._new(Key, self._id("key", given), given, hint=hint)
        key = msgspec.structs.replace(key, bounds=Bounds() if by_team else set_bounds(Bounds(), key, fields))
        self._check_owners(key)
        if by_team and (given.key or given.digest) and self._store.has_seen(digest):
            message = "a key had this secret before: only the gateway's admin gives it to another one"
            raise AccountsError("forbidden", message, "key" if secret else "digest")
        self._apply("create", None, key, actor, [Digest(digest, key.id, None)])
        return Made(key, secret)

    def create_team(self, fields: Mapping[str, object], actor: str) -> Team:
        """Make a team. Besides its fields: id. Raises AccountsError."""
        return self._create(Team, "team", fields, actor)

    def create_user(self, fields: Mapping[str, object], actor: str) -> User:
        """Make a user. Besides its fields: id. Raises AccountsError."""
        return self._create(User, "user", fields, actor)

    def _create(self, made: type[A], kind: Kind, fields: Mapping[str, object], actor: str) -> A:
        given = _read(kind, fields, is_new=True)
        account = self._new(made, self._id(kind, given), given)
        self._apply("create", None, account, actor)
        return account

    def _new(self, made: type[A], id_: str, given: AccountObject, **more: Any) -> A:
        now_s = int(self._clock())
        return made(id=id_, created_s=now_s, updated_s=now_s, **_attributes(given), **more)

    def _id(self, kind: Kind, given: AccountObject) -> str:
        if given.id:
            return given.id
        # Later ones sort behind earlier ones.
        time_part = int(self._clock() * 1000).to_bytes(6, "big")
        return f"{kind}_{base64.b32hexencode(time_part + self._random(9)).decode().lower()}"

    def _credential(self, given: objects.Key) -> tuple[str, bytes, str]:
        """Return the secret of a new key, "" where only its digest is given; its digest, and a hint for people."""
        if given.key and given.digest:
            raise AccountsError("invalid", "digest: expected this or key, not both", "digest")
        if given.digest:
            digest = bytes.fromhex(given.digest.removeprefix("sha256:"))
            if digest == _OF_NOTHING:
                raise AccountsError("invalid", "digest: expected the SHA-256 of a key, not of nothing", "digest")
            return "", digest, ""
        if given.key:
            return given.key, hashlib.sha256(given.key.encode()).digest(), _hint(given.key)
        return self._secret()

    def _secret(self) -> tuple[str, bytes, str]:
        secret = "sk-" + base64.urlsafe_b64encode(self._random(_SECRET_BYTES)).decode().rstrip("=")
        return secret, hashlib.sha256(secret.encode()).digest(), _hint(secret)

    def adopt(self, adopted: Adopted, actor: str) -> Adoption:
        """Have an account be as it was elsewhere; with the same actor a second time, as it is there now.

        What somebody else has changed here since then stays, and what was deleted stays away. Raises AccountsError.
        """
        kind, id_ = adopted.kind, adopted.id
        _read(kind, {"id": id_}, is_new=True)
        if self._store.get(kind, id_) is None and self._is_anothers(kind, id_, actor):
            return Adoption.KEPT  # and its team may be gone, too
        account = self._new(_TYPES[kind], id_, _read(kind, adopted.fields), is_blocked=adopted.is_blocked)
        if isinstance(account, Key):
            bounds = set_bounds(Bounds(is_blocked=adopted.is_blocked), account, adopted.fields)
            account = msgspec.structs.replace(account, hint=adopted.hint, bounds=bounds)
            self._check_owners(account)
        digests = [Digest(digest, id_, until_s) for digest, until_s in adopted.digests]
        created_s = adopted.created_s or account.created_s
        for _ in range(_RETRIES):
            document = self._store.get(kind, id_)
            if document is None:
                account = msgspec.structs.replace(account, created_s=created_s)
                if self._apply("create", None, account, actor, digests if kind == "key" else None):
                    return Adoption.MADE
                continue
            before = msgspec.json.decode(document, type=_TYPES[kind])
            same = {name: getattr(before, name) for name in ("created_s", "updated_s", "version")}
            after = msgspec.structs.replace(account, **same)
            if isinstance(before, Key) and before.bounds is None:
                after = msgspec.structs.replace(after, bounds=None)  # a Velox that kept none has adopted it
            # Through JSON: there lists and tuples are the same.
            if msgspec.json.encode(after) == document and set(digests) == set(self._store.digests(id_)):
                return Adoption.SAME
            if self._is_anothers(kind, id_, actor):
                return Adoption.KEPT
            updated_s = max(int(self._clock()), before.updated_s)
            after = msgspec.structs.replace(after, updated_s=updated_s, version=before.version + 1)
            if self._apply("update", before, after, actor, digests if kind == "key" else None):
                return Adoption.CHANGED
        raise _busy()

    def _is_anothers(self, kind: Kind, id_: str, actor: str) -> bool:
        """Tell whether the last change of an account was made by somebody else."""
        changes = self._store.changes(0, 1, {"kind": kind, "object_id": id_})
        return bool(changes) and changes[0].actor != actor

    # -- changing ---------------------------------------------------------------------------------

    # guard: is given the account as it was before the change, and raises if the actor may not change it.

    def update(
        self,
        kind: Kind,
        id: str,  # noqa: A002 - the field's name
        fields: Mapping[str, object],
        actor: str,
        guard: Guard | None = None,
        *,
        by_team: bool = False,
    ) -> Account:
        """Change the fields that are given; null takes one away. Raises AccountsError."""

        def changed(account: Account) -> Account:
            after = msgspec.structs.replace(account, **_attributes(_read(kind, fields), account.rates))
            if isinstance(after, Key):
                self._check_owners(after, account)
                after = self._bound(after, fields, by_team=by_team)
            return after

        return self._change("update", kind, id, _guarded(changed, guard), actor)

    def _bound(self, key: Key, given: Collection[str], *, by_team: bool) -> Key:
        """Return a changed key with its bounds, as they are then. Raises AccountsError for one that is beyond them."""
        if not by_team:
            kept = None if key.bounds is None else set_bounds(key.bounds, key, given)
            return msgspec.structs.replace(key, bounds=kept)
        bounds = self._bounds_of(key)
        try:
            check_bounds(bounds, key, given)
        except LoosenedError as exc:
            raise AccountsError("forbidden", str(exc), exc.field) from None
        return msgspec.structs.replace(key, bounds=bounds)

    def _bounds_of(self, key: Key) -> Bounds:
        """Return the bounds of a key; of one that a Velox made which kept none, from the audit."""
        if key.bounds is not None:
            return key.bounds
        changes: list[Change] = []
        while page := self._store.changes(changes[-1].number if changes else 0, _MOST_PAGE, _of_key(key.id)):
            changes += page
        is_key = {each: self._is_key(each) for each in {change.actor for change in changes}}
        return bounds_of_audit(key, reversed(changes), lambda change: is_key[change.actor])

    def _is_key(self, actor: str) -> bool:
        """Tell whether a change was made with a key of a client: its id is then the actor's name."""
        if actor == _ADMIN:
            return False
        return self._store.get("key", actor) is not None or bool(self._store.changes(0, 1, _of_key(actor)))

    def block(
        self,
        kind: Kind,
        id: str,  # noqa: A002
        actor: str,
        guard: Guard | None = None,
        *,
        by_team: bool = False,
    ) -> Account:
        """Have nothing of it be used until it is unblocked. Raises AccountsError."""

        def blocked(account: Account) -> Account:
            return _with_block(account, is_blocked=True, by_team=by_team)

        return self._change("block", kind, id, _guarded(blocked, guard), actor)

    def unblock(
        self,
        kind: Kind,
        id: str,  # noqa: A002
        actor: str,
        guard: Guard | None = None,
        *,
        by_team: bool = False,
    ) -> Account:
        """Have it be used again. Raises AccountsError."""

        def unblocked(account: Account) -> Account:
            if by_team and isinstance(account, Key):
                bounds = self._bounds_of(account)
                if bounds.is_blocked:
                    message = "the gateway's admin has blocked this key: it is unblocked with the admin token only"
                    raise AccountsError("forbidden", message)
                account = msgspec.structs.replace(account, bounds=bounds)
            return _with_block(account, is_blocked=False, by_team=by_team)

        return self._change("unblock", kind, id, _guarded(unblocked, guard), actor)

    def rotate_key(self, id: str, grace_s: int, actor: str, guard: Guard | None = None) -> Made:  # noqa: A002
        """Give a key a new secret. What it had before holds for `grace_s` seconds more. Raises AccountsError."""
        grace_s = _in_range(grace_s, "grace", 0, MOST_GRACE_S, " seconds")
        secret, digest, hint = self._secret()
        now_s = int(self._clock())

        def after(account: Account) -> Account:
            return msgspec.structs.replace(account, hint=hint)

        def digests() -> list[Digest]:
            until_s = now_s + grace_s
            before = [
                each._replace(until_s=until_s if each.until_s is None else min(each.until_s, until_s))
                for each in self._store.digests(id)
            ]
            held = [each for each in before if (each.until_s or 0) > now_s]
            if len(held) >= _MOST_SECRETS:
                message = (
                    f"{_MOST_SECRETS} secrets of this key are accepted already: rotate it without a grace, which ends "
                    "them, or wait until the first of them ends"
                )
                raise AccountsError("conflict", message)
            return [Digest(digest, id, None), *held]

        key = self._change("rotate", "key", id, _guarded(after, guard), actor, digests)
        assert isinstance(key, Key), "that was asked for"
        return Made(key, secret)

    def delete(self, kind: Kind, id: str, actor: str, guard: Guard | None = None) -> None:  # noqa: A002
        """Take it away. Raises AccountsError: also while keys belong to it."""
        for _ in range(_RETRIES):
            before = self.get(kind, id)
            if guard is not None:
                guard(before)
            if self._apply("delete", before, None, actor, [] if kind == "key" else None):
                return
        raise _busy()

    def _change(
        self,
        action: str,
        kind: Kind,
        id_: str,
        change: Callable[[Account], Account],
        actor: str,
        digests: Callable[[], Sequence[Digest]] | None = None,
    ) -> Account:
        for _ in range(_RETRIES):
            before = self.get(kind, id_)
            now_s = max(int(self._clock()), before.updated_s)
            after = msgspec.structs.replace(change(before), updated_s=now_s, version=before.version + 1)
            if self._apply(action, before, after, actor, None if digests is None else digests()):
                return after
        raise _busy()

    def _apply(
        self,
        action: str,
        before: Account | None,
        after: Account | None,
        actor: str,
        digests: Sequence[Digest] | None = None,
    ) -> bool:
        """Make a change; False: somebody else was faster, look again. Raises AccountsError."""
        account = after or before
        assert account is not None, "one of them is there"
        kind = _kind_of(type(account))
        change = Change(
            0,
            int(self._clock()),
            actor,
            action,
            kind,
            account.id,
            before=None if before is None else view(before),
            after=None if after is None else view(after),
        )
        write = Write(
            change,
            account.name,
            team=account.team if isinstance(account, Key) else "",
            user=account.user if isinstance(account, Key) else "",
            document=b"" if after is None else msgspec.json.encode(after),
            version=0 if before is None else before.version,
            digests=digests,
        )
        try:
            self._store.apply(write)
        except ConflictError as exc:
            if exc.what == Conflict.STALE:
                return False
            raise _conflict(exc.what, kind) from None
        return True

    def _check_owners(self, key: Key, before: Account | None = None) -> None:
        """Check that a key asks for nothing that its team may not use, and may use something. Raises AccountsError.

        before: the key as it was. Its owners may have been narrowed since: what does not change is not checked again.
        """
        if key.role and not key.team:
            raise AccountsError("invalid", f"role: expected a team with {key.role}", "role")
        if before is not None and all(getattr(key, each) == getattr(before, each) for each in _OF_OWNERS):
            return
        team, user = self._owner("team", key.team, Team), self._owner("user", key.user, User)
        if team is not None:
            for name, own, most, holds in (
                ("models", key.models, team.models, covers),
                ("endpoints", key.endpoints, team.endpoints, covers_endpoint),
            ):
                if most and not all(any(holds(wide, each) for wide in most) for each in own):
                    raise AccountsError("invalid", f"{name}: expected some of its team's {name}", name)
        free = msgspec.structs.replace(key, is_blocked=False)
        if user is not None and entry_of(Digest(b"", key.id, None), free, team, user) is None:
            message = "user: expected one who may use some of the models and of the endpoints of the key and its team"
            raise AccountsError("invalid", message, "user")

    def _owner(self, kind: Kind, id_: str, made: type[A]) -> A | None:
        """Return the owner of a key, as if it was not blocked; None: it has none. Raises AccountsError."""
        if not id_:
            return None
        document = self._store.get(kind, id_)
        if document is None:
            raise AccountsError("invalid", f"{kind}: there is no such {kind}", kind)
        return msgspec.structs.replace(msgspec.json.decode(document, type=made), is_blocked=False)

    # -- finding ----------------------------------------------------------------------------------

    def get(self, kind: Kind, id: str) -> Account:  # noqa: A002
        """Return one. Raises AccountsError."""
        document = self._store.get(kind, id)
        if document is None:
            raise AccountsError("not_found", f"there is no such {kind}")
        return msgspec.json.decode(document, type=_TYPES[kind])

    def key_of(self, secret: str) -> Key | None:
        """Return the key that a client presents, also one that is not active; None: it is none of ours."""
        id_ = self._store.owner(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest())
        document = None if id_ is None else self._store.get("key", id_)
        return None if document is None else msgspec.json.decode(document, type=Key)

    def key_in_force(self, secret: str) -> Key | None:
        """Return the key that a client presents; None: it is none, or may not be used now."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        key = self.key_of_digest(digest)
        if key is None:
            return None
        team, user = (self._store.get(kind, id_) if id_ else None for kind, id_ in _owners(key))
        held = next((each for each in self._store.digests(key.id) if each.digest == digest), None)
        now_s = self._clock()
        if held is None or is_over(held, now_s) or (key.expires_s is not None and key.expires_s <= now_s):
            return None
        entry = entry_of(
            held,
            key,
            None if team is None else msgspec.json.decode(team, type=Team),
            None if user is None else msgspec.json.decode(user, type=User),
        )
        return None if entry is None else key

    def find_key(self, id: str) -> Key | None:  # noqa: A002
        """Return a key by its id; None: there is none."""
        document = self._store.get("key", id)
        return None if document is None else msgspec.json.decode(document, type=Key)

    def key_of_digest(self, digest: bytes) -> Key | None:
        """Return the key that has a digest; None: none has."""
        id_ = self._store.owner(digest)
        document = None if id_ is None else self._store.get("key", id_)
        return None if document is None else msgspec.json.decode(document, type=Key)

    def key_digests(self) -> dict[str, bytes]:
        """Return the digest of each key, by its id; of a rotated one the last."""
        _, _, digests = self._store.everything()
        return {each.key: each.digest for each in sorted(digests, key=lambda each: each.until_s is None)}

    def digests(self, key: str) -> list[Digest]:
        """Return what a key's client may present, as digests."""
        return self._store.digests(key)

    def page(self, kind: Kind, cursor: str = "", limit: int = 100, where: Mapping[str, str] | None = None) -> Page:
        """Return some of them, in the order of their ids. where: name, team, user. Raises AccountsError."""
        most = _in_range(limit, "limit", 1, _MOST_PAGE)
        documents = self._store.page(kind, cursor, most + 1, where or {})
        found = [msgspec.json.decode(each, type=_TYPES[kind]) for each in documents[:most]]
        return Page(found, found[-1].id if len(documents) > most else "")

    def changes(self, cursor: str = "", limit: int = 100, where: Mapping[str, str] | None = None) -> Page:
        """Return some changes, the last first. where: kind, object_id, actor. Raises AccountsError."""
        most = _in_range(limit, "limit", 1, _MOST_PAGE)
        if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
            raise AccountsError("invalid", "cursor: expected what the page before has told", "cursor")
        found = self._store.changes(int(cursor or 0), most + 1, where or {})
        return Page(found[:most], str(found[most - 1].number) if len(found) > most else "")

    def number(self) -> int:
        """Return the number of the last change; another one: something has changed."""
        return self._store.number()


def _read(kind: Kind, fields: Mapping[str, object], *, is_new: bool = False) -> AccountObject:
    try:
        return read_object(kind, fields, is_new=is_new)
    except FieldError as exc:
        raise AccountsError("invalid", str(exc), exc.field) from None


def _attributes(given: AccountObject, now: Rates = NO_RATES) -> dict[str, Any]:
    try:
        return attributes(given, now)
    except FieldError as exc:
        raise AccountsError("invalid", str(exc), exc.field) from None


def _owners(key: Key) -> tuple[tuple[Kind, str], tuple[Kind, str]]:
    return ("team", key.team), ("user", key.user)


def _kind_of(made: type[Account]) -> Kind:
    return "key" if made is Key else "team" if made is Team else "user"


def _hint(secret: str) -> str:
    return f"{secret[:3]}...{secret[-4:]}"


def _in_range(value: object, name: str, least: int, most: int, unit: str = "") -> int:
    value = spellings.whole(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise AccountsError("invalid", f"{name}: expected {least} to {most}{unit}", name)
    return value


def _conflict(what: str, kind: Kind) -> AccountsError:
    match what:
        case Conflict.EXISTS:
            return AccountsError("conflict", f"there is a {kind} of this id", "id")
        case Conflict.DIGEST:
            return AccountsError("conflict", "there is such a key already", "key")
        case Conflict.OWNER:
            return AccountsError("invalid", "its team or its user has just been deleted", "team")
        case _:
            return AccountsError("conflict", f"keys belong to this {kind}: delete them first, or give them to another")


def _busy() -> AccountsError:
    return AccountsError("conflict", "others are changing it at the same time: try again")


def _guarded(change: Callable[[Account], Account], guard: Guard | None) -> Callable[[Account], Account]:
    """Return a change that a guard looks at first, each time that it is tried."""

    def changed(account: Account) -> Account:
        if guard is not None:
            guard(account)
        return change(account)

    return changed


def _with_block(account: Account, *, is_blocked: bool, by_team: bool) -> Account:
    if isinstance(account, Key) and account.bounds is not None and not by_team:
        bounds = msgspec.structs.replace(account.bounds, is_blocked=is_blocked)
        return msgspec.structs.replace(account, is_blocked=is_blocked, bounds=bounds)
    return msgspec.structs.replace(account, is_blocked=is_blocked)


def _of_key(id_: str) -> Mapping[str, str]:
    return {"kind": "key", "object_id": id_}
