"""LiteLLM's own clients at its paths: the Python client, and the providers for Terraform, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.test_admin_paths import MASTER, Proxy
from velox.admin.app import PAGES

PROVIDER = f"x-api-key: {MASTER}"  # one of the providers sends this only


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path / "ledger")
    yield proxy
    proxy.store.close()


# -- the Python client ----------------------------------------------------------------------------


def test_python_client_deletes_keys_by_either_name(proxy: Proxy) -> None:
    """It sends both lists; null is nothing."""
    first, second = (proxy("POST", "/key/generate", {"key_alias": each}) for each in ("a", "b"))
    answer = proxy("POST", "/key/delete", {"keys": [first["key"]], "key_aliases": None})
    assert answer == {"deleted_keys": [first["key"]]}
    proxy("POST", "/key/delete", {"keys": None, "key_aliases": ["b"]})
    for each in (first, second):
        proxy("GET", f"/key/info?key={each['key']}", status=404)
    assert proxy.refused("POST", "/key/delete", {"keys": None, "key_aliases": None}) == "keys"


def test_key_for_a_user_that_is_not_there_makes_the_user(proxy: Proxy) -> None:
    made = proxy("POST", "/key/generate", {"models": ["gpt-4o"], "user_id": "new", "duration": "-1", "spend": None})
    assert made["user_id"] == "new" and made["expires"] is None
    assert proxy("GET", "/user/info?user_id=new")["user_info"]["user_id"] == "new"
    assert proxy("POST", "/key/generate", {"user_id": "new"})["user_id"] == "new"


def test_refused_key_leaves_no_user(proxy: Proxy) -> None:
    assert proxy.refused("POST", "/key/generate", {"user_id": "new", "team_id": "none"}) == "team_id"
    proxy("GET", "/user/info?user_id=new", status=404)


def test_end_of_a_key_is_taken_away(proxy: Proxy) -> None:
    key = proxy("POST", "/key/generate", {"key_alias": "k", "duration": "1h"})
    assert key["expires"]
    assert proxy("POST", "/key/update", {"key": key["key"], "duration": "-1"})["expires"] is None
    assert proxy("GET", f"/key/info?key={key['key']}")["info"]["expires"] is None


def test_key_is_updated_by_its_alias(proxy: Proxy) -> None:
    key = proxy("POST", "/key/generate", {"key_alias": "k"})
    assert proxy("POST", "/key/update", {"key_alias": "k", "max_budget": 5})["key"] == key["token"]
    assert proxy("GET", f"/key/info?key={key['key']}")["info"]["max_budget"] == 5
    proxy("POST", "/key/update", {"key_alias": "x"}, status=404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/key/generate", {"max_budgett": 5}),
        ("/key/update", {"key": "", "max_budgett": 5}),
        ("/team/new", {"max_budgett": 5}),
        ("/team/update", {"team_id": "t", "max_budgett": 5}),
        ("/user/new", {"max_budgett": 5}),
        ("/user/update", {"user_id": "u", "max_budgett": 5}),
    ],
)
def test_misspelt_limit_makes_nothing(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    """A field that LiteLLM has not is refused: as a field without a meaning it would limit nothing."""
    key = proxy("POST", "/key/generate", {})
    proxy("POST", "/team/new", {"team_id": "t"})
    proxy("POST", "/user/new", {"user_id": "u", "auto_create_key": False})
    before = proxy.accounts.number()
    body = {**body, "key": key["key"]} if "key" in body else body
    assert proxy.refused("POST", path, body) == "max_budgett"
    assert proxy.accounts.number() == before


def test_aliases_are_listed(proxy: Proxy) -> None:
    for each in ("prod-b", "prod-a", "dev"):
        proxy("POST", "/key/generate", {"key_alias": each})
    proxy("POST", "/key/generate", {})
    found = proxy("GET", "/key/aliases?search=PROD&size=1&page=2")
    assert found == {"aliases": ["prod-b"], "total_count": 2, "current_page": 2, "total_pages": 2, "size": 1}


def test_keys_are_changed_together(proxy: Proxy) -> None:
    """One that is refused keeps none of the others from its change."""
    key = proxy("POST", "/key/generate", {})
    items = [{"key": "sk-none", "max_budget": 1}, {"key": key["key"], "max_budget": 2, "tags": ["a"]}, 5]
    answer = proxy("POST", "/key/bulk_update", {"keys": items})
    assert answer["total_requested"] == 3
    assert [(each["key"], each["key_info"]["max_budget"]) for each in answer["successful_updates"]] == [(key["key"], 2)]
    assert [each["key"] for each in answer["failed_updates"]] == ["sk-none", ""]
    assert all(each["failed_reason"] for each in answer["failed_updates"])
    assert proxy("GET", f"/key/info?key={key['key']}")["info"]["tags"] == ["a"]
    assert proxy.refused("POST", "/key/bulk_update", {"keys": []}) == "keys"


# -- Terraform: create, read, update, read, delete, read ------------------------------------------


def test_terraform_key(proxy: Proxy) -> None:
    team = {"team_id": "t", "team_alias": "Team", "router_settings": {}}
    proxy("POST", "/team/new", team, header=PROVIDER)
    body = {"key_alias": "k", "team_id": "t", "models": ["all-team-models"], "max_budget": 10.5, "blocked": False}
    key = proxy("POST", "/key/generate", body, header=PROVIDER)["key"]
    info = proxy("GET", f"/key/info?key={key}", header=PROVIDER)["info"]
    assert {name: info[name] for name in body} == body

    proxy("POST", "/key/update", {**body, "key": key, "max_budget": 20.0}, header=PROVIDER)
    assert proxy("GET", f"/key/info?key={key}", header=PROVIDER)["info"]["max_budget"] == 20.0

    proxy("POST", "/key/block", {"key": key}, header=PROVIDER)
    assert proxy("GET", f"/key/info?key={key}", header=PROVIDER)["info"]["blocked"] is True
    proxy("POST", "/key/unblock", {"key": key}, header=PROVIDER)

    proxy("POST", "/key/delete", {"keys": [key]}, header=PROVIDER)
    proxy("GET", f"/key/info?key={key}", header=PROVIDER, status=404)
    proxy("POST", "/key/delete", {"keys": [key]}, header=PROVIDER, status=404)  # it takes that for done


def test_terraform_team(proxy: Proxy) -> None:
    body = {
        "team_id": "6f6ad9a0",
        "team_alias": "Team",
        "max_budget": 100.0,
        "budget_duration": "30d",
        "tpm_limit": 1000,
        "rpm_limit": 10,
        "models": ["gpt-4o"],
        "metadata": {"owner": "ops"},
        "blocked": False,
        "tpm_limit_type": "guaranteed_throughput",
        "router_settings": {},
    }
    proxy("POST", "/team/new", body, header=PROVIDER)
    read = proxy("GET", "/team/info?team_id=6f6ad9a0", header=PROVIDER)["team_info"]
    assert {name: read.get(name, {}) for name in body} == body

    changed = {**body, "team_alias": "Other", "max_budget": None, "rpm_limit": 20}
    proxy("POST", "/team/update", changed, header=PROVIDER)
    read = proxy("GET", "/team/info?team_id=6f6ad9a0", header=PROVIDER)["team_info"]
    assert (read["team_alias"], read["max_budget"], read["rpm_limit"]) == ("Other", None, 20)

    assert proxy("POST", "/team/block", {"team_id": "6f6ad9a0"}, header=PROVIDER)["blocked"] is True
    assert proxy("POST", "/team/unblock", {"team_id": "6f6ad9a0"}, header=PROVIDER)["blocked"] is False

    key = proxy("POST", "/key/generate", {"team_id": "6f6ad9a0"})["key"]
    proxy("POST", "/team/delete", {"team_ids": ["6f6ad9a0"]}, header=PROVIDER)
    proxy("GET", "/team/info?team_id=6f6ad9a0", header=PROVIDER, status=404)
    proxy("GET", f"/key/info?key={key}", status=404)


def test_terraform_user(proxy: Proxy) -> None:
    body = {"user_id": "u", "user_email": "u@example.org", "user_role": "internal_user", "auto_create_key": True}
    assert proxy("POST", "/user/new", body, header=PROVIDER)["key"].startswith("sk-")
    read = proxy("GET", "/user/info?user_id=u", header=PROVIDER)["user_info"]
    assert (read["user_id"], read["user_email"], read["user_role"]) == ("u", "u@example.org", "internal_user")

    proxy("POST", "/user/update", {**body, "user_alias": "U", "max_budget": 5.0, "models": ["gpt-4o"]}, header=PROVIDER)
    read = proxy("GET", "/user/info?user_id=u", header=PROVIDER)["user_info"]
    assert (read["user_alias"], read["max_budget"], read["models"]) == ("U", 5.0, ["gpt-4o"])

    assert proxy("POST", "/user/delete", {"user_ids": ["u"]}, header=PROVIDER) == 1
    proxy("GET", "/user/info?user_id=u", header=PROVIDER, status=404)
    assert proxy("GET", "/key/list")["total_count"] == 0


def test_new_user_is_a_member_of_its_teams(proxy: Proxy) -> None:
    proxy("POST", "/team/new", {"team_id": "t"})
    body = {"user_id": "u", "teams": ["t"], "auto_create_key": False}
    assert proxy("POST", "/user/new", body, header=PROVIDER)["teams"] == ["t"]
    assert proxy("GET", "/user/info?user_id=u", header=PROVIDER)["user_info"]["teams"] == ["t"]
    assert [each["user_id"] for each in proxy("GET", "/team/info?team_id=t")["team_memberships"]] == ["u"]
    proxy("POST", "/user/update", {"user_id": "u", "teams": ["t"], "max_budget": 5}, header=PROVIDER)
    assert proxy.refused("POST", "/user/update", {"user_id": "u", "teams": ["t", "x"]}) == "teams"
    assert proxy.refused("POST", "/user/new", {"user_id": "v", "teams": ["none"]}, status=404) == "teams"
    assert proxy.refused("POST", "/user/new", {"user_id": "v", "teams": [5]}) == "teams"
    proxy("GET", "/user/info?user_id=v", status=404)


def test_terraform_team_member(proxy: Proxy) -> None:
    proxy("POST", "/team/new", {"team_id": "t", "team_alias": "Team", "metadata": {"a": 1}}, header=PROVIDER)
    member = {"role": "user", "user_id": "u", "user_email": "u@example.org"}
    answer = proxy("POST", "/team/member_add", {"member": [member], "team_id": "t"}, header=PROVIDER)
    assert answer["members_with_roles"] == [{"user_id": "u", "user_email": "u@example.org", "role": "user"}]
    assert [each["user_id"] for each in answer["updated_users"]] == ["u"]
    # The provider takes this one for done.
    error = proxy("POST", "/team/member_add", {"member": [member], "team_id": "t"}, status=400)["error"]
    assert error["type"] == "team_member_already_in_team"

    named = {"user_id": "u", "user_email": "u@example.org", "team_id": "t"}
    proxy("POST", "/team/member_update", {**named, "role": "admin"}, header=PROVIDER)
    read = proxy("GET", "/team/info?team_id=t", header=PROVIDER)
    assert read["team_info"]["members_with_roles"][0]["role"] == "admin"
    assert [each["user_id"] for each in read["team_memberships"]] == ["u"]
    assert read["team_info"]["metadata"] == {"a": 1}
    assert [each["team_id"] for each in proxy("GET", "/user/info?user_id=u")["teams"]] == ["t"]

    assert proxy("POST", "/team/member_delete", named, header=PROVIDER)["members_with_roles"] == []
    proxy("POST", "/team/member_delete", named, header=PROVIDER, status=404)
    assert proxy("GET", "/user/info?user_id=u")["teams"] == []


def test_limit_of_a_member_is_refused(proxy: Proxy) -> None:
    """Velox has none, and 0 is one, too: LiteLLM then lets the member spend nothing."""
    proxy("POST", "/team/new", {"team_id": "t"})
    for most in (5, 0.0):
        body = {"team_id": "t", "member": {"role": "user", "user_id": "u"}, "max_budget_in_team": most}
        assert proxy.refused("POST", "/team/member_add", body) == "max_budget_in_team"
    proxy("GET", "/user/info?user_id=u", status=404)
    assert proxy.refused("POST", "/team/member_update", {"team_id": "t", "user_id": "u", "rpm_limit": 1}) == "rpm_limit"
    assert proxy.refused("POST", "/team/member_add", {"team_id": "t", "max_budgett_in_team": 1}) == (
        "max_budgett_in_team"
    )


def test_deleted_user_is_a_member_of_no_team(proxy: Proxy) -> None:
    proxy("POST", "/team/new", {"team_id": "t", "team_alias": "Team"})
    members = [{"role": "user", "user_email": f"{each}@example.org"} for each in "ab"]
    added = proxy("POST", "/team/member_add", {"team_id": "t", "member": members})["members_with_roles"]
    assert len({each["user_id"] for each in added}) == 2
    proxy("POST", "/user/delete", {"user_ids": [added[0]["user_id"]]})
    [team] = proxy("GET", "/team/list")
    assert team["members_with_roles"] == added[1:] and team["keys"] == []
    assert [each["user_id"] for each in team["team_memberships"]] == [added[1]["user_id"]]


@pytest.mark.parametrize(("kind", "other"), [("team", "user"), ("user", "team")])
def test_nothing_is_deleted_if_one_is_not_there(proxy: Proxy, kind: str, other: str) -> None:
    proxy("POST", f"/{kind}/new", {f"{kind}_id": "a", **({"auto_create_key": False} if kind == "user" else {})})
    assert proxy.refused("POST", f"/{kind}/delete", {f"{kind}_ids": ["a", "b"]}, status=404) == f"{kind}_ids"
    proxy("GET", f"/{kind}/info?{kind}_id=a")
    assert proxy.refused("POST", f"/{kind}/delete", {f"{other}_ids": ["a"]}) == f"{kind}_ids"


# -- costs ----------------------------------------------------------------------------------------

HI: Any = [{"role": "user", "content": "a" * 399}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]


def test_cost_of_an_answer_is_that_of_its_record(proxy: Proxy) -> None:
    """By its usage, kind by kind: cached tokens cost less; of the model that answered."""
    usage: dict[str, Any] = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    answer = {"model": "gpt-4o-2024-11-20", "usage": usage}
    whole = proxy("POST", "/spend/calculate", {"completion_response": answer})
    assert whole == {"cost": 1000 * 2.5e-6 + 100 * 1e-5}
    assert proxy("POST", "/spend/calculate", {"model": "gpt-4o", "completion_response": answer}) == whole
    cached = {**answer, "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 400}}}
    assert proxy("POST", "/spend/calculate", {"completion_response": cached})["cost"] == pytest.approx(0.003)
    of_claude = {"input_tokens": 1000, "output_tokens": 100, "cache_read_input_tokens": 0}
    answer = {"model": "claude-sonnet-4-5-20250929", "usage": of_claude}
    assert proxy("POST", "/spend/calculate", {"completion_response": answer})["cost"] == pytest.approx(0.0045)


def test_cost_of_messages_is_estimated(proxy: Proxy) -> None:
    """Of the prompt alone, which is all that is known before the call; by a route's name, or as LiteLLM has it."""
    for model in ("gpt-4o", "gpt-4o-2024-11-20", "openai/gpt-4o"):
        found = proxy("POST", "/spend/calculate", {"model": model, "messages": HI})
        assert found == {"cost": pytest.approx(100 * 2.5e-6)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "completion_response"),
        ({"model": "gpt-4o"}, "completion_response"),
        ({"model": 5, "messages": HI}, "model"),
        ({"model": "unheard-of", "messages": HI}, "model"),
        ({"model": "gpt-4o", "messages": []}, "messages"),
        ({"model": "gpt-4o", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"model": "gpt-4o", "messages": [{"role": "user", "content": {"text": "x"}}]}, "messages"),
        ({"completion_response": {"model": "gpt-4o"}}, "model"),
        ({"completion_response": {"usage": {"prompt_tokens": 1}}}, "completion_response"),
        ({"model": "gpt-4o", "messages": HI, "mode": "x"}, "mode"),
    ],
)
def test_cost_that_nobody_can_tell_is_an_error(proxy: Proxy, body: dict[str, Any], param: str) -> None:
    """And no number, which a script would take for one."""
    assert proxy.refused("POST", "/spend/calculate", body) == param


# -- what Velox has not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *(f"/{root}/{verb}" for root in ("customer", "end_user") for verb in ("new", "update", "delete", "block")),
        *("/budget/new", "/budget/update", "/budget/delete", "/model/new", "/model/update", "/model/delete"),
    ],
)
def test_change_of_what_is_not_kept_is_no_success(proxy: Proxy, path: str) -> None:
    """An error in LiteLLM's shape that says what to use instead."""
    before = proxy.accounts.number()
    error = proxy("POST", path, {"user_id": "u", "budget_id": "b", "model_name": "m"}, status=501)["error"]
    assert error["type"] == "not_implemented_error" and error["code"] == "501" and len(error["message"]) > 40
    assert proxy.accounts.number() == before


def test_nothing_is_found_of_what_is_not_kept(proxy: Proxy) -> None:
    assert proxy("GET", "/customer/list") == proxy("GET", "/end_user/list") == proxy("GET", "/budget/list") == []
    assert proxy("POST", "/budget/info", {"budgets": ["b"]}) == []
    assert "not found" in proxy("GET", "/customer/info?end_user_id=e", status=404)["error"]["message"]
    proxy("PATCH", "/model/x/update", {}, status=501)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/organization/new", 404),
        ("POST", "/credentials", 404),
        ("POST", "/tag/new", 404),
        ("GET", "/v2/team/list", 404),
        ("GET", "/team/permissions_list?team_id=t", 404),
        ("DELETE", "/key/delete", 405),
        ("PUT", "/model/new", 405),
        ("POST", "/models", 405),
        ("GET", "/budget/new", 405),
    ],
)
def test_unknown_path_or_method_is_refused_in_its_shape(proxy: Proxy, method: str, path: str, status: int) -> None:
    assert proxy.refused(method, path, {} if method != "GET" else None, status=status) == "None"


def test_page_of_the_listener_is_none_of_these(proxy: Proxy) -> None:
    """Also LiteLLM's probes, which need no token and no database."""
    assert "/health/liveliness" in PAGES and not [path for path in PAGES if proxy.api.takes(path)]


def test_spend_by_day_and_by_tag(proxy: Proxy) -> None:
    key = proxy("POST", "/key/generate", {})
    proxy.spend(key, 1_000_000_000, 500_000_000)
    [day] = proxy("GET", "/global/spend/logs")
    assert set(day) == {"date", "spend"} and day["spend"] == 1.5
    assert proxy("GET", f"/global/spend/logs?api_key={key['token']}") == [day]
    assert proxy("GET", "/global/spend/logs?api_key=sk-none") == []
    rows = proxy("GET", "/spend/logs")
    assert {(each["call_type"], each["messages"], each["response"]) for each in rows} == {("acompletion", None, None)}
    tags = sorted({tag for each in rows for tag in each["request_tags"]})
    found = proxy("GET", "/spend/tags")
    assert sorted(each["individual_request_tag"] for each in found) == tags
    assert all((each["log_count"], each["total_spend"]) == (2, 1.5) for each in found)


def test_names_of_models_are_listed(proxy: Proxy) -> None:
    for path in ("/models", "/v1/models"):
        assert [each["id"] for each in proxy("GET", path)["data"]] == ["gpt-4o"]
