"""A profile as folded text, from which speedscope and flamegraph.pl draw a flame graph.

Knows: the form of a line. Does not know: where a profile came from, or HTTP.
"""

from __future__ import annotations

from velox.profiling.samples import CPU, Profile

__all__ = ["folded"]


def folded(profile: Profile) -> str:
    """Return a line per stack, `frame;frame;frame microseconds` (of memory: bytes), callers first."""
    lines, unit = [], 1000 if profile.measure is CPU else 1
    for worker, samples in profile.workers.items():
        for stack, cost in samples.items():
            names = (frame.dotted.replace(";", ",").replace(" ", "_") for frame in stack)
            lines.append(f"{worker.replace(' ', '_')};{';'.join(names)} {round(cost.amount / unit)}\n")
    return "".join(sorted(lines))
