"""What may be a mistake in settings that can be used: budgets that count less than they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.settings import Settings, load
from velox.settings.checks.advice import advice

KEYS = (
    "api_keys:\n"
    "  - {name: shop, key: key-of-shop, team: marketing, user: ann, tags: [prod]}\n"
    "  - {name: batch, key: key-of-batch, user: bob}\n"
)
MONTH = "usd: 5, window: month"


def of_file(tmp_path: Path, content: str) -> Settings:
    """Load settings from a file that holds `content`."""
    file = tmp_path / "velox.yaml"
    file.write_text(f"ledger: {tmp_path / 'ledger'}\n{content}")
    return load({"VELOX_CONFIG": str(file)}, cores=2)


def told(tmp_path: Path, content: str) -> list[str]:
    """Return the warnings, without the path."""
    return [line.replace(f"{tmp_path}/", "") for line in advice(of_file(tmp_path, content))]


@pytest.mark.parametrize(
    ("budget", "warning"),
    [
        ("per: team, teams: [marketng, marketing]", "per team (velox.yaml:5): no key has one of its `teams`: marketng"),
        ("per: user, users: [carl]", "per user (velox.yaml:5): no key has one of its `users`: carl"),
        ("per: tag, tags: [prd]", "per tag (velox.yaml:5): no key has one of its `tags`: prd"),
        ("per: team", "per team (velox.yaml:5): it counts no request of 1 key without `team`: batch"),
    ],
)
def test_budget_of_a_name_that_no_key_has_is_warned_of(tmp_path: Path, budget: str, warning: str) -> None:
    """A name with a mistake would count nothing, and leave the spend without a bound."""
    content = f"{KEYS}budgets: [{{{budget}, {MONTH}}}]\n"

    assert told(tmp_path, content) == [f"budgets[0] {warning}"]


@pytest.mark.parametrize(
    "budget", ["per: user", "per: tag", "per: team, teams: [marketing]", "per: team, keys: [shop]", "per: gateway"]
)
def test_budget_that_counts_what_it_says_is_not_warned_of(tmp_path: Path, budget: str) -> None:
    """Tags are for some keys only, and a filter leaves out others by intent."""
    assert told(tmp_path, f"{KEYS}budgets: [{{{budget}, {MONTH}}}]\n") == []


@pytest.mark.parametrize("scope", ["team", "user", "tag"])
def test_budget_that_counts_no_request_at_all_is_warned_of(tmp_path: Path, scope: str) -> None:
    """No key has what the budget is for."""
    content = f"api_keys: [abcdef]\nbudgets: [{{per: {scope}, {MONTH}}}]\n"
    field = "tags" if scope == "tag" else scope

    assert told(tmp_path, content) == [
        f"budgets[0] per {scope} (velox.yaml:3): it counts no request: no key has `{field}`"
    ]


def test_budget_of_a_model_that_no_route_takes_is_warned_of(tmp_path: Path) -> None:
    """Where routes, or their upstreams, name the models; where one takes any, none can be wrong."""
    upstreams = "upstreams: [{name: a, origin: http://127.0.0.1:1, models: [gpt-*]}]\n"
    budgets = f"budgets: [{{per: gateway, models: [gtp-4*, gpt-4*], {MONTH}}}]\n"
    warning = "budgets[0] per gateway (velox.yaml:5): no route takes one of its `models`: gtp-4*"

    assert told(tmp_path, f"{upstreams}routes: [{{name: r, to: a}}]\nauth: keys\n{budgets}") == [warning]
    assert told(tmp_path, f"{upstreams}routes: [{{name: r, to: a, model: gpt-x}}]\n{budgets}") == []
    assert told(tmp_path, budgets) == []


def test_key_of_a_budget_that_a_file_may_get_later_is_warned_of(tmp_path: Path) -> None:
    """It is no error as for keys of the settings; its name is not shown, it may be the key itself."""
    (tmp_path / "keys").write_text("- {name: shop, key: key-of-shop}\n")
    content = f"api_keys_file: {tmp_path / 'keys'}\nbudgets: [{{per: key, keys: [shop, shopp], {MONTH}}}]\n"

    assert told(tmp_path, content) == ["budgets[0] per key (velox.yaml:3): name 2 of its `keys` is no key's"]


def test_budgets_of_managed_keys_that_are_not_known_yet_are_not_warned_of(tmp_path: Path) -> None:
    """Before the first start all names would be unknown; and the key of a budget may be made later."""
    content = f"managed_keys: on\nbudgets: [{{per: team, teams: [blue], keys: [shop], {MONTH}}}]\n"

    assert told(tmp_path, content) == []


def test_webhook_without_a_threshold_is_warned_of(tmp_path: Path) -> None:
    """Nothing would ever be sent; managed keys may have thresholds of their own."""
    webhook = "alert_webhook: https://hooks.example/x\n"
    warning = "nothing is ever sent to VELOX_ALERT_WEBHOOK: no budget has a threshold (`soft`)"

    assert told(tmp_path, webhook) == [warning]
    assert told(tmp_path, f"{webhook}budgets: [{{per: gateway, {MONTH}}}]\n") == [warning]
    assert told(tmp_path, f"{webhook}budgets: [{{per: gateway, {MONTH}, soft: 80}}]\n") == []
    assert told(tmp_path, f"{webhook}managed_keys: on\n") == []


def test_empty_variable_whose_default_is_used_is_warned_of(tmp_path: Path) -> None:
    """An origin that a template left out would send clients' requests to OpenAI."""
    default = "is set, but empty, so the default is used:"
    warning = f"{default} https://api.openai.com (`velox serve --sim`: the built-in simulator)"

    assert list(advice(load({"VELOX_UPSTREAM_ORIGIN": "", "VELOX_CONFIG": "", "VELOX_TLS_CERT": ""}))) == [
        f"VELOX_UPSTREAM_ORIGIN {warning}",
        f"VELOX_CONFIG {default} no file",
    ]
    assert told(tmp_path, "upstream_origin:\nkey_rpm:\n") == [
        f"upstream_origin (velox.yaml:2) {warning}",
        f"key_rpm (velox.yaml:3) {default} 0",
    ]


@pytest.mark.parametrize("name", ["VELOX_API_KEYS", "VELOX_API_KEYS_FILE", "OPENAI_API_KEY"])
def test_empty_credential_is_warned_of(name: str, tmp_path: Path) -> None:
    """A secret that was not found lets everybody in, or nobody through. Where it means nothing it is not told."""
    follows = "the upstream gets what clients send as theirs" if name == "OPENAI_API_KEY" else "clients need no key"
    (found,) = advice(load({name: ""}))
    assert found == f"{name} is set, but empty, so the default is used: none, so {follows}"
    file = tmp_path / "velox.yaml"
    file.write_text("upstreams: [{name: a, origin: http://127.0.0.1:1}]\napi_keys: [vk-1]\n")
    assert list(advice(load({name: "", "VELOX_CONFIG": str(file)}))) == []
    assert list(advice(load({"OPENAI_API_KEY": "", "VELOX_API_KEYS": "", "VELOX_AUTH": "none"}), sim=True)) == []


def test_empty_variable_that_something_else_sets_is_not_warned_of(tmp_path: Path) -> None:
    """Its default is not used: the file has a value, or upstreams of its own."""
    (tmp_path / "a").write_text("upstream_origin: http://127.0.0.1:1\n")
    (tmp_path / "b").write_text("upstreams: [{name: a, origin: http://127.0.0.1:1}]\n")

    for name in ("a", "b"):
        environ = {"VELOX_CONFIG": str(tmp_path / name), "VELOX_UPSTREAM_ORIGIN": ""}
        assert load(environ).empty_variables == ()


@pytest.mark.parametrize("kind", ["application-inference-profile", "provisioned-model", "imported-model"])
@pytest.mark.parametrize("is_told", [True, False])
def test_arn_that_does_not_tell_its_model_is_warned_of(tmp_path: Path, kind: str, is_told: bool) -> None:
    """C22: it says what to set; an ARN with the model's name is none of these."""
    arn = f"arn:aws:bedrock:us-east-1:123456789012:{kind}/abc123"
    named = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-4-8"
    facts = f'model_facts: [{{models: ["{arn}"], family: anthropic.claude-opus-4-8}}]\n' if is_told else ""
    (tmp_path / "aws").write_text("secret-of-aws")
    lines = told(
        tmp_path,
        f"upstreams: [{{name: aws, provider: bedrock, region: us-east-1, key: 'file:{tmp_path}/aws'}}]\n"
        f"routes: [{{name: a, match: {{models: [a]}}, to: {{upstream: aws, model: '{arn}'}}}},"
        f" {{name: b, match: {{models: [b]}}, to: {{upstream: aws, model: '{named}'}}}}]\n" + facts,
    )

    assert len(lines) == (not is_told)
    for line in lines:
        assert f'`model_facts: [{{models: ["{arn}"], family: anthropic.claude-opus-4-8}}]`' in line
