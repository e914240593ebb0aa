"""Makes a corpus small: of all inputs, the smallest ones that together reach the same code.

Knows: which lines of velox/ follow which when an input is run. Does not know: fuzzers.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, TypeAlias

import velox
from tests.fuzz.targets import Target

__all__ = ["reached", "shrink"]

_SEEDS: Final = "seed-*"
_VELOX: Final = str(Path(velox.__file__).parent)
Step: TypeAlias = tuple[CodeType, int, int]


def reached(check: Callable[[bytes], None], data: bytes) -> set[Step]:
    """Run an input; return each step from one line of velox/ to the next. Raises what the check raises."""
    steps: set[Step] = set()
    before: dict[FrameType, int] = {}

    def on_line(frame: FrameType, event: str, _arg: object) -> object:
        if event == "line":
            steps.add((frame.f_code, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        elif event == "return":
            before.pop(frame, None)
        return on_line

    def on_call(frame: FrameType, _event: str, _arg: object) -> object:
        return on_line if frame.f_code.co_filename.startswith(_VELOX) else None

    sys.settrace(on_call)  # type: ignore[arg-type]  # "object" for what typeshed describes in three levels
    try:
        check(data)
    finally:
        sys.settrace(None)
    return steps


def shrink(target: Target, grown: Path) -> str:
    """Replace the target's corpus by the inputs of it and of `grown` that are needed; say how many are left.

    What a person wrote is named seed-*, and stays; all others are named by their digests, so that a corpus made anew
    of the same inputs is the same.
    """
    check = target.load()
    target.corpus.mkdir(parents=True, exist_ok=True)
    folders = [folder for folder in (target.corpus, grown) if folder.is_dir()]
    inputs = {path.read_bytes() for folder in folders for path in folder.iterdir()}
    seeds = [path.read_bytes() for path in sorted(target.corpus.glob(_SEEDS))]
    check(b"")  # what is done once, by the first input, is no input's merit
    known: set[Step] = set().union(*(reached(check, data) for data in seeds))
    kept: list[bytes] = []
    for data in sorted(inputs.difference(seeds), key=lambda data: (len(data), data)):
        steps = reached(check, data)
        if not steps <= known:
            known |= steps
            kept.append(data)
    for path in set(target.corpus.iterdir()).difference(target.corpus.glob(_SEEDS)):
        path.unlink()
    for data in kept:
        (target.corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    n_bytes = sum(map(len, [*seeds, *kept]))
    n_kept = len(seeds) + len(kept)
    return f"{target.name}: {n_kept} of {len(inputs)} inputs, {n_bytes} bytes, {len(known)} steps between lines"
