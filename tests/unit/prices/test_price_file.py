"""The file of a user's own prices: through the settings, a reload, `velox check` and `velox prices`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from velox.cli import main
from velox.settings import SettingsError, load
from velox.settings.live import changes, taken

DOCS = Path(__file__).parents[3] / "docs" / "prices.md"
CONFIG = """
upstreams:
  - {name: main, origin: "https://api.openai.com"}
  - {name: own, origin: "http://127.0.0.1:9"}
routes:
  - {name: a, match: {models: [gpt-4o, weird]}, to: main}
  - {name: b, to: own, model: llama-3}
"""


def environ(folder: Path, prices: str) -> dict[str, str]:
    (folder / "prices.yaml").write_text(prices)
    (folder / "velox.yaml").write_text(CONFIG)
    return {"VELOX_CONFIG": str(folder / "velox.yaml"), "VELOX_PRICES": str(folder / "prices.yaml")}


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    example, by_size = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    settings = load(environ(tmp_path, example))
    assert len(settings.own_prices) == 4
    assert settings.own_prices[0].tiers[""][0].input == 1_100_000
    dalle, flux = load(environ(tmp_path, by_size)).own_prices
    rates = {tier: bands[0].units and bands[0].units.picture for tier, bands in dalle.tiers.items()}
    assert rates == {"": 44 * 10**9, "hd 1024x1024": 88 * 10**9, "standard 1024x1792": 88 * 10**9}
    assert flux.tiers[""][0].units is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "prices:\n  - {model: a, input: 1}\n  - {model: b, inptu: 1}\n",
            "yaml:3: VELOX_PRICES: prices[1].inptu",
        ),
        ("prices: []\n", "expected a list `prices:`"),
        ("price:\n  - {model: a, input: 1}\n", "expected a list `prices:`"),
        ("prices:\n  - {model: a, input: [}\n", "prices.yaml:2"),
        ("", "expected a list `prices:`"),
        ("prices:\n  - {model: a, input: 1, input: 2}\n", "expected once"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environ(tmp_path, text))
    assert expected in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    variables = environ(tmp_path, "")
    with pytest.raises(SettingsError, match="expected a file that can be read"):
        load({**variables, "VELOX_PRICES": str(tmp_path / "none")})


def test_a_reload_takes_what_the_file_says_now(tmp_path: Path) -> None:
    running = load(environ(tmp_path, "prices:\n  - {model: a, input: 1}\n"))
    found = load(environ(tmp_path, "prices:\n  - {model: a, input: 2}\n"))
    assert changes(running, found).summary == "prices"
    assert not changes(running, found).restart
    after = taken(running, found)
    assert (after.own_prices, after.prices_version) == (found.own_prices, found.prices_version)
    assert changes(after, found).live == ()


def test_check_shows_the_date_and_what_has_no_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"], environ(tmp_path, "prices:\n  - {model: gpt-4o, input: 1, output: 2}\n")) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"prices: 2\d{3} models of genai-prices [0-9.]+ with litellm [0-9.]+, as of 20[0-9-]{8}, and 1 of your own in ",
        out,
    )
    assert "no price is known for weird at main, llama-3 at own" in out


@pytest.mark.parametrize(
    ("budget", "own_price", "warned"),
    [
        (
            "usd: 5",
            "",
            ["budgets[0] counts dollars, and no price is known for any model of upstream own", "weird at main"],
        ),
        (
            "usd: 5, models: [gtp-9]",
            "",
            ["budgets[0] counts dollars, and no price is known for any model of upstream own"],
        ),
        ("usd: 5, models: [gtp-9]", "{upstream: own, model: llama-*, free: true}", []),
        ("usd: 5, models: [weird]", "{upstream: own, free: true}", ["weird at main"]),
        ("usd: 5, models: [gpt-4o]", "{upstream: own, free: true}", []),
        ("usd: 5, unpriced: allow", "", []),
        ("tokens: 5", "", []),
    ],
)
def test_check_warns_of_requests_that_a_budget_in_dollars_refuses(
    tmp_path: Path, budget: str, own_price: str, warned: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a price such a request gets 403, also for an upstream whose models the configuration does not name."""
    own = own_price or "{model: gpt-4o, upstream: main, input: 1, output: 2}"
    variables = environ(tmp_path, f"prices:\n  - {own}\n")
    (tmp_path / "velox.yaml").write_text(
        f"{CONFIG}ledger: {tmp_path / 'ledger'}\nbudgets: [{{per: gateway, window: day, {budget}}}]\n"
    )

    assert main(["check"], variables) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "unpriced_model" in line]
    assert all(line.startswith("WARNING: ") for line in lines)
    assert [text in line for text, line in zip(warned, lines, strict=True)] == [True] * len(warned), lines


def test_check_warns_of_a_name_in_a_budget_that_has_no_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a route takes any model, such a name may be a mistake."""
    variables = {"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: key, usd: 5, window: day, models: [gtp-4o]}]"}

    assert main(["check"], variables) == 0

    assert "WARNING: no price is known for gtp-4o at default, and a budget counts dollars" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_prints_what_would_be_used_and_from_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = environ(tmp_path, "prices:\n  - {upstream: own, free: true}\n")
    assert main(["prices", "gpt-4o", "--json"], variables) == 0
    shipped, own = json.loads(capsys.readouterr().out)
    assert shipped["source"] == "openai/gpt-4o"
    assert shipped["price"][0]["input"] == "2.5"
    assert own["price"][0]["output"] == "0"
    assert own["source"].endswith("prices.yaml: prices[0]")
    assert main(["prices", "weird", "--upstream", "main"], variables) == 1
    assert "not as 0" in capsys.readouterr().out
    assert main(["prices", "weird", "--upstream", "mian"], variables) == 2
    assert "main" in capsys.readouterr().err


def test_commands_of_the_page_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variables = environ(tmp_path, "prices:\n  - {upstream: own, free: true}\n")
    for line in re.findall(r"^velox (prices .*?)(?:\s+#.*)?$", DOCS.read_text(), re.MULTILINE):
        assert main(line.split(), variables) == 0
        assert capsys.readouterr().out
