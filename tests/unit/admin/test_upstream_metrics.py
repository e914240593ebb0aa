"""What the metrics page says of upstreams: one line by name, whatever their origins and workers."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from velox.admin.metrics_page import render
from velox.observe import series
from velox.outcomes import AttemptOutcome
from velox.policy.health.member import State
from velox.shm.segment import Segment
from velox.shm.upstream_table import FIRST_BYTE_NS, UpstreamCells, UpstreamTable

A, B, SOLE = ("many", "http://a"), ("many", "http://b"), ("sole", "https://c/base")


def scrape(table: UpstreamTable) -> dict[tuple[str, ...], float]:
    """Return the samples that are about upstreams, by name and label values in the order of the labels' names."""
    page = render(Segment(1, series.CELLS), upstreams=table).decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for sample in samples
        if "upstream" in sample.labels
    }


@pytest.fixture
def table() -> UpstreamTable:
    table = UpstreamTable(2)
    table.enroll([A, B, SOLE])
    return table


@pytest.mark.slow
def test_counters_are_summed_over_origins_and_workers(table: UpstreamTable) -> None:
    """By name of the upstream: as many lines as the configuration has names."""
    for block in range(2):
        cells = UpstreamCells(table, block)
        for label in (A, B):
            cells.count_attempt(table.row(*label), AttemptOutcome.TRUNCATED)
            cells.count_ejection(table.row(*label))
    cells.count_attempt(table.row(*SOLE), AttemptOutcome.OK)

    samples = scrape(table)

    attempts = {key[1:]: n for key, n in samples.items() if key[0] == "velox_upstream_requests_total"}
    assert attempts == {("truncated", "many"): 4, ("ok", "sole"): 1}, "the others are shown from their first event on"
    ejections = {key[1:]: n for key, n in samples.items() if key[0] == "velox_upstream_ejections_total"}
    assert ejections == {("many",): 4, ("sole",): 0}


def test_gauges_are_by_origin(table: UpstreamTable) -> None:
    """Which server is out, and how the load is spread."""
    for block in range(2):
        cells = UpstreamCells(table, block)
        cells.began(table.row(*B))
        cells.set_state(table.row(*A), State.OUT if block else State.IN)
        cells.set_state(table.row(*B), State.IN)

    samples = scrape(table)

    inflight = {key[1:]: n for key, n in samples.items() if key[0] == "velox_upstream_inflight_requests"}
    assert inflight == {("http://a", "many"): 0, ("http://b", "many"): 2, ("https://c/base", "sole"): 0}
    states = {key[1:]: n for key, n in samples.items() if key[0] == "velox_upstream_state" and n}
    assert states == {("http://a", "in", "many"): 1, ("http://a", "out", "many"): 1, ("http://b", "in", "many"): 2}


def test_keys_that_members_share_are_counted_once_a_worker(table: UpstreamTable) -> None:
    """Each member of an upstream tells of the same keys."""
    for block in range(2):
        cells = UpstreamCells(table, block)
        for label in (A, B):
            cells.set_keys(table.row(*label), 1, 3)

    samples = scrape(table)

    assert samples["velox_upstream_keys_unused", "out", "many"] == 2
    assert samples["velox_upstream_keys_unused", "resting", "many"] == 6
    assert samples["velox_upstream_keys_unused", "out", "sole"] == 0


def test_first_bytes_are_a_histogram(table: UpstreamTable) -> None:
    """Buckets add up; an upstream that has not answered yet has none."""
    cells = UpstreamCells(table, 0)
    for ns in (1, FIRST_BYTE_NS[1], 90 * 10**9):
        cells.observe_ttfb(table.row(*A), ns)

    samples = scrape(table)

    name = "velox_upstream_time_to_first_byte_seconds"
    buckets = {key[1]: n for key, n in samples.items() if key[0] == f"{name}_bucket"}
    assert (buckets["0.001"], buckets["0.005"], buckets["60.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert samples[f"{name}_count", "many"] == 3
    assert samples[f"{name}_sum", "many"] == pytest.approx(90.005000001)
    assert (f"{name}_count", "sole") not in samples


def test_names_are_escaped(table: UpstreamTable) -> None:
    """An origin may be the path of a socket, with anything in it: the page is still one that can be read."""
    table.enroll([("odd", 'unix:/run/"a\\b\n{}')])

    assert ("velox_upstream_inflight_requests", 'unix:/run/"a\\b\n{}', "odd") in scrape(table)


def test_page_without_table_has_the_families() -> None:
    """None of them has a series: nothing is known of any upstream."""
    page = render(Segment(1, series.CELLS)).decode()

    assert "# TYPE velox_upstream_state gauge" in page
    assert "upstream=" not in page
