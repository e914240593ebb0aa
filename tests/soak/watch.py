"""What the processes of a gateway hold, second by second, and how fast it grows.

Knows: /proc, a robust fit. Does not know: gateways, or what growth may be.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Samples", "growth", "held"]

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_POINTS: Final = 150  # of a fit; each is the least of some samples, as memory that is given back soon is no growth


@dataclass
class Samples:
    """Resident bytes of one process. name: what it is. times_s: monotonic.

    What is shared is left out: rings and tables in shared memory have a fixed size, and their pages count to a process
    from when it first touches them.
    """

    name: str
    times_s: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def after(self, begin_s: float) -> Samples:
        """Return those from a time on."""
        at = next((n for n, time_s in enumerate(self.times_s) if time_s >= begin_s), len(self.times_s))
        return Samples(self.name, self.times_s[at:], self.sizes[at:])


def held(pids: Mapping[int, str], known: dict[int, Samples], now_s: float) -> None:
    """Add a sample for each process. pids: with what each is."""
    for pid, name in pids.items():
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()  # proc(5), in pages
            samples = known.setdefault(pid, Samples(name))
            samples.times_s.append(now_s)
            samples.sizes.append((int(resident) - int(shared)) * _PAGE)


def growth(samples: Samples) -> float:
    """Return bytes a second: the median of all slopes between two points (Theil and Sen), which outliers don't move."""
    points = _least(samples.times_s, samples.sizes)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x2 > x1]
    return statistics.median(slopes) if slopes else 0.0


def _least(times_s: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, int]]:
    each = max(1, -(-len(sizes) // _POINTS))
    found = []
    for at in range(0, len(sizes), each):
        size, n = min((size, n) for n, size in enumerate(sizes[at : at + each], at))
        found.append((times_s[n], size))
    return found
