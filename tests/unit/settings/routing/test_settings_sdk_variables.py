"""Variables of SDKs: where upstreams are, whose certificates are trusted, and a gateway that would ask itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trustme

from velox.runtime.commands.check import check_lines
from velox.settings import Settings, load
from velox.settings.checks.advice import advice

KEY = "k" * 20
USUAL = "https://api.openai.com"


def loaded(**environ: str) -> Settings:
    return load(environ, cores=2)


def places(settings: Settings) -> dict[str, str]:
    """Where each upstream is, those of variables of providers, too."""
    return {entry.name: ", ".join(map(str, entry.origins)) for entry in settings.upstreams}


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://llm.example.com/v1", "https://llm.example.com"),
        ("https://llm.example.com/openai/v1/", "https://llm.example.com/openai"),
        ("http://10.0.0.1:8080/v1", "http://10.0.0.1:8080"),  # an address is no name of this gateway
        ("http://vllm:8000/v1", "http://vllm:8000"),
    ],
)
def test_base_url_is_where_requests_go(url: str, origin: str) -> None:
    """U15: as the SDK asks, /v1 and all; the key goes with it, and nowhere else."""
    settings = loaded(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
    assert places(settings) == {"default": origin} and list(advice(settings)) == []
    assert settings.origins["VELOX_UPSTREAM_ORIGIN"] == "environment: OPENAI_BASE_URL"
    assert f"{origin}  environment: OPENAI_BASE_URL" in "\n".join(check_lines(settings, shows_all=False))


def test_older_name_of_it_is_read_where_the_newer_is_not_set() -> None:
    assert places(loaded(OPENAI_API_BASE="https://a.example/v1")) == {"default": "https://a.example"}
    both = loaded(OPENAI_API_BASE="https://a.example/v1", OPENAI_BASE_URL="https://b.example/v1")
    assert places(both) == {"default": "https://b.example"}


def test_setting_and_file_go_before_it(tmp_path: Path) -> None:
    url = "https://llm.example.com/v1"
    own = loaded(OPENAI_BASE_URL=url, VELOX_UPSTREAM_ORIGIN="https://h.example")
    assert places(own) == {"default": "https://h.example"} and list(advice(own)) == []
    file = tmp_path / "velox.yaml"
    file.write_text("upstreams: [{name: own, provider: vllm, origin: 'http://h.example'}]")
    of_file = loaded(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, VELOX_CONFIG=str(file))
    assert places(of_file) == {"own": "http://h.example"} and list(advice(of_file)) == []
    file.write_text("upstream_origin: http://i.example")
    assert places(loaded(OPENAI_BASE_URL=url, VELOX_CONFIG=str(file))) == {"default": "http://i.example"}


@pytest.mark.parametrize(
    ("url", "environ"),
    [
        ("http://127.0.0.1:8080/v1", {}),
        ("http://localhost:8080/v1", {}),
        ("http://[::1]:8080/v1", {}),
        ("http://host.docker.internal:8080/v1", {}),
        ("http://localhost:9000/v1", {"PORT": "9000"}),
        ("http://10.1.2.3:8080/v1", {"VELOX_LISTEN": "10.1.2.3:8080", "VELOX_API_KEYS": "b7Qz2mXr9kLw4TnV8sEa"}),
        (f"http://{socket.gethostname()}:8080/v1", {}),
        ("https://llm.corp.example/v1", {"VELOX_PUBLIC_URL": "https://llm.corp.example"}),
        ("http://gw:8080/v1", {"VELOX_HOSTS": "gw"}),
    ],
)
def test_gateway_never_asks_itself(url: str, environ: dict[str, str]) -> None:
    """An application beside it has its address in that variable: no loop, and nothing to tell of."""
    settings = loaded(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, **environ)
    assert places(settings) == {"default": USUAL}
    assert not [line for line in advice(settings) if "OPENAI_BASE_URL" in line]


@pytest.mark.parametrize("url", ["http://gw:8080/v1", "http://velox.llm.svc/v1", "https://velox.example/v1"])
def test_url_that_may_be_the_gateway_is_told_of(url: str) -> None:
    """Names that only a resolver knows: of a Service, of a container."""
    settings = loaded(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
    (line,) = advice(settings)
    assert places(settings) == {"default": USUAL}
    assert line.startswith(f"OPENAI_BASE_URL is set and not used, so requests go to {USUAL}: ")
    assert "may be this gateway itself; if it is another server, VELOX_UPSTREAM_ORIGIN says so" in line


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://llm.example.com", "it does not end with /v1"),
        ("https://llm.example.com/v1/chat/completions", "it does not end with /v1"),
        ("https://user:s3cret@llm.example.com/v1", "without a user"),
        ("llm.example.com", "it is no http(s)://"),
        ("ftp://x/v1", "it is no http(s)://"),
    ],
)
def test_url_that_can_not_be_used_is_told_of(url: str, why: str) -> None:
    """And starts all the same: nobody set it for Velox. A password in it is not shown."""
    settings = loaded(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
    (line,) = advice(settings)
    assert places(settings) == {"default": USUAL} and why in line and "s3cret" not in line


def test_base_urls_of_other_providers_are_those_of_their_keys() -> None:
    """Without a key there is no such upstream. Their SDKs add the version themselves."""
    settings = loaded(
        ANTHROPIC_API_KEY=KEY,
        ANTHROPIC_BASE_URL="https://llm.example.com/anthropic/",
        GOOGLE_GEMINI_BASE_URL="https://g.example",
    )
    assert places(settings)["anthropic"] == "https://llm.example.com/anthropic" and "gemini" not in places(settings)
    assert settings.found_upstreams[-1].where == "ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL"
    own = loaded(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL="http://localhost:8080")
    assert places(own)["anthropic"] == "https://api.anthropic.com" and list(advice(own)) == []
    unsure = loaded(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL="http://velox:8080")
    (line,) = advice(unsure)
    assert line.startswith(
        "ANTHROPIC_BASE_URL is set and not used, so ANTHROPIC_API_KEY goes to https://api.anthropic.com: "
    )


def test_simulator_reads_none_of_them() -> None:
    settings = load({"OPENAI_BASE_URL": "https://llm.example.com/v1", "REQUESTS_CA_BUNDLE": "/x"}, cores=2, sim=True)
    assert settings.origins["VELOX_UPSTREAM_ORIGIN"] == "default" and settings.upstream_ca_file is None
    assert list(advice(settings, sim=True)) == []


def test_bundle_of_http_clients_is_trusted(tmp_path: Path) -> None:
    """U15: as curl and Python's requests trust it; OpenSSL's own variable and the setting go before it."""
    bundle = str(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(bundle)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        settings = loaded(**{name: bundle})
        assert settings.upstreams[0].ca_file == bundle and list(advice(settings)) == []
        assert settings.origins["VELOX_UPSTREAM_CA_FILE"] == f"environment: {name}"
    assert loaded(REQUESTS_CA_BUNDLE=bundle, SSL_CERT_FILE="/ca.pem").upstream_ca_file is None
    other = tmp_path / "own.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert loaded(REQUESTS_CA_BUNDLE=bundle, VELOX_UPSTREAM_CA_FILE=str(other)).upstream_ca_file == str(other)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_bundle_that_can_not_be_used_is_told_of(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    settings = loaded(REQUESTS_CA_BUNDLE=str(path))
    (line,) = advice(settings)
    assert settings.upstream_ca_file is None
    assert line.startswith(f"REQUESTS_CA_BUNDLE is set and not used: '{path}': expected a PEM file of certificates")
