"""Which kind of program sent a request: its family, by how its User-Agent begins (RFC 9110 §10.1.5).

    agent_of()   the number of a family
    AGENTS       their names, by number

Numbers are recorded, and names are sums' groups: none is ever given to another family, and new ones stand at the end.
What a client writes there chooses one of these and adds none: the table is bounded, whoever asks.

Knows: how programs name themselves, also Stainless' SDKs (OpenAI/Python 2.8.0). Does not know: who asks for it.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["AGENTS", "OTHER", "agent_name", "agent_of"]

# 0: not recorded, as by an earlier Velox. 1: any that is none of these, and none at all.
AGENTS: Final = (
    *("", "other", "claude-code", "codex", "cursor", "gemini-cli", "opencode"),
    *("openai-python", "openai-js", "openai-go", "openai-java", "openai-ruby", "openai-dotnet", "openai"),
    *("anthropic-python", "anthropic-js", "anthropic-go", "anthropic-java", "anthropic-ruby", "anthropic-dotnet"),
    *("anthropic", "google-genai", "mistral", "aws-sdk", "ai-sdk", "langchain", "litellm", "openai-agents"),
    *("pydantic-ai", "cline", "roo-code", "kilo-code", "continue", "zed", "goose", "qwen-code", "github-copilot"),
    *("curl", "browser", "python", "node", "go"),
)
OTHER: Final = 1
_NUMBERS: Final = {name: number for number, name in enumerate(AGENTS)}
# Its begin tells; nobody is asked to read more.
_MOST_BYTES: Final = 128
_PRODUCT: Final = re.compile(r"[^/\s(]+")
_LANGUAGES: Final = {"python": "python", "js": "js", "node": "js", "go": "go", "java": "java", "ruby": "ruby"}
_SDKS: Final = {
    **dict.fromkeys(("openai", "asyncopenai", "azureopenai", "asyncazureopenai"), "openai"),
    **dict.fromkeys(("anthropic", "asyncanthropic", "anthropicbedrock", "anthropicvertex"), "anthropic"),
    **dict.fromkeys(("asyncanthropicbedrock", "asyncanthropicvertex"), "anthropic"),
}
_PRODUCTS: Final = {
    **dict.fromkeys(("claude-cli", "claude-code"), "claude-code"),
    **dict.fromkeys(("cursor", "opencode", "curl", "litellm", "cline", "continue", "zed", "goose", "pydantic-ai"), ""),
    "codex": "codex",
    "google-genai-sdk": "google-genai",
    **dict.fromkeys(("boto3", "botocore"), "aws-sdk"),
    "ai": "ai-sdk",
    "agents": "openai-agents",
    "roocode": "roo-code",
    "kilo-code": "kilo-code",
    "qwencode": "qwen-code",
    "githubcopilotchat": "github-copilot",
    "mozilla": "browser",
    **dict.fromkeys(
        ("python-requests", "python-httpx", "python-urllib", "python-urllib3", "python", "aiohttp"), "python"
    ),
    **dict.fromkeys(("node", "node-fetch", "undici", "axios", "bun", "deno"), "node"),
    "go-http-client": "go",
}
# Of products that have several names.
_STARTS: Final = (
    ("codex_", "codex"),
    ("codex-", "codex"),
    ("geminicli", "gemini-cli"),
    ("langchain", "langchain"),
    ("mistral-client-", "mistral"),
    ("aws-sdk-", "aws-sdk"),
    ("ai-sdk", "ai-sdk"),
)


def agent_name(number: int) -> str:
    """Return the name of a family; "other" for one that a later Velox knows."""
    return AGENTS[number] if number < len(AGENTS) else AGENTS[OTHER]


def agent_of(user_agent: bytes | None) -> int:
    """Return the number of the family that a User-Agent is of; OTHER for one that is of none, and for None."""
    text = (user_agent or b"")[:_MOST_BYTES].decode("latin-1").lower()
    match = _PRODUCT.match(text)
    if match is None:
        return OTHER
    product = match[0]
    sdk = _SDKS.get(product)
    if sdk is not None:
        return _NUMBERS[_of_language(sdk, text[match.end() :])]
    family = _PRODUCTS.get(product)
    if family is None:
        family = next((family for start, family in _STARTS if product.startswith(start)), AGENTS[OTHER])
    return _NUMBERS[family or product]


def _of_language(sdk: str, rest: str) -> str:
    """Return the family of an SDK. rest: behind its name: `/python 2.8.0`, `/2.5.0 (.net 9.0; ...)`."""
    word = _PRODUCT.match(rest[1:])
    language = None if word is None or not rest.startswith("/") else _LANGUAGES.get(word[0])
    if language is not None:
        return f"{sdk}-{language}"
    return f"{sdk}-dotnet" if "(.net" in rest else sdk
