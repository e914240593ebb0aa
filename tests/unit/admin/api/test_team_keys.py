"""A key that manages the keys of its team: what it may do, and hostile attempts at all else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.admin.api.test_admin_api import Door, Json
from velox.admin.api.team_keys import MOST_TEAM_KEYS
from velox.ledger.sqlite import SqliteStore

KEYS = "/api/v1/keys"
TEAM = {
    "id": "red",
    "models": ["gpt-4o*"],
    "rpm": 600,
    "tpm": 5000,
    "budgets": [{"usd": 20, "window": "month"}],
}
CALLS = (("PATCH", ""), ("DELETE", ""), ("POST", "/block"), ("POST", "/unblock"), ("POST", "/rotate"))


class House(Door):
    """Two teams; the first has a key that manages its keys, and one that does not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self("POST", "/api/v1/teams", TEAM)
        self("POST", "/api/v1/teams", {"id": "blue"})
        self("POST", "/api/v1/users", {"id": "ann"})
        self.boss = self.made({"id": "boss", "team": "red", "role": "team_admin"})
        self.plain = self.made({"id": "plain", "team": "red", "name": "shop"})
        self.made({"id": "theirs", "team": "blue", "name": "vault"})
        self.made({"id": "boss-of-blue", "team": "blue", "role": "team_admin"})
        self.made({"id": "nobodys"})

    def made(self, fields: Json) -> str:
        return str(self("POST", KEYS, fields)["key"])

    def denied(self, method: str, target: str, body: object = None, key: str = "") -> tuple[int, str, str | None]:
        """Ask for something that must be refused, as the managing key, and change nothing."""
        before = self.accounts.number()
        found = self.refused(method, target, body, key=key or self.boss)
        assert self.accounts.number() == before
        return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """With an empty store of records."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    SqliteStore(folder, days=30).close()
    yield House(folder)


def test_team_manages_its_keys(house: House) -> None:
    """Made, listed, changed, blocked, rotated, deleted. The audit says which key did it."""
    asked: Json = {"models": ["gpt-4o-mini"], "rpm": 60, "budgets": [{"usd": 5, "window": "month"}], "tags": ["eu"]}
    made = house("POST", KEYS, asked, key=house.boss)
    assert made["team"] == "red" and made["key"].startswith("sk-") and made["role"] is None
    at = f"{KEYS}/{made['id']}"
    assert {each["id"] for each in house("GET", KEYS, key=house.boss)["data"]} == {made["id"], "boss", "plain"}
    assert house("PATCH", at, {"rpm": 600, "team": "red", "tags": None}, key=house.boss)["rpm"] == 600
    assert house("POST", f"{at}/block", key=house.boss)["blocked"]
    assert not house("POST", f"{at}/unblock", key=house.boss)["blocked"]
    rotated = house("POST", f"{at}/rotate", {"grace_s": 60}, key=house.boss)
    assert rotated["key"] != made["key"]
    house("POST", f"{KEYS}/plain/block", key=house.boss)
    house("DELETE", at, key=house.boss)
    changes = house("GET", "/api/v1/changes?actor=boss")["data"]
    done = [change["action"] for change in changes]
    assert done == ["delete", "block", "rotate", "unblock", "block", "update", "create"]
    own = house("POST", KEYS, {"digest": "ab" * 32}, key=house.boss)
    assert own["key"] is None and own["team"] == "red"


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_keys_of_others_are_answered_as_if_there_were_none(house: House, method: str, path: str) -> None:
    """Of another team, of its manager, and of none."""
    bodies: tuple[object, ...] = (None,)
    if method == "PATCH":
        bodies = ({}, {"rpm": 1}, {"rpm": "no number"}, {"no-such-field": 1}, {"team": "red"}, {"team": None})
    for body in bodies:
        answers = []
        for id_ in ("no-such-key", "theirs", "boss-of-blue", "nobodys"):
            before = house.accounts.number()
            given = None if body is None else json.dumps(body).encode()
            answers.append(house.raw(method, f"{KEYS}/{id_}{path}", given, key=house.boss))
            assert house.accounts.number() == before
        assert answers == answers[:1] * 4 and answers[0][0] == (403 if body == {"team": None} else 404)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_managing_keys_are_the_admins(house: House, method: str, path: str) -> None:
    """Also its own."""
    house.made({"id": "second-boss", "team": "red", "role": "team_admin"})
    for id_ in ("boss", "second-boss"):
        body = {} if method == "PATCH" else None
        assert house.denied(method, f"{KEYS}/{id_}{path}", body) == (403, "forbidden", None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"team": "blue"}, "team"),
        ({"team": "no-such-team"}, "team"),
        ({"team": ["red"]}, "team"),
        ({"role": "team_admin"}, "role"),
        ({"user": "ann"}, "user"),
        ({"user": "no-such-user"}, "user"),
        ({"name": "vault"}, "name"),
        ({"models": ["gpt-4o", "claude-opus-5"]}, "models"),
        ({"models": ["*"]}, "models"),
        ({"endpoints": ["organization"]}, "endpoints"),
        ({"endpoints": ["/v1/organization/*"]}, "endpoints"),
        ({"endpoints": ["/*"]}, "endpoints"),
        ({"rpm": 601}, "rpm"),
        ({"tpm": 5001}, "tpm"),
        ({"priority": "high"}, "priority"),
        ({"budgets": [{"usd": 21, "window": "month"}]}, "budgets"),
        ({"budgets": [{"usd": 1, "window": "day"}, {"usd": "20.000000001", "window": "month"}]}, "budgets"),
    ],
)
def test_nothing_is_given_that_the_team_has_not(house: House, fields: Json, field: str) -> None:
    """Neither to a new key nor to one that is there."""
    assert house.denied("POST", KEYS, fields) == (403, "forbidden", field)
    assert house.denied("PATCH", f"{KEYS}/plain", fields) == (403, "forbidden", field)


@pytest.mark.parametrize(
    ("fields", "field"), [({"id": "theirs"}, "id"), ({"id": "mine"}, "id"), ({"key": "short"}, "key"), ({"x": 1}, "x")]
)
def test_ids_are_not_chosen_and_mistakes_are_told(house: House, fields: Json, field: str) -> None:
    """A key with the id of one that is gone would be counted as it was."""
    status, _, told = house.denied("POST", KEYS, fields)
    assert (status, told) == (403 if field == "id" else 400, field)


def test_fields_that_are_the_admins_can_not_be_taken_away(house: House) -> None:
    """A name, by which objects are told apart, too."""
    for name in ("name", "user", "role", "team"):
        assert house.denied("PATCH", f"{KEYS}/plain", {name: None}) == (403, "forbidden", name)


def test_team_does_not_undo_what_the_admin_set_on_a_key(house: House) -> None:
    """A key that is held down: the team reads why, may hold it down more, and can't let it go."""
    at = f"{KEYS}/plain"
    asked: Json = {"rpm": 6, "expires": "2040-01-31", "models": ["gpt-4o"], "budgets": [{"usd": 1, "window": "month"}]}
    house("PATCH", at, asked)
    house("POST", f"{at}/block")
    shown = house("GET", at, key=house.boss)["set_by_admin"]
    assert {name: shown[name] for name in ("rpm", "models", "blocked")} == {
        "rpm": 6,
        "models": ["gpt-4o"],
        "blocked": True,
    }
    assert house.denied("POST", f"{at}/unblock") == (403, "forbidden", None)
    for name in asked:
        assert house.denied("PATCH", at, {"tags": ["eu"], name: None}) == (403, "forbidden", name)
    assert house.denied("PATCH", at, {"rpm": 7}) == (403, "forbidden", "rpm")
    assert house("PATCH", at, {"rpm": 3}, key=house.boss)["rpm"] == 3
    assert house("PATCH", at, {"rpm": 6}, key=house.boss)["blocked"]
    house("POST", f"{at}/unblock")
    house("PATCH", at, dict.fromkeys(asked))
    assert house("PATCH", at, {"rpm": 600}, key=house.boss)["set_by_admin"] == {}


def test_only_keys_are_managed(house: House) -> None:
    """The team itself, users, the audit: as for any other client's key."""
    denied: tuple[tuple[str, str, Any], ...] = (
        ("PATCH", "/api/v1/teams/red", {"rpm": 10_000}),
        ("POST", "/api/v1/teams", {}),
        ("POST", "/api/v1/teams/red/unblock", None),
        ("DELETE", "/api/v1/users/ann", None),
        ("POST", "/api/v1/keysandmore", {}),
    )
    for method, target, body in denied:
        assert house.denied(method, target, body)[:2] == (401, "unauthorized")
    assert house.denied("GET", "/api/v1/changes")[:2] == (403, "forbidden")
    assert house.denied("POST", KEYS, {}, key="sk-nobody-has-this")[:2] == (401, "unauthorized")


@pytest.mark.parametrize(("method", "path"), [("POST", ""), *((method, f"/plain{path}") for method, path in CALLS)])
def test_other_keys_of_the_team_only_read(house: House, method: str, path: str) -> None:
    """A key that managed before, too."""
    body = {} if method == "PATCH" or not path else None
    assert house.denied(method, f"{KEYS}{path}", body, key=house.plain) == (403, "forbidden", None)
    house("PATCH", f"{KEYS}/boss", {"role": None})
    assert house.denied(method, f"{KEYS}{path}", body) == (403, "forbidden", None)


def test_manager_without_a_team_is_none(house: House) -> None:
    """It can't be made, and its team can't be taken away."""
    assert house.refused("POST", KEYS, {"name": "a", "role": "team_admin"}) == (400, "invalid", "role")
    assert house.refused("PATCH", f"{KEYS}/boss", {"team": None}) == (400, "invalid", "role")
    assert house.refused("POST", KEYS, {"role": "admin", "team": "red"}) == (400, "invalid", "role")


def test_blocked_team_and_expired_manager_manage_nothing(house: House) -> None:
    """As they call nothing."""
    house("POST", "/api/v1/teams/red/block")
    assert house.denied("POST", KEYS, {})[:2] == (401, "unauthorized")
    house("POST", "/api/v1/teams/red/unblock")
    house("PATCH", f"{KEYS}/boss", {"expires": "2020-01-01"})
    assert house.denied("POST", KEYS, {})[:2] == (401, "unauthorized")


def test_key_that_moves_meanwhile_is_not_changed(house: House) -> None:
    """The admin gives it to another team between two calls of a manager: a guard looks at the key as it is changed."""
    guards = []

    def guard(account: Any) -> None:
        guards.append(account.team)
        if account.team == "red":
            house.accounts.update("key", "plain", {"team": "blue"}, "admin")  # somebody else is faster
        else:
            raise LookupError

    with pytest.raises(LookupError):
        house.accounts.rotate_key("plain", 0, "boss", guard)
    assert guards == ["red", "blue"] and house("GET", f"{KEYS}/plain")["team"] == "blue"
    assert [each["action"] for each in house("GET", "/api/v1/changes?id=plain")["data"]] == ["update", "create"]


@pytest.mark.slow
def test_keys_of_a_team_are_bounded(house: House) -> None:
    """A team can't fill the gateway; the admin may."""
    for n in range(MOST_TEAM_KEYS - 2):
        house.accounts.create_key({"id": f"k{n}", "team": "red"}, "admin")
    assert house.denied("POST", KEYS, {})[:2] == (403, "forbidden")
    house("POST", KEYS, {"team": "red"})
