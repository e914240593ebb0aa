"""Prices of the user's own, as the command shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.tools import covers


def shown(*arguments: str, prices: Path | None = None) -> str:
    """Return what `velox prices` prints, in a process of its own."""
    more = {} if prices is None else {"VELOX_PRICES": str(prices)}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VELOX_")} | more
    command = [sys.executable, "-m", "velox", "prices", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@covers("VELOX_PRICES")
def test_own_price_counts_before_the_table(tmp_path: Path) -> None:
    """For a model of the table, and for one that it does not have."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {model: gpt-4o, input: 0.125, output: 0.5}\n  - {model: my-own, free: true}\n")

    assert "0.125" not in shown("gpt-4o")
    assert "no price is known for my-own" in shown("my-own")
    assert "0.125 $ for a million tokens" in shown("gpt-4o", prices=prices)
    assert "no price" not in shown("my-own", prices=prices)
