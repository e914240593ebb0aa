"""Has valgrind count what the rig's runs take, in instructions.

Knows: how the rig is started under callgrind, and how its files are read. Does not know: what is run (rig.py), or what
a count is compared with (kept.py).

The machine needs no hardware counters, and may be busy: valgrind executes every instruction itself. What comes before
a run (the interpreter's start, imports) falls out: callgrind begins a new file at each mark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.instructions.kinds import KINDS, Kind

__all__ = ["CountError", "count", "rig_command"]

_ROOT: Final = Path(__file__).parents[2]
_MARK: Final = "getpriority"  # rig.mark()
_LONGEST_S: Final = 3600.0  # on a machine that is busy
_SAID: Final = 3000  # characters of what a failed run said
# The rig in this tree, the gateway in that one: `bench` is taken first.
_RUN: Final = """import sys, bench.payloads
sys.path.insert(0, sys.argv.pop(1))
from bench.instructions.rig import main
main()"""


class CountError(Exception):
    """There is no count; the message says what to do."""


def count(
    kinds: Sequence[Kind] = KINDS, *, tree: Path = _ROOT, folder: Path | None = None, path: str | None = None
) -> dict[str, float]:
    """Return for each kind the instructions of one unit. Raises CountError.

    tree: where `velox` is taken from. folder: keeps callgrind's files, for callgrind_annotate; there is one between two
    marks, four of each kind: start and warm-up, the shorter run, what the longer one sends, the longer run.
    path: where valgrind is; None: in PATH.
    """
    valgrind = shutil.which("valgrind", path=path)
    if valgrind is None:
        raise CountError("valgrind is missing: `apt-get install valgrind`, or tests/install-tools.sh as root")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        stem = place / "callgrind"
        for old in place.glob("callgrind*"):
            old.unlink()
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={stem}", f"--dump-before={_MARK}"]
        command += ["--dump-line=no", *rig_command(tree), *(kind.name for kind in kinds)]
        # Nothing of the caller's: what is in the environment moves the stack, and a VELOX_ variable would change more.
        environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise CountError(f"the rig did not end in {_LONGEST_S:g} s under valgrind") from None
        if done.returncode:
            said = (done.stdout + done.stderr)[-_SAID:]
            raise CountError(f"the rig failed under valgrind ({done.returncode}):\n{said}")
        sums = [_total(Path(f"{stem}.{number}")) for number in range(1, 4 * len(kinds) + 1)]
    return {kind.name: (sums[4 * at + 3] - sums[4 * at + 1]) / kind.units for at, kind in enumerate(kinds)}


def rig_command(tree: Path) -> list[str]:
    """Return what runs the rig of this tree around the gateway of that one; to be run in this tree's root."""
    return [sys.executable, "-c", _RUN, str(tree)]


def _total(path: Path) -> int:
    """Return the instructions of one of callgrind's files."""
    try:
        with path.open() as lines:
            for line in lines:
                if line.startswith(("summary:", "totals:")):
                    return int(line.split()[1])
    except OSError:
        pass
    raise CountError(f"callgrind wrote no {path.name}: it did not see the rig's marks (calls of {_MARK}())")
