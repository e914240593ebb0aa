"""The price of a call, by the model that was asked for and the one that answered (runtime/priced.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.prices.table import shipped_table
from velox.runtime.priced import call_prices, check_price_lines, making_call_prices
from velox.settings import load

NOW = 1_795_401_000
CONFIG = """
upstreams:
  - {name: azure, provider: azure, origin: "https://x.openai.azure.com", key: "env:MODEL_KEY"}
  - {name: bedrock, provider: bedrock, region: us-east-1, key: "env:MODEL_KEY"}
routes:
  - {name: all, to: azure, fallback: [bedrock]}
"""
GLOBAL = "global.anthropic.claude-haiku-4-5-20251001-v1:0"
HAIKU = "claude-haiku-4-5-20251001"
ARN = "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc"


@pytest.mark.parametrize(
    ("upstream", "asked", "answered", "same_as"),
    [
        ("azure", "my-deployment", "gpt-4o-2024-08-06", "gpt-4o"),
        ("azure", "gpt-4o-mini", "gpt-4o-2024-08-06", "gpt-4o"),
        ("azure", "gpt-4o", "nobody-knows-it", "gpt-4o"),
        ("azure", "my-deployment", "nobody-knows-it", None),
        # Its profiles have prices of their own.
        ("bedrock", GLOBAL, HAIKU, GLOBAL),
        ("bedrock", ARN, HAIKU, HAIKU),
        ("bedrock", GLOBAL, "", GLOBAL),
    ],
)
def test_model_that_answered_counts_before_the_one_that_was_asked_for(
    tmp_path: Path, upstream: str, asked: str, answered: str, same_as: str | None
) -> None:
    """But where the region is in the name that was asked for."""
    config = tmp_path / "velox.yaml"
    config.write_text(CONFIG)
    find = call_prices(load({"VELOX_CONFIG": str(config), "MODEL_KEY": "sk-0123456789abcdef"}))

    price = find(upstream, asked, answered, "", NOW)
    other = None if same_as is None else find(upstream, same_as, "", "", NOW)

    assert (None if price is None else price.source) == (None if other is None else other.source)
    assert (price is None) == (same_as is None)


def test_family_of_an_arn_has_its_price(tmp_path: Path) -> None:
    """C22: before a call, too, when no reply tells the model: a budget in dollars needs it."""
    config = tmp_path / "velox.yaml"
    config.write_text(
        "upstreams: [{name: aws, provider: bedrock, region: us-east-1, key: env:MODEL_KEY}]\n"
        f"model_facts: [{{models: ['{ARN}'], family: {GLOBAL}}}]\n"
    )
    settings = load({"VELOX_CONFIG": str(config), "MODEL_KEY": "sk-0123456789abcdef"})
    find = call_prices(settings)

    price = find("aws", ARN, "", "", NOW)
    assert price is not None and price == find("aws", GLOBAL, "", "", NOW)
    assert not [line for line in check_price_lines(settings, NOW) if ARN in line]
    assert find("aws", f"{ARN}x", "", "", NOW) is None


def test_prices_of_many_upstreams_are_found_in_steps(tmp_path: Path) -> None:
    """A worker that takes new settings over reads a provider's table, or finds whom an upstream pays, in each."""
    config = tmp_path / "velox.yaml"
    names = [f"u{n}" for n in range(200)]
    entries = [f'  - {{name: {name}, origin: "http://127.0.0.1:{9 + n}"}}' for n, name in enumerate(names)]
    config.write_text("\n".join(["upstreams:", *entries, "routes:", "  - {name: all, to: u0}"]))

    settings = load({"VELOX_CONFIG": str(config)})
    n_providers = sum(1 for _ in shipped_table().reading())
    assert sum(1 for _ in making_call_prices(settings)) == 1 + n_providers + len(names)


def test_price_holds_from_the_second_on_that_it_begins_in(tmp_path: Path) -> None:
    """Also where calls of the same kind come right before and after, and in any order."""
    (tmp_path / "prices.yaml").write_text(
        "prices:\n"
        "  - {model: m, input: 1, output: 1, until: 2026-11-24}\n"
        "  - {model: m, input: 2, output: 2, from: 2026-11-24}\n"
    )
    find = call_prices(
        load({"VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9", "VELOX_PRICES": str(tmp_path / "prices.yaml")})
    )
    begins_s = 1_795_478_400
    for now_s, rate in ((-1, 1), (0, 2), (-1, 1), (5, 2), (5, 2), (4, 2)):
        price = find("default", "m", "", "", begins_s + now_s)
        assert price is not None and price.bands[0].input == rate * 1_000_000
