"""Fuzzing as part of the suite: the corpus always, a second of new inputs for each target; and would a bug be found?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from docs.tables import fill
from tests.fuzz.__main__ import main
from tests.fuzz.engines import Run, fuzz, read_output
from tests.fuzz.report import PAGE, table
from tests.fuzz.shrink import reached, shrink
from tests.fuzz.targets import CORPUS, TARGETS, Target

# Of a folder: "small" is what keeps the suite quick and a review possible.
MOST_BYTES = 128 * 1024
MOST_INPUTS = 300


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_corpus_passes(target: Target) -> None:
    """Whatever once reached new code, or failed, is tried again each time."""
    check = target.load()
    inputs = sorted(target.corpus.iterdir())
    assert 3 <= len(inputs) <= MOST_INPUTS and sum(path.stat().st_size for path in inputs) <= MOST_BYTES

    for path in inputs:
        check(path.read_bytes())


def test_corpus_has_a_folder_for_each_target() -> None:
    """None is left over, none is missing."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_every_target_is_fuzzed_for_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command, with whatever engine there is: it finds nothing, and says how much it tried."""
    code = main(["--seconds", "1", "--jobs", "2", "--work", str(tmp_path), "--log", str(tmp_path / "log.jsonl")])

    out = capsys.readouterr().out
    assert code == 0, out
    runs = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {run["target"] for run in runs} == set(TARGETS)
    assert all(run["executions"] > 0 and not run["crashes"] for run in runs), runs


def planted(data: bytes) -> None:
    """Fail for what a mutation of the corpus soon is."""
    assert b"bug" not in data, "the bug that was planted"


def test_planted_bug_is_found_and_kept(tmp_path: Path) -> None:
    """An input that fails is a finding, in the words of the check, and a file that fails again."""
    target = Target("planted", "test_fuzz:planted", 100, ("bug", "fly"), tmp_path)
    target.corpus.mkdir()
    (target.corpus / "one").write_bytes(b"hello")

    run = fuzz(target, 20, tmp_path, engine="hypothesis")

    (crash,) = (tmp_path / "crashes" / "planted").iterdir()
    assert run.crashes == 1 and "the bug that was planted" in run.found[0]
    with pytest.raises(AssertionError, match="the bug that was planted"):
        planted(crash.read_bytes())


LIBFUZZER = """\
#2      INITED cov: 30 ft: 30 corp: 1/1b exec/s: 0 rss: 56Mb
#23334  DONE   cov: 71 ft: 307 corp: 56/635b lim: 104 exec/s: 3889 rss: 56Mb
stat::number_of_executed_units: 23334
stat::peak_rss_mb:              57
"""


@pytest.mark.parametrize(
    ("more", "crashes", "hangs"),
    [
        ("", 0, 0),
        (" === Uncaught Python exception: ===\nValueError: x\n==1== ERROR: libFuzzer: fuzz target exited\n", 1, 0),
        ("==1== ERROR: libFuzzer: timeout after 20 seconds\n", 0, 1),
        ("==1== ERROR: libFuzzer: out-of-memory (used: 1025Mb; limit: 1024Mb)\n", 1, 0),
    ],
    ids=["nothing", "exception", "hang", "memory"],
)
def test_figures_and_findings_are_read_from_what_libfuzzer_prints(more: str, crashes: int, hangs: int) -> None:
    """Executions, edges and corpus; an exception, a hang and too much memory are findings."""
    run = Run("head", "atheris")

    read_output(run, LIBFUZZER + more)

    assert (run.executions, run.edges, run.corpus, run.peak_mib) == (23334, 71, 56, 57)
    assert (run.crashes, run.hangs, len(run.found)) == (crashes, hangs, crashes + hangs)


def test_run_goes_on_where_its_log_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long run that was stopped: what is done is not done again."""
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"target": name, "seconds": 60.0}) + "\n" for name in TARGETS))

    assert main(["--seconds", "60", "--work", str(tmp_path), "--log", str(log)]) == 0
    assert len(log.read_text().splitlines()) == len(TARGETS) and "0 executions" in capsys.readouterr().out


def test_shrunken_corpus_reaches_as_much(tmp_path: Path) -> None:
    """Inputs that reach nothing of their own are dropped, the others stay."""
    target = dataclasses.replace(TARGETS["websocket"], corpora=tmp_path / "corpus")
    grown = tmp_path / "grown"
    grown.mkdir()
    inputs = [b"\x81\x05hello", b"\x81\x05world", b"\x88\x02\x03\xe8", b"\x82\x7e\x01\x00" + b"x" * 256]
    for number, data in enumerate(inputs):
        (grown / str(number)).write_bytes(data)

    shrink(target, grown)

    kept = {path.read_bytes() for path in target.corpus.iterdir()}
    check = target.load()
    assert kept == {inputs[0], inputs[2], inputs[3]}
    assert set().union(*(reached(check, data) for data in kept)) >= reached(check, inputs[1])


def test_report_is_a_row_a_target() -> None:
    """Runs of one target are added up, and the page has the place for it."""
    entry = {
        "target": "sse",
        "seconds": 900.0,
        "executions": 90_000,
        "edges": 50,
        "corpus": 7,
        "crashes": 0,
        "hangs": 0,
    }

    lines = table([entry, {**entry, "edges": 51, "corpus": 8}]).splitlines()

    assert lines[2:] == ["| sse | 30.0 | 180,000 | 100 | 51 | 8 | 0 | 0 |"]
    assert fill(PAGE.read_text(), "figures", table([entry]))
