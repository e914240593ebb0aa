"""Several routes to the same servers side by side: one gateway, a route for each subject, and rounds in turn.

Knows: the order of rounds, and what is counted in one. Does not know: what the routes differ in.

A route is chosen by the model that a request names. In each round all subjects get the same load, one after the other,
in an order that rotates; the next one begins when the gateway has nothing left to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from bench.crowd import Answer, Request, offer
from bench.machine import describe
from bench.model_servers import series, total
from bench.open_loop import percentile
from bench.pictures import DOCS
from bench.report import save
from bench.rounds import rotated, spread
from bench.simulated import Gateway
from docs.tables import fill

__all__ = ["Make", "Round", "asked", "first_tokens", "median_of", "play", "publish", "raw", "shown_s"]

_N_CONNECTIONS: Final = 256
_EMPTY_S: Final = 20.0

# Returns the requests of a subject in a round.
Make: TypeAlias = Callable[[str, int], list[Request]]


@dataclass(frozen=True, slots=True)
class Round:
    """What became of the requests of one subject in one round. attempts: at upstreams, of all its requests.

    counted: the answers to requests that were due after the first part, which is dropped.
    """

    subject: str
    number: int
    answers: Sequence[Answer]
    counted: Sequence[Answer]
    attempts: float

    @property
    def failed(self) -> list[Answer]:
        """All that were refused or did not come whole; not those that the end of the round cut short."""
        return [each for each in self.answers if each.status != 200 and each.reason != "waited"]

    @property
    def unanswered(self) -> list[Answer]:
        """Those whose first token had not come when the round was over."""
        return [each for each in self.counted if each.reason == "waited" and not each.first_s]

    def ttft(self, share: float) -> float:
        """Return a percentile of the time to the first token, in seconds; inf: it never came."""
        return percentile(sorted(first_tokens(self.counted)), share)


def first_tokens(answers: Sequence[Answer]) -> list[float]:
    """Return the times to the first token, in seconds; inf for one that had not come when the round was over."""
    times_s = (each.first_s or float("inf") for each in answers if each.status == 200 or each.reason == "waited")
    return [*times_s] or [float("nan")]


def play(
    gateway: Gateway, subjects: Sequence[str], make: Make, n_rounds: int, *, seconds: float, dropped: float
) -> dict[str, list[Round]]:
    """Play all rounds. seconds: of each; then a third of it for those not answered. dropped: part of a round.

    Raises RuntimeError for a round with a request that failed: there are no figures of failing gateways.
    """
    found: dict[str, list[Round]] = {subject: [] for subject in subjects}
    for number in range(n_rounds):
        for subject in rotated(subjects, number):
            before = _attempts(gateway)
            answers = offer(gateway.port, make(subject, number), _N_CONNECTIONS, patience_s=max(1.0, seconds / 3))
            _wait_until_empty(gateway)
            counted = [each for each in answers if each.due_s >= dropped * seconds]
            found[subject].append(Round(subject, number, answers, counted, _attempts(gateway) - before))
            _tell(found[subject][-1], n_rounds)
            failed = found[subject][-1].failed
            if failed:
                reasons = {f"{each.status} {each.reason}" for each in failed}
                raise RuntimeError(f"{len(failed)} requests of {subject} failed: {reasons}")
    return found


def _tell(each: Round, n_rounds: int) -> None:
    times = " ".join(f"p{share * 100:g} {shown_s([each.ttft(share)])}" for share in (0.5, 0.99))
    line = f"round {each.number + 1} of {n_rounds}, {each.subject}: {len(each.answers)} requests, {times}"
    print(line, file=sys.stderr, flush=True)


def _attempts(gateway: Gateway) -> float:
    return total(series(gateway.admin, "velox_upstream_attempts_total"), "velox_upstream_attempts_total")


def _wait_until_empty(gateway: Gateway) -> None:
    """Wait until nothing is under way; those whose clients have left end at once. Raises RuntimeError."""
    until_s = time.monotonic() + _EMPTY_S
    while total(series(gateway.admin, "velox_inflight_requests"), "velox_inflight_requests"):
        if time.monotonic() > until_s:
            raise RuntimeError(f"requests of clients that have left are still under way after {_EMPTY_S:g} s")
        time.sleep(0.05)


def median_of(rounds: Sequence[Round], share: float) -> float:
    """Return the median of the rounds of a percentile of the time to the first token."""
    return spread([each.ttft(share) for each in rounds]).median


def shown_s(times_s: Sequence[float]) -> str:
    """Return times of rounds as the median with least and greatest. `never`: they were not over when the round was."""
    each = spread(times_s)
    median, least, greatest = map(_one, (each.median, each.least, each.greatest))
    return median if least == greatest else f"{median} ({least} to {greatest})"


def _one(value: float) -> str:
    if value == float("inf"):
        return "never"
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.1f} s"


def raw(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """Return all that was seen, for the record of a run."""
    return [
        {
            "subject": each.subject,
            "round": each.number,
            "attempts": each.attempts,
            "fields": ["kind", "due_s", "first_s", "took_s", "status", "reason", "upstream", "attempts"],
            "answers": [
                [
                    answer.kind,
                    round(answer.due_s, 4),
                    round(answer.first_s, 4),
                    round(answer.took_s, 4),
                    answer.status,
                    answer.reason,
                    answer.upstream,
                    answer.attempts,
                ]
                for answer in each.answers
            ],
        }
        for each in rounds
    ]


def asked(description: str | None, *, seconds: float) -> argparse.Namespace:
    """Return what the command line asks for: seconds (of each round; by default `seconds`), rounds, out, dry."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for the raw figures")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    return parser.parse_args()


def publish(arguments: argparse.Namespace, page: str, name: str, table: str, figures: dict[str, object]) -> None:
    """Put the table into its place in a page of docs/, and keep it with the raw figures."""
    place = DOCS / page
    place.write_text(fill(place.read_text(), name, f"{table}\n"))
    save(arguments.out, name, {"machine": describe(), "seconds": arguments.seconds, **figures}, table)
