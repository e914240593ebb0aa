"""The pid file: who has it, that one at a time does, and that nothing else is written over or signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.runtime.processes.pid_file import Found, PidFile, PidFileError, PidMark, find, signalled

# Takes the file, says so, and lets go of it when it is told to go on.
_HOLDER = """
import sys
from velox.runtime.processes.pid_file import PidFile
taken = PidFile.take(sys.argv[1])
print("taken", flush=True)
sys.stdin.readline()
taken.release()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "velox.pid"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the file."""
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_file_has_the_process_and_is_removed_at_its_end(path: Path) -> None:
    assert find(str(path)) == Found(0, is_there=False)
    taken = PidFile.take(str(path))
    assert path.read_text() == f"{os.getpid()}\n" and path.stat().st_mode & 0o777 == 0o644
    taken.release()
    assert not path.exists()
    taken.release()


def test_file_of_a_process_that_lives_is_not_taken(path: Path, holder: subprocess.Popen[str]) -> None:
    """The error says who has it; a reader finds the same."""
    assert find(str(path)) == Found(holder.pid, is_there=True)
    with pytest.raises(PidFileError, match=f"a gateway runs already: process {holder.pid} has the pid file {path}"):
        PidFile.take(str(path))
    assert path.read_text() == f"{holder.pid}\n"


def test_file_of_a_killed_process_is_taken_over(path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert find(str(path)) == Found(0, is_there=True)
    taken = PidFile.take(str(path))
    assert path.read_text() == f"{os.getpid()}\n"
    taken.release()


def test_number_of_another_program_is_nobody(path: Path) -> None:
    """A dead gateway's number was given to another process: that is no gateway, and is sent nothing."""
    with subprocess.Popen(["sleep", "60"]) as other:
        path.write_text(f"{other.pid}\n")
        assert find(str(path)) == Found(0, is_there=True)
        with signalled(str(path), signal.SIGTERM) as (pid, _):
            assert pid == 0
        taken = PidFile.take(str(path))
        assert path.read_text() == f"{os.getpid()}\n"
        taken.release()
        assert other.poll() is None
        other.kill()


def test_signal_reaches_who_has_the_file_and_its_end_is_seen(path: Path, holder: subprocess.Popen[str]) -> None:
    with signalled(str(path), signal.SIGTERM) as (pid, ended):
        assert pid == holder.pid
        assert holder.wait(30) == -signal.SIGTERM
        assert ended >= 0
    with signalled(str(path), signal.SIGTERM) as (pid, ended):
        assert (pid, ended) == (0, -1)


def test_other_file_than_a_pid_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "velox.yaml"
    file.write_text("workers: 2\n")
    for use in (find, PidFile.take):
        with pytest.raises(PidFileError, match="is something else than a pid file"):
            use(str(file))
        with pytest.raises(PidFileError, match=r"is no file|Is a directory"):
            use(str(tmp_path))
    assert file.read_text() == "workers: 2\n"
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(PidFileError, match="Too many levels of symbolic links"):
        PidFile.take(str(link))


def test_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(PidFileError, match=r"make the folder .*/none first"):
        PidFile.take(str(tmp_path / "none" / "velox.pid"))


def test_file_that_was_replaced_is_not_removed(path: Path) -> None:
    """Somebody has removed it, and another gateway has made its own."""
    taken = PidFile.take(str(path))
    path.unlink()
    path.write_text("1\n")
    taken.release()
    assert path.read_text() == "1\n"


def test_child_does_not_hold_the_file(path: Path, holder: subprocess.Popen[str]) -> None:
    """What a killed gateway leaves behind for a moment holds up nobody: a lock is no child's."""
    mark = PidMark(str(path), is_first=False)
    mark.take()
    assert find(str(path)).pid == holder.pid, "the version before has it still"
    assert holder.stdin is not None
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    holder.wait(30)
    mark.take()
    assert path.read_text() == f"{os.getpid()}\n"
    child = os.fork()
    if not child:
        signal.pause()
    mark.let_go()
    assert find(str(path)) == Found(0, is_there=True)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    mark.take()
    assert find(str(path)).pid == 0, "it was let go for good"
    mark.release()
    assert path.exists(), "it is the next version's"
