"""The public Failover Bench, played through a gateway with one fallback: docs/faults.md has the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.failover_bench import (
    DEFAULTS,
    SCENARIOS,
    FlakyProvider,
    config,
    judge,
    measure,
    scaled_defaults,
)
from tests.e2e.harness import VeloxProcess
from tests.e2e.routed import routed
from tests.failover.__main__ import main

pytestmark = pytest.mark.more

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
# Cut or stalled after bytes were sent: no gateway can take these back. The client is told, and nothing is done twice.
SAFE = {"S08", "S09", "S14"}


@pytest.fixture(scope="module")
def provider() -> Iterator[FlakyProvider]:
    with FlakyProvider() as running:
        yield running


@pytest.fixture(scope="module")
def velox(provider: FlakyProvider) -> Iterator[VeloxProcess]:
    # A bench asks one request at a time, and nearly all of them fail: it uses up no budget of retries.
    with routed(config(provider.upstream.url)) as running:
        yield running


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_is_rescued_where_that_is_possible(name: str, provider: FlakyProvider, velox: VeloxProcess) -> None:
    """13 pass, 3 are safe, none fails; and the page says so."""
    seen = measure(name, provider, velox.port)
    verdict = judge(name, seen)
    assert verdict == ("safe" if name in SAFE else "pass"), seen
    row = f"| {name} | {SCENARIOS[name].title} | {verdict} | {'partial' if name == 'S07' else verdict} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), row


@pytest.fixture(scope="module")
def usual(provider: FlakyProvider) -> Iterator[VeloxProcess]:
    """A gateway of whose settings only the one fallback is said."""
    with routed(config(provider.upstream.url, DEFAULTS), **scaled_defaults(provider.scale)) as running:
        yield running


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_is_rescued_by_the_defaults(name: str, provider: FlakyProvider, usual: VeloxProcess) -> None:
    """All but S07 as with the tuned file: a model may think for long before its first token, so nobody is cut there."""
    seen = measure(name, provider, usual.port)
    assert judge(name, seen) == ("safe" if name in SAFE else "partial" if name == "S07" else "pass"), seen


def test_command_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each scenario, and the counts of each file."""
    assert main(["--scale", "0.1", "S04", "S12"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| S12 | context length exceeded | pass | pass |" in lines
    assert lines[-2:] == ["tuned: 2 pass, 0 partial, 0 safe, 0 fail", "defaults: 2 pass, 0 partial, 0 safe, 0 fail"]
