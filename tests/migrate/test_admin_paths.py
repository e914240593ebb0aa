"""LiteLLM's paths: the calls that its clients make, in their order, and the shapes that they read."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.admin_requests import parse_request
from tests.unit.ledger.made import NOON_S, made_call
from velox.accounts.active import caller_id
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.admin.api.call import Asker
from velox.admin.api.service import Api
from velox.admin.message import RefusalError
from velox.admin.roles import Role, TokenCheck
from velox.admin.sessions import Sessions
from velox.ledger.record import recorded_key, row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch
from velox.observe.oplog import operations_logger
from velox.runtime.priced import answer_prices
from velox.settings import load
from velox.types import Budget
from velox_migrate.admin.costs import FindCost
from velox_migrate.admin.paths import Model, litellm_paths

MASTER = "sk-master-0123456789"


class Proxy:
    """The API of one gateway, asked as LiteLLM's clients do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_private = True
        self.store = SqliteAccounts(folder)
        self.accounts = Accounts(self.store, lambda: float(NOON_S))
        SqliteStore(folder, days=30).close()
        names = (lambda: self.accounts, lambda: SqliteStore(folder, days=30, is_reader=True), lambda: float(NOON_S))
        self.log = io.StringIO()
        logger = operations_logger(self.log)
        models = [Model("gpt-4o", "openai", "gpt-4o-2024-11-20")]
        self.api = Api(
            [],
            self._asker_of,
            "1",
            logger,
            litellm_paths(*names, models, logger, self._costs, ["openai", "claude"], 4),
        )
        self.check = TokenCheck(MASTER, "sk-viewer", Sessions(time.monotonic))
        self._n_rings = 0
        self._n_spent = 0

    def _costs(self) -> FindCost:
        """Return what prices answers of two upstreams, by the table that comes with Velox."""
        upstreams = {"openai": {"provider": "openai"}, "claude": {"provider": "anthropic"}}
        config = {"upstreams": [{"name": name, **entry} for name, entry in upstreams.items()]}
        (self.folder / "velox.yaml").write_text(json.dumps(config))
        settings = load({"VELOX_CONFIG": str(self.folder / "velox.yaml")}, cores=1, memory_bytes=0)
        return answer_prices(settings, lambda: float(NOON_S))

    def _asker_of(self, secret: str) -> Asker | None:
        key = self.accounts.key_in_force(secret)
        return None if key is None else Asker(Role.OWN, key.id, key.id, "", key.team)

    def __call__(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        status: int = 200,
        header: str = f"Authorization: Bearer {MASTER}",
    ) -> Any:
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode()
        try:
            request = parse_request(head, takes_any=self.api.takes)
            request = replace(
                request, body=b"" if body is None else json.dumps(body).encode(), is_private=self.is_private
            )
            role = self.check.role_of(request)
            self.api.admit(request, role)
            reply = asyncio.run(self.api.reply(request, role))
        except RefusalError as refusal:
            reply = refusal.reply
        answer = json.loads(reply.body or b"null")
        assert reply.status == status, answer
        return answer

    def refused(self, method: str, target: str, body: object = None, *, status: int = 400) -> str:
        """Return the field that an error names."""
        error = self(method, target, body, status=status)["error"]
        assert error["code"] == str(status) and error["message"] and error["type"]
        return str(error["param"])

    def spend(self, key: dict[str, Any], *nano: int) -> None:
        """Record calls of a key that cost so much."""
        found = self.accounts.key_of_digest(bytes.fromhex(key["token"]))
        assert found is not None
        label = recorded_key(caller_id(found), found.name or found.id)
        made = [
            row_of(n, made_call(n, key=label, team=found.team, user=found.user, cost_nano=each, model="gpt-4o"))
            for n, each in enumerate(nano, self._n_spent + 1)
        ]
        self._n_spent += len(made)
        store = SqliteStore(self.folder, days=30)
        store.add(Batch(f"{self._n_rings}.ring", len(made) + 1, made, {}, NOON_S))
        self._n_rings += 1
        store.close()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path / "ledger")
    yield proxy
    proxy.store.close()


def test_script_makes_reads_changes_and_deletes_a_key(proxy: Proxy) -> None:
    """As a tool for infrastructure does: what it gives is what it reads, so that it plans no change."""
    given = {
        "key_alias": "prod-key",
        "models": ["gpt-4o", "gpt-4o-mini"],
        "max_budget": 100.5,
        "budget_duration": "1mo",
        "soft_budget": 50.25,
        "tpm_limit": 50_000,
        "rpm_limit": 200,
        "max_parallel_requests": 5,
        "metadata": {"environment": "production", "n": 1},
        "tags": ["prod"],
        "blocked": False,
        "spend": 0,
        "aliases": {"fast": "gpt-4o-mini"},
        "tpm_limit_type": "best_effort_throughput",
        "duration": "30d",
    }
    made = proxy("POST", "/key/generate", given)
    secret, token = made["key"], made["token"]
    assert secret.startswith("sk-") and token == hashlib.sha256(secret.encode()).hexdigest()
    assert made["key_name"].endswith(secret[-4:])

    for name in (secret, token, f"sha256:{token}"):
        info = proxy("GET", f"/key/info?key={name}")
        assert info["key"] == name
        read = {name: info["info"][name] for name in given if name not in ("duration", "metadata")}
        assert read == {name: value for name, value in given.items() if name in read}
        assert info["info"]["metadata"] == {"environment": "production", "n": 1, "tags": ["prod"]}
        assert info["info"]["spend"] == 0
        assert info["info"]["budget_reset_at"] and info["info"]["expires"]

    proxy("POST", "/key/update", {"key": secret, "max_budget": 7, "rpm_limit": None, "models": [], "blocked": True})
    info = proxy("GET", f"/key/info?key={token}")["info"]
    assert (info["max_budget"], info["budget_duration"], info["soft_budget"]) == (7, "1mo", 50.25)
    assert (info["rpm_limit"], info["tpm_limit"], info["models"], info["blocked"]) == (None, 50_000, [], True)
    assert info["key_alias"] == "prod-key" and info["aliases"] == {"fast": "gpt-4o-mini"} and info["tags"] == ["prod"]
    proxy("POST", "/key/update", {"key": secret, "max_budget": None})
    info = proxy("GET", f"/key/info?key={token}")["info"]
    assert (info["max_budget"], info["budget_duration"], info["budget_reset_at"]) == (None, "1mo", None)
    assert proxy("POST", "/key/update", {"key": secret, "max_budget": 8})["budget_reset_at"] is not None

    assert proxy("POST", "/key/delete", {"keys": [secret]}) == {"deleted_keys": [secret]}
    assert proxy.refused("GET", f"/key/info?key={secret}", status=404) == "key"


def test_key_is_found_by_the_alias_that_it_was_given(proxy: Proxy) -> None:
    """Also by one that is no name here; another one that would be the same name is another's."""
    made = proxy("POST", "/key/generate", {"key_alias": "Team A / key 1", "team_id": None})
    proxy("POST", "/key/generate", {"key_alias": "Team-A-key-1"})
    assert proxy("GET", "/key/list?key_alias=Team+A+/+key+1")["keys"] == [made["token"]]
    assert proxy("GET", "/key/list?key_alias=Team+A+key+1")["keys"] == []
    assert proxy("GET", f"/key/info?key={made['key']}")["info"]["key_alias"] == "Team A / key 1"
    assert proxy.refused("POST", "/key/delete", {"key_aliases": ["Team A_key 1"]}, status=404) == "key_aliases"
    proxy("POST", "/key/delete", {"key_aliases": ["Team A / key 1"]})
    assert proxy.accounts.key_of(made["key"]) is None


def test_what_is_kept_stands_for_nothing_that_holds(proxy: Proxy) -> None:
    """Whoever writes metadata, a team itself perhaps, tells nobody of other limits; a later name is shown."""
    made = proxy("POST", "/key/generate", {"key_alias": "a b"})
    key = proxy.accounts.key_of(made["key"])
    assert key is not None
    lies = {"max_budget": 1, "team_id": "blue", "models": ["m"], "key_alias": "a b", "token": "0", "blocked": True}
    proxy.accounts.update("key", key.id, {"name": "later", "metadata": {"litellm": lies}}, "ann")
    info = proxy("GET", f"/key/info?key={made['key']}")["info"]
    assert {name: info[name] for name in lies} == {
        "max_budget": None,
        "team_id": None,
        "models": [],
        "key_alias": "later",
        "token": made["token"],
        "blocked": False,
    }


def test_words_for_all_models_are_given_back(proxy: Proxy) -> None:
    """They are what tools give; until other models are given, by whomever."""
    proxy("POST", "/team/new", {"team_id": "t", "models": ["gpt-4o"]})
    made = proxy("POST", "/key/generate", {"team_id": "t", "models": ["all-team-models"]})
    key = proxy.accounts.key_of(made["key"])
    assert made["models"] == ["all-team-models"] and key is not None and key.models == ()
    after = proxy("POST", "/key/update", {"key": made["key"], "key_alias": "k"})
    assert after["models"] == ["all-team-models"] and not after["metadata"]
    proxy.accounts.update("key", key.id, {"models": ["gpt-4o"]}, "ann")
    assert proxy("GET", f"/key/info?key={key.id}")["info"]["models"] == ["gpt-4o"]
    proxy("POST", "/key/update", {"key": made["key"], "models": []})
    assert proxy("GET", f"/key/info?key={key.id}")["info"]["models"] == []


@pytest.mark.parametrize("secret", ["ab" * 32, f"key_{'ab' * 16}"])
def test_secret_may_look_like_a_digest_or_an_id(proxy: Proxy, secret: str) -> None:
    made = proxy("POST", "/key/generate", {"key": secret})
    assert proxy("GET", f"/key/info?key={secret}")["info"]["token"] == made["token"]


class Interrupted(Accounts):
    """Before each of the first changes, somebody else makes one of the same account."""

    def __init__(self, store: SqliteAccounts, others: list[tuple[Any, dict[str, Any]]]) -> None:
        super().__init__(store, lambda: float(NOON_S))
        self.others = others

    def update(self, kind: Any, id: str, *more: Any) -> Any:  # noqa: A002 - the parent's name
        if self.others:
            Accounts(self._store, self._clock).update(*self.others.pop(0), "ben")  # type: ignore[call-arg]
        return super().update(kind, id, *more)


def test_change_by_somebody_else_at_the_same_time_is_not_undone(proxy: Proxy) -> None:
    """What a call does not name stays as it is when the call is done, not as it was when it began."""
    key = proxy.accounts.create_key({"budgets": [{"usd": 20, "window": "month"}]}, "ann").key
    tokens = {"tokens": 1000, "window": "day"}
    others = [("key", key.id, {"metadata": {"owner": "ben"}}), ("key", key.id, {"budgets": [tokens]})]
    proxy.accounts = Interrupted(proxy.store, others)
    proxy("POST", "/key/update", {"key": key.id, "max_budget": 30, "agent_id": "gold"})
    after = proxy.accounts.find_key(key.id)
    assert after is not None and after.metadata == {"owner": "ben", "litellm": {"agent_id": "gold"}}
    assert [(each.limit_nano, each.limit_tokens) for each in after.budgets] == [(30 * 10**9, None), (None, 1000)]


def test_user_is_made_blocked_if_that_is_asked_for(proxy: Proxy) -> None:
    made = proxy("POST", "/user/new", {"user_id": "u", "blocked": True, "max_budget": 5, "rpm_limit": 60})
    assert (
        made["blocked"]
        and (made["max_budget"], made["rpm_limit"]) == (5, 60)
        and proxy("GET", "/user/info?user_id=u")["user_info"]["blocked"]
    )
    assert proxy.accounts.key_in_force(made["key"]) is None


def test_budget_that_has_no_name_there_stays(proxy: Proxy) -> None:
    """One of tokens, made by Velox's own API; a change of another field leaves all budgets as they are."""
    budgets = [
        {"tokens": 1000, "window": "day", "zone": "Europe/Berlin"},
        {"usd": "2.5", "window": "week", "strict": True},
    ]
    key = proxy.accounts.create_key({"name": "k", "budgets": budgets}, "ann").key

    proxy("POST", "/key/update", {"key": key.id, "tpm_limit": 5})
    assert proxy.accounts.find_key(key.id).budgets == key.budgets  # type: ignore[union-attr]
    proxy("POST", "/key/update", {"key": key.id, "max_budget": 3})
    after = proxy.accounts.find_key(key.id)
    assert after is not None
    assert after.budgets == (Budget(3_000_000_000, None, "week", strict=True), key.budgets[0])


@pytest.mark.parametrize(
    "budget",
    [
        {"usd": 20, "window": "30d", "starts": "2026-11-05"},
        {"usd": 20, "window": "month", "zone": "Europe/Berlin", "strict": True, "unpriced": "allow"},
        {"usd": 20, "window": "year", "soft": [50, 80]},
        {"usd": 20, "window": "hour"},
        {"usd": 20, "window": "total"},
    ],
)
@pytest.mark.parametrize("echoes", [True, False])
def test_budget_that_is_raised_stays_the_same_budget(proxy: Proxy, budget: dict[str, Any], echoes: bool) -> None:
    """Its windows too, so that what is spent stays spent; also if the client gives back what it was shown."""
    key = proxy.accounts.create_key({"budgets": [budget]}, "ann").key
    before = proxy("GET", f"/key/info?key={key.id}")["info"]
    names = ("budget_duration", "budget_reset_at")
    more = {name: before[name] for name in names} if echoes else {}
    after = proxy("POST", "/key/update", {"key": key.id, "max_budget": 30, **more})
    assert [after[name] for name in names] == [before[name] for name in names]
    now = proxy.accounts.find_key(key.id)
    assert now is not None and now.budgets == (replace(key.budgets[0], limit_nano=30 * 10**9),)


def test_budget_that_gets_another_period_keeps_the_rest(proxy: Proxy) -> None:
    budget = {"usd": 20, "window": "week", "zone": "Europe/Berlin", "strict": True, "soft": [50, 80]}
    key = proxy.accounts.create_key({"budgets": [budget]}, "ann").key
    proxy("POST", "/key/update", {"key": key.id, "budget_duration": "30d"})
    now = proxy.accounts.find_key(key.id)
    assert now is not None and now.budgets == (replace(key.budgets[0], window="month"),)
    proxy("POST", "/key/update", {"key": key.id, "budget_duration": "12h", "soft_budget": 5})
    now = proxy.accounts.find_key(key.id)
    assert now is not None and now.budgets == (Budget(20 * 10**9, None, 43_200, soft=(25,), strict=True),)


def test_period_that_comes_before_its_budget_is_kept(proxy: Proxy) -> None:
    key = proxy("POST", "/key/generate", {"budget_duration": "30d"})
    assert key["budget_duration"] == "30d"
    assert proxy("POST", "/key/update", {"key": key["key"], "key_alias": "k"})["budget_duration"] == "30d"
    after = proxy("POST", "/key/update", {"key": key["key"], "max_budget": 5})
    assert after["budget_duration"] == "30d" and after["budget_reset_at"] is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoints": ["inference", "files"]},
        {"budgets": [{"usd": 20, "window": "hour"}]},
        {"metadata": {"litellm": {"model_max_budget": {"gpt-4o": 1}}, "guardrails": ["pii"]}},
    ],
)
def test_what_can_not_be_given_there_stops_no_change_of_something_else(proxy: Proxy, fields: dict[str, Any]) -> None:
    """Groups of endpoints, a budget an hour; limits that an import has left out."""
    before = proxy.accounts.create_key(fields, "ann").key
    proxy("POST", "/key/update", {"key": before.id, "key_alias": "new", "tpm_limit": 50})
    metadata = proxy("GET", f"/key/info?key={before.id}")["info"]["metadata"]
    proxy("POST", "/key/update", {"key": before.id, "metadata": {**metadata, "more": 1}})
    after = proxy.accounts.find_key(before.id)
    assert after is not None and (after.name, after.rates.tpm) == ("new", 50)
    assert (after.endpoints, after.budgets) == (before.endpoints, before.budgets)
    assert after.metadata == {**before.metadata, "more": 1}
    for name, wrong in (
        ("model_max_budget", {"model_max_budget": {"gpt-4o": 2}}),
        ("metadata.guardrails", {"metadata": {"guardrails": ["other"]}}),
    ):
        assert proxy.refused("POST", "/key/update", {"key": before.id, **wrong}) == name


def test_keys_are_blocked_and_regenerated(proxy: Proxy) -> None:
    made = proxy("POST", "/key/generate", {"key_alias": "k"})
    assert proxy("POST", "/key/block", {"key": made["key"]})["blocked"]
    assert not proxy("POST", "/key/unblock", {"key": made["token"]})["blocked"]

    path = f"/key/{made['token']}/regenerate"
    new = proxy("POST", path, {"grace_period": "1h", "max_budget": 4})
    assert new["key"] != made["key"] and new["token"] != made["token"] and new["max_budget"] == 4
    assert proxy.accounts.key_in_force(made["key"]) is not None
    newest = proxy("POST", "/key/regenerate", {"key": new["key"]})
    assert proxy.accounts.key_in_force(new["key"]) is None
    assert proxy.accounts.key_in_force(newest["key"]) is not None


def test_refused_regeneration_changes_nothing(proxy: Proxy) -> None:
    made = proxy("POST", "/key/generate", {"models": ["gpt-4o"]})
    body = {"key": made["key"], "grace_period": "91d", "models": []}
    assert proxy.refused("POST", "/key/regenerate", body) == "grace_period"
    assert proxy("GET", f"/key/info?key={made['key']}")["info"]["models"] == ["gpt-4o"]


def test_key_that_is_named_twice_is_deleted(proxy: Proxy) -> None:
    made = proxy("POST", "/key/generate", {"key_alias": "k"})
    body = {"keys": [made["key"], made["token"]], "key_aliases": ["k"]}
    assert proxy("POST", "/key/delete", body)["deleted_keys"] == [made["key"], made["token"], "k"]
    assert proxy.accounts.key_in_force(made["key"]) is None


def test_own_secret_is_taken_and_is_not_needed_to_be_private(proxy: Proxy) -> None:
    proxy.is_private = False
    assert proxy.refused("POST", "/key/generate", {}, status=403)
    made = proxy("POST", "/key/generate", {"key": "sk-of-my-own-0123456789"})
    assert made["token"] == hashlib.sha256(b"sk-of-my-own-0123456789").hexdigest()
    proxy.refused("POST", "/user/new", {"user_id": "u"}, status=403)
    assert proxy("POST", "/user/new", {"user_id": "u", "auto_create_key": False})["user_id"] == "u"


def test_teams_and_users(proxy: Proxy) -> None:
    team = proxy(
        "POST",
        "/team/new",
        {
            "team_alias": "Web shop",
            "max_budget": 10,
            "budget_duration": "30d",
            "members_with_roles": [{"role": "admin", "user_id": "ada"}],
        },
    )
    assert team["team_alias"] == "Web shop"
    user = proxy(
        "POST",
        "/user/new",
        {
            "user_id": "ada@example.com",
            "user_email": "ada@example.com",
            "user_role": "internal_user",
            "team_id": team["team_id"],
            "key_alias": "ada-key",
        },
    )
    assert user["key"].startswith("sk-") and user["team_id"] == team["team_id"]
    proxy.spend(user, 1_500_000_000, 250)

    updated = proxy("POST", "/team/update", {"team_id": team["team_id"], "models": ["gpt-4o"], "tpm_limit": 7})
    assert updated["team_id"] == team["team_id"] and updated["data"]["models"] == ["gpt-4o"]
    info = proxy("GET", f"/team/info?team_id={team['team_id']}")
    assert info["team_info"]["spend"] == 1.50000025 and info["team_info"]["max_budget"] == 10
    assert [each["key_alias"] for each in info["keys"]] == ["ada-key"]
    assert info["team_info"]["members_with_roles"] == [{"role": "admin", "user_id": "ada"}]
    assert [each["team_id"] for each in proxy("GET", "/team/list")] == [team["team_id"]]
    assert proxy("GET", "/team/list?user_id=nobody") == []

    info = proxy("GET", "/user/info?user_id=ada@example.com")
    assert info["user_info"]["spend"] == 1.50000025 and info["user_info"]["user_role"] == "internal_user"
    assert len(info["keys"]) == len(info["teams"]) == 1
    listed = proxy("GET", "/user/list?page_size=1")
    assert (listed["total"], listed["total_pages"], listed["users"][0]["user_id"]) == (1, 1, "ada@example.com")
    assert proxy("GET", f"/key/info?key={user['token']}")["info"]["spend"] == 1.50000025


def test_keys_are_listed_in_pages(proxy: Proxy) -> None:
    made = [proxy("POST", "/key/generate", {"key_alias": f"k{n}"}) for n in range(5)]
    pages = [proxy("GET", f"/key/list?size=2&page={page}") for page in (1, 2, 3)]

    assert sorted(each for page in pages for each in page["keys"]) == sorted(each["token"] for each in made)
    assert {(page["total_count"], page["total_pages"]) for page in pages} == {(5, 3)}
    (full,) = proxy("GET", "/key/list?key_alias=k3&return_full_object=true&include_team_keys=true")["keys"]
    assert full["token"] == made[3]["token"] and full["key_alias"] == "k3"


def test_spend_is_reported(proxy: Proxy) -> None:
    team = proxy("POST", "/team/new", {"team_id": "web", "team_alias": "Web"})["team_id"]
    key = proxy("POST", "/key/generate", {"key_alias": "k", "team_id": team})
    proxy.spend(key, 1_000_000_000, 2_500_000_000)
    day = (
        "2026-11-23"
        if "2026-11-23" in proxy("GET", "/spend/logs")[0]["startTime"]
        else proxy("GET", "/spend/logs")[0]["startTime"][:10]
    )
    days = f"start_date={day}&end_date={day}"

    rows = proxy("GET", f"/spend/logs?{days}&summarize=false&api_key={key['key']}")
    assert [row["spend"] for row in rows] == [1.0, 2.5]
    assert len({row["request_id"] for row in rows}) == 2
    assert {(row["api_key"], row["team_id"], row["model_group"]) for row in rows} == {(key["token"], "web", "gpt-4o")}
    assert proxy("GET", f"/spend/logs?request_id={rows[1]['request_id']}") == rows[1:]
    (of_day,) = proxy("GET", f"/spend/logs?{days}")
    assert of_day["spend"] == 3.5 and of_day["models"] == {"gpt-4o": 3.5}
    assert proxy("GET", f"/spend/logs?start_date={day}T23:59:00&end_date={day}") == [of_day], "days are whole"

    activity = proxy("GET", f"/user/daily/activity?{days}&page=1&page_size=10")
    (result,) = activity["results"]
    assert result["date"] == day and result["metrics"]["spend"] == 3.5 and result["metrics"]["api_requests"] == 2
    assert result["breakdown"]["models"]["gpt-4o"]["metrics"]["spend"] == 3.5
    assert result["breakdown"]["api_keys"][key["token"]]["metadata"] == {"key_alias": "k", "team_id": "web"}
    assert activity["metadata"]["total_spend"] == 3.5 and activity["metadata"]["total_pages"] == 1
    assert proxy("GET", f"/user/daily/activity/aggregated?{days}")["results"] == [result]
    assert proxy("GET", f"/user/daily/activity?{days}&user_id=nobody")["results"] == []

    (report,) = proxy("GET", f"/global/spend/report?{days}&group_by=team")
    (by_team,) = report["teams"]
    assert (by_team["team_name"], by_team["total_spend"]) == ("Web", 3.5)
    (by_key,) = proxy("GET", f"/global/spend/report?{days}&api_key={key['token']}")
    assert by_key["total_cost"] == 3.5 and by_key["model_details"][0]["model"] == "gpt-4o"
    assert proxy.refused("GET", f"/global/spend/report?{days}&group_by=customer") == "group_by"


def test_renamed_key_has_spent_what_it_spent_before(proxy: Proxy) -> None:
    """Records have the name that it had: it is one key in all answers."""
    key = proxy("POST", "/key/generate", {"key_alias": "k"})
    proxy.spend(key, 1_000_000_000)
    proxy("POST", "/key/update", {"key": key["key"], "key_alias": "a"})
    proxy.spend(key, 2_500_000_000)
    days = "start_date=2020-01-01&end_date=9999-01-01"

    assert proxy("GET", f"/key/info?key={key['key']}")["info"]["spend"] == 3.5
    (of_day,) = proxy("GET", f"/spend/logs?{days}")
    assert of_day["api_keys"] == {key["token"]: 3.5}
    (by_key,) = proxy("GET", f"/global/spend/report?{days}&group_by=api_key")
    assert by_key["api_key"] == key["token"] and by_key["total_cost"] == 3.5
    (of_model,) = by_key["model_details"]
    assert of_model["total_cost"] == 3.5


def test_models_are_listed(proxy: Proxy) -> None:
    (model,) = proxy("GET", "/model/info")["data"]
    assert model["model_name"] == "gpt-4o" and model["litellm_params"] == {"model": "gpt-4o-2024-11-20"}
    assert proxy("GET", "/v1/model/info?litellm_model_id=none")["data"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_budget": "much"}, "max_budget"),
        ({"max_budget": -1}, "max_budget"),
        ({"max_budget": "1e999999999"}, "max_budget"),
        ({"max_budget": 1, "soft_budget": "1e999999999"}, "soft_budget"),
        ({"rpm_limit": "1"}, "rpm_limit"),
        ({"rpm_limit": 0}, "rpm_limit"),
        ({"tpm_limit": 0}, "tpm_limit"),
        ({"max_parallel_requests": 0}, "max_parallel_requests"),
        ({"key_alias": 5}, "key_alias"),
        ({"team_id": "none"}, "team_id"),
        ({"models": "gpt-4o"}, "models"),
        ({"duration": "soon"}, "duration"),
        ({"budget_duration": "soon", "max_budget": 1}, "budget_duration"),
        ({"tags": ["a,b"]}, "tags"),
        ({"blocked": "yes"}, "blocked"),
        ({"blocked": 2}, "blocked"),
        ({"blocked": 1}, "blocked"),
        ({"blocked": 0.0}, "blocked"),
        ({"duration": "999999999mo"}, "duration"),
        ({"budget_duration": "9999d", "max_budget": 1}, "budget_duration"),
        ({"budget_duration": ["1d"], "max_budget": 1}, "budget_duration"),
        ({"spend": 5}, "spend"),
        ({"model_max_budget": {"gpt-4o": 1}}, "model_max_budget"),
        ({"metadata": {"model_rpm_limit": {"gpt-4o": 1}}}, "metadata.model_rpm_limit"),
        ({"guardrails": ["pii"]}, "guardrails"),
        ({"budget_id": "b"}, "budget_id"),
        ({"key_type": "management"}, "key_type"),
        ({"key_type": ["default"]}, "key_type"),
        ({"allowed_routes": ["management_routes"]}, "allowed_routes"),
    ],
)
def test_wrong_field_or_one_that_would_limit_makes_nothing(proxy: Proxy, body: dict[str, Any], field: str) -> None:
    assert proxy.refused("POST", "/key/generate", body) == field
    assert proxy.accounts.number() == 0


@pytest.mark.parametrize(
    "body",
    [
        {"max_budget": 1e18, "soft_budget": 1e18},
        {"max_budget": "1e-999999999", "soft_budget": 0},
        {"max_budget": 1, "budget_duration": "3500d", "budget_reset_at": "0001-01-01T00:00:00+14:00"},
        {"max_budget": 1, "budget_duration": "30d", "budget_reset_at": "9999-12-31"},
        {"models": [], "metadata": {"litellm": 5}, "allowed_routes": ["/chat/completions", "/v1/files/{id}"]},
    ],
)
def test_strange_values_are_taken_within_bounds(proxy: Proxy, body: dict[str, Any]) -> None:
    proxy("POST", "/key/generate", body)


@pytest.mark.parametrize(
    "days", ["start_date=0001-01-01", "start_date=9999-12-31&end_date=9999-12-31", "end_date=9999-12-31"]
)
@pytest.mark.parametrize("path", ["/spend/logs", "/user/daily/activity", "/global/spend/report"])
def test_days_at_the_ends_of_time(proxy: Proxy, path: str, days: str) -> None:
    proxy("GET", f"{path}?{days}")


def test_spend_can_not_be_reset(proxy: Proxy) -> None:
    key = proxy("POST", "/key/generate", {})
    proxy("POST", "/key/update", {"key": key["key"], "spend": 0})
    proxy.spend(key, 10)
    assert proxy.refused("POST", "/key/update", {"key": key["key"], "spend": 0}) == "spend"


def test_field_without_a_meaning_is_told_once(proxy: Proxy) -> None:
    for _ in range(3):
        proxy("POST", "/key/generate", {"router_settings": {"num_retries": 2}})

    assert [json.loads(line)["message"] for line in proxy.log.getvalue().splitlines()] == [
        "LiteLLM's field router_settings is kept with its account, and means nothing here"
    ]


def test_who_may_ask(proxy: Proxy) -> None:
    """The admin token in either header; a viewer reads; a key reads itself; anybody else nothing."""
    key = proxy("POST", "/key/generate", {"key_alias": "own"})
    other = proxy("POST", "/key/generate", {}, header=f"x-litellm-api-key: Bearer {MASTER}")
    own = f"x-litellm-api-key: {key['key']}"

    assert proxy("GET", "/key/info", header=own)["info"]["key_alias"] == "own"
    error = proxy("GET", f"/key/info?key={other['key']}", header=own, status=404)["error"]
    assert error["type"] == "not_found_error"
    assert proxy("GET", "/key/list", header=own, status=403)["error"]["type"] == "auth_error"
    assert proxy("POST", "/key/generate", {}, header=own, status=401)["error"]["code"] == "401"
    viewer = "Authorization: Bearer sk-viewer"
    assert proxy("GET", "/key/list", header=viewer)["total_count"] == 2
    proxy("POST", "/key/delete", {"keys": [key["key"]]}, header=viewer, status=403)
    proxy("GET", "/key/list", header="Authorization: Bearer sk-wrong", status=401)


def test_path_that_is_not_there(proxy: Proxy) -> None:
    assert proxy.refused("POST", "/key/health", {}, status=404) == "None"
    assert proxy.refused("GET", "/key/generate", status=405) == "None"
