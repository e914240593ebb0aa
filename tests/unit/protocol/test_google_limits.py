"""What a Gemini client's body lets its answer be at most (protocol/google_limits.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velox.protocol.google_limits import with_google_limits
from velox.protocol.slices import finished
from velox.types import BodyFields


def limits_of(body: bytes | bytearray, fields: BodyFields | None = None) -> BodyFields:
    return finished(with_google_limits(BodyFields("m") if fields is None else fields, body))


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

    assert limits_of(body, fields) == BodyFields("m", stream=True, max_tokens=max_tokens, n=n)
    assert fields == BodyFields("m", stream=True)


@pytest.mark.parametrize("text", ["6.5536e4", "65536.0", '"65536"', '"655.36E+2"', "65536e0"])
def test_number_counts_however_it_is_written(text: str) -> None:
    """Google takes all of these; held as 1 or 6, a strict budget would be exceeded."""
    body = b'{"generationConfig":{"maxOutputTokens":%b}}' % text.encode()

    assert limits_of(body).max_tokens == 65_536
    assert limits_of(body.replace(text.encode(), b"9e99")).max_tokens == 10**12


def test_body_that_is_full_of_settings_has_the_largest_that_there_are() -> None:
    """To look at them all would hold up others."""
    body = b'{"a":[%b{"maxOutputTokens":1}]}' % (b'{"maxOutputTokens":1},' * 4000)

    assert limits_of(body).max_tokens == 10**12


@pytest.mark.parametrize("first", [True, False])
def test_settings_beside_a_large_picture_are_found(first: bool) -> None:
    """Where libraries write them: before what is large, or behind it."""
    document = {"generationConfig": {"maxOutputTokens": 9}, "contents": [{"parts": [{"inlineData": "A" * 2_000_000}]}]}
    body = bytearray(json.dumps(document if first else dict(reversed(document.items()))).encode())

    assert limits_of(body).max_tokens == 9


@pytest.mark.parametrize("n_padding", [0, 200_000, 2_000_000])
@pytest.mark.parametrize(
    "config",
    [
        rb'"generationConfig":{"maxOutput\u0054okens":60000,"candidateCoun\u0074":8}',
        rb'"generation\u0043onfig":{"maxOutputTokens":60000,"candidateCount":8}',
        b'"generation_config":{"max_output_tokens":"6e4","candidate_count":8.0}',
    ],
)
def test_settings_are_found_however_a_client_hides_them(config: bytes, n_padding: int) -> None:
    """By escapes, and in the middle of what is long: a strict budget holds what they ask for."""
    padding = b'"parts":[%b0]' % (b'"\\u0041",' * (n_padding // 9))
    found = limits_of(b'{"a":{%b},%b,"contents":{%b}}' % (padding, config, padding))

    if n_padding == 2_000_000:  # over 400,000 values, which are not parsed at once
        assert found.max_tokens is not None and found.max_tokens >= 60_000 and found.n >= 8
    else:
        assert (found.max_tokens, found.n) == (60_000, 8)


def test_body_that_no_parser_takes_and_that_may_hide_settings_may_have_the_longest_answer() -> None:
    """Half a character is no strict JSON."""
    body = rb'{"contents":"\ud83d","generationConfig":{"maxOutput\u0054okens":60000}}'

    assert limits_of(body).max_tokens == 10**12
    assert limits_of(b'{"contents":"a","generationConfig":{"maxOutputTokens":1e999}}').max_tokens == 10**12


@pytest.mark.parametrize(
    "config",
    [
        b'"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":60000}',
        b'"generationConfig":{"maxOutputTokens":1},"generation_config":{"maxOutputTokens":60000}',
        b'"generationConfig":{"maxOutputTokens":1,"max_output_tokens":60000}',
        b"%b" % b",".join(b'"a%d":0' % n for n in range(1100)),
    ],
)
def test_settings_that_could_be_read_in_two_ways_are_the_longest(config: bytes) -> None:
    """Where they are parsed; where they are searched, the largest counts."""
    assert limits_of(b'{%b,"a":"\\u0041"}' % config).max_tokens == 10**12
