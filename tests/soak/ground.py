"""The provider of the soak as a process, and the gateway before it.

Knows: how both start. Does not know: what is asked.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.e2e.harness import REPOSITORY, START_S, LineLog

__all__ = ["start_provider"]


@contextlib.contextmanager
def start_provider() -> Iterator[str]:
    """Start the provider; yield its origin."""
    command = [sys.executable, "-m", "tests.soak.provider"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None, "it is a pipe"
    output = LineLog(process.stdout, "soak-provider")
    try:
        yield output.wait(lambda line: "listening on" in line, START_S).rpartition(" ")[2]
    finally:
        process.kill()
        process.wait()
        output.close()
