"""Play the public Failover Bench's sixteen scenarios through a gateway, and print the verdicts.

    python -m tests.failover [--scale 1.0] [--files tuned,defaults] [S01 S02 ...]

With a file that has time-outs and reasons, and with one whose only line about faults is the fallback. At a scale of 1
every wait is real, Velox's default time-outs too: about three minutes. The exit status is 1 if a scenario fails.

Knows: the command line. Does not know: faults and verdicts (tests/e2e/failover_bench.py).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.e2e.failover_bench import DEFAULTS, SCENARIOS, TUNED, FlakyProvider, config, judge, measure, scaled_defaults
from tests.e2e.routed import routed


def play(kind: str, names: Sequence[str], scale: float) -> dict[str, str]:
    """Return the verdicts, by scenario."""
    more = scaled_defaults(scale) if kind == DEFAULTS else {}
    verdicts = {}
    with FlakyProvider(scale) as provider, routed(config(provider.upstream.url, kind), **more) as velox:
        for name in names:
            began_s = time.monotonic()
            verdicts[name] = judge(name, measure(name, provider, velox.port))
            print(f"{kind} {name} {verdicts[name]} ({time.monotonic() - began_s:.1f} s)", file=sys.stderr, flush=True)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # the provider writes on connections that the gateway has left
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the waits")
    parser.add_argument("--files", default=f"{TUNED},{DEFAULTS}", help="which are played")
    parser.add_argument("names", nargs="*", default=list(SCENARIOS), metavar="S01")
    options = parser.parse_args(arguments)
    kinds = options.files.split(",")
    found = {kind: play(kind, options.names, options.scale) for kind in kinds}
    print(f"| | scenario | {' | '.join(kinds)} |\n|---|---|{'---|' * len(kinds)}")
    for name in options.names:
        print(f"| {name} | {SCENARIOS[name].title} | {' | '.join(found[kind][name] for kind in kinds)} |")
    counts = {kind: Counter(found[kind].values()) for kind in kinds}
    for kind, count in counts.items():
        print(f"{kind}: " + ", ".join(f"{count[each]} {each}" for each in ("pass", "partial", "safe", "fail")))
    return 1 if any(count["fail"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
