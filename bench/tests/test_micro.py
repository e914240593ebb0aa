"""What the micro benchmarks compare does the same, and their page names all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from bench.micro.bodies import SIZES, chat
from bench.micro.candidates import Candidate, Case, Subject, calls, wrong
from bench.micro.catalogue import SUBJECTS, find
from bench.micro.contested import CASES as CONTESTED
from bench.micro.contested import Contest
from bench.micro.page import PAGE, filled, mark, table
from bench.micro.processes import Effort, MicroError, Result, play

ROOT: Final = Path(__file__).parents[2]
ALL: Final = [
    pytest.param(case, candidate, id=f"{subject.name}-{case.name}-{candidate.name}")
    for subject in SUBJECTS
    for case in subject.cases
    for candidate in case.candidates
]


def way(name: str, answer: object, *, unable: bool = False, needs: tuple[str, ...] = ()) -> Candidate:
    """Return a candidate that answers one question, and takes no time."""
    return Candidate(
        name,
        lambda: calls(lambda: None),
        lambda: {"which": answer},
        needs,
        frozenset({"which"} if unable else ()),
    )


@pytest.mark.parametrize(("case", "candidate"), ALL)
def test_way_answers_as_velox_does(case: Case, candidate: Candidate) -> None:
    """What is measured is right; and what a way can't see it really can't."""
    assert candidate.missing == ()
    assert wrong(case, candidate) == []


@pytest.mark.parametrize(("case", "candidate"), ALL)
def test_way_can_be_timed(case: Case, candidate: Candidate) -> None:
    """Its time is positive, also the second time, when it has been used before."""
    timed = candidate.begin()

    assert timed(3) > 0.0
    assert timed(2) > 0.0


def test_every_case_begins_with_velox_and_names_are_unique() -> None:
    """Ratios are to the first one; a process finds what it measures by its names."""
    for subject in SUBJECTS:
        for case in subject.cases:
            assert case.candidates[0].name.startswith("Velox")
            for candidate in case.candidates:
                assert find(subject.name, case.name, candidate.name) == (case, candidate)


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (way("right", 1), []),
        (way("wrong", 2), ["which: 2, not 1"]),
        (way("unable", 2, unable=True), []),
        (way("able after all", 1, unable=True), ["which: answered as Velox does, though it is said not to be"]),
    ],
)
def test_wrong_answers_are_found(candidate: Candidate, problem: list[str]) -> None:
    """Also a way that is said to be worse than it is."""
    assert wrong(Case("case", (way("Velox", 1), candidate)), candidate) == problem


@pytest.mark.parametrize("size", SIZES.values())
def test_body_has_its_size(size: int) -> None:
    """The table says how large they are."""
    assert len(chat(size)) == size


@pytest.mark.parametrize("candidate", CONTESTED[0].candidates[:2], ids=lambda candidate: str(candidate.name))
def test_two_processes_lose_no_permit(candidate: Candidate) -> None:
    """Each run of the measurement looks, and so does this: all that both took is counted."""
    contest = candidate.begin()
    assert isinstance(contest, Contest)

    contest(5_000)

    assert contest.told()["taken"] > 5_000  # the other one took some, too
    assert contest.told()["lost"] == 0


class Forgetful:
    """A counter that loses all that the other process counts."""

    def __init__(self) -> None:
        self._n = 0

    def adder(self, process: int) -> partial[None]:
        return partial(self._add)

    def _add(self) -> None:
        self._n += 1

    def total(self) -> int:
        return self._n


def test_lost_permits_are_seen() -> None:
    """A counter that is said to be exact and is not ends the measurement; of another it is told how much it lost."""
    with pytest.raises(AssertionError, match="not counted"):
        Contest(Forgetful, is_exact=True)(100)
    loose = Contest(Forgetful, is_exact=False)
    loose(100)

    assert loose.told()["lost"] == loose.told()["taken"] - 100 > 0


def test_missing_package_is_named(tmp_path: Path) -> None:
    """Nothing is left out in silence: what must be installed is said before anything is measured."""
    subject = Subject("s", "a thing", (Case("c", (way("Velox", 1), way("other", 1, needs=("no-such-package",)))),))

    with pytest.raises(MicroError, match="no-such-package"):
        play([subject], Effort(1, 1, 0.0), tmp_path, lambda line: None)


def test_table_shows_ratio_within_a_round_and_what_was_lost() -> None:
    """Velox's time by the other's, in the same round; losses as a part of all that was taken."""
    case = Case("c", (way("Velox", 1), way("other", 2, unable=True)))
    ours, other = (Result("s", case, candidate) for candidate in case.candidates)
    ours.medians, other.medians = [1e-6, 2e-6, 3e-6], [2e-6, 8e-6, 3e-6]
    other.told = {"taken": 1000, "lost": 310}

    lines = table(Subject("s", "a thing", (case,)), [ours, other]).splitlines()

    assert lines[2] == "| c | Velox | 2.00 (1.00-3.00) |  |  |"
    assert lines[3] == "| c | other | 3.00 (2.00-8.00) | 0.500 (0.250-1.00)x | which; 31 % of 1,000 lost |"


def test_page_names_every_benchmark() -> None:
    """The table of each part has a line for each way at each case, and no other line."""
    page = PAGE.read_text()
    for subject in SUBJECTS:
        section = page.partition(f"<!-- {mark(subject.name)} -->")[2].partition("<!-- /")[0]
        rows = re.findall(r"^\| (.*?) \| (.*?) \| [\d.,]+ \(", section, re.MULTILINE)
        assert rows == [(case.name, candidate.name) for case in subject.cases for candidate in case.candidates]


def test_page_names_the_version_of_everything_needed() -> None:
    """Figures without versions can't be repeated."""
    section = PAGE.read_text().partition("<!-- micro-versions -->")[2].partition("<!-- /")[0]
    needed = {name for subject in SUBJECTS for case in subject.cases for one in case.candidates for name in one.needs}

    for name in needed | {"pysimdjson", "pyperf", "CPython"}:
        assert re.search(rf"\b{name}\s\d+\.", section), name


def test_page_keeps_its_words_when_it_is_filled() -> None:
    """Only what is between the marks changes."""
    text = PAGE.read_text()
    results = [
        Result(subject.name, case, candidate, [1e-6])
        for subject in SUBJECTS
        for case in subject.cases
        for candidate in case.candidates
    ]

    def bare(page: str) -> str:
        return re.sub(r"(<!-- (micro-\w+) -->\n).*?(<!-- /\2 -->)", r"\1\3", page, flags=re.DOTALL)

    assert bare(filled(text, SUBJECTS, results, "about\n")) == bare(text)


def test_command_measures_a_part_and_fills_no_page_when_fast(tmp_path: Path) -> None:
    """`python -m bench.micro --fast --only counters` prints its table and writes pyperf's file."""
    before = PAGE.read_text()

    done = subprocess.run(
        [sys.executable, "-m", "bench.micro", "--fast", "--only", "counters", "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert "| counter and histogram | prometheus_client, series kept |" in done.stdout
    (path,) = tmp_path.glob("micro-*.pyperf.json")
    assert (
        '"bench_time_func"' not in path.read_text() and "counters / counter and histogram / Velox" in path.read_text()
    )
    assert PAGE.read_text() == before


def test_command_names_a_part_that_is_not_there() -> None:
    """And those that are."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro", "--only", "bodie"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 2
    assert "no such part: bodie" in done.stderr and "bodies" in done.stderr
