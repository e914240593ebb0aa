"""Each bar is kept, missed by so much, or not judged for a reason; and the arithmetic of the pictures' axes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from bench.plots.bars import Bar, all_bars, half_load, json_cell, shown_bars
from bench.plots.document import read, small
from bench.plots.figures import number, shown
from bench.plots.key_figures import kept
from bench.plots.svg import dodged, linear, logarithmic, ticks
from bench.rounds import Spread, spread
from bench.tests.documents import run, smoke

REQUEST = "CPU per JSON request, HTTP/1.1 up, of nginx's"
ROUTER = "CPU per JSON request, HTTP/1.1 up, of vllm-router's"
CHEAPEST = "CPU per JSON request, of the cheapest LLM gateway's"


def bar_of(document: dict[str, Any], what: str) -> Bar:
    """Return one bar of a run."""
    (found,) = [each for each in all_bars(read(small(document))) if each.what.startswith(what)]
    return found


def set_all(document: dict[str, Any], cell: int, subject: str, key: str, values: list[float]) -> None:
    """Set a figure in all rounds of a subject."""
    for each, value in zip(document["cells"][cell]["rounds"][subject], values, strict=True):
        each[key] = value


@pytest.mark.parametrize(
    ("found", "at_least", "verdict"),
    [
        (2.0, False, "kept"),
        (2.5, False, "**missed** by 25 %"),
        (2.0, True, "kept"),
        (1.5, True, "**missed** by 25 %"),
    ],
)
def test_verdict_is_of_the_median_and_says_by_how_much(found: float, at_least: bool, verdict: str) -> None:
    """Of the bar, so that bars of different units can be told apart."""
    bar = Bar("it", 2.0, "x", Spread(found, 0.1, 9.0), at_least=at_least)

    assert bar.verdict == verdict
    assert bar.limit == f"at {'least' if at_least else 'most'} 2x"


def test_ratio_is_taken_within_a_round() -> None:
    """A slow round, in which both are slow, makes it no worse."""
    document = run(rounds=3)
    set_all(document, 0, "nginx", "cpu_us", [10.0, 20.0, 10.0])
    set_all(document, 0, "Velox", "cpu_us", [15.0, 40.0, 16.0])

    found = bar_of(document, REQUEST)

    assert found.found == Spread(1.6, 1.5, 2.0)
    assert found.is_kept


def test_added_latency_is_what_is_over_direct_in_the_same_round() -> None:
    """Not the other way round, and not between medians: those would be 0.1 apart."""
    document = run(rounds=3)
    set_all(document, 4, "direct", "p50_ms", [0.1, 0.5, 0.3])
    set_all(document, 4, "Velox", "p50_ms", [0.3, 0.7, 0.4])

    found = bar_of(document, "added latency at 4,000 requests/s: p50").found

    assert found is not None
    assert (found.median, found.least) == pytest.approx((0.2, 0.1))


def test_cheapest_gateway_is_the_one_to_be_below() -> None:
    """To be below LiteLLM is no achievement."""
    document = run(rounds=1)
    set_all(document, 0, "Velox", "cpu_us", [100.0])
    set_all(document, 0, "smg", "cpu_us", [80.0])

    found = bar_of(document, CHEAPEST)

    assert found.found == spread([1.25])
    assert found.verdict == "**missed** by 25 %"


def test_bar_of_a_burst_says_how_many_chunks_a_write_has() -> None:
    """Who falls behind and writes several at once has less to do for each: without this the ratio would mislead."""
    document = run(rounds=1)
    set_all(document, 1, "Velox", "chunks_per_write", [15.4])
    set_all(document, 1, "nginx", "chunks_per_write", [9.2])

    found = bar_of(document, "CPU per SSE chunk, burst, HTTP/1.1 up")

    assert f"{found.verdict} (15.4 chunks a write, nginx 9.20) |" in shown_bars([found])


def test_peer_that_is_missing_leaves_its_bar_unjudged() -> None:
    """It is said, and not counted among the kept ones."""
    document = run(missing=("vllm-router",))

    assert bar_of(document, ROUTER).verdict == "not judged: vllm-router is missing"
    bars = all_bars(read(small(document)))
    assert sum(1 for each in bars if each.is_kept is None) == 3
    assert "; 3 could not be judged" in kept(bars)


def test_short_run_judges_what_it_has() -> None:
    """The rest is named with why; no bar is left out."""
    bars = all_bars(read(small(smoke())))

    assert len(bars) == len(all_bars(read(small(run()))))
    assert bar_of(smoke(), REQUEST).is_kept is not None
    assert "not judged: not measured in this run" in shown_bars(bars)


@pytest.mark.parametrize(("cores", "is_kept"), [(2, None), (4, True)])
def test_two_workers_are_judged_where_cores_allow(cores: int, is_kept: bool | None) -> None:
    """On two cores the load takes from the second worker."""
    document = run()
    document["machine"]["cores"] = cores
    document["cores"]["Velox"] = [[1, 20_000.0], [2, 38_000.0]]

    found = bar_of(document, "requests/s of two workers")

    assert found.is_kept is is_kept
    assert shown(found.found, "x") == "1.90x"


def test_cells_that_are_disturbed_on_purpose_are_no_bar() -> None:
    """An upstream that fails, large bodies beside: neither is what is compared."""
    document = run()
    failing, beside = (
        {**document["cells"][index], "id": name, "workload": {**document["cells"][index]["workload"], key: value}}
        for index, name, key, value in ((0, "errors", "upstream_errors", 0.01), (4, "mixed", "large_beside", True))
    )
    document["cells"] = [failing, beside, *document["cells"]]
    found = read(small(document))

    cell, half = json_cell(found), half_load(found)

    assert cell is not None and cell.id == "json-750B"
    assert half is not None and half.id == "open-4000"


def test_subject_before_another_upstream_is_found_in_its_own_cell() -> None:
    """The same work, in a cell of its own; without nginx in it there is no ratio, and that is said."""
    document = run()
    own = {**document["cells"][0], "id": "json-http2"}
    own["workload"] = {**own["workload"], "upstream": "http2"}
    own["rounds"] = {"Velox, HTTP/2 up": own["rounds"]["Velox, HTTP/2 up"]}
    document["cells"][0]["rounds"].pop("Velox, HTTP/2 up")
    document["cells"].append(own)

    found = bar_of(document, "CPU per JSON request, HTTP/2 up, of nginx's")

    assert (found.cell, found.verdict) == ("json-http2", "not judged: nginx is not in this cell")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.1234, "0.123"), (1.234, "1.23"), (54.32, "54.3"), (8149.4, "8,149"), (-0.05, "-0.050")],
)
def test_number_has_three_digits_that_say_something(value: float, text: str) -> None:
    """Large ones are written in full."""
    assert number(value) == text


def test_value_without_spread_is_shown_without_one() -> None:
    """One round has none."""
    assert shown(spread([3.0]), "µs") == "3.00 µs"
    assert shown(Spread(3.0, 2.0, 4.0), "x") == "3.00x (2.00 to 4.00)"
    assert shown(None) == ""


def test_log_axis_gives_equal_ratios_equal_lengths() -> None:
    """And its ticks are round values inside it."""
    axis = logarithmic([10.0, 1000.0], 0.0, 100.0)

    assert axis.at(100.0) - axis.at(10.0) == pytest.approx(axis.at(1000.0) - axis.at(100.0))
    assert [each for each in ticks(axis) if not axis.low <= each <= axis.high] == []
    assert {10.0, 100.0, 1000.0} <= set(ticks(axis))


def test_linear_axis_begins_at_nothing() -> None:
    """A bar or line that does not begin at 0 makes differences look greater."""
    axis = linear([30_500.0, 61_000.0], 100.0, 0.0)

    assert axis.at(0.0) == 100.0 and 0.0 in ticks(axis)
    assert 3 <= len(ticks(axis)) <= 8


def test_names_are_moved_apart_and_keep_their_order() -> None:
    """At least so far apart, inside what there is."""
    placed = dodged([0.0, 1.0, 50.0, 51.0, 52.0, 99.0, 100.0], 10.0, 0.0, 100.0)

    assert placed == sorted(placed)
    assert all(after - before >= 10.0 for before, after in pairwise(placed))
    assert placed[0] >= 0.0 and placed[-1] <= 100.0
