"""Flood a real gateway and print what it cost: python -m tests.floods [--write FILE] [PART OF A NAME].

Knows: how the table looks. Does not know: what a flood says, how it is measured.
--write also puts the tables into a file of Markdown, docs/http2-floods.md for example, between its marks. The exit code
is 1 if a flood did not end as wanted, or cost the gateway a hundred times what it cost the attacker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.floods.attacker import Outcome, attack, target
from tests.floods.attacks import ATTACKS, Attack
from tests.h2spec.table import EngineName
from tests.markdown import put_between

_ENGINES: Final[tuple[EngineName, ...]] = ("ngh2", "h2")
_MIB: Final = 1 << 20
# The bar for an attack that costs the attacked too much: Envoy's, for memory and CPU.
_TOO_MUCH: Final = 100
_HEAD: Final = (
    "| flood | | connections | bytes in | bytes out | out/in | attacker's CPU | gateway's CPU | ratio "
    "| memory before, peak, after | how it ended |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Flood, print, and write if told to."""
    parser = argparse.ArgumentParser(prog="python -m tests.floods")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("name", nargs="?", default="")
    arguments = parser.parse_args()
    floods = [flood for flood in ATTACKS if arguments.name in flood.name]
    parts = []
    is_well = True
    for name in _ENGINES:
        outcomes = _play(name, floods)
        parts.append(f"Clients through `{name}`:\n\n" + "\n".join([_HEAD, *_rows(floods, outcomes)]))
        is_well = is_well and all(map(_is_well, floods, outcomes))
    text = "\n\n".join(parts)
    print(text)
    if arguments.write is not None:
        put_between(arguments.write, "floods", text)
    return int(not is_well)


def _play(name: EngineName, floods: Sequence[Attack]) -> list[Outcome]:
    with target(name) as at:
        attack(at, ATTACKS[0])  # the first requests of a worker cost more than all later ones
        return [attack(at, flood) for flood in floods]


def _is_well(flood: Attack, outcome: Outcome) -> bool:
    cost = outcome.cost
    return set(outcome.ends) <= set(flood.ends) and max(cost.cpu_ratio, cost.bytes_ratio) < _TOO_MUCH


def _rows(floods: Sequence[Attack], outcomes: Sequence[Outcome]) -> Iterator[str]:
    for flood, outcome in zip(floods, outcomes, strict=True):
        cost = outcome.cost
        n = flood.n_connections
        memory = ", ".join(f"{size / _MIB:.0f}" for size in (cost.rss_before, cost.rss_peak, cost.rss_after))
        cells = (
            flood.name,
            flood.ids,
            str(n),
            f"{cost.bytes_in // n:,}",
            f"{cost.bytes_out // n:,}",
            f"{cost.bytes_ratio:.2g}",
            f"{cost.attacker_s / n * 1e3:.2f} ms",
            f"{cost.gateway_s / n * 1e3:.2f} ms",
            f"{cost.cpu_ratio:.1f}",
            f"{memory} MiB",
            " or ".join(outcome.ends),
        )
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
