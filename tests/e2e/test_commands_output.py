"""What commands print, where it can't be printed: a line that says so, an exit code, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS_ALL = ("check", "--all")


def run(words: tuple[str, ...], redirect: str, **environ: str) -> tuple[int, str]:
    """Run a command behind a shell's redirection; return its exit code and what it said on standard error."""
    command = ["sh", "-c", f'"$@" {redirect}', "sh", sys.executable, "-m", "velox", *words]
    done = subprocess.run(command, env={**os.environ, **environ}, stderr=subprocess.PIPE, timeout=30, check=False)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("words", [SAYS_ALL, ("prices", "gpt-4o"), ("key", "new")], ids=" ".join)
def test_output_that_nothing_takes_is_told_of(words: tuple[str, ...]) -> None:
    code, said = run(words, ">/dev/full")
    assert (code, said) == (1, "velox: what this command prints could not be written: No space left on device\n")

    code, said = run(words, ">&-")
    assert (code, said) == (1, "velox: standard output is closed, and this command prints\n")


def test_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    """As `velox check --all | head -1`: the code is the command's own."""
    code = tmp_path / "code"

    _, said = run(SAYS_ALL, f"| true; echo done >{code}")

    assert (code.read_text(), said) == ("done\n", "")


def test_name_that_the_terminal_has_no_letters_for_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "caf\u00e9.yaml"
    file.write_text("rate_limit_rpm: 5\n")

    code, said = run(("check",), "| grep caf", VELOX_CONFIG=str(file), PYTHONIOENCODING="ascii")

    assert (code, said) == (0, "")


def test_failure_that_nobody_hears_of_is_one() -> None:
    """As `velox check 2>&1 | grep -q x`, whose reader may have left: the exit code says it."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        command = [sys.executable, "-m", "velox", "check", "--config", "/nonexistent"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=gone, timeout=30, check=False)

    assert done.returncode != 0
