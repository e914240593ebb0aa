"""Variables of other programs: what is told of them, and when nothing would have changed."""

from __future__ import annotations

from pathlib import Path

from velox.settings import load
from velox.settings.checks.advice import advice

KEY = "k" * 20


def told(**environ: str) -> list[str]:
    return list(advice(load(environ, cores=2)))


def test_base_url_beside_a_key_is_told_of() -> None:
    """U15: SDKs read both together, and the key may be of that server."""
    (line,) = told(OPENAI_API_KEY=KEY, OPENAI_BASE_URL="https://llm.example.com/v1")
    assert line.startswith("OPENAI_BASE_URL is set and not used: OPENAI_API_KEY goes to https://api.openai.com;")
    lines = told(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL="https://llm.example.com")
    assert [each.partition(" is set")[0] for each in lines] == ["ANTHROPIC_BASE_URL"]


def test_base_url_that_changes_nothing_is_not(tmp_path: Path) -> None:
    """U15: without a key, with an origin of one's own, in a file, and where it is this gateway's address."""
    url = "https://llm.example.com/v1"
    assert told(OPENAI_BASE_URL=url) == []
    assert told(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, VELOX_UPSTREAM_ORIGIN="https://h.example") == []
    assert told(OPENAI_BASE_URL="http://127.0.0.1:8080/v1", OPENAI_API_KEY=KEY) == []
    file = tmp_path / "velox.yaml"
    file.write_text("upstreams: [{name: own, provider: vllm, origin: 'http://h.example'}]")
    assert told(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, VELOX_CONFIG=str(file)) == []


def test_settings_of_other_programs_are_told_of() -> None:
    """U15, C55: with the one that does the like; not where that is set."""
    assert told(PORT="8000") == [
        "PORT says the port, and only this machine can connect to it: VELOX_LISTEN=0.0.0.0 lets others"
    ]
    assert told(PORT="8000", VELOX_LISTEN="127.0.0.1:8000") == []
    (line,) = told(REQUESTS_CA_BUNDLE="/ca.pem", CURL_CA_BUNDLE="/ca.pem")
    assert line.startswith("set and not used: REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE; SSL_CERT_FILE")
    assert told(REQUESTS_CA_BUNDLE="/ca.pem", SSL_CERT_FILE="/ca.pem") == []
    (line,) = told(DATABASE_URL="postgres://x", REDIS_SENTINEL_NODES="[]", LITELLM_MASTER_KEY="sk-1234")
    assert "DATABASE_URL (VELOX_LEDGER_DATABASE), REDIS_SENTINEL_NODES" in line and "sk-1234" not in line
    assert told(LITELLM_MASTER_KEY="sk-1234", VELOX_API_KEYS="sk-1234-and-more") == []


def test_simulator_needs_none_of_them() -> None:
    """U1: nothing leaves this machine."""
    settings = load({"HTTPS_PROXY": "http://proxy:3128", "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://x.example"})
    assert list(advice(settings, sim=True)) == []
