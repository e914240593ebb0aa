"""The ways to write a reply: where usage, tier and model stand, how they are spelled, and what looks like them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.exam.paper import Case, plain

__all__ = ["CASES"]

CHAT: Final[dict[str, Any]] = {
    "prompt_tokens": 120_000,
    "completion_tokens": 3001,
    "total_tokens": 123_001,
    "prompt_tokens_details": {"cached_tokens": 777, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 111, "audio_tokens": 0},
}
RESPONSES: Final[dict[str, Any]] = {
    "input_tokens": 100_000,
    "input_tokens_details": {"cached_tokens": 501},
    "output_tokens": 10_001,
    "output_tokens_details": {"reasoning_tokens": 9001},
    "total_tokens": 110_001,
}
MESSAGES: Final[dict[str, Any]] = {
    "input_tokens": 1003,
    "cache_creation_input_tokens": 307,
    "cache_read_input_tokens": 50_021,
    "cache_creation": {"ephemeral_5m_input_tokens": 107, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 409,
    "service_tier": "standard",
}
GENERATE: Final[dict[str, Any]] = {
    "promptTokenCount": 9007,
    "toolUsePromptTokenCount": 101,
    "cachedContentTokenCount": 303,
    "candidatesTokenCount": 77,
    "thoughtsTokenCount": 1301,
    "totalTokenCount": 10_486,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9007}],
}
MESSAGE: Final = {"role": "assistant", "content": "Hello from afar."}
CHOICES: Final = [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]
SCHEMA: Final = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"usage": {"type": "object", "properties": {}}, "model": {}}},
}


def response(tier: object = "priority", **more: Any) -> dict[str, Any]:
    """Return a Responses answer in OpenAI's order of fields: much stands between the tier and the usage."""
    document = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "background": False,
        "billing": {"payer": "developer"},
        "error": None,
        "instructions": None,
        "model": "exam",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}],
        "service_tier": tier,
        "store": True,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "usage": RESPONSES,
        "user": None,
        "metadata": {},
    }
    return {**document, **more}


def completion(**more: Any) -> dict[str, Any]:
    """Return a chat completion."""
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "exam", "choices": CHOICES, **more}


def indented(document: dict[str, Any]) -> bytes:
    """Write as OpenAI's API does."""
    return json.dumps(document, indent=2).encode()


def _spellings() -> Iterator[Case]:
    yield Case("compact", plain(completion(usage=CHAT)))
    yield Case("indented", plain(indented(completion(usage=CHAT))))
    yield Case("in pieces of a byte", plain(completion(usage=CHAT)).cut(1))
    for tier in ("flex", "priority", "batch", "default", "auto", "standard", "on_demand", None):
        yield Case(f"tier {tier} behind the usage", plain(completion(usage=CHAT, service_tier=tier)))
        yield Case(f"tier {tier} before the usage", plain({"service_tier": tier, **completion(usage=CHAT)}))
        yield Case(f"tier {tier}", plain(response(tier)), "responses")
    yield Case("another model answered", plain({**completion(usage=CHAT), "model": "exam-big"}))


CASES: Final[tuple[Case, ...]] = (*_spellings(),)
