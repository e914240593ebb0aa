"""Variables of other programs: what is told of them, and when nothing would have changed."""

from __future__ import annotations

from velox.settings import load
from velox.settings.checks.advice import advice

KEY = "k" * 20


def told(**environ: str) -> list[str]:
    return list(advice(load(environ, cores=2)))


def test_settings_of_other_programs_are_told_of() -> None:
    """U15, C55: with the one that does the like; not where that is set."""
    assert told(PORT="8000") == [
        "PORT says the port, and only this machine can connect to it: VELOX_LISTEN=0.0.0.0 lets others"
    ]
    assert told(PORT="8000", VELOX_LISTEN="127.0.0.1:8000") == []
    (line,) = told(NODE_EXTRA_CA_CERTS="/ca.pem")
    assert line.startswith("set and not used: NODE_EXTRA_CA_CERTS; SSL_CERT_FILE")
    assert told(NODE_EXTRA_CA_CERTS="/ca.pem", SSL_CERT_FILE="/ca.pem") == []
    (line,) = told(DATABASE_URL="postgres://x", REDIS_SENTINEL_NODES="[]", LITELLM_MASTER_KEY="sk-1234")
    assert "DATABASE_URL (VELOX_LEDGER_DATABASE), REDIS_SENTINEL_NODES" in line and "sk-1234" not in line
    assert told(LITELLM_MASTER_KEY="sk-1234", VELOX_API_KEYS="sk-1234-and-more") == []


def test_simulator_needs_none_of_them() -> None:
    """U1: nothing leaves this machine."""
    settings = load({"HTTPS_PROXY": "http://proxy:3128", "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://x.example"})
    assert list(advice(settings, sim=True)) == []
