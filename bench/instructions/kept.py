"""The figures that a count is held against, and the judgement.

Knows: bench/instructions/kept.json, for which interpreter and which C parts each figure holds, how far a count may be
from it. Does not know: how a count is taken (count.py).

    the same interpreter and parts   each count itself, TOLERANCE either way: better is news, too, and is to be kept
    any other                        each count divided by that of the calibration (calibration.py), against the same
                                     quotient of the nearest figures kept, and ELSEWHERE: builds of CPython differ in
                                     what they make cheap, but not by that much. So is a kind that is kept of
                                     another place alone
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.instructions.kinds import CALIBRATION

__all__ = [
    "ELSEWHERE",
    "PATH",
    "TOLERANCE",
    "Figures",
    "Line",
    "judge",
    "load",
    "nearest",
    "this_place",
    "with_figures",
    "write",
]

PATH: Final = Path(__file__).with_name("kept.json")
TOLERANCE: Final = 0.02
ELSEWHERE: Final = 0.10
# The C parts that a request goes through.
_PACKAGES: Final = ("uvloop", "httptools", "ngh2", "pysimdjson", "orjson", "atomicshm")


@dataclass(frozen=True, slots=True)
class Figures:
    """What was counted in one place. instructions: by name of the kind, of one unit."""

    interpreter: str
    packages: Mapping[str, str]
    instructions: Mapping[str, int]

    def is_of(self, other: Figures) -> bool:
        """Say whether two counts may be compared as they are."""
        return self.interpreter == other.interpreter and self.packages == other.packages


@dataclass(frozen=True, slots=True)
class Line:
    """One kind. kept: 0 where there is none. change: as a part of what was kept, of the figure or of its quotient."""

    name: str
    kept: int
    now: int
    change: float
    is_kept: bool


def this_place(counts: Mapping[str, float]) -> Figures:
    """Return counts that were taken with this interpreter."""
    build, date = platform.python_build()
    interpreter = (
        f"{platform.python_implementation()} {platform.python_version()} ({build}, {date}) "
        f"[{platform.python_compiler()}] {platform.machine()} {' '.join(platform.libc_ver())}"
    )
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return Figures(interpreter, packages, {name: round(count) for name, count in counts.items()})


def load(path: Path = PATH) -> tuple[Figures, ...]:
    """Return all that is kept."""
    if not path.exists():
        return ()
    return tuple(Figures(**each) for each in json.loads(path.read_text()))


def write(kept: Sequence[Figures], path: Path = PATH) -> None:
    """Keep these."""
    path.write_text(json.dumps([asdict(each) for each in kept], indent=2) + "\n")


def with_figures(kept: Sequence[Figures], new: Figures) -> tuple[Figures, ...]:
    """Return what is kept with these in the place of those that they replace, kind by kind."""
    old = next((each for each in kept if each.is_of(new)), None)
    if old is None:
        return (*kept, new)
    merged = Figures(new.interpreter, new.packages, {**old.instructions, **new.instructions})
    return tuple(merged if each is old else each for each in kept)


def nearest(kept: Sequence[Figures], now: Figures) -> Figures | None:
    """Return what these are held against: those of the same place, else of the same version, else the first."""
    version = now.interpreter.split(" (")[0]
    for each in kept:
        if each.is_of(now):
            return each
    return next((each for each in kept if each.interpreter.split(" (")[0] == version), kept[0] if kept else None)


def judge(kept: Figures, now: Figures, others: Sequence[Figures] = ()) -> tuple[Line, ...]:
    """Hold each kind against what was kept of it. others: against whom what was not is held, the first that has it."""
    lines = []
    for name, count in now.instructions.items():
        held = kept if name in kept.instructions else next((each for each in others if name in each.instructions), kept)
        before = held.instructions.get(name, 0)
        same = held.is_of(now)
        scale = 1.0 if same else held.instructions[CALIBRATION.name] / now.instructions[CALIBRATION.name]
        change = round(count * scale / before - 1, 6) if before else 0.0
        is_kept = bool(before) and abs(change) <= (TOLERANCE if same else ELSEWHERE)
        lines.append(Line(name, before, count, change, is_kept))
    return tuple(lines)
