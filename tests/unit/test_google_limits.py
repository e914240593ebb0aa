"""What a Gemini client's body lets its answer be at most (protocol/google_limits.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.protocol.google_limits import with_google_limits
from velox.types import BodyFields


@pytest.mark.parametrize(
    ("config", "max_tokens", "n"),
    [
        ({}, None, 1),
        ({"maxOutputTokens": 65_536}, 65_536, 1),
        ({"max_output_tokens": "300", "candidate_count": 2}, 300, 2),
        ({"candidateCount": 8, "temperature": 1}, None, 8),
        ({"candidateCount": 0}, None, 0),
        ({"maxOutputTokens": None, "candidateCount": "x"}, None, 1),
        ({"stopSequences": ['"maxOutputTokens":7', '\\"candidateCount": 9']}, None, 1),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_settings_of_the_answer_are_found(
    config: dict[str, Any], max_tokens: int | None, n: int, indent: int | None
) -> None:
    """Whatever the spelling; and not in texts."""
    body = json.dumps({"contents": [], "generationConfig": config}, indent=indent).encode()

    fields = BodyFields("m", stream=True)  # of all requests of one path

    assert with_google_limits(fields, body) == BodyFields("m", stream=True, max_tokens=max_tokens, n=n)
    assert fields == BodyFields("m", stream=True)


@pytest.mark.parametrize("text", ["6.5536e4", "65536.0", '"65536"', '"655.36E+2"', "65536e0"])
def test_number_counts_however_it_is_written(text: str) -> None:
    """Google takes all of these; held as 1 or 6, a strict budget would be exceeded."""
    body = b'{"generationConfig":{"maxOutputTokens":%b}}' % text.encode()

    assert with_google_limits(BodyFields("m"), body).max_tokens == 65_536
    assert with_google_limits(BodyFields("m"), body.replace(text.encode(), b"9e99")).max_tokens == 10**12


def test_body_that_is_full_of_settings_has_the_largest_that_there_are() -> None:
    """To look at them all would hold up others."""
    body = b'{"a":[%b{"maxOutputTokens":1}]}' % (b'{"maxOutputTokens":1},' * 4000)

    assert with_google_limits(BodyFields("m"), body).max_tokens == 10**12


@pytest.mark.parametrize("first", [True, False])
def test_settings_beside_a_large_picture_are_found(first: bool) -> None:
    """Where libraries write them: before what is large, or behind it."""
    document = {"generationConfig": {"maxOutputTokens": 9}, "contents": [{"parts": [{"inlineData": "A" * 2_000_000}]}]}
    body = bytearray(json.dumps(document if first else dict(reversed(document.items()))).encode())

    assert with_google_limits(BodyFields("m"), body).max_tokens == 9
