"""The alerts and the dashboard in deploy/: whole, of metrics that there are, as the page of metrics says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy/prometheus/velox-alerts.yaml"
DASHBOARD = ROOT / "deploy/grafana/velox-dashboard.json"
METRICS = (ROOT / "docs/metrics.md").read_text()
_NAME = re.compile(r"\b(?:velox|gen_ai|process)_[a-z0-9_]+")
_SUFFIX = re.compile("_(bucket|count|sum)$")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> Iterator[str]:
    """Yield those of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def told(name: str) -> bool:
    """Say whether the page of metrics has a metric, whose endings of histograms it leaves out."""
    name = _SUFFIX.sub("", name)
    begin, _, rest = name.partition("budget_")
    return f"`{name}`" in METRICS or (begin == "velox_" and f"`_{rest}`" in METRICS)


def test_each_query_asks_for_metrics_of_the_page() -> None:
    asked = [*(rule["expr"] for rule in rules()), *queries()]
    names = {name for query in asked for name in _NAME.findall(query)}
    labels = {"velox_up"}

    assert len(names) > 25
    assert sorted(name for name in names - labels if not told(name)) == []


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket", "info"), rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["runbook"][-1] in ".?", rule["alert"]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) and all(name.startswith("Velox") for name in names)


def test_page_of_metrics_has_the_same_expressions() -> None:
    """Who reads the page and who takes the file are alerted of the same."""
    section = METRICS.partition("## Alerts")[2]
    for rule in rules():
        assert f"`{rule['expr']}`" in section, rule["alert"]


def test_dashboard_asks_the_source_that_is_chosen() -> None:
    """It is imported into a Grafana that has sources of other names; panels do not overlap."""
    found = json.loads(DASHBOARD.read_text())
    assert [each["type"] for each in found["templating"]["list"]] == ["datasource"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in found["panels"]}) > 10
    for panel in found["panels"]:
        assert panel["datasource"]["uid"] == "${source}" and panel["title"]
