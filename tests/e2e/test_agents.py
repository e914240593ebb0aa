"""Agents with real SDKs, each on models of every dialect: two calls at once, their results, an answer; with reasoning.

The models are the simulator's, and those of a fake Bedrock. Both refuse what the vendors refuse: calls without results,
reasoning that comes back with another signature, contents that are empty.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anthropic
import pytest
from google import genai
from google.genai import types

from tests.e2e.bedrock_agent import bedrock_agent
from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import named, routed
from tests.e2e.test_bedrock import ACCESS, SECRET, TOKEN, signature_of
from tests.untrusting import NO_TRUST
from velox_sim.shapes import Text

LOCAL: Final = "qwen3-sim-tools-2"
CODEX: Final = "gpt-5-codex-sim-tools-2"
CLAUDE: Final = "claude-sim-tools-2"
BEDROCK_CLAUDE: Final = "us.anthropic.claude-sim-tools-2-v1:0"
NOVA: Final = "us.amazon.nova-micro-v1:0"
GEMINI: Final = "gemini-3-sim-tools-2"
# The native dialect of the first is Chat Completions, of the second Responses, then Messages, Gemini's, Messages in
# the frames of Bedrock's invoke, Converse.
MODELS: Final = (LOCAL, CODEX, CLAUDE, GEMINI, BEDROCK_CLAUDE, NOVA)
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
}
ARGUMENTS: Final = {"city": "simulated", "days": 2}
# The simulator's whole answer, with characters of several bytes.
N_TOKENS: Final = 60
TEXT: Final = Text(N_TOKENS).first(N_TOKENS)
NODE: Final = Path(__file__).parent / "node"
CODEX_ASKS: Final = Path(__file__).parents[1] / "unit/dialects/codex_request.json"
# Those that sign the reasoning itself: Gemini signs what follows it, the others nothing.
SIGNED: Final = (CODEX, CLAUDE, BEDROCK_CLAUDE)
ASKED: Final[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]


def is_signed(call: Call) -> bool:
    """True where botocore would sign the request in the same way."""
    return (call.header("authorization") or "").endswith(f"Signature={signature_of(call)}")


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway with one simulator behind it, which is OpenAI, Anthropic and Google, and a fake Bedrock."""
    with named("models", models=f"--ttft 0 --token-rate 0 --tokens {N_TOKENS}") as sims, RecordingUpstream() as bedrock:
        origin = sims["models"]["origin"]
        script = bedrock_agent(f"{origin}/v1/messages", ARGUMENTS, TEXT, is_signed)
        config = {
            "upstreams": [
                {"name": "local", "provider": "vllm", "origin": origin},
                {"name": "openai", "provider": "openai", "origin": origin, "key": "env:MODEL_KEY"},
                {"name": "anthropic", "provider": "anthropic", "origin": origin, "key": "env:MODEL_KEY"},
                {"name": "gemini", "provider": "gemini", "origin": origin, "key": "env:MODEL_KEY"},
                {
                    "name": "bedrock",
                    "provider": "bedrock",
                    "region": "eu-central-1",
                    "origin": bedrock.upstream.url,
                },
            ],
            "routes": [
                {"name": "local", "match": {"models": ["qwen3-*"]}, "to": "local"},
                {"name": "claude", "match": {"models": ["claude-*"]}, "to": "anthropic"},
                {"name": "gemini", "match": {"models": ["gemini-*"]}, "to": "gemini"},
                {"name": "bedrock", "match": {"models": ["us.*"]}, "to": "bedrock"},
                {"name": "openai", "to": "openai"},
            ],
        }
        aws = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
        with routed(config, MODEL_KEY="sk-model-0123456789", **aws) as running, bedrock.playing(script):
            yield running


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_chat_completions(velox: VeloxProcess, model: str, is_streamed: bool) -> None:
    """The message goes back as the SDK has it."""
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    sdk: Any = velox.openai().chat.completions

    def ask(messages: Any) -> Any:
        asked = {"model": model, "messages": messages, "tools": tools, "reasoning_effort": "low"}
        if not is_streamed:
            final = sdk.create(**asked)
            assert final.usage.prompt_tokens > 0 and final.usage.completion_tokens > 0
            return final.choices[0]
        with sdk.stream(**asked, stream_options={"include_usage": True}) as stream:
            final = stream.get_final_completion()
        assert final.usage.prompt_tokens > 0 and final.usage.completion_tokens > 0
        return final.choices[0]

    first = ask(ASKED)
    calls = first.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS, ARGUMENTS]
    assert first.finish_reason == "tool_calls" and calls[0].id != calls[1].id
    message = first.message.model_dump(exclude_none=True, exclude={"parsed"})
    # No field of this API asks OpenAI for the text of the reasoning; its signature comes without one.
    assert bool(message.get("reasoning_content")) == (model != CODEX)
    assert bool(message.get("reasoning_details")) == (model in (*SIGNED, GEMINI))
    if is_streamed:
        assert [each["index"] for each in message["tool_calls"]] == [0, 1]
    for each in message["tool_calls"]:
        each["function"].pop("parsed_arguments", None)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    last = ask([*ASKED, message, *results])
    assert (last.finish_reason, last.message.content) == ("stop", TEXT)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_responses(velox: VeloxProcess, model: str, is_streamed: bool) -> None:
    """The items go back, reasoning among them, as Codex sends them."""
    tools: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    sdk: Any = velox.openai().responses

    def ask(items: Any) -> Any:
        asked = {
            "model": model, "input": items, "tools": tools, "store": False,
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
        }  # fmt: skip
        if not is_streamed:
            return sdk.create(**asked)
        with sdk.stream(**asked) as stream:
            return stream.get_final_response()

    first = ask(ASKED)
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", ARGUMENTS)] * 2
    assert first.usage.input_tokens > 0 and first.usage.output_tokens > 0
    assert first.status == "completed" and calls[0].call_id != calls[1].call_id
    reasoning = [item for item in first.output if item.type == "reasoning"]
    assert any(item.encrypted_content and item.summary for item in reasoning) == (model in SIGNED)
    items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    last = ask([*ASKED, *items, *results])
    assert last.output_text == TEXT


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_messages(velox: VeloxProcess, model: str, is_streamed: bool) -> None:
    """The blocks go back, thinking first, as Claude Code sends them."""
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=velox.base_url, api_key=KEY, max_retries=0, http_client=http) as client:
        sdk: Any = client.messages

        def ask(messages: Any) -> Any:
            asked = {
                "model": model, "max_tokens": 4000, "system": "Be brief.", "messages": messages,
                "tools": [{"name": "weather", "input_schema": SCHEMA}],
                "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "summarized"},
            }  # fmt: skip
            if not is_streamed:
                return sdk.create(**asked)
            with sdk.stream(**asked) as stream:
                return stream.get_final_message()

        first = ask(ASKED[1:])
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [("weather", ARGUMENTS)] * 2
        assert first.usage.input_tokens > 0 and first.usage.output_tokens > 0
        assert first.stop_reason == "tool_use" and calls[0].id != calls[1].id
        assert any(block.type == "thinking" and block.thinking for block in first.content)
        blocks = [block.model_dump(exclude_none=True) for block in first.content]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
        last = ask([*ASKED[1:], {"role": "assistant", "content": blocks}, {"role": "user", "content": results}])
        assert last.stop_reason == "end_turn"
        assert "".join(block.text for block in last.content if block.type == "text") == TEXT


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
def test_generate_content(velox: VeloxProcess, model: str, is_streamed: bool) -> None:
    """The contents go back, with their signatures."""
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=velox.base_url))
    declared = types.FunctionDeclaration(name="weather", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[types.Tool(function_declarations=[declared])],
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.LOW),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )

    def ask(contents: Any) -> list[types.Part]:
        asked: Any = {"model": model, "contents": contents, "config": config}
        if not is_streamed:
            reply: Any = client.models.generate_content(**asked)
            assert reply.usage_metadata.candidates_token_count > 0
            return list(reply.candidates[0].content.parts)
        chunks: Any = list(client.models.generate_content_stream(**asked))
        assert chunks[-1].usage_metadata.candidates_token_count > 0
        assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
        return [
            part for chunk in chunks if chunk.candidates[0].content for part in chunk.candidates[0].content.parts or []
        ]

    parts = ask([types.UserContent("Weather?")])
    calls = [part.function_call for part in parts if part.function_call]
    assert [(call.name, call.args) for call in calls] == [("weather", ARGUMENTS)] * 2
    assert any(part.thought and part.text for part in parts)
    answered = [types.FunctionResponse(id=call.id, name="weather", response={"result": "sunny"}) for call in calls]
    history = [
        types.UserContent("Weather?"),
        types.Content(role="model", parts=[part for part in parts if part.text != "" or part.thought_signature]),
        types.Content(role="user", parts=[types.Part(function_response=each) for each in answered]),
    ]
    last = "".join(part.text or "" for part in ask(history) if not part.thought)
    assert last == TEXT


@pytest.mark.parametrize("model", MODELS)
def test_claude_code(velox: VeloxProcess, model: str) -> None:
    """Its requests: system blocks with cache marks, betas and their fields, a server tool, metadata, counting."""
    mark: Any = {"type": "ephemeral", "ttl": "1h"}
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 32_000,
        "system": [
            {"type": "text", "text": "You are Claude Code.", "cache_control": mark},
            {"type": "text", "text": "The folder is /src.", "cache_control": mark},
        ],
        "tools": [
            {"name": "Bash", "description": "Runs.", "input_schema": SCHEMA},
            {"name": "mcp__tracker__get_issue", "input_schema": {"type": "object"}, "cache_control": mark},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
    }
    history: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Tabs.</system-reminder>"}]},
        {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]},
    ]
    http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
    with anthropic.Anthropic(base_url=velox.base_url, auth_token=KEY, max_retries=0, http_client=http) as client:

        def ask() -> Any:
            with client.beta.messages.stream(**asked, messages=history) as stream:
                return stream.get_final_message()

        first = ask()
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [call.name for call in calls] == ["Bash", "mcp__tracker__get_issue"]
        blocks = [block.model_dump(exclude_none=True) for block in first.content]
        result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "no such file", "is_error": True}
        parts = [{"type": "text", "text": "done"}]
        other = {"type": "tool_result", "tool_use_id": calls[1].id, "content": parts, "cache_control": mark}
        history += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result, other]}]
        last = ask()
        assert last.stop_reason == "end_turn"
        assert "".join(block.text for block in last.content if block.type == "text") == TEXT
        if model in (LOCAL, CLAUDE):  # the fakes of the others don't count; see test_counting.py
            counted = {name: asked[name] for name in ("model", "system", "tools", "thinking", "betas")}
            assert client.beta.messages.count_tokens(**counted, messages=history).input_tokens > 0


@pytest.mark.parametrize("model", MODELS)
def test_codex(velox: VeloxProcess, model: str) -> None:
    """Its requests: tools of every kind, their calls and outputs in the history, reasoning that comes sealed."""
    asked: Any = json.loads(CODEX_ASKS.read_bytes())
    # Sealed by another provider, which some of these would refuse.
    history: list[Any] = [item for item in asked.pop("input") if item["type"] != "reasoning"]
    # The fakes call a tool where the last turn has no results.
    history.insert(-1, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]})
    asked |= {"model": model.replace("tools-2", "tools-4"), "stream": True}
    more = {"client_metadata": asked.pop("client_metadata")}

    def ask() -> Any:
        events: Any = list(velox.openai().responses.create(**asked, input=history, extra_body=more))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.completed"
        return events[-1].response

    first = ask()
    calls = [item for item in first.output if item.type.endswith("_call")]
    assert [call.name for call in calls][:2] == ["exec_command", "update_plan"]
    for item in first.output:
        history.append(item.model_dump(exclude_none=True))
    history += [
        {"type": f"{call.type}_output", "call_id": call.call_id, "output": f"done {n}"} for n, call in enumerate(calls)
    ]
    assert ask().output_text == TEXT


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE / "node_modules/ai").is_dir(),
    reason="no Node with its SDKs: tests/install-tools.sh",
)
@pytest.mark.parametrize("model", MODELS)
def test_node(velox: VeloxProcess, model: str) -> None:
    """The Vercel AI SDK with four providers, and the SDKs of OpenAI and Anthropic: see agents.mjs."""
    words = ["node", str(NODE / "agents.mjs"), velox.base_url, KEY, model]
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 12
    for each in found:
        assert (each["calls"], each["errors"], each["steps"]) == ([ARGUMENTS, ARGUMENTS], [], 2), each
        assert each["text"] == TEXT and each["outputTokens"] > 0, each
