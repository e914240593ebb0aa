"""Writes the pages, pictures and key figures anew: `python -m bench.plots FILE.json [--into FOLDER]`.

Without --into: docs/benchmarks/ and README.md. With it: the pages and pictures only, into that folder, which also
takes the short runs that no page is made of.

Knows: the command line. Does not know: what is drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.plots.publish import publish


def main() -> None:
    """Read the command line and publish."""
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=__doc__.splitlines()[0])
    parser.add_argument("document", type=Path, metavar="FILE.json", help="what bench.compare wrote")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="leave docs/ and README.md as they are")
    given = parser.parse_args()
    try:
        publish(given.document, given.into)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
