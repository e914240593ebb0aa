"""Which requests the cache is for, and what tells two of them apart."""

from __future__ import annotations

import json
import math

import pytest

from velox.policy.cache.canonical import read_canonical
from velox.policy.cache.control import CacheControl, cache_control
from velox.policy.cache.requests import (
    Uncached,
    body_text,
    cache_key,
    may_cache_api,
    telling_headers,
    why_uncached,
)
from velox.policy.cache.rules import CacheRule, CacheScope, partition_of
from velox.types import ANYONE, ApiKind, Caller, Endpoint, KeyTerms

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def why(api: ApiKind | None, body: dict[str, object], *, sampled: bool = False) -> Uncached | None:
    return why_uncached(api, read_canonical(json.dumps(body).encode()), sampled=sampled)


@pytest.mark.parametrize(
    ("api", "body", "expected"),
    [
        (ApiKind.CHAT, {"temperature": 0}, None),
        (ApiKind.CHAT, {"temperature": 0.0, "tools": [_TOOL]}, None),
        (ApiKind.CHAT, {}, Uncached.SAMPLED),
        (ApiKind.CHAT, {"temperature": 0.1}, Uncached.SAMPLED),
        (ApiKind.CHAT, {"temperature": "0"}, Uncached.SAMPLED),
        (ApiKind.CHAT, {"temperature": False}, Uncached.SAMPLED),
        (ApiKind.CHAT, {"temperature": 0, "store": True}, Uncached.STATEFUL),
        (ApiKind.CHAT, {"temperature": 0, "web_search_options": {"a": 1}}, Uncached.LOOKED_UP),
        (ApiKind.CHAT, {"temperature": 0, "tools": [{"type": "web_search"}]}, Uncached.LOOKED_UP),
        (ApiKind.CHAT, {"temperature": 0, "tools": {}}, Uncached.LOOKED_UP),
        (ApiKind.CHAT, {"temperature": 0, "messages": [{"file_id": "f"}]}, Uncached.REFERS),
        (ApiKind.RESPONSES, {"temperature": 0}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": None}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False}, None),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False, "previous_response_id": "r"}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False, "prompt": {"id": "p"}}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False, "background": True}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False, "conversation": "c"}, Uncached.STATEFUL),
        (ApiKind.RESPONSES, {"temperature": 0, "store": False, "tools": [{"type": "mcp"}]}, Uncached.LOOKED_UP),
        (ApiKind.MESSAGES, {"temperature": 0, "tools": [{"name": "f", "input_schema": {}}]}, None),
        (
            ApiKind.MESSAGES,
            {"temperature": 0, "tools": [{"type": "web_search_20250305", "name": "w"}]},
            Uncached.LOOKED_UP,
        ),
        (ApiKind.MESSAGES, {"temperature": 0, "mcp_servers": [{"name": "x"}]}, Uncached.LOOKED_UP),
        (ApiKind.MESSAGES, {"temperature": 0, "container": "c"}, Uncached.STATEFUL),
        (ApiKind.GENERATE, {"generationConfig": {"temperature": 0}}, None),
        (ApiKind.GENERATE, {"temperature": 0}, Uncached.SAMPLED),
        (
            ApiKind.GENERATE,
            {"generationConfig": {"temperature": 0}, "tools": [{"functionDeclarations": []}]},
            None,
        ),
        (
            ApiKind.GENERATE,
            {"generationConfig": {"temperature": 0}, "tools": [{"functionDeclarations": [], "googleSearch": {}}]},
            Uncached.LOOKED_UP,
        ),
        (ApiKind.GENERATE, {"generationConfig": {"temperature": 0}, "cachedContent": "c"}, Uncached.STATEFUL),
        (ApiKind.EMBEDDINGS, {"input": "x"}, None),
        (None, {"prompt": "x", "temperature": 0}, None),
    ],
)
def test_which_requests_are_for_the_cache(
    api: ApiKind | None, body: dict[str, object], expected: Uncached | None
) -> None:
    assert why(api, body) is expected


def test_answers_by_chance_are_kept_where_the_rule_says_so() -> None:
    assert why(ApiKind.CHAT, {"temperature": 1.3}, sampled=True) is None
    assert why(ApiKind.CHAT, {"store": True}, sampled=True) is Uncached.STATEFUL


def test_apis_whose_answers_are_made_of_the_request_alone() -> None:
    assert may_cache_api(ApiKind.CHAT, Endpoint.CHAT)
    assert may_cache_api(None, Endpoint.COMPLETIONS)
    assert not may_cache_api(None, Endpoint.IMAGES)
    assert not may_cache_api(ApiKind.COMPACT, Endpoint.RESPONSES)


def test_who_asks_is_left_out_where_no_answer_repeats_it() -> None:
    body = read_canonical(b'{"user": "u", "metadata": {"a": "b"}, "stream": true, "model": "m"}')
    assert body_text(ApiKind.CHAT, body) == b'{"model":"m","stream":true}'
    assert body_text(ApiKind.MESSAGES, body) == b'{"model":"m","stream":true,"user":"u"}'
    assert body_text(ApiKind.RESPONSES, body) == b'{"metadata":{"a":"b"},"model":"m","stream":true,"user":"u"}'


def test_fields_of_a_head_that_may_change_an_answer() -> None:
    head = [
        (b"user-agent", b"x"),
        (b"anthropic-beta", b"b"),
        (b"x-stainless-retry-count", b"1"),
        (b"authorization", b"Bearer k"),
        (b"anthropic-beta", b"a"),
        (b"accept", b"*/*"),
    ]
    assert telling_headers(head, with_credentials=False) == [b"anthropic-beta", b"b", b"anthropic-beta", b"a"]
    assert telling_headers(head, with_credentials=True)[-2:] == [b"authorization", b"Bearer k"]


def test_no_part_of_a_key_runs_over_into_the_next() -> None:
    assert len({cache_key(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"ab", b"c", b""])}) == 4
    assert len(cache_key([b"a"])) == 32


def test_partitions_of_scopes() -> None:
    """A team's name can't be made to be a key's; keys without a team share nothing."""
    one, other = Caller("a", id=b"\x01"), Caller("b", id=b"\x02")
    of_team = Caller("c", KeyTerms(team="red"), b"\x03")
    assert partition_of(CacheScope.KEY, one) == "key:01"
    assert partition_of(CacheScope.TEAM, one) == "key:01" != partition_of(CacheScope.TEAM, other)
    assert partition_of(CacheScope.TEAM, of_team) == "team:red"
    assert partition_of(CacheScope.ALL, one) == partition_of(CacheScope.ALL, ANYONE) == "all"
    assert str(CacheRule(600.0, CacheScope.TEAM, sampled=True)) == "for 600s by team, sampled too"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], CacheControl()),
        ([b"no-store"], CacheControl(no_store=True)),
        ([b"No-Cache , max-age = 5"], CacheControl(no_cache=True, max_age_s=5.0)),
        ([b"max-age=60", b"max-age=5,only-if-cached"], CacheControl(max_age_s=5.0, only_if_cached=True)),
        ([b'max-age="7"'], CacheControl(max_age_s=7.0)),
        ([b"max-age=x"], CacheControl(max_age_s=0.0)),
        ([b"max-age"], CacheControl(max_age_s=0.0)),
        ([b"max-age=-1"], CacheControl(max_age_s=0.0)),
        ([b"max-age=" + b"9" * 400], CacheControl(max_age_s=math.inf)),
        ([b"max-stale=5, private, , =,"], CacheControl()),
    ],
)
def test_what_a_client_asks_of_the_cache(values: list[bytes], expected: CacheControl) -> None:
    assert cache_control(values) == expected
