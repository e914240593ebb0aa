"""The script that makes the price table from genai-prices' package (deploy/prices.py)."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from deploy.prices import table_lines

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
]
"""


def lines(folder: Path, match: str = "ClauseEquals(equals='M')") -> list[str]:
    wheel = folder / "genai_prices-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("genai_prices/data.py", DATA % match)
        archive.writestr("genai_prices-9.9.dist-info/licenses/LICENSE", "MIT")
    return table_lines(wheel, "2026-11-23")


def test_each_entry_is_taken_or_listed_with_its_reason(tmp_path: Path) -> None:
    head, provider = map(json.loads, lines(tmp_path))
    assert (head["version"], head["date"], head["models"], head["licence"]) == ("9.9", "2026-11-23", 1, "MIT")
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


@pytest.mark.parametrize("pattern", ["^(a+)+$", "a*b*", "(a|b)*", "a{1,}.*"])
def test_a_pattern_that_might_take_long_ends_the_script(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(SystemExit, match="might take long"):
        lines(tmp_path, f"ClauseRegex(regex={pattern!r})")
