"""What a loud caller costs a quiet one, and a flood of a lower class the higher one, and the other way round.

    python -m bench.fairness                    # about 2 minutes; writes tables and picture of docs/queue.md
    python -m bench.fairness --seconds 1 --dry  # does it run? writes nothing

Everything is real: `velox sim` that makes 16 answers at once, `velox serve` with one worker (each has a queue of its
own) that sends it 16, callers with a key each. Requests come at random times whether or not earlier ones were answered,
and are for answers of random length. The wait is what an answer takes from when its request was due, beyond what
the model takes for it. The first fifth of each run is dropped.

Knows: callers, rates, what a client sees. Does not know: how the queue chooses.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.crowd import Answer, offer, requests, service_s
from bench.open_loop import percentile
from bench.simulated import gateway
from docs.tables import fill

__all__ = ["main"]

_DOCS: Final = Path(__file__).parent.parent / "docs"
_CAPACITY: Final = 16
_LENGTHS: Final = (6, 16)  # tokens, evenly: 100 to 200 ms
_PEAK: Final = _CAPACITY / service_s(sum(_LENGTHS) // 2)  # answers a second: 107
_QUIET: Final = 10.0  # requests a second
_LOUD: Final = 100 * _QUIET
_DROPPED: Final = 0.2
_KEYS: Final = """
- {name: quiet, key: bench-quiet-key}
- {name: loud, key: bench-loud-key}
- {name: high, key: bench-high-key, priority: high}
- {name: low, key: bench-low-key, priority: low}
"""


@dataclass(frozen=True, slots=True)
class Found:
    """What one caller saw. waits_s: of those served, ordered. served: of all tokens served, its part."""

    caller: str
    beside: str
    rate: float
    waits_s: Sequence[float]
    n_refused: int
    served: float

    def row(self) -> str:
        waits = ["none", "none"]
        if self.waits_s:
            waits = [f"{percentile(list(self.waits_s), share) * 1e3:.0f} ms" for share in (0.5, 0.99)]
        n = len(self.waits_s) + self.n_refused
        return (
            f"| {self.caller} | {self.rate:g}/s | {self.beside} | {waits[0]} | {waits[1]} "
            f"| {self.n_refused} of {n} | {self.served * 100:.0f} % |"
        )


@contextlib.contextmanager
def _keys_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_KEYS)
        file.flush()
        yield file.name


def _measure(rates: Mapping[str, float], seconds: float) -> list[Found]:
    """Let the callers of these names ask at these rates, all at once."""
    due = []
    for index, (name, rate) in enumerate(rates.items()):
        headers = {"authorization": f"Bearer bench-{name}-key"}
        due += requests(name, rate, seconds, _LENGTHS, headers=headers, seed=index + 1)
    settings = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_CONCURRENCY": str(_CAPACITY)}
    with (
        _keys_file() as keys_file,
        gateway(_CAPACITY, {**settings, "VELOX_API_KEYS_FILE": keys_file}) as velox,
    ):
        key = {"authorization": "Bearer bench-quiet-key"}
        offer(velox.port, requests("warm", _PEAK, 1.0, _LENGTHS, headers=key), 64)
        answers = [each for each in offer(velox.port, due) if each.due_s >= seconds * _DROPPED]
    wrong = [each for each in answers if each.status not in (200, 429, 503)]
    if wrong:
        raise RuntimeError(f"{len(wrong)} requests failed, the first one with {wrong[0].status}")
    n_served = max(1, sum(each.status == 200 for each in answers))
    return [_found(name, rates, answers, n_served) for name in rates]


def _found(name: str, rates: Mapping[str, float], answers: Sequence[Answer], n_served: int) -> Found:
    own = [each for each in answers if each.kind == name]
    waits_s = sorted(each.wait_s for each in own if each.status == 200)
    beside = ", ".join(f"{other} with {rate:g}/s" for other, rate in rates.items() if other != name)
    return Found(name, beside or "nobody", rates[name], waits_s, len(own) - len(waits_s), len(waits_s) / n_served)


_RUNS: Final[Sequence[Mapping[str, float]]] = (
    {"quiet": _QUIET},
    {"quiet": _QUIET, "loud": _LOUD},
    {"high": _QUIET, "low": _LOUD},
    {"high": _LOUD, "low": _LOUD},
    {"high": _LOUD, "low": _QUIET / 2},
)


def _draw(found: Sequence[Found]) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same picture for the same figures, with its text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "velox", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, (waits, shares) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for each in found:
        n = len(each.waits_s)
        style = "dashed" if each.caller in ("loud", "low") else "solid"
        label = f"{each.caller} ({each.rate:g}/s), beside {each.beside}"
        step = max(1, n // 200)
        points = [(wait_s * 1e3, (index + 1) / n) for index, wait_s in enumerate(each.waits_s)][::step]
        waits.plot(*zip(*points, strict=True), linestyle=style, label=label)
    waits.set(xlabel="wait, ms", ylabel="part of those served", xlim=(-10, 500))
    waits.legend(fontsize=6, loc="lower right")
    floods = [each for each in found if len(each.beside) > len("nobody")]
    names = [f"{each.caller} ({each.rate:g}/s), beside\n{each.beside}" for each in floods]
    shares.barh(names, [each.served * 100 for each in floods])
    shares.invert_yaxis()
    shares.tick_params(axis="y", labelsize=7)
    shares.set(xlabel="part of all that was served, %", xlim=(0, 100))
    figure.savefig(_DOCS / "fairness.svg", metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the five runs")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    found = [each for rates in _RUNS for each in _measure(rates, arguments.seconds)]
    lines = [
        "| caller | asks | beside | wait p50 | p99 | refused | of all that was served |",
        "|---|---|---|---|---|---|---|",
        *(each.row() for each in found),
    ]
    table = "\n".join(lines)
    print(table)
    if not arguments.dry:
        _draw(found)
        page = _DOCS / "queue.md"
        page.write_text(fill(page.read_text(), "fairness", f"{table}\n"))


if __name__ == "__main__":
    main()
