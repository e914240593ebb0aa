"""Which family of programs a request is of: few, whatever clients write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.protocol.agents import AGENTS, OTHER, agent_name, agent_of


@pytest.mark.parametrize(
    ("user_agent", "family"),
    [
        ("claude-cli/2.1.119 (external, sdk-cli)", "claude-code"),
        ("codex_cli_rs/0.125.0 (Debian 13.0.0; x86_64) WindowsTerminal", "codex"),
        ("codex_exec/0.63.0", "codex"),
        ("Codex Desktop/1.0", "codex"),
        ("Cursor/0.48.6 Electron/34.3.4", "cursor"),
        ("GeminiCLI/0.8.0/gemini-2.5-pro (linux; x64)", "gemini-cli"),
        ("opencode/1.14.33", "opencode"),
        ("OpenAI/Python 2.8.0", "openai-python"),
        ("AsyncOpenAI/Python 3.52.0", "openai-python"),
        ("AzureOpenAI/JS 6.9.1", "openai-js"),
        ("OpenAI/Go 3.2.0", "openai-go"),
        ("OpenAI/2.5.0 (.NET 9.0.1; Linux)", "openai-dotnet"),
        ("OpenAI/Cobol 1", "openai"),
        ("OpenAI", "openai"),
        ("Anthropic/JS 0.65.0", "anthropic-js"),
        ("AsyncAnthropic/Python 2.12.0", "anthropic-python"),
        ("google-genai-sdk/1.43.0 gl-python/3.12", "google-genai"),
        ("langchainjs-openai/1.0.0 ((node/v20.18.0; win32; x64))", "langchain"),
        ("litellm/1.110.2", "litellm"),
        ("curl/8.5.0", "curl"),
        ("ai-sdk/openai/2.0.1 runtime/node.js/22", "ai-sdk"),
        ("mistral-client-python/1.9", "mistral"),
        ("python-httpx/0.28.1", "python"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "browser"),
        ("Go-http-client/1.1", "go"),
        ("my-app/1.0 claude-cli/2.0", "other"),
        ("codexample/1.0", "other"),
        ("curly/1.0", "other"),
        ("", "other"),
        (" curl/8", "other"),
        ("/", "other"),
        ("\u00fc\u00fc/1", "other"),
    ],
)
def test_family_is_told_by_the_first_product(user_agent: str, family: str) -> None:
    assert agent_name(agent_of(user_agent.encode("latin-1"))) == family


def test_who_says_nothing_is_one_of_the_others() -> None:
    assert agent_of(None) == OTHER


@given(st.binary(max_size=300))
def test_no_text_adds_a_family(user_agent: bytes) -> None:
    assert 0 < agent_of(user_agent) < len(AGENTS)


def test_names_are_kept_and_fit_a_byte() -> None:
    """They are recorded by number: one that is there is never another's."""
    assert AGENTS[:7] == ("", "other", "claude-code", "codex", "cursor", "gemini-cli", "opencode")
    assert AGENTS[-1] == "go" and len(AGENTS) == len(set(AGENTS)) == 42
    assert agent_name(255) == "other" and agent_name(0) == ""
