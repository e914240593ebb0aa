"""What looks like a credential, an address or a card is taken out; what only resembles it stays."""

from __future__ import annotations

import re

import pytest

from velox.observe.traces.redaction import REDACTED, Redaction, whole_words


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop0123",
        "ghp_0123456789abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA0123456789abcdefghijklmnopqrstu",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "jane.doe+x@mail.example.org",
        "4111 1111 1111 1111",
        "5500-0000-0000-0004",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nAAAA\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIB and the rest is cut",
    ],
)
def test_secret_is_taken_out(secret: str) -> None:
    assert Redaction().of(f"it is {secret}") == f"it is {REDACTED}"


def test_token_behind_bearer_is_taken_out() -> None:
    assert Redaction().of("Authorization: Bearer abcdefghij0123456789") == f"Authorization: Bearer {REDACTED}"


@pytest.mark.parametrize("text", ["ask-me-anything", "a@b", "4111 1111 1111 1112", "1.234567890123456789", "sk-short"])
def test_what_resembles_it_stays(text: str) -> None:
    assert Redaction().of(text) == text


def test_own_pattern_is_taken_out_besides() -> None:
    assert Redaction(re.compile(r"PATIENT-\d+")).of("PATIENT-17 a@b.example") == f"{REDACTED} {REDACTED}"


def test_cut_text_loses_its_last_word() -> None:
    assert whole_words("say sk-proj-abcdef") == "say"
    assert whole_words("x" * 1000) == "x" * 744
