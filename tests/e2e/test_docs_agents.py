"""Claude Code and Codex on any model, with the files that docs/dialects.md shows."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import yaml

from tests.e2e.harness import KEY
from tests.e2e.routed import named, routed
from tests.markdown import ROOT, blocks
from tests.untrusting import NO_TRUST

PAGE: Final = ROOT / "docs/dialects.md"
CODEX_ASKS: Final = Path(__file__).parents[1] / "unit/dialects/codex_request.json"
SIMULATED: Final = "--ttft 0 --token-rate 0 --tokens 5"
MOST_LINES: Final = 10


def shown(provider: str) -> str:
    """Return the gateway's file for a provider."""
    (file,) = [each for each in blocks(PAGE, "yaml") if each.startswith(f"upstreams: [{{provider: {provider}}}]")]
    return file


def aimed(file: str, origin: str) -> Any:
    """Return the same, with the simulator in place of the provider."""
    config: Any = yaml.safe_load(file)
    config["upstreams"][0]["origin"] = origin
    return config


def test_claude_code_as_shown() -> None:
    """Its file names the gateway, a key and two models: both answer requests such as it sends."""
    file, (settings,) = shown("openai"), blocks(PAGE, "json")
    assert len((file + settings).splitlines()) <= MOST_LINES
    variables = json.loads(settings)["env"]
    mark: Any = {"type": "ephemeral"}

    with (
        named("openai", openai=SIMULATED) as sims,
        routed(aimed(file, sims["openai"]["origin"]), OPENAI_API_KEY="sk-0123456789", VELOX_API_KEYS=KEY) as velox,
    ):
        assert variables["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
        http = anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0)
        with anthropic.Anthropic(base_url=velox.base_url, auth_token=KEY, max_retries=0, http_client=http) as client:
            for name in ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"):
                asked: Any = {
                    "model": variables[name],
                    "max_tokens": 32_000,
                    "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": mark}],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": mark}]}],
                    "thinking": {"type": "adaptive"},
                    "output_config": {"effort": "medium"},
                    "metadata": {"user_id": "user_1_account__session_2"},
                    "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
                }
                with client.beta.messages.stream(**asked) as stream:
                    final = stream.get_final_message()
                assert final.stop_reason == "end_turn" and final.content


def test_names_of_claude_code_have_a_model_by_the_routes_shown() -> None:
    """C39: its own names of models, and those that people choose, with `[1m]` behind them, too."""
    (file,) = [each for each in blocks(PAGE, "yaml") if each.startswith("# Claude Code's own names")]
    config: Any = yaml.safe_load(file)
    with named("gpt", gpt=SIMULATED) as sims:
        config["upstreams"][0]["origin"] = sims["gpt"]["origin"]
        with routed(config, OPENAI_API_KEY="sk-0123456789") as velox:
            for model, found in {
                "claude-haiku-4-5-20251001": "gpt-5-mini",
                "claude-opus-4-8": "gpt-5",
                "claude-sonnet-5[1m]": "gpt-5",
                "opus[1m]": "gpt-5",
                "gpt-4o": "gpt-4o",
            }.items():
                asked = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
                reply = velox.request("POST", "/v1/messages", json.dumps(asked).encode())
                answer: Any = reply.json()
                assert (reply.status, answer["model"]) == (200, found)


def test_codex_as_shown() -> None:
    """Its file names the gateway, the variable of a key and a model, which answers requests such as it sends."""
    file, (settings,) = shown("anthropic"), blocks(PAGE, "toml")
    assert len((file + settings).splitlines()) <= MOST_LINES
    found = tomllib.loads(settings)
    provider = found["model_providers"][found["model_provider"]]
    assert (provider["wire_api"], provider["base_url"]) == ("responses", "http://127.0.0.1:8080/v1")

    with (
        named("claude", claude=SIMULATED) as sims,
        routed(
            aimed(file, sims["claude"]["origin"]), ANTHROPIC_API_KEY="sk-ant-0123456789", VELOX_API_KEYS=KEY
        ) as velox,
    ):
        sdk: openai.OpenAI = velox.openai()
        asked: Any = json.loads(CODEX_ASKS.read_bytes()) | {"model": found["model"], "stream": True}
        asked["input"] = [item for item in asked["input"] if item["type"] == "message"]
        more = {"client_metadata": asked.pop("client_metadata")}
        events: Any = list(sdk.responses.create(**asked, extra_body=more))
        assert events[-1].type == "response.completed"
