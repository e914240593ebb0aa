"""What a call costs: whole numbers that equal exact fractions, and the mistakes that others made."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from velox.prices.book import PriceBook, Seller
from velox.prices.price import Cost, Price, compiled
from velox.prices.table import shipped_table
from velox.protocol.usage.token_usage import TokenUsage, Units
from velox.protocol.usage.tokens import token_usage, with_tools

NOW = 1_795_401_000


def price(**rates: object) -> Price:
    return Price(compiled(rates), "test", "1")  # type: ignore[arg-type]


PLAIN = {"input_mtok": 2_500_000, "output_mtok": 10_000_000, "cache_read_mtok": 1_250_000}


def pico(of: Price, usage: TokenUsage) -> int:
    cost = of.cost(usage)
    assert cost is not None
    return cost.pico


def test_case_21_twelve_tokens_of_an_embedding_cost_240_nano_dollars() -> None:
    cost = price(input_mtok=20_000).cost(TokenUsage(12, 0))
    assert cost is not None
    assert (cost.nano, cost.dollars()) == (240, "0.00000024")


@pytest.mark.parametrize(("amount", "nano"), [(499, 0), (500, 1), (1499, 1), (1500, 2), (0, 0)])
def test_a_cost_is_rounded_once_half_up(amount: int, nano: int) -> None:
    assert Cost(amount).nano == nano


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (10**12, "1"), (1_500_000_000_000, "1.5"), (10**18, "1000000"), (10**3, "0.000000001")],
)
def test_dollars_are_a_plain_decimal(amount: int, text: str) -> None:
    assert Cost(amount).dollars() == text


def test_openai_counts_cached_tokens_inside_the_prompt_and_anthropic_beside_it() -> None:
    openai = token_usage(
        {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}
    )
    anthropic = token_usage({"input_tokens": 40, "output_tokens": 10, "cache_read_input_tokens": 60})
    of = price(**PLAIN)
    expected = 40 * 2_500_000 + 60 * 1_250_000 + 10 * 10_000_000
    assert pico(of, openai) == pico(of, anthropic) == expected


def test_a_long_prompt_changes_the_rates_of_its_cache_too() -> None:
    of = price(
        input_mtok=[100, [200_000, 200]],
        output_mtok=[1000, [200_000, 1500]],
        cache_read_mtok=[10, [200_000, 20]],
        cache_write_mtok=[125, [200_000, 250]],
    )
    below = TokenUsage(200_000, 1, 100_000, 50_000)
    assert pico(of, below) == 50_000 * 100 + 100_000 * 10 + 50_000 * 125 + 1000
    above = TokenUsage(200_001, 1, 100_000, 50_000)  # mostly cached: the whole prompt decides
    assert pico(of, above) == 50_001 * 200 + 100_000 * 20 + 50_000 * 250 + 1500


def test_a_batch_beyond_the_long_context_has_the_batch_price_of_that_band() -> None:
    table = shipped_table()
    found = 0
    for model in ("gpt-5.4", "gpt-5.5", "gpt-6-sol"):
        plain = PriceBook(table).find(Seller("up", "openai"), model, "", "", NOW)
        batch = PriceBook(table).find(Seller("up", "openai"), model, "", "batch", NOW)
        if plain is None or batch is None or len(plain.bands) == 1:
            continue
        found += 1
        long = TokenUsage(300_000, 100, 1_000)
        assert 2 * pico(batch, long) == pico(plain, long), model
    assert found


def test_cache_writes_are_billed_with_what_was_asked_for_or_not() -> None:
    usage = token_usage(
        {"prompt_tokens": 2_000, "completion_tokens": 0, "prompt_tokens_details": {"cache_write_tokens": 1_024}}
    )
    assert pico(price(input_mtok=100, output_mtok=0, cache_write_mtok=125), usage) == 976 * 100 + 1_024 * 125


def test_anthropics_cache_costs_a_quarter_more_for_minutes_and_twice_for_an_hour_and_a_tenth_read() -> None:
    of = PriceBook(shipped_table()).find(Seller("up", "anthropic"), "claude-sonnet-4-5", "", "standard", NOW)
    assert of is not None
    band = of.bands[0]
    assert (4 * band.written, band.written_1h, 10 * band.cached) == (5 * band.input, 2 * band.input, band.input)
    usage = TokenUsage(1_000, 0, 0, 1_000, 400)
    assert pico(of, usage) == 600 * band.written + 400 * band.written_1h


def test_the_tier_of_the_reply_decides() -> None:
    book = PriceBook(shipped_table())
    seller = Seller("up", "openai")
    usage = TokenUsage(1_000, 1_000)
    flex, plain, priority = (book.find(seller, "gpt-5", "", tier, NOW) for tier in ("flex", "default", "priority"))
    assert flex is not None
    assert plain is not None
    assert priority is not None
    assert pico(flex, usage) < pico(plain, usage) < pico(priority, usage)


def test_audio_costs_its_own_rate_and_not_that_of_text_as_well() -> None:
    of = price(input_mtok=100, output_mtok=200, input_audio_mtok=4_000, output_audio_mtok=8_000, cache_read_mtok=10)
    usage = TokenUsage(1_000, 50, audio_input=600, audio_output=40)
    assert pico(of, usage) == 400 * 100 + 600 * 4_000 + 10 * 200 + 40 * 8_000


def test_no_token_of_an_answer_is_both_reasoning_and_sound() -> None:
    """What is told of both is cut to the answer together; reasoning comes first."""
    of = price(
        input_mtok=0, output_mtok=200, output_audio_mtok=8_000, output_image_mtok=9_000, output_reasoning_mtok=50
    )
    usage = TokenUsage(0, 50, reasoning=20, audio_output=25, image_output=40)
    assert pico(of, usage) == 20 * 50 + 25 * 8_000 + 5 * 9_000
    assert pico(of, replace(usage, audio_output=40)) == 20 * 50 + 30 * 8_000
    alike = price(input_mtok=0, output_mtok=200, output_audio_mtok=8_000)
    assert pico(alike, replace(usage, audio_output=40, image_output=0)) == 40 * 8_000 + 10 * 200


@pytest.mark.parametrize("usage", [TokenUsage(), TokenUsage(10), TokenUsage(None, 10)])
def test_tokens_that_are_not_known_have_no_cost(usage: TokenUsage) -> None:
    assert price(**PLAIN).cost(usage) is None


def test_an_answer_that_another_model_worked_for_has_no_cost() -> None:
    """Its tokens are not told among those of the model, and cost otherwise."""
    usage = TokenUsage(10, 20)
    assert price(**PLAIN).cost(usage) is not None
    assert price(**PLAIN).cost(replace(usage, has_others=True)) is None


def test_an_answer_without_a_rate_has_no_cost_and_never_0() -> None:
    assert price(input_mtok=20_000).cost(TokenUsage(10, 1)) is None


COUNTS = st.none() | st.integers(0, 10**9)
RATES = st.integers(0, 10**9)
PARTS = (
    *("cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "cache_audio_read_mtok", "input_audio_mtok"),
    *(
        "cache_image_read_mtok",
        "output_audio_mtok",
        "input_image_mtok",
        "output_image_mtok",
        "output_reasoning_mtok",
        "web_searches_kcount",
    ),
)


@given(
    # Not st.builds(), which makes up other counts, too: those of sound and pictures have rates of their own.
    st.tuples(*[COUNTS] * 6).map(lambda counts: TokenUsage(*counts, has_others=False)),
    st.fixed_dictionaries(
        {"input_mtok": RATES, "output_mtok": RATES},
        optional={"cache_read_mtok": RATES, "cache_write_mtok": RATES, "cache_write_1h_mtok": RATES},
    ),
    st.lists(st.tuples(st.integers(0, 10**9), RATES), max_size=3),
)
def test_a_cost_is_the_exact_sum_over_the_parts(
    usage: TokenUsage, rates: dict[str, int], tiers: list[tuple[int, int]]
) -> None:
    tiers.sort()
    cost = price(**{**rates, "input_mtok": [rates["input_mtok"], *map(list, tiers)]}).cost(usage)
    if usage.input is None or usage.output is None:
        assert cost is None
        return
    text = rates["input_mtok"]
    for above, rate in tiers:
        text = rate if usage.input > above else text
    cached = min(usage.cached or 0, usage.input)
    written = min(usage.written or 0, usage.input - cached)
    hour = min(usage.written_1h or 0, written)
    needed = {"cache_read_mtok": cached, "cache_write_mtok": written - hour, "cache_write_1h_mtok": hour}
    if any(n and unit not in rates for unit, n in needed.items()):
        assert cost is None
        return
    million = Fraction(1, 10**6)
    exact = (
        (usage.input - cached - written) * text * million
        + cached * rates.get("cache_read_mtok", 0) * million
        + (written - hour) * rates.get("cache_write_mtok", 0) * million
        + hour * rates.get("cache_write_1h_mtok", 0) * million
        + usage.output * rates["output_mtok"] * million
    ) / 10**6  # micro-dollars of a million tokens
    assert cost is not None
    assert Fraction(cost.pico, 10**12) == exact
    assert abs(Fraction(cost.nano, 10**9) - exact) <= Fraction(1, 2 * 10**9)


@given(
    st.builds(TokenUsage, *[COUNTS] * 13, has_others=st.just(False)),
    st.fixed_dictionaries(
        dict.fromkeys(("input_mtok", "output_mtok"), RATES), optional=dict.fromkeys(("requests_kcount", *PARTS), RATES)
    ),
)
@example(
    TokenUsage(0, 100, reasoning=100, audio_output=100),
    {"input_mtok": 0, "output_mtok": 10, "output_reasoning_mtok": 1, "output_audio_mtok": 1},
)
@example(
    TokenUsage(0, 100, reasoning=60, audio_output=60, image_output=60),
    {"input_mtok": 0, "output_mtok": 10, "output_reasoning_mtok": 0, "output_image_mtok": 0, "output_audio_mtok": 0},
)
def test_no_usage_has_a_cost_below_nothing(usage: TokenUsage, rates: dict[str, int]) -> None:
    cost = price(**rates).cost(usage)
    assert cost is None or cost.pico >= 0


@given(st.integers(0, 10**9), st.integers(0, 10**13), st.integers(0, 20_000))
def test_sound_costs_exactly_by_its_length_and_at_least_what_is_paid_at_least(ms: int, hour: int, least: int) -> None:
    """C45: half a pico-dollar is the most that is rounded."""
    of = price(input_audio_hours=hour, least_ms=least)
    exact = Fraction(max(ms, least) * hour, 3_600_000)

    assert abs(pico(of, TokenUsage(units=Units(sound_ms=ms))) - exact) <= Fraction(1, 2)
    assert of.cost(TokenUsage(10, 10)) is None  # its length is not told


def test_speech_costs_by_its_letters_and_not_by_tokens() -> None:
    """C45: tokens that are estimated beside it cost nothing more."""
    of = price(input_mchars=15_000_000)

    assert pico(of, TokenUsage(10, None, units=Units(letters=7))) == 7 * 15_000_000
    assert of.cost(TokenUsage(10, 10)) is None


@pytest.mark.parametrize(
    ("provider", "model", "usage", "dollars"),
    [
        ("openai", "whisper-1", TokenUsage(units=Units(sound_ms=3_600_000)), "0.36"),
        ("groq", "whisper-large-v3", TokenUsage(units=Units(sound_ms=1000)), "0.000308333"),
        ("openai", "tts-1-hd", TokenUsage(units=Units(letters=1_000_000)), "30"),
        ("mistral", "voxtral-mini-2602", TokenUsage(400, 30, units=Units(sound_ms=3_600_000)), "0.18"),
    ],
)
def test_models_that_are_paid_by_length_have_a_price(
    provider: str, model: str, usage: TokenUsage, dollars: str
) -> None:
    """C45: in the table that comes with Velox."""
    found = PriceBook(shipped_table()).find(Seller("main", provider), model, "", "", NOW)
    cost = None if found is None else found.cost(usage)

    assert cost is not None and cost.dollars() == dollars


@pytest.mark.parametrize(
    ("tools", "searches", "has_others"),
    [
        (None, None, False),
        ("x", None, False),
        ({"web_search": {"num_requests": 3}}, 3, False),
        ({"image_gen": {"total_tokens": 0}, "web_search": {"num_requests": 0}}, None, False),
        ({"image_gen": {"output_tokens": 7000}}, None, True),
        ({"image_gen": [], "web_search": None}, None, False),
    ],
)
def test_what_tools_used_is_read_beside_a_usage(tools: object, searches: int | None, has_others: bool) -> None:
    """C44: a picture was made by another model, at another price."""
    found = with_tools(TokenUsage(1, 2), tools)

    assert (found.web_searches, found.has_others) == (searches, has_others)
