"""The command line of `make bench`: `python -m bench.compare --help`.

Knows: what is asked for, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.compare.agree import ALLOWED, compare, report
from bench.compare.cells import CELLS, Kind, chosen
from bench.compare.run import PARTS, Plan, run
from bench.compare.subjects import NGINX
from bench.report import save

_OUT: Final = Path(__file__).parents[1] / "out"
_ROUNDS: Final = 5
# What makes five rounds of all take about eleven minutes, and about half an hour.
_SECONDS: Final[Mapping[Kind, float]] = {"smoke": 0.5, "bench": 0.6, "full": 1.0}


def main() -> None:
    """Read the command line; measure, print, save and publish, or compare two runs."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--smoke", action="store_true", help="nginx and Velox only, one short round: does it run?")
    size.add_argument("--full", action="store_true", help="all sizes, connections, upstreams; errors; mixed")
    parser.add_argument("--only", metavar="PARTS", help=f"of {','.join(c.id for c in CELLS)},{','.join(PARTS)}")
    parser.add_argument("--peers", metavar="NAMES", help="only these, commas between them; Velox is always there")
    parser.add_argument("--rounds", type=int, help=f"{_ROUNDS} if not given")
    parser.add_argument("--seconds", type=float, help="of a measurement; 0.6, or 1 of a full run, if not given")
    parser.add_argument("--out", type=Path, default=_OUT, metavar="DIR")
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="measure the `velox` in that folder beside this one"
    )
    parser.add_argument("--compiled", type=Path, metavar="DIR", help="a compiled checkout, measured beside this one")
    parser.add_argument("--dry", action="store_true", help="change no page: only write what --out gets")
    parser.add_argument("--agree", nargs=2, type=Path, metavar=("A.json", "B.json"), help="compare two runs")
    parser.add_argument("--allow", type=float, default=ALLOWED, help="the share of figures that may differ")
    given = parser.parse_args()
    if given.agree:
        text, agrees = report(*compare(*(json.loads(path.read_text()) for path in given.agree)), given.allow)
        print(text)
        sys.exit(0 if agrees else 1)
    try:
        plan = _plan(given)
    except ValueError as error:
        parser.error(str(error))
    begin_s = time.monotonic()
    document: dict[str, object] = {}
    try:
        run(plan, _say, document)
    except BaseException:
        if document.get("cells"):
            _say(f"what was measured until now: {save(given.out, f'compare-{plan.kind}-part', document, '')}")
        raise
    _say(f"took {time.monotonic() - begin_s:.0f} s")
    text = _markdown(document)
    print(text)
    path = save(given.out, f"compare-{plan.kind}", document, text)
    print(f"\nraw figures: {path}")
    _publish(path, plan, why_not=_why_not(given, plan))


def _plan(given: argparse.Namespace) -> Plan:
    kind: Kind = "smoke" if given.smoke else "full" if given.full else "bench"
    peers = [NGINX] if given.smoke else given.peers.split(",") if given.peers else []
    only = given.only.split(",") if given.only else []
    cells = [each for each in only if each not in PARTS]
    parts = [each for each in PARTS if each in only or (not only and kind != "smoke")]
    return Plan(
        kind=kind,
        cells=chosen(kind, cells) if cells or not only else (),
        parts=parts,
        peers=peers,
        n_rounds=given.rounds or (1 if given.smoke else _ROUNDS),
        seconds=given.seconds or _SECONDS[kind],
        against=given.against and given.against.resolve(strict=True),
        compiled=given.compiled and given.compiled.resolve(strict=True),
    )


def _why_not(given: argparse.Namespace, plan: Plan) -> str:
    """Return why no page is made of this run; "": there is no reason."""
    if given.dry or plan.kind == "smoke":
        return "--dry" if given.dry else "--smoke"
    return "another tree was measured, or only a part" if given.only or given.peers or given.against else ""


def _publish(path: Path, plan: Plan, *, why_not: str) -> None:
    if why_not:
        print(f"no page was written: {why_not}; python -m bench.plots {path} does it")
        return
    from bench.plots import publish  # a run that writes no page needs nothing of it

    publish(path)


def _markdown(document: dict[str, object]) -> str:
    from bench.plots.document import read, small
    from bench.plots.publish import sections

    found = sections(read(small(json.loads(json.dumps(document)))))
    return "\n\n".join(text.strip() for text in found.values())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
