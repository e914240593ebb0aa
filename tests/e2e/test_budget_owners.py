"""Budgets of managed keys, teams and users, of tags and models, strict ones, and what a cancelled request leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.priced import Priced
from tests.e2e.tools import Client
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts

ACTOR = "tests"
OF_TEAM = {"usd": "0.0055", "window": "month"}


@pytest.fixture
def priced(tmp_path: Path) -> Priced:
    return Priced(tmp_path)


def ask(velox: VeloxProcess, key: str, model: str = "own", max_tokens: int = 100) -> int:
    body = json.dumps({"model": model, "messages": [], "max_tokens": max_tokens}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return velox.request("POST", "/v1/chat/completions", body, headers).status


def test_budgets_of_managed_keys_teams_and_users_come_into_force(priced: Priced) -> None:
    """Made, raised and lowered while the gateway runs; what was spent stays spent, also after a restart."""
    accounts_at = priced.folder / "ledger"
    with priced.running([], managed_keys="on") as velox:
        accounts = Accounts(SqliteAccounts(accounts_at))
        team = accounts.create_team({"name": "web", "budgets": [OF_TEAM]}, ACTOR)
        user = accounts.create_user({"name": "ann", "budgets": [{"tokens": 2000, "window": "day"}]}, ACTOR)
        made = [
            accounts.create_key({"name": f"k{n}", "team": team.id, **more}, ACTOR)
            for n, more in enumerate(({}, {}, {"user": user.id}))
        ]
        secrets = [secret for _, secret in made]
        until(lambda: [ask(velox, key, "unpriced") for key in secrets] == [403] * 3, "they are active")
        assert [ask(velox, secrets[2]) for _ in range(3)] == [200, 200, 429], "the user's, of two windows the first"
        assert [ask(velox, key) for key in (secrets[0], secrets[1], secrets[0])] == [200, 429, 429], "the team's"
        accounts.update("team", team.id, {"budgets": [{**OF_TEAM, "usd": "0.0075"}]}, ACTOR)
        until(lambda: ask(velox, secrets[0]) == 200, "it is raised")
        assert [ask(velox, key) for key in secrets] == [429] * 3
        _, secrets[2] = accounts.rotate_key(made[2][0].id, 0, ACTOR)
        until(lambda: ask(velox, secrets[2]) == 429, "another secret has no other budget")
        n_calls = priced.n_calls
    with priced.running([], managed_keys="on") as velox:
        assert [ask(velox, key) for key in secrets] == [429] * 3
        accounts.update("team", team.id, {"budgets": []}, ACTOR)
        until(lambda: ask(velox, secrets[1]) == 200, "it has none any more")
        assert ask(velox, secrets[2]) == 429, "its user has one"
        assert priced.n_calls == n_calls + 1


def test_budgets_of_tags_and_models_count_only_what_is_theirs(priced: Priced) -> None:
    """A request with two tags counts in both; each model that a rule matches has its own; windows hold together."""
    budgets = [
        {"per": "tag", "tags": ["batch"], "usd": "0.0035", "window": "week"},
        {"per": "model", "models": ["own-*"], "tokens": 1300, "window": "day", "zone": "Europe/Berlin"},
        {"per": "gateway", "usd": "0.0095", "window": "total"},
    ]
    keys = [
        {"key": "sk-batch-0123456789", "name": "nightly", "tags": ["batch", "eu"]},
        {"key": "sk-other-0123456789", "name": "other"},
    ]
    path = priced.folder / "keys.yaml"
    path.write_text(yaml.safe_dump(keys))
    with priced.running(budgets, api_keys_file=str(path)) as velox:
        batch, other = (key["key"] for key in keys)
        assert [ask(velox, batch) for _ in range(3)] == [200, 200, 429]
        assert [ask(velox, other, "own-a") for _ in range(3)] == [200, 200, 429]
        assert ask(velox, other, "own-b") == 200
        assert [ask(velox, other), ask(velox, other)] == [429, 429], "the gateway's, for ever"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_what_tags_users_and_models_spent_survives_a_restart(
    priced: Priced, request: pytest.FixtureRequest, database: str, ends: str
) -> None:
    """Though the key that spent it is gone, or has another tag and another user by then."""
    budgets = [
        {"per": "tag", "usd": "0.0055", "window": "month"},
        {"per": "user", "usd": "0.0055", "window": "week"},
        {"per": "model", "models": ["own-*"], "tokens": 2100, "window": "30d"},
        {"per": "team", "tags": ["eu", "us"], "usd": "0.0095", "window": "total"},
    ]

    def key(name: str, **more: object) -> dict[str, object]:
        return {"key": f"sk-{name}-0123456789", "name": name, **more}

    path = priced.folder / "keys.yaml"
    more = {"api_keys_file": str(path), "access_log": "all"}
    if database == "postgres":
        more["ledger_database"] = request.getfixturevalue("postgres").database()
    moved, gone, plain = (f"sk-{name}-0123456789" for name in ("moved", "gone", "plain"))
    before = [
        key("moved", tags=["eu", "us"], user="ann", team="web"),
        key("gone", tags=["batch"], team="web"),
        key("plain"),
    ]
    path.write_text(yaml.safe_dump(before))
    with priced.running(budgets, **more) as velox:
        assert [ask(velox, moved) for _ in range(4)] == [200, 200, 200, 429]
        assert [ask(velox, gone) for _ in range(4)] == [200, 200, 200, 429]
        assert [ask(velox, plain, "own-a") for _ in range(3)] == [200, 200, 429]
        n_calls = priced.n_calls
        for _ in range(n_calls):
            velox.wait_access(lambda line: line["status"] == 200)  # until then a record may not be whole
        if ends == "killed":
            velox.kill()
    after = [
        key("moved", tags=["asia"], user="bob", team="other"),
        key("plain"),
        key("first", tags=["eu"]),
        key("second", tags=["batch"]),
        key("third", user="ann"),
        key("fourth", tags=["us"]),
        key("fifth", team="web"),
    ]
    path.write_text(yaml.safe_dump(after))
    with priced.running(budgets, **more) as velox:
        spent = [ask(velox, f"sk-{name}-0123456789") for name in ("first", "second", "third", "fourth")]
        assert spent == [429] * 4 and priced.n_calls == n_calls
        assert ask(velox, plain, "own-a") == 429 and priced.n_calls == n_calls
        assert [ask(velox, moved), ask(velox, plain), ask(velox, plain, "own-b")] == [200] * 3
        assert ask(velox, "sk-fifth-0123456789") == 200, "without a tag that its budget counts"
        assert ask(velox, gone) == 401


def test_strict_budget_holds_the_longest_answer(priced: Priced) -> None:
    """Spent is never above the limit; a request whose worst case does not fit is refused."""
    budget = {"per": "gateway", "tokens": 5000, "window": "day", "strict": True}
    with priced.running([budget], api_keys="sk-other-0123456789") as velox:
        assert ask(velox, "sk-other-0123456789", max_tokens=6000) == 429
        assert ask(velox, "sk-other-0123456789", max_tokens=2000) == 200
        assert priced.n_calls == 1


def test_case_07_client_that_leaves_holds_nothing(priced: Priced) -> None:
    """Its call was sent, and counts as what it may have cost; nothing of it is held any more."""
    budget = {"per": "gateway", "tokens": 5000, "window": "day"}
    with priced.running([budget]) as velox:
        priced.is_silent = True
        with Client(velox) as client:
            body = json.dumps({"model": "own", "messages": [], "max_tokens": 100}).encode()
            client.send("POST", "/v1/chat/completions", body)
            until(lambda: priced.n_calls == 1, "it is at the upstream")
            until(lambda: left(velox)["held"] > 100, "it is held")
        until(lambda: left(velox)["held"] == 0 and left(velox)["spent"] > 0, "it is free again, and spent")
        assert left(velox)["spent"] < 200


def left(velox: VeloxProcess) -> dict[str, float]:
    found = {name: n for name, n in velox.metrics().items() if name.startswith("velox_budget_")}
    return {name.partition("{")[0].removeprefix("velox_budget_"): n for name, n in found.items()}
