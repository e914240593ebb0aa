"""What a figure was measured on: machine, versions, commit. And which core does what.

Knows: /proc, the versions of the parts. Does not know: figures.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sysconfig
import timeit
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Cores", "describe", "pick_cores"]

_PACKAGES: Final = ("uvloop", "httptools", "ngh2", "h2", "pysimdjson", "orjson", "atomicshm")


@dataclass(frozen=True, slots=True)
class Cores:
    """gateway: the core of what is measured. rest: the core of load and upstream; the same where there is only one.

    every: all that may be used, in order.
    """

    gateway: int
    rest: int
    every: tuple[int, ...] = ()


def pick_cores() -> Cores:
    """Take the first two cores of the affinity mask."""
    cores = sorted(os.sched_getaffinity(0))
    return Cores(cores[0], cores[1] if len(cores) > 1 else cores[0], tuple(cores))


def describe() -> dict[str, object]:
    """Return facts for the record of a run."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": sysconfig.get_config_var("CONFIG_ARGS"),
        "loop_us": _loop_us(),
        "nginx": _first_line(["nginx", "-v"]),
        "wrk": _first_line(["wrk", "-v"]),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "commit": _first_line(["git", "rev-parse", "--short", "HEAD"]),
        "modified": bool(_first_line(["git", "status", "--porcelain", "--", "velox"])),
        "load_average": os.getloadavg(),
    }


def _loop_us() -> float:
    """Return how long a small piece of Python takes: builds of one version differ by half (README.md)."""
    setup = """
class Counter:
    __slots__ = ("n",)
    def __init__(self): self.n = 0
    def add(self, n): self.n += n
"""
    code = """
counter = Counter()
for n in range(5): counter.add(n)
"""
    return min(timeit.repeat(code, setup, number=20_000, repeat=5)) / 20_000 * 1e6


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0] if lines else ""
