"""CPU time, writes and memory of a process and its descendants, from /proc.

Knows: /proc/PID/task/*/schedstat (ns on a core, user and system together), /proc/PID/stat, io, status, smaps_rollup.
Does not know: what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["cpu_seconds", "family", "memory_bytes", "n_writes", "user_share"]

_PROC: Final = Path("/proc")


def family(pid: int, proc: Path = _PROC) -> list[int]:
    """Return `pid` and all its descendants that live now."""
    parents: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may hold spaces: what counts comes after the last one.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended since it was listed
            parents[int(entry.name)] = int(fields[1])
    return [each for each in parents if each == pid or _descends(each, pid, parents)]


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def cpu_seconds(pids: list[int], proc: Path = _PROC) -> float:
    """Return the time that these processes' threads have been on a core."""
    total_ns = 0
    for pid in pids:
        for schedstat in (proc / str(pid) / "task").glob("*/schedstat"):
            total_ns += int(schedstat.read_text().split()[0])
    return total_ns / 1e9


def n_writes(pids: list[int], proc: Path = _PROC) -> int:
    """Return how often these processes have called write(), writev() and the like."""
    lines = [line for pid in pids for line in (proc / str(pid) / "io").read_text().splitlines()]
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith("syscw:"))


def user_share(pids: list[int], proc: Path = _PROC) -> tuple[int, int]:
    """Return the ticks that these processes have spent in user mode, and in the kernel.

    Many kernels only sample what is user and what is system: their proportion, over a second or more, is of use to
    divide what cpu_seconds() says, which is exact.
    """
    user = system = 0
    for pid in pids:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        user, system = user + int(fields[11]), system + int(fields[12])
    return user, system


def memory_bytes(pids: list[int], proc: Path = _PROC) -> int:
    """Return what these processes hold resident together, counting what they share once.

    Private memory is summed (a page that forked processes still share is divided among them); of files and shared
    memory, which all of them map alike, the greatest process's part counts, once.
    """
    private = shared = 0
    for pid in pids:
        private += _kb(proc / str(pid) / "smaps_rollup", "Pss_Anon:")
        status = proc / str(pid) / "status"
        shared = max(shared, _kb(status, "RssFile:") + _kb(status, "RssShmem:"))
    return (private + shared) * 1024


def _kb(path: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))
