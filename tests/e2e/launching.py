"""What a test's own way to start a gateway needs: to be `velox`, and to answer questions that come as signals.

    (sys.executable, "-m", "tests.e2e.collecting", folder)    what the command line begins with: command()
    main(prepare)                                             in that module: prepare the process, then be `velox WORDS`
    ask(pid, number, folder)                                  in the test: what a process answers to a signal
    answer(folder, told)                                      in the process, when the signal comes

Knows: the command line, files in a folder, signals. Does not know: what is asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.watching import until

__all__ = ["answer", "ask", "command", "main"]


def command(module: str, folder: str) -> tuple[str, ...]:
    """Return what the command line of a gateway begins with (VeloxProcess.launcher). folder: of its answers."""
    return (sys.executable, "-m", module, folder)


def ask(pid: int, number: int, folder: str) -> Any:
    """Send a signal to a process; return what it answers."""
    path = Path(folder, str(pid))
    path.unlink(missing_ok=True)
    os.kill(pid, number)
    until(path.exists, f"process {pid} has answered signal {number}")
    return json.loads(path.read_text())


def answer(folder: str, told: object) -> None:
    """Answer, as this process."""
    path = Path(folder, str(os.getpid()))
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.rename(path)


def main(prepare: Callable[[str], None]) -> int:
    """Be `velox WORDS`, in a process that was prepared for it. prepare: is given the folder."""
    folder, *words = sys.argv[1:]
    prepare(folder)
    sys.argv[1:] = words[words.index("velox") + 1 :]
    from velox.cli import main as velox

    return velox()
