"""Clients of Python, each in an environment of its own: a program of tests/clients/python, asked by lines of JSON.

    with worker("langchain", "with_langchain.py", folder) as langchain:
        langchain.ask("chat", velox.base_url, "gpt-4.1", is_streamed=True)      # what its function returns

A program is started once, as the import of such packages takes seconds.

Knows: the environments that `make test-clients` makes, the lines. Does not know: what a client does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.plan import Plan, Wanted
from tests.clients.running import CLIENTS, LONGEST_S
from tests.e2e.harness import KEY

__all__ = ["CALLED", "PLAN", "REPORT", "REPORTED", "Worker", "worker"]

PROGRAMS: Final = Path(__file__).parent / "python"
# Of the one tool that the programs declare.
PLAN: Final = Plan(
    rounds=(
        (Wanted("look", {"city": "Oslo"}, "cold"), Wanted("look", {"city": "Rome"}, "warm")),
        (Wanted("look", {"city": "Lima"}, "grey"),),
    ),
    final="Oslo is cold, Rome is warm, Lima is grey.",
)

# A structured answer, of the type that the programs ask for.
REPORTED: Final = {"city": "Oslo", "degrees": -3}
REPORT: Final = Plan(rounds=(), final=json.dumps(REPORTED))
# The same, as a call of a tool that is named as the type.
CALLED: Final = Plan(rounds=((Wanted("Report", REPORTED, ""),),), final=None)


class Worker:
    """A program that runs. process: its own; told: the file of its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], told: Path) -> None:
        self._process: Final = process
        self._told: Final = told
        self._read = b""

    def ask(self, client: str, base_url: str, model: str, *, is_streamed: bool = False) -> Any:
        """Return what a client's function returned. Fails with its traceback, or where it does not end."""
        job = {"client": client, "base_url": base_url, "key": KEY, "model": model, "is_streamed": is_streamed}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        said = json.loads(self._line())
        assert "said" in said, said["error"][-8000:]
        return said["said"]

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        ends_s = time.monotonic() + LONGEST_S
        while b"\n" not in self._read:
            left_s = ends_s - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(left_s, 0.0))
            more = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not more:
                self._process.kill()
                raise AssertionError(f"no answer of the program\n{self._told.read_text()[-6000:]}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line


@contextlib.contextmanager
def worker(environment: str, program: str, folder: Path, **env: str) -> Iterator[Worker]:
    """Start a program in an environment, with a home in `folder`. Skips the test where it is not installed."""
    python = CLIENTS / "python" / environment / "bin/python"
    if not python.exists():
        pytest.skip(f"{environment} is not installed: make test-clients")
    told = folder / "stderr"
    usual = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    with told.open("wb") as errors:
        process = subprocess.Popen(
            [str(python), str(PROGRAMS / program)],
            cwd=folder,
            env={**usual, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield Worker(process, told)
        finally:
            process.kill()
            process.communicate()
