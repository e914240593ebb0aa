"""Searches of the web that a provider makes cost a fee, whichever API its client speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_ledger import usage

Entry = dict[str, Any]
CLAUDE: Entry = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "end_turn",
}
CLAUDE |= {"content": [{"type": "text", "text": "It rains."}]}
CLAUDE["usage"] = {"input_tokens": 1000, "output_tokens": 100, "server_tool_use": {"web_search_requests": 3}}
EVENTS: list[Entry] = [
    {
        "type": "message_start",
        "message": {**CLAUDE, "content": [], "usage": {"input_tokens": 1000, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": CLAUDE["usage"]},
    {"type": "message_stop"},
]
GPT: Entry = {"id": "resp_1", "object": "response", "model": "gpt-5.2", "status": "completed"}
GPT["output"] = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It rains."}]}]
GPT["usage"] = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
SEARCHED = {**GPT, "tool_usage": {"web_search": {"num_requests": 2}, "image_gen": {"total_tokens": 0}}}
# Where `tool_usage` is missing the items tell it: two searches, and a page that was opened.
CALLS = [{"type": "web_search_call", "id": f"ws_{n}", "action": {"type": "search", "query": "rain"}} for n in range(2)]
CALLS += [{"type": "web_search_call", "id": "ws_2", "action": {"type": "open_page", "url": "https://x"}}]
ITEMS = {**GPT, "output": [*CALLS, *GPT["output"]]}
DRAWN = {**GPT, "tool_usage": {"image_gen": {"output_tokens": 7000}}}


def events(*all_: Entry) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in all_)


def completed(response: Entry) -> bytes:
    return events({"type": "response.completed", "response": response})


QUESTION = [{"role": "user", "content": "weather?"}]
MESSAGES: Entry = {
    "messages": QUESTION,
    "max_tokens": 500,
    "tools": [{"type": "web_search_20250305", "name": "web_search"}],
}
RESPONSES: Entry = {"input": "weather?", "tools": [{"type": "web_search"}]}
GROUNDED = {"webSearchQueries": ["weather", "rain", ""], "groundingChunks": [{"web": {"uri": "https://x"}}]}
ANSWERED = {"content": {"role": "model", "parts": [{"text": "It rains."}]}, "finishReason": "STOP"}
GEMINI: Entry = {"modelVersion": "gemini-3-pro-preview", "candidates": [{**ANSWERED, "groundingMetadata": GROUNDED}]}
GEMINI["usageMetadata"] = {"promptTokenCount": 1000, "candidatesTokenCount": 100}
STREAM = b"data: %b\n\n" % json.dumps(GEMINI).encode()
OLDER = {**GEMINI, "modelVersion": "gemini-2.5-flash"}
GOOGLE = {"contents": [{"role": "user", "parts": [{"text": "weather?"}]}], "tools": [{"googleSearch": {}}]}
LONG = {**GOOGLE, "generationConfig": {"maxOutputTokens": 500}}
# What is asked, what the provider answers, and what that costs; None: it can't be known.
CASES: list[tuple[str, Entry, Entry | bytes, float | None]] = [
    ("/v1/responses", {"model": "claude", **RESPONSES}, CLAUDE, 0.0345),  # 3 and 15 $ a million, 3 at 0.01 $
    ("/v1/responses", {"model": "claude", "stream": True, **RESPONSES}, events(*EVENTS), 0.0345),
    ("/v1/messages", {"model": "gpt", **MESSAGES}, SEARCHED, 0.02315),  # 1.75 and 14 $, 2 at 0.01 $
    ("/v1/messages", {"model": "gpt", "stream": True, **MESSAGES}, completed(SEARCHED), 0.02315),
    ("/v1/messages", {"model": "gpt", **MESSAGES}, GPT, 0.00315),
    ("/v1/messages", {"model": "gpt", **MESSAGES}, ITEMS, 0.02315),
    ("/v1/messages", {"model": "gpt", "stream": True, **MESSAGES}, completed(ITEMS), 0.02315),
    ("/v1/responses", {"model": "gpt", **RESPONSES}, ITEMS, 0.02315),
    ("/v1/responses", {"model": "gpt", **RESPONSES}, {**ITEMS, "tool_usage": SEARCHED["tool_usage"]}, 0.02315),
    ("/v1/responses", {"model": "gpt", "stream": True, **RESPONSES}, completed(ITEMS), 0.02315),
    ("/v1/messages", {"model": "gpt", **MESSAGES}, DRAWN, None),  # by another model, which nobody names
    ("/v1/messages", {"model": "gpt", "stream": True, **MESSAGES}, completed(DRAWN), None),
    # 2 and 12 $ a million, 0.014 $ for each query; of older models 0.30 and 2.50 $, and 0.035 $ for an answer.
    ("/v1/messages", {"model": "gem", **MESSAGES}, GEMINI, 0.0312),
    ("/v1/messages", {"model": "gem", "stream": True, **MESSAGES}, STREAM, 0.0312),
    ("/v1beta/models/gem:generateContent", GOOGLE, GEMINI, 0.0312),
    ("/v1beta/models/gem:generateContent", LONG, OLDER, 0.03555),
    ("/v1beta/models/gem:streamGenerateContent?alt=sse", GOOGLE, STREAM, 0.0312),
]


def test_m12_search_has_its_fee_in_each_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """M12: it was left out of the cost, and a picture that another model made as well."""
    replies = iter([reply for _, _, reply, _ in CASES])

    async def answer(call: Call) -> None:
        reply = next(replies)
        if isinstance(reply, bytes):
            await call.head(200, SSE)
            await call.data(reply)
            await call.end()
        else:
            await call.reply(200, JSON, json.dumps(reply).encode())

    with RecordingUpstream() as upstream:
        entries = [
            {"name": name, "provider": name, "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
            for name in ("anthropic", "openai", "gemini")
        ]
        routes = [
            {"name": "claude", "match": {"models": ["claude"]}, "to": "anthropic", "model": "claude-sonnet-4-5"},
            {"name": "gem", "match": {"models": ["gem"]}, "to": "gemini", "model": "gemini-3-pro-preview"},
            {"name": "gpt", "match": {"models": ["gpt"]}, "to": "openai", "model": "gpt-5.2"},
        ]
        config = {"upstreams": entries, "routes": routes}
        version = {"anthropic-version": "2023-06-01"}
        with (
            routed(config, MODEL_KEY="sk-model-0123456789", ledger=str(tmp_path)) as velox,
            upstream.playing(answer),
        ):
            for path, request, _, _ in CASES:
                found = velox.request("POST", path, json.dumps(request).encode(), version)
                assert found.status == 200, found.body
    rows = usage(tmp_path, capsys, "--calls")
    assert [row["cost_usd"] and float(row["cost_usd"]) for row in rows] == [cost for *_, cost in CASES]
