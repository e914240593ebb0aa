"""`python -m bench.peers install [NAME...]`, `... check [NAME...]`, `... table`: writes docs/benchmarks/peers.md.

Knows: the command line. Does not know: how a peer is installed, started or checked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from bench.machine import pick_cores
from bench.peers.catalogue import PEERS, STORE, PeerError
from bench.peers.checking import check
from bench.peers.installing import install, packages
from docs.tables import fill

__all__ = ["PAGE", "main", "table"]

PAGE: Final = Path(__file__).parents[2] / "docs/benchmarks/peers.md"


def table() -> str:
    """Return the catalogue as Markdown."""
    lines = ["| Gateway | Comes as | Upstreams | Its configuration |", "| --- | --- | --- | --- |"]
    for each in PEERS:
        lines.append(f"| {each.name} | {each.package} | {', '.join(sorted(each.upstreams))} | {each.features} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Do what is asked for every peer; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers")
    parser.add_argument("what", choices=("install", "check", "table"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    given = parser.parse_args()
    if given.what == "table":
        PAGE.write_text(fill(PAGE.read_text(), "peers", table()))
        return 0
    failed = []
    for name in given.names or [each.name for each in PEERS]:
        try:
            if given.what == "install":
                install(name, STORE, lambda text: print(text, flush=True))
                print(f"{name}: is there, {len(packages(name))} packages in all", flush=True)
            else:
                for what, found in check(name, pick_cores()).items():
                    print(f"{name:<14} {what:<10} {found}", flush=True)
        except PeerError as error:
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
