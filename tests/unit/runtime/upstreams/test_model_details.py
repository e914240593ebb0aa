"""What the tables know of the models of a list: the shipped one, the user's own prices, and facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.protocol.model_list import UNKNOWN_DETAILS, Capabilities
from velox.providers.capabilities import capabilities_of
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.model_details import describer
from velox.settings import load

CLAUDES_EFFORTS = ("low", "medium", "high", "xhigh", "max")
NOW_S = 1_795_000_000.0
FILE = """
prices: PRICES
upstreams:
  - {name: openai, provider: openai, key: env:KEY}
  - {name: claude, provider: anthropic, key: env:KEY}
  - {name: aws, provider: bedrock, region: us-east-1, key: env:KEY}
  - {name: own, origin: http://127.0.0.1:1}
model_facts: [{models: [gpt-4o], most_output: 1234}]
"""


def test_model_is_described_by_table_prices_and_facts(tmp_path: Path) -> None:
    """RC11: context, longest answer and prices, by the names that each provider has for a model."""
    prices, file = tmp_path / "prices.yaml", tmp_path / "velox.yaml"
    prices.write_text("prices: [{model: own-model, input: 0.5, output: 2}]\n")
    file.write_text(FILE.replace("PRICES", str(prices)))
    settings = load({"VELOX_CONFIG": str(file), "KEY": "k" * 20}, cores=2)
    openai, claude, aws, own = settings.upstreams
    describe = describer(settings, lambda: NOW_S)

    gpt = describe(openai, "gpt-4o")
    assert (gpt.context, gpt.most_output) == (128_000, 1234)
    assert (gpt.prompt, gpt.completion, gpt.cached) == ("0.0000025", "0.00001", "0.00000125")
    sonnet = describe(claude, "claude-sonnet-4-5-20250929")
    assert sonnet.context >= 200_000 and sonnet.prompt == "0.000003" and sonnet.written == "0.00000375"
    assert describe(aws, "us.anthropic.claude-sonnet-4-5-20250929-v1:0").context >= 200_000
    mine = describe(own, "own-model")
    assert (mine.context, mine.prompt, mine.completion) == (0, "0.0000005", "0.000002")
    assert describe(own, "something-else") == UNKNOWN_DETAILS
    assert describe(openai, "gpt-4o") is gpt


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("openai", "gpt-4o", Capabilities(True, True, True, True, (), True)),
        ("openai", "gpt-3.5-turbo", Capabilities(True, False, False, True)),
        ("anthropic", "claude-opus-4-8", Capabilities(True, True, True, False, CLAUDES_EFFORTS, True)),
        ("bedrock", "eu.anthropic.claude-instant-v1", Capabilities(False, False, False, True)),
        ("openai", "text-embedding-3-small", None),
        ("openai", "gpt-4o-mini-tts", None),
        ("vllm", "qwen3", None),
        ("gemini", "gemini-2.5-flash-image", None),
    ],
)
def test_capabilities_of_families_that_are_known(provider: str, model: str, expected: Capabilities | None) -> None:
    """RC11: of others nothing is said: a default of a fact is a guess."""
    assert capabilities_of(model, facts_of(PROVIDERS[provider], model)) == expected
