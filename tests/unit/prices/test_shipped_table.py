"""The shipped price table: equal to what genai-prices computes, by recorded results of its own calc_price()."""

from __future__ import annotations

import json
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec.structs import replace

from velox.prices.book import PriceBook, Seller
from velox.prices.overrides import read_overrides
from velox.prices.price import Cost
from velox.prices.table import NEVER, Table, shipped_table
from velox.protocol.usage.token_usage import Bill, TokenUsage
from velox.providers.rows import PROVIDERS

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_costs.jsonl").read_text().splitlines()]
NOW = 1_795_401_000  # 23 November 2026


@pytest.fixture(scope="module")
def table() -> Table:
    return shipped_table()


@pytest.fixture(scope="module")
def book(table: Table) -> PriceBook:
    return PriceBook(table)


@pytest.mark.slow
def test_costs_equal_those_that_genai_prices_computes(book: PriceBook) -> None:
    n_equal = n_unknown = n_lacking = 0
    for provider, model, tier, now_s, counts, expected in RECORDED:
        usage = TokenUsage(**counts)
        price = book.find(Seller("up", provider), model, "", tier, now_s)
        cost = None if price is None else price.cost(usage)
        if cost is None:
            # What it takes for 0, for the plain price or for that of text, Velox takes for unknown.
            is_before = tier and now_s < NOW
            has_no_output = price is not None and bool(price.bands) and price.bands[0].output is None
            lacks = price is not None and price.lacks(usage) != ""
            assert is_before or has_no_output or lacks or Decimal(expected) == 0, (provider, model, tier)
            n_lacking += lacks
            n_unknown += not lacks
            continue
        # 23 prices of the source are not whole pico-dollars: at most one a token is lost.
        assert abs(Decimal(expected) * 10**12 - cost.pico) <= usage.input, (provider, model, tier, now_s, counts)
        n_equal += Decimal(expected) * 10**12 == cost.pico
    assert n_equal + n_lacking > 0.7 * len(RECORDED) > 300
    assert n_unknown < 0.3 * len(RECORDED)
    assert n_lacking < n_equal


def test_every_entry_is_there_or_listed_with_a_reason(table: Table) -> None:
    head, *lines = (json.loads(line) for line in (files("velox.prices") / "table.jsonl").read_text().splitlines())
    assert head["models"] == sum(len(line["models"]) for line in lines) == table.n_models > 2000
    assert all(reason for _, _, reason in head["left_out"])
    listed = {where.split(" ")[0] for where, _, _ in head["left_out"]}
    marked = {
        f"{line['id']}/{model[0]}"
        for line in lines
        for model in line["models"]
        for rates in [each[1] for each in model[2]] + [each[2] for each in model[3]]
        if "others" in rates
    }
    assert marked <= listed
    assert "Permission is hereby granted" in head["licence"]


SPOTS = [  # dollars per million: input, output, cached
    ("openai", "gpt-4o-2024-08-06", "", (2_500_000, 10_000_000, 1_250_000)),
    ("openai", "gpt-4o-mini", "", (150_000, 600_000, 75_000)),
    ("anthropic", "claude-sonnet-4-5-20250929", "", (3_000_000, 15_000_000, 300_000)),
    ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "", None),
    ("gemini", "gemini-2.5-flash", "", (300_000, 2_500_000, 30_000)),
    ("gemini", "models/gemini-2.5-flash", "", (300_000, 2_500_000, 30_000)),
    ("vertex", "google/gemini-2.5-flash", "", (300_000, 2_500_000, 30_000)),
    ("vertex", "publishers/google/models/gemini-2.5-flash", "", (300_000, 2_500_000, 30_000)),
    ("openrouter", "google/gemini-2.5-flash", "provisioned", (300_000, 2_500_000, 30_000)),
    ("xai", "grok-4", "", None),
]


@pytest.mark.parametrize(("provider", "model", "tier", "expected"), SPOTS)
def test_known_models_have_their_prices(
    book: PriceBook, provider: str, model: str, tier: str, expected: tuple[int, int, int] | None
) -> None:
    price = book.find(Seller("up", provider), model, "", tier, NOW)
    assert price is not None
    first = price.bands[0]
    if expected is not None:
        assert (first.input, first.output, first.cached) == expected


def test_the_model_that_answered_counts_before_the_one_asked_for(book: PriceBook) -> None:
    seller = Seller("up", "openai")
    answered = book.find(seller, "gpt-4o", "gpt-4o-mini-2024-07-18", "default", NOW)
    assert answered is not None
    assert answered.source == "openai/gpt-4o-mini"
    fallen_back = book.find(seller, "gpt-4o", "no-such-model", "", NOW)
    assert fallen_back is not None
    assert fallen_back.source == "openai/gpt-4o"


@pytest.mark.parametrize(
    ("provider", "model", "tier"),
    [
        ("openai", "no-such-model", ""),
        ("", "gpt-4o", ""),
        ("vllm", "gpt-4o", ""),
        ("openai", "gpt-4o", "gold"),
        ("openai", "models/gpt-4o", ""),
    ],
)
def test_what_is_not_known_has_no_price(book: PriceBook, provider: str, model: str, tier: str) -> None:
    assert book.find(Seller("up", provider), model, "", tier, NOW) is None


@pytest.mark.slow
def test_a_hostile_name_costs_no_time_and_no_memory(book: PriceBook) -> None:
    for n in range(5_000):
        assert book.find(Seller("up", "openai"), f"no-such-{n}", "", "", NOW) is None
    assert len(book._known) <= 2 * 2048
    assert book.find(Seller("up", "openai"), "gpt-4o-" * 100_000, "", "", NOW) is None


def test_a_price_by_the_time_of_day_changes_with_it(book: PriceBook) -> None:
    midnight = NOW - NOW % 86_400
    seller = Seller("up", "deepseek")
    by_day = book.find(seller, "deepseek-chat", "", "", midnight + 3_600)
    by_night = book.find(seller, "deepseek-chat", "", "", midnight + 20 * 3_600)
    assert by_day is not None
    assert by_night is not None
    assert by_day.bands[0].input == 2 * by_night.bands[0].input == 270_000


@pytest.mark.parametrize("hour", range(0, 24, 5))
def test_a_price_is_told_with_the_second_before_which_it_holds(book: PriceBook, hour: int) -> None:
    now_s = NOW - NOW % 86_400 + hour * 3_600 + 1_234
    seller = Seller("up", "deepseek")

    price, until_s = book.find_until(seller, "deepseek-chat", "", "", now_s)

    assert now_s < until_s <= now_s + 86_400
    assert all(book.find(seller, "deepseek-chat", "", "", now_s + s) is price for s in range(0, until_s - now_s, 600))
    assert book.find(seller, "deepseek-chat", "", "", until_s - 1) is price
    assert book.find(seller, "deepseek-chat", "", "", until_s) is not price


def test_a_price_that_nothing_follows_holds_for_ever(book: PriceBook) -> None:
    price, until_s = book.find_until(Seller("up", "openai"), "gpt-4o", "", "", NOW)
    assert price is not None
    assert until_s == NEVER


def test_each_provider_of_the_rows_is_in_the_table_or_is_an_own_server(table: Table) -> None:
    own = {"ollama", "vllm", "sglang", "llamacpp", "lmstudio", "openai-compatible"}
    missing = {name for name in PROVIDERS if not table.knows(name)}
    assert missing == own


def test_an_address_tells_the_provider(table: Table) -> None:
    assert table.provider_of("https://api.openai.com/v1") == "openai"
    assert table.provider_of("http://10.0.0.1:8000") is None


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "omni-moderation-latest"),
        ("openai", "text-moderation-stable"),
        ("openrouter", "openai/gpt-oss-20b:free"),
        ("openrouter", "new/model:free"),
    ],
)
def test_what_is_given_away_costs_nothing(book: PriceBook, provider: str, model: str) -> None:
    """The source has no rates for it. Without a price, budgets in dollars refuse it."""
    price = book.find(Seller("up", provider), model, "", "", NOW)

    assert price is not None and price.cost(TokenUsage(1000, 0)) == price.cost(TokenUsage(9, 100)) == Cost(0)
    assert book.find(Seller("up", "cerebras"), "qwen-3-coder-480b", "", "", NOW) is None  # nobody knows why


@pytest.mark.parametrize("model", ["stealth/crouton-alpha", "openai/gpt-oss-20b:free"])
def test_a_bill_is_the_cost_of_a_model_that_the_table_has_no_rates_of(book: PriceBook, model: str) -> None:
    """A search at a model that is free costs as everywhere."""
    price = book.find(Seller("up", "openrouter"), model, "", "", NOW)

    assert price is not None and price.cost(TokenUsage(9, 9, bill=Bill(7000, "openrouter"))) == Cost(7000)


def test_claude_that_is_kept_in_the_us_costs_a_tenth_more(book: PriceBook) -> None:
    """Its tokens, not its searches; and not at who resells it, or where the user has a price of his own."""
    used = TokenUsage(1000, 100, 400, 200, 50, web_searches=1)
    searches = 10**10

    def cost(provider: str, *, is_regional: bool, prices: PriceBook = book) -> int:
        price = prices.find(Seller("up", provider), "claude-opus-4-6", "", "", NOW)
        found = None if price is None else price.cost(replace(used, is_regional=is_regional))
        assert found is not None
        return found.pico

    usual = cost("anthropic", is_regional=False)
    assert cost("anthropic", is_regional=True) - searches == (usual - searches) * 11 // 10
    used = replace(used, web_searches=None)
    assert cost("vertex", is_regional=True) == cost("vertex", is_regional=False)
    own = PriceBook(
        book.table, read_overrides([{"upstream": "up", "input": "5", "output": "25", "web_search": "0.01"}])
    )
    assert cost("anthropic", is_regional=True, prices=own) == cost("anthropic", is_regional=False, prices=own)


@pytest.mark.parametrize(
    ("provider", "model", "usage", "lacks"),
    [
        # The source has no rate of their sound, which costs 16 times what their text does.
        ("openai", "gpt-4o-audio-preview", TokenUsage(100, 10, audio_input=50), "audio_input"),
        ("openai", "gpt-4o-audio-preview", TokenUsage(100, 10, audio_output=5), "audio_output"),
        ("openai", "gpt-4o-mini-audio-preview", TokenUsage(100, 10, audio_input=1), "audio_input"),
        ("azure", "gpt-4o-audio-preview", TokenUsage(100, 10, audio_input=50), "audio_input"),
        ("openai", "gpt-4o", TokenUsage(100, 10, image_output=5), "image_output"),
        ("openai", "gpt-5-image", TokenUsage(100, 10, image_output=10), "image_output"),
        ("openai", "gpt-4-turbo", TokenUsage(100, 10, 50), "cached"),
        ("openai", "gpt-audio", TokenUsage(100, 10, 50, audio_input=60), "cached"),
        ("bedrock", "us.anthropic.claude-3-7-sonnet-20250219-v1:0", TokenUsage(100, 10, 0, 60, 20), "written_1h"),
        ("groq", "llama-3.3-70b-versatile", TokenUsage(100, 10, web_searches=1), "web_search"),
        ("gemini", "gemini-2.5-flash", TokenUsage(100, 10, audio_output=1), "audio_output"),
        # Which of the cached tokens are sound, at three times the price, is not told.
        ("gemini", "gemini-2.5-flash", TokenUsage(100, 10, 50, audio_input=60), "cached"),
        ("openai", "gpt-image-1", TokenUsage(100, 10, 50, image_input=60), "cached"),
    ],
)
def test_kind_of_tokens_without_a_rate_has_no_cost(
    book: PriceBook, provider: str, model: str, usage: TokenUsage, lacks: str
) -> None:
    """M11: it is not billed as text, whose price it does not have. Without tokens of that kind the cost is known."""
    price = book.find(Seller("up", provider), model, "", "", NOW)
    assert price is not None
    assert (price.cost(usage), price.lacks(usage)) == (None, lacks)
    text = TokenUsage(100, 10)
    assert price.cost(text) is not None
    assert price.lacks(text) == ""


def test_kinds_that_cost_the_same_by_what_the_vendor_says_have_the_rate_of_it(book: PriceBook) -> None:
    for provider, model, usage in (
        ("gemini", "gemini-2.5-flash", TokenUsage(100, 10, image_input=50)),
        ("gemini", "gemini-2.5-flash", TokenUsage(100, 10, reasoning=5)),
        ("openai", "gpt-4o", TokenUsage(100, 10, written=50)),
        ("openai", "o3", TokenUsage(100, 10, reasoning=5)),
    ):
        price = book.find(Seller("up", provider), model, "", "", NOW)
        assert price is not None
        assert price.cost(usage) == price.cost(TokenUsage(100, 10)) is not None


@pytest.mark.parametrize(("model", "image_cached"), [("gpt-image-1", 2_500_000), ("gpt-image-1.5", 2_000_000)])
def test_pictures_from_a_cache_have_their_own_rate(book: PriceBook, model: str, image_cached: int) -> None:
    price = book.find(Seller("up", "openai"), model, "", "", NOW)
    assert price is not None
    text = price.bands[0].cached
    cost = price.cost(TokenUsage(100, 0, 100, image_input=60, image_cached=60))
    assert text is not None and cost is not None and text < image_cached
    assert cost.pico == 60 * image_cached + 40 * text
    # All of the prompt is pictures: so is what was in the cache.
    cost = price.cost(TokenUsage(100, 0, 30, image_input=100))
    assert cost is not None
    assert cost.pico == 30 * image_cached + 70 * (price.bands[0].image_input or 0)


def test_tier_has_no_rate_of_another_one(book: PriceBook) -> None:
    """In a batch, what the source has no rate of is unknown: it is not billed at the plain price."""
    price = book.find(Seller("up", "openai"), "gpt-4o", "", "batch", NOW)
    assert price is not None
    assert price.cost(TokenUsage(100, 10)) is not None
    assert price.lacks(TokenUsage(100, 10, 50)) == "cached"


def test_what_xai_bills_counts_before_the_rates_of_its_tokens(table: Table) -> None:
    """Its searches are in it, and its discounts. Who resells its models has other prices; so have those of the user."""
    told = TokenUsage(1_000_000, 0, bill=Bill(5_123_456_789_000, "x-ai"))
    own = read_overrides([{"model": "grok-4.5", "upstream": "mine", "input": "1"}])
    book = PriceBook(table, own)

    def nano(seller: Seller, model: str, usage: TokenUsage) -> int:
        price = book.find(seller, model, "", "", NOW)
        cost = None if price is None else price.cost(usage)
        assert cost is not None
        return cost.nano

    assert nano(Seller("up", "xai"), "grok-4.5", told) == 5_123_456_789
    assert nano(Seller("up", "x-ai"), "grok-4.5", told) == 5_123_456_789
    plain = replace(told, bill=None)
    for seller in (Seller("up", "openrouter"), Seller("mine", "xai")):
        model = "x-ai/grok-4.5" if seller.provider == "openrouter" else "grok-4.5"
        assert nano(seller, model, told) == nano(seller, model, plain) != 5_123_456_789


@pytest.mark.parametrize("tier", ["scale", "reserved"])
def test_capacity_that_is_paid_for_by_time_counts_as_without(book: PriceBook, table: Table, tier: str) -> None:
    """Else nothing of it would be known, and its budgets would count a guess."""
    plain, found = (book.find(Seller("up", "openai"), "gpt-5", "", each, NOW) for each in ("", tier))
    assert plain is not None and found is not None and found.bands == plain.bands
    own = read_overrides(
        [{"model": "gpt-5", "input": "1", "tiers": {tier: {"input": "0"}}}, {"model": "o*", "input": "2"}]
    )
    mine = PriceBook(table, own)
    for model, price in (("gpt-5", 0), ("o9", 2_000_000)):
        given = mine.find(Seller("up", "openai"), model, "", tier, NOW)
        assert given is not None and given.bands[0].input == price


@pytest.mark.parametrize("tier", ["priority", "flex"])
def test_what_xai_bills_counts_in_a_tier_without_a_price_too(table: Table, tier: str) -> None:
    """It tells a premium that is in no table; where it does not tell, the cost is as unknown as anybody's."""
    book = PriceBook(table, ())
    told = TokenUsage(1_000_000, 0, bill=Bill(5_123_456_789_000, "x-ai"))

    price = book.find(Seller("up", "xai"), "grok-4.5", "", tier, NOW)

    assert price is not None and price.source == f"x-ai/grok-4.5 ({tier})"
    assert not price.bands, "`velox prices` shows no rates for it"
    cost = price.cost(told)
    assert cost is not None and cost.nano == 5_123_456_789
    assert price.cost(replace(told, bill=None)) is None
    resold = book.find(Seller("up", "openrouter"), "x-ai/grok-4.5", "", tier, NOW)
    assert resold is not None and resold.cost(told) is None


@pytest.mark.parametrize("answered", ["", "maker/new-1-20261127"])
@pytest.mark.parametrize(
    ("provider", "biller"), [("openrouter", "openrouter"), ("perplexity", "perplexity"), ("xai", "x-ai")]
)
def test_a_bill_is_the_cost_of_a_model_that_is_in_no_table(
    book: PriceBook, provider: str, biller: str, answered: str
) -> None:
    """It is as new as the vendor's latest model; without a bill nothing is known of what a call costs."""
    price = book.find(Seller("up", provider), "maker/new-1", answered, "", NOW)

    assert price is not None and not price.bands
    assert price.cost(TokenUsage(9, 1)) is None
    cost = price.cost(TokenUsage(9, 1, bill=Bill(1_234_000, biller)))
    assert cost is not None and cost.nano == 1_234
    assert price.cost(TokenUsage(9, 1, bill=Bill(1_234_000, "somebody"))) is None


def test_rates_of_the_model_that_was_asked_for_count_where_no_bill_is_told(book: PriceBook) -> None:
    """Also when the reply calls the model by a name that is in no table."""
    asked = book.find(Seller("up", "openrouter"), "openai/gpt-4o", "", "", NOW)
    answered = book.find(Seller("up", "openrouter"), "openai/gpt-4o", "openai/gpt-4o-of-today", "", NOW)
    assert asked is not None and answered is not None and answered.bands == asked.bands != ()
