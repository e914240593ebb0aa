"""The providers' rows, and the targets that are made of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.provider import Provider, WireWrapper
from velox.providers.rows import PROVIDERS
from velox.providers.target import (
    TargetError,
    apis_of,
    family_of,
    missing,
    origin_of,
    parameters_of,
    target_call,
)
from velox.settings.parse import origin as parse_origin
from velox.types import ApiKind

ROWS = list(PROVIDERS.values())
GIVEN = {"region": "eu-central-1", "resource": "res", "project": "proj", "location": "europe-west4"}
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
VERTEX = "/projects/proj/locations/europe-west4"

# provider, API, model -> API that is asked, path without and with a stream
TARGETS = {
    ("openai", ApiKind.CHAT, "gpt-4o"): (ApiKind.CHAT, "/v1/chat/completions", None),
    ("openai", ApiKind.MESSAGES, "gpt-4o"): (ApiKind.CHAT, "/v1/chat/completions", None),
    ("openai", ApiKind.MESSAGES, "gpt-5.2"): (ApiKind.RESPONSES, "/v1/responses", None),
    ("openai", ApiKind.CHAT, "gpt-5-codex"): (ApiKind.RESPONSES, "/v1/responses", None),
    ("openai", ApiKind.COUNT_MESSAGES, "gpt-5"): (ApiKind.COUNT_RESPONSES, "/v1/responses/input_tokens", None),
    ("azure", ApiKind.CHAT, "my-gpt"): (ApiKind.CHAT, "/openai/v1/chat/completions", None),
    ("azure", ApiKind.RESPONSES, "my-gpt"): (ApiKind.RESPONSES, "/openai/v1/responses", None),
    ("anthropic", ApiKind.MESSAGES, "claude-sonnet-5"): (ApiKind.MESSAGES, "/v1/messages", None),
    ("anthropic", ApiKind.CHAT, "claude-sonnet-5"): (ApiKind.MESSAGES, "/v1/messages", None),
    ("anthropic", ApiKind.COUNT_GENERATE, "claude-sonnet-5"): (
        *(ApiKind.COUNT_MESSAGES, "/v1/messages/count_tokens", None),
    ),
    ("vertex", ApiKind.MESSAGES, "claude-opus-4-1@20250805"): (
        ApiKind.MESSAGES,
        f"/v1{VERTEX}/publishers/anthropic/models/claude-opus-4-1@20250805:rawPredict",
        f"/v1{VERTEX}/publishers/anthropic/models/claude-opus-4-1@20250805:streamRawPredict",
    ),
    ("vertex", ApiKind.COUNT_MESSAGES, "claude-sonnet-5"): (
        *(ApiKind.COUNT_MESSAGES, f"/v1{VERTEX}/publishers/anthropic/models/count-tokens:rawPredict", None),
    ),
    ("vertex", ApiKind.RESPONSES, "gemini-3-pro"): (
        ApiKind.GENERATE,
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-3-pro:generateContent",
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-3-pro:streamGenerateContent?alt=sse",
    ),
    ("vertex", ApiKind.CHAT, "meta/llama-4"): (ApiKind.CHAT, f"/v1{VERTEX}/endpoints/openapi/chat/completions", None),
    ("bedrock", ApiKind.MESSAGES, CLAUDE): (
        ApiKind.MESSAGES,
        "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke",
        "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream",
    ),
    ("bedrock", ApiKind.COUNT_MESSAGES, CLAUDE): (
        ApiKind.COUNT_CONVERSE,
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens",
        None,
    ),
    ("bedrock", ApiKind.COUNT_GENERATE, f"arn:aws:bedrock:eu-west-1:1:inference-profile/{CLAUDE}"): (
        ApiKind.COUNT_CONVERSE,
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens",
        None,
    ),
    ("bedrock", ApiKind.CHAT, "us.amazon.nova-micro-v1:0"): (
        ApiKind.CONVERSE,
        "/model/us.amazon.nova-micro-v1%3A0/converse",
        "/model/us.amazon.nova-micro-v1%3A0/converse-stream",
    ),
    ("bedrock-mantle", ApiKind.RESPONSES, "openai.gpt-oss-120b"): (ApiKind.RESPONSES, "/v1/responses", None),
    ("bedrock-mantle", ApiKind.CHAT, "moonshotai.kimi-k2.5"): (ApiKind.CHAT, "/v1/chat/completions", None),
    ("bedrock-mantle", ApiKind.CHAT, "google.gemma-3-27b-it"): (ApiKind.CHAT, "/v1/chat/completions", None),
    ("bedrock-mantle", ApiKind.CHAT, "google.gemma-4-31b"): (ApiKind.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", ApiKind.MESSAGES, "xai.grok-4.3"): (ApiKind.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", ApiKind.CHAT, "openai.gpt-5.5"): (ApiKind.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", ApiKind.RESPONSES, "openai.gpt-5.6-luna"): (ApiKind.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", ApiKind.CHAT, "openai.gpt-6-astra"): (ApiKind.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", ApiKind.MESSAGES, "openai.gpt-6-astra"): (ApiKind.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", ApiKind.MESSAGES, "anthropic.claude-opus-5"): (
        *(ApiKind.MESSAGES, "/anthropic/v1/messages", None),
    ),
    ("foundry", ApiKind.CHAT, "claude-opus-4-7"): (ApiKind.MESSAGES, "/anthropic/v1/messages", None),
    ("foundry", ApiKind.CHAT, "DeepSeek-V3"): (ApiKind.CHAT, "/openai/v1/chat/completions", None),
    ("gemini", ApiKind.CHAT, "models/gemini-3-flash"): (
        ApiKind.GENERATE,
        "/v1beta/models/gemini-3-flash:generateContent",
        "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse",
    ),
    # The client says itself whether it wants events or an array.
    ("gemini", ApiKind.GENERATE, "gemini-3-flash"): (
        ApiKind.GENERATE,
        "/v1beta/models/gemini-3-flash:generateContent",
        "/v1beta/models/gemini-3-flash:streamGenerateContent",
    ),
    ("gemini", ApiKind.EMBEDDINGS, "gemini-embedding-001"): (ApiKind.EMBEDDINGS, "/v1beta/openai/embeddings", None),
    ("vertex", ApiKind.EMBEDDINGS, "text-embedding-005"): (
        ApiKind.VECTORS,
        f"/v1beta1{VERTEX}/publishers/google/models/text-embedding-005:predict",
        None,
    ),
    ("gemini", ApiKind.EMBED_CONTENT, "models/gemini-embedding-001"): (
        *(ApiKind.EMBED_CONTENT, "/v1beta/models/gemini-embedding-001:embedContent", None),
    ),
    ("openai", ApiKind.EMBED_CONTENT, "text-embedding-3-small"): (ApiKind.EMBEDDINGS, "/v1/embeddings", None),
    ("vertex", ApiKind.EMBED_CONTENTS, "gemini-embedding-2"): (
        ApiKind.VECTORS,
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-embedding-2:embedContent",
        None,
    ),
    ("bedrock", ApiKind.EMBEDDINGS, "amazon.titan-embed-text-v2:0"): (
        *(ApiKind.VECTORS, "/model/amazon.titan-embed-text-v2%3A0/invoke", None),
    ),
    ("bedrock", ApiKind.EMBED_CONTENTS, "us.cohere.embed-v4:0"): (
        *(ApiKind.VECTORS, "/model/us.cohere.embed-v4%3A0/invoke", None),
    ),
    ("groq", ApiKind.GENERATE, "llama-3.3-70b"): (ApiKind.CHAT, "/v1/chat/completions", None),
    ("deepseek", ApiKind.MESSAGES, "deepseek-chat"): (ApiKind.MESSAGES, "/anthropic/v1/messages", None),
    ("deepseek", ApiKind.RESPONSES, "deepseek-chat"): (ApiKind.RESPONSES, "/responses", None),
    ("openrouter", ApiKind.MESSAGES, "anthropic/claude-opus-5"): (ApiKind.MESSAGES, "/v1/messages", None),
    ("zai", ApiKind.CHAT, "glm-5"): (ApiKind.CHAT, "/paas/v4/chat/completions", None),
    ("perplexity", ApiKind.MESSAGES, "sonar"): (ApiKind.RESPONSES, "/v1/responses", None),
    ("perplexity", ApiKind.RESPONSES, "openai/gpt-6"): (ApiKind.RESPONSES, "/v1/responses", None),
    ("vllm", ApiKind.MESSAGES, "qwen"): (ApiKind.CHAT, "/v1/chat/completions", None),
}


@pytest.mark.parametrize(("provider", "client_api", "model"), TARGETS)
def test_target_is_where_the_provider_has_the_api(provider: str, client_api: ApiKind, model: str) -> None:
    """The client's own API where the provider has it; otherwise the one that others are translated into."""
    api, path, stream = TARGETS[provider, client_api, model]

    plain = target_call(PROVIDERS[provider], GIVEN, client_api, model)
    streamed = target_call(PROVIDERS[provider], GIVEN, client_api, model, stream=True)

    assert plain is not None and streamed is not None
    assert (plain.api, plain.target.decode()) == (api, path)
    assert (streamed.api, streamed.target.decode()) == (api, stream or path)


def test_wire_wrappers_are_those_of_claude_elsewhere_and_of_dated_azure() -> None:
    """Only requests in the dialect's own form have one."""

    def wrapper(provider: str, client_api: ApiKind, model: str, **more: str) -> WireWrapper:
        call = target_call(PROVIDERS[provider], GIVEN | more, client_api, model)
        assert call is not None
        return call.wrapper

    assert wrapper("vertex", ApiKind.MESSAGES, "claude-opus-5") is WireWrapper.CLAUDE_VERTEX
    assert wrapper("vertex", ApiKind.COUNT_MESSAGES, "claude-opus-5") is WireWrapper.CLAUDE_VERTEX_COUNT
    assert wrapper("bedrock", ApiKind.MESSAGES, CLAUDE) is WireWrapper.CLAUDE_BEDROCK
    assert wrapper("bedrock", ApiKind.CHAT, CLAUDE) is WireWrapper.NONE
    assert wrapper("azure", ApiKind.CHAT, "gpt", api_version="2024-10-21") is WireWrapper.AZURE_DATED
    assert wrapper("azure", ApiKind.CHAT, "gpt", api_version="preview") is WireWrapper.NONE
    assert wrapper("foundry", ApiKind.MESSAGES, "claude-opus-5") is WireWrapper.NONE


def test_version_of_azure_is_in_the_query_and_a_dated_one_in_the_path() -> None:
    """Without one there is no query."""
    row = PROVIDERS["azure"]
    dated = target_call(row, {"api_version": "2024-10-21"}, ApiKind.CHAT, "my gpt", query=b"api-version=1&a=b")
    preview = target_call(row, {"api_version": "preview"}, ApiKind.RESPONSES, "gpt", query=b"api-version=1&a=b")

    assert dated is not None and preview is not None
    assert dated.target == b"/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    assert preview.target == b"/openai/v1/responses?a=b&api-version=preview"


@pytest.mark.parametrize("provider", ["azure", "foundry", "openai", "groq"])
def test_version_that_a_client_names_is_not_of_our_path(provider: str) -> None:
    """W5: Azure's SDKs name one in each request; at the paths of v1 it is a 400."""
    for query in (b"api-version=2024-10-21&a=b", b"a=b&API%2DVersion=1", b"a=b"):
        call = target_call(PROVIDERS[provider], {}, ApiKind.CHAT, "gpt-4o", query=query)
        assert call is not None and call.target.endswith(b"/chat/completions?a=b")


def test_version_goes_up_to_a_server_without_a_provider() -> None:
    """W5: it may be a proxy of Azure, whose paths nobody here knows."""
    row = PROVIDERS["openai-compatible"]
    call = target_call(row, {}, ApiKind.CHAT, "m", apis=(ApiKind.CHAT,), query=b"api-version=2024-10-21")
    assert call is not None and call.target == b"/v1/chat/completions?api-version=2024-10-21"


def test_query_of_the_client_goes_up_without_credentials_and_only_with_its_own_dialect() -> None:
    """Gemini's clients put keys there; what one dialect asks means nothing in another."""
    row = PROVIDERS["gemini"]
    query = b"alt=sse&key=AIza-secret&%6Bey=again&&a=b&$fields=a"
    native = target_call(row, {}, ApiKind.GENERATE, "g", stream=True, query=query)
    translated = target_call(row, {}, ApiKind.CHAT, "g", stream=True, query=query)

    assert native is not None and translated is not None
    assert native.target.partition(b"?")[2] == b"alt=sse&a=b"
    assert translated.target.partition(b"?")[2] == b"alt=sse"


def test_upstream_without_a_provider_is_asked_as_the_client_asked() -> None:
    """Whatever the path; unless the upstream says which APIs it has."""
    row = PROVIDERS["openai-compatible"]

    assert all(target_call(row, {}, client_api, "m") is None for client_api in ApiKind)
    call = target_call(row, {}, ApiKind.MESSAGES, "m", apis=[ApiKind.RESPONSES, ApiKind.CHAT])
    assert call is not None and call.api is ApiKind.CHAT


def test_apis_of_an_upstream_stand_in_place_of_the_usual_ones() -> None:
    """Newer servers have more of them; a proxy may have fewer."""
    row = PROVIDERS["vllm"]
    messages = target_call(row, {}, ApiKind.MESSAGES, "m", apis=[ApiKind.CHAT, ApiKind.MESSAGES])
    responses = target_call(row, {}, ApiKind.CHAT, "m", apis=[ApiKind.RESPONSES])

    assert messages is not None and messages.api is ApiKind.MESSAGES
    assert responses is not None and responses.api is ApiKind.RESPONSES
    assert target_call(row, {}, ApiKind.EMBEDDINGS, "m", apis=[ApiKind.RESPONSES]) is None
    for client_api, path in ((ApiKind.RESPONSES, "/v1/responses"), (ApiKind.MESSAGES, "/v1/messages")):
        usual = target_call(PROVIDERS["together"], {}, client_api, "m")
        own = target_call(PROVIDERS["together"], {}, client_api, "m", apis=[ApiKind.CHAT, client_api])
        assert usual is not None and usual.api is ApiKind.CHAT
        assert own is not None and (own.api, own.target) == (client_api, path.encode())
    # OpenAI's form can't be put into Google's, which no model has alone.
    gemini = PROVIDERS["gemini"]
    assert target_call(gemini, {}, ApiKind.EMBEDDINGS, "m", apis=[ApiKind.EMBED_CONTENTS]) is None


@pytest.mark.parametrize("model", ["", ".", "..", "a/../b", "../x", "a\\..\\b", "x" * 2049, "\ud800"])
def test_name_that_can_be_no_segment_is_refused(model: str) -> None:
    """A server could take dot segments for another path, decoded or not."""
    with pytest.raises(TargetError):
        target_call(PROVIDERS["bedrock"], GIVEN, ApiKind.CHAT, model)


@given(model=st.text(min_size=1, max_size=60), row=st.sampled_from(ROWS), client_api=st.sampled_from(list(ApiKind)))
def test_name_of_a_model_never_leaves_its_segment(model: str, row: Provider, client_api: ApiKind) -> None:
    """Its characters are escaped; the path has as many segments as with any other name."""
    try:
        call = target_call(row, GIVEN, client_api, model)
    except TargetError:
        return
    if call is not None:
        family = family_of(row, GIVEN, model)
        path = family.native[call.api]
        assert re.fullmatch(rb"[A-Za-z0-9/._~%@:-]+(?:\?[a-z0-9=&-]+)?", call.target)
        assert call.target.partition(b"?")[0].count(b"/") == path.path.count("/")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_whole(row: Provider) -> None:
    """The last family takes every model; what is translated into can be reached; origins are valid and have no end."""
    assert not row.families[-1].models and not row.families[-1].when
    assert PROVIDERS[row.name] is row and re.fullmatch(r"[a-z-]+", row.name)
    for family in row.families:
        assert family.translated_into is None or family.translated_into in family.native
        for path in (*family.native.values(), *family.optional.values()):
            assert path.path.startswith("/") and not path.path.endswith("/")
    if row.origin:
        assert not missing(row, GIVEN, has_origin=False)
        assert str(parse_origin(origin_of(row, GIVEN))) == origin_of(row, GIVEN)
        assert set(missing(row, (), has_origin=False)) == parameters_of(row) - {"api_version", "profile"}


def test_origin_of_vertex_depends_on_the_location() -> None:
    """Three locations have hosts of another form."""
    row = PROVIDERS["vertex"]

    origins = [origin_of(row, {"location": each}) for each in ("europe-west4", "global", "us", "eu")]

    assert origins == [
        "https://europe-west4-aiplatform.googleapis.com",
        "https://aiplatform.googleapis.com",
        "https://aiplatform.us.rep.googleapis.com",
        "https://aiplatform.eu.rep.googleapis.com",
    ]
    assert origin_of(row, {}) == ""


def test_origin_of_bedrock_depends_on_the_partition() -> None:
    """AWS's cloud for Europe alone is none of amazonaws.com."""
    row = PROVIDERS["bedrock"]

    assert origin_of(row, {"region": "us-gov-west-1"}) == "https://bedrock-runtime.us-gov-west-1.amazonaws.com"
    assert origin_of(row, {"region": "eusc-de-east-1"}) == "https://bedrock-runtime.eusc-de-east-1.amazonaws.eu"


def test_key_is_presented_as_the_provider_wants_it() -> None:
    """Nobody else gets it as a bearer token."""
    names = ("openai", "anthropic", "gemini", "azure", "bedrock")
    shown = {name: dict(PROVIDERS[name].credentials("k")).popitem() for name in names}
    assert PROVIDERS["foundry"].credentials("k") == ((b"api-key", b"k"), (b"x-api-key", b"k"))

    assert shown == {
        "openai": (b"authorization", b"Bearer k"),
        "anthropic": (b"x-api-key", b"k"),
        "gemini": (b"x-goog-api-key", b"k"),
        "azure": (b"api-key", b"k"),
        "bedrock": (b"authorization", b"Bearer k"),
    }


def test_apis_are_said_for_each_family_that_can_apply() -> None:
    """A dated version of Azure has families of its own."""
    v1 = list(apis_of(PROVIDERS["azure"], {}))
    dated = list(apis_of(PROVIDERS["azure"], {"api_version": "2024-10-21"}))

    assert [models[:1] for models, _, _ in v1] == [("*-codex*",), ("gpt-5*",), ()]
    assert dated == [((), (ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.EMBEDDINGS), ApiKind.CHAT)]


def test_rules_of_users_come_last() -> None:
    """Field by field."""
    row = PROVIDERS["anthropic"]
    own = [ModelRule(("claude-next*",), (("max_output", 7),)), ModelRule(("*",), (("prefill", False),), ("gemini",))]

    facts = facts_of(row, "claude-next-1", own)

    assert (facts.max_output, facts.thinking) == (7, "adaptive")
    assert facts.prefill == facts_of(row, "claude-next-1").prefill
