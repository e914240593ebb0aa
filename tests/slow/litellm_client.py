"""LiteLLM's own Python client against a gateway, its answers read by LiteLLM's own models: BASE_URL TOKEN.

Run with LiteLLM on the path (test_litellm_client.py). It ends with an error at the first answer that does not fit.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main(base_url: str, token: str) -> None:
    """Make, read, change and delete one of each kind."""
    types = importlib.import_module("litellm.proxy._types")
    client = importlib.import_module("litellm.proxy.client").Client(base_url, token)
    users = importlib.import_module("litellm.proxy.client.users").UsersManagementClient(base_url, token)
    ask = client.http.request

    made = client.keys.generate(models=["gpt-4o"], key_alias="k", user_id="new", duration="-1")
    types.GenerateKeyResponse(**made)
    types.LiteLLM_VerificationToken(**client.keys.info(made["key"])["info"])
    changed = client.keys.update(made["key"], models=["gpt-4o", "gpt-4o-mini"], duration="30d")
    assert changed["models"] == ["gpt-4o", "gpt-4o-mini"] and changed["expires"], changed
    for each in client.keys.list(return_full_object=True, key_alias="k")["keys"]:
        types.LiteLLM_VerificationToken(**each)
    ask("POST", "/key/block", json={"key": made["key"]})
    assert types.LiteLLM_VerificationToken(**client.keys.info(made["key"])["info"]).blocked
    ask("POST", "/key/unblock", json={"key": made["key"]})
    bulk = importlib.import_module("litellm.types.proxy.management_endpoints.key_management_endpoints")
    items = [{"key": made["key"], "max_budget": 9}, {"key": "sk-none", "max_budget": 9}]
    told = bulk.BulkUpdateKeyResponse(**ask("POST", "/key/bulk_update", json={"keys": items}))
    assert (len(told.successful_updates), len(told.failed_updates)) == (1, 1), told

    types.LiteLLM_TeamTable(**ask("POST", "/team/new", json={"team_id": "t", "team_alias": "Team", "max_budget": 5}))
    member = {"role": "user", "user_id": "m", "user_email": "m@example.org"}
    types.TeamAddMemberResponse(**ask("POST", "/team/member_add", json={"team_id": "t", "member": member}))
    named = {"team_id": "t", "user_id": "m"}
    types.TeamMemberUpdateResponse(**ask("POST", "/team/member_update", json={**named, "role": "admin"}))
    of_team = ask("POST", "/key/generate", json={"team_id": "t"})
    for each in client.teams.list():
        found = types.TeamListResponseObject(**each)
        assert found.keys and found.team_memberships, found
    types.TeamInfoResponseObject(**ask("GET", "/team/info", params={"team_id": "t"}))
    for path in ("/team/block", "/team/unblock"):
        types.LiteLLM_TeamTable(**ask("POST", path, json={"team_id": "t"}))
    types.LiteLLM_TeamTable(**ask("POST", "/team/update", json={"team_id": "t", "rpm_limit": 5})["data"])
    types.LiteLLM_TeamTable(**ask("POST", "/team/member_delete", json=named))
    assert ask("POST", "/team/delete", json={"team_ids": ["t"]}) == {"deleted_teams": ["t"]}

    types.NewUserResponse(
        **users.create_user({"user_id": "u", "user_email": "u@example.org", "user_role": "internal_user"})
    )
    types.LiteLLM_UserTable(**users.get_user("u")["user_info"])
    types.LiteLLM_UserTable(**ask("POST", "/user/update", json={"user_id": "u", "max_budget": 5})["data"])
    for each in users.list_users():
        types.LiteLLM_UserTable(**each)
    assert users.delete_user(["u", "m"]) == 2

    for row in ask("GET", "/spend/logs"):
        # The model is of what is written: two of its fields are JSON as a text there.
        types.LiteLLM_SpendLogs(**{**row, **{name: json.dumps(row[name]) for name in ("metadata", "request_tags")}})
    assert isinstance(client.models.list(), list) and isinstance(client.models.info(), list)
    assert ask("GET", "/health/liveliness") == "I'm alive!"
    assert ask("GET", "/health/readiness")["status"] in ("healthy", "unhealthy")
    _refused(lambda: client.models.new("m", {"model": "openai/gpt-4o"}), 501)

    client.keys.delete(keys=[made["key"]])
    client.keys.delete(key_aliases=[ask("POST", "/key/generate", json={"key_alias": "b"})["key_alias"]])
    for each in (made, of_team):
        _refused(lambda each=each: client.keys.info(each["key"]), 404)
    _check_fields(types)


def _refused(call: Any, status: int) -> None:
    try:
        told = call()
    except Exception as exc:
        # The client's own errors have requests' one inside. A response of 4xx is false.
        response: Any = getattr(getattr(exc, "orig_exception", exc), "response", None)
        assert response is not None and response.status_code == status, exc
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == str(status), error
    else:
        raise AssertionError(told)


def _check_fields(types: Any) -> None:
    """Every field of LiteLLM's requests is known here: else a script that gives it would be refused."""
    known = importlib.import_module("velox_migrate.admin.known").KNOWN
    for kind, names in (
        ("key", ("GenerateKeyRequest", "UpdateKeyRequest", "RegenerateKeyRequest", "LiteLLM_VerificationToken")),
        ("team", ("NewTeamRequest", "UpdateTeamRequest", "LiteLLM_TeamTable")),
        ("user", ("NewUserRequest", "UpdateUserRequest", "LiteLLM_UserTable")),
    ):
        for name in names:
            assert set(getattr(types, name).model_fields) <= known[kind], (name, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("all answers fit")
