"""What a translated reply tells of its tokens: all that the upstream says, whatever the client's API has room for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.dialects.test_converse_stream import event
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.gateway.translation.translators import GenerationTranslator
from velox.protocol.usage.reader import BodyUsage, StreamUsage
from velox.protocol.usage.token_usage import Bill, TokenUsage, Units
from velox.providers.model_facts import ModelFacts
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

TABLE = dialect_table()
CLIENTS = (ApiKind.CHAT, ApiKind.RESPONSES, ApiKind.MESSAGES, ApiKind.GENERATE)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        (b"event: " + each["type"].encode() + b"\n" if "type" in each else b"")
        + b"data: "
        + json.dumps(each).encode()
        + b"\n\n"
        for each in events
    )


def modality(**counts: int) -> list[dict[str, object]]:
    return [{"modality": name, "tokenCount": n} for name, n in counts.items()]


CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 90, "image_tokens": 3},
    "completion_tokens_details": {"image_tokens": 15, "audio_tokens": 2},
}
CHAT_KINDS = TokenUsage(100, 20, 5, audio_input=90, audio_output=2, image_input=3, image_output=15, tier="priority")
# What is told beside the count of the prompt is of the prompt: Mistral's sound, what Grok at Azure read from its cache.
BESIDE: list[tuple[dict[str, Any], TokenUsage]] = [
    (
        {
            "prompt_audio_seconds": 12,
            "prompt_tokens": 9,
            "completion_tokens": 248,
            "total_tokens": 632,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 375},
        },
        TokenUsage(384, 248, 0, audio_input=375),
    ),
    (
        {"prompt_audio_seconds": 30, "prompt_tokens": 9, "completion_tokens": 248, "total_tokens": 632},
        TokenUsage(384, 248, audio_input=375),
    ),
    (
        {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 161},
        },
        TokenUsage(171, 7, 161),
    ),
    (
        {
            "prompt_tokens": 500,
            "completion_tokens": 7,
            "total_tokens": 668,
            "prompt_tokens_details": {"cached_tokens": 161},
        },
        TokenUsage(661, 7, 161),
    ),
    # Not so: a total that counts reasoning, a length of sound that is null.
    (
        {
            "prompt_audio_seconds": None,
            "prompt_tokens": 500,
            "completion_tokens": 7,
            "total_tokens": 600,
            "prompt_tokens_details": {"cached_tokens": 161},
            "completion_tokens_details": {"reasoning_tokens": 93},
        },
        TokenUsage(500, 100, 161, reasoning=93),
    ),
    (
        {
            "prompt_tokens": 500,
            "completion_tokens": 7,
            "total_tokens": 668,
            "prompt_tokens_details": {"cached_tokens": 161},
            "completion_tokens_details": {"reasoning_tokens": 161},
        },
        TokenUsage(500, 168, 161, reasoning=161),
    ),
]
BILLED_CHAT = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "cost": 0.0133176, "is_byok": False},
}
BILLED_KINDS = TokenUsage(100, 20, bill=Bill(13_317_600_000, "openrouter"))
RESPONSE: dict[str, Any] = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "model": "m",
    "service_tier": "flex",
    "output": [
        {
            "type": "message",
            "id": "o",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        }
    ],
    "usage": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120},
}
BILLED_RESPONSE = {**RESPONSE, "usage": {**RESPONSE["usage"], "cost_in_usd_ticks": 70}}
MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 100, "output_tokens": 20, "service_tier": "batch", "inference_geo": "us"},
}
CANDIDATE = {"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP", "index": 0}
GEMINI = {
    "candidates": [CANDIDATE],
    "modelVersion": "m",
    "usageMetadata": {
        "promptTokenCount": 100,
        "candidatesTokenCount": 20,
        "cachedContentTokenCount": 8,
        "promptTokensDetails": modality(TEXT=6, AUDIO=90, IMAGE=4),
        "cacheTokensDetails": modality(AUDIO=8),
        "candidatesTokensDetails": modality(IMAGE=19, AUDIO=1),
        "serviceTier": "FLEX",
    },
}
GEMINI_KINDS = TokenUsage(
    100,
    20,
    8,
    audio_input=90,
    audio_cached=8,
    audio_output=1,
    image_input=4,
    image_output=19,
    image_cached=0,
    tier="flex",
)
VERTEX = {
    "candidates": [CANDIDATE],
    "modelVersion": "m",
    "usageMetadata": {
        "promptTokenCount": 100,
        "candidatesTokenCount": 20,
        "trafficType": "ON_DEMAND_PRIORITY",
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": None}],  # which nobody can read
    },
}
# An answer that Google's filters took away has no count of its own.
FILTERED = {
    "candidates": [{"content": {}, "finishReason": "SAFETY"}],
    "modelVersion": "m",
    "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100},
}
CHUNK = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
CONVERSED = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120},
    "serviceTier": {"type": "priority"},
}
PLAIN: list[tuple[ApiKind, dict[str, Any], TokenUsage]] = [
    (
        ApiKind.CHAT,
        {
            "id": "c",
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
            "usage": CHAT_USAGE,
            "service_tier": "priority",
        },
        CHAT_KINDS,
    ),
    (ApiKind.CHAT, BILLED_CHAT, BILLED_KINDS),
    *((ApiKind.CHAT, {**BILLED_CHAT, "usage": usage}, kinds) for usage, kinds in BESIDE),
    (ApiKind.RESPONSES, RESPONSE, TokenUsage(100, 20, tier="flex")),
    (ApiKind.RESPONSES, BILLED_RESPONSE, TokenUsage(100, 20, tier="flex", bill=Bill(7000, "x-ai"))),
    (
        ApiKind.RESPONSES,
        {**RESPONSE, "usage": {**RESPONSE["usage"], "cost": {"currency": "USD", "total_cost": 0.00119}}},
        TokenUsage(100, 20, tier="flex", bill=Bill(1_190_000_000, "perplexity")),
    ),
    (ApiKind.MESSAGES, MESSAGE, TokenUsage(100, 20, tier="batch", is_regional=True)),
    (ApiKind.GENERATE, GEMINI, GEMINI_KINDS),
    (ApiKind.GENERATE, VERTEX, TokenUsage(100, 20, tier="priority")),
    (ApiKind.GENERATE, FILTERED, TokenUsage(100, 0)),
    (ApiKind.CONVERSE, CONVERSED, TokenUsage(100, 20, tier="priority")),
]
STREAMS: list[tuple[ApiKind, bytes, TokenUsage]] = [
    (
        ApiKind.CHAT,
        sse({**CHUNK, "service_tier": "auto"}, {"choices": [], "usage": CHAT_USAGE, "service_tier": "priority"})
        + b"data: [DONE]\n\n",
        CHAT_KINDS,
    ),
    (
        ApiKind.CHAT,
        sse(CHUNK, {"choices": [], "usage": BILLED_CHAT["usage"]}) + b"data: [DONE]\n\n",
        BILLED_KINDS,
    ),
    (
        ApiKind.RESPONSES,
        sse(
            {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": [], "usage": {}}},
            {"type": "response.completed", "response": RESPONSE},
        ),
        TokenUsage(100, 20, tier="flex"),
    ),
    (
        ApiKind.MESSAGES,
        sse(
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
            {"type": "message_stop"},
        ),
        TokenUsage(100, 20, tier="batch", is_regional=True),
    ),
    (ApiKind.GENERATE, sse(GEMINI), GEMINI_KINDS),
    (
        ApiKind.CONVERSE,
        event("messageStart", {"role": "assistant"})
        + event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}})
        + event("contentBlockStop", {"contentBlockIndex": 0})
        + event("messageStop", {"stopReason": "end_turn"})
        + event("metadata", {"usage": CONVERSED["usage"], "serviceTier": {"type": "priority"}}),
        TokenUsage(100, 20, tier="priority"),
    ),
]


def translator_of(client: ApiKind, api: ApiKind) -> GenerationTranslator:
    dropped = DroppedFields()
    model = TABLE.models[api](ModelFacts(), dropped, "openai")
    return GenerationTranslator(TABLE.clients[client](ClientCall("abc", 1, "m"), dropped), model, dropped)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("api", "reply", "kinds"), PLAIN)
def test_plain_answer_tells_all_kinds(client: ApiKind, api: ApiKind, reply: dict[str, Any], kinds: TokenUsage) -> None:
    translator = translator_of(client, api)

    translator.answer(json.dumps(reply).encode())

    assert translator.tokens == replace(kinds, model="" if api is ApiKind.CONVERSE else "m")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("api", "reply", "kinds"), STREAMS)
def test_stream_tells_all_kinds(client: ApiKind, api: ApiKind, reply: bytes, kinds: TokenUsage) -> None:
    translator = translator_of(client, api)
    stream = translator.stream()

    stream.feed(reply, True)

    assert stream.is_whole
    assert translator.tokens == replace(kinds, model="" if api is ApiKind.CONVERSE else "m")


@pytest.mark.parametrize("client", CLIENTS)
def test_beginning_of_claude_does_not_tell_how_long_the_answer_was(client: ApiKind) -> None:
    """It has one token of it: where an error ends the stream, that is not all."""
    translator = translator_of(client, ApiKind.MESSAGES)
    usage = {"input_tokens": 100, "output_tokens": 1}

    translator.stream().feed(
        sse(
            {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ),
        True,
    )

    assert translator.tokens == TokenUsage(100, None, model="m")


@pytest.mark.parametrize(("usage", "kinds"), BESIDE)
def test_parts_beside_the_count_of_a_prompt_are_of_the_prompt(usage: dict[str, Any], kinds: TokenUsage) -> None:
    """RS5, RS8: as sent, too: in a body and in a stream. Responses spells them otherwise."""
    renamed = json.dumps(usage).replace("prompt_tokens", "input_tokens").replace("completion_tokens", "output_tokens")
    for told in (usage, json.loads(renamed)):
        reader, stream = BodyUsage(), StreamUsage()
        reader.feed(json.dumps({"usage": told}).encode())
        stream.feed(sse({"choices": [], "usage": told}))
        seconds = told.get("prompt_audio_seconds")  # of a sound that is paid by its length
        assert reader.kinds() == stream.kinds() == replace(kinds, units=seconds and Units(seconds * 1000))
        assert reader.tokens() == stream.tokens() == (kinds.input, kinds.output)
