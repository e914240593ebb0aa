"""Run every test of a fault and print the table: python -m tests.wall [--write FILE] [options of pytest].

Knows: where such tests are. Does not know: what they do. The exit code is pytest's. --write also writes the table
into a file of Markdown, docs/faults.md for example, between its marks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.wall.table import FaultTable
from tests.wall.ways import ALL_KINDS

_WHERE: Final = ("tests/wall", "tests/e2e")
_BEGIN: Final = "<!-- faults -->"
_END: Final = "<!-- /faults -->"


def main() -> int:
    """Run, print, and write if told to."""
    parser = argparse.ArgumentParser(prog="python -m tests.wall")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file of Markdown")
    parser.add_argument("--column", choices=ALL_KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    arguments, others = parser.parse_known_args()
    if arguments.column:
        return run_column(arguments.column, arguments.results, others)
    table = FaultTable()
    code = run_columns(table, others)
    text = "\n".join(table.lines())
    print("\n" + text)
    if arguments.write is not None:
        write(arguments.write, text)
    return code


def run_columns(table: FaultTable, options: Sequence[str]) -> int:
    """Run a pytest for each way to speak, side by side, since most tests wait; return the worst exit code."""
    with tempfile.TemporaryDirectory() as folder:
        children = {}
        for kind in ALL_KINDS:
            command = [sys.executable, "-m", "tests.wall", "--column", kind, "--results", f"{folder}/{kind}", *options]
            with Path(folder, f"{kind}.log").open("wb") as log:
                children[kind] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        codes = [child.wait() for child in children.values()]
        for kind in ALL_KINDS:
            print(f"-- {kind}\n{Path(folder, f'{kind}.log').read_text()}")
            results = Path(folder, kind)
            if results.exists():
                table.take(results.read_text())
        return max(codes, key=abs)


def run_column(kind: str, results: Path, options: Sequence[str]) -> int:
    """Run the tests of one way to speak here; leave the results in a file."""
    table = FaultTable(kind)
    where = [] if any(Path(option.partition("::")[0]).exists() for option in options) else _WHERE
    code = pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", "-m", "fault", *where, *options], plugins=[table])
    results.write_text(table.dump())
    return int(code)


def write(path: Path, text: str) -> None:
    """Put the table between the marks of a file, or at the end of one that has none."""
    old = path.read_text() if path.exists() else f"# Faults\n\n{_BEGIN}\n{_END}\n"
    if _BEGIN not in old:
        old += f"\n{_BEGIN}\n{_END}\n"
    before, _, rest = old.partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n{text.rstrip()}\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
