"""`velox import`: its arguments, and the files that it reads and writes.

Knows: exit codes, and what is printed where. Does not know: what is in a file of another proxy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from velox.settings import Settings
from velox_migrate.import_db import MovingArguments, OpenStores, import_litellm_db
from velox_migrate.litellm import import_litellm
from velox_migrate.litellm_prices import import_litellm_prices

__all__ = ["run_database", "run_file"]


def run_file(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Write the Velox file, and the report on standard error. Exit code 1: there is nothing to write, or no place."""
    try:
        content = Path(arguments.file).read_bytes()
    except OSError as exc:
        print(f"velox import: {arguments.file!r} can't be read ({exc.strerror})", file=sys.stderr)
        return 2
    if arguments.kind == "litellm-prices":
        prices = import_litellm_prices(content)
        text, lines, why = prices.text, list(prices.notes), "no price is left"
        is_bad = False
    else:
        imported = import_litellm(content, arguments.file, environ)
        text, lines = imported.text, [*map(str, imported.problems), *imported.notes.lines()]
        why, is_bad = "no model is left that Velox could ask for", bool(imported.problems)
    for line in lines:
        print(line, file=sys.stderr)
    if text is None:
        print(f"velox import: nothing was written: {why}", file=sys.stderr)
        return 2 if is_bad else 1
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        # Never over a file: somebody may have worked on what an import before has written.
        with Path(arguments.output).open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        print(f"velox import: {arguments.output!r} can't be written ({exc.strerror})", file=sys.stderr)
        return 1
    return 0


def run_database(
    settings: Settings, stores: OpenStores, arguments: argparse.Namespace, environ: Mapping[str, str]
) -> int:
    """Take over the keys of another proxy's database. Exit codes: as import_litellm_db()."""
    if arguments.output is not None:
        print("velox import: litellm-db writes no file: leave out --output", file=sys.stderr)
        return 2
    asked = MovingArguments(**{name: getattr(arguments, name) for name in MovingArguments._fields})
    return import_litellm_db(
        settings, stores, asked, environ, lambda line: print(line, file=sys.stderr), int(time.time())
    )
