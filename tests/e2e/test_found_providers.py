"""A gateway without a file: variables of providers make names of models work, and `velox serve` says which it found.

A process asks a local server under Azure's name, the one provider whose address is in a variable. For the others no
request leaves this machine: `velox check` says where their models go.
"""

from __future__ import annotations

import json
import signal
from typing import Final

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES
from velox.cli import main

KEY: Final = "sk-found-0123456789"
ANSWER: Final = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "mine",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Here."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


async def answer(call: Call) -> None:
    """As Azure does."""
    await call.reply(200, JSON, json.dumps(ANSWER).encode())


def test_azure_of_the_environment_answers_and_is_told() -> None:
    with RecordingUpstream(script=answer) as azure, RecordingUpstream(script=answer) as usual:
        url = azure.upstream.url
        variables = {**usual.env(), "AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": f"{url}/openai/v1/"}
        with VeloxProcess(variables) as velox:
            told = "found AZURE_OPENAI_API_KEY, AZURE_OPENAI_ENDPOINT: models azure/... go to " + url
            assert KEY not in velox.wait_log(lambda line: told in line)
            reply = velox.openai().chat.completions.create(model="azure/mine", messages=MESSAGES)
            call = azure.wait_call()
            other = velox.openai().chat.completions.create(model="something", messages=MESSAGES)

            assert reply.choices[0].message.content == "Here." == other.choices[0].message.content
            assert (call.target, call.header("api-key")) == ("/openai/v1/chat/completions", KEY)
            assert json.loads(call.body)["model"] == "mine"
            assert len(azure.calls) == 1 and len(usual.calls) == 1


def test_simulator_answers_whatever_keys_are_around() -> None:
    """U1: `--sim` asks no provider because a key lies in the shell, from the start and after a reload."""
    with RecordingUpstream(script=answer) as azure:
        variables = {
            "AZURE_OPENAI_API_KEY": KEY,
            "AZURE_OPENAI_ENDPOINT": azure.upstream.url,
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_API_KEY": KEY,
            "GEMINI_API_KEY": KEY,
        }
        with VeloxProcess(variables, ("serve", "--sim")) as velox:
            for _ in range(2):
                for model in ("azure/mine", "anthropic/claude-x", "claude-x", "openai/gpt-x", "gemini/gemini-x"):
                    reply = velox.openai().chat.completions.create(model=model, messages=MESSAGES)
                    assert reply.choices[0].message.content
                velox.process.send_signal(signal.SIGHUP)
                velox.wait_log(lambda line: "configuration" in line)
            assert not azure.calls
            assert not any("found " in line for line in velox.stderr.lines)


@pytest.mark.parametrize(
    ("variables", "model", "origin"),
    [
        ({"ANTHROPIC_API_KEY": KEY}, "anthropic/claude-x", "https://api.anthropic.com"),
        ({"ANTHROPIC_API_KEY": KEY}, "claude-x", "https://api.anthropic.com"),
        ({"GEMINI_API_KEY": KEY}, "gemini/gemini-x", "https://generativelanguage.googleapis.com"),
        ({"GROQ_API_KEY": KEY}, "groq/llama-x", "https://api.groq.com/openai"),
        (
            {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIAX", "AWS_SECRET_ACCESS_KEY": KEY},
            "bedrock/eu.anthropic.claude-x",
            "https://bedrock-runtime.eu-west-1.amazonaws.com",
        ),
        (
            {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com"},
            "azure/mine",
            "https://r.openai.azure.com",
        ),
        ({"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}, "openai/gpt-x", "https://api.openai.com"),
    ],
)
def test_names_of_models_have_a_way(
    variables: dict[str, str], model: str, origin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = model.partition("/")[0] if "/" in model else "anthropic"

    assert main(["check", "--model", model], variables) == 0
    explained = capsys.readouterr().out
    assert main(["check"], variables) == 0
    checked = capsys.readouterr().out

    assert f"route {provider}" in explained and f"first {provider}" in explained, explained
    assert any(line.startswith(f"upstream: {provider}") and origin in line for line in checked.splitlines()), checked
    assert KEY not in explained + checked
