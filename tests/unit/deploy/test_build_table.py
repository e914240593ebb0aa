"""The script that makes the price table from the packages of genai-prices and LiteLLM (deploy/prices.py)."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from deploy.prices import table_lines

KNOWN = "ModelInfo(id='known', match=ClauseEquals(equals='known'), prices=ModelPrice(input_mtok=Decimal('1')))"
DATA = """
from .types import *
providers: list[Provider] = [
    Provider(
        id='p', name='P', api_pattern='https://p', extractors=[UsageExtractor(root='usage', mappings=[])],
        models=[
            ModelInfo(id='m', match=%s, prices=[
                ConditionalPrice(prices=ModelPrice(input_mtok=Decimal('0.18000000000000002'))),
                ConditionalPrice(constraint=StartDateConstraint(start_date=datetime.date(2026, 3, 13)),
                    prices=ModelPrice(
                        input_mtok=TieredPrices(base=Decimal('1'), tiers=[Tier(start=9, price=Decimal('2'))]),
                        output_mtok=Decimal('0.0833333333333'), audio_hours=Decimal('1'))),
            ], price_variants=[PriceVariant(when={'processing': 'batch'}, prices=ModelPrice(input_mtok=Decimal('0.5'))),
                PriceVariant(when={'route': 'eu'}, prices=ModelPrice(input_mtok=Decimal('3')))]),
        ],
    ),
    *MORE*
]
"""
MORE = "".join(
    f"Provider(id='{name}', name='', api_pattern='x', models=[{models}]),\n"
    for name, models in {"azure": "", "openai": "", "cohere": KNOWN, "mistral": ""}.items()
)
LITELLM = {
    **{
        f"openai/{name}": {"litellm_provider": "openai", "output_cost_per_video_per_second": cost}
        for name, cost in {"sora-2": 0.1, "sora-2-pro": 0.3, "sora-2-pro-high-res": 0.5}.items()
    },
    "azure/standard/1024-x-1024/dall-e-3": {"litellm_provider": "azure", "input_cost_per_pixel": 4.19617e-08},
    "azure/hd/1024-x-1792/dall-e-3": {"litellm_provider": "azure", "input_cost_per_pixel": 7.19343e-08},
    "rerank-v3.5": {"litellm_provider": "cohere", "mode": "rerank", "input_cost_per_query": 0.002},
    "rerank-v5.0-pro": {"litellm_provider": "cohere", "mode": "rerank", "input_cost_per_token": 5e-08},
    "known": {"litellm_provider": "cohere", "mode": "rerank", "input_cost_per_query": 1.0},
    "mistral/free": {"litellm_provider": "mistral", "mode": "moderation", "input_cost_per_token": 0.0},
    "other": {"litellm_provider": "cohere", "mode": "chat", "input_cost_per_token": 5e-08},
}


def lines(folder: Path, match: str = "ClauseEquals(equals='M')") -> list[str]:
    wheel = folder / "genai_prices-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("genai_prices/data.py", DATA.replace("*MORE*", MORE) % match)
        archive.writestr("genai_prices-9.9.dist-info/licenses/LICENSE", "MIT")
    litellm = folder / "litellm-8.8-py3-none-any.whl"
    with zipfile.ZipFile(litellm, "w") as archive:
        archive.writestr("litellm/model_prices_and_context_window_backup.json", json.dumps(LITELLM))
        archive.writestr("litellm-8.8.dist-info/licenses/LICENSE", "MIT, too")
    return table_lines(wheel, litellm, "2026-11-23")


def test_each_entry_is_taken_or_listed_with_its_reason(tmp_path: Path) -> None:
    head, provider, *_ = map(json.loads, lines(tmp_path))
    assert (head["version"], head["date"], head["models"]) == ("9.9 with litellm 8.8", "2026-11-23", 10)
    assert head["licence"].startswith("MIT\n") and head["licence"].endswith("MIT, too")
    assert [each[:2] for each in head["left_out"]] == [["p/m", "audio_hours"], ["p/m", "variant {'route': 'eu'}"]]
    assert head["rounded"] == [["p/m", "output_mtok", "0.0833333333333"]]
    assert provider["models"] == [
        [
            "m",
            ["equals", "m"],
            [
                [None, {"input_mtok": 180_000}],
                [
                    ["from", "2026-03-13"],
                    {"input_mtok": [1_000_000, [9, 2_000_000]], "output_mtok": 83_333, "others": 1},
                ],
            ],
            [["batch", None, {"input_mtok": 500_000}]],
            0,
        ]
    ]


def test_what_has_no_price_there_is_taken_from_litellm(tmp_path: Path) -> None:
    """Videos and pictures by size and quality, with what a request leaves to the vendor, and rankings."""
    rows = {row["id"]: {model[0]: model for model in row["models"]} for row in map(json.loads, lines(tmp_path)[1:])}
    assert rows["cohere"] == {
        "known": ["known", ["equals", "known"], [[None, {"input_mtok": 1_000_000}]], [], 0],  # as it is there
        "rerank-v3.5": [
            "rerank-v3.5",
            ["equals", "rerank-v3.5"],
            [[None, {"rerank_searches_kcount": 2 * 10**9}]],
            [],
            0,
        ],
        "rerank-v5.0-pro": [
            *("rerank-v5.0-pro", ["equals", "rerank-v5.0-pro"], [[None, {"input_mtok": 50_000, "output_mtok": 0}]], []),
            0,
        ],
    }
    assert rows["mistral"]["free"][2] == [[None, {"input_mtok": 0, "output_mtok": 0}]]
    by_size = {tier: rate["output_video_seconds"] for tier, _, rate in rows["openai"]["sora-2-pro"][3]}
    assert by_size == {
        **dict.fromkeys(("video default", "video 720x1280", "video 1280x720"), 3 * 10**11),
        **dict.fromkeys(("video 1024x1792", "video 1792x1024"), 5 * 10**11),
    }
    drawn = rows["azure"]["dall-e-3"]
    assert {tier: rate["output_pictures"] for tier, _, rate in drawn[3]} == {
        **dict.fromkeys(("standard 1024x1024", "default 1024x1024", "standard default"), 44 * 10**9),
        "hd 1024x1792": 132 * 10**9,
    }
    assert drawn[2] == [[None, {"output_pictures": 44 * 10**9}]]


@pytest.mark.parametrize("pattern", ["^(a+)+$", "a*b*", "(a|b)*", "a{1,}.*"])
def test_a_pattern_that_might_take_long_ends_the_script(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(SystemExit, match="might take long"):
        lines(tmp_path, f"ClauseRegex(regex={pattern!r})")
