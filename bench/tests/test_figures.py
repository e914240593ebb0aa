"""What the bench makes of its samples: order of rounds, medians, ratios, the table. And the load's own arithmetic."""

import os
from pathlib import Path

import pytest

from bench.cpu import cpu_seconds, family, n_writes
from bench.open_loop import arrivals, percentile
from bench.payloads import CHAT_REPLY, chat_body, large_body
from bench.report import row, save, table
from bench.rounds import Figures, Spread, ratios, rotated, run_rounds, spread
from velox.protocol.json.body import BodyReader

FIGURES: Figures = {
    "nginx": [{"cpu": 10.0}, {"cpu": 20.0}, {"cpu": 10.0}],
    "velox": [{"cpu": 15.0}, {"cpu": 40.0}, {"cpu": 16.0}],
}


def test_rotated_each_turn_begins_with_another() -> None:
    """No subject always runs first, or always after the same one."""
    assert [rotated("abc", turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated("abc", 2)) == ["a", "b", "c"]


def test_run_rounds_first_round_is_dropped() -> None:
    """Each subject is measured once more than it has figures, and the first ones are not among them."""
    calls: list[str] = []

    def measure_as(name: str, seconds: float) -> dict[str, float]:
        calls.append(name)
        return {"n": float(len(calls))}

    figures = run_rounds({n: lambda s, n=n: measure_as(n, s) for n in ("a", "b")}, 2, 0.0)
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert [each["n"] for each in figures["a"]] == [3.0, 6.0]


def test_ratios_are_taken_within_a_round() -> None:
    """A slow round, in which both are slow, does not make the ratio worse: 2.0, not 40 ÷ 10."""
    assert ratios(FIGURES, "velox", "nginx", "cpu") == Spread(1.6, 1.5, 2.0)


def test_spread_of_one_value_is_that_value() -> None:
    """One round has no spread."""
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)


@pytest.mark.parametrize(("bar", "verdict"), [(1.6, "kept"), (1.5, "**missed**")])
def test_table_says_whether_the_bar_is_kept(bar: float, verdict: str) -> None:
    """The median ratio decides; the line shows figure, spread, ratio and bar."""
    line = table([row(FIGURES, "cpu", "velox", what="CPU", unit="µs", reference="nginx", bar=bar)]).splitlines()[-1]
    assert line == f"| CPU | velox | 16.0 (15.0-40.0) µs | 1.60 (1.50-2.00)x | {bar:g}x | {verdict} |"


def test_save_writes_table_and_record(tmp_path: Path) -> None:
    """Both files have one stem, so that a table is never without its samples."""
    path = save(tmp_path / "out", "run", {"figures": FIGURES}, "| table |")
    assert path.with_suffix(".md").read_text() == "| table |\n"
    assert '"nginx"' in path.read_text()


def test_arrivals_have_the_mean_rate_and_repeat() -> None:
    """About as many requests as the rate says, in order, the same ones in each run."""
    due = arrivals(500.0, 10.0)
    assert 4700 < len(due) < 5300
    assert due == sorted(due) == arrivals(500.0, 10.0)
    assert due[-1] < 10.0


def test_percentile_of_few_values_is_one_of_them() -> None:
    """The highest share is the greatest value, never an index past it."""
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0], 1.0) == 3.0


def test_payloads_have_the_stated_size_and_are_read_by_velox() -> None:
    """750 and 600 bytes; what Velox looks for is in them."""
    body = chat_body(stream=True)
    assert (len(body), len(CHAT_REPLY)) == (750, 600)
    peek = BodyReader().read(body)
    assert (peek.model, peek.stream, peek.max_tokens) == ("gpt-bench", True, 256)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_large_body_is_json_of_about_that_size(kind: str) -> None:
    """Within 1 %, and what Velox looks for is in it."""
    body = large_body(kind, 300_000)  # type: ignore[arg-type]
    assert 297_000 < len(body) < 303_000
    assert BodyReader().read(body).model == "gpt-bench"


def test_family_finds_descendants_by_parent(tmp_path: Path) -> None:
    """A grandchild counts, a stranger does not, and a name with spaces and parentheses confuses nothing."""
    for pid, name, parent in ((10, "velox", 1), (11, "a) S 99 (b", 10), (12, "worker", 11), (20, "other", 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    assert sorted(family(10, tmp_path)) == [10, 11, 12]


def test_cpu_seconds_of_this_process_grow_with_work() -> None:
    """Time on a core is counted, in seconds."""
    before = cpu_seconds([os.getpid()])
    sum(range(2_000_000))
    assert 0.001 < cpu_seconds([os.getpid()]) - before < 5.0


def test_n_writes_sums_all_processes(tmp_path: Path) -> None:
    """Reads and bytes are not counted."""
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "io").write_text("rchar: 9\nwchar: 9\nsyscr: 9\nsyscw: 4\n")
    assert n_writes([1, 2], tmp_path) == 8
