"""A user's own prices: which of them counts, and what is said of one that is mistyped."""

from __future__ import annotations

from typing import Any

import pytest

from velox.prices.book import PriceBook, Seller
from velox.prices.overrides import PriceError, read_overrides
from velox.prices.price import Cost
from velox.prices.table import shipped_table
from velox.protocol.usage.token_usage import TokenUsage, Units

NOW = 1_795_401_000
OWN, OPENAI = Seller("own"), Seller("main", "openai")
TABLE = shipped_table()


def rate(entries: list[dict[str, Any]], seller: Seller, model: str, tier: str = "", now_s: int = NOW) -> int | None:
    book = PriceBook(TABLE, read_overrides(entries), "f")
    price = book.find(seller, model, "", tier, now_s)
    return None if price is None else price.bands[0].input


def entry(price: str, **fields: Any) -> dict[str, Any]:
    return {**fields, "input": price, "output": "1"}


def test_an_exact_name_counts_before_a_pattern_before_an_upstream_before_the_table() -> None:
    entries = [entry("3", upstream="main"), entry("1", model="gpt-4o"), entry("2", model="gpt-*")]
    assert rate(entries, OPENAI, "gpt-4o") == 1_000_000
    assert rate(entries, OPENAI, "gpt-5") == 2_000_000
    assert rate(entries, OPENAI, "o3") == 3_000_000
    assert rate(entries[2:], OPENAI, "o3") == rate([], OPENAI, "o3") is not None
    assert rate(entries, OWN, "unknown") is None


def test_a_price_is_for_its_upstream_and_provider_only() -> None:
    entries = [entry("1", model="m", upstream="own"), entry("2", model="m", provider="openai")]
    assert rate(entries, OWN, "m") == 1_000_000
    assert rate(entries, OPENAI, "m") == 2_000_000
    assert rate(entries, Seller("else", "groq"), "m") is None


def test_a_price_is_in_force_from_its_day_on_until_another() -> None:
    entries = [entry("1", model="m"), entry("2", model="m", **{"from": "2026-11-24", "until": "2026-11-26"})]
    day = NOW - NOW % 86_400
    rates = [rate(entries, OWN, "m", now_s=day + n * 86_400 - (n == 1)) for n in (0, 1, 2, 3)]
    assert rates == [1_000_000, 1_000_000, 2_000_000, 1_000_000]


@pytest.mark.parametrize("above", [("200_000", "272000"), ("272000", "200_000"), ("9_99", "1000"), ("1000", "9_99")])
def test_rates_of_long_prompts_go_by_their_lengths_however_these_are_written(above: tuple[str, str]) -> None:
    least, most = sorted(above, key=int)
    rates = {least: "2", most: "3"}
    entries = [entry("1", model="m", above={each: {"input": rates[each]} for each in above})]
    price = PriceBook(TABLE, read_overrides(entries)).find(OWN, "m", "", "", NOW)

    assert price is not None
    assert [(band.above, band.input) for band in price.bands] == [
        (-1, 1_000_000),
        (int(least), 2_000_000),
        (int(most), 3_000_000),
    ]


def test_own_servers_cost_nothing_only_where_it_is_said() -> None:
    book = PriceBook(TABLE, read_overrides([{"upstream": "own", "free": "true"}]))
    price = book.find(OWN, "anything", "", "flex", NOW)
    assert price is not None
    assert price.cost(TokenUsage(10, 10)) == Cost(0)
    assert book.find(Seller("other"), "anything", "", "", NOW) is None


@pytest.mark.parametrize("tier", ["", "default", "standard", "on_demand", "provisioned"])
def test_the_plain_tier_has_several_names(tier: str) -> None:
    assert rate([entry("1", model="m")], OWN, "m", tier) == 1_000_000


def test_a_tier_has_its_own_price_or_none() -> None:
    entries = [entry("2", model="m", tiers={"batch": {"input": "1", "output": "1"}})]
    assert [rate(entries, OWN, "m", tier) for tier in ("", "default", "batch", "flex")] == [
        *(2_000_000, 2_000_000, 1_000_000, None)
    ]


def test_rates_of_long_prompts() -> None:
    [override] = read_overrides(
        [
            entry(
                "1",
                model="m",
                cached="0.1",
                above={"200000": {"input": "2"}, "500_000": {"input": "3", "cached": "0.3"}},
            )
        ]
    )
    assert [(band.above, band.input, band.cached, band.output) for band in override.tiers[""]] == [
        (-1, 1_000_000, 100_000, 1_000_000),
        (200_000, 2_000_000, 100_000, 1_000_000),
        (500_000, 3_000_000, 300_000, 1_000_000),
    ]


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"model": "m", "inptu": "1"}, "prices[0].inptu: unknown field"),
        ({"model": "m"}, "prices[0].input: expected dollars"),
        ({"input": "1"}, "prices[0]: expected `model`"),
        ({"model": "m", "input": "-1"}, "prices[0].input"),
        ({"model": "m", "input": "1e3"}, "prices[0].input"),
        ({"model": "m", "input": "nan"}, "prices[0].input"),
        ({"model": "m", "input": "0.0000001"}, "prices[0].input: expected at most 6 digits"),
        ({"model": "m", "input": "1", "from": "tomorrow"}, "prices[0].from"),
        ({"model": "m", "input": "1", "from": "2026-02-02", "until": "2026-02-01"}, "prices[0].until"),
        ({"model": "m", "free": "yes"}, "prices[0].free"),
        ({"model": "m", "free": "true", "input": "1"}, "prices[0].input: expected no price beside"),
        ({"model": "m", "input": "1", "above": {"many": {"input": "2"}}}, "prices[0].above.many"),
        ({"model": "m", "input": "1", "above": {"9": {"cached": "2"}}}, "prices[0].above.9"),
        ({"model": "m", "input": "1", "tiers": {"batch": {"inptu": "2"}}}, "prices[0].tiers.batch.inptu"),
        ({"model": "m", "input": "1", "tiers": "batch"}, "prices[0].tiers"),
        ({"model": "", "input": "1"}, "prices[0].model"),
        ("m", "prices[0]: expected fields"),
    ],
)
def test_a_mistyped_field_is_named_by_its_path(wrong: Any, path: str) -> None:
    with pytest.raises(PriceError) as caught:
        read_overrides([wrong])
    assert str(caught.value).startswith(path)


def test_an_embedding_needs_no_price_of_an_answer_and_a_chat_does() -> None:
    [override] = read_overrides([{"model": "embed", "input": "0.02"}])
    assert override.tiers[""][0].output is None


def test_sound_and_speech_have_prices_by_their_length() -> None:
    """C45: dollars an hour, and for a million characters."""
    entries = [
        {"model": "w", "upstream": "own", "audio_hour": "0.36"},
        {"model": "s", "upstream": "own", "characters": "15"},
    ]
    book = PriceBook(TABLE, read_overrides(entries), "f")
    heard, spoken = (book.find(OWN, model, "", "", NOW) for model in "ws")

    assert heard is not None and spoken is not None
    costs = [heard.cost(TokenUsage(units=Units(sound_ms=60_000))), spoken.cost(TokenUsage(units=Units(letters=1000)))]
    assert [cost and cost.dollars() for cost in costs] == ["0.006", "0.015"]
