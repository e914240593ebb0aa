"""What a team's admin may change of a key that the gateway's admin has restricted: to narrow it, never to widen it."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as made_up
from hypothesis import settings
from hypothesis import strategies as st

from tests.postgres_server import PostgresServer
from velox.accounts.fields import read_fields
from velox.accounts.model import Bounds, Key
from velox.accounts.postgres import PostgresAccounts
from velox.accounts.service import Accounts, AccountsError
from velox.accounts.sqlite import SqliteAccounts
from velox.accounts.store import AccountStore, Write

ADMIN, BOSS = "admin", "boss"
MONTH = {"usd": 20, "window": "month", "zone": "UTC", "strict": True}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AccountStore]:
    """An empty store of each kind."""
    if request.param == "sqlite":
        found: AccountStore = SqliteAccounts(tmp_path / "ledger")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        found = PostgresAccounts(server.database())
    yield found
    found.close()


@pytest.fixture
def accounts(store: AccountStore) -> Accounts:
    """With a team, its admin, and a plain key of it."""
    made = Accounts(store)
    made.create_team({"id": "red"}, ADMIN)
    made.create_key({"id": BOSS, "team": "red", "role": "team_admin"}, ADMIN)
    made.create_key({"id": "k", "team": "red"}, ADMIN)
    return made


def refused(accounts: Accounts, call: str, *arguments: Any) -> str:
    """Make a call as the team's admin that must be refused and change nothing; return the field."""
    before = accounts.number()
    with pytest.raises(AccountsError) as caught:
        getattr(accounts, call)(*arguments, by_team=True)
    assert caught.value.code == "forbidden" and accounts.number() == before
    return caught.value.field


# What the gateway's admin sets; what its team may make of it; what not.
FIELDS: tuple[tuple[dict[str, Any], list[Any], list[Any]], ...] = (
    ({"models": ["gpt-4o*", "o3"]}, [["gpt-4o"], ["o3", "gpt-4o-mini*"], ["gpt-4o*", "o3"]], [[], None, ["*"], ["o4"]]),
    ({"endpoints": ["inference", "/v1/files*"]}, [["inference"], ["/v1/files/a"]], [[], None, ["batches"], ["/v1/*"]]),
    ({"tags": ["eu", "batch"]}, [["batch", "eu", "own"]], [[], None, ["eu"], ["own"]]),
    ({"rpm": 600}, [1, 60, 600], [601, None]),
    ({"tpm": 1000}, [999], [1001, None]),
    ({"concurrency": 4}, [4, 1], [5, None]),
    ({"priority": "normal"}, ["low", "normal"], ["high", None]),
    ({"expires": "2040-01-31"}, ["2040-01-30", "2020-01-01"], ["2040-02-01", None]),
    (
        {"budgets": [MONTH]},
        [[MONTH], [{**MONTH, "usd": 5}], [MONTH, {"tokens": 5, "window": "day"}]],
        [
            [],
            None,
            [{**MONTH, "usd": 21}],
            [{**MONTH, "strict": False}],
            [{**MONTH, "window": "year"}],
            [{**MONTH, "zone": "Europe/Berlin"}],
            [{**MONTH, "unpriced": "allow"}],
            [{"tokens": 1, "window": "month"}],
        ],
    ),
)


@pytest.mark.parametrize(("fields", "narrower", "wider"), FIELDS)
def test_team_narrows_what_the_admin_set_and_does_not_widen_it(
    accounts: Accounts, fields: dict[str, Any], narrower: list[Any], wider: list[Any]
) -> None:
    """Up to what the admin set, also after it was narrowed; until the admin lifts it."""
    ((name, _),) = fields.items()
    accounts.update("key", "k", fields, ADMIN)
    for value in narrower:
        accounts.update("key", "k", {name: value}, BOSS, by_team=True)
        for wide in wider:
            assert refused(accounts, "update", "key", "k", {"metadata": {"a": 1}, name: wide}, BOSS) == name
    accounts.update("key", "k", {"metadata": {"a": 1}}, BOSS, by_team=True)
    accounts.update("key", "k", {name: None}, ADMIN)
    for value in (*narrower, *wider):
        accounts.update("key", "k", {name: value}, BOSS, by_team=True)


def test_burst_is_bounded_with_its_rate(accounts: Accounts) -> None:
    """A rate that the team lowers takes no burst along that is above the admin's."""
    accounts.update("key", "k", {"rpm": 600, "burst": 20}, ADMIN)
    assert refused(accounts, "update", "key", "k", {"burst": 21}, BOSS) == "burst"
    assert refused(accounts, "update", "key", "k", {"rpm": 60, "burst": 60}, BOSS) == "burst"
    assert refused(accounts, "update", "key", "k", {"rpm": None}, BOSS) == "rpm"
    accounts.update("key", "k", {"rpm": 60, "burst": 10}, BOSS, by_team=True)
    accounts.update("key", "k", {"rpm": 120}, BOSS, by_team=True)


def test_team_does_not_unblock_what_the_admin_blocked(accounts: Accounts) -> None:
    """What it has blocked itself it unblocks, and so does the admin."""
    accounts.block("key", "k", BOSS, by_team=True)
    accounts.unblock("key", "k", BOSS, by_team=True)
    accounts.block("key", "k", BOSS, by_team=True)
    accounts.block("key", "k", ADMIN)
    assert refused(accounts, "unblock", "key", "k", BOSS) == ""
    accounts.block("key", "k", BOSS, by_team=True)
    assert refused(accounts, "unblock", "key", "k", BOSS) == ""
    accounts.unblock("key", "k", ADMIN)
    accounts.block("key", "k", BOSS, by_team=True)
    accounts.unblock("key", "k", BOSS, by_team=True)


@pytest.mark.parametrize("ends", ["delete", "rotate"])
def test_team_does_not_give_a_blocked_secret_to_another_key(accounts: Accounts, ends: str) -> None:
    """A leaked key that was blocked, and then deleted or rotated: its secret opens nothing again but by the admin."""
    _, secret = accounts.create_key({"id": "leaked", "team": "red"}, ADMIN)
    accounts.block("key", "leaked", ADMIN)
    if ends == "delete":
        accounts.delete("key", "leaked", BOSS)
    else:
        accounts.rotate_key("leaked", 0, BOSS)
    assert refused(accounts, "create_key", {"team": "red", "key": secret}, BOSS) == "key"
    made = accounts.create_key({"team": "red", "key": "sk-nobody-ever-had-this"}, BOSS, by_team=True)
    assert made.secret == "sk-nobody-ever-had-this"
    accounts.create_key({"team": "red", "key": secret}, ADMIN)


def test_own_keys_of_a_team_have_no_bounds_until_the_admin_sets_some(accounts: Accounts) -> None:
    key, _ = accounts.create_key({"team": "red", "rpm": 60}, BOSS, by_team=True)
    accounts.update("key", key.id, {"rpm": None}, BOSS, by_team=True)
    accounts.update("key", key.id, {"rpm": 5}, ADMIN)
    assert refused(accounts, "update", "key", key.id, {"rpm": 6}, BOSS) == "rpm"


def without_bounds(store: AccountStore, id_: str) -> None:
    """Have a key be as a Velox has left it that kept no bounds."""
    document = store.get("key", id_)
    assert document is not None
    key = msgspec.json.decode(document, type=Key)
    last = store.changes(0, 1, {"kind": "key", "object_id": id_})[0]
    change = msgspec.structs.replace(last, action="update", before=last.after, after=last.after)
    old = msgspec.structs.replace(key, bounds=None, version=key.version + 1)
    store.apply(Write(change, key.name, key.team, key.user, msgspec.json.encode(old), key.version))


def test_bounds_of_keys_from_before_are_what_the_audit_says(store: AccountStore, accounts: Accounts) -> None:
    """Who set what is in the audit by the actor's name: a key's id for a team's admin."""
    accounts.update("key", "k", {"rpm": 600, "tpm": 50, "models": ["gpt-*"]}, ADMIN)
    accounts.update("key", "k", {"rpm": 60, "budgets": [MONTH]}, BOSS, by_team=True)
    accounts.update("key", "k", {"tpm": None}, "root, velox command")
    accounts.block("key", "k", ADMIN)
    without_bounds(store, "k")
    assert refused(accounts, "unblock", "key", "k", BOSS) == ""
    assert refused(accounts, "update", "key", "k", {"rpm": 601}, BOSS) == "rpm"
    assert refused(accounts, "update", "key", "k", {"models": ["o3"]}, BOSS) == "models"
    accounts.unblock("key", "k", ADMIN)
    after = accounts.update("key", "k", {"rpm": 600, "tpm": 90, "budgets": None}, BOSS, by_team=True)
    assert isinstance(after, Key) and after.bounds is not None
    assert (after.bounds.rates.rpm, after.bounds.models, after.bounds.budgets) == (600, ("gpt-*",), ())
    accounts.block("key", "k", BOSS, by_team=True)
    accounts.unblock("key", "k", BOSS, by_team=True)


def test_admin_whose_name_is_a_keys_is_the_admin(store: AccountStore, accounts: Accounts) -> None:
    accounts.create_key({"id": ADMIN}, ADMIN)
    accounts.block("key", "k", ADMIN)
    without_bounds(store, "k")
    assert refused(accounts, "unblock", "key", "k", BOSS) == ""


STEPS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(
            [
                *(("update", {name: value}) for name in ("rpm", "tpm") for value in (None, 1, 60, 600)),
                *(("update", {"models": value}) for value in (None, ["a"], ["a*"], ["b"])),
                *(("update", {"budgets": value}) for value in (None, [MONTH], [{**MONTH, "usd": 5}])),
                ("block", {}),
                ("unblock", {}),
            ]
        ),
    ),
    max_size=12,
)


@made_up(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_kept_bounds_are_those_of_the_audit(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    """Whatever both do, in any order: what is kept with a key is what its audit says.

    But for a field that is given as it is: the audit does not know who gave it last.
    """
    store = SqliteAccounts(tmp_path_factory.mktemp("ledger"))
    accounts = Accounts(store)
    accounts.create_team({"id": "red"}, ADMIN)
    accounts.create_key({"id": BOSS, "team": "red", "role": "team_admin"}, ADMIN)
    accounts.create_key({"id": "k", "team": "red", "rpm": 60}, ADMIN)
    for by_team, (action, fields) in steps:
        more = (fields,) if action == "update" else ()
        now = accounts.get("key", "k")
        given = read_fields("key", fields, now.rates)
        if given and all(getattr(now, name) == value for name, value in given.items()):
            continue
        try:
            getattr(accounts, action)("key", "k", *more, BOSS if by_team else ADMIN, by_team=by_team)
        except AccountsError as exc:
            assert by_team and exc.code == "forbidden"
    key = accounts.get("key", "k")
    assert isinstance(key, Key)
    kept = key.bounds
    without_bounds(store, "k")
    old = accounts.get("key", "k")
    assert isinstance(old, Key) and old.bounds is None
    found = accounts.update("key", "k", {}, BOSS, by_team=True)
    assert isinstance(found, Key) and isinstance(kept, Bounds)
    assert found.bounds == kept
    store.close()


def test_secrets_of_a_database_from_before_are_known(tmp_path: Path) -> None:
    """Those that keys have when it is opened by this version."""
    store = SqliteAccounts(tmp_path)
    _, secret = Accounts(store).create_key({}, ADMIN)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "accounts.db")) as db, db:
        db.execute("DROP TABLE seen")
        db.execute("PRAGMA user_version = 1")
    with contextlib.closing(SqliteAccounts(tmp_path)) as now:
        assert now.has_seen(hashlib.sha256(secret.encode()).digest())
        assert not now.has_seen(bytes(32))


@pytest.mark.slow
def test_secrets_of_a_postgresql_from_before_are_known(postgres: PostgresServer) -> None:
    url = postgres.database()
    with contextlib.closing(PostgresAccounts(url)) as store:
        _, secret = Accounts(store).create_key({}, ADMIN)
    postgres.sql(url, "DROP TABLE velox_digest_seen")
    postgres.sql(url, "UPDATE velox_schema SET version = 1 WHERE part = 'accounts'")
    with contextlib.closing(PostgresAccounts(url)) as now:
        assert now.has_seen(hashlib.sha256(secret.encode()).digest())
