"""`velox import litellm-prices`: exact, and nothing dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from velox.cli import main
from velox.prices.book import PriceBook, Seller
from velox.prices.table import shipped_table
from velox.protocol.usage.token_usage import TokenUsage
from velox.settings import load
from velox_migrate.litellm_prices import import_litellm_prices

NOW = 1_795_401_000
FILE = b"""{
  "sample_spec": {"input_cost_per_token": 0.0},
  "gpt-9": {"litellm_provider": "openai", "mode": "chat", "max_tokens": 100,
    "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "cache_read_input_token_cost": 2.5e-07,
    "input_cost_per_token_above_272k_tokens": 5e-06, "output_cost_per_token_above_272k_tokens": 1.5e-05,
    "cache_read_input_token_cost_above_272k_tokens": 5e-07,
    "input_cost_per_token_batches": 1.25e-06, "output_cost_per_token_batches": 5e-06,
    "input_cost_per_token_flex": 1.25e-06, "input_cost_per_token_priority": 5e-06,
    "input_cost_per_token_above_272k_tokens_priority": 1e-05,
    "cost_per_moon_phase": 1},
  "azure/gpt-9": {"litellm_provider": "azure", "input_cost_per_token": 7.5e-09, "output_cost_per_token": 0},
  "azure/eu/gpt-9": {"litellm_provider": "azure", "input_cost_per_token": 1e-06},
  "free": {"litellm_provider": "openai", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
  "elsewhere": {"litellm_provider": "nowhere", "input_cost_per_token": 1e-06},
  "bad": {"litellm_provider": "openai", "input_cost_per_token": "a lot"},
  "image": {"litellm_provider": "openai", "input_cost_per_pixel": 1e-09}
}"""
UNITS = b"""{
  "rerank-v9": {"litellm_provider": "cohere", "mode": "rerank", "input_cost_per_query": 0.002,
    "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
  "mistral/ocr-9": {"litellm_provider": "mistral", "mode": "ocr", "ocr_cost_per_page": 0.004,
    "ocr_cost_per_page_batches": 0.002, "annotation_cost_per_page": 0.005, "annotation_cost_per_page_batches": 0.0025},
  "tts-9": {"litellm_provider": "openai", "mode": "audio_speech", "input_cost_per_character": 1.5e-05},
  "heard": {"litellm_provider": "openai", "input_cost_per_second": 0.0001},
  "searching": {"litellm_provider": "openai", "input_cost_per_query": 0.5, "input_cost_per_token": 1e-06},
  "both": {"litellm_provider": "openai", "ocr_cost_per_page": 0.5, "input_cost_per_token": 1e-06}
}"""


def test_command_writes_a_file_that_the_settings_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "model_prices_and_context_window.json", tmp_path / "prices.yaml"
    source.write_bytes(FILE)
    assert main(["import", "litellm-prices", str(source), "-o", str(target)], {}) == 0
    notes = capsys.readouterr().err
    for name in (
        "cost_per_moon_phase",
        "azure/eu/gpt-9",
        "free",
        "nowhere",
        "bad",
        "input_cost_per_pixel",
        "for batch above 272000",
    ):
        assert name in notes
    settings = load({"OPENAI_API_KEY": "k", "VELOX_PRICES": str(target)})
    book = PriceBook(shipped_table(), settings.own_prices)

    def pico(model: str, tier: str, usage: TokenUsage, provider: str = "openai") -> int | None:
        price = book.find(Seller("up", provider), model, "", tier, NOW)
        cost = None if price is None else price.cost(usage)
        return None if cost is None else cost.pico

    short, long = TokenUsage(1_000, 100, 400), TokenUsage(300_000, 100, 400)
    assert pico("gpt-9", "", short) == 600 * 2_500_000 + 400 * 250_000 + 100 * 10_000_000
    assert pico("gpt-9", "", long) == 299_600 * 5_000_000 + 400 * 500_000 + 100 * 15_000_000
    assert pico("gpt-9", "batch", short) == 600 * 1_250_000 + 400 * 250_000 + 100 * 5_000_000
    assert pico("gpt-9", "flex", short) == 600 * 1_250_000 + 400 * 250_000 + 100 * 10_000_000
    assert pico("gpt-9", "priority", long) == 299_600 * 10_000_000 + 400 * 500_000 + 100 * 15_000_000
    assert pico("gpt-9", "", short, "azure") == 1_000 * 7_500
    assert pico("free", "", short) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b'{"a": {"input_cost_per_token": NaN}}', b"\xff"])
def test_what_is_no_price_file_is_refused(content: bytes) -> None:
    imported = import_litellm_prices(content)
    assert imported.text is None
    assert imported.notes


@pytest.mark.parametrize(
    ("name", "vendor", "model", "provider"),
    [
        ("azure/gpt-9-instruct", "azure_text", "gpt-9-instruct", "azure"),
        ("cohere/command-9", "cohere_chat", "command-9", "cohere"),
        ("bedrock/amazon.nova-9", "bedrock_converse", "amazon.nova-9", "bedrock"),
        ("vertex_ai/claude-9", "vertex_ai-anthropic_models", "claude-9", "vertex"),
        ("openrouter/openrouter/auto", "openrouter", "openrouter/auto", "openrouter"),
        ("groq/openai/gpt-oss-9", "groq", "openai/gpt-oss-9", "groq"),
    ],
)
def test_prefix_of_the_provider_is_no_part_of_the_model(name: str, vendor: str, model: str, provider: str) -> None:
    """Calls are recorded without it: with it no price would be found."""
    content = {name: {"litellm_provider": vendor, "input_cost_per_token": 1e-06}}

    text = import_litellm_prices(json.dumps(content).encode()).text

    assert text == f'prices:\n  - {{model: "{model}", provider: {provider}, input: 1}}\n'


def test_model_with_two_names_has_one_price_and_a_note() -> None:
    """Two entries for one model would leave only the later price, without a word about the other one."""
    content = {
        name: {"litellm_provider": "deepseek", "input_cost_per_token": cost, "output_cost_per_token": 2e-06}
        for name, cost in (
            *(("chat", 1e-06), ("deepseek/chat", 3e-06)),
            *(("coder", 1e-06), ("deepseek/coder", 1e-06)),
        )
    }

    made = import_litellm_prices(json.dumps(content).encode())

    assert made.text is not None and made.text.splitlines()[1:] == [
        '  - {model: "chat", provider: deepseek, input: 3, output: 2}',
        '  - {model: "coder", provider: deepseek, input: 1, output: 2}',
    ]
    (note,) = made.notes
    assert note.startswith("has two names with different prices") and '"deepseek/chat"' in note


def test_prices_of_sound_and_characters_are_taken_where_nothing_is_paid_by_tokens() -> None:
    """C45: a second there is an hour here."""
    models = {
        "whisper-1": {"litellm_provider": "openai", "input_cost_per_second": 0.0001, "output_cost_per_second": 0.0001},
        "tts-1": {"litellm_provider": "openai", "input_cost_per_character": 1.5e-05},
        "both": {"litellm_provider": "openai", "input_cost_per_token": 1e-06, "input_cost_per_second": 0.0001},
    }
    made = import_litellm_prices(json.dumps(models).encode())

    assert made.text is not None
    assert 'model: "whisper-1", provider: openai, audio_hour: 0.36}' in made.text
    assert 'model: "tts-1", provider: openai, characters: 15}' in made.text
    assert 'model: "both", provider: openai, input: 1}' in made.text
    assert any("beside that of tokens" in note for note in made.notes)


def test_prices_of_other_units_than_tokens_are_taken() -> None:
    """Where a model has none of tokens, or these cost nothing; a query is a search unit of a model that ranks only."""
    found = import_litellm_prices(UNITS)
    assert found.text is not None
    assert found.text.splitlines()[1:] == [
        '  - {model: "rerank-v9", provider: cohere, search_unit: 0.002}',
        '  - {model: "ocr-9", provider: mistral, page: 0.004, annotated_page: 0.005,'
        " tiers: {batch: {page: 0.002, annotated_page: 0.0025}}}",
        '  - {model: "tts-9", provider: openai, characters: 15}',
        '  - {model: "heard", provider: openai, audio_hour: 0.36}',
        '  - {model: "searching", provider: openai, input: 1}',
        '  - {model: "both", provider: openai, input: 1}',
    ]
    assert len(found.notes) == 2
