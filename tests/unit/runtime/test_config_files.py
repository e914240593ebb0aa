"""Files that a configuration was read from: a change is seen once it has settled, and its equal is none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from velox.runtime.reload import ConfigFiles


class Followed:
    """Files that are followed, and their time: a turn is what the supervisor does four times a second."""

    def __init__(self, *paths: Path) -> None:
        self.files = ConfigFiles()
        self.files.follow(map(str, paths), later_ns())
        self.now_s = 1000.0

    def turns(self, n: int) -> int:
        """Let n turns go by; return in how many of them there was a change."""
        n_changes = 0
        for _ in range(n):
            self.now_s += 0.25
            n_changes += self.files.have_changed(self.now_s)
        return n_changes

    def settle(self) -> int:
        """Let 1.5 seconds go by."""
        return self.turns(6)


def later_ns() -> int:
    """Return a time at which all files that are there by now have long been written."""
    return time.time_ns() + 10**9


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with something in it."""
    path = tmp_path / "velox.yaml"
    path.write_text("one")
    return path


def test_file_that_stays_touched_or_replaced_by_its_equal_is_no_change(file: Path) -> None:
    """However often it is looked at."""
    followed = Followed(file)
    assert followed.settle() == 0
    os.utime(file)
    assert followed.settle() == 0
    copy = file.with_name("copy")
    copy.write_text("one")
    copy.replace(file)
    assert followed.settle() == 0


def test_change_is_told_once(file: Path) -> None:
    """The same length, with the time of the content set back: what was done to the file is seen all the same."""
    followed = Followed(file)
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert followed.settle() == 1
    assert followed.settle() == 0
    file.unlink()
    assert followed.settle() == 1
    file.write_text("two")
    assert followed.settle() == 1


def test_file_that_is_being_written_is_not_read(file: Path) -> None:
    """What looks different each time is looked at again."""
    followed = Followed(file)
    for n in range(8):
        file.write_text("x" * n)
        assert followed.turns(1) == 0
    assert followed.settle() == 1


def test_link_that_is_swapped_is_followed(tmp_path: Path) -> None:
    """As Kubernetes changes what it mounts: all files of a folder are others at once, most with the same content."""
    for name, second in (("old", "1"), ("new", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "first").write_text("same")
        (tmp_path / name / "second").write_text(second)
    (tmp_path / "data").symlink_to("old")
    first, both = Followed(tmp_path / "data/first"), Followed(tmp_path / "data/first", tmp_path / "data/second")
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").replace(tmp_path / "data")
    assert (first.settle(), both.settle()) == (0, 1)


def test_file_that_changed_while_it_was_read_is_a_change(file: Path) -> None:
    """Nobody knows which content was read."""
    files = ConfigFiles()
    files.follow([str(file)], file.stat().st_ctime_ns)
    assert any(files.have_changed(1000.0 + n) for n in range(4))


def test_what_is_read_anyway_is_no_change_afterwards(file: Path) -> None:
    """Somebody edits the file and asks for a reload before the change was seen."""
    followed = Followed(file)
    file.write_text("two")
    assert followed.files.take()
    assert followed.settle() == 0


def test_other_files_are_followed_and_those_that_stay_keep_what_is_known(file: Path, tmp_path: Path) -> None:
    """A file that is followed later is no change by itself; one that changed before is one still."""
    key = tmp_path / "key"
    key.write_text("sk-1")
    followed = Followed(file)
    file.write_text("with a key")
    followed.files.follow([str(file), str(key)], later_ns())
    assert followed.settle() == 1
    key.write_text("sk-2")
    assert followed.settle() == 1
    followed.files.follow([str(file)], later_ns())
    key.write_text("sk-3")
    assert followed.settle() == 0


def test_file_that_is_not_there_yet_is_a_change_when_it_comes(tmp_path: Path) -> None:
    """The key that a configuration lacked."""
    followed = Followed(tmp_path / "key")
    assert followed.settle() == 0
    (tmp_path / "key").write_text("sk-1")
    assert followed.settle() == 1


def test_nothing_is_followed_without_files() -> None:
    """A gateway of variables alone."""
    assert Followed().settle() == 0
