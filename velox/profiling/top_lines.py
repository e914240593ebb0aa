"""A profile of memory as text: the lines that allocated most of it, for people.

Knows: how lines are summed and written. Does not know: where a profile came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from velox.profiling.samples import Cost, Frame, Profile, merge

__all__ = ["top_lines"]

_MOST: Final = 60


def top_lines(profile: Profile) -> str:
    """Return the lines by the bytes that they have allocated, all workers together, the largest first."""
    lines = merge(((stack[-1],), cost) for samples in profile.workers.values() for stack, cost in samples.items())
    return "\n".join(_told(profile, sorted(lines.items(), key=lambda line: -line[1].amount)))


def _told(profile: Profile, lines: list[tuple[tuple[Frame, ...], Cost]]) -> Iterator[str]:
    within = f"{profile.duration_ns / 1e9:g} s"
    yield f"memory allocated in {within} and still in use: {profile.amount} bytes in {profile.n_samples} blocks"
    for name in profile.missing:
        yield f"{name} did not answer and is not in this profile"
    if profile.unseen:
        yield f"compiled build: {profile.unseen}"
    yield ""
    yield f"{'bytes':>12} {'blocks':>9}  line"
    for (frame,), cost in lines[:_MOST]:
        yield f"{cost.amount:>12} {cost.n:>9}  {frame.dotted}"
    if len(lines) > _MOST:
        rest = [cost for _, cost in lines[_MOST:]]
        n_bytes, n_blocks = sum(cost.amount for cost in rest), sum(cost.n for cost in rest)
        yield f"{n_bytes:>12} {n_blocks:>9}  {len(rest)} other lines"
    yield ""
