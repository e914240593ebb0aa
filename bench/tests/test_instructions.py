"""The guard of instructions: what it lets through, what it refuses and says; and that what is counted is answered."""

import json
import subprocess
from pathlib import Path

import pytest

from bench.all_on import STEPS, Step, settings_up_to
from bench.instructions import kept
from bench.instructions.__main__ import compare
from bench.instructions.calibration import calibrate
from bench.instructions.count import CountError, count, rig_command
from bench.instructions.kept import ELSEWHERE, TOLERANCE, Figures, judge, load, nearest, with_figures, write
from bench.instructions.kinds import ALL_ON, CALIBRATION, KINDS, OBSERVABILITY, TRANSLATED, chosen
from bench.instructions.page import PAGE, kept_table, observability_table, steps_table
from bench.observed import OBSERVED, Observed, observability_settings
from docs.tables import fill
from velox.build import BUILD
from velox.settings import load as load_settings

ROOT = Path(__file__).parents[2]
PARTS = {"uvloop": "1"}
JSON = KINDS[0].name


def figures(json: int, calibration: int = 1000, interpreter: str = "CPython 3.11.2 (main, a)") -> Figures:
    return Figures(interpreter, PARTS, {JSON: json, CALIBRATION.name: calibration})


@pytest.mark.parametrize(("now", "passes"), [(10_200, True), (10_201, False), (9_800, True), (9_799, False)])
def test_judge_same_place_either_way(now: int, passes: bool) -> None:
    """More is refused, and so is less: a gain that is not kept could be lost again unseen."""
    line = judge(figures(10_000), figures(now))[0]
    assert TOLERANCE == 0.02
    assert line.is_kept == passes


def test_judge_other_interpreter_by_calibration() -> None:
    """Where nothing is kept, what counts is how a request stands to the calibration."""
    other = "CPython 3.12.1 (main, b)"
    assert judge(figures(10_000), figures(20_000, 2_000, other))[0].change == 0
    assert judge(figures(10_000), figures(20_000, 2_000, other))[0].is_kept
    worse = figures(round(20_000 * (1 + ELSEWHERE)) + 1, 2_000, other)
    assert not judge(figures(10_000), worse)[0].is_kept


def test_judge_kind_that_is_not_kept_is_refused() -> None:
    """A new kind has to be accepted: else it would never be guarded."""
    now = Figures(*("CPython 3.11.2 (main, a)", PARTS), {"new": 1, CALIBRATION.name: 1000})
    assert [line.is_kept for line in judge(figures(10_000), now)] == [False, True]


def test_judge_kind_that_is_kept_elsewhere_only_is_held_against_that() -> None:
    """A new kind is counted on one interpreter. On the others it is compared by its ratio to the calibration."""
    here, name = "CPython 3.11.2 (main, a)", "new"
    elsewhere = Figures("CPython 3.11.7 (main, b)", PARTS, {name: 3000, CALIBRATION.name: 2000})
    for n, is_kept in ((1650, True), (1651, False)):
        now = Figures(here, PARTS, {name: n, CALIBRATION.name: 1000})
        assert judge(figures(10_000), now, (figures(10_000), elsewhere))[0].is_kept is is_kept


def test_nearest_same_place_else_same_version_else_first() -> None:
    """Figures are held against those of the place that is most alike."""
    first, same = figures(1, interpreter="CPython 3.13.0 (x)"), figures(2, interpreter="CPython 3.11.2 (main, a)")
    all_kept = (first, same)
    assert nearest(all_kept, figures(3)) is same
    assert nearest(all_kept, figures(3, interpreter="CPython 3.11.2 (other)")) is same
    assert nearest(all_kept, figures(3, interpreter="CPython 3.12.0 (x)")) is first
    assert nearest((), figures(3)) is None


def test_with_figures_replaces_kind_by_kind(tmp_path: Path) -> None:
    """Accepting some kinds leaves the others of the place, and all other places, as they are."""
    path = tmp_path / "kept.json"
    write((figures(1),), path)
    write(with_figures(load(path), Figures(figures(1).interpreter, PARTS, {JSON: 5})), path)
    write(with_figures(load(path), figures(7, interpreter="CPython 3.12.0 (x)")), path)
    assert load(path) == (figures(5), figures(7, interpreter="CPython 3.12.0 (x)"))


def test_compare_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A difference ends with 1, names the kind, and says how it is found or accepted."""
    assert compare((figures(10_000),), figures(10_100)) == 0
    capsys.readouterr()
    assert compare((figures(10_000),), figures(10_300)) == 1
    printed = capsys.readouterr()
    assert f"| {JSON} | 10,000 | 10,300 | +3.00% | **differs** |" in printed.out
    assert all(text in printed.err for text in (JSON, "--profile", "--accept", "reason"))
    assert compare((), figures(10_000)) == 1


def test_count_without_valgrind_names_the_package(tmp_path: Path) -> None:
    """Where valgrind is missing the message says how it is had."""
    with pytest.raises(CountError, match="apt-get install valgrind"):
        count(path=str(tmp_path))


def test_calibration_is_what_was_counted() -> None:
    """It must never change: all figures of other interpreters are compared through it."""
    assert calibrate(1) == 172
    assert calibrate(3) == 3 * 172


@pytest.mark.parametrize(
    "names",
    [*((kind.name,) for kind in KINDS), tuple(kind.name for kind in TRANSLATED)],
    ids=lambda names: names[0],
)
def test_rig_each_kind_is_answered(names: tuple[str, ...]) -> None:
    """What is counted is answered requests: a refusal would be cheap, and ends the rig with an error."""
    command = [*rig_command(ROOT), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_page_shows_what_is_kept() -> None:
    """The page and the file say the same."""
    text = PAGE.read_text()
    assert fill(text, "instructions", kept_table(load())) == text
    assert {CALIBRATION.name, JSON} <= json.loads(kept.PATH.read_text())[0]["instructions"].keys()


def test_chosen_name_of_a_kind_is_that_kind_only() -> None:
    """A kind whose name is the beginning of another's can be chosen alone; a word chooses all that have it."""
    assert [kind.name for kind in chosen([JSON])] == [JSON]
    assert len(chosen(["equal heads"])) == 3
    assert chosen([]) == KINDS
    assert chosen(["translated"]) == TRANSLATED


def test_chosen_what_records_cost_is_counted_beside_others() -> None:
    """The rig counts every kind that was asked for, in the order in which its counts are read."""
    names = [kind.name for kind in chosen(["ledger", CALIBRATION.name, "nothing recorded"])]
    assert names == ["nothing recorded", "ledger", CALIBRATION.name]
    assert [kind.name for kind in chosen([*names, JSON])] == [JSON, *names]


def test_steps_table_says_what_each_adds() -> None:
    """Each step stands against the one above it, and against nothing at all."""
    counts = {kind.name: n for kind, n in zip(ALL_ON, (100, 110, 150, 160, 170, 210), strict=True)}
    assert steps_table(counts).splitlines()[2:] == [
        "| bare | 100 | +0 | 1.00 |",
        "| + keys | 110 | +10 | 1.10 |",
        "| + limits | 150 | +40 | 1.50 |",
        "| + ledger | 160 | +10 | 1.60 |",
        "| + prices | 170 | +10 | 1.70 |",
        "| + budgets | 210 | +40 | 2.10 |",
    ]


def test_observability_table_stands_against_metrics_alone() -> None:
    counts = {kind.name: 1000.0 + n for n, kind in enumerate(OBSERVABILITY)}
    counts["observability: traces: 100 %"] = 2005.0
    rows = observability_table(counts).splitlines()[2:]
    assert rows[0] == "| metrics alone | 1,000 | +0 | +0.0% |" and rows[5] == "| traces: 0 % | 1,005 | +5 | +0.5% |"
    assert rows[6:8] == ["| traces: 1 % | 1,015 | +15 | +1.5% |", "| traces: 100 % | 2,005 | +1,005 | +100.5% |"]
    assert [kind.name for kind in chosen([OBSERVABILITY[0].name])] == ["observability: metrics alone"] and chosen(
        []
    ) == KINDS


@pytest.mark.parametrize("what", OBSERVED)
def test_each_row_tells_what_it_says(what: Observed) -> None:
    """By the settings that it makes, which a wrong name of a variable would not change."""
    settings = load_settings(
        {"VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9", **observability_settings(what)}, cores=1, memory_bytes=0
    )
    traces = settings.traces
    assert (traces is not None) is ("traces" in what)
    assert bool(settings.traces_content) is ("content" in what)
    assert (settings.access_log == "all") is ("log: all" in what or "of all" in what)
    assert (settings.server_timing == "all") is ("timing of each" in what or "of all" in what)
    if traces is not None:
        sampled = 0.0 if traces.sampler == "always_off" else traces.ratio
        assert sampled == (0.0 if what == "traces: 0 %" else 1.0)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_has_what_is_above_it(step: Step, tmp_path: Path) -> None:
    """A real deployment has all of it: what a row leaves out would not be seen in those below."""
    settings = load_settings(
        {"VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9", **settings_up_to(step, "a,b", tmp_path)},
        cores=1,
        memory_bytes=0,
    )
    ledger = [bool(settings.ledger), bool(settings.own_prices), bool(settings.budgets)]
    on = [True, bool(settings.api_keys), bool(settings.limits), *ledger]
    at = STEPS.index(step) + 1
    assert on == [True] * at + [False] * (len(STEPS) - at)


@pytest.mark.skipif(BUILD == "compiled", reason="compiled functions have no frames to count")
def test_frames_are_counted_of_velox_only() -> None:
    """What is printed are functions of the gateway, and objects held while its upstream has not answered."""
    command = [*rig_command(ROOT), "--frames", JSON]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = dict(reversed(line.split(None, 1)) for line in done.stdout.splitlines()[1:])
    assert float(lines["frames"]) > float(lines["constructors among the frames"]) > 0
    assert float(lines["tracked objects in flight"]) >= float(lines["of them of velox"]) > 0
    assert not any(name.startswith("bench.") for name in lines)
