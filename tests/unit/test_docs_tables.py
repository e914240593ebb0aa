"""Tables and picture of the documentation agree with the code that they describe."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.life_of_a_request import PICTURE, STEPS, draw
from docs.tables import MEANING, TABLES, fill
from tests.markdown import ROOT
from velox import outcomes
from velox.admin import metrics_page
from velox.errors import Reason
from velox.observe import series
from velox.observe.access_log import AccessRecord
from velox.shm.segment import Segment
from velox.types import Endpoint

METRICS = (ROOT / "docs/metrics.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name", "make"), TABLES, ids=[f"{page}-{name}" for page, name, _ in TABLES])
def test_table_is_as_generated(page: str, name: str, make: Callable[[], str]) -> None:
    """`python -m docs.tables` would change nothing."""
    text = (ROOT / page).read_text()

    assert fill(text, name, make()) == text


def test_every_reason_has_a_meaning() -> None:
    """The list is closed: each has its words, and nothing else has."""
    assert list(MEANING) == list(Reason)


def test_picture_is_as_drawn() -> None:
    """`python -m docs.life_of_a_request` would change nothing."""
    assert PICTURE.read_text() == draw()


def test_picture_shows_where_each_reason_leaves() -> None:
    """Every reason that can happen has its place, with the status that it has in the code."""
    drawn = PICTURE.read_text()
    reasons = {reason.code: reason for reason in Reason}

    missing = {code for code in reasons if not re.search(rf"\b{code}\b", drawn)}
    assert missing == set()
    for step in STEPS:
        for leaves in step.leaves:
            words = re.findall(r"\d{3}|[a-z_]+", leaves)
            status = None
            for word in words:
                status = int(word) if word.isdigit() else status
                if word in reasons and status is not None:
                    assert reasons[word].fact.status == status, leaves


_STEPS_IN: Final = ("front/intake.py", "request/exchange.py", "cluster/group.py", "cluster/routing.py")


def test_picture_names_code_that_exists() -> None:
    """The functions and files on the cards are there."""
    code = "".join((ROOT / "velox/gateway" / name).read_text() for name in _STEPS_IN)
    for step in STEPS:
        for place in step.where.split(", "):
            name = re.sub(r"^.*\.|\(\)$", "", place) if place.endswith("()") else ""
            assert (f"def {name}(" in code) if name else (ROOT / "velox" / place).is_file(), place


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return metric -> (type, labels) as the tables of metrics.md say."""
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) \|", METRICS, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_metrics_page_and_documentation_name_the_same_metrics() -> None:
    """None is missing, none is invented; the types are right."""
    page = metrics_page.render(Segment(1, series.CELLS)).decode()
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(page)
    }

    assert {name: kind for name, (kind, _) in documented().items()} == shown


def test_page_has_every_field_of_the_access_log() -> None:
    """In the order of a line."""
    page = (ROOT / "docs/logs.md").read_text().partition("| field | meaning |")[2]
    names = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]

    assert names == [field.name for field in dataclasses.fields(AccessRecord)]


def test_alerts_of_the_documentation_ask_for_metrics_and_labels_that_exist() -> None:
    """An expression with another name would never be true."""
    alerts = METRICS.partition("## Alerts\n")[2]
    labels = {name: found for name, (_, found) in documented().items()}
    budgets = ROOT / "docs/budgets.md"
    asked = re.findall(r"\b(velox_\w+)(?:\{(\w+)(?:=~|!=|=)\"(.*?)\"\})?", alerts)

    assert {"velox_requests_total", "velox_config_bad"} <= {name for name, _, _ in asked}
    for name, label, values in asked:
        page = METRICS if name in labels else budgets.read_text()
        assert f"`{name}`" in page, name
        assert not label or name not in labels or label in labels[name], name
        assert all(f"`{value}`" in page or value == "5xx" for value in values.split("|") if label), values


def test_metrics_documentation_names_the_labels_of_the_code() -> None:
    """Each family of series.py has just the labels that the table says."""
    labels = {
        each.name + ("_total" if each.kind == "counter" else ""): {name for name, _ in each.labels}
        for each in series.FAMILIES
    }
    found = documented()

    assert {name: found[name][1] for name in labels} == labels


def test_metrics_documentation_names_every_label_value() -> None:
    """The values of short closed lists are all there, and the routes."""
    short = [each for each in series.FAMILIES if each.kind == "counter" and each is not series.REQUESTS]
    values = {value for counter in short for _, names in counter.labels for value in names}
    values |= {phase.name.lower() for phase in outcomes.Phase} | {route.name.lower() for route in Endpoint}

    assert {value for value in values if f"`{value}`" not in METRICS} == set()
