"""What the page makes of the metrics page: the same samples as prometheus_client reads, and Prometheus' quantiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

_NODE: Final = shutil.which("node")
_SCRIPT: Final = Path(__file__).with_name("figures.mjs")
_SHARES: Final = (0.5, 0.9, 0.95, 1.0)

pytestmark = pytest.mark.skipif(
    _NODE is None and os.environ.get("CI") != "true", reason="no Node: tests/install-tools.sh"
)


def figures(reasons: dict[str, int], times: list[float]) -> str:
    """Return a metrics page."""
    registry = CollectorRegistry()
    counter = Counter("requests", "A help with\nlines.", ("reason", "route"), registry=registry)
    for reason, n in reasons.items():
        counter.labels(reason, "chat").inc(n)
    taken = Histogram("time_seconds", "Times.", ("route",), registry=registry, buckets=(0.1, 0.5, 1, 5))
    for each in times:
        taken.labels("chat").observe(each)
    return generate_latest(registry).decode()


def read(now: str, before: str) -> dict[str, Any]:
    """Return what the page's script makes of two readings."""
    assert _NODE is not None
    asked = {"now": now, "before": before, "name": "time_seconds", "where": {"route": "chat"}, "shares": _SHARES}
    done = subprocess.run(
        [_NODE, str(_SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_samples_are_those_that_prometheus_reads() -> None:
    """Also with quotes, backslashes, line ends and braces in a label's value."""
    hostile = 'a "quoted" \\ back\\nslash\nline } {x="y"} , '
    now = figures({"ok": 3, hostile: 4}, [0.2, 7.0])
    expected = [
        (sample.name, dict(sample.labels), float(sample.value))
        for family in text_string_to_metric_families(now)
        for sample in family.samples
    ]
    found = [(name, labels, float(value)) for name, labels, value in read(now, "")["samples"]]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_counters_that_began_anew_have_grown_by_what_they_are() -> None:
    """As rate() of Prometheus has it. What did not grow is not there."""
    found = read(figures({"ok": 9, "queue_full": 2, "same": 5}, []), figures({"ok": 4, "queue_full": 7, "same": 5}, []))
    assert found["grown"] == {"ok": 5, "queue_full": 2}
    assert found["total"] == 16 and found["by"] == {"ok": 9, "queue_full": 2, "same": 5}


def test_quantiles_are_of_what_came_between_the_two_readings() -> None:
    """By interpolation in the bucket; above the last bound there is no better answer than that bound."""
    early = [0.05] * 1000
    late = [0.2] * 60 + [0.7] * 30 + [3.0] * 9 + [60.0]
    found = read(figures({}, early + late), figures({}, early))["quantiles"]
    assert found == pytest.approx([0.1 + 0.4 * 50 / 60, 1.0, 1 + 4 * 5 / 9, 5.0])


def test_without_events_there_is_no_quantile() -> None:
    """Not zero, which would be a fast gateway."""
    same = figures({}, [0.2])
    assert read(same, same)["quantiles"] == [None] * 4
