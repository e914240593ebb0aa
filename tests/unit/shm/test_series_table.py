"""Series that begin while the gateway runs: each process writes its own rows, a reader adds them up."""

from __future__ import annotations

import pytest

from velox.shm.segment import CELL_BYTES
from velox.shm.series_table import SeriesBlock, SeriesTable


def counted(block: SeriesBlock, labels: tuple[str, ...], *numbers: int) -> None:
    """Add to the numbers of a series."""
    at = block.row(labels)
    assert at is not None
    for n, value in enumerate(numbers):
        block.add(at + n * CELL_BYTES, value)


def test_rows_of_several_processes_with_the_same_labels_are_one_series() -> None:
    """What a row has of its neighbours is nothing: the last number of one, the first of the next."""
    table = SeriesTable(2, 3, 10)
    one, other = table.block(0), table.block(1)
    counted(one, ("a", "x"), 1, 2, 3)
    counted(one, ("b", ""), 10, 20, 30)
    counted(other, ("b", ""), 100, 200, 300)
    counted(other, ("a", "x"), 4, 5, 6)
    counted(one, ("a", "x"), 0, 0, 1)

    assert table.totals() == {("a", "x"): [5, 7, 10], ("b", ""): [110, 220, 330]}
    assert [table.n_used(0), table.n_used(1)] == [2, 2]


def test_process_that_takes_a_dead_ones_place_counts_on() -> None:
    """Counters are monotonic over restarts of a worker."""
    table = SeriesTable(1, 1, 10)
    counted(table.block(0), ("a",), 7)

    successor = table.block(0)
    counted(successor, ("a",), 1)
    counted(successor, ("b",), 2)

    assert table.totals() == {("a",): [8], ("b",): [2]}


def test_row_that_was_not_whole_when_its_process_died_is_written_anew() -> None:
    """It is whole when it is counted; labels that were written before are nobody's."""
    table = SeriesTable(1, 1, 10)
    block = table.block(0)
    counted(block, ("a",), 7)
    block._cells[8 + block._row_bytes // CELL_BYTES] = 400  # the length of the labels of a second row

    counted(table.block(0), ("b",), 2)
    assert table.totals() == {("a",): [7], ("b",): [2]}


def test_there_is_no_row_beyond_the_last_one_and_none_of_labels_that_are_too_long() -> None:
    """Those that are there go on."""
    table = SeriesTable(1, 2, 2)
    block = table.block(0)
    assert block.row(("x" * 600,)) is None
    counted(block, ("a",), 1, 1)
    counted(block, ("\u202e\U0001f30d",), 1, 1)
    assert block.row(("c",)) is None
    counted(block, ("a",), 1, 1)

    assert table.totals() == {("a",): [2, 2], ("\u202e\U0001f30d",): [1, 1]}


@pytest.mark.parametrize("n_chars", [497, 498, 499, 500, 501])
def test_labels_up_to_their_bound_are_kept_whole(n_chars: int) -> None:
    """504 bytes of JSON."""
    table = SeriesTable(1, 1, 2)
    labels = ("x" * n_chars,)
    at = table.block(0).row(labels)

    assert (at is not None) is (n_chars + 4 <= 504)
    assert list(table.totals()) == ([labels] if at is not None else [])


def test_rows_that_were_not_seen_are_found_in_all_blocks() -> None:
    """By their block, so that who looks can go on there."""
    table = SeriesTable(2, 1, 4)
    one, other = table.block(0), table.block(1)
    for block, name in ((one, "a"), (one, "b"), (other, "c")):
        counted(block, (name,), 1)

    assert list(one.others([1, 0])) == [(0, ("b",)), (1, ("c",))]
    assert list(one.others([2, 1])) == []
