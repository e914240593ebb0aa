"""Upstreams that the variables of providers make: which, for which models, and when none."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.cli import main
from velox.policy.routes.entries import Match, Target
from velox.settings import Settings, load

KEY = "sk-very-secret-0123456789"
AWS_KEYS = {"AWS_ACCESS_KEY_ID": "AKIA0", "AWS_SECRET_ACCESS_KEY": KEY}


def found(**environ: str) -> dict[str, str]:
    """Return the names of the upstreams beside the default, with the variables that made them."""
    settings = load(environ, cores=2)
    assert settings.upstreams[0].name == "default" and not settings.upstreams[0].where
    assert settings.routes[-1].name == "*" and settings.routes[-1].to == (Target("default"),)
    return {entry.name: entry.where for entry in settings.found_upstreams}


def test_key_of_a_provider_makes_an_upstream_and_a_route() -> None:
    """For names that begin with the provider's, which goes off; everything else goes where it went."""
    settings = load({"ANTHROPIC_API_KEY": KEY}, cores=2)

    default, claude = settings.upstreams
    route, rest = settings.routes
    assert (claude.name, claude.provider, str(claude.origins[0])) == (
        *("anthropic", "anthropic", "https://api.anthropic.com"),
    )
    assert [str(key) for key in claude.keys] == ["env:ANTHROPIC_API_KEY"]
    assert [key.secret.reveal() for key in claude.keys] == [KEY]
    assert claude.timeouts == default.timeouts and claude.connections == 1
    assert route.match == Match(models=("anthropic/*", "claude-*"))
    assert route.to == (Target("anthropic", strip="anthropic/"),)
    assert (rest.name, rest.to) == ("*", (Target("default"),))


def test_without_such_a_variable_nothing_changes() -> None:
    """One upstream, one route."""
    assert found() == {}
    assert found(OPENAI_API_KEY=KEY, VELOX_UPSTREAM_ORIGIN="http://h") == {}
    assert found(OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY="") == {}


@pytest.mark.parametrize(
    ("origin", "provider"),
    [
        (None, "openai"),
        ("https://api.openai.com", "openai"),
        ("https://api.openai.com/v1", "openai-compatible"),
        ("http://localhost:8000", "openai-compatible"),
    ],
)
def test_default_at_openais_own_address_is_openai(origin: str | None, provider: str) -> None:
    """So clients of the other APIs are translated there; what another server has is not known."""
    environ = {"OPENAI_API_KEY": KEY} | ({} if origin is None else {"VELOX_UPSTREAM_ORIGIN": origin})

    (default,) = load(environ, cores=2).upstreams
    assert default.provider == provider


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GEMINI_API_KEY": "k", "GOOGLE_API_KEY": "l"}, {"gemini": "GEMINI_API_KEY"}),
        ({"GOOGLE_API_KEY": "k"}, {"gemini": "GOOGLE_API_KEY"}),
        ({"GROQ_API_KEY": "k", "MISTRAL_API_KEY": "l"}, {"mistral": "MISTRAL_API_KEY", "groq": "GROQ_API_KEY"}),
        ({"DEEPSEEK_API_KEY": "k"}, {"deepseek": "DEEPSEEK_API_KEY"}),
        ({"OPENROUTER_API_KEY": "k"}, {"openrouter": "OPENROUTER_API_KEY"}),
        ({"AZURE_OPENAI_API_KEY": "k"}, {}),
        (
            {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com/"},
            {"azure": "AZURE_OPENAI_API_KEY, AZURE_OPENAI_ENDPOINT"},
        ),
        ({"AWS_REGION": "eu-west-1"}, {}),
        (AWS_KEYS, {}),
        (
            {"AWS_DEFAULT_REGION": "eu-west-1", **AWS_KEYS},
            {"bedrock": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION"},
        ),
        (
            {"AWS_REGION": "eu-west-1", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn"},
            {"bedrock": "AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_REGION"},
        ),
    ],
)
def test_provider_is_found_by_the_variables_of_its_sdk(environ: dict[str, str], expected: dict[str, str]) -> None:
    """All that it needs must be set."""
    assert found(**environ) == expected


@pytest.mark.parametrize("end", ["", "/", "/openai", "/openai/v1", "/openai/v1/"])
def test_endpoint_of_azure_may_end_as_each_sdk_has_it(end: str) -> None:
    """The paths of the provider begin with /openai."""
    endpoint = f"https://r.openai.azure.com{end}"
    settings = load({"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": endpoint}, cores=2)

    assert str(settings.upstreams[1].origins[0]) == "https://r.openai.azure.com"


def test_bearer_of_bedrock_is_its_key() -> None:
    """Other AWS credentials are no key of the upstream: they sign."""
    bearer = load({"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": KEY, **AWS_KEYS}, cores=2).upstreams[1]
    signed = load({"AWS_REGION": "eu-west-1", **AWS_KEYS}, cores=2).upstreams[1]

    assert [str(key) for key in bearer.keys] == ["env:AWS_BEARER_TOKEN_BEDROCK"]
    assert signed.keys == () and signed.parameters == (("region", "eu-west-1"),)


def test_openai_is_found_beside_others_where_it_is_the_default() -> None:
    """Then openai/... works as anthropic/... does; the key never goes to another origin."""
    beside = found(OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY)
    elsewhere = found(OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY, VELOX_UPSTREAM_ORIGIN="http://h")

    assert beside == {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
    assert elsewhere == {"anthropic": "ANTHROPIC_API_KEY"}


def test_names_of_a_providers_own_models_go_to_it_where_openai_is_the_default() -> None:
    """OpenAI has none with such names; whatever somebody chose in its place may."""

    def patterns(**environ: str) -> list[tuple[str, ...]]:
        return [route.match.models for route in load({"GEMINI_API_KEY": KEY, **environ}, cores=2).routes[:-1]]

    assert patterns() == [("gemini/*", "gemini-*")]
    assert patterns(OPENAI_API_KEY=KEY) == [("openai/*",), ("gemini/*", "gemini-*")]
    assert patterns(GROQ_API_KEY=KEY) == [("gemini/*", "gemini-*"), ("groq/*",)]
    assert patterns(VELOX_UPSTREAM_ORIGIN="http://h") == [("gemini/*",)]
    assert patterns(VELOX_UPSTREAM_ORIGIN="https://api.openai.com") == [("gemini/*", "gemini-*")]


@pytest.mark.parametrize("content", ["upstreams: [{name: a, origin: http://h}]", "routes: [{name: a, to: default}]"])
def test_file_with_upstreams_or_routes_has_only_those(content: str, tmp_path: Path) -> None:
    """What somebody wrote there is what holds."""
    file = tmp_path / "velox.yaml"
    file.write_text(content)

    settings = load({"VELOX_CONFIG": str(file), "ANTHROPIC_API_KEY": KEY}, cores=2)

    assert (len(settings.upstreams), len(settings.routes), settings.found_upstreams) == (1, 1, ())


def test_variable_that_is_of_no_use_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be meant for another program. `velox check` says so, without its value."""
    environ = {"GROQ_API_KEY": f"{KEY} x", "AWS_REGION": "no region", **AWS_KEYS, "MISTRAL_API_KEY": KEY}

    assert main(["check"], environ) == 0

    out = capsys.readouterr().out
    assert "WARNING: set, but not as Velox could use it: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION" in out
    assert "GROQ_API_KEY\n" in out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("upstream: mistral")] == [
        "MISTRAL_API_KEY"
    ]
    assert KEY not in out and "no region" not in out


def test_found_upstreams_hide_their_keys() -> None:
    """As all settings do."""
    settings: Settings = load({"ANTHROPIC_API_KEY": KEY}, cores=2)

    assert KEY not in repr(settings)


def test_simulator_is_the_only_upstream() -> None:
    """U1: with `--sim` a key of a provider that lies in the environment makes no upstream."""
    settings = load({"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, **AWS_KEYS}, cores=2, sim=True)
    assert [entry.name for entry in settings.upstreams] == ["default"]
    assert [route.name for route in settings.routes] == ["*"]
