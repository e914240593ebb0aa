"""What a client may say in a query to Google's APIs."""

from __future__ import annotations

import pytest

from velox.protocol.google_query import is_googles, without_system_parameters


@pytest.mark.parametrize(
    "part",
    [
        *(
            b"fields=candidates",
            b"$fields=candidates",
            b"%24fields=a",
            b"f%69elds=a",
            b"FIELDS=a",
            b"$$fields=a",
            b"fields",
        ),
        *(b"alt=proto", b"$alt=proto", b"%61lt=pro%74o", b"alt=media", b"alt=", b"alt", b"alt=json;charset"),
        *(b"callback=f", b"$callback=f", b"prettyPrint=true", b"$prettyPrint=false", b"quotaUser=me", b"$.xgafv=2"),
        *(
            b"$httpMethod=DELETE",
            b"%24httpMethod=DELETE",
            b"$httpHeaders=a",
            b"$req=%7B%7D",
            b"$ct=a",
            b"$outputDefaults",
        ),
        *(b"$userProject=p", b"userProject=p", b"$unheard-of=1"),
    ],
)
def test_what_would_take_the_usage_out_of_an_answer_is_dropped_by_its_name(part: bytes) -> None:
    """However it is spelled, and wherever it stands."""
    for query, rest in ((part, b""), (b"alt=sse&" + part, b"alt=sse"), (part + b"&a=b&" + part, b"a=b")):
        kept, dropped = without_system_parameters(query, b"POST")
        assert kept == rest
        assert dropped and all("=" not in name and "%" not in name for name in dropped)


@pytest.mark.parametrize(
    "part", [b"alt=sse", b"$alt=sse", b"%24alt=s%73e", b"alt=json", b"ALT=JSON", b"pageSize=5", b"a"]
)
def test_others_pass_as_they_were_written(part: bytes) -> None:
    assert without_system_parameters(part + b"&uploadType=resumable", b"POST") == (part + b"&uploadType=resumable", [])


def test_lists_may_be_asked_for_in_parts_and_files_be_fetched() -> None:
    """But no method is made another one."""
    assert without_system_parameters(b"fields=models.name&pageSize=5", b"GET")[0] == b"fields=models.name&pageSize=5"
    assert without_system_parameters(b"alt=media", b"GET")[0] == b"alt=media"
    kept, dropped = without_system_parameters(b"$httpMethod=POST&$req=%7B%7D&alt=proto&callback=f", b"GET")
    assert (kept, dropped) == (b"", ["$httpmethod", "$req", "alt", "callback"])


@pytest.mark.parametrize("name", [b"key", b"$key", b"access_token", b"oauth_token", b"k%65y", b"KEY", b"api_key"])
def test_keys_go_up_only_where_they_are_the_clients_own(name: bytes) -> None:
    """And are no words of a reply."""
    query = b"alt=sse&" + name + b"=secret"

    assert without_system_parameters(query, b"POST") == (b"alt=sse", [])
    assert without_system_parameters(query, b"POST", keeps_key=True) == (query, [])


def test_paths_of_googles_are_known() -> None:
    for path in (
        b"/v1beta/models/gemini-3:generateContent",
        b"/v1beta/openai/chat/completions",
        b"/v1/projects/p/locations/l/publishers/google/models/gemini-3:generateContent",
        b"/v1beta1/x",
        b"/upload/v1beta/files",
        b"/v1/models/imagen-4:predict",
    ):
        assert is_googles(path), path
    for path in (b"/v1/chat/completions", b"/v1/models/a", b"/v1/models/ft:gpt/x", b"/v1/responses/a:b"):
        assert not is_googles(path), path
