"""The providers' rows, and the targets that are made of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.provider import Envelope, Provider
from velox.providers.rows import PROVIDERS
from velox.providers.target import (
    TargetError,
    family_of,
    missing,
    origin_of,
    parameters_of,
    surfaces,
    target_call,
)
from velox.settings.parse import origin as parse_origin
from velox.types import Surface

ROWS = list(PROVIDERS.values())
GIVEN = {"region": "eu-central-1", "resource": "res", "project": "proj", "location": "europe-west4"}
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
VERTEX = "/projects/proj/locations/europe-west4"

# provider, API, model -> API that is asked, path without and with a stream
TARGETS = {
    ("openai", Surface.CHAT, "gpt-4o"): (Surface.CHAT, "/v1/chat/completions", None),
    ("openai", Surface.MESSAGES, "gpt-4o"): (Surface.CHAT, "/v1/chat/completions", None),
    ("openai", Surface.MESSAGES, "gpt-5.2"): (Surface.RESPONSES, "/v1/responses", None),
    ("openai", Surface.CHAT, "gpt-5-codex"): (Surface.RESPONSES, "/v1/responses", None),
    ("openai", Surface.COUNT_MESSAGES, "gpt-5"): (Surface.COUNT_RESPONSES, "/v1/responses/input_tokens", None),
    ("azure", Surface.CHAT, "my-gpt"): (Surface.CHAT, "/openai/v1/chat/completions", None),
    ("azure", Surface.RESPONSES, "my-gpt"): (Surface.RESPONSES, "/openai/v1/responses", None),
    ("anthropic", Surface.MESSAGES, "claude-sonnet-5"): (Surface.MESSAGES, "/v1/messages", None),
    ("anthropic", Surface.CHAT, "claude-sonnet-5"): (Surface.MESSAGES, "/v1/messages", None),
    ("anthropic", Surface.COUNT_GENERATE, "claude-sonnet-5"): (
        *(Surface.COUNT_MESSAGES, "/v1/messages/count_tokens", None),
    ),
    ("vertex", Surface.MESSAGES, "claude-opus-4-1@20250805"): (
        Surface.MESSAGES,
        f"/v1{VERTEX}/publishers/anthropic/models/claude-opus-4-1@20250805:rawPredict",
        f"/v1{VERTEX}/publishers/anthropic/models/claude-opus-4-1@20250805:streamRawPredict",
    ),
    ("vertex", Surface.COUNT_MESSAGES, "claude-sonnet-5"): (
        *(Surface.COUNT_MESSAGES, f"/v1{VERTEX}/publishers/anthropic/models/count-tokens:rawPredict", None),
    ),
    ("vertex", Surface.RESPONSES, "gemini-3-pro"): (
        Surface.GENERATE,
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-3-pro:generateContent",
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-3-pro:streamGenerateContent?alt=sse",
    ),
    ("vertex", Surface.CHAT, "meta/llama-4"): (Surface.CHAT, f"/v1{VERTEX}/endpoints/openapi/chat/completions", None),
    ("bedrock", Surface.MESSAGES, CLAUDE): (
        Surface.MESSAGES,
        "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke",
        "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream",
    ),
    ("bedrock", Surface.COUNT_MESSAGES, CLAUDE): (
        Surface.COUNT_CONVERSE,
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens",
        None,
    ),
    ("bedrock", Surface.COUNT_GENERATE, f"arn:aws:bedrock:eu-west-1:1:inference-profile/{CLAUDE}"): (
        Surface.COUNT_CONVERSE,
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/count-tokens",
        None,
    ),
    ("bedrock", Surface.CHAT, "us.amazon.nova-micro-v1:0"): (
        Surface.CONVERSE,
        "/model/us.amazon.nova-micro-v1%3A0/converse",
        "/model/us.amazon.nova-micro-v1%3A0/converse-stream",
    ),
    ("bedrock-mantle", Surface.RESPONSES, "openai.gpt-oss-120b"): (Surface.RESPONSES, "/v1/responses", None),
    ("bedrock-mantle", Surface.CHAT, "moonshotai.kimi-k2.5"): (Surface.CHAT, "/v1/chat/completions", None),
    ("bedrock-mantle", Surface.CHAT, "google.gemma-3-27b-it"): (Surface.CHAT, "/v1/chat/completions", None),
    ("bedrock-mantle", Surface.CHAT, "google.gemma-4-31b"): (Surface.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", Surface.MESSAGES, "xai.grok-4.3"): (Surface.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", Surface.CHAT, "openai.gpt-5.5"): (Surface.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", Surface.RESPONSES, "openai.gpt-5.6-luna"): (Surface.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", Surface.CHAT, "openai.gpt-6-astra"): (Surface.CHAT, "/openai/v1/chat/completions", None),
    ("bedrock-mantle", Surface.MESSAGES, "openai.gpt-6-astra"): (Surface.RESPONSES, "/openai/v1/responses", None),
    ("bedrock-mantle", Surface.MESSAGES, "anthropic.claude-opus-5"): (
        *(Surface.MESSAGES, "/anthropic/v1/messages", None),
    ),
    ("foundry", Surface.CHAT, "claude-opus-4-7"): (Surface.MESSAGES, "/anthropic/v1/messages", None),
    ("foundry", Surface.CHAT, "DeepSeek-V3"): (Surface.CHAT, "/openai/v1/chat/completions", None),
    ("gemini", Surface.CHAT, "models/gemini-3-flash"): (
        Surface.GENERATE,
        "/v1beta/models/gemini-3-flash:generateContent",
        "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse",
    ),
    # The client says itself whether it wants events or an array.
    ("gemini", Surface.GENERATE, "gemini-3-flash"): (
        Surface.GENERATE,
        "/v1beta/models/gemini-3-flash:generateContent",
        "/v1beta/models/gemini-3-flash:streamGenerateContent",
    ),
    ("gemini", Surface.EMBEDDINGS, "gemini-embedding-001"): (Surface.EMBEDDINGS, "/v1beta/openai/embeddings", None),
    ("vertex", Surface.EMBEDDINGS, "text-embedding-005"): (
        Surface.VECTORS,
        f"/v1beta1{VERTEX}/publishers/google/models/text-embedding-005:predict",
        None,
    ),
    ("gemini", Surface.EMBED_CONTENT, "models/gemini-embedding-001"): (
        *(Surface.EMBED_CONTENT, "/v1beta/models/gemini-embedding-001:embedContent", None),
    ),
    ("openai", Surface.EMBED_CONTENT, "text-embedding-3-small"): (Surface.EMBEDDINGS, "/v1/embeddings", None),
    ("vertex", Surface.EMBED_CONTENTS, "gemini-embedding-2"): (
        Surface.VECTORS,
        f"/v1beta1{VERTEX}/publishers/google/models/gemini-embedding-2:embedContent",
        None,
    ),
    ("bedrock", Surface.EMBEDDINGS, "amazon.titan-embed-text-v2:0"): (
        *(Surface.VECTORS, "/model/amazon.titan-embed-text-v2%3A0/invoke", None),
    ),
    ("bedrock", Surface.EMBED_CONTENTS, "us.cohere.embed-v4:0"): (
        *(Surface.VECTORS, "/model/us.cohere.embed-v4%3A0/invoke", None),
    ),
    ("groq", Surface.GENERATE, "llama-3.3-70b"): (Surface.CHAT, "/v1/chat/completions", None),
    ("deepseek", Surface.MESSAGES, "deepseek-chat"): (Surface.MESSAGES, "/anthropic/v1/messages", None),
    ("deepseek", Surface.RESPONSES, "deepseek-chat"): (Surface.RESPONSES, "/responses", None),
    ("openrouter", Surface.MESSAGES, "anthropic/claude-opus-5"): (Surface.MESSAGES, "/v1/messages", None),
    ("zai", Surface.CHAT, "glm-5"): (Surface.CHAT, "/paas/v4/chat/completions", None),
    ("perplexity", Surface.MESSAGES, "sonar"): (Surface.RESPONSES, "/v1/responses", None),
    ("perplexity", Surface.RESPONSES, "openai/gpt-6"): (Surface.RESPONSES, "/v1/responses", None),
    ("vllm", Surface.MESSAGES, "qwen"): (Surface.CHAT, "/v1/chat/completions", None),
}


@pytest.mark.parametrize(("provider", "surface", "model"), TARGETS)
def test_target_is_where_the_provider_has_the_api(provider: str, surface: Surface, model: str) -> None:
    """The client's own API where the provider has it; otherwise the one that others are translated into."""
    api, path, stream = TARGETS[provider, surface, model]

    plain = target_call(PROVIDERS[provider], GIVEN, surface, model)
    streamed = target_call(PROVIDERS[provider], GIVEN, surface, model, stream=True)

    assert plain is not None and streamed is not None
    assert (plain.api, plain.target.decode()) == (api, path)
    assert (streamed.api, streamed.target.decode()) == (api, stream or path)


def test_envelopes_are_those_of_claude_elsewhere_and_of_dated_azure() -> None:
    """Only requests in the dialect's own form have one."""

    def envelope(provider: str, surface: Surface, model: str, **more: str) -> Envelope:
        call = target_call(PROVIDERS[provider], GIVEN | more, surface, model)
        assert call is not None
        return call.envelope

    assert envelope("vertex", Surface.MESSAGES, "claude-opus-5") is Envelope.CLAUDE_VERTEX
    assert envelope("vertex", Surface.COUNT_MESSAGES, "claude-opus-5") is Envelope.CLAUDE_VERTEX_COUNT
    assert envelope("bedrock", Surface.MESSAGES, CLAUDE) is Envelope.CLAUDE_BEDROCK
    assert envelope("bedrock", Surface.CHAT, CLAUDE) is Envelope.NONE
    assert envelope("azure", Surface.CHAT, "gpt", api_version="2024-10-21") is Envelope.AZURE_DATED
    assert envelope("azure", Surface.CHAT, "gpt", api_version="preview") is Envelope.NONE
    assert envelope("foundry", Surface.MESSAGES, "claude-opus-5") is Envelope.NONE


def test_version_of_azure_is_in_the_query_and_a_dated_one_in_the_path() -> None:
    """Without one there is no query."""
    row = PROVIDERS["azure"]
    dated = target_call(row, {"api_version": "2024-10-21"}, Surface.CHAT, "my gpt", query=b"api-version=1&a=b")
    preview = target_call(row, {"api_version": "preview"}, Surface.RESPONSES, "gpt", query=b"api-version=1&a=b")

    assert dated is not None and preview is not None
    assert dated.target == b"/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    assert preview.target == b"/openai/v1/responses?a=b&api-version=preview"


@pytest.mark.parametrize("provider", ["azure", "foundry", "openai", "groq"])
def test_version_that_a_client_names_is_not_of_our_path(provider: str) -> None:
    """W5: Azure's SDKs name one in each request; at the paths of v1 it is a 400."""
    for query in (b"api-version=2024-10-21&a=b", b"a=b&API%2DVersion=1", b"a=b"):
        call = target_call(PROVIDERS[provider], {}, Surface.CHAT, "gpt-4o", query=query)
        assert call is not None and call.target.endswith(b"/chat/completions?a=b")


def test_version_goes_up_to_a_server_without_a_provider() -> None:
    """W5: it may be a proxy of Azure, whose paths nobody here knows."""
    row = PROVIDERS["openai-compatible"]
    call = target_call(row, {}, Surface.CHAT, "m", apis=(Surface.CHAT,), query=b"api-version=2024-10-21")
    assert call is not None and call.target == b"/v1/chat/completions?api-version=2024-10-21"


def test_query_of_the_client_goes_up_without_credentials_and_only_with_its_own_dialect() -> None:
    """Gemini's clients put keys there; what one dialect asks means nothing in another."""
    row = PROVIDERS["gemini"]
    query = b"alt=sse&key=AIza-secret&%6Bey=again&&a=b&$fields=a"
    native = target_call(row, {}, Surface.GENERATE, "g", stream=True, query=query)
    crossing = target_call(row, {}, Surface.CHAT, "g", stream=True, query=query)

    assert native is not None and crossing is not None
    assert native.target.partition(b"?")[2] == b"alt=sse&a=b"
    assert crossing.target.partition(b"?")[2] == b"alt=sse"


def test_upstream_without_a_provider_is_asked_as_the_client_asked() -> None:
    """Whatever the path; unless the upstream says which APIs it has."""
    row = PROVIDERS["openai-compatible"]

    assert all(target_call(row, {}, surface, "m") is None for surface in Surface)
    call = target_call(row, {}, Surface.MESSAGES, "m", apis=[Surface.RESPONSES, Surface.CHAT])
    assert call is not None and call.api is Surface.CHAT


def test_apis_of_an_upstream_stand_in_place_of_the_usual_ones() -> None:
    """Newer servers have more of them; a proxy may have fewer."""
    row = PROVIDERS["vllm"]
    messages = target_call(row, {}, Surface.MESSAGES, "m", apis=[Surface.CHAT, Surface.MESSAGES])
    responses = target_call(row, {}, Surface.CHAT, "m", apis=[Surface.RESPONSES])

    assert messages is not None and messages.api is Surface.MESSAGES
    assert responses is not None and responses.api is Surface.RESPONSES
    assert target_call(row, {}, Surface.EMBEDDINGS, "m", apis=[Surface.RESPONSES]) is None
    for surface, path in ((Surface.RESPONSES, "/v1/responses"), (Surface.MESSAGES, "/v1/messages")):
        usual = target_call(PROVIDERS["together"], {}, surface, "m")
        own = target_call(PROVIDERS["together"], {}, surface, "m", apis=[Surface.CHAT, surface])
        assert usual is not None and usual.api is Surface.CHAT
        assert own is not None and (own.api, own.target) == (surface, path.encode())
    # OpenAI's form can't be put into Google's, which no model has alone.
    gemini = PROVIDERS["gemini"]
    assert target_call(gemini, {}, Surface.EMBEDDINGS, "m", apis=[Surface.EMBED_CONTENTS]) is None


@pytest.mark.parametrize("model", ["", ".", "..", "a/../b", "../x", "a\\..\\b", "x" * 2049, "\ud800"])
def test_name_that_can_be_no_segment_is_refused(model: str) -> None:
    """A server could take dot segments for another path, decoded or not."""
    with pytest.raises(TargetError):
        target_call(PROVIDERS["bedrock"], GIVEN, Surface.CHAT, model)


@given(model=st.text(min_size=1, max_size=60), row=st.sampled_from(ROWS), surface=st.sampled_from(list(Surface)))
def test_name_of_a_model_never_leaves_its_segment(model: str, row: Provider, surface: Surface) -> None:
    """Its characters are escaped; the path has as many segments as with any other name."""
    try:
        call = target_call(row, GIVEN, surface, model)
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
        assert family.crossing is None or family.crossing in family.native
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


def test_surfaces_are_said_for_each_family_that_can_apply() -> None:
    """A dated version of Azure has families of its own."""
    v1 = list(surfaces(PROVIDERS["azure"], {}))
    dated = list(surfaces(PROVIDERS["azure"], {"api_version": "2024-10-21"}))

    assert [models[:1] for models, _, _ in v1] == [("*-codex*",), ("gpt-5*",), ()]
    assert dated == [((), (Surface.CHAT, Surface.RESPONSES, Surface.EMBEDDINGS), Surface.CHAT)]


def test_rules_of_users_come_last() -> None:
    """Field by field."""
    row = PROVIDERS["anthropic"]
    own = [ModelRule(("claude-next*",), (("max_output", 7),)), ModelRule(("*",), (("prefill", False),), ("gemini",))]

    facts = facts_of(row, "claude-next-1", own)

    assert (facts.max_output, facts.thinking) == (7, "adaptive")
    assert facts.prefill == facts_of(row, "claude-next-1").prefill
