"""The file of a log is where it can be written, which is checked without making it."""

from __future__ import annotations

from pathlib import Path

from velox.settings.checks.contradictions import log_file_problem


def test_file_that_can_be_made_or_appended_to_is_no_problem(tmp_path: Path) -> None:
    """Nothing is made by the question."""
    path = tmp_path / "access.log"
    assert log_file_problem(str(path)) == "" and not path.exists()
    path.touch()
    assert log_file_problem(str(path)) == ""


def test_problem_says_what_is_in_the_way(tmp_path: Path) -> None:
    """A folder, or a folder that is not there."""
    assert log_file_problem(str(tmp_path)) == "expected a file, not a folder"
    missing = tmp_path / "none"
    assert log_file_problem(str(missing / "x")) == f"expected a file in a folder that is there: {missing} is none"
