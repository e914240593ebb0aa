"""`velox check` and docs/settings.md show every variable, from one table, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.settings import load
from velox.settings.model import VARIABLES
from velox.settings.show import budget_lines, effective, markdown
from velox.settings.variable import CORES, MEMORY_HARD, MEMORY_SOFT

ROOT = Path(__file__).parents[3]


def test_page_has_every_variable_once_and_links_that_count_from_its_folder() -> None:
    """docs/settings.md has the rows of `python -m velox.settings`, in order, in tables by topic."""
    page = (ROOT / "docs/settings.md").read_text()
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]

    assert [line for line in page.splitlines() if line.startswith("| `")] == rows
    assert len(rows) == len(VARIABLES)
    assert "](docs/" not in page


def test_effective_shows_every_variable_and_hides_secrets(tmp_path: Path) -> None:
    """Each has its value and where it came from; a secret is only said to be there."""
    keys = tmp_path / "keys"
    keys.write_text("sk-from-file\n")
    environ = {"VELOX_API_KEYS": "sk-one", "OPENAI_API_KEY": "sk-two", "VELOX_API_KEYS_FILE": str(keys)}

    rows = effective(load({**environ, "VELOX_ADMIN_LISTEN": "off"}, cores=2))

    shown = {name: (value, origin) for name, value, origin in rows}
    assert list(shown) == [variable.name for variable in VARIABLES]
    assert "sk-" not in repr(rows)
    assert shown["VELOX_API_KEYS"] == shown["OPENAI_API_KEY"] == ("hidden", "environment")
    assert shown["VELOX_API_KEYS_FILE"] == (str(keys), "environment")
    assert shown["VELOX_ADMIN_LISTEN"] == ("off", "environment")


def test_effective_of_defaults_is_what_the_table_says() -> None:
    """A default is written in the table as `velox check` prints it, so a person finds it again."""
    rows = {name: value for name, value, _ in effective(load({}, cores=2, memory_bytes=0))}

    for variable in VARIABLES:
        computed = {CORES: "2", MEMORY_SOFT: "off", MEMORY_HARD: "off", "": variable.shown_default or "none"}
        default = computed.get(variable.default, variable.default)
        seconds = {"1m": "60s", "4h": "14400s"}.get(default, default)
        assert rows[variable.name] == seconds, variable.name


@pytest.mark.parametrize("fallback", ["local", "refuse"])
def test_budgets_say_what_they_do_while_redis_is_away(tmp_path: Path, fallback: str) -> None:
    """A strict one never spends what others may have spent, whatever the fallback is."""
    environ = {
        "VELOX_LEDGER": str(tmp_path),
        "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: day, strict: true}]",
        "VELOX_REDIS_FALLBACK": fallback,
    }
    assert not any("Redis" in line for line in budget_lines(load(environ)))
    (line,) = [
        line for line in budget_lines(load({**environ, "VELOX_REDIS_URL": "redis://localhost"})) if "Redis" in line
    ]
    assert "then its requests get 503" in line and f"VELOX_REDIS_FALLBACK={fallback}" in line
    assert ("spent twice" in line) == (fallback == "local")


def test_effective_reads_back_to_the_same_settings() -> None:
    """What is printed can be given again: units are not lost."""
    environ = {
        "VELOX_QUEUE_TIMEOUT": "1500ms",
        "VELOX_RATE_LIMIT_MAX_WAIT": "250ms",
        "VELOX_MAX_BODY": "1000",
        "VELOX_BODY_BUDGET": "3KiB",
        "VELOX_PATHS": "/v1,/v2",
        "VELOX_PIN_CPUS": "0",
        "VELOX_LISTEN": "[::1]:81",
    }
    first = load(environ, cores=2)
    printed = {name: value for name, value, _ in effective(first) if name in environ}

    assert load(printed, cores=2) == first
