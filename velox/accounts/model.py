"""Keys, teams and users as they are kept, and the changes that were made to them.

Knows: what there is to say of each. Does not know: how a field is given and checked (fields.py), or where they are kept
(store.py).

A key may belong to a team and to a user. What a team or a user may do bounds its keys; its rates and budgets hold for
all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from velox.types import NO_RATES, Budget, Priority, Rates

__all__ = ["KINDS", "TEAM_ADMIN", "Account", "Bounds", "Change", "Digest", "Key", "Kind", "Team", "User"]

Kind: TypeAlias = Literal["key", "team", "user"]
TEAM_ADMIN: Final = "team_admin"
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What keys, teams and users have in common.

    id: ours, or given when it was made; it never changes. name: for people. models, endpoints, tags, rates, priority:
    as in types.KeyEntry. budgets: several hold at once. metadata: the owner's, JSON; Velox reads none of it.
    is_blocked: nothing of it may be used. created_s, updated_s: Unix time. version: 1, and one more with each change.
    """

    id: str
    name: str = ""
    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    rates: Rates = NO_RATES
    priority: Priority | None = None
    budgets: tuple[Budget, ...] = ()
    metadata: Mapping[str, object] = {}
    is_blocked: bool = False
    created_s: int
    updated_s: int
    version: int = 1


class Bounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the gateway's admin has set for a key. Fields as a Key's; the default: nothing was set."""

    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    rates: Rates = NO_RATES
    priority: Priority | None = None
    budgets: tuple[Budget, ...] = ()
    expires_s: int | None = None
    is_blocked: bool = False


class Key(Account, frozen=True, kw_only=True, omit_defaults=True):
    """A key. hint: its first and last characters, for people. team, user: ids, "" for none.

    role: in the API: TEAM_ADMIN: it manages the keys of its team; "": it only reads. expires_s: Unix time from which on
    it is no key. bounds: what its team may not widen (bounds.py); None: of a key that was made by a Velox that kept
    none: the audit says it.
    """

    hint: str = ""
    team: str = ""
    user: str = ""
    role: str = ""
    expires_s: int | None = None
    bounds: Bounds | None = None


class Team(Account, frozen=True, kw_only=True, omit_defaults=True):
    """A team."""


class User(Account, frozen=True, kw_only=True, omit_defaults=True):
    """A user. email: "" if it is not known."""

    email: str = ""


class Digest(NamedTuple):
    """The SHA-256 of what a client presents for a key. until_s: Unix time to which it holds; None: as the key does."""

    digest: bytes
    key: str
    until_s: int | None


class Change(msgspec.Struct, frozen=True):
    """One change, as the audit has it. number: later ones have higher ones; 0: it has none yet.

    actor: who made it, as far as that is known. action: create, update, block, unblock, rotate, delete. before, after:
    what was kept, without secrets; None: there was nothing, or is nothing any more.
    """

    number: int
    time_s: int
    actor: str
    action: str
    kind: Kind
    object_id: str
    before: dict[str, object] | None
    after: dict[str, object] | None
