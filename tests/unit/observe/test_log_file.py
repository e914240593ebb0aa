"""The operations log's file: it follows its path, whoever renames, removes or replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox.observe.log_file import LogFile


def test_lines_go_to_the_file_at_the_path(tmp_path: Path) -> None:
    """After a rename the next line makes a new file; the old one has what came before."""
    path = tmp_path / "velox.log"
    path.write_text("before\n")
    log = LogFile(str(path))
    log.write("one\n")
    path.rename(tmp_path / "velox.log.1")
    log.write("two\n")
    path.unlink()
    log.write("three\n")
    assert (tmp_path / "velox.log.1").read_text() == "before\none\n"
    assert path.read_text() == "three\n"
    log.close()


def test_follow_makes_the_file_without_a_line(tmp_path: Path) -> None:
    """As SIGUSR1 has it: a tool that waits for the new file sees it."""
    path = tmp_path / "velox.log"
    log = LogFile(str(path))
    path.rename(tmp_path / "old")
    log.follow()
    assert path.read_text() == ""
    log.close()


def test_file_that_can_not_be_made_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = LogFile(str(folder / "velox.log"))
    folder.rename(tmp_path / "elsewhere")
    log.write("still here\n")
    assert (tmp_path / "elsewhere" / "velox.log").read_text() == "still here\n"
    log.close()


def test_file_that_can_not_be_opened_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(str(tmp_path / "none" / "velox.log"))
