"""The strict fakes refuse turns of calls and results that the vendors refuse, in the vendors' words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vendors import anthropic, converse, gemini, openai
from tests.vendors.vendor import VendorRequest

CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
BEDROCK_USE: dict[str, Any] = {"toolUse": {"toolUseId": "c1", "name": "look", "input": {}}}
BEDROCK_RESULT: dict[str, Any] = {"toolResult": {"toolUseId": "c1", "content": [{"text": "cold"}]}}
BEDROCK_TOOLS = {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]}
GOOGLE_CALL: dict[str, Any] = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2ln"}
GOOGLE_RESULT: dict[str, Any] = {"functionResponse": {"name": "look", "response": {"result": "cold"}}}


def said(vendor: Any, path: str, body: dict[str, Any]) -> str:
    """Return what a vendor says of a request; "" where it answers."""
    headers = {"authorization": "Bearer k", "anthropic-version": "2023-06-01", "x-goog-api-key": "k"}
    reply = vendor.refuse(VendorRequest("POST", path, json.dumps(body).encode(), headers))
    assert reply is None or reply.status == 400
    return "" if reply is None else reply.body.decode()


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        ([{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "cold"}], ""),
        ([{"role": "assistant", "tool_calls": [CALL]}], "did not have response messages: c1"),
        ([{"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": "?"}], "did not have response"),
        ([{"role": "tool", "tool_call_id": "c1", "content": "cold"}], "must be a response to a preceeding message"),
    ],
)
def test_chat(messages: list[Any], refusal: str) -> None:
    found = said(openai, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Go."}, *messages]})
    assert refusal in found and bool(refusal) == bool(found)


@pytest.mark.parametrize(
    ("items", "refusal"),
    [
        (
            [
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "cold"},
            ],
            "",
        ),
        (
            [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}],
            "No tool output found for function call c1.",
        ),
        (
            [{"type": "function_call_output", "call_id": "c1", "output": "cold"}],
            "No tool call found for function call output with call_id c1.",
        ),
    ],
)
def test_responses(items: list[Any], refusal: str) -> None:
    found = said(openai, "/v1/responses", {"input": items})
    assert refusal in found and bool(refusal) == bool(found)
    assert not said(openai, "/v1/responses", {"input": items[-1:], "previous_response_id": "resp_1"}), "it is kept"


@pytest.mark.parametrize(
    ("turns", "more", "refusal"),
    [
        ([[USE], [{"type": "tool_result", "tool_use_id": "c1", "content": "cold"}]], {}, ""),
        ([[USE], [{"type": "text", "text": "?"}]], {}, "were found without `tool_result` blocks immediately after: c1"),
        (
            [[{"type": "text", "text": "So"}], [{"type": "tool_result", "tool_use_id": "c1", "content": "cold"}]],
            {},
            "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: c1",
        ),
        (
            [[USE], [{"type": "tool_result", "tool_use_id": "c1", "content": "cold"}]],
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
        ),
        ([[{"type": "text", "text": ""}], [{"type": "text", "text": "?"}]], {}, "must be non-empty"),
    ],
)
def test_messages(turns: list[Any], more: dict[str, Any], refusal: str) -> None:
    messages = [{"role": "user", "content": "Go."}]
    messages += [{"role": ("assistant", "user")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 2048, "messages": messages, **more}
    found = said(anthropic, "/v1/messages", body)
    assert refusal in found and bool(refusal) == bool(found)


@pytest.mark.parametrize(
    ("turns", "more", "refusal"),
    [
        ([[GOOGLE_CALL], [GOOGLE_RESULT]], {}, ""),
        ([[GOOGLE_CALL], [GOOGLE_RESULT, GOOGLE_RESULT]], {}, "is equal to the number of function call parts"),
        ([[GOOGLE_CALL], [{"text": "?"}]], {}, "is equal to the number of function call parts"),
        ([[{"functionCall": {"name": "look", "args": {}}}], [GOOGLE_RESULT]], {}, "missing a thought_signature"),
        ([[{"text": "So"}], []], {}, "contents.parts must not be empty"),
        ([[{"thoughtSignature": "c2ln"}], [{"text": "?"}]], {}, "must have one initialized field"),
        ([[{"text": "So"}], [{"text": "?"}]], {"metadata": {}}, 'Unknown name \\"metadata\\"'),
        ([[{"text": "So"}], [{"text": "?"}]], {"generation_config": {"top_k": 1, "store": 1}}, 'name \\"store\\"'),
    ],
)
def test_generate_content(turns: list[Any], more: dict[str, Any], refusal: str) -> None:
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Go."}]}]
    contents += [{"role": ("model", "user")[n % 2], "parts": turn} for n, turn in enumerate(turns)]
    path = "/v1beta/models/gemini-3-pro-preview:generateContent"
    found = said(gemini, path, {"contents": contents, **more})
    assert refusal in found and bool(refusal) == bool(found)


def test_earlier_turns_of_gemini_need_no_signature() -> None:
    """Only the current turn's calls are checked, which begins behind the last text of the user."""
    turns: list[Any] = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {"role": "user", "parts": [GOOGLE_RESULT]},
        {"role": "model", "parts": [{"text": "Cold."}]},
        {"role": "user", "parts": [{"text": "And now?"}]},
    ]
    assert not said(gemini, "/v1beta/models/gemini-3-pro-preview:generateContent", {"contents": turns})


@pytest.mark.parametrize(
    ("turns", "more", "refusal"),
    [
        ([[BEDROCK_USE], [BEDROCK_RESULT]], {"toolConfig": BEDROCK_TOOLS}, ""),
        ([[BEDROCK_USE], [BEDROCK_RESULT]], {}, "The toolConfig field must be defined"),
        ([[BEDROCK_USE], [BEDROCK_RESULT, {"text": "?"}]], {"toolConfig": BEDROCK_TOOLS}, "cannot be provided in the"),
        ([[BEDROCK_USE], [BEDROCK_RESULT] * 2], {"toolConfig": BEDROCK_TOOLS}, "exceeds the number of toolUse blocks"),
        ([[BEDROCK_USE], [{"text": "?"}]], {"toolConfig": BEDROCK_TOOLS}, "Expected toolResult blocks at messages.2"),
        ([[{"text": " "}], [{"text": "?"}]], {}, "is blank"),
        ([[{"text": "So"}]], {}, "must end with a user message"),
        ([[{"text": "So"}], [{"text": "?"}]], {"metadata": {}}, "metadata"),
    ],
)
def test_converse(turns: list[Any], more: dict[str, Any], refusal: str) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"text": "Go."}]}]
    messages += [{"role": ("assistant", "user")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    found = said(
        converse, "/model/us.meta.llama4-maverick-17b-instruct-v1%3A0/converse", {"messages": messages, **more}
    )
    assert refusal in found and bool(refusal) == bool(found)


def test_nova_takes_a_text_behind_results() -> None:
    """As it was recorded."""
    messages: list[Any] = [{"role": "user", "content": [{"text": "Go."}]}]
    messages += [
        {"role": "assistant", "content": [BEDROCK_USE]},
        {"role": "user", "content": [BEDROCK_RESULT, {"text": "?"}]},
    ]
    body = {"messages": messages, "toolConfig": BEDROCK_TOOLS}
    assert not said(converse, "/model/us.amazon.nova-pro-v1%3A0/converse", body)
