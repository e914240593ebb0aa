"""How growth is told from noise, what the model makes of the figures, and that the page shows what was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.growth import DATA, PAGE, filled
from bench.growth_model import ASSUMPTIONS, Measured, fleet_of
from bench.growth_page import law_of

FIGURES = Measured(
    request_us=100.0,
    chunk_us=20.0,
    rest_bytes=50e6,
    connection_bytes=2e3,
    stream_bytes=10e3,
    member_bytes=100e3,
    member_start_s=5e-4,
    rest_part=1e-5,
)


def test_law_of_what_differs_by_less_than_its_rounds_is_constant() -> None:
    """50 to 54 in rounds that are 10 apart say nothing of growth."""
    law = law_of({1: [50.0, 45.0, 55.0], 100: [54.0, 49.0, 59.0], 10_000: [52.0, 50.0, 54.0]})

    assert law.kind == "constant" and law.a == 52.0


@pytest.mark.parametrize("n", [1, 2, 8, 64, 1024])
def test_law_of_a_line_is_that_line(n: int) -> None:
    """a + b·n is found exactly, and told from a logarithm."""
    law = law_of({each: [40.0 + 0.5 * each] for each in (1, 2, 8, 64, 1024)})

    assert law.kind == "linear" and law.at(n) == pytest.approx(40.0 + 0.5 * n)


def test_law_of_what_grows_by_doubling_is_a_logarithm() -> None:
    """As much more for each time as many."""
    law = law_of({2.0**each: [40.0 + 5.0 * each] for each in range(0, 12, 2)})

    assert law.kind == "log" and law.a == pytest.approx(40.0) and law.b == pytest.approx(5.0)


def test_law_of_what_falls_and_rises_is_none() -> None:
    """No line is put through what has a dip."""
    assert law_of({1: [100.0], 32: [50.0], 2000: [110.0]}).kind == "none"


def test_fleet_grows_with_its_nodes_until_servers_are_too_many_to_name() -> None:
    """What is served is n times as much; a node's memory grows with the servers it knows, up to those of a cell."""
    one, ten, many = (fleet_of(n, FIGURES) for n in (1, 10, 1000))

    assert many.answers_per_s == pytest.approx(1000 * one.answers_per_s) == pytest.approx(100 * ten.answers_per_s)
    assert one.cells == 1.0 < many.cells
    assert one.memory_bytes < ten.memory_bytes < many.memory_bytes
    assert many.memory_bytes == pytest.approx(fleet_of(2000, FIGURES).memory_bytes)
    assert many.probes_per_s == pytest.approx(fleet_of(2000, FIGURES).probes_per_s)


def test_fleet_of_one_is_what_its_cores_can_do() -> None:
    """By hand: 32 cores, 0.6 of each, 100 µs and 300 chunks of 20 µs an answer, of 6.5 s."""
    given = replace(ASSUMPTIONS, cores=32, busy=0.6, chunks=300, chunks_per_s=50.0, first_s=0.5)
    one = fleet_of(1, FIGURES, given)

    assert one.answers_per_s == pytest.approx(32 * 0.6 / 6.1e-3)
    assert one.streams == pytest.approx(one.answers_per_s * 6.5)
    assert one.plain_per_s == pytest.approx(32 * 0.6 / 100e-6)


def test_page_shows_the_figures_that_are_kept() -> None:
    """Nothing on it was typed: it is what the data make of it."""
    page = PAGE.read_text()

    assert filled(page, json.loads(DATA.read_text())) == page
