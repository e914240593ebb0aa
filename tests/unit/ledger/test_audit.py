"""An auditor recomputes what calls cost: from the columns of a row and what `velox prices` prints, with decimals only.

The rules are those of docs/ledger.md, written here a second time. Nothing of velox.prices is used.
"""

from __future__ import annotations

import csv
import datetime
import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import astuple, replace

from tests.unit.gateway.limits.recorded_calls import CallRecords
from tests.unit.gateway.limits.test_calls import Attempt
from velox.cli import main
from velox.gateway.limits.calls import Answered, CallLog
from velox.gateway.limits.metering import Usage
from velox.ledger.record import Tokens
from velox.ledger.report import CALL_NAMES, call_rows, lines
from velox.policy.limits.estimate import Estimator
from velox.protocol.usage.token_usage import Bill, TokenUsage, Units
from velox.runtime.priced import call_prices
from velox.settings import load
from velox.types import BodyFields, Caller, Endpoint

# Columns of what is paid that are no tokens.
OTHERS: Final = (
    *("web_searches", "audio_ms", "characters", "pictures", "video_ms", "pages", "annotated_pages", "search_units"),
)
NOON: Final = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)
PRICES: Final = """
prices:
  - model: all-kinds
    input: 1.10
    output: 8.80
    cached: 0.123456
    written: 1.375
    written_1h: 2.2
    audio_input: 32.1
    audio_cached: 0.4
    audio_output: 64.3
    image_input: 5.7
    image_cached: 1.9
    image_output: 40.9
    reasoning: 9.9
    web_search: 0.0125
    request: 0.003
    above: {1000: {input: 2.21, output: 17.63, cached: 0.25}}
    tiers: {flex: {input: 0.551, output: 4.401, web_search: 0.01}}
  - {model: heard, audio_hour: 0.111}
  - {model: spoken, characters: 15.5}
  - {model: drawn, picture: 0.04, tiers: {hd 1024x1792: {picture: 0.1234}}}
  - {model: filmed, video_second: 0.1, tiers: {video 1792x1024: {video_second: 0.5}}}
  - {model: read, page: 0.002, annotated_page: 0.003}
  - {model: ranked, search_unit: 0.0025}
"""
FILE: Final = """
upstreams:
  - {name: own, origin: "http://127.0.0.1:9"}
  - {name: claude, origin: "https://api.anthropic.com", provider: anthropic, key: env:SOME_KEY}
  - {name: openai, origin: "https://api.openai.com", provider: openai, key: env:SOME_KEY}
  - {name: groq, origin: "https://api.groq.com", provider: groq, key: env:SOME_KEY}
  - {name: azure, origin: "https://x.openai.azure.com", provider: azure, key: env:SOME_KEY}
  - {name: mistral, origin: "https://api.mistral.ai", provider: mistral, key: env:SOME_KEY}
  - {name: cohere, origin: "https://api.cohere.com", provider: cohere, key: env:SOME_KEY}
  - {name: google, origin: "https://generativelanguage.googleapis.com", provider: gemini, key: env:SOME_KEY}
"""
UNITS: Final = Units(*range(11, 11 + len(Units._fields)))
FULL: Final = TokenUsage(
    900, 400, cached=300, written=120, written_1h=50, reasoning=90, audio_input=170, audio_cached=110,
    audio_output=60, image_input=40, image_output=80, web_searches=3, image_cached=15, tier="default",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "prices.yaml").write_text(PRICES)
    path = tmp_path / "velox.yaml"
    path.write_text(f"{FILE}\nprices: {tmp_path / 'prices.yaml'}\n")
    return path


def recorded(folder: Path, config: Path, upstream: str, asked: str, usage: TokenUsage) -> dict[str, str]:
    """Return the row of CSV of a call whose reply told this usage."""
    settings = load({"SOME_KEY": "k"}, {"VELOX_CONFIG": str(config)})
    records = CallRecords(folder)
    log = CallLog(records.writer, call_prices(settings), lambda: int(NOON.timestamp() * 1e9), lambda: 0)
    fields = BodyFields(asked)
    calls = log.request(
        b"vx-0000abcd-1",
        Caller("ada", id=b"a" * 8, account="key_ada"),
        Endpoint.CHAT,
        "all",
        fields,
        Estimator().estimate(Endpoint.CHAT, 100, fields),
        path="/v1/chat/completions",
    )
    attempt = Attempt(may_have_worked=True)
    calls.begin(attempt, upstream, asked)
    calls.end(Answered(attempt, 200, None, True, True, 0, Usage(usage.input, usage.output, True), usage))
    (row,) = csv.DictReader(lines(call_rows(records.calls), "csv", CALL_NAMES))
    return dict(row)


def recomputed(row: dict[str, str], printed: dict[str, Any]) -> str:
    """Return the cost of a call in dollars, of its row and what `velox prices --json` printed for it."""
    n = {name: int(row[name] or 0) for name in row if name.endswith("_tokens") or name in OTHERS}
    if not {"input", "output", "request"} & printed["price"][0].keys():
        rate = {name: Decimal(rate) for name, rate in printed["price"][0].items() if rate is not None}
        cost = (
            max(n["audio_ms"], int(rate.get("least_ms", 0))) * rate.get("audio_hour", Decimal()) / 3_600_000
            + n["characters"] * rate.get("characters", Decimal()) / 10**6
            + n["pictures"] * rate.get("picture", Decimal())
            + n["video_ms"] * rate.get("video_second", Decimal()) / 1000
            + (n["pages"] - n["annotated_pages"]) * rate.get("page", Decimal())
            + n["annotated_pages"] * rate.get("annotated_page", Decimal())
            + n["search_units"] * rate.get("search_unit", Decimal())
        )
        return str(cost.quantize(Decimal("1E-9"), ROUND_HALF_UP))
    prompt, answer = n["input_tokens"], n["output_tokens"]
    rates = next(
        {name: None if rate is None else Decimal(rate) for name, rate in band.items() if name != "above"}
        for band in reversed(printed["price"])
        if band["above"] is None or prompt > band["above"]
    )
    # Each token of the prompt is of one kind, and has one rate; so has each of the answer.
    cached = min(n["cached_tokens"], prompt)
    written = min(n["cache_written_tokens"], prompt - cached)
    written_1h = min(n["cache_written_1h_tokens"], written)
    audio_cached = min(n["audio_cached_tokens"], cached, n["audio_input_tokens"])
    fresh = prompt - cached - written
    audio = min(n["audio_input_tokens"] - audio_cached, fresh)
    image_cached = min(n["image_cached_tokens"], cached - audio_cached, n["image_input_tokens"])
    image = min(n["image_input_tokens"] - image_cached, fresh - audio)
    kinds = {
        "input": fresh - audio - image,
        "cached": cached - audio_cached - image_cached,
        "image_cached": image_cached,
        "audio_cached": audio_cached,
        "written": written - written_1h,
        "written_1h": written_1h,
        "audio_input": audio,
        "image_input": image,
    }
    rest = answer
    for name, count in (
        ("reasoning", n["reasoning_tokens"]),
        ("audio_output", n["audio_output_tokens"]),
        ("image_output", n["image_output_tokens"]),
    ):
        if rates[name] is not None:
            kinds[name] = min(count, rest)
            rest -= kinds[name]
    kinds["output"] = rest
    tokens = sum((count * (rates[name] or Decimal()) for name, count in kinds.items()), Decimal()) / 10**6
    if any(count and rates[name] is None for name, count in kinds.items()):
        return ""
    if "regional" in row["flags"].split("|"):
        tokens = tokens * printed["regional_percent"] / 100
    cost = tokens + (rates.get("request") or 0) + n["web_searches"] * (rates.get("web_search") or Decimal())
    return str(cost.quantize(Decimal("1E-9"), ROUND_HALF_UP))


def printed_price(config: Path, row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(int(row["started_us"]) / 1e6, datetime.UTC).isoformat()
    command = ["prices", row["upstream_model"], "--upstream", row["upstream"], "--at", at, "--json"]
    command += ["--answered", row["answered_model"], "--tier", row["tier"], "--config", str(config)]
    assert main(command, {"SOME_KEY": "k"}) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    return dict(answer)


EACH_UNIT: Final = [
    ("own", "heard", TokenUsage(units=Units(sound_ms=83_457))),
    ("own", "heard", TokenUsage(400, 30, units=Units(sound_ms=83_457))),  # its tokens cost nothing more
    ("own", "spoken", TokenUsage(units=Units(letters=4_096))),
    ("own", "drawn", TokenUsage(units=Units(pictures=3))),
    ("own", "drawn", TokenUsage(units=Units(pictures=3), tier="hd 1024x1792")),
    ("own", "filmed", TokenUsage(units=Units(video_ms=8_000), tier="video 1792x1024")),
    ("own", "filmed", TokenUsage(units=Units(video_ms=12_000))),
    ("own", "read", TokenUsage(units=Units(pages=29))),
    ("own", "read", TokenUsage(units=Units(pages=29, annotated_pages=29))),
    ("own", "ranked", TokenUsage(units=Units(search_units=7))),
    ("openai", "whisper-1", TokenUsage(units=Units(sound_ms=83_457))),
    ("openai", "tts-1", TokenUsage(units=Units(letters=4_096))),
    ("groq", "whisper-large-v3", TokenUsage(units=Units(sound_ms=1_200))),  # ten seconds are paid at least
    ("azure", "dall-e-3", TokenUsage(units=Units(pictures=1))),
    ("azure", "dall-e-3", TokenUsage(units=Units(pictures=1), tier="hd 1792x1024")),
    ("azure", "sora-2-pro", TokenUsage(units=Units(video_ms=4_000), tier="video 1792x1024", model="sora-2-pro")),
    ("mistral", "mistral-ocr-latest", TokenUsage(units=Units(pages=29), model="mistral-ocr-2512")),
    ("mistral", "mistral-ocr-2512", TokenUsage(units=Units(pages=29, annotated_pages=29))),
    ("cohere", "rerank-v3.5", TokenUsage(units=Units(search_units=2))),
]


@pytest.mark.parametrize(("upstream", "asked", "usage"), EACH_UNIT)
def test_m12_cost_of_what_is_not_paid_by_tokens_is_recomputed(
    tmp_path: Path, config: Path, upstream: str, asked: str, usage: TokenUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    """M12: sound, speech, pictures, videos, pages and rankings: the row has their number, and which price it was."""
    row = recorded(tmp_path, config, upstream, asked, usage)
    printed = printed_price(config, row, capsys)
    assert (row["price"], row["prices"]) == (printed["source"], printed["version"])
    assert row["cost_usd"] == recomputed(row, printed) > "0.000000000"
    assert row["cost_state"] == "exact"


@pytest.mark.parametrize(
    ("asked", "usage"),
    [
        ("heard", TokenUsage(units=Units(letters=5))),  # a unit that the model is not paid by
        ("spoken", TokenUsage(10, 5)),
        ("drawn", TokenUsage(units=Units(pictures=1), tier="hd 512x512")),
        ("filmed", TokenUsage(units=Units(video_ms=1), tier="video 512x512")),
        ("ranked", TokenUsage(units=Units(search_units=1, pages=1))),
    ],
)
def test_unit_without_a_rate_has_no_known_cost(tmp_path: Path, config: Path, asked: str, usage: TokenUsage) -> None:
    """Nor has another size than those that have prices."""
    row = recorded(tmp_path, config, "own", asked, usage)
    assert (row["cost_usd"], row["cost_state"]) == ("", "unknown")


KINDS: Final = ("cached", "written", "reasoning", "audio_input", "audio_output", "image_input", "image_output")
EACH_KIND: Final = [
    *(TokenUsage(123, 457, **{kind: 77}) for kind in KINDS),
    TokenUsage(123, 457, written=88, written_1h=33),
    TokenUsage(123, 457, cached=66, audio_input=70, audio_cached=44),
    TokenUsage(123, 457, cached=66, image_input=70, image_cached=44),
    TokenUsage(123, 457, web_searches=2),
    TokenUsage(123, 457, tier="flex", web_searches=2),
    TokenUsage(1001, 457, cached=500),
    TokenUsage(0, 0),
    FULL,
    # Parts that together are more than the whole.
    replace(FULL, input=100, output=70),
    replace(FULL, input=1500),
]


@pytest.mark.parametrize("usage", EACH_KIND)
def test_cost_of_a_row_is_what_its_columns_and_prices_make(
    tmp_path: Path, config: Path, usage: TokenUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    """M12: to the nano-dollar, for all kinds of tokens, searches, long prompts, tiers; the row says which price."""
    row = recorded(tmp_path, config, "own", "all-kinds", usage)
    printed = printed_price(config, row, capsys)
    assert (row["price"], row["prices"]) == (printed["source"], printed["version"])
    assert row["cost_usd"] == recomputed(row, printed)
    assert row["cost_state"] == "exact"


@pytest.mark.parametrize(
    ("upstream", "asked", "usage"),
    [
        ("claude", "claude-sonnet-4-5", TokenUsage(9_000, 700, 3_000, 2_000, 500, 100, web_searches=4)),
        ("claude", "claude-sonnet-4-5", TokenUsage(301_777, 701, model="claude-sonnet-4-5-20250929")),
        ("claude", "claude-opus-4-6", TokenUsage(1_234, 567, 200, 100, is_regional=True, web_searches=1)),
        ("openai", "gpt-5", TokenUsage(4_321, 999, 1_024, reasoning=640, tier="flex", model="gpt-5-2025-08-07")),
        ("openai", "gpt-5", TokenUsage(4_321, 999, 1_024, reasoning=640, tier="priority")),
        (
            "google",
            "gemini-2.5-flash",
            TokenUsage(5_555, 333, 1_111, reasoning=200, audio_input=2_000, audio_cached=500, image_input=9),
        ),
    ],
)
def test_cost_by_the_shipped_table_is_recomputed(
    tmp_path: Path, config: Path, upstream: str, asked: str, usage: TokenUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the price that was valid then, for the model that answered and the tier that it was served in."""
    row = recorded(tmp_path, config, upstream, asked, usage)
    printed = printed_price(config, row, capsys)
    assert (row["price"], row["prices"]) == (printed["source"], printed["version"])
    assert row["cost_usd"] == recomputed(row, printed) != "0.000000000"


def test_row_tells_all_that_its_reply_told(tmp_path: Path, config: Path) -> None:
    """Every kind of tokens, whose key, which endpoint, the models, the tier and the price."""
    row = recorded(tmp_path, config, "own", "all-kinds", replace(FULL, model="all-kinds", units=UNITS))
    assert tuple(row) == CALL_NAMES
    told = [int(row[name]) for name in CALL_NAMES if name.endswith("_tokens") or name in OTHERS]
    assert told == [*astuple(FULL)[: FULL.__struct_fields__.index("tier")], *UNITS]
    names = ("key", "key_id", "endpoint", "path", "upstream_model", "answered_model", "tier")
    assert [row[name] for name in names] == [
        *("6161616161616161 ada", "key_ada", "chat", "/v1/chat/completions"),
        *("all-kinds", "all-kinds", "default"),
    ]


@pytest.mark.parametrize(
    ("usage", "state", "flag"),
    [
        (TokenUsage(10, 5, tier="unheard-of"), "unknown", ""),
        (TokenUsage(10, 5, has_others=True), "unknown", "others"),
        (TokenUsage(10, 5), "exact", ""),
    ],
)
def test_row_tells_how_sure_its_cost_is(tmp_path: Path, config: Path, usage: TokenUsage, state: str, flag: str) -> None:
    """A cost that is not known is no 0, and why can be seen."""
    row = recorded(tmp_path, config, "own", "all-kinds", usage)
    assert (row["cost_state"], row["flags"], bool(row["cost_usd"])) == (state, flag, state != "unknown")


def test_cost_that_the_vendor_told_is_marked(tmp_path: Path, config: Path) -> None:
    """No rate gives it: the row says that it is the vendor's own bill."""
    config.write_text(
        f"{FILE}  - {{name: router, origin: 'https://openrouter.ai', provider: openrouter, key: env:SOME_KEY}}\n"
    )
    row = recorded(tmp_path, config, "router", "some/model", TokenUsage(10, 5, bill=Bill(123_456_789, "openrouter")))
    assert (row["flags"], row["cost_usd"], row["cost_state"]) == ("billed", "0.000123457", "exact")


def test_units_of_a_record_are_those_of_a_usage() -> None:
    """They are taken over by their places: a kind that is added to a usage has to be added to a record, too."""
    others = ("tier", "has_others", "model", "bill", "is_regional", "units")
    words = {"cache_written": "written", "cache_written_1h": "written_1h"}
    counts = [name for name in TokenUsage.__struct_fields__ if name not in others]
    assert counts == list(TokenUsage.__struct_fields__[: len(counts)])
    assert [words.get(name, name) for name in Tokens._fields] == [*counts, *Units._fields]
