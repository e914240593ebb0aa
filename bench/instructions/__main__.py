"""How many instructions a request costs, against what it has cost so far. Ends with 1 if it differs.

    python -m bench.instructions [WORD ...]    count; kinds with one of the words in their name, or all of them
    --accept         keep what was counted, for this interpreter; the commit's message says why it has changed
    --page           write the figures kept into docs/benchmarks/instructions.md; --accept does that, too
    --all-on         what each step of a real deployment costs (bench/all_on.py), into the page; --dry: only print it
    --observability  what timing, the access log and traces cost (bench/observed.py), into the page; --dry
    --tree DIR       take `velox` from there, as from .compiled; nothing is compared with what is kept, or written
    --keep DIR       leave callgrind's files there: callgrind_annotate DIR/callgrind.4 shows the first kind, by function
    --time           microseconds by the wall clock instead, of the same rig
    --frames         Python frames of velox, calls of C and objects, a request or chunk of the same rig (frames.py)
    --profile        the functions of the same rig, by their own time and number of calls

Knows: the command line. Does not know: how a count is taken (count.py), or judged (kept.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.instructions import kept
from bench.instructions.count import CountError, count, rig_command
from bench.instructions.kinds import ALL_ON, CALIBRATION, OBSERVABILITY, Kind, chosen
from bench.instructions.page import fill_observability, fill_page, fill_steps, observability_table, steps_table, table

__all__ = ["compare", "main"]

_ROOT: Final = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 as kept, 1 it differs, 2 there is no count."""
    options = _parser().parse_args(arguments)
    tree: Path = options.tree.resolve()
    if options.page and not options.accept:
        fill_page(kept.load())
        return 0
    if options.time or options.frames or options.profile:
        how = "--time" if options.time else "--frames" if options.frames else "--profile"
        return subprocess.run([*rig_command(tree), how, *options.words], cwd=_ROOT, check=False).returncode
    is_dry = options.dry or tree != _ROOT
    if options.all_on:
        return _side_by_side(ALL_ON, steps_table, None if is_dry else fill_steps, tree, options.keep)
    if options.observability:
        return _side_by_side(
            OBSERVABILITY, observability_table, None if is_dry else fill_observability, tree, options.keep
        )
    kinds = chosen(options.words)
    if options.words and not options.accept and CALIBRATION not in kinds:
        kinds = (*kinds, CALIBRATION)
    try:
        counts = count(kinds, tree=tree, folder=options.keep)
    except CountError as error:
        print(error, file=sys.stderr)
        return 2
    now = kept.this_place(counts)
    if tree != _ROOT:
        print("\n".join(f"{each:12,}  {name}" for name, each in now.instructions.items()))
        return 0
    if options.accept:
        all_kept = kept.with_figures(kept.load(), now)
        kept.write(all_kept)
        fill_page(all_kept)
        print(f"kept, in {kept.PATH.relative_to(_ROOT)}, for {now.interpreter}")
        return 0
    return compare(kept.load(), now)


def _side_by_side(
    kinds: Sequence[Kind],
    shown: Callable[[Mapping[str, float]], str],
    fill: Callable[[Mapping[str, float]], None] | None,
    tree: Path,
    folder: Path | None,
) -> int:
    """Count these, print their table, and write it into the page. fill: None: it is only printed."""
    try:
        counts = count(kinds, tree=tree, folder=folder)
    except CountError as error:
        print(error, file=sys.stderr)
        return 2
    print(shown(counts))
    if fill is not None:
        fill(counts)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--all-on", action="store_true")
    parser.add_argument("--observability", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--tree", type=Path, default=_ROOT)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--profile", action="store_true")
    return parser


def compare(all_kept: Sequence[kept.Figures], now: kept.Figures) -> int:
    """Print how a count stands to what is kept; return 0, or 1 where it differs."""
    before = kept.nearest(all_kept, now)
    if before is None:
        print("nothing is kept yet: --accept keeps this count", file=sys.stderr)
        return 1
    lines = kept.judge(before, now, all_kept)
    print(table(lines))
    same = before.is_of(now)
    if not same:
        print(f"\nNothing is kept for {now.interpreter}")
        print(f"with {', '.join(f'{name} {version}' for name, version in now.packages.items())}.")
        print(f"The differences are those of the quotient by the calibration, to {before.interpreter}.")
    wrong = [line for line in lines if not line.is_kept]
    if not wrong:
        return 0
    tolerance = kept.TOLERANCE if same else kept.ELSEWHERE
    names = "; ".join(f"{line.name} ({line.change:+.1%})" for line in wrong)
    print(
        f"\nNot within {tolerance:.0%} of what was kept: {names}.\n"
        "More by mistake: `python -m bench.instructions --profile` shows the calls; `--keep DIR` leaves files for\n"
        "callgrind_annotate.\n"
        "Less, or more for a reason: `python -m bench.instructions --accept`, and commit kept.json with the reason in\n"
        "the commit's message.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
