"""What Velox wrote into a history for one provider, and another one gets: nothing of it, and all else as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.dialects.as_sent.foreign_history import (
    RefusedReasoning,
    has_encrypted_reasoning,
    without_encrypted_reasoning,
    without_foreign,
)
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.model import Answer, Block, ClientCall, Signature, Stop, StopReason, ToolUse
from velox.dialects.canonical.signatures import tagged, tagged_base64
from velox.dialects.chat.reasoning import id_with_thought, signature_detail, thinking_detail
from velox.dialects.facts.model_facts import UNKNOWN_MODEL, ModelFacts
from velox.dialects.generate.write_reply import GenerateClient
from velox.dialects.streams.events import events_of
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

GOOGLES = Signature("google", "R09PR0xF")
OPENAIS = Signature("openai", "gAAAA", "rs_1")
CLAUDES = Signature("anthropic", "EqAB")
USER = {"role": "user", "content": [{"type": "text", "text": "Hi é"}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"big": 123456789012345678901234567890}}


def own(client_api: ApiKind, body: object, facts: ModelFacts = UNKNOWN_MODEL, provider: str = "openai") -> Any:
    return json.loads(without_foreign(json.dumps(body).encode(), client_api, facts, PROVIDERS[provider].traits))


def thought(signature: Signature) -> dict[str, str]:
    return {"type": "thinking", "thinking": "hm", "signature": tagged(signature)}


# -- Messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_api", [ApiKind.MESSAGES, ApiKind.COUNT_MESSAGES])
def test_claude_gets_only_its_own_thinking(client_api: ApiKind) -> None:
    redacted = {"type": "redacted_thinking", "data": tagged(OPENAIS, is_redacted=True)}
    claudes = {"type": "thinking", "thinking": "well", "signature": "EqAB"}
    said = {"type": "text", "text": "velox. is what I say, and velox.openai.rs_1.x too"}
    message = {"role": "assistant", "content": [thought(GOOGLES), claudes, redacted, said, CALL]}
    body = {"model": "claude-x", "messages": [USER, message, RESULT], "top": 1.50}

    assert own(client_api, body, provider="anthropic") == {
        **body,
        "messages": [USER, {"role": "assistant", "content": [claudes, said, CALL]}, RESULT],
    }


def test_message_of_foreign_thinking_alone_goes() -> None:
    body = {"messages": [USER, {"role": "assistant", "content": [thought(GOOGLES)]}, USER]}

    assert own(ApiKind.MESSAGES, body) == {"messages": [USER, USER]}


CLAUDE = ModelFacts(thinking="adaptive")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_claude_gets_no_thinking_that_nobody_signed(separators: tuple[str, str]) -> None:
    """Most models of Chat Completions don't sign: their thinking has an empty signature, which Anthropic refuses."""
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    signed = {"type": "thinking", "thinking": "", "signature": "EqAB"}
    said = {"type": "text", "text": '"signature":"" is what I say', "signature": ""}
    messages = [
        USER,
        {"role": "assistant", "content": [unsigned, said]},
        USER,
        {"role": "assistant", "content": [said]},
    ]
    body = {"messages": [*messages, USER, {"role": "assistant", "content": [signed, unsigned, CALL]}, RESULT]}
    text = json.dumps(body, separators=separators).encode()

    found = json.loads(without_foreign(text, ApiKind.MESSAGES, CLAUDE, PROVIDERS["anthropic"].traits))
    assert [message["content"] for message in found["messages"] if message["role"] == "assistant"] == [
        [said],
        [said],
        [signed, CALL],
    ]
    # Others that speak the dialect do not sign themselves.
    assert without_foreign(text, ApiKind.MESSAGES, ModelFacts(thinking="toggle"), PROVIDERS["zai"].traits) is text


@pytest.mark.parametrize("thinking", ["adaptive", "always", "between_tools", "budget"])
def test_each_model_of_claudes_gets_no_thinking_that_nobody_signed(thinking: str) -> None:
    unsigned, said = {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Hi"}
    body = {"messages": [USER, {"role": "assistant", "content": [unsigned, said]}, USER]}

    found = own(ApiKind.MESSAGES, body, ModelFacts(thinking=thinking), "anthropic")
    assert found["messages"][1]["content"] == [said]


def test_thinking_with_a_budget_is_off_while_calls_stand_after_thinking_that_nobody_signed() -> None:
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    body = {
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "messages": [USER, {"role": "assistant", "content": [unsigned, CALL]}, RESULT],
    }

    found = own(ApiKind.MESSAGES, body, ModelFacts(thinking="budget"), "anthropic")
    assert found["thinking"] == {"type": "disabled"}
    assert found["messages"][1]["content"] == [CALL]


@pytest.mark.parametrize(
    ("after", "thinking"), [([], "disabled"), ([RESULT], "disabled"), ([RESULT, USER], "enabled"), ([USER], "enabled")]
)
def test_thinking_with_a_budget_is_off_while_calls_stand_without_theirs(after: list[object], thinking: str) -> None:
    """Anthropic refuses results of calls before which no thinking stands, until the user speaks again."""
    body = {
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "messages": [USER, {"role": "assistant", "content": [thought(OPENAIS), CALL]}, *after],
    }

    found = own(ApiKind.MESSAGES, body)
    assert found["thinking"]["type"] == thinking
    assert ("context_management" in found) == (thinking == "enabled")


def test_adaptive_thinking_stays() -> None:
    body = {
        "thinking": {"type": "adaptive"},
        "messages": [USER, {"role": "assistant", "content": [thought(OPENAIS), CALL]}, RESULT],
    }

    assert own(ApiKind.MESSAGES, body)["thinking"] == {"type": "adaptive"}


# -- Responses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_api", [ApiKind.RESPONSES, ApiKind.COUNT_RESPONSES])
def test_openai_gets_only_its_own_reasoning(client_api: ApiKind) -> None:
    foreign = {"type": "reasoning", "id": "rs_v", "summary": [], "encrypted_content": tagged(CLAUDES)}
    openais = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    body = {"model": "gpt-5", "input": [{"role": "user", "content": "Hi"}, foreign, openais, call]}

    assert own(client_api, body) == {"model": "gpt-5", "input": [{"role": "user", "content": "Hi"}, openais, call]}


def test_openai_gets_no_reasoning_of_others_that_nobody_signed() -> None:
    """It answers 404 to an id that is not its own, and 400 to an item with neither an id nor a signature."""
    summary = [{"type": "summary_text", "text": "hm"}]
    unsigned = {"type": "reasoning", "id": "rs_vx0a1b2c0", "summary": summary}
    codexs = {"type": "reasoning", "summary": summary, "content": None, "encrypted_content": None}
    shown = {**codexs, "content": [{"type": "reasoning_text", "text": "hm"}]}
    kept = {"type": "reasoning", "id": "rs_0a1b", "summary": [], "encrypted_content": None}
    said = {"role": "user", "content": 'rs_vx and "encrypted_content":null'}
    body = {"input": [said, unsigned, codexs, shown, kept, said]}

    assert own(ApiKind.RESPONSES, body) == {"input": [said, shown, kept, said]}
    # Others may read a summary.
    assert own(ApiKind.RESPONSES, body, provider="deepseek") == {"input": [said, codexs, shown, kept, said]}


def test_input_that_is_a_text_stays() -> None:
    body = {"model": "gpt-5", "input": "What is velox.anthropic..EqAB?"}

    assert own(ApiKind.RESPONSES, body) == body


# -- Gemini -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["thoughtSignature", "thought_signature"])
@pytest.mark.parametrize(
    ("thinking", "left"), [("level", {"signature": "skip_thought_signature_validator"}), ("thinking_budget", {})]
)
def test_gemini_gets_only_its_own_signatures(name: str, thinking: str, left: dict[str, str]) -> None:
    """A call of another model needs a value in its place, where the model checks."""
    call = {"functionCall": {"name": "f", "args": {}}}
    parts = [
        {"text": "hm", "thought": True, name: tagged_base64(CLAUDES)},
        {"text": "So", name: tagged_base64(OPENAIS)},
        {"text": "own", name: "R09PR0xF"},
        {**call, name: tagged_base64(OPENAIS)},
    ]
    contents = [{"role": "model", "parts": parts}, {"role": "model", "parts": parts[:1]}]
    wanted = [{"text": "So"}, parts[2], {**call, **({name: left["signature"]} if left else {})}]
    facts = ModelFacts(thinking=thinking)

    assert own(ApiKind.GENERATE, {"contents": contents}, facts) == {"contents": [{"role": "model", "parts": wanted}]}
    inner = {"generateContentRequest": {"contents": contents, "model": "models/m"}}
    assert own(ApiKind.COUNT_GENERATE, inner, facts)["generateContentRequest"] == {
        "contents": [{"role": "model", "parts": wanted}],
        "model": "models/m",
    }


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("thinking", "signature"), [("level", "skip_thought_signature_validator"), ("none", None)])
def test_gemini_gets_calls_of_models_that_sign_none(is_stream: bool, thinking: str, signature: str | None) -> None:
    """Gemini 3 answers 400 to a turn whose first call has no signature, and Claude does not sign calls."""
    calls: list[Block] = [ToolUse("a", "f", b"{}"), ToolUse("b", "f", b"{}")]
    answer = Answer("m", "claude", calls, Stop(StopReason.TOOLS))
    client = GenerateClient(ClientCall("vx1", 1, "m", stream=is_stream), DroppedFields())
    written = client.answer(answer)
    if is_stream:
        writer = client.stream()
        written = b"".join(writer.write(event) for event in events_of(answer))
    chunks = [line.removeprefix(b"data: ") for line in written.splitlines() if line]
    parts = [part for each in chunks for part in json.loads(each)["candidates"][0]["content"]["parts"]]
    parts = [part for part in parts if "functionCall" in part]
    results = [{"functionResponse": {"id": each, "name": "f", "response": {}}} for each in "ab"]
    body = {
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": parts},
            {"role": "user", "parts": results},
        ]
    }

    first, second = own(ApiKind.GENERATE, body, ModelFacts(thinking=thinking), "gemini")["contents"][1]["parts"]
    assert (first.get("thoughtSignature"), second.get("thoughtSignature")) == (signature, None)
    request = GenerateClient(ClientCall("vx2", 1, "m"), DroppedFields(strict=True)).read(json.dumps(body).encode())
    assert request.messages[1].blocks == calls


# -- Chat -------------------------------------------------------------------------------------------


def history() -> dict[str, Any]:
    """Return an assistant's message as a Chat client has it of a translated answer, with the result of its call."""
    call_id = id_with_thought("call_1", GOOGLES)
    details = [
        json.loads(thinking_detail(CLAUDES, 0, n_characters=2)),
        json.loads(signature_detail(Signature("mistral", "s"), 1, None)),
    ]
    return {
        "messages": [
            {"role": "user", "content": "reasoning_content and __thought__ are words"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "reasoning_details": details,
                "tool_calls": [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": call_id, "content": "42"},
        ]
    }


@pytest.mark.parametrize(
    ("field", "left"),
    [
        ("", {}),
        ("thinking", {}),
        ("reasoning", {"reasoning": "hm"}),
        ("reasoning_content", {"reasoning_content": "hm"}),
    ],
)
def test_chat_gets_plain_ids_and_reasoning_by_its_own_name(field: str, left: dict[str, str]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    assert own(ApiKind.CHAT, history(), ModelFacts(reasoning_field=field)) == {
        "messages": [
            history()["messages"][0],
            {"role": "assistant", "content": None, **left, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ]
    }


def test_details_of_the_provider_itself_stay() -> None:
    """MiniMax has entries of that name, with a format of its own."""
    details = [{"type": "reasoning.text", "format": "MiniMax-response-v1", "text": "hm"}]
    body = {"messages": [{"role": "assistant", "content": "Hi", "reasoning_details": details}]}

    assert own(ApiKind.CHAT, body) == body


def test_openrouter_knows_everybodys_reasoning() -> None:
    found = own(ApiKind.CHAT, history(), ModelFacts(reasoning_field="reasoning"), "openrouter")["messages"][1]

    assert found["reasoning_details"] == history()["messages"][1]["reasoning_details"]
    assert found["reasoning_content"] == "hm" and found["tool_calls"][0]["id"] == "call_1"


def test_server_that_nobody_knows_gets_all() -> None:
    """It may be another gateway, which reads the signatures."""
    body = json.dumps(history()).encode()

    assert without_foreign(body, ApiKind.CHAT, UNKNOWN_MODEL, PROVIDERS["openai-compatible"].traits) is body


# -- all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"velox. __thought__ \\"reasoning_x dmVsb3gu"}],  "a" : 1e400}',
        b'{"messages":"velox.","input":{"velox.":1},"contents":["dmVsb3gu"]}',
        b'{"messages":[1,"velox.",null,{"content":[["velox."],{"type":["velox."]}]}]}',
        b"velox. dmVsb3gu __thought__",
        b'["velox."]',
        b"\xff velox.",
        b'{"reasoning_effort":"low","messages":[{"role":"assistant","content":"__"}],  "a":1}',
    ],
)
def test_all_else_goes_up_as_it_came(body: bytes) -> None:
    for client_api in ApiKind:
        for each in (body, bytearray(body)):
            assert without_foreign(each, client_api, UNKNOWN_MODEL, PROVIDERS["openai"].traits) is each


# -- all of it -------------------------------------------------------------------------------------

SEALED = "sealed-value"
THINKING = {"type": "thinking", "thinking": "hm", "signature": SEALED}
TURNS: dict[ApiKind, tuple[str, list[dict[str, Any]]]] = {
    ApiKind.MESSAGES: (
        "messages",
        [
            {"role": "user", "content": "said"},
            {"role": "assistant", "content": [THINKING, {"type": "text", "text": "said"}]},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": SEALED}]},
        ],
    ),
    ApiKind.RESPONSES: (
        "input",
        [
            {"role": "user", "content": "said"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEALED},
            {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "said"}]},
            {"type": "function_call", "call_id": "c", "name": "said", "arguments": "{}"},
        ],
    ),
    ApiKind.GENERATE: (
        "contents",
        [
            {"role": "user", "parts": [{"text": "said"}]},
            {"role": "model", "parts": [{"text": "hm", "thought": True, "thoughtSignature": SEALED}]},
            {"role": "model", "parts": [{"functionCall": {"name": "said"}, "thought_signature": SEALED}]},
        ],
    ),
    ApiKind.CHAT: (
        "messages",
        [
            {"role": "user", "content": "said"},
            {"role": "assistant", "content": "said", "reasoning_details": [{"type": "x.encrypted", "data": SEALED}]},
        ],
    ),
}


@given(st.sampled_from(sorted(TURNS)), st.lists(st.integers(0, 3), max_size=12))
def test_nothing_that_only_its_maker_can_read_is_left_and_all_else_is(client_api: ApiKind, picks: list[int]) -> None:
    """C28, C29: whatever the turns are, and whoever made it; what was said and called stays, in its order."""
    name, turns = TURNS[client_api]
    history = [turns[n % len(turns)] for n in picks]
    body = json.dumps({name: history, "model": "m"}).encode()

    left = bytes(without_encrypted_reasoning(body, client_api))

    assert SEALED.encode() not in left and left.count(b"said") == body.count(b"said")
    assert (left == body) is (SEALED.encode() not in body)
    assert has_encrypted_reasoning(body, client_api) or left == body


def test_compacted_conversation_is_never_left_out() -> None:
    """Nothing else is left of what was said."""
    body = b'{"input":[{"type":"compaction","encrypted_content":"x"},{"role":"user","content":"a"}]}'
    assert without_encrypted_reasoning(body, ApiKind.RESPONSES) is body


@given(st.sampled_from(sorted(TURNS)), st.lists(st.integers(0, 3), max_size=8))
def test_refused_reasoning_is_left_out_of_later_turns_and_no_other(client_api: ApiKind, picks: list[int]) -> None:
    """C28, C29: what was refused once is known by its value; what another one has made since stays."""
    name, turns = TURNS[client_api]
    history = [turns[n % len(turns)] for n in picks]
    body = json.dumps({name: history, "model": "m"}).encode()
    newer = body.replace(SEALED.encode(), b"TkVX")
    refused = RefusedReasoning()
    assert refused.left_out(body, client_api) is body

    refused.add(body, client_api)

    assert refused.left_out(body, client_api) == without_encrypted_reasoning(body, client_api)
    assert refused.left_out(newer, client_api) is newer


def test_refused_reasoning_of_messages_keeps_what_is_unsigned() -> None:
    """A block without a signature was not what has been refused."""
    thought = {"type": "thinking", "thinking": "said", "signature": ""}
    body = json.dumps({"messages": [{"role": "assistant", "content": [thought]}]}).encode()
    refused = RefusedReasoning()
    refused.add(body, ApiKind.MESSAGES)
    assert refused.left_out(body, ApiKind.MESSAGES) is body
