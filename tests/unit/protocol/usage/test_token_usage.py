"""All kinds of tokens that a reply tells of, however its bytes are cut (protocol/usage/tokens.py)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from velox.protocol.usage.reader import GOOGLE_KEY, BodyUsage, StreamUsage
from velox.protocol.usage.token_usage import Bill, TokenUsage

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10, "audio_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 3},
}
OPENAI_KINDS = TokenUsage(100, 20, 60, 10, None, 7, audio_input=4, audio_output=3, tier="flex")
RESPONSES = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 7},
    "total_tokens": 120,
}
ANTHROPIC = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 60,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 20,
    "server_tool_use": {"web_search_requests": 2},
    "service_tier": "standard",
}
ANTHROPIC_KINDS = TokenUsage(100, 20, 60, 30, 20, None, web_searches=2, tier="standard")
GOOGLE = {
    "promptTokenCount": 90,
    "toolUsePromptTokenCount": 10,
    "cachedContentTokenCount": 60,
    "candidatesTokenCount": 13,
    "thoughtsTokenCount": 7,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 86}, {"modality": "AUDIO", "tokenCount": 4}],
}


def body(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def sse(*events: dict[str, object]) -> bytes:
    return b"".join(b"data: " + body(event) + b"\n\n" for event in events)


BODIES = [
    ({"choices": [{"message": {}}], "usage": OPENAI, "service_tier": "flex"}, OPENAI_KINDS),
    ({"service_tier": "flex", "choices": [{"message": {}}], "usage": OPENAI}, OPENAI_KINDS),
    (
        {
            "output": [{"service_tier": "batch"}],
            "service_tier": "priority",
            "tools": [{"service_tier": "flex"}],
            "usage": RESPONSES,
            "metadata": {"service_tier": "flex", "usage": {}},
        },
        TokenUsage(100, 20, 60, reasoning=7, tier="priority"),
    ),
    ({"type": "message", "content": [], "usage": ANTHROPIC}, ANTHROPIC_KINDS),
    ({"usage": {**ANTHROPIC, "speed": "fast"}}, replace(ANTHROPIC_KINDS, tier="fast")),
    ({"usage": {**ANTHROPIC, "inference_geo": "us"}}, replace(ANTHROPIC_KINDS, is_regional=True)),
    ({"usage": {**ANTHROPIC, "inference_geo": "global"}}, ANTHROPIC_KINDS),
    ({"usage": {**ANTHROPIC, "inference_geo": ["us"]}}, ANTHROPIC_KINDS),
    ({"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 5}}, TokenUsage(9, 1, 5)),
    ({"usage": {"prompt_tokens": 9, "completion_tokens": 1, "num_cached_tokens": 5}}, TokenUsage(9, 1, 5)),
    ({"usage": {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 5}}, TokenUsage(9, 1, 5)),
    (  # a transcription
        {
            "text": "hi",
            "usage": {
                "type": "tokens",
                "input_tokens": 100,
                "input_token_details": {"text_tokens": 10, "audio_tokens": 90},
                "output_tokens": 20,
                "total_tokens": 120,
            },
        },
        TokenUsage(100, 20, audio_input=90),
    ),
    ({"data": [], "usage": {"prompt_tokens": 12, "total_tokens": 12}}, TokenUsage(12, 0)),
    (  # the model itself has shortened the conversation
        {
            "usage": {
                **ANTHROPIC,
                "input_tokens": 9,
                "iterations": [
                    {"type": "compaction", "input_tokens": 500, "output_tokens": 50, "cache_creation_input_tokens": 0},
                    {
                        "type": "message",
                        "input_tokens": 9,
                        "output_tokens": 20,
                        "cache_creation_input_tokens": 30,
                        "cache_read_input_tokens": 60,
                    },
                ],
            }
        },
        replace(ANTHROPIC_KINDS, input=599, output=70),
    ),
    (  # another one advised it
        {
            "usage": {
                **ANTHROPIC,
                "iterations": [
                    {"type": "message", "input_tokens": 10, "output_tokens": 20},
                    {"type": "advisor_message", "model": "other", "input_tokens": 500, "output_tokens": 50},
                ],
            }
        },
        replace(ANTHROPIC_KINDS, has_others=True),
    ),
    (  # OpenRouter's
        {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "server_tool_use_details": {"web_search_requests": 2}}},
        TokenUsage(9, 1, web_searches=2),
    ),
    (  # xAI's, for which three searches worked
        {
            "usage": {
                "input_tokens": 9212,
                "input_tokens_details": {"cached_tokens": 3072},
                "output_tokens": 3417,
                "total_tokens": 12629,
                "num_server_side_tools_used": 3,
                "cost_in_usd_ticks": 318_319_000,
                "server_side_tool_usage_details": {"web_search_calls": 0, "x_search_calls": 3},
            }
        },
        TokenUsage(9212, 3417, 3072, bill=Bill(31_831_900_000, "x-ai")),
    ),
    ({"usage": {**OPENAI, "cost_in_usd_ticks": 0}}, replace(OPENAI_KINDS, tier="")),
    ({"usage": {**OPENAI, "cost_in_usd_ticks": "1"}}, replace(OPENAI_KINDS, tier="")),
    ({"usage": {**OPENAI, "cost_in_usd_ticks": -1}}, replace(OPENAI_KINDS, tier="")),
    # OpenRouter's, with its customer's key, too: its fee, and what the model's maker takes
    ({"usage": {**OPENAI, "cost": 0.0133176}}, replace(OPENAI_KINDS, tier="", bill=Bill(13_317_600_000, "openrouter"))),
    ({"usage": {**OPENAI, "cost": 0, "is_byok": False}}, replace(OPENAI_KINDS, tier="", bill=Bill(0, "openrouter"))),
    (
        {"usage": {**OPENAI, "cost": 0.95, "is_byok": True, "cost_details": {"upstream_inference_cost": 19}}},
        replace(OPENAI_KINDS, tier="", bill=Bill(19_950_000_000_000, "openrouter")),
    ),
    (
        {"usage": {**OPENAI, "cost": 0.5, "cost_in_usd_ticks": 7}},
        replace(OPENAI_KINDS, tier="", bill=Bill(500_000_000_000, "openrouter")),
    ),
    *(
        ({"usage": {**OPENAI, **told}}, replace(OPENAI_KINDS, tier=""))
        for told in (
            *({"cost": cost} for cost in (-0.1, "0.1", True, None, 1e300, {"total_cost": 0.1})),
            *(
                {"cost": 0.1, "is_byok": True, "cost_details": told}
                for told in (None, {"upstream_inference_cost": None})
            ),
        )
    ),
    (  # Perplexity's, with what its tools cost
        {
            "model": "openai/gpt-6-luna",
            "usage": {
                "input_tokens": 3007,
                "input_tokens_details": {"cache_creation_input_tokens": 1224, "cached_tokens": 1780},
                "output_tokens": 36,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 3043,
                "cost": {"currency": "USD", "output_cost": 0.00002, "tool_calls_cost": 0.001, "total_cost": 0.00119},
            },
        },
        TokenUsage(
            *(3007, 36, 1780, 1224),
            reasoning=0,
            model="openai/gpt-6-luna",
            bill=Bill(1_190_000_000, "perplexity"),
        ),
    ),
    *(
        ({"usage": {**OPENAI, "cost": {"currency": "USD", **told}}}, replace(OPENAI_KINDS, tier=""))
        for told in (
            {"total_cost": None},
            {"total_cost": "1"},
            {"total_cost": -1},
            {},
            {"total_cost": 1, "currency": "EUR"},
        )
    ),
    ({"data": [], "model": "voyage-3", "usage": {"total_tokens": 12}}, TokenUsage(12, 0, model="voyage-3")),
    ({"usage": {"prompt_tokens": True, "completion_tokens": -1}}, TokenUsage()),
    ({"error": {}}, TokenUsage()),
]


NAMED = [
    {"id": "c", "created": 1, "model": "x/y-1", "choices": [{"model": "no"}], "usage": OPENAI},
    {"id": "r", "billing": {"payer": "developer"}, "error": None, "model": "x/y-1", "output": [], "usage": OPENAI},
    {"object": "list", "data": [{"embedding": [0.5]}], "model": "x/y-1", "usage": OPENAI},
    {"object": "list", "data": [{"embedding": [0.5]}], "model": "x/y-1", "id": "e", "usage": OPENAI, "n": 1},
    {"choices": [], "tools": [{"model": "no"}], "created": 1, "model": "x/y-1", "usage": OPENAI},
    {"choices": [], "usage": OPENAI, "created": 1, "model": "x/y-1"},
    {"choices": [], "usage": OPENAI, "tools": [{"model": "no"}], "model": "x/y-1", "metadata": {"model": "no"}},
    {"model": "x/y-1", "content": [{"text": "model"}], "usage": OPENAI, "metadata": {"model": "no", "usage": {}}},
    {"choices": [{"text": "x" * 20_000}], "model": "x/y-1", "more": ["x" * 2_000], "usage": OPENAI},
    {"choices": [{"model": "no"}] * 2_000, "model": "x/y-1", "usage": OPENAI, "more": ["x" * 20_000]},
]


@pytest.mark.parametrize("document", NAMED)
@pytest.mark.parametrize("size", [1, 7, 16, 100_000])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_body_tells_the_model_that_answered(document: dict[str, object], size: int, indent: int | None) -> None:
    """At its top, wherever it stands."""
    text = json.dumps(document, indent=indent).encode()
    reader = BodyUsage()
    for at in range(0, len(text), size):
        reader.feed(text[at : at + size])
    assert reader.kinds() == replace(OPENAI_KINDS, tier="", model="x/y-1")


@pytest.mark.parametrize("n", [5_000, 127_000, 300_000])
@pytest.mark.parametrize("tier", ["flex", "priority"])
def test_tier_and_model_are_found_at_any_distance_from_the_usage(n: int, tier: str) -> None:
    """M5: a Responses answer has its tools between them, as long as the client has written them."""
    told = {"model": "x/y-1", "service_tier": tier}
    between = {"tools": [{"model": "no", "parameters": {"service_tier": "no"}}] * 3, "more": "x" * n}
    for document in ({**told, **between, "usage": OPENAI}, {"usage": OPENAI, **between, **told}):
        text = body(document)
        for cut in (100, 65_536, len(text)):
            reader = BodyUsage()
            for at in range(0, len(text), cut):
                reader.feed(text[at : at + cut])
            assert reader.kinds() == replace(OPENAI_KINDS, tier=tier, model="x/y-1")


@pytest.mark.parametrize("word", ["service_tier", "model", "usage", 'usage": {'])
@pytest.mark.parametrize("n_padding", [0, 70_000, 140_000])
def test_value_that_reads_like_a_name_is_a_value(word: str, n_padding: int) -> None:
    """M6: a client chooses what stands in `user`, `safety_identifier` and `metadata`, which a reply repeats."""
    told = {"model": "x/y-1", "service_tier": "priority", "usage": RESPONSES, "pad": "x" * n_padding}
    document = {**told, "user": word, "metadata": {word: word}, "safety_identifier": word, "prompt_cache_key": word}
    expected = TokenUsage(100, 20, 60, reasoning=7, tier="priority", model="x/y-1")
    reader, stream = BodyUsage(), StreamUsage()
    reader.feed(body(document))
    stream.feed(sse({"type": "response.completed", "response": document, "user": word}))

    assert reader.kinds() == expected
    assert stream.kinds() == expected


@pytest.mark.parametrize("n_padding", [0, 140_000])
def test_of_equal_names_the_last_one_counts_however_it_is_written(n_padding: int) -> None:
    """As in the JSON readers of all SDKs."""
    first = b'"usage":{"prompt_tokens":1},"service_tier":"flex","model":"no","pad":"%b"' % (b"x" * n_padding)
    last = b'"us\\u0061ge":{"prompt_tokens":5,"completion_tokens":7},"service_\\u0074ier":"priority","mod\\u0065l":"m"'
    expected = TokenUsage(5, 7, tier="priority", model="m")
    for text in (b"{%b,%b}" % (first, last), b"{%b,%b,%b}" % (last, first, last), b"{%b}" % last):
        reader, stream = BodyUsage(), StreamUsage()
        reader.feed(text)
        stream.feed(b"data: %b\n\n" % text)
        assert reader.kinds() == expected
        assert stream.kinds() == expected


def test_stream_tells_tier_and_model_in_another_event_than_the_usage() -> None:
    named = {"model": "x/y-1", "service_tier": "flex", "choices": []}
    for events in ([named, {"choices": []}], [{"choices": []}, named]):
        reader = StreamUsage()
        for event in (*events, {"choices": [], "usage": OPENAI}):
            reader.feed(sse(event))
        assert reader.kinds() == replace(OPENAI_KINDS, model="x/y-1")


def test_model_that_a_read_cuts_is_not_a_shorter_one() -> None:
    """`gpt-4o-mini` is no `gpt-4o`."""
    body = json.dumps({"id": "c", "model": "gpt-4o-mini", "choices": ["x" * 100], "usage": OPENAI}).encode()
    for at in range(len(body)):
        reader = BodyUsage()
        reader.feed(body[:at])
        reader.feed(body[at:])
        assert reader.kinds().model == "gpt-4o-mini"


@pytest.mark.parametrize("model", [None, 5, {"model": "x"}, "x" * 300, ""])
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_model_that_is_no_name_is_not_told(model: object, size: int) -> None:
    for document in ({"model": model, "usage": OPENAI}, {"usage": OPENAI, "model": model}):
        text = body(document)
        reader = BodyUsage()
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
        assert reader.kinds() == replace(OPENAI_KINDS, tier="")


def test_gemini_tells_the_model_that_answered() -> None:
    version = {"modelVersion": "gemini-x"}
    for document in ({"usageMetadata": GOOGLE, **version}, {**version, "candidates": [], "usageMetadata": GOOGLE}):
        reader = BodyUsage(GOOGLE_KEY)
        reader.feed(body(document))
        stream = StreamUsage(GOOGLE_KEY)
        stream.feed(sse(document))
        assert reader.kinds().model == stream.kinds().model == "gemini-x"


@pytest.mark.parametrize("n_padding", [0, 70_000])
def test_a_stream_tells_the_model_that_answered(n_padding: int) -> None:
    """In the event that has the usage, also if that is too long to be kept."""
    pad = {"pad": "x" * n_padding}
    response = {"model": "x/y-1", "output": [{"model": "no"}], **pad, "usage": RESPONSES, "metadata": {"model": "no"}}
    message = {"model": "x/y-1", "content": [], **pad, "usage": ANTHROPIC}
    for text in (
        sse({"model": "x/y-1", "choices": [{"model": "no"}], **pad, "usage": OPENAI}, {"model": "no", "choices": []}),
        sse({"type": "response.completed", "response": response, "model": "no"}),
        sse({"type": "message_start", "message": message}, {"type": "message_delta", "usage": {"output_tokens": 20}}),
    ):
        reader = StreamUsage()
        reader.feed(text)
        assert reader.kinds().model == "x/y-1"


@pytest.mark.parametrize(("document", "expected"), BODIES)
@pytest.mark.parametrize("size", [1, 7, 16, 100_000])
def test_a_body_tells_all_kinds_however_it_is_cut(document: dict[str, object], expected: TokenUsage, size: int) -> None:
    text = body(document)
    reader = BodyUsage()
    for at in range(0, len(text), size):
        reader.feed(text[at : at + size])
    assert reader.kinds() == expected
    assert reader.tokens() == (expected.input, expected.output)


def test_gemini_tells_its_modalities() -> None:
    reader = BodyUsage(GOOGLE_KEY)
    reader.feed(body({"candidates": [], "usageMetadata": GOOGLE}))
    assert reader.kinds() == TokenUsage(100, 20, 60, reasoning=7, audio_input=4)


@pytest.mark.parametrize(
    ("traffic", "tier"),
    [
        ("ON_DEMAND", ""),
        ("ON_DEMAND_PRIORITY", "priority"),
        ("ON_DEMAND_FLEX", "flex"),
        ("PROVISIONED_THROUGHPUT", ""),
        ("TRAFFIC_TYPE_UNSPECIFIED", ""),
        (None, ""),
        ({}, ""),
    ],
)
def test_vertex_tells_its_tier_as_a_kind_of_traffic(traffic: object, tier: str) -> None:
    reader = BodyUsage(GOOGLE_KEY)
    reader.feed(body({"candidates": [], "usageMetadata": {**GOOGLE, "trafficType": traffic}}))
    assert reader.kinds().tier == tier


STREAMS = [
    (
        sse(
            {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}},
            {
                "type": "message_delta",
                "usage": {
                    "output_tokens": 20,
                    "iterations": [
                        {"type": "compaction", "input_tokens": 500, "output_tokens": 50},
                        {"type": "message", "input_tokens": 99, "output_tokens": 20, "cache_read_input_tokens": 1},
                        {"type": "advisor_message", "input_tokens": 7, "output_tokens": 7},
                    ],
                },
            },
        ),
        replace(ANTHROPIC_KINDS, input=600, output=70, cached=1, written=0, has_others=True),
    ),
    (sse({"choices": [{}], "usage": None}, {"choices": [], "usage": OPENAI, "service_tier": "flex"}), OPENAI_KINDS),
    (
        sse(
            {"choices": [{}], "usage": {**OPENAI, "cost_in_usd_ticks": 5}, "service_tier": "flex"},
            {"choices": [], "usage": {**OPENAI, "cost_in_usd_ticks": 70}},
        ),
        replace(OPENAI_KINDS, bill=Bill(7000, "x-ai")),
    ),
    (
        sse(
            {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}},
            {"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 20}},
        ),
        ANTHROPIC_KINDS,
    ),
    (
        sse(
            {"type": "message_start", "message": {"usage": {**ANTHROPIC, "inference_geo": "us", "output_tokens": 1}}},
            {"type": "message_delta", "usage": {"output_tokens": 20}},
        ),
        replace(ANTHROPIC_KINDS, is_regional=True),
    ),
    (
        sse({"type": "response.completed", "response": {"service_tier": "flex", "usage": RESPONSES}}),
        TokenUsage(100, 20, 60, reasoning=7, tier="flex"),
    ),
    (  # longer than an event that is kept
        sse(
            {
                "type": "response.completed",
                "response": {"output": ["x" * 70_000], "service_tier": "flex", "usage": RESPONSES, "metadata": {}},
            }
        ),
        TokenUsage(100, 20, 60, reasoning=7, tier="flex"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), STREAMS)
@pytest.mark.parametrize("size", [13, 1_000, 100_000])
def test_a_stream_tells_all_kinds_however_it_is_cut(text: bytes, expected: TokenUsage, size: int) -> None:
    reader = StreamUsage()
    for at in range(0, len(text), size):
        reader.feed(text[at : at + size])
    assert reader.kinds() == expected
