"""Play every case against each engine and print the table: python -m tests.h2spec [--all] [--gateway] [--write FILE].

Knows: how a table of cases looks. Does not know: what a case says, who is at the other end.
It shows the cases that did not go exactly as wanted; --all: every case. --gateway: against a real `velox serve`, else
against an engine in memory. --write also puts the table into a file of Markdown, docs/http2-floods.md for example,
between its marks. The exit code is 1 if a case went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.recording import RecordingUpstream
from tests.h2spec.engine_line import EngineLine
from tests.h2spec.gateway_line import serving
from tests.h2spec.table import ALL_CASES, H2SPEC_CASES, Connect, EngineName, play
from tests.h2spec.talker import Verdict
from tests.markdown import put_between

_ENGINES: Final[tuple[EngineName, ...]] = ("ngh2", "h2")


def main() -> int:
    """Play, print, and write if told to."""
    parser = argparse.ArgumentParser(prog="python -m tests.h2spec")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--gateway", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = {}
    for name in _ENGINES:
        with _server(name, gateway=arguments.gateway) as connect:
            results[name] = [play(case, connect) for case in ALL_CASES]
    text = "\n".join(_lines(results, arguments.all))
    print(text)
    if arguments.write is not None:
        put_between(arguments.write, "h2spec", text)
    return int(not all(verdict.is_right for verdicts in results.values() for verdict in verdicts))


@contextlib.contextmanager
def _server(name: EngineName, *, gateway: bool) -> Iterator[Connect]:
    if gateway:
        with RecordingUpstream() as upstream, serving(name, upstream) as connect:
            yield connect
    else:
        yield lambda: EngineLine(name)


def _lines(results: dict[EngineName, list[Verdict]], is_all: bool) -> Iterator[str]:
    yield "| engine | cases | as wanted | stricter | wrong |"
    yield "|---|---|---|---|---|"
    n_h2spec = len(H2SPEC_CASES)
    for name, verdicts in results.items():
        for what, part in (("h2spec's", verdicts[:n_h2spec]), ("more (B-48, B-49)", verdicts[n_h2spec:])):
            n_right = sum(verdict.is_right for verdict in part)
            n_stricter = sum(verdict.is_right and verdict.is_stricter for verdict in part)
            yield (
                f"| {name} | {len(part)} of {what} | {n_right - n_stricter} | {n_stricter} | {len(part) - n_right} |"
            )
    rows = [row for row in _rows(results) if is_all or set(row[3:]) != {"as wanted"}]
    if rows:
        yield ""
        yield "| case | the client sends | wanted | " + " | ".join(results) + " |"
        yield "|---|---|---|" + "---|" * len(results)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"


def _rows(results: dict[EngineName, list[Verdict]]) -> Iterator[list[str]]:
    for n, case in enumerate(ALL_CASES):
        yield [case.id, case.what, case.wanted.words, *[_cell(verdicts[n]) for verdicts in results.values()]]


def _cell(verdict: Verdict) -> str:
    if not verdict.is_right:
        return f"**{verdict.got}**"
    return "GOAWAY" if verdict.is_stricter else "as wanted"


if __name__ == "__main__":
    sys.exit(main())
