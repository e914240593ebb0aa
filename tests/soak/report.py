"""What is thought of a soak: a report for people, and what was promised and broken.

Knows: the promises. Does not know: how a soak is run (run.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.soak.clients import End
from tests.soak.run import Soaked
from tests.soak.watch import Samples, growth

__all__ = ["problems", "report"]

_MIB: Final = 1 << 20
_S_PER_HOUR: Final = 3600.0
# Of the memory of a process: more an hour than this part, and more in the whole than what an allocator may keep.
_MOST_PER_HOUR: Final = 0.01
_MOST_BYTES: Final = 4 * _MIB
# Of a life in seconds: younger processes are still filling their caches.
_LEAST_LIFE_S: Final = 60.0
_AT_ONCE_S: Final = 5.0
# A worker that was killed has not got back what it dials for its successor.
_SPARE_FDS: Final = 8
_SPARE_TASKS: Final = 4


def measured(done: Soaked) -> Iterator[tuple[Samples, float]]:
    """Yield the processes that lived long enough, warm, with their growth in bytes a second."""
    for samples in done.memory.values():
        warm_s = done.measured_s
        if samples.times_s[0] > done.began_s + _AT_ONCE_S:  # in the place of one that was killed: it warms up later
            warm_s += samples.times_s[0] - done.began_s
        later = samples.after(warm_s)
        if later.times_s and later.times_s[-1] - later.times_s[0] >= min(_LEAST_LIFE_S, done.rules.seconds / 3):
            yield later, growth(later)


def problems(done: Soaked) -> list[str]:
    """Return what was promised and broken; none: all is well."""
    found = [
        f"failed by the gateway: {each.plan.lane.name}, {each.plan.fault}: {each.status} {each.reason} {each.note}"
        for each in done.clients.bad
    ]
    for samples, slope in measured(done):
        grown = slope * (samples.times_s[-1] - samples.times_s[0])
        per_hour = slope * _S_PER_HOUR / samples.sizes[0]
        if grown > _MOST_BYTES and per_hour > _MOST_PER_HOUR:
            found.append(f"memory of a {samples.name} grows: {grown / _MIB:.1f} MiB, {per_hour:.1%} an hour")
    before, after = done.before, done.after
    assert before is not None and after is not None, "both are measured"
    if after.n_fds > before.n_fds + _SPARE_FDS:
        found.append(f"descriptors are not given back: {before.n_fds} -> {after.n_fds}")
    found += [
        f"tasks are left: {name} {before.tasks.get(name, 0)} -> {n}"
        for name, n in after.tasks.items()
        if n > before.tasks.get(name, 0) + _SPARE_TASKS
    ]
    found += [f"{name} is {value:g} when nothing runs" for name, value in after.slots.items() if value]
    found += [f"no record of {each}" for each in done.lost]
    found += [f"in the log: {line}" for line in done.log]
    if done.clients.n_late:
        found.append(f"{done.clients.n_late} requests could not be begun: too many were waiting for their ends")
    return found


def report(done: Soaked) -> str:
    """Return the figures as Markdown."""
    ends = done.clients.ends
    n_all = sum(ends.values())
    lines = [
        f"{n_all:,} requests in {done.rules.seconds:.0f} s, seed {done.rules.seed}: "
        + ", ".join(f"{n:,} {end}" for end, n in sorted(ends.items())),
        f"failed by the gateway: {ends[End.BAD]}, {ends[End.BAD] / max(1, n_all) * 1e6:.0f} in a million",
        "done to it: " + (", ".join(f"{n} times {what}" for what, n in sorted(done.trouble.done.items())) or "nothing"),
        "",
        "| process | MiB at the begin | at the end | slope, % an hour | in this run, MiB |",
        "|---|---|---|---|---|",
    ]
    for samples, slope in measured(done):
        seconds = samples.times_s[-1] - samples.times_s[0]
        cells = (
            samples.name,
            f"{samples.sizes[0] / _MIB:.1f}",
            f"{samples.sizes[-1] / _MIB:.1f}",
            f"{slope * _S_PER_HOUR / samples.sizes[0] * 100:+.1f}",
            f"{slope * seconds / _MIB:+.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    before, after = done.before, done.after
    assert before is not None and after is not None, "both are measured"
    lines += [
        "",
        f"descriptors of all workers, without connections to upstreams: {before.n_fds} -> {after.n_fds}",
        f"tasks of a worker: {sum(before.tasks.values())} -> {sum(after.tasks.values())}",
        "slots: " + ", ".join(f"{name} {value:g}" for name, value in after.slots.items()),
        f"records: {done.n_rows:,} rows; answers without one: {len(done.lost)}",
    ]
    counts = Counter[str]()
    for (fault, _), n in done.clients.by_fault.items():
        counts[fault] += n
    lines += ["", "| fault | requests | " + " | ".join(End) + " |", "|---" * (2 + len(End)) + "|"]
    for fault, n in sorted(counts.items()):
        cells = [str(done.clients.by_fault.get((fault, end), "")) for end in End]  # type: ignore[call-overload]
        lines.append(f"| {fault} | {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
