"""Which models are taken for ones that reason: by the settings, else by their names."""

from __future__ import annotations

import pytest

from velox.policy.routes.entries import Timeouts, UpstreamEntry
from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.reasoning import reasons
from velox.providers.rows import PROVIDERS


def entry(provider: str = "openai-compatible", *rules: ModelRule) -> UpstreamEntry:
    timeouts = Timeouts(*(1.0 for _ in Timeouts.__dataclass_fields__))
    return UpstreamEntry("u", (), (), "off", None, None, None, timeouts, 1, provider=provider, model_facts=rules)


@pytest.mark.parametrize(
    "model",
    [
        *("o3", "o4-mini-2025-04-16", "openai/o3", "gpt-5", "gpt-5.6-codex", "gpt-6-sol", "openai.gpt-oss-120b-1:0"),
        *("claude-opus-4-7", "us.anthropic.claude-sonnet-5-5-v1:0", "anthropic/claude-opus-5.5", "claude-3-7-sonnet"),
        *("gemini-2.5-pro", "models/gemini-3.5-flash", "gemini-flash-latest", "GEMINI-2.5-PRO"),
        *("grok-4.5", "deepseek-reasoner", "deepseek-ai/DeepSeek-R1", "Qwen/Qwen3-32B", "qwq-32b", "magistral-medium"),
        *("accounts/fireworks/models/glm-4.6", "kimi-k2-thinking", "sonar-reasoning-pro"),
    ],
)
def test_names_of_models_that_reason_are_known(model: str) -> None:
    """Also with a reseller's words around them."""
    assert reasons(entry(), model)


@pytest.mark.parametrize(
    "model",
    [
        *("", "m", "gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "openai/gpt-4o", "llama-4-70b", "own", "solo1"),
        *("claude-3-5-haiku-20241022", "anthropic.claude-3-haiku-20240307-v1:0", "gemini-2.0-flash"),
        *("mistral-large-latest", "deepseek-chat", "grok-4-fast-non-reasoning", "text-embedding-3-small"),
    ],
)
def test_others_are_taken_for_ones_that_answer_at_once(model: str) -> None:
    assert not reasons(entry(), model)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o"),
        ("openai", "gpt-5-chat-latest"),
        ("anthropic", "claude-3-5-sonnet"),
        ("gemini", "gemini-2.0-flash"),
        ("gemini", "gemma-3"),
        ("perplexity", "sonar-pro"),
    ],
)
def test_what_the_table_of_facts_says_of_models_that_do_not_reason_is_said_here_too(provider: str, model: str) -> None:
    """Both tables are about the same models."""
    assert facts_of(PROVIDERS[provider], model).thinking == "none"
    assert not reasons(entry(provider), model)


def test_settings_say_it_of_names_that_tell_nothing() -> None:
    """Of several rules the last one counts, and those of another provider don't."""
    rules = [
        ModelRule(("my-*",), (("thinking", "effort"),)),
        ModelRule(("my-o3",), (("thinking", "none"), ("sampling", True))),
        ModelRule(("my-*",), (("thinking", "none"),), ("groq",)),
        ModelRule(("o3",), (("sampling", False),)),
    ]

    assert reasons(entry("azure", *rules), "My-Deployment")
    assert not reasons(entry("azure", *rules), "my-o3")
    assert reasons(entry("azure", *rules), "o3"), "a rule about something else says nothing of it"
