"""Upstreams of providers: what is read, what comes from variables, what is refused, what `velox check` says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.markdown import ROOT, blocks
from velox.cli import main
from velox.policy.routes.entries import UpstreamEntry
from velox.providers.rows import PROVIDERS
from velox.settings import Settings, SettingsError, load
from velox.settings.routing.model_facts import FIELDS
from velox.types import ApiKind

KEY = "sk-very-secret-0123456789"
PAGE = ROOT / "docs/providers.md"
ENVIRON = {
    **{name: KEY for row in PROVIDERS.values() for name in row.key_variables},
    "AWS_REGION": "eu-west-1",
    "GOOGLE_CLOUD_PROJECT": "of-variable",
    "GOOGLE_CLOUD_LOCATION": "europe-west1",
}


def of_file(folder: Path, content: str, **environ: str) -> Settings:
    file = folder / "velox.yaml"
    file.write_text(content)
    return load({"VELOX_CONFIG": str(file), **environ}, cores=2)


def entries(folder: Path, *items: str, **environ: str) -> tuple[UpstreamEntry, ...]:
    lines = [f"  - {{{item}}}\n" for item in items]
    return of_file(folder, "upstreams:\n" + "".join(lines), **environ).upstreams


def test_provider_alone_makes_an_upstream(tmp_path: Path) -> None:
    """Its name, its origin, and the key in its own variable."""
    names = [name for name, row in PROVIDERS.items() if row.origin and name not in ("azure", "foundry")]
    found = entries(tmp_path, *(f"provider: {name}" for name in names), **ENVIRON)

    assert [entry.name for entry in found] == [entry.provider for entry in found] == names
    for entry in found:
        row = PROVIDERS[entry.provider]
        assert len(entry.origins) == 1
        assert [key.ref for key in entry.keys] == [f"env:{name}" for name in row.key_variables[:1]]


def test_fields_of_a_provider_are_read(tmp_path: Path) -> None:
    """Parameters that stand there count, and not the variables."""
    azure, bedrock, vertex, own = entries(
        tmp_path,
        "name: a, provider: azure, resource: My-Res, api_version: 2024-10-21, key: env:MINE",
        "provider: bedrock, region: eu-central-1",
        "provider: vertex, project: 'example.com:p', location: global",
        "name: mine, provider: openai-compatible, origin: http://h:9/x, apis: [chat, responses]",
        **(ENVIRON | {"MINE": "mine", "AWS_BEARER_TOKEN_BEDROCK": ""}),
    )

    assert azure.parameters == (("api_version", "2024-10-21"), ("resource", "My-Res"))
    assert [str(origin).lower() for origin in azure.origins] == ["https://my-res.openai.azure.com"]
    assert [key.ref for key in azure.keys] == ["env:MINE"]
    assert (bedrock.parameters, bedrock.keys) == ((("region", "eu-central-1"),), ())
    assert str(bedrock.origins[0]) == "https://bedrock-runtime.eu-central-1.amazonaws.com"
    assert dict(vertex.parameters) == {"project": "example.com:p", "location": "global"}
    assert str(vertex.origins[0]) == "https://aiplatform.googleapis.com"
    assert (own.provider, own.apis, own.keys) == ("openai-compatible", (ApiKind.CHAT, ApiKind.RESPONSES), ())


def test_parameters_may_be_variables(tmp_path: Path) -> None:
    """Those that cloud SDKs read; a value that can't be one is none."""
    bedrock, vertex = entries(tmp_path, "provider: bedrock", "provider: vertex", **ENVIRON)
    with pytest.raises(SettingsError, match="expected `region`"):
        entries(tmp_path, "provider: bedrock", AWS_REGION="Not A Region!")

    assert dict(bedrock.parameters) == {"region": "eu-west-1"}
    assert dict(vertex.parameters) == {"project": "of-variable", "location": "europe-west1"}


def test_upstream_may_have_no_key_though_a_variable_has_one(tmp_path: Path) -> None:
    """And without a provider no variable is looked into."""
    none, own, plain = entries(
        tmp_path,
        "provider: anthropic, key: none",
        "name: b, provider: anthropic, origin: http://proxy.test/claude",
        "name: c, origin: https://api.anthropic.com",
        **ENVIRON,
    )

    assert (none.keys, plain.keys, plain.provider) == ((), (), "openai-compatible")
    assert [str(key) for key in own.keys] == ["env:ANTHROPIC_API_KEY"]
    assert [str(origin) for origin in own.origins] == ["http://proxy.test/claude"]


BAD = {
    "name: a, provider: antropic": ["provider: there is no such provider; did you mean anthropic?"],
    "name: a, provider: vertex_ai": ["provider: there is no such provider; did you mean vertex?"],
    "name: a, provider: AWS": ["provider: there is no such provider; did you mean bedrock?"],
    f"name: a, provider: {KEY}": ["provider: there is no such provider; there are openai, azure, anthropic, vertex"],
    "provider: azure": ["an upstream: expected `resource`, such as `resource: my-resource`, or `origin`: Azure OpenAI"],
    "provider: bedrock": ["an upstream: expected `region`, such as `region: eu-central-1`, or the variable AWS_REGION"],
    "provider: bedrock, origin: http://proxy.test": ["an upstream: expected `region`"],
    "provider: vertex": ["an upstream: expected `location`", "an upstream: expected `project`"],
    "provider: openai-compatible": ["an upstream: expected `origin`"],
    "provider: openai, region: eu-west-1": ["region: expected a provider with it: bedrock, bedrock-mantle; openai has"],
    "provider: bedrock, region: a/b": ["region: expected the name of an AWS region"],
    "provider: azure, resource: a.b": ["resource: expected the name of an Azure resource"],
    "provider: azure, resource: a, api_version: 1": ["api_version: expected v1, preview, or a version such as"],
    "provider: openai, key: env:A, keys: env:A": ["key: expected this or `keys`, not both"],
    "provider: openai, key: sk-very-secret": ["key: expected env:NAME or file:PATH, and never a key itself"],
    "provider: openai, key: [env:A]": ["key: expected one value"],
    "provider: openai, api_key: env:A": ["api_key: expected `keys`, such as"],
    "provider: groq, apis: [chat, generate]": ["apis is 'generate': expected APIs that groq may have: chat, responses"],
    "provider: azure, origin: https://x.test/openai": [
        "origin is 'https://x.test/openai': expected it without /openai"
    ],
    "provider: groq, origin: https://x.test/v1": ["origin is 'https://x.test/v1': expected it without /v1 at its end"],
    # W10: as vendors print their base URLs, of several segments; and whole endpoints.
    **{
        f"provider: {provider}, origin: https://x.test{base}{end}": [
            f"origin is 'https://x.test{base}{end}': expected it without {end} at its end"
        ]
        for provider, base, end in (
            ("azure", "", "/openai/v1"),
            ("foundry", "", "/openai/v1"),
            ("foundry", "", "/anthropic/v1"),
            ("gemini", "", "/v1beta/openai"),
            ("zai", "/api", "/paas/v4"),
            ("groq", "/openai", "/v1/chat/completions"),
            ("anthropic", "", "/v1/messages"),
            ("openai-compatible", "/base", "/v1/chat/completions"),
            ("openai-compatible", "/base", "/responses"),
        )
    },
    "type: azure, name: a, origin: http://h": ["type: expected `provider`, such as `provider: anthropic`"],
}


@pytest.mark.parametrize("item", BAD, ids=range(len(BAD)))
def test_provider_that_is_wrong_is_told_with_what_to_do(item: str, tmp_path: Path) -> None:
    """Each in one line; no key is in any of them."""
    with pytest.raises(SettingsError) as raised:
        entries(tmp_path, item, A=KEY)

    told = [str(problem).partition(":2: ")[2] for problem in raised.value.problems]
    assert "very-secret" not in repr(told)
    assert len(told) == len(BAD[item]), told
    assert all(line.startswith(begins) for line, begins in zip(sorted(told), sorted(BAD[item]), strict=True)), told


def test_key_of_a_variable_that_can_be_none_is_told(tmp_path: Path) -> None:
    """With the way out, and without the key."""
    with pytest.raises(SettingsError, match="in the variable GROQ_API_KEY, expected visible") as raised:
        entries(tmp_path, "provider: groq", GROQ_API_KEY=f"{KEY} x")

    assert "or `key: none`" in str(raised.value) and KEY not in str(raised.value)


def test_check_says_what_passes_and_what_is_translated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each family of models; and no warning where something else than a key goes up."""
    file = tmp_path / "velox.yaml"
    file.write_text(
        "api_keys: [{name: a, key: change-me-1234567}]\nupstreams:\n  - {provider: bedrock, region: eu-west-1}\n"
    )

    assert main(["check"], {"VELOX_CONFIG": str(file)}) == 0

    out = capsys.readouterr().out
    assert "    provider bedrock (region eu-west-1); signed with AWS credentials; http2 auto\n" in out
    assert "    models *anthropic.claude*: messages as sent, others translated to converse\n" in out
    assert "    other models: all translated to converse\n" in out
    assert "without a credential" not in out


def test_page_is_accepted_as_shown(tmp_path: Path) -> None:
    """Each example, with the keys that it names."""
    for example in blocks(PAGE, "yaml"):
        assert of_file(tmp_path, example, **ENVIRON).upstreams


def test_page_names_every_provider() -> None:
    """In its table."""
    text = PAGE.read_text()

    assert all(f"| `{name}`: " in text for name in PROVIDERS)


def test_page_says_what_each_fact_is() -> None:
    """Those that there are, and no others."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## Facts of models")[2], re.MULTILINE)

    assert sorted(rows) == sorted(set(FIELDS) - {"models", "providers"})
