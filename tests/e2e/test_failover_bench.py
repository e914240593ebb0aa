"""The public Failover Bench, played through a gateway with one fallback: docs/faults.md has the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.failover_bench import SCENARIOS, FlakyProvider, judge, measure
from tests.e2e.harness import VeloxProcess
from tests.e2e.routed import routed

pytestmark = pytest.mark.more

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
# Cut or stalled after bytes were sent: no gateway can take these back. The client is told, and nothing is done twice.
SAFE = {"S08", "S09", "S14"}


def config(
    origin: str, *, idle: str = "1s", first_event: str = "1s", reasons: str = "failure, context_length"
) -> dict[str, object]:
    """Return the file: one provider, and one fallback of it with a model of its own."""
    timeouts = {"first_byte": "1s", "idle": idle, "first_event": first_event}
    upstreams = [{"name": name, "origin": origin, "timeouts": timeouts} for name in ("primary", "backup")]
    routes = [
        {
            "name": fallback,
            "match": {"models": models},
            "to": "primary",
            "fallback": [{"upstream": "backup", "model": fallback, "for": reasons}],
        }
        for fallback, models in (("fb-ok-noprefill", "fb-s14"), ("fb-ok", "fb-*"))
    ]
    return {"upstreams": upstreams, "routes": routes}


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
@pytest.mark.more
def test_scenario_is_rescued_where_that_is_possible(name: str, provider: FlakyProvider, velox: VeloxProcess) -> None:
    """13 pass, 3 are safe, none fails; and the page says so."""
    seen = measure(name, provider, velox.port)
    verdict = judge(name, seen)
    assert verdict == ("safe" if name in SAFE else "pass"), seen
    row = f"| {name} | {SCENARIOS[name].title} | {verdict} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), row


def test_slow_first_token_is_waited_for_without_the_time_out(provider: FlakyProvider) -> None:
    """S07 as it is by default: the head goes on at once, and the answer comes when it comes."""
    with routed(config(provider.upstream.url, idle="30s", first_event="0s", reasons="failure")) as velox:
        assert judge("S07", measure("S07", provider, velox.port)) == "partial"
        # And without `for` a refused prompt is the client's to know.
        assert judge("S12", measure("S12", provider, velox.port)) == "safe"
