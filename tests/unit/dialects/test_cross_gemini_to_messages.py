"""A tool that Gemini calls, streamed to a client of Anthropic's Messages."""

from __future__ import annotations

import json

import pytest

from tests.recorded import Exchange, recorded
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import ClientCall
from velox.dialects.facts.model_facts import ModelFacts
from velox.gateway.translation.translators import GenerationTranslator
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind

ASK = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
CALLING = [e for e in recorded("gemini", ":streamGenerateContent", stream=True) if b'"functionCall"' in e.reply]


@pytest.mark.parametrize("exchange", CALLING, ids=str)
def test_pitfall_04_a_stream_of_gemini_delivers_its_arguments(exchange: Exchange) -> None:
    """Its parts come whole, and a Messages client puts them together from deltas."""
    dropped, made = DroppedFields(), dialect_table()
    client = made.clients[ApiKind.MESSAGES](ClientCall("0a1b2c", 1_790_000_000, "m", True), dropped)
    translator = GenerationTranslator(client, made.models[ApiKind.GENERATE](ModelFacts(), dropped, "gemini"), dropped)
    translator.request(ASK, "m")
    text = translator.stream().feed(exchange.reply, True)

    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: ")]
    opened = {e["index"]: e["content_block"] for e in events if e["type"] == "content_block_start"}
    calls: dict[int, str] = {n: "" for n, block in opened.items() if block["type"] == "tool_use"}
    for event in events:
        if event["type"] == "content_block_delta" and event["index"] in calls:
            calls[event["index"]] += event["delta"].get("partial_json", "")
    theirs = [
        part["functionCall"]
        for line in exchange.reply.splitlines()
        if line.startswith(b"data: ")
        for candidate in json.loads(line[6:])["candidates"]
        for part in candidate["content"].get("parts", ())
        if "functionCall" in part
    ]
    assert [(opened[n]["name"], json.loads(arguments)) for n, arguments in calls.items()] == [
        (call["name"], call["args"]) for call in theirs
    ]
